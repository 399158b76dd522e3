"""The OT part: Lucene proposes, the forward index decides, in exact integers.

An impact score is the inner product of two vectors of small integers. In real units it is that integer divided
by the square of the index's scale, because both sides were multiplied by the scale before rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from dupmae_ir.search.certified_topk import Candidates

if TYPE_CHECKING:
    import scipy.sparse as sp

MOST_TERMS = 1024
"""Lucene refuses a query of more clauses."""


class ImpactQuery(NamedTuple):
    """Vocabulary ids (m,) int64, ascending, and their impacts (m,) int64, each 1..255."""

    ids: np.ndarray
    impacts: np.ndarray


class Postings(Protocol):
    """What finds documents: Lucene, or a stand-in in tests."""

    def top(self, queries: list[dict[str, int]], k: int, threads: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """The ``k`` best rows of each query and their integer scores, best first; rows without a common term never."""


class Forward(Protocol):
    """The impacts of each row."""

    def scores(self, rows: np.ndarray, query_ids: np.ndarray, query_impacts: np.ndarray) -> np.ndarray:
        """Exact integer inner products of (m,) rows with one query: (m,) int64."""


def quantise(ot: sp.csr_matrix, scale: float) -> list[ImpactQuery]:
    """(q, V) float OT weights -> impacts, as for documents: ``rint(w * scale)``, at most 255, zeros dropped."""
    from dupmae_ir.index.quantisation import quantise as quantised

    impacts, _ = quantised(ot, scale)
    rows = zip(impacts.indptr[:-1], impacts.indptr[1:], strict=True)
    return [
        ImpactQuery(impacts.indices[start:end].astype(np.int64), impacts.data[start:end].astype(np.int64))
        for start, end in rows
    ]


class ImpactIndex:
    """Postings and the forward index of the same impacts; ``terms[id]`` is how Lucene knows a vocabulary id.

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
        """Where candidates come from."""
        return self._open_postings()

    def queries(self, queries: list[ImpactQuery], threads: int = 1, raw: bool = False) -> ImpactPart:
        """The impact part of a search for quantised queries, in real units or, ``raw``, in integers."""
        return ImpactPart(self, queries, threads, 1.0 if raw else self.scale**2)


class ImpactPart:
    """One batch of queries against an :class:`ImpactIndex`; a :class:`~dupmae_ir.search.certified_topk.Part`.

    Scores are exact integer sums divided by ``unit``.
    """

    def __init__(self, index: ImpactIndex, queries: list[ImpactQuery], threads: int, unit: float) -> None:
        self.index = index
        self.impact_queries = queries
        self.threads = threads
        self.unit = unit

    def top(self, queries: Sequence[int], depth: int) -> list[Candidates]:
        asked = [query for query in queries if len(self.impact_queries[query].ids)]
        lists = self.index.postings.top([self._terms(query) for query in asked], depth, self.threads) if asked else []
        found = dict(zip(asked, lists, strict=True))
        return [self._candidates(*found[query], depth) if query in found else _NOTHING for query in queries]

    def scores(self, query: int, rows: np.ndarray) -> np.ndarray:
        q = self.impact_queries[query]
        return self.index.forward.scores(rows, q.ids, q.impacts) / self.unit

    def terms(self) -> list[dict[str, int]]:
        """Every query as Lucene and the postings know it: terms and their weights."""
        return [self._terms(query) for query in range(len(self.impact_queries))]

    def _terms(self, query: int) -> dict[str, int]:
        q = self.impact_queries[query]
        return {self.index.terms[i]: int(w) for i, w in zip(q.ids, q.impacts, strict=True)}

    def _candidates(self, rows: np.ndarray, sums: np.ndarray, depth: int) -> Candidates:
        """An exhausted list bounds the rest by 0: they have no term in common with the query."""
        exhausted = len(rows) < depth or len(rows) == self.index.documents
        bound = 0.0 if exhausted else _ceiling(int(sums.min())) / self.unit
        return Candidates(rows.astype(np.int64), bound, exhausted)


_NOTHING = Candidates(np.zeros(0, np.int64), 0.0, True)


def _ceiling(score: int) -> int:
    """The highest true sum behind a Lucene score: Lucene returns float32, exact to 2**24 and rounded above."""
    return score if score < 2**24 else score + (score >> 22)
