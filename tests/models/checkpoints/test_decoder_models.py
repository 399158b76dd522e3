"""Decoders as sentence encoders (Qwen3-Embedding, EmbeddingGemma): vectors equal those of sentence-transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.model_families import TEXTS, gemma3, qwen3

from dupmae_ir.errors import CheckpointError, HeadMissing
from dupmae_ir.models import load_encoder
from dupmae_ir.models.checkpoints.loading import load_model


@pytest.fixture(params=[qwen3, gemma3])
def folder(request, tmp_path):
    torch.manual_seed(0)
    return request.param(tmp_path / "m")


def test_vectors_equal_those_of_sentence_transformers(folder):
    st = pytest.importorskip("sentence_transformers")
    theirs = st.SentenceTransformer(str(folder), device="cpu")
    ours = load_encoder(str(folder), parts=("cls",))
    for _ in range(2):
        np.testing.assert_allclose(
            ours.encode_queries(TEXTS).cls, theirs.encode_query(TEXTS), atol=1e-5
        )
        np.testing.assert_allclose(
            ours.encode_documents(TEXTS).cls, theirs.encode_document(TEXTS), atol=1e-5
        )
    # One text alone equals the text in a batch with longer ones.
    np.testing.assert_allclose(
        ours.encode_documents(["cat"]).cls, theirs.encode_document(["cat"]), atol=1e-5
    )


def test_a_token_without_an_embedding_is_read_as_unknown(tmp_path):
    folder = gemma3(tmp_path / "m")
    assert np.isfinite(
        load_encoder(str(folder), parts=("cls",)).encode_queries(["a <image> b"]).cls
    ).all()


def test_mixed_is_float32_for_models_that_are_not_packed(folder):
    full, mixed = (
        load_encoder(str(folder), parts=("cls",), dtype=name) for name in ("float32", "mixed")
    )
    assert np.array_equal(full.encode_documents(TEXTS).cls, mixed.encode_documents(TEXTS).cls)


def test_there_is_no_head(folder):
    with pytest.raises(HeadMissing, match="`head` lexical"):
        load_encoder(str(folder))


def test_a_decoder_without_its_weights_is_refused(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="no weights"):
        load_model(folder, need_ot=False)


def test_the_last_token_is_found_on_either_side_of_padding(tmp_path):
    model, tokenizer, _ = load_model(qwen3(tmp_path / "m"), need_ot=False, published=True)
    vectors = []
    for side in ("left", "right"):  # exported graphs get what the tokenizer pads
        tokenizer.padding_side = side
        batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
        with torch.no_grad():
            vectors.append(model(batch["input_ids"], batch["attention_mask"], ot=False)[0])
    torch.testing.assert_close(*vectors, atol=1e-5, rtol=0)
