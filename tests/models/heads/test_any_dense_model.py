"""``head`` lexical: word weights in closed form beside the dense vectors of any model."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.encode_runs import corpus_and_more
from support.tiny_models import tiny_config, tiny_tokenizer

from dupmae_ir.encode.__main__ import main as encode
from dupmae_ir.encode.pyserini_encoders import DupmaeQueryEncoder
from dupmae_ir.errors import HeadMissing, UsageError
from dupmae_ir.index.__main__ import main as index
from dupmae_ir.index.index import Index
from dupmae_ir.models import load_encoder, load_lazy_encoder
from dupmae_ir.models.heads.lexical import Lexicon
from dupmae_ir.models.names import embedded_folder
from dupmae_ir.search.__main__ import main as search
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.types import Document

TEXTS = [
    "The quick brown foxes jumped over lazy dogs",
    "heap queues sort lists",
    "trees and graphs",
    "",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A sentence encoder: mean pooling, unit length, no head."""
    from transformers import BertModel

    folder = tmp_path_factory.mktemp("dense")
    BertModel(tiny_config(), add_pooling_layer=False).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    types = ["Transformer", "Pooling", "Normalize"]
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{t}" if i else "",
            "type": f"sentence_transformers.models.{t}",
        }
        for i, t in enumerate(types)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    for module in modules[1:]:
        (folder / module["path"]).mkdir()
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"pooling_mode": "mean", "embedding_dimension": 24})
    )
    return folder


def test_vectors_are_the_models_and_weights_those_of_the_embedded_lexicon(folder):
    both = load_encoder(str(folder), head="lexical")
    encoded = both.encode_documents(TEXTS)
    np.testing.assert_array_equal(
        encoded.cls, load_encoder(str(folder), parts=("cls",)).encode_documents(TEXTS).cls
    )
    own = load_encoder(None, parts=("ot",))
    documents = [Document("d", text, "Dogs") for text in TEXTS]
    for ours, theirs in (
        (encoded.ot, own.encode_documents(TEXTS).ot),
        (both.encode_collection(documents).ot, own.encode_collection(documents).ot),
    ):
        assert both.terms == own.terms
        np.testing.assert_array_equal(ours.toarray(), theirs.toarray())
    queries = both.encode_queries(TEXTS).ot
    words = Lexicon.load(embedded_folder() / "lexicon.safetensors", both.config.lexical, 29)
    np.testing.assert_array_equal(
        queries.toarray(), words.matrix([words.query(t) for t in TEXTS], 1024).toarray()
    )


def test_encode_search_add_explain_and_pyserini(folder, tmp_path, capsys):
    made, words = corpus_and_more(tmp_path, TEXTS, folder)
    assert encode(words) == 2
    assert "--head lexical" in capsys.readouterr().err
    assert encode([*words, "--head", "lexical", "--dimensions", "7"]) == 0
    assert index(["add", "--index", made, "--corpus", str(tmp_path / "more.jsonl"), "--quiet"]) == 0
    capsys.readouterr()
    query = ["--index", made, "--query", "sorted queue", "--impact-search", "postings"]
    assert search([*query, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hits"][0]["docid"] == "c1"
    assert search([*query, "--explain", "c1"]) == 0
    assert "queue" in capsys.readouterr().out
    opened = Index.open(made)
    assert opened.dim == 7
    assert Searcher.open(made).encoder.terms == opened.terms
    assert DupmaeQueryEncoder.for_index(made).encode("queue").shape == (7,)


@pytest.mark.parametrize("dimensions", [1, 7, 24, 99])
def test_leading_dimensions_equal_those_of_sentence_transformers(folder, dimensions):
    st = pytest.importorskip("sentence_transformers")
    theirs = st.SentenceTransformer(str(folder), device="cpu", truncate_dim=dimensions)
    encoder = load_encoder(str(folder), parts=("cls",), dimensions=dimensions)
    for _ in range(2):
        vectors = encoder.encode_documents(TEXTS).cls
        np.testing.assert_allclose(
            vectors, theirs.encode(TEXTS, normalize_embeddings=True), atol=1e-5
        )
        encoder._packed = None  # padded batches, as on a GPU, give the same
    assert encoder.dim == min(dimensions, 24)


def test_query_model_without_torch_has_the_same_dimensions():
    lazy, whole = (
        load(None, dimensions=100, normalize=True) for load in (load_lazy_encoder, load_encoder)
    )
    vector, _ = lazy.encode_rows(["rotate the logs"])
    assert vector.shape == (1, 100)
    np.testing.assert_allclose(vector, whole.encode_queries(["rotate the logs"]).cls, atol=1e-4)


def test_what_cannot_be(folder):
    with pytest.raises(HeadMissing, match="`head` lexical"):
        load_encoder(str(folder))
    with pytest.raises(UsageError, match="`head` must be lexical, got mlm2"):
        load_encoder(str(folder), head="mlm2")
    with pytest.raises(UsageError, match="`dimensions` must be at least 1, got 0"):
        load_encoder(str(folder), parts=("cls",), dimensions=0)
