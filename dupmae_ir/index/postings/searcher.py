"""Search by postings: exact sums of impacts of many queries, window by window.

:mod:`dupmae_ir.index.postings.format` describes the files.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from types import ModuleType

import numpy as np

from dupmae_ir.device import need_packages, pays
from dupmae_ir.errors import UsageError
from dupmae_ir.index.format.quantisation import HIGHEST_IMPACT
from dupmae_ir.index.format.row_set import RowSet
from dupmae_ir.index.postings.compiling import ALL, Files, Kept, Queries
from dupmae_ir.index.postings.format import ImpactSegment, folder_of, open_postings

HIGHEST_SCORE = (1 << 31) - 1
_TOGETHER = 64
"""Queries searched together, so that a window is read from memory once for all of them."""
_KEYS = 1 << 23
"""Candidates that one thread keeps at a time, for all of its queries: 64 MB."""
_SPARE_ROWS = 4096
"""Rows that a list of best sums may contain beyond four times ``k``."""

FEW = 64
"""At most one allowed row in this many is scored by the forward index rather than by postings."""
SLACK = 256
"""Keys that a list of candidates must have room for beyond the ``k`` best, so that a group always fits."""

Others = Callable[[slice | np.ndarray], np.ndarray]


class PostingsSearcher:
    """Exact inner products of impact queries with the documents of a segment.

    Same contract as :class:`~dupmae_ir.index.lucene.impacts.ImpactSearcher`, except that scores are exact to 2**31 and
    that a query may have any number of terms. ``docid_ranks`` returns (n,) int64, the rank of each row's id among all
    ids; it is called only for ``by_docid``. Raises :class:`IndexMismatch` for postings that are missing, damaged, or
    made from another segment, and :class:`EnvironmentProblem` without numba.
    """

    def __init__(self, segment: ImpactSegment, docid_ranks: Callable[[], np.ndarray]) -> None:
        need_packages("search by postings", ("numba", "threadpoolctl"), "speed")
        self.folder = folder_of(segment.path)
        self._segment = segment
        self._docid_ranks = docid_ranks
        self.meta, self.files = open_postings(segment)
        self.window, self.documents = self.meta.window, segment.documents

    @cached_property
    def _kernels(self) -> ModuleType:
        from dupmae_ir.index.postings import kernels

        return kernels

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {term: number for number, term in enumerate(self._segment.terms)}

    @cached_property
    def _ranks(self) -> np.ndarray:
        return np.ascontiguousarray(self._docid_ranks(), np.int64)

    @cached_property
    def _rows_by_docid(self) -> np.ndarray:
        return np.argsort(self._ranks)

    def top(
        self,
        queries: Sequence[dict[str, int]],
        k: int,
        threads: int = 1,
        by_docid: bool = False,
        allowed: RowSet | None = None,
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """The ``k`` best (allowed) rows of each query and their scores: (m,) int64 twice, m <= k, best first.

        As :meth:`ImpactSearcher.top`: rows that share no term are never returned, and equal scores come in row order,
        also at rank k; with ``by_docid`` in ascending docid order. Raises :class:`UsageError` for a weight that is
        not a positive whole number, and for a query that could score 2**31 or more. ``threads`` groups of queries run
        at a time.
        """
        if k < 1:
            raise UsageError(f"the number of hits must be at least 1, got {k}")
        queries = list(queries)
        k = max(1, min(k, self.documents))
        compiled = pays(len(queries) * self.documents)
        room = max(k, min(2 * k, self.documents)) + SLACK
        share = -(-len(queries) // max(1, threads))
        together = max(1, min(_TOGETHER, share, _KEYS // room))
        groups = [
            self.packed(queries[start : start + together])
            for start in range(0, len(queries), together)
        ]

        def search(group: Queries) -> list[tuple[np.ndarray, np.ndarray]]:
            if not compiled or (allowed is not None and self._few(allowed)):
                return self._scored(group, k, by_docid, allowed)
            return self._search(group, k, room, by_docid, allowed)

        if threads <= 1 or len(groups) < 2:
            return [found for group in groups for found in search(group)]

        if by_docid:
            _ = self._rows_by_docid  # once, not by each thread
        with ThreadPoolExecutor(min(threads, len(groups))) as pool:
            return [found for part in pool.map(search, groups) for found in part]

    def _few(self, allowed: RowSet) -> bool:
        return len(allowed) * FEW <= self.documents

    def _scored(
        self, queries: Queries, k: int, by_docid: bool, allowed: RowSet | None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """As :meth:`_search`, by the scores of every allowed row, without compiled loops over postings."""
        rows = np.arange(self.documents) if allowed is None else allowed.rows
        places = self._ranks[rows] if by_docid else rows
        found = []
        for terms, weights in _each(queries):
            scores = self._row_sums(terms, weights, allowed)
            keys = (scores << 32) | ((1 << 32) - 1 - places)
            found.append(_ranked(keys[scores > 0], k, self._rows_by_docid if by_docid else None))
        return found

    def _row_sums(
        self, terms: np.ndarray, weights: np.ndarray, allowed: RowSet | None
    ) -> np.ndarray:
        """Sums of impacts of every allowed row, int64: from the forward index for few rows, otherwise from postings."""
        if allowed is not None and self._few(allowed):
            return self._segment.forward.scores(allowed.rows, terms, weights)
        sums = np.zeros(self.documents, np.int64)
        for w, first in enumerate(range(0, self.documents, self.window)):
            _add_window(self.files, w, terms, weights, sums[first : first + self.window])
        return sums if allowed is None else sums[allowed.rows]

    def _search(
        self, queries: Queries, k: int, room: int, by_docid: bool, allowed: RowSet | None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        ranks = self._ranks if by_docid else np.zeros(0, np.int64)
        mask = ALL if allowed is None else allowed.mask
        count = len(queries.starts) - 1
        keys, counts = np.empty((count, room), np.int64), np.zeros(count, np.int64)
        self._kernels.search(
            self.files, self.window, self.documents, queries, ranks, mask, k, keys, counts
        )
        rows_of = self._rows_by_docid if by_docid else None
        return [_ranked(keys[q, :found], k, rows_of) for q, found in enumerate(counts.tolist())]

    def best_sums(
        self,
        queries: Sequence[dict[str, int]],
        others: Others,
        unit: float,
        slacks: np.ndarray,
        k: int,
        threads: int = 1,
        allowed: RowSet | None = None,
    ) -> Sequence[Sequence[np.ndarray] | None]:
        """Candidates for the ``k`` best rows by another score plus ``unit`` times the integer sum of impacts.

        Returns for each query the rows (m,) int64, ascending, and their integer sums (m,) int64: every row that can be
        among the ``k`` best, at least ``k`` if the index has as many. None for a query with too many rows that the
        error bound cannot separate.

        Args:
            queries: maps of terms to positive integer weights.
            others: returns the other score of m rows (a slice or their numbers): (q, m) float32, which is modified.
            unit: what one unit of the integer sum adds to the score.
            slacks: (q,) the largest error of the other score and of one float32 addition.
            k: number of best rows.
            threads: groups of queries searched at a time.
            allowed: the rows to search.
        """
        if (allowed is not None and self._few(allowed)) or not pays(len(queries) * self.documents):
            return self._plain_sums(self.packed(queries), others, unit, slacks, k, allowed)
        room, count = min(4 * k, self.documents) + _SPARE_ROWS, len(queries)
        rows, sums = np.empty((count, room), np.int32), np.empty((count, room), np.int32)
        kept = Kept(rows, sums, np.empty((count, room), np.float32))
        counts = self._keep(kept, queries, others, unit, slacks, k, threads, allowed)
        return [
            None
            if found < 0
            else _within(rows[q, :found], sums[q, :found], kept.totals[q, :found], k, slacks[q])
            for q, found in enumerate(counts.tolist())
        ]

    def _keep(
        self,
        kept: Kept,
        queries: Sequence[dict[str, int]],
        others: Others,
        unit: float,
        slacks: np.ndarray,
        k: int,
        threads: int,
        allowed: RowSet | None,
    ) -> np.ndarray:
        """Fill ``kept``, window by window; returns the number of rows of each query, -1 where there was no room."""
        count = len(queries)
        shares = [
            slice(start, start + -(-count // threads))
            for start in range(0, count, -(-count // threads))
        ]
        groups = [self.packed(queries[share]) for share in shares]
        counts, floors = np.zeros(count, np.int64), np.full(count, -np.inf)

        def one(share: slice, group: Queries, w: int, scores: np.ndarray) -> None:
            own = Kept(kept.rows[share], kept.sums[share], kept.totals[share])
            fixed = (w, self.files, self.window, self.documents, group, unit)
            self._kernels.search_sum(
                *fixed, scores[share], k, slacks[share], own, counts[share], floors[share]
            )

        with ThreadPoolExecutor(len(groups)) as pool:  # starts threads when they get work
            for w, first in enumerate(range(0, self.documents, self.window)):
                scores = _in_window(
                    others, first, min(first + self.window, self.documents), count, allowed
                )
                if scores is not None:
                    each = map if len(groups) == 1 else pool.map
                    list(each(one, shares, groups, itertools.repeat(w), itertools.repeat(scores)))
        return counts

    def _plain_sums(
        self,
        queries: Queries,
        others: Others,
        unit: float,
        slacks: np.ndarray,
        k: int,
        allowed: RowSet | None,
    ) -> list[tuple[np.ndarray, np.ndarray] | None]:
        """As :meth:`best_sums`, by the sums of every allowed row, without compiled loops over postings."""
        asked, found = _each(queries), list[tuple[np.ndarray, np.ndarray] | None]()
        rows = np.arange(self.documents) if allowed is None else allowed.rows
        scores = others(slice(0, self.documents) if allowed is None else rows)
        for (terms, weights), other, slack in zip(asked, scores, slacks, strict=True):
            sums = self._row_sums(terms, weights, allowed)
            found.append(
                _within(rows, sums, other + sums.astype(np.float32) * np.float32(unit), k, slack)
            )
        return found

    def packed(self, queries: Sequence[dict[str, int]]) -> Queries:
        """The queries' terms that the index has, one query after the other; raises as :meth:`top` for their weights."""
        lengths = [len(query) for query in queries]
        weights = np.fromiter(
            (w for query in queries for w in query.values()), np.float64, sum(lengths)
        )
        if not ((weights >= 1) & (weights == np.rint(weights))).all():
            pairs = (pair for query in queries for pair in query.items())
            term, weight = next((t, w) for t, w in pairs if not (w >= 1 and float(w).is_integer()))
            raise UsageError(
                f"the query weight of {term!r} must be a positive whole number, got {weight!r}"
            )
        ids = self._ids
        terms = np.fromiter(
            (ids.get(t, -1) for query in queries for t in query), np.int64, sum(lengths)
        )
        known, owner = terms >= 0, np.repeat(np.arange(len(queries)), lengths)[terms >= 0]
        weights = weights[known]
        if (np.bincount(owner, weights, len(queries)) * HIGHEST_IMPACT > HIGHEST_SCORE).any():
            raise UsageError(
                "a query could score 2**31 or more, which search by postings cannot represent; scale its weights down"
            )
        starts = np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=len(queries)))))
        return Queries(starts, terms[known], weights.astype(np.int32))


