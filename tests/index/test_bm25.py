"""BM25: the formula by hand, and the anchors of the classic collections."""

from __future__ import annotations

import json
import math
from collections import Counter

import pytest

from dupmae_ir.errors import IndexMismatch, UsageError
from dupmae_ir.eval.evaluate import evaluate
from dupmae_ir.index.__main__ import main
from dupmae_ir.index.lucene.bm25 import BM25Searcher, build_bm25
from dupmae_ir.io.collections import read_collection
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.topics import read_topics
from dupmae_ir.types import Document, Query

pytestmark = pytest.mark.jvm

TEXTS = ["red car", "green car car", "blue tree house red", "", "red red red", "tree"]


@pytest.fixture
def folder(tmp_path):
    build_bm25((Document(f"d{i}", text) for i, text in enumerate(TEXTS)), tmp_path / "bm25")
    return tmp_path / "bm25"


def _bm25(query: str, k1: float, b: float) -> dict[str, float]:
    """Robertson's formula as Lucene has it: without the factor (k1 + 1), lengths exact below 40 words."""
    counts = [Counter(text.split()) for text in TEXTS]
    filled = [c for c in counts if c]
    average = sum(c.total() for c in filled) / len(filled)
    scores: Counter[str] = Counter()
    for word in query.split():
        df = sum(word in c for c in filled)
        idf = math.log(1 + (len(filled) - df + 0.5) / (df + 0.5))
        for i, c in enumerate(counts):
            if c[word]:
                scores[f"d{i}"] += (
                    idf * c[word] / (c[word] + k1 * (1 - b + b * c.total() / average))
                )
    return scores


@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (1.2, 0.75), (0.0, 0.0)])
def test_the_formula(folder, k1, b):
    searcher = BM25Searcher(folder, k1, b)
    for text in ("red", "red car", "red red tree", "nothing"):
        hits = searcher.search([Query("q", text)], 10)["q"]
        wanted = _bm25(text, k1, b)
        # Lucene adds in float32.
        assert {h.docid: h.score for h in hits} == pytest.approx(wanted, rel=1e-5)
        assert [h.docid for h in hits] == sorted(wanted, key=lambda d: (-round(wanted[d], 5), d))


def test_a_title_field_adds_its_own_score(tmp_path):
    """The sum of what an index of the texts and an index of the titles give, with the lengths and counts of each."""
    titles = ["red", "", "tree", "blue car", "", "car"]
    documents = [
        Document(f"d{i}", text, title)
        for i, (text, title) in enumerate(zip(TEXTS, titles, strict=True))
    ]
    build_bm25(documents, tmp_path / "both", title_field=True)
    build_bm25([Document(d.docid, d.text) for d in documents], tmp_path / "texts")
    build_bm25([Document(d.docid, d.title) for d in documents], tmp_path / "titles")
    both, *parts = (BM25Searcher(tmp_path / name) for name in ("both", "texts", "titles"))
    assert both.documents == len(documents)
    for text in ("red", "red car", "tree house", "nothing"):
        wanted: Counter[str] = Counter()
        for part in parts:
            wanted.update({h.docid: h.score for h in part.search([Query("q", text)], 10)["q"]})
        hits = both.search([Query("q", text)], 10)["q"]
        # Lucene adds in float32.
        assert {h.docid: h.score for h in hits} == pytest.approx(dict(wanted), rel=1e-6)
        scored = dict(both.scores(text, [d.docid for d in documents]))
        assert sorted(scored.values()) == pytest.approx(sorted(wanted.values()), rel=1e-6)
    many = [
        Query(str(n), text)
        for n, text in enumerate(["red car", "tree", "blue house red", "car"] * 100)
    ]
    assert both.search(many, 10, threads=4) == both.search(many, 10)


@pytest.mark.nightly
def test_a_title_field_gives_the_published_values(tmp_path, shared_data):
    """Anserini 2.2.0, beir-v1.0.0-scifact.multifield: nDCG@10 0.6647, R@100 0.9076, R@1000 0.9800."""
    home = shared_data / "scifact"
    build_bm25(read_collection(home), tmp_path / "I", title_field=True)
    qrels = read_qrels(home / "qrels" / "test.tsv")
    topics = [t for t in read_topics(home / "queries.jsonl") if t.qid in qrels]
    run = BM25Searcher(tmp_path / "I").search(topics, 1000)
    mean = evaluate(qrels, run, ["nDCG@10", "R@100", "R@1000"]).mean
    assert {m: round(v, 4) for m, v in mean.items()} == {
        "nDCG@10": 0.6647,
        "R@100": 0.9076,
        "R@1000": 0.9800,
    }


