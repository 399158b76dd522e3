"""Every number reached a second way: by scipy, by brute force, or by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.stats

from dupmae_ir.eval import significance
from dupmae_ir.eval.config import PERMUTATIONS
from dupmae_ir.eval.significance import (
    Interval,
    Permutation,
    bootstrap_intervals,
    holm,
    permutation_tests,
    t_test,
)


def one_test(differences: np.ndarray, resamples: int = PERMUTATIONS, seed: int = 0) -> Permutation:
    """The permutation test of a single comparison."""
    return permutation_tests(np.asarray(differences, np.float64)[:, None], resamples, seed)[0]


def pairs(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(run, baseline): values as measures have them, many of them equal."""
    rng = np.random.default_rng(seed)
    baseline = rng.choice([0, 1 / 3, 0.5, 1], n)
    return np.where(rng.random(n) < 0.3, baseline, rng.choice([0, 0.2, 0.5, 1], n)), baseline


def mean_difference(run, baseline, axis):
    return np.mean(run - baseline, axis=axis)


@pytest.mark.parametrize(("n", "seed"), [(2, 1), (9, 2), (50, 3), (1000, 4)])
def test_t_equals_scipys(n, seed):
    run, baseline = pairs(n, seed)
    assert t_test(run - baseline) == pytest.approx(
        scipy.stats.ttest_rel(run, baseline).pvalue, rel=1e-12
    )


@pytest.mark.parametrize(("n", "seed"), [(2, 1), (5, 2), (12, 3), (13, 4)])
def test_exact_permutations_equal_scipys(n, seed):
    run, baseline = pairs(n, seed)
    found = one_test(run - baseline)
    theirs = scipy.stats.permutation_test(
        (run, baseline),
        mean_difference,
        permutation_type="samples",
        n_resamples=np.inf,
        vectorized=True,
    )
    assert found.p == pytest.approx(theirs.pvalue, abs=1e-15)
    assert found.exact
    assert found.resamples == 2 ** np.count_nonzero(run - baseline)


def test_exact_is_brute_force():
    d = np.array([0.5, -0.2, 0.3, 0.0, 0.3, 1.0])
    signs = np.array(list(itertools.product([1, -1], repeat=6)))
    # Rounding would split sums that are equal on paper; a hair of tolerance joins them.
    extreme = np.abs(signs @ d) >= abs(d.sum()) - 1e-9
    assert one_test(d).p == extreme.mean()


def test_drawn_permutations_come_close_to_scipys_and_say_how_many():
    run, baseline = pairs(60, 5)
    found = one_test(run - baseline, resamples=20_000, seed=1)
    theirs = scipy.stats.permutation_test(
        (run, baseline),
        mean_difference,
        permutation_type="samples",
        n_resamples=20_000,
        vectorized=True,
        rng=np.random.default_rng(2),
    ).pvalue
    # Two independent estimates of one share: five standard errors of their difference (scipy doubles one tail).
    assert abs(found.p - theirs) < 5 * np.sqrt(3 * theirs * (1 - theirs) / 20_000)
    assert (found.exact, found.resamples) == (False, 20_000)


def test_drawn_permutations_come_close_to_the_exact_answer(monkeypatch):
    d = np.subtract(*pairs(16, 6))
    exact = one_test(d)
    monkeypatch.setattr(significance, "EXACT", 3)
    drawn = one_test(d, resamples=50_000)
    assert exact.exact
    assert not drawn.exact
    assert abs(drawn.p - exact.p) < 5 * np.sqrt(exact.p * (1 - exact.p) / 50_000)


def test_results_depend_on_the_seed_only(monkeypatch):
    d = np.stack([np.subtract(*pairs(70, seed)) for seed in (1, 2, 3)], axis=1)
    together = permutation_tests(d, 3000, seed=7)
    assert together == [one_test(d[:, c], 3000, seed=7) for c in range(3)]
    assert together != permutation_tests(d, 3000, seed=8)
    intervals = bootstrap_intervals(d, resamples=500, seed=7)
    monkeypatch.setattr(significance, "_BLOCK", 70 * 64)
    assert permutation_tests(d, 3000, seed=7) == together
    np.testing.assert_allclose(bootstrap_intervals(d, resamples=500, seed=7), intervals, atol=1e-15)


def test_no_drawn_p_is_zero():
    assert one_test(np.full(50, 0.1) + np.linspace(0, 0.01, 50), resamples=999).p == 1 / 1000


@pytest.mark.parametrize(("n", "level", "seed"), [(2, 0.95, 0), (40, 0.95, 3), (300, 0.8, 4)])
def test_bootstrap_equals_scipys_to_the_draw(n, level, seed):
    d = np.subtract(*pairs(n, seed + 20))
    (found,) = bootstrap_intervals(d[:, None], level, 2000, seed)
    theirs = scipy.stats.bootstrap(
        (d,),
        np.mean,
        confidence_level=level,
        n_resamples=2000,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    np.testing.assert_allclose(found, theirs, rtol=0, atol=1e-14)


def test_an_interval_covers_as_often_as_it_says():
    rng = np.random.default_rng(0)
    samples = rng.exponential(1.0, (200, 400))  # 400 experiments of 200 queries with mean 1
    covered = [low <= 1 <= high for low, high in bootstrap_intervals(samples, 0.9, 400)]
    # Binomial noise of 400 experiments is 1.5 points; the bootstrap itself is a little short on skewed values.
    assert 0.84 < np.mean(covered) < 0.95


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


def test_holm_rejects_what_its_steps_reject():
    rng = np.random.default_rng(1)
    for _ in range(200):
        p = rng.random(6) ** 3
        alpha = float(rng.random())
        rejected: set[int] = set()
        for step, i in enumerate(np.argsort(p)):  # from the smallest up, until one is kept
            if p[i] * (6 - step) > alpha:
                break
            rejected.add(int(i))
        assert {i for i, q in enumerate(holm(p.tolist())) if q <= alpha} == rejected


def test_an_undefined_test_still_counts_in_the_family():
    assert holm([None, 0.01, None]) == [None, pytest.approx(0.03), None]
    assert holm([None, None]) == [None, None]


def test_nothing_differs():
    assert t_test(np.zeros(8)) == 1.0
    assert one_test(np.zeros(8)).p == 1.0
    assert bootstrap_intervals(np.zeros((8, 1))) == [Interval(0.0, 0.0)]


def test_query_model_says_nothing():
    assert t_test(np.array([0.4])) is None
    assert one_test(np.array([0.4])).p == 1.0
    assert bootstrap_intervals(np.array([[0.4, 0.1]])) == [None, None]
    assert t_test(np.zeros(1)) == 1.0


def test_no_spread_is_no_estimate_of_noise():
    d = np.array([0.3 - 0.2, 0.4 - 0.3, 0.1])  # equal but for rounding
    assert t_test(d) is None
    assert one_test(d).p == 2 / 8
    np.testing.assert_allclose(bootstrap_intervals(d[:, None]), [[0.1, 0.1]], atol=1e-12)


def test_sums_that_differ_by_rounding_are_ties():
    # 0.1 + 0.2 and 0.3 are one number on paper: every flip that swaps them is as extreme as what was seen.
    d = np.array([0.1, 0.2, -0.3, 0.6])
    assert one_test(d).p == one_test(np.array([1.0, 2.0, -3.0, 6.0])).p
