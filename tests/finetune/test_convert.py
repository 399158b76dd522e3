"""Published formats from look-alikes, through the readers of training, and what is refused."""

from __future__ import annotations

import gzip
import json
import tracemalloc

import pytest

from dupmae_ir.errors import InputError
from dupmae_ir.finetune.convert import main
from dupmae_ir.finetune.data import read_pairs
from dupmae_ir.finetune.formats import array_items
from dupmae_ir.finetune.mined import open_passages, read_mined


@pytest.fixture
def marco(tmp_path):
    """MS MARCO's files with three passages and two queries."""
    (tmp_path / "collection.tsv").write_text("0\tfirst passage\n1\tsecond passage\n2\tthird passage\n")
    (tmp_path / "queries.tsv").write_text("10\tone?\n11\ttwo?\n")
    (tmp_path / "qrels.tsv").write_text("10\t0\t0\t1\n11\t0\t1\t1\n11\t0\t2\t0\n")
    return tmp_path


def convert(folder, kind, name, *more, output="out.jsonl"):
    words = ["--format", kind, "--input", folder / name, "--output", folder / output, "--quiet", *more]
    return main([str(w) for w in words])


def ids(folder):
    return ("--queries", folder / "queries.tsv", "--collection", folder / "collection.tsv")


def test_judgements(marco, capsys):
    assert convert(marco, "msmarco-qrels", "qrels.tsv", *ids(marco), "--json", "--kind", "marco") == 0
    assert json.loads(capsys.readouterr().out)["positives"] == 2
    pairs = read_pairs(marco / "out.jsonl")
    assert [(p.query, p.positive.docid, p.positive.text, p.kind) for p in pairs] == [
        ("one?", "0", "first passage", "marco"), ("two?", "1", "second passage", "marco"),
    ]  # fmt: skip


def test_triples_of_ids_become_a_mined_file(marco):
    (marco / "triples.tsv").write_text("10\t0\t1\n10\t0\t2\n10\t0\t0\n11\t1\t2\n")
    assert convert(marco, "msmarco-triples", "triples.tsv", *ids(marco)) == 0
    mined = read_mined(marco / "out.jsonl")
    assert [(m.qid, m.query, m.negatives) for m in mined] == [("10", "one?", ("1", "2")), ("11", "two?", ("2",))]
    passages = open_passages(marco / "out.jsonl", mined)
    assert passages["2"].text == "third passage"


def test_sentence_transformers_negatives(marco):
    rows = [{"qid": 10, "pos": [0], "neg": {"bm25": [1, 2], "dense": [2]}},
            {"qid": 11, "pos": [1], "neg": {"bm25": [0], "dense": [1]}}]  # fmt: skip
    with gzip.open(marco / "hard.jsonl.gz", "wt") as f:
        f.write("".join(json.dumps(r) + "\n" for r in rows))
    assert convert(marco, "st-hard-negatives", "hard.jsonl.gz", *ids(marco)) == 0
    assert [m.negatives for m in read_mined(marco / "out.jsonl")] == [("1", "2"), ("0",)]
    one = ("--systems", "dense")
    assert convert(marco, "st-hard-negatives", "hard.jsonl.gz", *ids(marco), *one, output="b.jsonl") == 0
    assert [m.negatives for m in read_mined(marco / "b.jsonl")] == [("2",), ()]


def test_titles_are_joined_to_the_collection(marco):
    (marco / "titles.tsv").write_text("0\tA title\n2\tAnother\n")
    assert convert(marco, "titles", "collection.tsv", "--titles", marco / "titles.tsv", output="titled.jsonl") == 0
    rows = [json.loads(line) for line in (marco / "titled.jsonl").read_text().splitlines()]
    assert [(r["_id"], r["title"]) for r in rows] == [("0", "A title"), ("1", ""), ("2", "Another")]
    told = ("--queries", marco / "queries.tsv", "--collection", marco / "titled.jsonl")
    assert convert(marco, "msmarco-qrels", "qrels.tsv", *told) == 0
    assert read_pairs(marco / "out.jsonl")[0].positive.title == "A title"


