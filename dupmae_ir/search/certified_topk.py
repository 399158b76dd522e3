"""The exact top k of a sum of inner products (DupMAE Eq. 12), and the proof that nothing was missed.

``s(q, d) = <cls_q, cls_d> + <ot_q, ot_d>``: the sum of a dense and an impact score. Neither faiss nor Lucene can
search the sum, so take the best ``depth`` of both, score every document of the union exactly, and compare with
what a document in neither list could reach at most:

    bound = most a document outside the dense list can score + most one outside the impact list can score

When the k-th best score is above the bound, no unseen document belongs to the top k: the list is *certified*.
It must be above, not equal: an unseen document may tie with the k-th and come first by docid. Otherwise go deeper.
A dense or an impact search alone is the same thing with one part, which settles ties at the k-th place too.

This is Fagin's threshold argument with ranked lists only, followed by random access to the missing halves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from dupmae_ir.search.ordering import best_positions

SCAN = 2
"""From ``documents / SCAN`` on, scoring the whole collection is cheaper than two deep lists."""


class Candidates(NamedTuple):
    """The best rows of one part for one query, in any order.

    ``bound``: no row outside ``rows`` scores more in this part; inf from a part that cannot say at any depth.
    ``complete``: asking deeper adds nothing.
    """

    rows: np.ndarray
    bound: float
    complete: bool


class Part(Protocol):
    """One summand of the score, for a batch of queries (numbered from 0) over documents (numbered from 0)."""

    def top(self, queries: Sequence[int], depth: int) -> list[Candidates]:
        """At least the ``depth`` best rows of each query as this part ranks them, fewer when there are no more."""

    def scores(self, query: int, rows: np.ndarray) -> np.ndarray:
        """Exact scores of (m,) rows: (m,) float64, the same for a row in whatever company it is asked."""


@dataclass(frozen=True)
class Weighted:
    """A part times a positive number; Eq. 12 has 1 for both."""

    part: Part
    weight: float

    def top(self, queries: Sequence[int], depth: int) -> list[Candidates]:
        return [found._replace(bound=self.weight * found.bound) for found in self.part.top(queries, depth)]

    def scores(self, query: int, rows: np.ndarray) -> np.ndarray:
        return self.weight * self.part.scores(query, rows)


@dataclass(frozen=True)
class Outcome:
    """The answer to one query and what it rests on.

    ``rows``, ``scores``: best first. ``exact``: certified. ``depths``: length of each part's list, in the order of
    the parts. ``candidates``: documents scored. ``bound``: what an unseen document may reach at most
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
) -> list[Outcome]:
    """The ``k`` best documents of each of ``queries`` queries by the sum of their parts.

    ``ranks`` (documents,): the place of each row's docid among all, which decides ties. ``excluded``: a row that
    must not appear, per query (the query itself, in collections that hold it). ``floor``: a document must score
    more than this to be a hit (0 for impacts: a document without a common term is none). ``max_depth``: longest
    list to ask for, 0 for no limit; a query that would need more comes back with ``exact=False``, and so does one
    whose bound is infinite, after one look.
    """
    documents = len(ranks)
    done: dict[int, Outcome] = {}
    pending = list(range(queries))
    complete: dict[tuple[int, int], Candidates] = {}
    skip = excluded or [None] * queries
    depth = min(_limited(first_depth(k), max_depth), documents)
    while pending:
        everything = depth >= documents or (depth * SCAN >= documents and not max_depth)
        lists = None if everything else _deepen(parts, pending, depth, complete)
        last = everything or depth == max_depth
        for place, query in enumerate(pending):
            found = [_everything(documents) for _ in parts] if lists is None else [part[place] for part in lists]
            outcome = _judge(parts, query, found, ranks, k, skip[query], floor)
            # What one part cannot bound, no depth certifies: one look is the answer.
            if outcome.exact or last or outcome.bound == np.inf:
                done[query] = outcome
        pending = [query for query in pending if query not in done]
        depth = _limited(2 * depth, max_depth)
    return [done[query] for query in range(queries)]


def first_depth(k: int) -> int:
    """How deep to look first: some slack over ``k``, so that a tie at the k-th place rarely costs a second look."""
    return 2 * k + 10


def _limited(depth: int, limit: int) -> int:
    return min(depth, limit) if limit else depth


def _deepen(
    parts: Sequence[Part], pending: list[int], depth: int, complete: dict[tuple[int, int], Candidates]
) -> list[list[Candidates]]:
    """Lists of each part for the pending queries; a list that cannot grow is kept in ``complete``, not asked again."""
    lists = []
    for p, part in enumerate(parts):
        asked = [query for query in pending if (p, query) not in complete]
        fresh = dict(zip(asked, part.top(asked, depth), strict=True)) if asked else {}
        complete.update({(p, query): found for query, found in fresh.items() if found.complete})
        lists.append([fresh[query] if query in fresh else complete[p, query] for query in pending])
    return lists


def _everything(documents: int) -> Candidates:
    return Candidates(np.arange(documents), -np.inf, True)


def _judge(
    parts: Sequence[Part],
    query: int,
    found: list[Candidates],
    ranks: np.ndarray,
    k: int,
    excluded: int | None,
    floor: float,
) -> Outcome:
    rows = found[0].rows if len(found) == 1 else np.unique(np.concatenate([f.rows for f in found]))
    # A part that has shown every document bounds the sum, too: there is nothing unseen.
    bound = -np.inf if len(rows) >= len(ranks) else float(sum(f.bound for f in found))
    seen = len(rows)
    if excluded is not None:
        rows = rows[rows != excluded]
    scores = np.zeros(len(rows))
    for part in parts:
        scores += part.scores(query, rows)
    hit = scores > floor
    rows, scores = rows[hit], scores[hit]
    best = best_positions(scores, ranks[rows], k)
    # Below the floor there are no hits, so a list may also be certified by having them all.
    kth = float(scores[best[-1]]) if len(best) == k else -np.inf
    exact = bound <= floor or kth > bound
    return Outcome(rows[best], scores[best], exact, tuple(len(f.rows) for f in found), seen, bound)
