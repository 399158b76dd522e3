"""Supported families of masked LMs: the OT part is that of the model's own logits, the [CLS] part its own states."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from support.tiny_models import tiny_tokenizer

from dupmae_ir.errors import HeadMissing
from dupmae_ir.models import load_encoder
from dupmae_ir.models.heads.masked_lm import (
    encoder_of,
    excluded_ids,
    max_input_length,
    position_rows,
)

TEXTS = ["the quick brown fox jumps over the lazy dog", "cat", "", "heap queue sorts list " * 5]
SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
}
CLASSES = {
    "RobertaForMaskedLM": 2,
    "XLMRobertaForMaskedLM": 2,
    "MPNetForMaskedLM": 2,
    "ModernBertForMaskedLM": 0,
}
"""Class -> positions that the model does not use for tokens."""


def model(name: str) -> transformers.PreTrainedModel:
    tokenizer = tiny_tokenizer()
    torch.manual_seed(0)
    cls = getattr(transformers, name)
    config = cls.config_class(
        vocab_size=len(tokenizer),
        max_position_embeddings=66,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
        **SIZES,
    )
    lm = cls(config).eval()
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.normal_(std=0.3)
    return lm


@pytest.mark.parametrize("name", CLASSES)
def test_both_parts_are_the_models_own(tmp_path, name):
    lm = model(name)
    tokenizer = tiny_tokenizer()
    lm.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    found = load_encoder(str(tmp_path), document_length=32, top_k=10_000).encode_documents(TEXTS)
    for row, text in enumerate(TEXTS):
        ids = tokenizer(text, truncation=True, max_length=32, return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            out = lm(input_ids=ids, output_hidden_states=True)
        np.testing.assert_allclose(found.cls[row], out.hidden_states[-1][0, 0], atol=2e-4)
        logits = out.logits[0, 1:-1].numpy()
        expected = np.maximum(logits.max(0), 0) if len(logits) else np.zeros(logits.shape[1])
        expected[excluded_ids(tokenizer).terms] = 0
        np.testing.assert_allclose(found.ot[row].toarray()[0], expected, rtol=2e-4, atol=2e-4)
    assert found.ot.nnz


@pytest.mark.parametrize("name", CLASSES)
def test_an_encoder_without_a_head_has_its_dense_part(tmp_path, name):
    """As most sentence encoders are saved (gte-modernbert-base, all-mpnet-base)."""
    encoder = encoder_of(model(name))
    tokenizer = tiny_tokenizer()
    encoder.config.architectures = [name.replace("ForMaskedLM", "Model")]
    encoder.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    found = load_encoder(str(tmp_path), parts=("cls",)).encode_documents(TEXTS).cls
    for row, text in enumerate(TEXTS):
        with torch.inference_mode():
            states = encoder(
                **tokenizer(text, return_token_type_ids=False, return_tensors="pt")
            ).last_hidden_state
        np.testing.assert_allclose(found[row], states[0, 0], atol=2e-4)
    with pytest.raises(HeadMissing, match="no trained masked-LM head"):
        load_encoder(str(tmp_path))


@pytest.mark.parametrize(("name", "reserved"), CLASSES.items())
def test_the_longest_input_leaves_out_reserved_positions(name, reserved):
    lm = model(name)
    if name.startswith("XLM"):
        lm.config.pad_token_id = 1
    assert max_input_length(lm) == 66 - (lm.config.pad_token_id + 1 if reserved else 0)


def test_rotary_positions_have_rows_of_zeros():
    rows = position_rows(model("ModernBertForMaskedLM"), 4)
    assert rows.shape == (4, 24)
    assert not rows.any()
