"""Screening in bfloat16 returns the same words as float32, and its error bound holds."""

from __future__ import annotations

import pytest
import torch

from dupmae_ir.models.inference.topk_screen import Screen, candidates, refine
from dupmae_ir.models.pooling import ot_max_packed, strongest


def case(seed, width=24, words=600, counts=(9, 4, 4, 1, 0), spread=1.0):
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(sum(counts), width, generator=g) * spread
    weight = torch.randn(words, width, generator=g) * 0.3
    bias = torch.randn(words, generator=g) * 0.2
    term_mask = torch.rand(words, generator=g) > 0.1
    return hidden, list(counts), weight, bias, term_mask


def float32_top(hidden, counts, weight, bias, term_mask, k):
    pooled = ot_max_packed(hidden, counts, weight, bias)
    return strongest(pooled.masked_fill(~term_mask, 0.0), k)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("k", [1, 20, 500, 1000])
def test_screened_top_k_equals_float32(seed, k):
    x = case(seed, spread=10.0 ** (seed % 4 - 1))
    hidden, counts, weight, bias, term_mask = x
    screen = Screen.of(weight, bias)
    words, values = refine(screen, hidden, counts, candidates(screen, hidden, counts, term_mask, k))
    places, weights = strongest(values, k)
    found = words.gather(1, places.clamp_min(0)).masked_fill(places < 0, -1)
    expected, exact = float32_top(hidden, counts, weight, bias, term_mask, k)
    for row in range(len(counts)):
        n = int((expected[row] >= 0).sum())
        assert found[row, :n].tolist() == expected[row, :n].tolist()
        assert (found[row, n:] == -1).all()
        # The order of the sums may differ; the tolerance is relative to the largest value, since terms cancel.
        torch.testing.assert_close(
            weights[row, :n], exact[row, :n], atol=2e-6 * float(exact.max()), rtol=0
        )


@pytest.mark.parametrize("seed", range(5))
def test_no_word_of_the_top_k_is_lost_to_rounding(seed):
    """Every word that reaches the exact k-th value is a candidate, even with values that round badly."""
    hidden, counts, weight, bias, term_mask = case(seed, counts=(3, 2))
    # Just above the midpoint between two bfloat16 numbers, so that all values are rounded in the same direction.
    weight = (weight.bfloat16().float() * (1 + 2.0**-9 * 0.99)).contiguous()
    hidden = (hidden.bfloat16().float() * (1 + 2.0**-9 * 0.99)).contiguous()
    screen = Screen.of(weight, bias)
    exact = ot_max_packed(hidden.double(), counts, weight.double(), bias.double()).masked_fill(
        ~term_mask, -torch.inf
    )
    for k in (1, 7, 100):
        kth = exact.topk(k, dim=1).values[:, -1:]
        needed = (exact >= kth) & (exact > 0)
        assert not (needed & ~candidates(screen, hidden, counts, term_mask, k)).any()


@pytest.mark.parametrize("seed", range(5))
def test_no_word_is_lost_where_rounding_changes_the_order(seed):
    """Many nearly equal words, alternately rounded up and down, so that their order in bfloat16 is wrong."""
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(2, 24, generator=g).bfloat16().float()
    weight = (hidden[0] + torch.randn(4000, 24, generator=g) * 0.01).bfloat16().float()
    # Within half a unit in the last place, so that both round to the same bfloat16 numbers.
    weight *= 1 + 2.0**-9 * 0.99 * torch.tensor([1.0, -1.0]).repeat(2000).unsqueeze(1)
    term_mask = torch.ones(4000, dtype=torch.bool)
    screen = Screen.of(weight, None)
    exact = ot_max_packed(hidden.double(), [1, 1], weight.double())
    for k in (10, 300):
        needed = (exact >= exact.topk(k, dim=1).values[:, -1:]) & (exact > 0)
        assert not (needed & ~candidates(screen, hidden, [1, 1], term_mask, k)).any()


def test_there_are_few_candidates():
    hidden, counts, weight, bias, term_mask = case(0, width=256, words=5000, counts=(30, 20))
    count = candidates(Screen.of(weight, bias), hidden, counts, term_mask, 100).sum(1)
    assert (count >= 100).all()
    assert (count < 250).all()


def test_no_bias_equals_a_bias_of_zero():
    hidden, counts, weight, _, term_mask = case(1)
    with_zero = candidates(
        Screen.of(weight, torch.zeros(len(weight))), hidden, counts, term_mask, 10
    )
    assert torch.equal(
        candidates(Screen.of(weight, None), hidden, counts, term_mask, 10), with_zero
    )
