"""Certified top-k search for a sum of inner products (DupMAE, Eq. 12).

``s(q, d) = <cls_q, cls_d> + <ot_q, ot_d>``: the sum of a dense and an impact score, which neither faiss nor Lucene can
rank directly. :func:`exact_top` retrieves the top ``depth`` candidates of each part, scores their union exactly, and
compares the k-th best score with an upper bound on any unseen document:

    bound = highest dense score outside the dense list + highest impact score outside the impact list

If the k-th score is strictly greater, the list is exact (*certified*); otherwise ``depth`` doubles. Strictly, because
an unseen document with an equal score could precede the k-th by docid. A dense or an impact search alone is the same
search with one part, which also resolves ties at the k-th place.

A search can be restricted to some rows: the parts then list only these, the bound is about these, and the certificate
holds for the best ``k`` of them.

This is Fagin's threshold algorithm with sorted access in batches, followed by random access to the missing scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from dupmae_ir.index.format.row_set import RowSet, row_set
from dupmae_ir.search.exact.hits import best_positions

SCAN_SHARE = 2
"""At a depth of ``documents / SCAN_SHARE``, scoring the complete collection is cheaper than two deep lists."""


class Candidates(NamedTuple):
    """The best rows of one part for one query, in any order.

    ``bound``: no (allowed) row outside ``rows`` has a higher score in this part; inf for a part that has no bound at
    any depth.
    ``complete``: a deeper search adds nothing.
    """

    rows: np.ndarray
    bound: float
    complete: bool


class Part(Protocol):
    """One summand of the score, for a batch of queries (numbered from 0) over documents (numbered from 0).

    A part that is restricted to some rows lists only these.
    """

    def top(self, queries: Sequence[int], depth: int) -> list[Candidates]:
        """At least the ``depth`` best rows of each query as this part ranks them; fewer if there are no more."""

    def scores(self, query: int, rows: np.ndarray) -> np.ndarray:
        """Exact scores of (m,) rows: (m,) float64; a row's score does not depend on the other rows."""


@dataclass(frozen=True)
class Weighted:
    """A part multiplied by a positive weight; both weights are 1 in Eq. 12."""

    part: Part
    weight: float

    def top(self, queries: Sequence[int], depth: int) -> list[Candidates]:
        """The part's candidates, with weighted bounds."""
        weighted = []
        for candidates in self.part.top(queries, depth):
            weighted.append(candidates._replace(bound=self.weight * candidates.bound))
        return weighted

    def scores(self, query: int, rows: np.ndarray) -> np.ndarray:
        """The part's exact scores, weighted."""
        return self.weight * self.part.scores(query, rows)


@dataclass(frozen=True)
class Outcome:
    """The top documents of one query and the evidence for them.

    ``rows``, ``scores``: best first. ``exact``: certified. ``depths``: length of each part's list, in the order of
    the parts. ``candidates``: documents scored. ``bound``: upper bound on the score of an unseen document
    (-inf: every document was scored; inf: a part is approximate).
    """

    rows: np.ndarray
    scores: np.ndarray
    exact: bool
    depths: tuple[int, ...]
    candidates: int
    bound: float


