"""The impact part of a score: candidates from Lucene or postings, exact integer scores from the forward index.

An impact score is the inner product of two vectors of small integers. In real units it is that integer divided
by the square of the index's scale, because both sides were multiplied by the scale before rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from dupmae_ir.index.format.row_set import RowSet, row_set
from dupmae_ir.search.exact.certified_topk import Candidates

if TYPE_CHECKING:
    from dupmae_ir.index.format.forward import Forward


class ImpactQuery(NamedTuple):
    """Vocabulary ids (m,) int64, ascending, and their impacts (m,) int64, each 1..255."""

    ids: np.ndarray
    impacts: np.ndarray


class Postings(Protocol):
    """A source of candidates: Lucene, the postings, or a fake in tests."""

    def top(
        self,
        queries: list[dict[str, int]],
        k: int,
        threads: int = 1,
        by_docid: bool = False,
        allowed: RowSet | None = None,
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """The ``k`` best (allowed) rows of each query and their integer scores, best first; only rows with a common
        term."""


class ImpactIndex:
    """Postings and the forward index of the same impacts; ``terms[id]`` is Lucene's term for a vocabulary id.

    ``open_postings`` is called when candidates are first needed: scoring and explaining need no JVM.
    """

    def __init__(
        self,
        open_postings: Callable[[], Postings],
        forward: Forward,
        terms: Sequence[str],
        scale: float,
        documents: int,
    ) -> None:
        self._open_postings = open_postings
        self.forward = forward
        self.terms = terms
        self.scale = scale
        self.documents = documents

    @cached_property
    def postings(self) -> Postings:
        """The source of candidates."""
        return self._open_postings()

    def queries(
        self,
        queries: list[ImpactQuery],
        threads: int = 1,
        raw: bool = False,
        allowed: np.ndarray | RowSet | None = None,
    ) -> ImpactPart:
        """The impact part of a search for quantised queries, in real units or, with ``raw``, in integers.

        ``allowed``: the rows to search, (n,) bool; None for all.
        """
        unit = 1.0 if raw else self.scale**2
        return ImpactPart(self, queries, threads, unit, row_set(allowed, self.documents))


class ImpactPart:
    """One batch of queries against an :class:`ImpactIndex`; a :class:`~dupmae_ir.search.exact.certified_topk.Part`.

    Scores are exact integer sums divided by ``unit``.
    """

    def __init__(
        self,
        index: ImpactIndex,
        queries: list[ImpactQuery],
        threads: int,
        unit: float,
        allowed: RowSet | None = None,
    ) -> None:
        self.index = index
        self.allowed = allowed
        self.impact_queries = queries
        self.threads = threads
        self.unit = unit

    def top(self, queries: Sequence[int], depth: int) -> list[Candidates]:
        """The ``depth`` best rows of each query; none for a query without terms."""
        with_terms = [query for query in queries if len(self.impact_queries[query].ids)]
        lists = {}
        if with_terms:
            terms = [self._terms(query) for query in with_terms]
            hits = self.index.postings.top(terms, depth, self.threads, allowed=self.allowed)
            lists = dict(zip(with_terms, hits, strict=True))
        candidates = []
        for query in queries:
            if query in lists:
                rows, sums = lists[query]
                candidates.append(self._candidates(rows, sums, depth))
            else:
                candidates.append(_NOTHING)
        return candidates

    def scores(self, query: int, rows: np.ndarray) -> np.ndarray:
        """Exact scores of (m,) rows: (m,) float64."""
        ids, impacts = self.impact_queries[query]
        # Sums of integers, so the only rounding is that of this division.
        return self.index.forward.scores(rows, ids, impacts) / self.unit

    def _terms(self, query: int) -> dict[str, int]:
        """A query as Lucene takes it: terms and their weights."""
        ids, impacts = self.impact_queries[query]
        terms = self.index.terms
        # A segment without documents in additional languages lacks the terms of these.
        return {
            terms[i]: int(impact) for i, impact in zip(ids, impacts, strict=True) if i < len(terms)
        }

    def _candidates(self, rows: np.ndarray, sums: np.ndarray, depth: int) -> Candidates:
        """If the list is exhausted, the bound is 0: other rows have no term in common with the query."""
        documents = self.index.documents if self.allowed is None else len(self.allowed)
        exhausted = len(rows) < depth or len(rows) == documents
        bound = 0.0 if exhausted else _ceiling(int(sums.min())) / self.unit
        return Candidates(rows.astype(np.int64), bound, exhausted)


_NOTHING = Candidates(np.zeros(0, np.int64), 0.0, True)


def _ceiling(score: int) -> int:
    """The highest true sum that Lucene may return as ``score``: float32 is exact to 2**24 and rounded above."""
    if score < 2**24:
        return score
    # 2**-22 of the score: more than the rounding of the sum.
    return score + (score >> 22)