def _ranked(keys: np.ndarray, k: int, rows_of: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Keys, in any order, to the ``k`` best rows and their scores."""
    best = np.sort(keys)[: -k - 1 : -1]
    places = (1 << 32) - 1 - (best & ((1 << 32) - 1))
    return places if rows_of is None else rows_of[places], best >> 32


def _add_window(
    files: Files, w: int, terms: np.ndarray, weights: np.ndarray, sums: np.ndarray
) -> None:
    """Add the impacts of a query in window ``w`` to ``sums``, (n,) int64 of the window's rows."""
    begin, columns, pointers = int(files.starts[w]), files.columns[w], files.pointers[w]
    for term, weight in zip(terms.tolist(), weights.tolist(), strict=True):
        if column := int(columns[term]):
            start = int(files.column_starts[w]) + (column - 1) * len(sums)
            sums += files.dense[start : start + len(sums)].astype(np.int64) * weight
        else:
            of, to = begin + int(pointers[term]), begin + int(pointers[term + 1])
            sums[files.rows[of:to]] += (
                files.impacts[of:to].astype(np.int64) * weight
            )  # a row has a term once


def _each(queries: Queries) -> list[tuple[np.ndarray, np.ndarray]]:
    """Terms and weights of each query."""
    parts = [slice(start, end) for start, end in itertools.pairwise(queries.starts.tolist())]
    return [(queries.terms[part], queries.weights[part]) for part in parts]


def _in_window(
    others: Others, first: int, last: int, queries: int, allowed: RowSet | None
) -> np.ndarray | None:
    """The other scores of a window's rows, -inf for rows that are not allowed; None if no row is allowed."""
    if allowed is None:
        return others(slice(first, last))
    rows = allowed.between(first, last)
    if not len(rows):
        return None
    scores = np.full((queries, last - first), -np.inf, np.float32)
    scores[:, rows - first] = others(rows)
    return scores


def _within(
    rows: np.ndarray, sums: np.ndarray, totals: np.ndarray, k: int, slack: float
) -> tuple[np.ndarray, np.ndarray]:
    """The kept rows that can still be among the ``k`` best, with their sums."""
    if k < len(totals):
        kth = np.partition(totals, len(totals) - k)[len(totals) - k]
        near = totals >= float(kth) - 2 * slack
        rows, sums = rows[near], sums[near]
    return rows.astype(np.int64), sums.astype(np.int64)
