"""Pairs from files, and the batches drawn from them."""

from __future__ import annotations

import gzip
import json

import pytest

from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.finetune.examples import TopicalBatches
from dupmae_ir.finetune.pairs import Pair, cap_kinds, read_pairs
from dupmae_ir.types import Document


def test_json_lines_plain_and_gz_and_tsv(tmp_path):
    rows = [
        {
            "query": "a?",
            "positive": {"id": "1", "title": "T", "text": "x"},
            "kind": "k",
            "source": "ignored",
        },
        {"query": "b?", "positive": "y", "negatives": ["z", {"text": "w"}]},
    ]
    text = "".join(json.dumps(r) + "\n" for r in rows)
    (tmp_path / "p.jsonl").write_text(text)
    with gzip.open(tmp_path / "p.jsonl.gz", "wt") as f:
        f.write(text)
    (tmp_path / "p.tsv").write_text("a?\tx\n")
    plain = read_pairs(tmp_path / "p.jsonl")
    assert plain == read_pairs(tmp_path / "p.jsonl.gz")
    assert plain[0] == Pair("a?", Document("1", "x", "T"), (), "k")
    assert [d.text for d in plain[1].negatives] == ["z", "w"]
    assert read_pairs(tmp_path / "p.tsv") == [Pair("a?", Document("", "x"))]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.jsonl", "{broken\n", "a.jsonl:1: "),
        ("a.jsonl", '{"query": "q", "positive": "p"}\n[]\n', "a.jsonl:2: "),
        ("a.jsonl", '{"query": " ", "positive": "p"}\n', "non-empty"),
        ("a.jsonl", '{"query": "q"}\n', 'no "positive"'),
        ("a.jsonl", '{"query": "q", "positive": {"title": "t"}}\n', "a passage must be"),
        ("a.jsonl", '{"query": "q", "positive": ""}\n', "a passage must be"),
        ("a.jsonl", "\n\n", "a.jsonl"),
        ("a.tsv", "one column\n", "a.tsv:1: expected query<TAB>passage"),
        ("a.jsonl.gz", "not gzip", "a.jsonl.gz:1: "),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path, name, content, says):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError) as e:
        read_pairs(tmp_path / name)
    assert says in str(e.value)
    assert "\n" not in str(e.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.jsonl: no such file"):
        read_pairs(tmp_path / "nowhere.jsonl")


def pairs(n):
    kinds = ("even", "odd")
    return [
        Pair(f"q{i}", Document(f"{i // 4:03d}", f"text {i}"), (), kinds[i % 2]) for i in range(n)
    ]


def docids(data):
    return [pair.positive.docid for pair in data]


def test_caps_draw_from_the_kind_and_keep_the_rest():
    kept = cap_kinds(pairs(40), {"even": 5})
    assert sum(p.kind == "even" for p in kept) == 5
    assert sum(p.kind == "odd" for p in kept) == 20
    assert kept == cap_kinds(pairs(40), {"even": 5})
    assert kept != cap_kinds(pairs(40), {"even": 5}, seed=1)
    with pytest.raises(InputError, match="kinds here: even, odd"):
        cap_kinds(pairs(4), {"weird": 1})


def test_batches_use_every_pair_at_most_once_and_keep_neighbours_together():
    data = pairs(64)
    batches = TopicalBatches(docids(data), batch_size=8, group_size=4, seed=3)
    drawn = list(batches.of_epoch(0))
    assert len(drawn) == len(batches) == 8
    flat = [i for b in drawn for i in b]
    assert len(set(flat)) == len(flat)
    shared = [len({data[i].positive.docid for i in b}) for b in drawn]
    alone = [
        len({data[i].positive.docid for i in b})
        for b in TopicalBatches(docids(data), 8, 1, seed=3).of_epoch(0)
    ]
    assert sum(shared) < sum(alone)
    assert drawn == list(batches.of_epoch(0))
    assert drawn != list(batches.of_epoch(1))


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(UsageError):
        TopicalBatches(docids(pairs(4)), batch_size=8)
    with pytest.raises(UsageError):
        TopicalBatches(docids(pairs(40)), batch_size=8, group_size=9)
