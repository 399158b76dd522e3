"""Max-passage search: equal to the maximum over all passages of each document."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from support.search_samples import write_index

from dupmae_ir.encode.passages import word_passages
from dupmae_ir.errors import UsageError
from dupmae_ir.io.runs import read_run
from dupmae_ir.search.__main__ import main
from dupmae_ir.search.exact.hits import best_passages
from dupmae_ir.types import Document, Hit

pytestmark = pytest.mark.jvm

WORDS = [
    "lock",
    "thread",
    "queue",
    "fork",
    "pipe",
    "signal",
    "socket",
    "buffer",
    "heap",
    "stack",
    "list",
    "tree",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An index of the passages of 30 documents, 12 topics and one that is a document."""
    chance = random.Random(4)
    documents = [
        Document(f"D{n}", " ".join(chance.choices(WORDS, k=chance.randint(3, 40))))
        for n in range(30)
    ]
    documents.append(Document("q3", "lock thread lock thread queue"))
    passages = [p for d in documents for p in word_passages(d, 8, 4)]
    where = tmp_path_factory.mktemp("passages")
    write_index(where / "index", [p.docid for p in passages], [p.joined() for p in passages])
    rows = [{"_id": f"q{n}", "text": " ".join(chance.choices(WORDS, k=3))} for n in range(12)]
    (where / "queries.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return where


def search(folder, *flags):
    words = ["--index", str(folder / "index"), "--topics", str(folder / "queries.jsonl"), "--quiet"]
    return main([*words, "--output", str(folder / "out.trec"), *flags])


@pytest.mark.parametrize("mode", ["dense", "impact", "hybrid"])
def test_equals_the_maximum_over_all_passages(folder, mode):
    assert search(folder, f"--{mode}", "--hits", "1000") == 0
    every = read_run(folder / "out.trec")
    assert search(folder, f"--{mode}", "--hits", "5", "--passage-hits", "200", "--max-passage") == 0
    found = read_run(folder / "out.trec")
    assert found.keys() == every.keys()
    for qid, hits in found.items():
        best = {}
        for hit in every[qid]:
            docid = hit.docid.split("#")[0]
            best[docid] = max(best.get(docid, -np.inf), hit.score)
        wanted = sorted(best.items(), key=lambda item: (-item[1], item[0]))[:5]
        assert [h.docid for h in hits] == [d for d, _ in wanted]
        assert [h.score for h in hits] == pytest.approx([s for _, s in wanted], abs=1e-4)


def test_remove_query_removes_all_passages_of_the_document(folder):
    assert search(folder, "--hits", "31", "--max-passage", "--remove-query") == 0
    assert "q3" not in {h.docid for h in read_run(folder / "out.trec")["q3"]}
    assert "q3" in {h.docid for h in read_run(folder / "out.trec")["q1"]}


def test_topics_with_too_few_passages_are_reported(folder, capsys):
    assert search(folder, "--hits", "20", "--passage-hits", "20", "--max-passage", "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["short"]
    for qid, hits in read_run(folder / "out.trec").items():
        assert (len(hits) < 20) == (qid in summary["short"])


def test_misuse(folder, capsys):
    for flags, words in [
        (("--passage-hits", "9"), "--passage-hits applies only with --max-passage"),
        (
            ("--max-passage", "--hits", "10", "--passage-hits", "9"),
            "--passage-hits 9 must be at least --hits (10)",
        ),
    ]:
        assert search(folder, *flags) == 2
        assert words in capsys.readouterr().err
    with pytest.raises(UsageError, match="the id 'D1' has no '#'"):
        best_passages([Hit("D1", 1.0)])


def test_ties_are_by_document():
    assert best_passages(
        [Hit("b#0", 2.0), Hit("a#7", 2.0), Hit("b#1", 3.0), Hit("c#d#1", 1.0)]
    ) == [Hit("b", 3.0), Hit("a", 2.0), Hit("c#d", 1.0)]
