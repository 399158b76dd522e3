"""A BGE-M3 folder through encode, search, explain, changes, join and servers; nothing there knows the model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.bge_models import write_bge_m3
from support.mutable_index import Living

from dupmae_ir.errors import UsageError
from dupmae_ir.index.format.quantisation import rounded
from dupmae_ir.index.index import Index
from dupmae_ir.models import load_encoder
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.serve.batch_handler import cls_share
from dupmae_ir.servers.config import LoadConfig
from dupmae_ir.servers.load import run as load
from dupmae_ir.servers.pgvector import PgVector
from dupmae_ir.types import Document, Query

WORDS = ["the", "cat", "sat", "on", "mat", "dog", "Der", "Hund", "läuft", "быстро", "狗跑", "s"]
TOPICS = [Query("1", "dog läuft on the mat"), Query("2", "быстро 狗跑"), Query("3", "cat")]


def documents(first: int, count: int) -> list[Document]:
    rng = np.random.default_rng(first)
    return [
        Document(f"d{n}", " ".join(rng.choice(WORDS, rng.integers(1, 20))), str(rng.choice(WORDS)))
        for n in range(first, first + count)
    ]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(write_bge_m3(tmp_path_factory.mktemp("models") / "bge-m3"))


def expected(
    living: Living, model: str, weights: tuple[float, float], hits: int
) -> list[list[tuple[str, float]]]:
    """The best documents by sums over all of them, with the impacts that the index has."""
    encoder = load_encoder(model)
    index = Index.open(living.index)
    ordered = sorted(living.documents.values())
    found = encoder.encode_documents([document.joined() for document in ordered])
    queries = encoder.encode_queries([topic.text for topic in TOPICS])
    impacts = []
    for part in (queries.ot, found.ot):
        part = part.copy()
        part.data = rounded(part.data, index.scale)[0].astype(np.float64)
        impacts.append(part.toarray())
    scores = (
        weights[0] * queries.cls @ found.cls.T
        + weights[1] * impacts[0] @ impacts[1].T / index.scale**2
    )
    ranked = [sorted(zip(-row, (d.docid for d in ordered), strict=True))[:hits] for row in scores]
    return [[(docid, -score) for score, docid in row] for row in ranked]


def check(living: Living, model: str, **weights: float) -> None:
    searcher = Searcher.open(living.index, **weights)
    assert searcher.part_weights == (
        weights.get("dense_weight", 1.0),
        weights.get("impact_weight", 0.3),
    )
    answers = list(searcher.answers(TOPICS, 7))
    for answer, wanted in zip(
        answers, expected(living, model, searcher.part_weights, 7), strict=True
    ):
        assert answer.report.exact
        assert [hit.docid for hit in answer.hits] == [docid for docid, _ in wanted]
        np.testing.assert_allclose(
            [hit.score for hit in answer.hits], [score for _, score in wanted], atol=1e-5
        )


def test_the_sum_has_the_weights_of_the_model_or_of_the_search(model, tmp_path):
    living = Living(tmp_path, documents(0, 40), model)
    meta = json.loads((living.index / "meta.json").read_text())
    assert meta["encoder"]["part_weights"] == {"dense": 1.0, "impact": 0.3}
    check(living, model)
    check(living, model, dense_weight=0.5, impact_weight=2.0)
    searcher = Searcher.open(living.index)
    hit = searcher.search(TOPICS[0].text, 1)[0]
    why = searcher.explain(TOPICS[0].text, hit.docid)
    assert why.score == pytest.approx(why.dense + 0.3 * why.impact, abs=1e-6)
    assert why.score == pytest.approx(hit.score, abs=1e-6)
    # Words as they are written, without XLM-R's mark and the blank before a word.
    (described,) = searcher.describe(TOPICS[0].text, [hit.docid])
    text = described.document.text
    assert all(text[mark.start : mark.end] in WORDS for mark in described.text_marks)


def test_changes_of_an_index_keep_the_weights(model, tmp_path):
    living = Living(tmp_path, documents(0, 30), model)
    living.add(documents(30, 10))
    living.update([Document("d3", "dog dog läuft on the mat"), Document("d99", "быстро")])
    living.delete(["d7", "d8"])
    check(living, model)
    living.compact()
    check(living, model)


def test_a_table_has_the_weights_too(model, tmp_path, postgres):
    pytest.importorskip("psycopg", reason="pip install 'dupmae-ir[pgvector]'")
    living = Living(tmp_path, documents(0, 40), model)
    load(LoadConfig(index=str(living.index), to=postgres, table="bge", quiet=True))
    plain, through = (
        Searcher.open(living.index, **more) for more in ({}, {"server": postgres, "table": "bge"})
    )
    assert through.search(TOPICS, 7) == plain.search(TOPICS, 7)


def test_documents_with_more_terms_than_an_approximate_index_takes(model, tmp_path, monkeypatch):
    living = Living(tmp_path, [Document("short", "cat"), Document("long", " ".join(WORDS))], model)

    class Table(PgVector):
        def __init__(self) -> None:
            pass

        def lock(self) -> None:
            pass

        def close(self) -> None:
            pass

    monkeypatch.setattr("dupmae_ir.servers.load.open_table", lambda *_: Table())
    monkeypatch.setattr(PgVector, "max_indexed_terms", 5)
    with pytest.raises(
        UsageError, match=r"document 'long' has \d+ terms, .*at most 5; .*`top_k` 5"
    ):
        load(
            LoadConfig(index=str(living.index), to="postgresql://x/y", approximate=True, quiet=True)
        )
    assert Path(living.index).is_dir()


def test_the_share_of_a_part_is_weighted(model, tmp_path):
    living = Living(tmp_path, documents(0, 5), model)
    why = Searcher.open(living.index).explain("dog läuft", "d1")
    assert why.weights == (1.0, 0.3, 1.0)
    assert cls_share(why) == pytest.approx(why.dense / (why.dense + 0.3 * why.impact))
