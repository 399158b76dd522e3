"""Screening in bfloat16 finds the very words of the plain form, and its bound holds."""

from __future__ import annotations

import pytest
import torch

from dupmae_ir.models.inference.topk_screen import Screen, candidates, refine
from dupmae_ir.models.pooling import ot_max_packed, strongest


def case(seed, width=24, words=600, counts=(9, 4, 4, 1, 0), spread=1.0):
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(sum(counts), width, generator=g) * spread
    weight, bias = torch.randn(words, width, generator=g) * 0.3, torch.randn(words, generator=g) * 0.2
    heard = torch.rand(words, generator=g) > 0.1
    return hidden, list(counts), weight, bias, heard


def plain_top(hidden, counts, weight, bias, heard, k):
    pooled = ot_max_packed(hidden, counts, weight, bias)
    return strongest(pooled.masked_fill(~heard, 0.0), k)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("k", [1, 20, 500, 1000])
def test_screened_top_k_is_the_plain_one(seed, k):
    x = case(seed, spread=10.0 ** (seed % 4 - 1))
    hidden, counts, weight, bias, heard = x
    screen = Screen.of(weight, bias)
    words, values = refine(screen, hidden, counts, candidates(screen, hidden, counts, heard, k))
    places, weights = strongest(values, k)
    found = words.gather(1, places.clamp_min(0)).masked_fill(places < 0, -1)
    wanted, exact = plain_top(hidden, counts, weight, bias, heard, k)
    for row in range(len(counts)):
        n = int((wanted[row] >= 0).sum())
        assert found[row, :n].tolist() == wanted[row, :n].tolist()
        assert (found[row, n:] == -1).all()
        # The same products, perhaps summed in another order: relative to the largest, since terms cancel.
        torch.testing.assert_close(weights[row, :n], exact[row, :n], atol=2e-6 * float(exact.max()), rtol=0)


@pytest.mark.parametrize("seed", range(5))
def test_a_tighter_bound_would_lie(seed):
    """Every word whose exact value reaches the k-th best is a candidate, also on values chosen to be rounded badly."""
    hidden, counts, weight, bias, heard = case(seed, counts=(3, 2))
    # Just above the middle between two bfloat16 numbers: all roundings go the same way.
    weight = (weight.bfloat16().float() * (1 + 2.0**-9 * 0.99)).contiguous()
    hidden = (hidden.bfloat16().float() * (1 + 2.0**-9 * 0.99)).contiguous()
    screen = Screen.of(weight, bias)
    exact = ot_max_packed(hidden.double(), counts, weight.double(), bias.double()).masked_fill(~heard, -torch.inf)
    for k in (1, 7, 100):
        kth = exact.topk(k, dim=1).values[:, -1:]
        needed = (exact >= kth) & (exact > 0)
        assert not (needed & ~candidates(screen, hidden, counts, heard, k)).any()


@pytest.mark.parametrize("seed", range(5))
def test_words_that_round_apart_are_not_lost(seed):
    """Many words of nearly equal value, every other one rounded up and the rest down: the coarse order is wrong."""
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(2, 24, generator=g).bfloat16().float()
    weight = (hidden[0] + torch.randn(4000, 24, generator=g) * 0.01).bfloat16().float()
    # Within half a unit of the last place: both round to the same bfloat16 numbers.
    weight *= 1 + 2.0**-9 * 0.99 * torch.tensor([1.0, -1.0]).repeat(2000).unsqueeze(1)
    heard, screen = torch.ones(4000, dtype=torch.bool), Screen.of(weight, None)
    exact = ot_max_packed(hidden.double(), [1, 1], weight.double())
    for k in (10, 300):
        needed = (exact >= exact.topk(k, dim=1).values[:, -1:]) & (exact > 0)
        assert not (needed & ~candidates(screen, hidden, [1, 1], heard, k)).any()


def test_few_words_are_left():
    hidden, counts, weight, bias, heard = case(0, width=256, words=5000, counts=(30, 20))
    left = candidates(Screen.of(weight, bias), hidden, counts, heard, 100).sum(1)
    assert (left >= 100).all()
    assert (left < 250).all()


def test_no_bias_is_a_bias_of_zero():
    hidden, counts, weight, _, heard = case(1)
    with_zero = candidates(Screen.of(weight, torch.zeros(len(weight))), hidden, counts, heard, 10)
    assert torch.equal(candidates(Screen.of(weight, None), hidden, counts, heard, 10), with_zero)
