"""Stock Pyserini encoders give the same [CLS] vectors from our model folders."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.tiny_models import tiny_config, tiny_tokenizer

from dupmae_ir import pyserini
from dupmae_ir.models import load_encoder
from dupmae_ir.models.checkpoints.model_config import ModelConfig
from dupmae_ir.models.checkpoints.saving import save_model
from dupmae_ir.models.heads.masked_lm import excluded_ids
from dupmae_ir.models.retriever import Retriever, UntiedRetriever

pytestmark = pytest.mark.jvm
TEXTS = [
    "the quick brown fox jumps over the lazy dog",
    "cat",
    "heap queue sorts list",
    "the the dog | é",
]


def retriever(seed: int, normalize: bool = False) -> Retriever:
    """A model without a projection, which AutoModel cannot load."""
    from transformers import BertForMaskedLM

    torch.manual_seed(seed)
    return Retriever(
        BertForMaskedLM(tiny_config()), None, *excluded_ids(tiny_tokenizer()), normalize=normalize
    ).eval()


def stock(name):
    return getattr(pyserini.module("pyserini.encode"), name)


@pytest.mark.parametrize("normalize", [False, True])
def test_auto_encoders(tmp_path, normalize):
    config = ModelConfig(normalize=normalize, document_length=64, query_length=64)
    folder = str(save_model(tmp_path / "model", retriever(0, normalize), tiny_tokenizer(), config))
    ours = load_encoder(folder, parts=("cls",))
    documents = stock("AutoDocumentEncoder")(folder, device="cpu", pooling="cls", l2_norm=normalize)
    np.testing.assert_allclose(documents.encode(TEXTS), ours.encode_documents(TEXTS).cls, atol=1e-5)
    queries = stock("AutoQueryEncoder")(folder, device="cpu", pooling="cls", l2_norm=normalize)
    got = np.stack([queries.encode(text) for text in TEXTS])
    np.testing.assert_allclose(got, ours.encode_queries(TEXTS).cls, atol=1e-5)


def test_auto_encoders_load_each_side_of_an_untied_model(tmp_path):
    config = ModelConfig(document_length=64, query_length=64)
    folder = save_model(
        tmp_path / "model", UntiedRetriever(retriever(1), retriever(2)), tiny_tokenizer(), config
    )
    ours = load_encoder(folder, parts=("cls",))
    documents = stock("AutoDocumentEncoder")(
        str(folder / "passage_model"), device="cpu", pooling="cls"
    )
    np.testing.assert_allclose(documents.encode(TEXTS), ours.encode_documents(TEXTS).cls, atol=1e-5)
    queries = stock("AutoQueryEncoder")(str(folder / "query_model"), device="cpu", pooling="cls")
    np.testing.assert_allclose(
        queries.encode(TEXTS[0]), ours.encode_queries(TEXTS[:1]).cls[0], atol=1e-5
    )