def test_a_beir_folder(tmp_path):
    home = tmp_path / "set"
    (home / "qrels").mkdir(parents=True)
    (home / "corpus.jsonl").write_text('{"_id": "d1", "title": "T", "text": "x"}\n')
    (home / "queries.jsonl").write_text('{"_id": "q1", "text": "what?"}\n')
    (home / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    assert convert(tmp_path, "beir", "set") == 0
    assert read_pairs(tmp_path / "out.jsonl")[0].positive.joined() == "T x"


def dpr_item(n=0, text="yes"):
    passage = {"title": "T", "text": text, "passage_id": f"p{n}"}
    other = {"title": "", "text": f"no {n}", "psg_id": f"n{n}"}
    return {"question": f"q{n}", "answers": ["a"], "positive_ctxs": [passage], "negative_ctxs": [other],
            "hard_negative_ctxs": [{**other, "text": f"hard {n}"}, passage]}  # fmt: skip


def test_dpr(tmp_path):
    items = [dpr_item(0), {**dpr_item(1), "positive_ctxs": []}, dpr_item(2)]
    (tmp_path / "nq.json").write_text(json.dumps(items, indent=4))
    assert convert(tmp_path, "dpr", "nq.json", output="out.jsonl.gz") == 0
    pairs = read_pairs(tmp_path / "out.jsonl.gz")
    assert [p.query for p in pairs] == ["q0", "q2"]
    # Hard ones first; what is the positive itself is gone.
    assert [d.text for d in pairs[0].negatives] == ["hard 0", "no 0"]
    assert pairs[0].positive.docid == "p0"


def test_a_large_array_is_never_whole_in_memory(tmp_path):
    path = tmp_path / "large.json"
    with open(path, "w") as f:
        f.write("[")
        for n in range(20_000):
            f.write((", " if n else "") + json.dumps(dpr_item(n, "word " * 200)))
        f.write("]")
    assert path.stat().st_size > 20e6
    tracemalloc.start()
    assert sum(1 for _ in array_items(path)) == 20_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4e6


@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_items_are_the_same_wherever_the_pieces_end(tmp_path, monkeypatch, at_once):
    from dupmae_ir.finetune import formats

    items = [{"a": [1, 2.5]}, 123456, "te,]xt", None, [], 9]
    (tmp_path / "a.json").write_text(json.dumps(items))
    monkeypatch.setattr(formats, "AT_ONCE", at_once)
    assert list(array_items(tmp_path / "a.json")) == items


def test_tevatron(tmp_path):
    row = {"query_id": "7", "query": "q", "positive_passages": [{"docid": "a", "title": "T", "text": "x"}],
           "negative_passages": [{"docid": "b", "title": "", "text": "y"}]}  # fmt: skip
    (tmp_path / "t.jsonl").write_text(json.dumps(row) + "\n")
    assert convert(tmp_path, "tevatron", "t.jsonl") == 0
    pair = read_pairs(tmp_path / "out.jsonl")[0]
    assert (pair.positive.title, pair.negatives[0].docid) == ("T", "b")


def test_text_triples_and_pairs(tmp_path):
    (tmp_path / "t.tsv").write_text("q1\tyes\tno\nq2\tyes too\n")
    assert convert(tmp_path, "text-triples", "t.tsv") == 0
    pairs = read_pairs(tmp_path / "out.jsonl")
    assert [len(p.negatives) for p in pairs] == [1, 0]


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        ("dpr", '{"question": 1}', "not a JSON array"),
        ("dpr", '[{"question": "q", "positive_ctxs": [{"title": "t"}]}]', "item 1: a passage is an object"),
        ("dpr", '[{"question": "q"', "item 1: broken JSON, or cut short"),
        ("tevatron", '{"query": [1, 2]}', ":1: holds token ids"),
        ("tevatron", '{"query": "q"}', ':1: wants "query" and "positive_passages"'),
        ("text-triples", "only one\n", ":1: wants query, passage"),
    ],
)
def test_wrong_content_is_one_line(tmp_path, capsys, kind, content, message):
    (tmp_path / "in").write_text(content)
    assert convert(tmp_path, kind, "in") == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out.jsonl").exists()


def test_unknown_ids_are_counted_or_skipped(marco, capsys):
    (marco / "qrels.tsv").write_text("10\t0\t0\t1\n11\t0\t99\t1\n12\t0\t1\t1\n")
    assert convert(marco, "msmarco-qrels", "qrels.tsv", *ids(marco)) == 2
    said = capsys.readouterr().err
    assert "2 ids are unknown (99 of query 11, text of query 12" in said
    assert not (marco / "out.jsonl").exists()
    assert convert(marco, "msmarco-qrels", "qrels.tsv", *ids(marco), "--unknown", "skip", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["lines"], told["unknown positives"], told["queries without a text"]) == (1, 1, 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--format", "msmarco-qrels", "--input", "x"), "wants --queries"),
        (("--format", "dpr", "--input", "absent.json"), "no such file"),
        (("--format", "dpr", "--input", "scores.pkl.gz"), "a pickle runs whatever it holds"),
        (("--format", "dpr", "--input", "x", "--titles", "t"), "first give the collection its titles"),
        (("--format", "dpr", "--input", "x", "--systems", "bm25"), "of --format st-hard-negatives"),
    ],
)
def test_misuse(tmp_path, capsys, words, message):
    assert main([*words, "--output", str(tmp_path / "o.jsonl")]) == 2
    assert message in capsys.readouterr().err


def test_the_same_bytes_every_time(marco):
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        assert convert(marco, "msmarco-qrels", "qrels.tsv", *ids(marco), output=name) == 0
    assert (marco / "a.jsonl.gz").read_bytes() == (marco / "b.jsonl.gz").read_bytes()


def test_a_broken_line_names_itself(tmp_path):
    from dupmae_ir.finetune.formats import id_triples

    (tmp_path / "t.tsv").write_text("1\t2\t3\n1\t2\n")
    with pytest.raises(InputError, match=r"t.tsv:2: wants qid"):
        list(id_triples(tmp_path / "t.tsv", {}))
