"""The packed model as CUDA runs it, on the CPU: attention of variable length, and nothing that waits for the device."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from support.tiny_models import tiny_tokenizer
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    BertConfig,
    BertForMaskedLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    XLMRobertaConfig,
    XLMRobertaForMaskedLM,
)

from dupmae_ir.device import to_device
from dupmae_ir.models.heads.masked_lm import excluded_ids
from dupmae_ir.models.inference import packed, packed_layers
from dupmae_ir.models.inference.encoder import TextEncoder
from dupmae_ir.models.inference.packed import PackedRetriever
from dupmae_ir.models.pooling import runs, strongest
from dupmae_ir.models.retriever import Retriever

WINDOW = 4
TOP = 6
SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 48,
}


def language_model(family: str, vocabulary: int) -> torch.nn.Module:
    ids = {
        "pad_token_id": 0,
        "cls_token_id": 1,
        "sep_token_id": 2,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if family == "bert":
        return BertForMaskedLM(
            BertConfig(vocab_size=vocabulary, max_position_embeddings=80, **SHAPE)
        )
    if family == "xlm-r":
        return XLMRobertaForMaskedLM(
            XLMRobertaConfig(
                vocab_size=vocabulary,
                max_position_embeddings=80,
                **SHAPE,
                **(ids | {"pad_token_id": 1}),
            )
        )
    windows = {"local_attention": 2 * WINDOW, "global_attn_every_n_layers": 2}
    return ModernBertForMaskedLM(
        ModernBertConfig(
            vocab_size=vocabulary, max_position_embeddings=80, **SHAPE, **windows, **ids
        )
    )


@pytest.fixture(params=["bert", "xlm-r", "modernbert"])
def model(request) -> Retriever:
    torch.manual_seed(0)
    tokenizer = tiny_tokenizer()
    lm = language_model(request.param, len(tokenizer)).eval()
    for parameter in lm.parameters():
        parameter.data.normal_(std=0.3)
    return Retriever(
        lm, torch.nn.Linear(32, 8, bias=False), *excluded_ids(tokenizer)
    ).requires_grad_(False)


def texts(model: Retriever, count: int = 9) -> list[list[int]]:
    """Texts of 1 to 60 ids, longest first; one has only ids that are not pooled."""
    rng = np.random.default_rng(0)
    size = len(model.term_mask)
    drawn = [rng.integers(2, size, n).tolist() for n in (*rng.integers(1, 60, count - 1), 60)]
    unpooled = int((~model.pooled_mask).nonzero()[-1])
    return sorted([*drawn, [unpooled] * 3], key=len, reverse=True)


def reference(q, k, v, bounds, key_bounds, longest, longest_key, window_size=(-1, -1)):
    """torch's ``varlen_attn``, text by text."""
    assert longest == int(bounds.diff().max())
    assert longest_key == int(key_bounds.diff().max())
    out = torch.empty_like(q)
    for (a, b), (c, d) in zip(pairwise(bounds), pairwise(key_bounds), strict=True):
        scores = torch.einsum("qhd,khd->hqk", q[a:b], k[c:d]) * q.shape[-1] ** -0.5
        places = torch.arange(int(d - c))
        if window_size != (-1, -1):
            far = (places.unsqueeze(1) - places).abs() > window_size[0]
            scores = scores.masked_fill(far, -torch.inf)
        out[a:b] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v[c:d])
    return out


@pytest.fixture
def varlen(monkeypatch):
    """The device's choices on the CPU."""
    monkeypatch.setattr(pytest.importorskip("torch.nn.attention.varlen"), "varlen_attn", reference)
    monkeypatch.setattr(
        packed, "pick_attention", lambda *_: (packed_layers.VarlenAttention, "forced")
    )
    for module in (packed, packed_layers):
        monkeypatch.setattr(module, "pad_rows", lambda x: x)


@pytest.mark.parametrize("pooling", ["cls", "last", "mean", "weighted-mean"])
def test_attention_of_variable_length_gives_the_plain_model(model, varlen, pooling):
    model.pooling = pooling
    ids = texts(model)
    device = PackedRetriever(model)
    with torch.inference_mode():
        cls, words, weights = device(ids, keep=TOP)
        alone, *_ = device(ids, keep=0)
        whole = device(ids)[2]
        for row, text in enumerate(ids):
            plain_cls, plain_ot = model(
                torch.tensor([text]), torch.ones(1, len(text), dtype=torch.long)
            )
            torch.testing.assert_close(cls[row], plain_cls[0], atol=1e-4, rtol=0)
            torch.testing.assert_close(alone[row], plain_cls[0], atol=1e-4, rtol=0)
            torch.testing.assert_close(whole[row], plain_ot[0], atol=1e-4, rtol=0)
            plain_words, plain_weights = strongest(plain_ot, TOP)
            assert words[row].tolist() == plain_words[0].tolist()
            torch.testing.assert_close(weights[row], plain_weights[0], atol=1e-4, rtol=0)


class Count(TorchDispatchMode):
    """Counts operators."""

    calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("keep", [0, TOP])
def test_a_batch_is_as_many_calls_for_any_texts_and_waits_for_none(model, keep, monkeypatch):
    """Tensors without data: an operator whose result the host reads raises an error."""
    pytest.importorskip("torch.nn.attention.varlen")
    monkeypatch.setattr(
        packed, "pick_attention", lambda *_: (packed_layers.VarlenAttention, "forced")
    )
    device = PackedRetriever(model.to("meta"))
    device._pooled_ids = np.ones(len(model.term_mask), np.bool_)
    calls = []
    for count in (3, 3, 30):  # the first call prepares the weights
        ids = texts_of(count)
        with torch.inference_mode(), Count() as mode:
            cls, words, _ = device(ids, keep=keep)
        assert cls.shape == (count, 8)
        assert words is None if keep == 0 else words.shape == (count, TOP)
        calls.append(mode.calls)
    assert calls[1] == calls[2] > 50


def texts_of(count: int) -> list[list[int]]:
    return [[2] * (60 - row) for row in range(count)]


def test_the_maximum_by_segments_is_that_by_runs():
    counts = [5, 5, 3, 0, 1]
    x = torch.randn(14, 7)
    found = torch.segment_reduce(x, "max", lengths=torch.tensor(counts), unsafe=True)
    by_runs = [
        x[start : start + n * length].view(n, length, 7).amax(1)
        if length
        else torch.full((n, 7), -torch.inf)
        for start, n, length in runs(counts)
    ]
    assert torch.equal(found, torch.cat(by_runs))


def test_results_are_read_when_the_next_batch_is_on_the_device(tiny_folder, monkeypatch):
    rows = ["the cat", "quick brown fox", "heap queue sorts list", "dog"] * 3
    one = TextEncoder.load(tiny_folder)
    one._batch_tokens = 12
    expected = one.encode_documents(rows)
    events: list[str] = []
    forward = one._forward

    def noted(*args):
        events.append("pass")
        return forward(*args)

    one._forward = noted
    one._device = torch.device("cuda")
    one.on_share = lambda _: events.append("read")
    found = one.encode_documents(rows)
    assert np.array_equal(found.cls, expected.cls)
    assert (found.ot != expected.ot).nnz == 0
    passes = events.count("pass")
    assert passes > 2
    assert events == ["pass", *["pass", "read"] * (passes - 1), "read"]


def test_values_of_the_host_are_copied():
    values = torch.arange(3)
    assert to_device(values, torch.device("cpu")) is values
    assert to_device(values, torch.device("meta")).device.type == "meta"
