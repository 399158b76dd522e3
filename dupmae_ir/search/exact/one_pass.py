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
from dupmae_ir.search.candidates.dense import DensePart, inner_products
from dupmae_ir.search.candidates.impact import ImpactPart
from dupmae_ir.search.candidates.rotated_dense import Best, Impacts, RotatedPart
from dupmae_ir.search.exact.certified_topk import Outcome
from dupmae_ir.search.exact.hits import best_positions

if TYPE_CHECKING:
    from dupmae_ir.index.postings.searcher import PostingsSearcher

MOST_HITS = 1 << 14
"""Deeper lists are left to certified_topk: the memory for kept documents grows with the depth."""


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
    the parts know the rows to search. None for a query with too many ties to keep. Documents that what was ``found`` in
    other segments excludes are not listed.
    """
    unit = weights[1] / impact.unit
    slacks = np.array([_slack(dense, impact, q, weights, unit) for q in range(len(dense.vectors))])
    count = k + any(e is not None for e in excluded)
    if not isinstance(dense, RotatedPart) or not dense.excludes(len(slacks), postings.window):
        products = partial(
            dense.products, np.ascontiguousarray(np.float32(weights[0]) * dense.vectors)
        )
        count = min(count, dense.documents)
        with blas_threads(threads):
            best = postings.best_sums(
                impact.terms(), products, unit, slacks, count, threads, dense.allowed
            )
    else:
        impacts = Impacts(postings.files, postings.window, postings.packed(impact.terms()), unit)
        best = dense.best_sums(range(len(slacks)), count, weights[0], impacts, slacks, found)
    least = [found.get((q, count), (-np.inf,))[0] for q in range(len(slacks))]
    return [
        None
        if some is None
        else _rescored(dense, impact, q, some, weights, ranks, k, excluded[q], least[q])
        for q, some in enumerate(best)
    ]


def _rescored(
    dense: DensePart,
    impact: ImpactPart,
    query: int,
    candidates: Sequence[np.ndarray],
    weights: tuple[float, float],
    ranks: np.ndarray,
    k: int,
    excluded: int | None,
    least: float,
) -> Outcome:
    """The exact top ``k`` of the kept rows of one query, with their integer impact sums."""
    rows, sums = candidates[:2]
    if excluded is not None:
        rows, sums = rows[rows != excluded], sums[rows != excluded]
    # The same operations in the same order as certified_topk, so that scores are bit-identical.
    scores = np.zeros(len(rows)) + weights[0] * inner_products(
        dense.vectors[query], dense.dense.vectors, rows
    )
    scores += weights[1] * (sums / impact.unit)
    best = best_positions(scores, ranks[rows], k)
    # Documents that were not kept have scores strictly below the last hit, or what another segment has excluded.
    documents, last = dense.documents, scores[best[-1]] if len(best) == k else -np.inf
    bound = float(np.nextafter(max(last, least), -np.inf)) if len(rows) < documents else -np.inf
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
    count = k + any(e is not None for e in excluded)
    documents = len(ranks) if impact.allowed is None else len(impact.allowed)
    lists = postings.top(impact.terms(), count, threads, True, impact.allowed)
    outcomes = []
    for (rows, sums), skip in zip(lists, excluded, strict=True):
        others = rows != skip if skip is not None else slice(None)
        best, scores = rows[others][:k], sums[others][:k] / impact.unit
        # Unseen documents may tie with the last hit; they follow it in docid order.
        bound = float(scores[-1]) if len(rows) == count < documents else 0.0
        outcomes.append(Outcome(best, scores, True, (len(rows),), len(rows), bound))
    return outcomes


def _slack(
    dense: DensePart, impact: ImpactPart, query: int, weights: tuple[float, float], unit: float
) -> float:
    """Upper bound on the error of a float32 sum: that of the dense part, plus a few units in the last place of the
    largest intermediate value."""
    largest = weights[0] * dense.length(query) * dense.dense.longest
    largest += unit * 255.0 * float(impact.impact_queries[query].impacts.sum())
    return 2 * (weights[0] * dense.error(query) + 2.0**-21 * largest)
