"""Encoders in Pyserini's shape: the same numbers as the index, one forward pass, and accepted by stock searchers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.index_samples import write_edited

from dupmae_ir.encode import pyserini_encoders
from dupmae_ir.encode.pyserini_encoders import DupmaeDocumentEncoder, DupmaeQueryEncoder
from dupmae_ir.errors import IndexMismatch, InputError, UsageError
from dupmae_ir.index.index import Index
from dupmae_ir.testing import HashingEncoder

TEXTS = ["word1 word2 word2", "", "word3"]


@pytest.fixture
def calls(monkeypatch):
    """The texts of every forward pass."""
    seen: list[list[str]] = []
    for name in ("encode_documents", "encode_queries"):
        plain = getattr(HashingEncoder, name)

        def counted(self, texts, *more, _plain=plain):
            seen.append(list(texts))
            return _plain(self, texts, *more)

        monkeypatch.setattr(HashingEncoder, name, counted)
    return seen


def test_documents_have_two_views_of_one_forward_pass(calls):
    encoder = DupmaeDocumentEncoder("testing:hashing", scale=100.0)
    dense = encoder.dense.encode(TEXTS)
    impact = encoder.impact.encode(TEXTS)
    assert calls == [TEXTS]
    expected = HashingEncoder().encode_documents(TEXTS)
    np.testing.assert_array_equal(dense, expected.cls)
    assert [sum(v.values()) for v in impact] == [
        int(np.rint(np.float64(row.data) * 100).sum()) for row in (expected.ot[i] for i in range(3))
    ]
    assert impact[1] == {}
    assert all(type(w) is int and 0 < w <= 255 for v in impact for w in v.values())
    np.testing.assert_array_equal(encoder.encode(TEXTS), dense)
    assert (
        DupmaeDocumentEncoder("testing:hashing", scale=100.0, view="impact").encode_batch(TEXTS)
        == impact
    )


def test_titles_are_joined_as_the_model_wants_and_other_keywords_are_accepted(calls):
    encoder = DupmaeDocumentEncoder("testing:hashing", title_separator=" [SEP] ")
    encoder.encode(
        ["text", "", "alone"],
        titles=["title", "only", None],
        fp16=True,
        max_length=256,
        add_sep=False,
    )
    assert calls == [["title [SEP] text", "only", "alone"]]


def test_queries_have_two_views_of_one_forward_pass(calls):
    encoder = DupmaeQueryEncoder("testing:hashing", scale=100.0)
    batch = encoder.dense.encode_batch(TEXTS)
    assert batch.shape == (3, 16)
    # LuceneImpactSearcher asks one query at a time.
    singles = [encoder.impact.encode(t) for t in TEXTS]
    assert calls == [TEXTS]
    assert encoder.impact.encode_batch(TEXTS) == singles
    np.testing.assert_array_equal(np.stack([encoder.encode(t) for t in TEXTS]), batch)
    assert encoder.dense.encode("word1").shape == (16,)
    assert calls == [TEXTS, ["word1"]]


def test_what_was_seen_is_forgotten_in_time(calls, monkeypatch):
    monkeypatch.setattr(pyserini_encoders, "MAX_CACHED", 2)
    encoder = DupmaeQueryEncoder("testing:hashing", scale=100.0)
    first = encoder.dense.encode_batch(["a", "b", "c", "a"])
    assert calls == [["a", "b", "c"]]
    np.testing.assert_array_equal(first[0], first[3])
    encoder.dense.encode_batch(["b", "c"])
    assert calls[1:] == []
    encoder.encode("a")
    assert calls[1:] == [["a"]]
    assert encoder.dense.encode_batch([]).shape == (0, 16)


@pytest.mark.parametrize("kind", [DupmaeDocumentEncoder, DupmaeQueryEncoder])
def test_what_cannot_be_asked_for(kind):
    with pytest.raises(UsageError, match="impacts need a scale"):
        kind("testing:hashing").impact.encode("x")
    with pytest.raises(UsageError, match="loaded without dense vectors"):
        kind("testing:hashing", parts=("ot",)).encode("x")
    with pytest.raises(UsageError, match="loaded without impact vectors"):
        kind("testing:hashing", parts=("cls",), scale=1.0).impact.encode("x")
    with pytest.raises(UsageError, match="no view named 'sparse'"):
        kind("testing:hashing", view="sparse")


@pytest.mark.jvm
def test_stock_searchers_take_them(corpus, tmp_path, encode):
    from dupmae_ir.pyserini import FaissSearcher, LuceneImpactSearcher

    assert encode(corpus, tmp_path / "I")[0] == 0
    folder = Index.open(tmp_path / "I")
    queries = DupmaeQueryEncoder.for_index(tmp_path / "I")
    texts = ["word1 word2", "word7 word7 word8", "word299"]
    ids = ["1", "2", "3"]

    dense = FaissSearcher(str(tmp_path / "I" / "cls"), queries.dense)
    found = dense.batch_search(texts, ids, k=700, threads=1)
    one_by_one = {i: dense.search(t, k=700) for i, t in zip(ids, texts, strict=True)}
    vectors = HashingEncoder().encode_queries(texts).cls
    for row, qid in enumerate(ids):
        scores = folder.only_segment.vectors @ vectors[row]
        got = {hit.docid: hit.score for hit in found[qid]}
        # Another order of the same sixteen products.
        np.testing.assert_allclose([got[d] for d in folder.docids], scores, rtol=1e-5, atol=1e-5)
        assert {h.docid: h.score for h in one_by_one[qid]} == pytest.approx(got, rel=1e-5, abs=1e-5)

    impact = LuceneImpactSearcher(str(tmp_path / "I" / "ot"), queries.impact, min_idf=-1)
    found = impact.batch_search(texts, ids, k=700)
    for text, qid in zip(texts, ids, strict=True):
        weights = queries.impact.encode(text)
        terms = np.array([folder.term_ids[t] for t in weights])
        exact = folder.forward.scores(np.arange(700), terms, np.array(list(weights.values())))
        got = {hit.docid: round(hit.score) for hit in found[qid]}
        assert got == {folder.docids[r]: int(s) for r, s in enumerate(exact) if s}


@pytest.mark.jvm
def test_for_index_refuses_another_model(corpus, tmp_path, encode):
    assert encode(corpus, tmp_path / "I", "--parts", "cls")[0] == 0
    record = json.loads((tmp_path / "I" / "meta.json").read_text())
    record["encoder"]["digest"] = "0" * 64
    write_edited(tmp_path / "I", record)
    with pytest.raises(IndexMismatch, match="was not made by the model testing:hashing"):
        DupmaeQueryEncoder.for_index(tmp_path / "I")
    with pytest.raises(InputError, match="not a finished index"):
        DupmaeQueryEncoder.for_index(tmp_path)


def test_the_public_names_are_where_they_are_promised():
    import dupmae_ir.encode as package

    assert all(callable(getattr(package, name)) for name in package.__all__)
    assert package.DupmaeQueryEncoder is DupmaeQueryEncoder
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        _ = package.nothing_of_that_name
