"""Exact top-k search by one pass over all documents (DupMAE, Eq. 12), for indexes with postings.

A deep list of one part contains few of the other part's documents, so :mod:`dupmae_ir.search.exact.certified_topk`
scores several times k documents exactly. With postings it is cheaper to score *all* documents: window by window, a
product with the vectors gives the dense scores of all queries, the postings add their impacts, and documents that can
be among the k best are kept. These sums are float32 with a known error bound. Documents within that bound of the k-th
are scored again exactly: integers for impacts, float64 for vectors. With codes of the rotated vectors
(:mod:`dupmae_ir.search.candidates.rotated_dense`) most documents are excluded before their vectors are read.

A document that was not kept has a score below the k-th, so every list is certified.

A search restricted to some rows multiplies only these.

For impacts alone the lists of the postings are exact as they are (:func:`summed_top`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from dupmae_ir.device import blas_threads
from dupmae_ir.search.candidates.dense import DensePart
from dupmae_ir.search.candidates.impact import ImpactPart
from dupmae_ir.search.candidates.rotated_dense import Best, Impacts, RotatedPart
from dupmae_ir.search.exact.certified_topk import Outcome
from dupmae_ir.search.exact.hits import best_positions

if TYPE_CHECKING:
    from dupmae_ir.index.postings.searcher import PostingsSearcher

MAX_HITS = 1 << 14
"""Deeper lists are left to certified_topk: the memory for kept documents grows with the depth."""
SMALL_PRODUCT = 1 << 27
"""Multiplications up to which a product has one thread. OpenBLAS lets its threads run on for tens of milliseconds after
a product, in case of another one; the next queries took 1.6 times as long to encode meanwhile."""


def scanned_top(
    dense: DensePart,
    impact: ImpactPart,
    postings: PostingsSearcher,
    weights: tuple[float, float],
    ranks: np.ndarray,
    k: int,
    excluded: Sequence[int | None],
    threads: int,
    found: Best,
) -> list[Outcome | None]:
    """The ``k`` best documents of each query by ``weights[0]`` dense + ``weights[1]`` impact score.

    The other arguments are those of :func:`~dupmae_ir.search.exact.certified_topk.exact_top`, except that
    the parts know the rows to search. None for a query with too many ties to keep. Documents that the scores ``found``
    in other segments exclude are not listed.
    """
    dense_weight, impact_weight = weights
    # What one unit of an integer impact sum adds to a score.
    unit = impact_weight / impact.unit
    queries = range(len(dense.vectors))
    slacks = np.array([_slack(dense, impact, query, weights, unit) for query in queries])
    # One more where a row is left out later.
    count = k + any(row is not None for row in excluded)
    candidates: Sequence[Sequence[np.ndarray] | None]
    if isinstance(dense, RotatedPart) and dense.excludes(len(queries), count, postings.window):
        impacts = Impacts(
            postings.files, postings.window, postings.packed(impact.impact_queries), unit
        )
        candidates = dense.best_sums(queries, count, dense_weight, impacts, slacks, found)
    else:
        # Weighting the queries costs less than weighting the products; the slack allows for its rounding.
        weighted_queries = np.ascontiguousarray(np.float32(dense_weight) * dense.vectors)
        products = partial(dense.products, weighted_queries)
        count = min(count, dense.documents)
        multiplications = dense.documents * weighted_queries.size
        with blas_threads(threads if multiplications > SMALL_PRODUCT else 1):
            candidates = postings.best_sums(
                impact.impact_queries, products, unit, slacks, count, threads, dense.allowed
            )

    outcomes: list[Outcome | None] = []
    for query in queries:
        kept = candidates[query]
        if kept is None:
            outcomes.append(None)
            continue
        # Rows below the k-th lower bound of all segments so far have been left out, too.
        lower_bounds = found.get((query, count))
        threshold = -np.inf if lower_bounds is None else lower_bounds[0]
        outcomes.append(
            _rescore(dense, impact, query, kept, weights, ranks, k, excluded[query], threshold)
        )
    return outcomes


def _rescore(
    dense: DensePart,
    impact: ImpactPart,
    query: int,
    candidates: Sequence[np.ndarray],
    weights: tuple[float, float],
    ranks: np.ndarray,
    k: int,
    excluded: int | None,
    threshold: float,
) -> Outcome:
    """The exact top ``k`` of the kept rows of one query, which ``candidates`` have first, then their impact sums."""
    rows, sums = candidates[:2]
    if excluded is not None:
        kept = rows != excluded
        rows = rows[kept]
        sums = sums[kept]
    dense_weight, impact_weight = weights
    # The same operations in the same order as certified_topk, so that scores are bit-identical.
    scores = np.zeros(len(rows)) + dense_weight * dense.scores(query, rows)
    scores += impact_weight * (sums / impact.unit)
    best = best_positions(scores, ranks[rows], k)

    # Documents that were not kept have scores strictly below the last hit, or below what other segments have found.
    documents = dense.documents
    bound = -np.inf
    if len(rows) < documents:
        last_score = scores[best[-1]] if len(best) == k else -np.inf
        # The next lower number, because the bound of a certified list is below its last score.
        bound = float(np.nextafter(max(last_score, threshold), -np.inf))
    return Outcome(rows[best], scores[best], True, (documents, documents), len(rows), bound)


def summed_top(
    impact: ImpactPart,
    postings: PostingsSearcher,
    ranks: np.ndarray,
    k: int,
    excluded: Sequence[int | None],
    threads: int,
) -> list[Outcome]:
    """The ``k`` best documents of each query by impacts alone. The sums of the postings are exact and ties are already
    in docid order, so nothing is rescored."""
    # One more where a row is left out later.
    count = k + any(row is not None for row in excluded)
    documents = len(ranks) if impact.allowed is None else len(impact.allowed)
    lists = postings.top(impact.impact_queries, count, threads, True, impact.allowed)
    outcomes = []
    for (rows, sums), excluded_row in zip(lists, excluded, strict=True):
        listed = len(rows)
        if excluded_row is not None:
            kept = rows != excluded_row
            rows = rows[kept]
            sums = sums[kept]
        scores = sums[:k] / impact.unit
        # Unseen documents may tie with the last hit; they follow it in docid order.
        bound = 0.0
        if listed == count < documents:
            bound = float(scores[-1])
        outcomes.append(Outcome(rows[:k], scores, True, (listed,), listed, bound))
    return outcomes


def _slack(
    dense: DensePart, impact: ImpactPart, query: int, weights: tuple[float, float], unit: float
) -> float:
    """Upper bound on the error of a float32 sum: that of the dense part, plus a few units in the last place of the
    largest intermediate value."""
    dense_weight, _ = weights
    largest = dense_weight * dense.length(query) * dense.dense.longest
    # An impact of a document is at most 255.
    largest += unit * 255.0 * float(impact.impact_queries[query].impacts.sum())
    # Twice: the k-th sum may be too high, and the sum of another row too low.
    return 2 * (dense_weight * dense.error(query) + 2.0**-21 * largest)
