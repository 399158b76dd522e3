"""The retriever in BEIR's own loop: its data loader, EvaluateRetrieval and metrics."""

from __future__ import annotations

import gc
import json
import random
import warnings
from pathlib import Path
from typing import Any

import pytest

from dupmae_ir.errors import IndexMismatch, UsageError
from dupmae_ir.eval import evaluate
from dupmae_ir.eval.beir import DupmaeRetriever
from dupmae_ir.io.runs import read_run
from dupmae_ir.search.__main__ import main as search

beir_evaluation = pytest.importorskip("beir.retrieval.evaluation", exc_type=ImportError)
beir_loader = pytest.importorskip("beir.datasets.data_loader", exc_type=ImportError)
pytestmark = pytest.mark.jvm

WORDS = ["lock", "thread", "queue", "fork", "pipe", "signal", "socket", "buffer"]
Data = tuple[dict[str, dict[str, str]], dict[str, str], dict[str, dict[str, int]]]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BEIR folder of 60 documents, of which some are copies and one has a query's id."""
    chance = random.Random(0)
    folder = tmp_path_factory.mktemp("beir")
    texts = [" ".join(chance.choices(WORDS, k=6)) for _ in range(50)]
    rows = [
        {"_id": f"d{n}", "title": "", "text": text} for n, text in enumerate([*texts, *texts[:9]])
    ]
    rows.append({"_id": "q0", "title": "A Query", "text": "lock thread"})
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    queries = [{"_id": f"q{n}", "text": " ".join(chance.choices(WORDS, k=2))} for n in range(8)]
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in queries))
    (folder / "qrels").mkdir()
    judged = [f"q{n}\td{chance.randrange(59)}\t{grade}\n" for n in range(8) for grade in (1, 2)]
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(judged))
    return folder


@pytest.fixture(scope="module")
def data(home: Path) -> Data:
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", ResourceWarning
        )  # BEIR's loader leaves its files to the garbage collector
        loaded = beir_loader.GenericDataLoader(str(home)).load(split="test")
        gc.collect()
    return loaded


@pytest.fixture(scope="module")
def retriever(home: Path) -> DupmaeRetriever:
    return DupmaeRetriever(home / "index", "testing:hashing")


@pytest.mark.parametrize("mode", ["dense", "impact", "hybrid"])
def test_metrics_equal_those_of_the_run_file(
    home: Path, data: Data, retriever: DupmaeRetriever, tmp_path: Path, mode: str
) -> None:
    corpus, queries, qrels = data
    retriever.mode = mode
    loop = beir_evaluation.EvaluateRetrieval(retriever, k_values=[5, 20])
    results = loop.retrieve(corpus, queries)
    assert all(len(found) <= 20 and qid not in found for qid, found in results.items())
    ndcg, _, recall, _ = loop.evaluate(qrels, results, loop.k_values)
    flags = [
        "--topics",
        str(home / "queries.jsonl"),
        "--hits",
        "20",
        "--remove-query",
        f"--{mode}",
        "--quiet",
    ]
    assert (
        search(["--index", str(home / "index"), *flags, "--output", str(tmp_path / "run.trec")])
        == 0
    )
    ours = evaluate(qrels, read_run(tmp_path / "run.trec"), ["nDCG@5", "nDCG@20", "R@20"]).mean
    assert [ndcg["NDCG@5"], ndcg["NDCG@20"], recall["Recall@20"]] == pytest.approx(
        list(ours.values()), abs=1e-5
    )


def test_encode_and_retrieve(data: Data, retriever: DupmaeRetriever, tmp_path: Path) -> None:
    corpus, queries, _ = data
    retriever.mode = None
    loop = beir_evaluation.EvaluateRetrieval(retriever, k_values=[10])
    found = loop.encode_and_retrieve(corpus, queries, encode_output_path=str(tmp_path))
    assert found == loop.retrieve(corpus, queries)
    with pytest.raises(UsageError, match="call encode before"):
        DupmaeRetriever(retriever.index).search_from_files("", [], 10)


@pytest.mark.parametrize("change", [{"new": {"title": "", "text": "x"}}, {}])
def test_the_index_of_another_corpus_is_refused(
    data: Data, retriever: DupmaeRetriever, change: dict[str, Any]
) -> None:
    corpus, queries, _ = data
    first = next(iter(corpus))
    other = {docid: document for docid, document in corpus.items() if docid != first} | change
    with pytest.raises(IndexMismatch, match="their ids differ"):
        retriever.search(other, queries, 10)


def test_it_has_the_methods_of_base_search(retriever: DupmaeRetriever) -> None:
    base = pytest.importorskip("beir.retrieval.search.base", exc_type=ImportError).BaseSearch
    assert all(callable(getattr(retriever, name)) for name in base.__abstractmethods__)
