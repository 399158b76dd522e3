"""Paired significance tests, Holm's correction and bootstrap intervals.

The input is the difference run minus baseline of each query; tests are two-sided. The result is None where a method is
undefined:

======================================  ==========  ================  ==========================
the differences are                     t-test      permutation test  interval
======================================  ==========  ================  ==========================
all zero                                1.0         1.0               [0, 0]; None for one query
one, not zero                           None        1.0               None
several, all equal and not zero         None        2 / 2^n           one point
======================================  ==========  ================  ==========================

In the last row Student's t divides by zero, which scipy reports as infinite; here it is undefined, because a spread of
zero is no estimate of noise. All other values equal scipy's ``ttest_rel``, ``permutation_test`` and ``bootstrap`` on
the same data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dupmae_ir.eval.config import EXACT, PERMUTATIONS

BOOTSTRAPS = 10_000  #: resamples of an interval

_ROUNDING = 1e-12  #: bound on the rounding error of sums of values of size 1
_BLOCK = 1 << 22  #: numbers in memory at a time


class Interval(NamedTuple):
    """From ``low`` to ``high``, both included."""

    low: float
    high: float


class Permutation(NamedTuple):
    """The result of a permutation test. ``resamples``: sign flips tried; all of them if ``exact``."""

    p: float
    exact: bool
    resamples: int


def t_test(differences: np.ndarray) -> float | None:
    """(n,) -> p of Student's paired t-test with n - 1 degrees of freedom (scipy's ``ttest_rel``).

    1.0 if no query differs. None if the test is undefined: one query, or all differ by the same amount.
    """
    from scipy.special import stdtr

    d = np.asarray(differences, np.float64)
    if not d.any():
        return 1.0
    # True for a single query as well.
    if np.ptp(d) <= _ROUNDING * np.abs(d).max():
        return None
    t = d.mean() / (d.std(ddof=1) / np.sqrt(len(d)))
    return float(2 * stdtr(len(d) - 1, -abs(t)))


def permutation_tests(
    differences: np.ndarray, resamples: int = PERMUTATIONS, seed: int = 0
) -> list[Permutation]:
    """(n, comparisons) -> one result per column: Fisher's randomisation test of the mean (Smucker et al. 2007).

    Under the null hypothesis run and baseline are exchangeable at every query. p is the share of all exchanges whose
    mean difference is at least as large as the observed one, in either direction. With at most ``EXACT`` non-zero
    differences all exchanges are counted; otherwise ``resamples`` random ones, plus the observed one:
    (1 + at least as large) / (1 + resamples). A column's result does not depend on the other columns.
    """
    d = np.asarray(differences, np.float64)
    results: dict[int, Permutation] = {}
    sampled_columns = []
    for number, column in enumerate(d.T):
        if np.count_nonzero(column) <= EXACT:
            results[number] = _exact(column[column != 0])
        else:
            sampled_columns.append(number)
    if sampled_columns:
        p_values = _sampled(d[:, sampled_columns], resamples, seed)
        for number, p in zip(sampled_columns, p_values, strict=True):
            results[number] = Permutation(float(p), False, resamples)
    return [results[number] for number in range(d.shape[1])]


def _exact(d: np.ndarray) -> Permutation:
    """All sign flips of (k,) differences. Flipping all signs keeps magnitudes, so the first sign is fixed."""
    # Each further difference doubles the sums: it is added to all of them and subtracted from all of them.
    sums = np.abs(d[:1])
    for value in d[1:]:
        sums = np.concatenate([sums + value, sums - value])
    p = 1.0
    if len(d):
        p = np.mean(np.abs(sums) >= _threshold(d[:, None]))
    return Permutation(float(p), True, 1 << len(d))


def _sampled(d: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    """(n, c) -> (c,) p values from random sign flips, the same flips for each column."""
    rng = np.random.default_rng(seed)
    total = d.sum(axis=0)
    threshold = _threshold(d)
    extreme = np.zeros(d.shape[1], np.int64)
    bytes_per_resample = math.ceil(len(d) / 8)
    for rows in _blocks(resamples, len(d)):
        # One random bit for each query, in complete bytes.
        random_bytes = np.frombuffer(rng.bytes(rows * bytes_per_resample), np.uint8)
        bits = np.unpackbits(random_bytes.reshape(rows, -1), axis=1)
        flipped = bits[:, : len(d)].astype(np.float64)
        # Flipping the sign of a difference lowers the sum by twice the difference.
        sums = total - 2 * (flipped @ d)
        extreme += (np.abs(sums) >= threshold).sum(axis=0)
    return (1 + extreme) / (1 + resamples)


def _threshold(d: np.ndarray) -> np.ndarray:
    """(n, c) -> (c,): the observed magnitude, minus the rounding error of another summation order."""
    return np.abs(d.sum(axis=0)) - _ROUNDING * np.abs(d).sum(axis=0)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction: rejecting below alpha keeps the family-wise error rate at most alpha.

    An undefined test (None) stays None and still counts as a member of the family.
    """
    defined = [(p, position) for position, p in enumerate(p_values) if p is not None]
    corrected: list[float | None] = [None] * len(p_values)
    # A corrected value is at least the one before it, so that corrected values keep the order of the p values.
    largest = 0.0
    for step, (p, position) in enumerate(sorted(defined)):
        largest = max(largest, min(1.0, (len(p_values) - step) * p))
        corrected[position] = largest
    return corrected


def bootstrap_intervals(
    values: np.ndarray, level: float = 0.95, resamples: int = BOOTSTRAPS, seed: int = 0
) -> list[Interval | None]:
    """(n, columns) -> percentile intervals of the columns' means (Efron), over the same resampled queries for all.

    Of differences, it is the paired interval. None for fewer than two queries, which have no spread.
    """
    v = np.asarray(values, np.float64)
    if len(v) < 2:
        return [None] * v.shape[1]
    rng = np.random.default_rng(seed)
    means = []
    for rows in _blocks(resamples, len(v)):
        # A resample's mean is that of the queries, each weighted by the number of times it was drawn. The draws of a
        # row are shifted into a separate range of numbers, so that one call counts all rows.
        queries = rng.integers(0, len(v), (rows, len(v)))
        numbers = queries + len(v) * np.arange(rows)[:, None]
        counts = np.bincount(numbers.ravel(), minlength=rows * len(v)).reshape(rows, len(v))
        means.append(counts.astype(np.float64) @ v / len(v))
    bounds = [(1 - level) / 2, (1 + level) / 2]
    low, high = np.quantile(np.concatenate(means), bounds, axis=0)
    return [Interval(*pair) for pair in zip(low.tolist(), high.tolist(), strict=True)]


def _blocks(rows: int, width: int) -> Iterator[int]:
    """``rows`` in blocks of at most ``_BLOCK`` numbers."""
    step = max(1, _BLOCK // max(1, width))
    for start in range(0, rows, step):
        yield min(step, rows - start)
