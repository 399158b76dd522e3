"""ModernBERT without padding: the same parts as transformers' own padded model, inside and outside its windows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.tiny_models import tiny_tokenizer
from transformers import ModernBertConfig, ModernBertForMaskedLM

from dupmae_ir.models.inference import packed_layers
from dupmae_ir.models.inference.encoder import TextEncoder

WINDOW = 4
TEXTS = [
    "cat",
    "",
    "heap queue sorts list " * 5,
    "the quick brown fox jumps over the lazy dog",
    "dog",
    "the cat " * 30,
]


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "biases"])
def folder(request, tmp_path_factory):
    tokenizer = tiny_tokenizer()
    out = tmp_path_factory.mktemp("modernbert")
    torch.manual_seed(0)
    names = ("pad", "cls", "sep")
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in names}
    ids |= {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
    biases = dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias"), request.param)
    lm = ModernBertForMaskedLM(
        ModernBertConfig(
            vocab_size=len(tokenizer),
            max_position_embeddings=80,
            hidden_size=24,
            num_hidden_layers=4,
            num_attention_heads=2,
            intermediate_size=32,
            local_attention=2 * WINDOW,
            global_attn_every_n_layers=3,
            **ids,
            **biases,
        )
    )
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.normal_(std=0.3)
    lm.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return str(out)


def padded(folder, **options):
    encoder = TextEncoder.load(folder, document_length=70, **options)
    assert encoder._packed is not None
    encoder._packed = None
    return encoder


@pytest.mark.parametrize("parts", [("cls", "ot"), ("cls",)])
def test_packed_equals_padded(folder, parts):
    ours = TextEncoder.load(folder, document_length=70, parts=parts).encode_documents(TEXTS)
    reference = padded(folder, parts=parts).encode_documents(TEXTS)
    np.testing.assert_allclose(ours.cls, reference.cls, atol=1e-5)
    if "ot" in parts:
        np.testing.assert_allclose(ours.ot.toarray(), reference.ot.toarray(), atol=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "mixed"])
def test_products_in_bfloat16_are_near(folder, dtype):
    """Nearer to float32 than the padded model in bfloat16, or as near."""
    exact = padded(folder).encode_documents(TEXTS).cls
    ours = TextEncoder.load(folder, document_length=70, dtype=dtype).encode_documents(TEXTS).cls
    theirs = padded(folder, dtype="bfloat16").encode_documents(TEXTS).cls
    assert 0 < np.abs(ours - exact).mean() < 1.5 * np.abs(theirs - exact).mean()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("long", [0, 512], ids=["fused kernel", "two products"])
def test_a_window_of_keys_is_the_masked_whole(monkeypatch, dtype, long):
    monkeypatch.setattr(packed_layers, "MIN_FUSED_KEYS", long)
    qkv = torch.randn(
        2, 21, 3, 2, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    far = (torch.arange(21).unsqueeze(1) - torch.arange(21)).abs() > WINDOW
    shares = (q @ k.transpose(2, 3) / 8**0.5).masked_fill(far, -torch.inf).softmax(-1)
    found = packed_layers.attention(qkv.to(dtype), WINDOW).double()
    near = 1e-12 if dtype == torch.float64 else 3e-2
    torch.testing.assert_close(found, (shares @ v).transpose(1, 2), atol=near, rtol=0)
