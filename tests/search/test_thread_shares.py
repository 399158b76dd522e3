"""Threads of products, and queries that several threads ask."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
from support.encode_runs import write_corpus

from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.encode.run import run
from dupmae_ir.search.exact import one_pass
from dupmae_ir.search.query.encoder import QueryEncodings
from dupmae_ir.search.searcher import Searcher

pytestmark = pytest.mark.jvm
QUERIES = [f"word{number} word{number + 7}" for number in range(40)]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("shares")
    corpus = write_corpus(folder / "corpus.jsonl", 60)
    run(EncodeConfig(corpus=str(corpus), index=str(folder / "index"), quiet=True))
    return str(folder / "index")


def test_a_small_product_has_one_thread(index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []

    @contextmanager
    def record(threads: int) -> Iterator[None]:
        limits.append(threads)
        yield

    monkeypatch.setattr(one_pass, "blas_threads", record)
    searcher = Searcher.open(index, threads=3)
    searcher.search(QUERIES[:4])
    monkeypatch.setattr(one_pass, "SMALL_PRODUCT", 1000)
    searcher.search(QUERIES[:4])
    assert limits == [1, 3]


def test_the_last_query_is_encoded_once(index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[str] = []
    encode = QueryEncodings._encode

    def counted(self: QueryEncodings, texts: list[str]) -> object:
        encoded.extend(texts)
        return encode(self, texts)

    monkeypatch.setattr(QueryEncodings, "_encode", counted)
    searcher = Searcher.open(index)
    hits = searcher.search(QUERIES[0])
    described = searcher.describe(QUERIES[0], [hit.docid for hit in hits])
    searcher.explain(QUERIES[0], hits[0].docid)
    assert encoded == [QUERIES[0]]
    assert described[0].explanation.score == pytest.approx(hits[0].score)
    # Words alone are another encoding, with which nothing is explained.
    searcher.search(QUERIES[1], mode="impact")
    meaning = searcher.explain(QUERIES[1], hits[0].docid).dense
    assert meaning is not None
    assert meaning != 0
    # Another number of terms is another encoding.
    assert searcher.with_settings(query_terms=1).search(QUERIES[0]) != hits


def test_words_alone_are_encoded_without_the_model(
    index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    searcher = Searcher.open(index)
    expected = searcher.search(QUERIES, mode="impact")
    model = searcher.encoder._model

    def refuse(*_: object) -> np.ndarray:
        raise AssertionError("the model is not needed")

    monkeypatch.setattr(type(model), "cls", refuse)
    found = searcher.search(QUERIES, mode="impact")
    assert [list(hits) for hits in found] == [list(hits) for hits in expected]
    with pytest.raises(AssertionError, match="not needed"):
        searcher.search(QUERIES, mode="dense")


def test_threads_and_batches_give_the_same_hits(index: str) -> None:
    searcher = Searcher.open(index)
    alone = [list(searcher.search(query)) for query in QUERIES]
    with ThreadPoolExecutor(8) as pool:
        together = [list(hits) for hits in pool.map(searcher.search, QUERIES)]
    assert together == alone
    assert [list(hits) for hits in searcher.search(QUERIES)] == alone
