"""The exact top k of the sum (DupMAE Eq. 12) from one pass over both halves, where both can be scanned.

Deep lists of either half hold few documents of each other's, so :mod:`dupmae_ir.search.certified_topk` scores
several times k documents exactly. With the flat vectors and the postings at hand both halves of *all* documents cost
less: window by window a matrix product gives the dense scores of all questions, the postings add their impacts to it,
and what can be among the k best is kept. These sums are float32; how far they can be from the true ones is known, and
whatever lies within that of the k-th is scored again: integers for the impacts, float64 for the vectors, as everywhere.

A document that was not kept scores less than the k-th for certain, so every list is certified.

By impacts alone the postings' lists are the answer as they are (:func:`summed_top`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dupmae_ir.search.certified_topk import Outcome
from dupmae_ir.search.dense import DensePart, inner_products
from dupmae_ir.search.impact import ImpactPart
from dupmae_ir.search.ordering import best_positions

if TYPE_CHECKING:
    from dupmae_ir.index.postings import PostingsSearcher

MOST_HITS = 1 << 14
"""Deeper lists are left to the other way: what is kept here grows with them."""
_BLOCK = 4096
"""Documents multiplied at a time."""


def scanned_top(
    dense: DensePart,
    impact: ImpactPart,
    postings: PostingsSearcher,
    weights: tuple[float, float],
    ranks: np.ndarray,
    k: int,
    excluded: Sequence[int | None],
    threads: int,
) -> list[Outcome | None]:
    """The ``k`` best documents of each query by ``weights[0]`` dense + ``weights[1]`` impact score; the arguments are
    those of :func:`~dupmae_ir.search.certified_topk.exact_top`. None for a query of whose documents too many tie."""
    from threadpoolctl import threadpool_limits

    queries = np.ascontiguousarray(np.float32(weights[0]) * dense.vectors)
    vectors, unit = dense.dense.vectors, weights[1] / impact.unit
    slacks = np.array([_slack(dense, impact, q, weights, unit) for q in range(len(queries))])

    def products(first: int, last: int) -> np.ndarray:
        found = np.empty((len(queries), last - first), np.float32)
        for start in range(first, last, _BLOCK):
            stop = min(start + _BLOCK, last)
            # Documents as the long side: half again as fast as the other way round for few questions.
            found[:, start - first : stop - first] = (vectors[start:stop] @ queries.T).T
        return found

    wanted = min(k + 1, len(ranks)) if any(e is not None for e in excluded) else min(k, len(ranks))
    with threadpool_limits(threads, user_api="blas"):
        kept = postings.best_sums(impact.terms(), products, unit, slacks, wanted, threads)
    outcomes: list[Outcome | None] = []
    for query, found in enumerate(kept):
        if found is None:
            outcomes.append(None)
            continue
        rows, sums = found
        if (skip := excluded[query]) is not None:
            rows, sums = rows[rows != skip], sums[rows != skip]
        # The same operations in the same order as hybrid's, for the same bits.
        scores = np.zeros(len(rows)) + weights[0] * inner_products(dense.vectors[query], vectors, rows)
        scores += weights[1] * (sums / impact.unit)
        best = best_positions(scores, ranks[rows], k)
        # What was not kept scores less than the last hit, if by a hair.
        bound = float(np.nextafter(scores[best[-1]], -np.inf)) if len(rows) < len(ranks) and len(best) else -np.inf
        outcomes.append(Outcome(rows[best], scores[best], True, (len(ranks), len(ranks)), len(rows), bound))
    return outcomes


def summed_top(
    impact: ImpactPart,
    postings: PostingsSearcher,
    ranks: np.ndarray,
    k: int,
    excluded: Sequence[int | None],
    threads: int,
) -> list[Outcome]:
    """The ``k`` best documents of each query by impacts alone: the postings' own sums are the exact scores, and their
    order of ties is ours, so nothing is scored again."""
    wanted = k + any(e is not None for e in excluded)
    outcomes = []
    for (rows, sums), skip in zip(postings.top(impact.terms(), wanted, threads, True), excluded, strict=True):
        kept = rows != skip if skip is not None else slice(None)
        best, scores = rows[kept][:k], sums[kept][:k] / impact.unit
        # Unseen documents may tie with the last hit, and come after it.
        bound = float(scores[-1]) if len(rows) == wanted < len(ranks) else 0.0
        outcomes.append(Outcome(best, scores, True, (len(rows),), len(rows), bound))
    return outcomes


def _slack(dense: DensePart, impact: ImpactPart, query: int, weights: tuple[float, float], unit: float) -> float:
    """How far a float32 sum can be from the true one: the product's rounding, and a few units in the last place of the
    largest number on the way."""
    length = float(np.linalg.norm(dense.vectors[query].astype(np.float64)))
    largest = weights[0] * length * dense.dense.longest
    largest += unit * 255.0 * float(impact.impact_queries[query].impacts.sum())
    return 2 * (weights[0] * dense.noise(query) + 2.0**-22 * largest)
