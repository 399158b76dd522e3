"""The language of a collection: recognised or given, recorded, used by queries and changes, and what vectors know."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from support.lexical_models import make_lexical

from dupmae_ir import Searcher
from dupmae_ir.encode import EncodeConfig
from dupmae_ir.encode.changes import run_add
from dupmae_ir.encode.reading import PASSAGES, measure
from dupmae_ir.encode.run import WORDS_ONLY_HINT
from dupmae_ir.encode.run import run as encode
from dupmae_ir.errors import IndexMismatch, UsageError
from dupmae_ir.index.config import AddConfig, Bm25Config
from dupmae_ir.index.lucene.bm25 import BM25Searcher
from dupmae_ir.index.run import run_bm25
from dupmae_ir.models import load_encoder
from dupmae_ir.types import Document, Query, Representation

TEXTS = {
    "d1": "Die Häuser in der Stadt sind alt, und die Mieten in den Häusern sind hoch.",
    "d2": "Der Zug nach Berlin fährt um acht Uhr ab, wenn es nicht regnet.",
    "d3": "Wer den Vertrag nicht mehr will, kann ihn mit einer Frist von drei Monaten kündigen.",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(make_lexical(tmp_path_factory.mktemp("language")))


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text("".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in TEXTS.items()))
    return str(path)


def test_an_index_has_the_words_of_its_language(tmp_path, corpus, model, capsys):
    config = EncodeConfig(corpus=corpus, index=str(tmp_path / "i"), model=model)
    encode(config)
    assert "language: German; --language CODE chooses another" in capsys.readouterr().err
    searcher = Searcher.open(config.index)
    record = searcher.index.meta["encoder"]
    assert record["language"] == searcher.encoder.settings.language == "de"
    assert searcher.part_weights == (record["reading"]["weight"], 1.0)
    assert [hit.docid for hit in searcher.search("das alte Haus", mode="impact")] == ["d1"]
    assert searcher.with_settings(dense_weight=0.5).part_weights == (0.5, 1.0)
    # What is added later is read in the same language.
    more = tmp_path / "more.jsonl"
    more.write_text(json.dumps({"id": "d4", "text": "Ein Haus am See."}))
    run_add(AddConfig(index=config.index, corpus=str(more)))
    assert {hit.docid for hit in Searcher.open(config.index).search("Häuser", mode="impact")} == {
        "d1",
        "d4",
    }
    with pytest.raises(IndexMismatch, match="language de but the query encoder has en"):
        Searcher.open(config.index, load_encoder(model))


def test_a_long_run_names_the_index_of_words_alone(tmp_path, model, capsys, monkeypatch):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text("A label names a file system.")
    config = EncodeConfig(
        corpus=str(tmp_path / "docs"), index=str(tmp_path / "i"), model=model, overwrite=True
    )
    encode(config)
    assert WORDS_ONLY_HINT not in capsys.readouterr().err
    monkeypatch.setattr("dupmae_ir.encode.run.SLOW_ENCODING_SECONDS", 1e-9)
    encode(dataclasses.replace(config, parts="ot", index=str(tmp_path / "words")))
    assert WORDS_ONLY_HINT not in capsys.readouterr().err
    encode(config)
    assert WORDS_ONLY_HINT in capsys.readouterr().err


def test_a_given_language_is_kept_and_another_one_refused(tmp_path, corpus, model):
    made = {"corpus": corpus, "index": str(tmp_path / "i"), "model": model, "quiet": True}
    encode(EncodeConfig(**made, language="en"))
    record = Searcher.open(made["index"]).index.meta["encoder"]
    assert record["language"] == "en"
    assert "reading" not in record
    with pytest.raises(UsageError, match='`language` "en"'):
        encode(EncodeConfig(**made))
    with pytest.raises(UsageError, match=r"`language` must be auto or one of ar, .*'dee'"):
        EncodeConfig(**made, language="dee")
    with pytest.raises(UsageError, match="`language` is for word weights with stems"):
        encode(
            EncodeConfig(
                **{**made, "model": "testing:hashing", "index": str(tmp_path / "j")}, language="de"
            )
        )


def test_indexes_searched_as_one_have_the_lowest_weight(tmp_path, model, monkeypatch):
    """The weight is measured on each; the order of the folders does not choose."""
    folders = []
    for name, weight in (("i", 0.625), ("j", 0.5)):
        monkeypatch.setattr("dupmae_ir.encode.reading._MIN_WEIGHT", weight)
        monkeypatch.setattr("dupmae_ir.encode.reading.READS_WELL", 1e9)
        corpus = tmp_path / f"{name}.jsonl"
        corpus.write_text(
            "".join(json.dumps({"id": name + i, "text": t}) + "\n" for i, t in TEXTS.items())
        )
        encode(
            EncodeConfig(
                corpus=str(corpus), index=str(tmp_path / name), model=model, scale=50, quiet=True
            )
        )
        folders.append(str(tmp_path / name))
        assert Searcher.open(folders[-1]).part_weights == (weight, 1.0)
    for order in (folders, folders[::-1]):
        searcher = Searcher.open(order)
        assert searcher.part_weights == (0.5, 1.0)
        assert searcher.with_settings(dense_weight=0.75).part_weights == (0.75, 1.0)


class Vectors:
    """An encoder whose vectors find the other half of the first ``found`` of n texts."""

    def __init__(self, found: int, n: int) -> None:
        self.encoder = load_encoder("testing:hashing")
        self.settings = type(self.encoder.settings)(ot="lexical", language="de")
        self.dim = n
        self.found = found
        self.n = n

    def encode_documents(self, texts):
        return Representation(np.eye(self.n, dtype=np.float32), None)

    def encode_queries(self, texts, cap=1024):
        # The others score lowest: all n texts are before their own.
        rows = np.where(np.arange(self.n)[:, None] < self.found, np.eye(self.n), 1 - np.eye(self.n))
        return Representation(rows.astype(np.float32), None)


@pytest.mark.parametrize(("found", "weight"), [(PASSAGES, 1.0), (PASSAGES // 2, 0.164), (0, 0.001)])
def test_the_weight_of_vectors_follows_from_what_they_find(found, weight):
    documents = [
        Document(str(i), "ein Text von ausreichender Länge, der sich teilen lässt")
        for i in range(300)
    ]
    reading = measure(Vectors(found, PASSAGES), documents, "de")
    assert reading.passages == PASSAGES
    assert reading.weight == pytest.approx(weight, abs=0.02)
    assert measure(Vectors(0, 1), documents[:1], "de") is None
    assert measure(Vectors(found, PASSAGES), documents, "en") is None


@pytest.mark.jvm
def test_bm25_has_the_analyzer_of_the_language(tmp_path, corpus):
    run_bm25(Bm25Config(corpus=corpus, index=str(tmp_path / "b"), quiet=True))
    run = BM25Searcher(tmp_path / "b").search([Query("q", "das alte Haus")], 10)
    assert [hit.docid for hit in run["q"]] == ["d1"]
    run_bm25(Bm25Config(corpus=corpus, index=str(tmp_path / "e"), language="en", quiet=True))
    assert BM25Searcher(tmp_path / "e").search([Query("q", "das Haus")], 10)["q"] == []
