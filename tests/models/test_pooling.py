"""The chunked maximum equals the plain formula, forward and backward; top-k is exact and ordered."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dupmae_ir.models import pooling
from dupmae_ir.models.pooling import (
    ACTIVATIONS,
    keep_top_k,
    max_and_position,
    ot_max,
    ot_max_packed,
    runs,
    strongest,
)


def ot_max_plain(hidden, mask, weight, bias=None):
    """The reference: all (B, L, V) logits at once."""
    logits = torch.nn.functional.linear(hidden, weight, bias)
    return logits.masked_fill(~mask.bool().unsqueeze(-1), -torch.inf).amax(1)


def case(batch=4, length=7, width=5, vocabulary=23, dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(batch, length, width, generator=g, dtype=dtype)
    weight = torch.randn(vocabulary, width, generator=g, dtype=dtype)
    bias = torch.randn(vocabulary, generator=g, dtype=dtype)
    mask = torch.rand(batch, length, generator=g) > 0.3
    mask[:, 0] = True
    return hidden, mask, weight, bias


@pytest.mark.parametrize("chunk", [1, 4, 23, 100])
def test_chunks_do_not_change_the_maximum(chunk):
    hidden, mask, weight, bias = case()
    torch.testing.assert_close(
        ot_max(hidden, mask, weight, bias, chunk),
        ot_max_plain(hidden, mask, weight, bias),
        rtol=0,
        atol=1e-12,
    )


def test_chunks_do_not_change_the_gradient(monkeypatch):
    """One chunk, several, and a short last one; gradients on all words and on few."""
    hidden, mask, weight, bias = case()
    for keep in (23, 3):
        grads = []
        for chunk in (1, 5, 23, 100):
            monkeypatch.setattr("dupmae_ir.models.pooling.CHUNK", chunk)
            leaves = [t.clone().requires_grad_() for t in (hidden, weight, bias)]
            keep_top_k(
                ot_max(leaves[0], mask, leaves[1], leaves[2]), keep
            ).square().sum().backward()
            grads.append([t.grad for t in leaves])
        leaves = [t.clone().requires_grad_() for t in (hidden, weight, bias)]
        keep_top_k(ot_max_plain(leaves[0], mask, *leaves[1:]), keep).square().sum().backward()
        for ours in grads:
            for a, leaf in zip(ours, leaves, strict=True):
                torch.testing.assert_close(a, leaf.grad, rtol=0, atol=1e-10)


def test_the_gradient_equals_autograd_and_passes_gradcheck():
    hidden, mask, weight, bias = case()
    grads = []
    for form in (
        lambda h, w, b: ot_max(h, mask, w, b, chunk=6),
        lambda h, w, b: ot_max_plain(h, mask, w, b),
    ):
        leaves = [t.clone().requires_grad_() for t in (hidden, weight, bias)]
        out = form(*leaves)
        # A loss whose gradient has many exact zeros, as with top-k and ReLU.
        (torch.relu(out) * torch.arange(out.shape[1]).remainder(3)).square().sum().backward()
        grads.append([t.grad for t in leaves])
    for ours, plain in zip(*grads, strict=True):
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-10)
    leaves = [t.clone().requires_grad_() for t in (hidden, weight, bias)]
    assert torch.autograd.gradcheck(lambda h, w, b: ot_max(h, mask, w, b, chunk=6), leaves)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("cached", [1, 100, 1 << 20])
def test_maximum_and_its_position(dtype, cached, monkeypatch):
    monkeypatch.setattr(pooling, "CACHED", cached)
    # Few different values, so that many are equal; a text and a word of -inf only.
    logits = torch.randint(-3, 3, (5, 9, 17), generator=torch.Generator().manual_seed(0)).to(dtype)
    logits[1] = logits[:, :, 3] = -torch.inf
    values, positions = max_and_position(logits)
    assert torch.equal(values, logits.amax(1))
    found = logits.gather(1, positions.long().unsqueeze(1)).squeeze(1)
    assert torch.equal(found, values)


def test_a_text_without_pooled_tokens_is_minus_infinity_and_has_no_gradient():
    hidden, mask, weight, bias = case()
    mask[2] = False
    hidden.requires_grad_()
    out = ot_max(hidden, mask, weight, bias)
    assert torch.isneginf(out[2]).all()
    assert torch.isfinite(out[[0, 1, 3]]).all()
    torch.relu(out).sum().backward()
    assert (hidden.grad[2] == 0).all()
    assert torch.isfinite(hidden.grad).all()


def test_packed_equals_padded():
    hidden, mask, weight, bias = case()
    mask[1] = False
    padded = ot_max(hidden, mask, weight, bias)
    packed = ot_max_packed(hidden[mask], mask.sum(1).tolist(), weight, bias, chunk=6)
    torch.testing.assert_close(packed, padded, rtol=0, atol=1e-12)


def test_runs_cover_every_text_once():
    lengths = [5, 5, 3, 0, 0, 2, 5]
    assert list(runs(lengths)) == [(0, 2, 5), (10, 1, 3), (13, 2, 0), (13, 1, 2), (15, 1, 5)]


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_activation_after_the_maximum_is_activation_before_it(name):
    hidden, mask, weight, bias = case()
    act = ACTIVATIONS[name]
    logits = torch.nn.functional.linear(hidden, weight, bias)
    before = act(logits).masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(1)
    torch.testing.assert_close(act(ot_max(hidden, mask, weight, bias)), before)


def test_strongest_sorts_by_weight_then_id_with_any_ties():
    rng = np.random.default_rng(0)
    for _ in range(200):
        width = int(rng.integers(2, 60))
        k = int(rng.integers(1, 20))
        row = rng.integers(-2, 4, width).astype(np.float32)
        ids, weights = strongest(torch.tensor(row[None]), k, spare=2)
        order = sorted((i for i in range(width) if row[i] > 0), key=lambda i: (-row[i], i))[:k]
        kept = ids[0][ids[0] >= 0].tolist()
        assert kept == order
        assert weights[0][: len(order)].tolist() == row[order].tolist()


def test_gradients_flow_only_to_the_top_k():
    x = torch.tensor([[3.0, 1.0, 2.0, 0.0]], requires_grad=True)
    kept = keep_top_k(x, 2)
    assert kept.tolist() == [[3.0, 0.0, 2.0, 0.0]]
    kept.sum().backward()
    assert x.grad.tolist() == [[1.0, 0.0, 1.0, 0.0]]
