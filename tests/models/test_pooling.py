"""The chunked maximum equals the plain formula, forwards and backwards; top-k is exact and ordered."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dupmae_ir.models.pooling import ACTIVATIONS, keep_top_k, ot_max, ot_max_packed, ot_max_plain, runs, strongest


def case(batch=4, length=7, width=5, vocabulary=23, dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(batch, length, width, generator=g, dtype=dtype)
    weight = torch.randn(vocabulary, width, generator=g, dtype=dtype)
    bias = torch.randn(vocabulary, generator=g, dtype=dtype)
    speaking = torch.rand(batch, length, generator=g) > 0.3
    speaking[:, 0] = True
    return hidden, speaking, weight, bias


@pytest.mark.parametrize("chunk", [1, 4, 23, 100])
def test_chunks_do_not_change_the_maximum(chunk):
    hidden, speaking, weight, bias = case()
    torch.testing.assert_close(
        ot_max(hidden, speaking, weight, bias, chunk), ot_max_plain(hidden, speaking, weight, bias), rtol=0, atol=1e-12
    )


def test_chunks_do_not_change_the_gradient(monkeypatch):
    """On the way back too: one, several, and the last one short; with every word and with few words wanted."""
    hidden, speaking, weight, bias = case()
    for keep in (23, 3):
        grads = []
        for chunk in (1, 5, 23, 100):
            monkeypatch.setattr("dupmae_ir.models.pooling.CHUNK", chunk)
            leaves = [t.clone().requires_grad_() for t in (hidden, weight, bias)]
            keep_top_k(ot_max(leaves[0], speaking, leaves[1], leaves[2]), keep).square().sum().backward()
            grads.append([t.grad for t in leaves])
        leaves = [t.clone().requires_grad_() for t in (hidden, weight, bias)]
        keep_top_k(ot_max_plain(leaves[0], speaking, *leaves[1:]), keep).square().sum().backward()
        for ours in grads:
            for a, leaf in zip(ours, leaves, strict=True):
                torch.testing.assert_close(a, leaf.grad, rtol=0, atol=1e-10)


def test_gradient_equals_autograds_and_passes_gradcheck():
    hidden, speaking, weight, bias = case()
    grads = []
    for form in (lambda h, w, b: ot_max(h, speaking, w, b, chunk=6), lambda h, w, b: ot_max_plain(h, speaking, w, b)):
        leaves = [t.clone().requires_grad_() for t in (hidden, weight, bias)]
        out = form(*leaves)
        # A loss with many exact zeros among its gradients, as top-k and ReLU make them.
        (torch.relu(out) * torch.arange(out.shape[1]).remainder(3)).square().sum().backward()
        grads.append([t.grad for t in leaves])
    for ours, plain in zip(*grads, strict=True):
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-10)
    leaves = [t.clone().requires_grad_() for t in (hidden, weight, bias)]
    assert torch.autograd.gradcheck(lambda h, w, b: ot_max(h, speaking, w, b, chunk=6), leaves)


def test_a_text_where_nobody_speaks_is_minus_infinity_and_has_no_gradient():
    hidden, speaking, weight, bias = case()
    speaking[2] = False
    hidden.requires_grad_()
    out = ot_max(hidden, speaking, weight, bias)
    assert torch.isneginf(out[2]).all()
    assert torch.isfinite(out[[0, 1, 3]]).all()
    torch.relu(out).sum().backward()
    assert (hidden.grad[2] == 0).all()
    assert torch.isfinite(hidden.grad).all()


def test_packed_equals_padded():
    hidden, speaking, weight, bias = case()
    speaking[1] = False
    padded = ot_max(hidden, speaking, weight, bias)
    packed = ot_max_packed(hidden[speaking], speaking.sum(1).tolist(), weight, bias, chunk=6)
    torch.testing.assert_close(packed, padded, rtol=0, atol=1e-12)


def test_runs_cover_every_text_once():
    lengths = [5, 5, 3, 0, 0, 2, 5]
    assert list(runs(lengths)) == [(0, 2, 5), (10, 1, 3), (13, 2, 0), (13, 1, 2), (15, 1, 5)]


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_activation_after_the_maximum_is_activation_before_it(name):
    hidden, speaking, weight, bias = case()
    act = ACTIVATIONS[name]
    logits = torch.nn.functional.linear(hidden, weight, bias)
    before = act(logits).masked_fill(~speaking.unsqueeze(-1), -torch.inf).amax(1)
    torch.testing.assert_close(act(ot_max(hidden, speaking, weight, bias)), before)


def test_strongest_is_weight_descending_then_id_ascending_whatever_the_ties():
    rng = np.random.default_rng(0)
    for _ in range(200):
        width, k = int(rng.integers(2, 60)), int(rng.integers(1, 20))
        row = rng.integers(-2, 4, width).astype(np.float32)
        ids, weights = strongest(torch.tensor(row[None]), k, spare=2)
        order = sorted((i for i in range(width) if row[i] > 0), key=lambda i: (-row[i], i))[:k]
        kept = ids[0][ids[0] >= 0].tolist()
        assert kept == order
        assert weights[0][: len(order)].tolist() == row[order].tolist()


def test_top_k_keeps_gradients_only_where_it_keeps_weights():
    x = torch.tensor([[3.0, 1.0, 2.0, 0.0]], requires_grad=True)
    kept = keep_top_k(x, 2)
    assert kept.tolist() == [[3.0, 0.0, 2.0, 0.0]]
    kept.sum().backward()
    assert x.grad.tolist() == [[1.0, 0.0, 1.0, 0.0]]
