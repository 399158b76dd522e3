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

SCAN = 2
"""At a depth of ``documents / SCAN``, scoring the whole collection is cheaper than two deep lists."""


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
        return [c._replace(bound=self.weight * c.bound) for c in self.part.top(queries, depth)]

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
    chosen = row_set(allowed, len(ranks))
    documents = len(ranks) if chosen is None else len(chosen)
    done, pending = dict[int, Outcome](), list(range(queries))
    complete: dict[tuple[int, int], Candidates] = {}
    skip = excluded or [None] * queries
    depth = min(_limited(first or first_depth(k), max_depth), documents)
    while pending:
        everything = depth >= documents or (
            depth * SCAN >= documents and not max_depth and not first
        )
        if everything and not first:
            rows = np.arange(documents) if chosen is None else chosen.rows
            lists = [[Candidates(rows, -np.inf, True)] * len(pending)] * len(parts)
        else:
            lists = _deepen(parts, pending, min(depth, documents), complete)
        last = everything or depth == max_depth
        for position, query in enumerate(pending):
            outcome = _judge(
                parts,
                query,
                [part[position] for part in lists],
                ranks,
                documents,
                k,
                skip[query],
                floor,
            )
            # Without a bound no depth certifies the list, so the first round is final.
            if outcome.exact or last or outcome.bound == np.inf:
                done[query] = outcome
        pending = [query for query in pending if query not in done]
        depth = _limited(2 * depth, max_depth)
    return [done[query] for query in range(queries)]


def first_depth(k: int) -> int:
    """The depth of the first round: some slack over ``k``, so that a tie at the k-th place rarely needs a second."""
    return 2 * k + 10


def _limited(depth: int, limit: int) -> int:
    return min(depth, limit) if limit else depth


def _deepen(
    parts: Sequence[Part],
    pending: list[int],
    depth: int,
    complete: dict[tuple[int, int], Candidates],
) -> list[list[Candidates]]:
    """Lists of each part for the pending queries. A list that cannot grow is kept in ``complete``."""
    lists = []
    for p, part in enumerate(parts):
        deepened = [query for query in pending if (p, query) not in complete]
        fresh = dict(zip(deepened, part.top(deepened, depth), strict=True)) if deepened else {}
        complete.update(
            {(p, query): candidates for query, candidates in fresh.items() if candidates.complete}
        )
        lists.append([fresh[query] if query in fresh else complete[p, query] for query in pending])
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
    rows = (
        candidates[0].rows
        if len(candidates) == 1
        else np.unique(np.concatenate([f.rows for f in candidates]))
    )
    # If the union contains every document, nothing is unseen.
    bound = -np.inf if len(rows) >= documents else float(sum(f.bound for f in candidates))
    seen = len(rows)
    if excluded is not None:
        rows = rows[rows != excluded]
    scores = np.zeros(len(rows))
    for part in parts:
        scores += part.scores(query, rows)
    hit = scores > floor
    rows, scores = rows[hit], scores[hit]
    best = best_positions(scores, ranks[rows], k)
    # There are no hits below the floor, so a list that contains all hits is certified as well.
    kth = float(scores[best[-1]]) if len(best) == k else -np.inf
    exact = bound <= floor or kth > bound
    return Outcome(
        rows[best], scores[best], exact, tuple(len(f.rows) for f in candidates), seen, bound
    )
