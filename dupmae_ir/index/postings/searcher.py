"""Search by postings: exact sums of impacts of many queries, window by window.

:mod:`dupmae_ir.index.postings.format` describes the files.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from dupmae_ir.models.heads.lexical import bucket_number

HIGHEST_SCORE = (1 << 31) - 1
_MAX_GROUP = 64
"""Queries searched together, so that a window is read from memory once for all of them."""
_MAX_KEYS = 1 << 23
"""Candidates that one thread keeps at a time, for all of its queries: 64 MB."""
_SPARE_ROWS = 4096
"""Rows that a list of best sums may contain beyond four times ``k``."""

FEW = 64
"""At most one allowed row in this many is scored by the forward index rather than by postings."""
SLACK = 256
"""Keys that a list of candidates must have room for beyond the ``k`` best, so that a group always fits."""

PostingsQuery = Mapping[str, int] | tuple[np.ndarray, np.ndarray]
"""A query: weights by term, or vocabulary ids (m,) and their weights (m,). No term is named for the latter, which takes
as long as adding up the postings of a small index."""
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
        self.window = self.meta.window
        self.documents = segment.documents

    @cached_property
    def _kernels(self) -> ModuleType:
        from dupmae_ir.index.postings import kernels

        return kernels

    def _by_id(self, query: PostingsQuery) -> tuple[np.ndarray, np.ndarray]:
        """The vocabulary ids of a query's terms, -1 for those that the index does not have, and their weights."""
        if isinstance(query, tuple):
            return query
        ids = np.fromiter(map(self._id_of, query), np.int64, len(query))
        return ids, np.fromiter(query.values(), np.float64, len(query))

    def _id_of(self, term: str) -> int:
        """The vocabulary id of a term; -1 if the index does not have it."""
        # The terms of stems are named by their ids, so no dictionary of all of them is made for a few queries.
        terms = self._segment.terms
        number = bucket_number(term)
        if number is not None and number < len(terms) and terms[number] == term:
            return number
        return self._ids.get(term, -1)

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
        queries: Sequence[PostingsQuery],
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
        # Loading the compiled loops takes longer than a small search without them.
        compiled = pays(len(queries) * self.documents)
        # Twice k: the list of candidates is cut to k whenever it is full, which should be seldom.
        room = max(k, min(2 * k, self.documents)) + SLACK
        # Small groups if there are many threads, so that every thread has one.
        queries_per_thread = math.ceil(len(queries) / max(1, threads))
        group_size = max(1, min(_MAX_GROUP, queries_per_thread, _MAX_KEYS // room))
        groups = []
        for start in range(0, len(queries), group_size):
            groups.append(self.packed(queries[start : start + group_size]))

        def search(group: Queries) -> list[tuple[np.ndarray, np.ndarray]]:
            if not compiled or (allowed is not None and self._few(allowed)):
                return self._search_rows(group, k, by_docid, allowed)
            return self._search(group, k, room, by_docid, allowed)

        if threads <= 1 or len(groups) < 2:
            return list(itertools.chain.from_iterable(map(search, groups)))
        if by_docid:
            _ = self._rows_by_docid  # once, not by each thread
        # Threads, not processes: the compiled loops release the GIL.
        with ThreadPoolExecutor(min(threads, len(groups))) as pool:
            return list(itertools.chain.from_iterable(pool.map(search, groups)))

    def _few(self, allowed: RowSet) -> bool:
        return len(allowed) * FEW <= self.documents

    def _search_rows(
        self, queries: Queries, k: int, by_docid: bool, allowed: RowSet | None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """As :meth:`_search`, by the scores of every allowed row, without compiled loops over postings."""
        rows = np.arange(self.documents) if allowed is None else allowed.rows
        # Order of rows with equal scores: by row, or by the rank of the docid.
        order = rows
        rows_of = None
        if by_docid:
            order = self._ranks[rows]
            rows_of = self._rows_by_docid
        lists = []
        for terms, weights in _terms_by_query(queries):
            scores = self._row_sums(terms, weights, allowed)
            # One number sorts by score, then by order: the score above, the complement of the order below.
            keys = (scores << 32) | ((1 << 32) - 1 - order)
            lists.append(_rank_keys(keys[scores > 0], k, rows_of))
        return lists

    def _row_sums(
        self, terms: np.ndarray, weights: np.ndarray, allowed: RowSet | None
    ) -> np.ndarray:
        """Sums of impacts of every allowed row, int64: from the forward index for few rows, otherwise from postings."""
        if allowed is not None and self._few(allowed):
            return self._segment.forward.scores(allowed.rows, terms, weights)
        sums = np.zeros(self.documents, np.int64)
        # A slice is a view: each window is added in place.
        for w, first in enumerate(range(0, self.documents, self.window)):
            _add_window(self.files, w, terms, weights, sums[first : first + self.window])
        if allowed is None:
            return sums
        return sums[allowed.rows]

    def _search(
        self, queries: Queries, k: int, room: int, by_docid: bool, allowed: RowSet | None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        # Empty arrays, not None, which would be another signature to compile.
        ranks = self._ranks if by_docid else np.zeros(0, np.int64)
        mask = ALL if allowed is None else allowed.mask
        query_count = len(queries.starts) - 1
        keys = np.empty((query_count, room), np.int64)
        key_counts = np.zeros(query_count, np.int64)
        self._kernels.search(
            self.files, self.window, self.documents, queries, ranks, mask, k, keys, key_counts
        )
        rows_of = self._rows_by_docid if by_docid else None
        lists = []
        for query, count in enumerate(key_counts.tolist()):
            lists.append(_rank_keys(keys[query, :count], k, rows_of))
        return lists

    def best_sums(
        self,
        queries: Sequence[PostingsQuery],
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
            queries: with weights that are positive whole numbers.
            others: returns the other score of m rows (a slice or their numbers): (q, m) float32, which is modified.
            unit: what one unit of the integer sum adds to the score.
            slacks: (q,) the largest error of the other score and of one float32 addition.
            k: number of best rows.
            threads: groups of queries searched at a time.
            allowed: the rows to search.
        """
        if (allowed is not None and self._few(allowed)) or not pays(len(queries) * self.documents):
            return self._plain_sums(self.packed(queries), others, unit, slacks, k, allowed)
        # More than k: rows within the error bound of the k-th are kept, and worse ones until the list is full.
        shape = (len(queries), min(4 * k, self.documents) + _SPARE_ROWS)
        kept = Kept(
            rows=np.empty(shape, np.int32),
            sums=np.empty(shape, np.int32),
            totals=np.empty(shape, np.float32),
        )
        counts = self._keep(kept, queries, others, unit, slacks, k, threads, allowed)
        candidates: list[tuple[np.ndarray, np.ndarray] | None] = []
        for query, count in enumerate(counts.tolist()):
            if count < 0:
                candidates.append(None)
                continue
            rows = kept.rows[query, :count]
            sums = kept.sums[query, :count]
            candidates.append(_within(rows, sums, kept.totals[query, :count], k, slacks[query]))
        return candidates

    def _keep(
        self,
        kept: Kept,
        queries: Sequence[PostingsQuery],
        others: Others,
        unit: float,
        slacks: np.ndarray,
        k: int,
        threads: int,
        allowed: RowSet | None,
    ) -> np.ndarray:
        """Fill ``kept``, window by window; returns the number of rows of each query, -1 if there was no room."""
        query_count = len(queries)
        share_size = math.ceil(query_count / threads)
        # The queries of each thread.
        shares = [slice(start, start + share_size) for start in range(0, query_count, share_size)]
        groups = [self.packed(queries[share]) for share in shares]
        counts = np.zeros(query_count, np.int64)
        # What a total must reach, by query; it rises from window to window.
        floors = np.full(query_count, -np.inf)

        def search_share(share: slice, group: Queries, w: int, scores: np.ndarray) -> None:
            # Slices are views: each thread fills its own queries' part of the arrays.
            self._kernels.search_sum(
                w,
                self.files,
                self.window,
                self.documents,
                group,
                unit,
                scores[share],
                k,
                slacks[share],
                Kept(kept.rows[share], kept.sums[share], kept.totals[share]),
                counts[share],
                floors[share],
            )

        # The pool starts threads when they get work, so it costs nothing for one group.
        with ThreadPoolExecutor(len(groups)) as pool:
            map_shares = map if len(groups) == 1 else pool.map
            for w, first in enumerate(range(0, self.documents, self.window)):
                last = min(first + self.window, self.documents)
                scores = _in_window(others, first, last, query_count, allowed)
                if scores is not None:
                    window = itertools.repeat(w)
                    # list waits for all of them: the next window needs their floors.
                    list(map_shares(search_share, shares, groups, window, itertools.repeat(scores)))
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
        if allowed is None:
            rows = np.arange(self.documents)
            scores = others(slice(0, self.documents))
        else:
            rows = allowed.rows
            scores = others(rows)
        candidates: list[tuple[np.ndarray, np.ndarray] | None] = []
        for (terms, weights), other, slack in zip(
            _terms_by_query(queries), scores, slacks, strict=True
        ):
            sums = self._row_sums(terms, weights, allowed)
            totals = other + sums.astype(np.float32) * np.float32(unit)
            candidates.append(_within(rows, sums, totals, k, slack))
        return candidates

    def packed(self, queries: Sequence[PostingsQuery]) -> Queries:
        """The queries' terms that the index has, one query after the other; raises as :meth:`top` for their weights."""
        pairs = [self._by_id(query) for query in queries]
        terms = np.concatenate([_NO_TERMS, *(ids for ids, _ in pairs)])
        # As float64, which also represents what is not a whole number, so that it can be refused.
        weights = np.concatenate([_NO_WEIGHTS, *(query_weights for _, query_weights in pairs)])
        if not ((weights >= 1) & (weights == np.rint(weights))).all():
            raise UsageError(_wrong_weight(queries))
        # Terms that the index does not have match nothing. A segment without documents in additional languages lacks
        # the terms of these.
        indexed = (terms >= 0) & (terms < len(self._segment.terms))
        lengths = [len(ids) for ids, _ in pairs]
        owner = np.repeat(np.arange(len(queries)), lengths)[indexed]
        weights = weights[indexed]
        # The accumulators of the compiled loops are int32: no row may overflow one.
        highest_scores = np.bincount(owner, weights, len(queries)) * HIGHEST_IMPACT
        if (highest_scores > HIGHEST_SCORE).any():
            raise UsageError(
                "a query could score 2**31 or more, which search by postings cannot represent; scale its weights down"
            )
        starts = np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=len(queries)))))
        return Queries(starts, terms[indexed], weights.astype(np.int32))


_NO_TERMS = np.zeros(0, np.int64)
_NO_WEIGHTS = np.zeros(0, np.float64)


def _wrong_weight(queries: Sequence[PostingsQuery]) -> str:
    """The message about the first weight that is not a positive whole number."""
    for query in queries:
        pairs: Iterable[tuple[str | int, float]]
        if isinstance(query, Mapping):
            pairs = query.items()
        else:
            ids, weights = query
            pairs = zip(ids.tolist(), weights.tolist(), strict=True)
        for term, weight in pairs:
            if not (weight >= 1 and float(weight).is_integer()):
                return (
                    f"the query weight of {term!r} must be a positive whole number, got {weight!r}"
                )
    raise AssertionError("every weight is a positive whole number")


def _rank_keys(
    keys: np.ndarray, k: int, rows_of: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """The ``k`` best rows and their scores, from keys in any order; ``rows_of``: the row of each rank of a docid."""
    # The last k of the ascending order, from the end.
    best = np.sort(keys)[: -k - 1 : -1]
    rows = (1 << 32) - 1 - (best & ((1 << 32) - 1))
    if rows_of is not None:
        rows = rows_of[rows]
    return rows, best >> 32


def _add_window(
    files: Files, w: int, terms: np.ndarray, weights: np.ndarray, sums: np.ndarray
) -> None:
    """Add the impacts of a query in window ``w`` to ``sums``, (n,) int64 of the window's rows."""
    window_start = int(files.starts[w])
    columns = files.columns[w]
    pointers = files.pointers[w]
    for term, weight in zip(terms.tolist(), weights.tolist(), strict=True):
        column = int(columns[term])
        if column:
            # A frequent term: an impact for every row of the window, 0 included.
            start = int(files.column_starts[w]) + (column - 1) * len(sums)
            sums += files.dense[start : start + len(sums)].astype(np.int64) * weight
        else:
            postings = slice(
                window_start + int(pointers[term]), window_start + int(pointers[term + 1])
            )
            # A row has a term once, so no row is added to twice.
            sums[files.rows[postings]] += files.impacts[postings].astype(np.int64) * weight


def _terms_by_query(queries: Queries) -> list[tuple[np.ndarray, np.ndarray]]:
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
        # Twice: the k-th total may be too high by the slack, and the total of a better row too low by it.
        near = totals >= float(kth) - 2 * slack
        rows = rows[near]
        sums = sums[near]
    return rows.astype(np.int64), sums.astype(np.int64)
