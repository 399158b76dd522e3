"""Round trips: stock Pyserini reads our indexes and returns the same hits.

The commands run as a user would run them, in processes of their own (slow: Pyserini alone takes seconds to import).
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from dupmae_ir import pyserini
from dupmae_ir.index.changes.builder import IndexBuilder
from dupmae_ir.index.index import Index
from dupmae_ir.index.lucene.bm25 import BM25Searcher, build_bm25
from dupmae_ir.index.lucene.impacts import ImpactSearcher
from dupmae_ir.types import Document, Query

pytestmark = pytest.mark.jvm
ROOT = Path(__file__).resolve().parents[2]
TERMS = ["|", "##x", "é", "e\u0301", "\u00a0", "1|2", "the", *[f"t{i}" for i in range(60)]]
COUNT = 150
DIM = 16
HITS = 1000


@pytest.fixture(scope="module")
def collection():
    """Ids in another order than rows, vectors, and integer impacts; 'the' is in every non-empty document."""
    rng = np.random.default_rng(0)
    impacts = rng.integers(1, 256, (COUNT, len(TERMS))) * (rng.random((COUNT, len(TERMS))) < 0.3)
    impacts[:, TERMS.index("the")] = rng.integers(1, 4, COUNT)
    return (
        [f"doc{(11 * i) % COUNT}" for i in range(COUNT)],
        rng.standard_normal((COUNT, DIM)).astype("f4"),
        impacts,
    )


@pytest.fixture(scope="module")
def index(collection, tmp_path_factory):
    ids, vectors, impacts = collection
    folder = tmp_path_factory.mktemp("stock") / "I"
    with IndexBuilder(folder, dim=DIM, terms=TERMS, scale=1.0) as builder:
        builder.add(ids, vectors, sp.csr_matrix(impacts.astype(np.float32)))
        builder.finish({})
    return Index.open(folder)


@pytest.fixture(scope="module")
def queries():
    rng = np.random.default_rng(1)
    impacts = [
        {
            TERMS[t]: int(rng.integers(1, 256))
            for t in rng.permutation(len(TERMS))[: rng.integers(1, 30)]
        }
        | {"the": 9}
        for _ in range(12)
    ]
    return (
        [f"question {i}" for i in range(12)],
        impacts,
        rng.standard_normal((12, DIM)).astype(np.float32),
    )


def _ours(folder: Path, queries, hits=HITS):
    """(docid, score) lists sorted by score descending, docid ascending."""
    searcher = ImpactSearcher(folder)
    found = searcher.top(queries, hits, by_docid=True)
    lists = [
        list(zip(map(searcher.docid, rows.tolist()), scores.tolist(), strict=True))
        for rows, scores in found
    ]
    searcher.close()
    return lists


def _impact_encoder(texts, impacts):
    known = dict(zip(texts, impacts, strict=True))

    class Known(pyserini.QueryEncoder):
        def encode(self, query, **_):
            return known[query]

    return Known()


def test_stock_impact_searcher_returns_the_same_hits(index, queries):
    texts, impacts, _ = queries
    stock = pyserini.LuceneImpactSearcher(
        str(index.path / "ot"), _impact_encoder(texts, impacts), min_idf=-1
    )
    assert stock.num_docs == COUNT
    single = [stock.search(text, HITS) for text in texts]
    batch = stock.batch_search(texts, [str(i) for i in range(len(texts))], HITS, threads=2)
    for i, wanted in enumerate(_ours(index.path / "ot", impacts)):
        # Anserini subtracts 1e-6 from each of several equal scores to keep them apart; rounding removes this.
        assert [(hit.docid, round(hit.score)) for hit in single[i]] == wanted
        assert [(hit.docid, round(hit.score)) for hit in batch[str(i)]] == wanted
        assert [index.docids[hit.lucene_docid] for hit in single[i]] == [
            docid for docid, _ in wanted
        ]


def test_the_stock_default_drops_terms_of_every_document(index, queries):
    """Our search does not use LuceneImpactSearcher because its default score is not an inner product."""
    texts, impacts, _ = queries
    full = pyserini.LuceneImpactSearcher(
        str(index.path / "ot"), _impact_encoder(texts, impacts), min_idf=-1
    )
    usual = pyserini.LuceneImpactSearcher(str(index.path / "ot"), _impact_encoder(texts, impacts))
    assert max(hit.score for hit in usual.search(texts[0], 5)) < max(
        hit.score for hit in full.search(texts[0], 5)
    )


def test_stock_faiss_searcher_returns_the_same_hits(index, queries):
    _, _, vectors = queries
    stock = pyserini.FaissSearcher(str(index.path / "cls"), None)
    truth = index.only_segment.vectors @ vectors.T
    found = stock.batch_search(vectors, [str(i) for i in range(len(vectors))], k=20)
    for i in range(len(vectors)):
        best = np.argsort(-truth[:, i])[:20]
        assert [hit.docid for hit in found[str(i)]] == [index.docids[row] for row in best]
        np.testing.assert_allclose([hit.score for hit in found[str(i)]], truth[best, i], rtol=1e-5)


def test_anserini_makes_the_same_index_from_json(collection, index, queries, tmp_path):
    """Except for documents without terms, which Anserini omits."""
    ids, _, impacts = collection
    (tmp_path / "json").mkdir()
    with open(tmp_path / "json" / "docs.jsonl", "w", encoding="utf-8") as f:
        for docid, row in zip(ids, impacts, strict=True):
            vector = {TERMS[t]: int(row[t]) for t in np.flatnonzero(row)}
            f.write(json.dumps({"id": docid, "contents": "", "vector": vector}) + "\n")
    arguments = (
        f"-collection JsonVectorCollection -input {tmp_path / 'json'} -index {tmp_path / 'theirs'} "
        "-generator DefaultLuceneDocumentGenerator -threads 1 -impact -pretokenized -optimize"
    )
    pyserini.autoclass("io.anserini.index.IndexCollection").main(arguments.split())
    for folder in (tmp_path / "theirs", index.path / "ot"):
        assert ImpactSearcher(folder).documents == COUNT
    assert _ours(tmp_path / "theirs", queries[1]) == _ours(index.path / "ot", queries[1])
    assert _ours(tmp_path / "theirs", queries[1], 7) == _ours(index.path / "ot", queries[1], 7)


WORDS = [
    "the",
    "red",
    "cars",
    "are",
    "running",
    "green",
    "trees",
    "blue",
    "houses",
    "über",
    "naïve",
    "42",
    "don't",
]


@pytest.fixture(scope="module")
def texts():
    rng = np.random.default_rng(3)
    drawn = [" ".join(rng.choice(WORDS, 1 + i % 30)) for i in range(200)]
    return [Document(f"d{i}", text, "Titles matter" * (i % 3 == 0)) for i, text in enumerate(drawn)]


def test_bm25_equals_anserini(texts, tmp_path):
    """Our index and Anserini's, our searcher and Pyserini's: all four combinations return the same list."""
    (tmp_path / "json").mkdir()
    with open(tmp_path / "json" / "docs.jsonl", "w", encoding="utf-8") as f:
        f.writelines(json.dumps({"id": d.docid, "contents": d.joined()}) + "\n" for d in texts)
    arguments = (
        f"-collection JsonCollection -input {tmp_path / 'json'} -index {tmp_path / 'theirs'} "
        "-generator DefaultLuceneDocumentGenerator -threads 1"
    )
    pyserini.autoclass("io.anserini.index.IndexCollection").main(arguments.split())
    build_bm25(texts, tmp_path / "ours")
    asked = [
        Query("1", "red running cars"),
        Query("2", "titles of trees trees"),
        Query("3", "über naïve don't 42"),
    ]
    lists = [BM25Searcher(tmp_path / name).search(asked, 50) for name in ("ours", "theirs")]
    assert lists[0] == lists[1]
    for name in ("ours", "theirs"):
        stock = pyserini.LuceneSearcher(str(tmp_path / name))
        for query in asked:
            hits = stock.search(query.text, 50)
            assert [hit.docid for hit in hits] == [hit.docid for hit in lists[0][query.qid]]
            wanted = [hit.score for hit in lists[0][query.qid]]
            assert [hit.score for hit in hits] == pytest.approx(
                wanted, abs=1e-4
            )  # ties are 1e-6 apart


# ---------------------------------------------------------------- the stock commands


def _stock(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k != "OPENAI_API_KEY"} | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "dupmae_ir.pyserini", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=env, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done


def _run_file(path: Path) -> dict[str, list[tuple[str, float]]]:
    run: dict[str, list[tuple[str, float]]] = {}
    for line in path.read_text().splitlines():
        qid, _, docid, _, score, _ = line.split()
        run.setdefault(qid, []).append((docid, float(score)))
    return run


@pytest.fixture
def topics(queries, tmp_path):
    texts, impacts, vectors = queries
    (tmp_path / "topics.tsv").write_text("".join(f"q{i}\t{text}\n" for i, text in enumerate(texts)))
    with open(tmp_path / "queries.jsonl", "w", encoding="utf-8") as f:
        f.writelines(
            json.dumps({"contents": t, "vector": v}) + "\n"
            for t, v in zip(texts, impacts, strict=True)
        )
    import pandas as pd

    frame = pd.DataFrame({"id": range(len(texts)), "text": texts, "embedding": list(vectors)})
    (tmp_path / "embedding.pkl").write_bytes(pickle.dumps(frame))
    return tmp_path


@pytest.mark.nightly
def test_the_stock_impact_command(index, queries, topics):
    _stock(
        "pyserini.search.lucene",
        "--impact",
        "--index",
        index.path / "ot",
        "--topics",
        topics / "topics.tsv",
        "--encoder",
        topics / "queries.jsonl",
        "--min-idf",
        "-1",
        "--hits",
        HITS,
        "--output",
        "run.trec",
        cwd=topics,
    )
    run = _run_file(topics / "run.trec")
    for i, wanted in enumerate(_ours(index.path / "ot", queries[1])):
        assert [(docid, round(score)) for docid, score in run[f"q{i}"]] == wanted


@pytest.mark.nightly
def test_the_stock_faiss_command(index, queries, topics):
    _stock(
        "pyserini.search.faiss",
        "--index",
        index.path / "cls",
        "--topics",
        topics / "topics.tsv",
        "--encoded-queries",
        topics,
        "--hits",
        20,
        "--output",
        "run.trec",
        cwd=topics,
    )
    run = _run_file(topics / "run.trec")
    truth = index.only_segment.vectors @ queries[2].T
    for i in range(len(queries[0])):
        best = np.argsort(-truth[:, i])[:20]
        assert [docid for docid, _ in run[f"q{i}"]] == [index.docids[row] for row in best]
        np.testing.assert_allclose([score for _, score in run[f"q{i}"]], truth[best, i], atol=1e-5)


@pytest.mark.nightly
def test_the_stock_bm25_command_and_trec_eval(texts, topics):
    """Pyserini runs trec_eval in a child process with the first java on PATH, which must be ours."""
    build_bm25(texts, topics / "bm25")
    (topics / "topics.tsv").write_text("1\tred cars\n2\tblue houses\n")
    _stock(
        "pyserini.search.lucene",
        "--bm25",
        "--index",
        topics / "bm25",
        "--topics",
        topics / "topics.tsv",
        "--hits",
        20,
        "--output",
        "run.trec",
        cwd=topics,
    )
    ours = BM25Searcher(topics / "bm25").search(
        [Query("1", "red cars"), Query("2", "blue houses")], 20
    )
    run = _run_file(topics / "run.trec")
    assert {qid: [docid for docid, _ in hits] for qid, hits in run.items()} == {
        qid: [hit.docid for hit in hits] for qid, hits in ours.items()
    }
    (topics / "qrels.txt").write_text(f"1 0 {run['1'][1][0]} 1\n2 0 {run['2'][0][0]} 1\n")
    done = _stock(
        "pyserini.eval.trec_eval", "-c", "-m", "recip_rank", "qrels.txt", "run.trec", cwd=topics
    )
    assert "0.7500" in done.stdout


@pytest.mark.nightly
def test_the_stock_indexing_command(texts, tmp_path):
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "docs.jsonl").write_text(
        json.dumps({"id": "a", "contents": "red cars"}) + "\n"
    )
    _stock(
        "--heap",
        "300m",
        "pyserini.index.lucene",
        "--collection",
        "JsonCollection",
        "--input",
        "json",
        "--index",
        "I",
        "--generator",
        "DefaultLuceneDocumentGenerator",
        "--threads",
        1,
        cwd=tmp_path,
    )
    assert BM25Searcher(tmp_path / "I").search([Query("q", "car")], 1)["q"][0].docid == "a"
    shutil.rmtree(tmp_path / "I")


def test_the_runner_prints_its_usage(capsys):
    assert pyserini.main([]) == 2
    assert "usage: python -m dupmae_ir.pyserini" in capsys.readouterr().err
    assert pyserini.main(["--help"]) == 0
    assert "pyserini.search.lucene" in capsys.readouterr().out
    assert pyserini.main(["search.lucene"]) == 2
    assert "give its full name" in capsys.readouterr().err


def test_a_module_that_pyserini_does_not_have(capsys):
    assert pyserini.main(["pyserini.serch.lucene"]) == 2
    err = capsys.readouterr().err
    assert "has no module 'pyserini.serch.lucene'" in err
    assert err.count("\n") == 1
