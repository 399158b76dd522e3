"""MTEB's protocols: retrieval by both parts, reranking, and [CLS] vectors."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from dupmae_ir.types import Query

pytestmark = pytest.mark.jvm


@pytest.fixture(scope="module")
def searched(framework, tmp_path_factory):
    """``DupmaeSearch`` with an indexed corpus."""
    module = framework("mteb")
    search = module.DupmaeSearch(
        "testing:hashing", folder=tmp_path_factory.mktemp("mteb"), device="cpu"
    )
    corpus = [
        {
            "id": "a",
            "title": "Logs",
            "body": "rotate the log files",
            "text": "Logs rotate the log files",
        },
        {"id": "b", "title": "", "text": "send mail"},
        {"id": "c", "text": "log of the ship"},
    ]
    search.index(
        corpus,
        task_metadata=None,
        hf_split="test",
        hf_subset="default",
        encode_kwargs={},
        num_proc=None,
    )
    return search


def test_search_gives_the_run(searched):
    found = searched.search([{"id": 1, "text": "log files"}, {"id": 2, "text": "mail"}], top_k=2)
    assert list(found) == ["1", "2"]
    run = searched._searcher.search([Query("1", "log files")], 2)
    assert found["1"] == {h.docid: h.score for h in run["1"]}
    assert next(iter(found["2"])) == "b"


def test_reranking_keeps_the_given_documents(searched):
    found = searched.search(
        [{"id": "1", "text": "log files"}], top_k=10, top_ranked={"1": ["b", "c"]}
    )
    assert list(found["1"]) == ["c", "b"]


def test_protocols_and_metadata(framework, searched):
    module = framework("mteb")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mteb.models.models_protocols import EncoderProtocol, SearchProtocol
    encoder = module.DupmaeEncoder("testing:hashing", device="cpu")
    assert isinstance(searched, SearchProtocol)
    assert isinstance(encoder, EncoderProtocol)
    assert searched.mteb_model_meta.embed_dim == encoder.mteb_model_meta.embed_dim == 16
    assert searched.mteb_model_meta.model_type == ["hybrid"]
    # MTEB keeps results by name and revision: the outputs of one model must not share them.
    modes = ("dense", "impact", "hybrid")
    metas = [
        module.DupmaeSearch("testing:hashing", mode=mode, device="cpu").mteb_model_meta
        for mode in modes
    ]
    assert [meta.model_type for meta in metas] == [["dense"], ["sparse"], ["hybrid"]]
    assert len({meta.name for meta in metas}) == 3


def test_vectors_of_queries_and_documents(framework):
    encoder = framework("mteb").DupmaeEncoder("testing:hashing", device="cpu")
    texts = ["one two", "three " * 50]
    documents = encoder.encode([{"text": texts[:1]}, {"text": texts[1:]}])
    np.testing.assert_array_equal(documents, encoder.encoder.encode_documents(texts).cls)
    queries = encoder.encode([{"text": texts}], prompt_type="query")
    np.testing.assert_array_equal(queries, encoder.encoder.encode_queries(texts).cls)
    assert not np.array_equal(queries[1], documents[1])  # queries are cut earlier
    assert np.allclose(encoder.similarity(documents, queries)[0, 1], documents[0] @ queries[1])


@pytest.mark.parametrize(("mode", "parts"), [("dense", ["cls"]), ("impact", ["ot"])])
def test_a_mode_encodes_its_part_alone(framework, tmp_path, mode, parts):
    search = framework("mteb").DupmaeSearch(
        "testing:hashing", mode=mode, folder=tmp_path, device="cpu"
    )
    search.index([{"id": "a", "text": "log files"}, {"id": "b", "text": "mail"}])
    assert search._searcher.index.parts == tuple(parts)
    assert next(iter(search.search([{"id": 1, "text": "mail"}], top_k=1)["1"])) == "b"
    assert search.mteb_model_meta.embed_dim == (16 if mode == "dense" else None)