def test_words_are_stemmed_and_stopped(tmp_path):
    build_bm25(
        [Document("a", "the cars were running", "Of Titles"), Document("b", "a tree")],
        tmp_path / "x",
    )
    searcher = BM25Searcher(tmp_path / "x")
    found = searcher.search(
        [Query("1", "car runs"), Query("2", "the"), Query("3", "title"), Query("4", "")], 5
    )
    assert {qid: [h.docid for h in hits] for qid, hits in found.items()} == {
        "1": ["a"],
        "2": [],
        "3": ["a"],
        "4": [],
    }


def test_ties_come_in_docid_order_also_at_the_end_of_the_list(tmp_path):
    ids = [f"d{i}" for i in (5, 3, 9, 1, 7)]
    build_bm25([Document(docid, "same words") for docid in ids], tmp_path / "x")
    found = BM25Searcher(tmp_path / "x").search([Query("q", "same")], 3, threads=2)["q"]
    assert [h.docid for h in found] == ["d1", "d3", "d5"]


def test_misuse(tmp_path, folder):
    with pytest.raises(UsageError, match="not an empty folder"):
        build_bm25([], folder)
    with pytest.raises(UsageError, match="between 0 and 1"):
        BM25Searcher(folder, b=2)
    with pytest.raises(IndexMismatch, match="not a Lucene index"):
        BM25Searcher(tmp_path)


def test_the_command(tmp_path, capsys):
    corpus = tmp_path / "corpus.jsonl"
    records = [{"_id": f"d{i}", "title": "T", "text": text} for i, text in enumerate(TEXTS)]
    corpus.write_text("".join(json.dumps(record) + "\n" for record in records))
    args = ["bm25", "--corpus", str(corpus), "--index", str(tmp_path / "I")]
    assert main([*args, "--json", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "index": str(tmp_path / "I"),
        "output": str(tmp_path / "I"),
        "status": "complete",
        "documents": 6,
    }
    assert err == ""
    assert len(BM25Searcher(tmp_path / "I").search([Query("q", "red")], 10)["q"]) == 3
    assert main(args) == 0, "the same settings and input"
    assert "already complete" in capsys.readouterr().err
    assert main([*args, "--fields", "title", "text"]) == 2
    assert (
        '--fields [] (requested ["title", "text"]). Name another --index, or pass --overwrite'
        in capsys.readouterr().err
    )
    corpus.write_text('{"_id": "x", "text": "purple"}\n{"_id": "x", "text": "twice"}\n')
    assert main([*args, "--overwrite"]) == 2
    assert len(BM25Searcher(tmp_path / "I").search([Query("q", "red")], 10)["q"]) == 3, (
        "a failure leaves the old index"
    )
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []
    corpus.write_text('{"_id": "x", "text": "purple"}\n')
    assert main([*args, "--overwrite", "--quiet"]) == 0
    assert BM25Searcher(tmp_path / "I").search([Query("q", "red")], 10)["q"] == []
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("mine")
    assert main([*args[:-1], str(tmp_path / "precious"), "--overwrite"]) == 2
    assert "exists without its record made.json" in capsys.readouterr().err


ANCHORS = {
    "scifact": (0.6789, 0.9253),
    "vaswani": (0.4368, 0.6186),
    "cranfield": (0.4903, 0.7376),
    "cacm": (0.4943, 0.6973),
}
"""nDCG@10 and R@100 of Anserini's default BM25; SciFact's is also in Pyserini's own regressions."""


@pytest.mark.nightly
@pytest.mark.parametrize("name", ANCHORS)
def test_anchors(name, shared_data, tmp_path):
    import pytrec_eval

    from dupmae_ir.io.runs import read_run, write_run

    data = shared_data / name
    build_bm25(read_collection(data / "corpus.jsonl"), tmp_path / "bm25")
    qrels = read_qrels(data / "qrels" / "test.tsv")
    queries = [query for query in read_topics(data / "queries.jsonl") if query.qid in qrels]
    write_run(
        tmp_path / "run.trec", BM25Searcher(tmp_path / "bm25").search(queries, 1000, threads=2)
    )
    run = {
        qid: {h.docid: h.score for h in hits}
        for qid, hits in read_run(tmp_path / "run.trec").items()
    }
    values = (
        pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10", "recall.100"}).evaluate(run).values()
    )
    ndcg, recall = (sum(v[m] for v in values) / len(qrels) for m in ("ndcg_cut_10", "recall_100"))
    assert (round(ndcg, 4), round(recall, 4)) == ANCHORS[name]