def exact_top(
    parts: Sequence[Part],
    queries: int,
    ranks: np.ndarray,
    k: int,
    *,
    excluded: Sequence[int | None] | None = None,
    floor: float = -np.inf,
    max_depth: int = 0,
    allowed: np.ndarray | RowSet | None = None,
    first: int = 0,
) -> list[Outcome]:
    """The ``k`` best documents of each of ``queries`` queries by the sum of their parts.

    Args:
        parts: the summands.
        queries: number of queries.
        ranks: (documents,), the rank of each row's docid among all docids, which breaks ties.
        k: documents per query.
        excluded: a row to leave out, per query (the query itself, in collections that contain it).
        floor: a hit must score more than this (0 for impacts: a document without a common term is no hit).
        max_depth: longest list, 0 for no limit. A query that needs more, or has no bound, gets ``exact=False``.
        allowed: the rows to which the search and the ``parts`` are restricted: (documents,) bool; None for all.
        first: length of the first lists, of parts that list whole collections; 0 scores these instead of deep lists.
    """
    selection = row_set(allowed, len(ranks))
    searched_rows = np.arange(len(ranks)) if selection is None else selection.rows
    documents = len(ranks) if selection is None else len(selection)
    excluded_rows = excluded or [None] * queries

    outcomes: dict[int, Outcome] = {}
    pending = list(range(queries))
    # (part, query) -> a list that cannot grow.
    complete: dict[tuple[int, int], Candidates] = {}
    depth = min(_limit_depth(first or first_depth(k), max_depth), documents)
    while pending:
        # A limit of the depth, or lists that have a first length, are kept to instead of scoring everything.
        scan_is_cheaper = depth * SCAN_SHARE >= documents and not max_depth and not first
        everything = depth >= documents or scan_is_cheaper
        if everything and not first:
            lists = [[Candidates(searched_rows, -np.inf, True)] * len(pending)] * len(parts)
        else:
            lists = _deepen(parts, pending, min(depth, documents), complete)

        last_round = everything or depth == max_depth
        for position, query in enumerate(pending):
            candidates = [part_lists[position] for part_lists in lists]
            outcome = _judge(
                parts, query, candidates, ranks, documents, k, excluded_rows[query], floor
            )
            # Without a bound no depth certifies the list, so the first round is final.
            if outcome.exact or last_round or outcome.bound == np.inf:
                outcomes[query] = outcome
        # Doubled, so that all rounds together cost at most twice the last one.
        pending = [query for query in pending if query not in outcomes]
        depth = _limit_depth(2 * depth, max_depth)
    return [outcomes[query] for query in range(queries)]


def first_depth(k: int) -> int:
    """The depth of the first round: some slack over ``k``, so that a tie at the k-th place rarely needs a second."""
    return 2 * k + 10


def _limit_depth(depth: int, limit: int) -> int:
    """``depth``, at most ``limit`` unless that is 0."""
    if not limit:
        return depth
    return min(depth, limit)


def _deepen(
    parts: Sequence[Part],
    pending: list[int],
    depth: int,
    complete: dict[tuple[int, int], Candidates],
) -> list[list[Candidates]]:
    """Lists of each part for the pending queries. A list that cannot grow is kept in ``complete``."""
    lists = []
    for number, part in enumerate(parts):
        growing = [query for query in pending if (number, query) not in complete]
        deepened: dict[int, Candidates] = {}
        if growing:
            deepened = dict(zip(growing, part.top(growing, depth), strict=True))
        part_lists = []
        for query in pending:
            if query in deepened:
                candidates = deepened[query]
            else:
                candidates = complete[number, query]
            if candidates.complete:
                complete[number, query] = candidates
            part_lists.append(candidates)
        lists.append(part_lists)
    return lists


def _judge(
    parts: Sequence[Part],
    query: int,
    candidates: list[Candidates],
    ranks: np.ndarray,
    documents: int,
    k: int,
    excluded: int | None,
    floor: float,
) -> Outcome:
    """Score the union of one query's candidates exactly, and compare the k-th score with the bound on the rest."""
    if len(candidates) == 1:
        rows = candidates[0].rows
    else:
        rows = np.unique(np.concatenate([part_list.rows for part_list in candidates]))
    seen = len(rows)
    # If the union contains every document, nothing is unseen.
    bound = -np.inf
    if seen < documents:
        bound = float(sum(part_list.bound for part_list in candidates))

    # Left out after ``seen`` was counted: the row was seen, it is only no hit.
    if excluded is not None:
        rows = rows[rows != excluded]
    # Summed in the order of the parts, as in one_pass: another order could change the last bit.
    scores = np.zeros(len(rows))
    for part in parts:
        scores += part.scores(query, rows)
    above_floor = scores > floor
    rows = rows[above_floor]
    scores = scores[above_floor]
    best = best_positions(scores, ranks[rows], k)

    kth = -np.inf
    if len(best) == k:
        kth = float(scores[best[-1]])
    # There are no hits below the floor, so a list that contains all hits is certified as well.
    exact = bound <= floor or kth > bound
    depths = tuple(len(part_list.rows) for part_list in candidates)
    return Outcome(rows[best], scores[best], exact, depths, seen, bound)
