"""Search of the segments of an index: each part of the score, segment by segment, as one.

Scores do not depend on the segment: they are inner products of stored vectors in float64 and sums of stored integers. A
list of the whole is the union of the segments' lists, its bound the highest of theirs, so the certificate of
:mod:`~dupmae_ir.search.exact.certified_topk` holds as for one index of the same documents. A search by one pass runs in
each segment, and the best of their exact lists are the exact list of the whole.

Deleted rows are rows that a search is not allowed to list (:class:`~dupmae_ir.index.format.row_set.RowSet`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from dupmae_ir.index.format.joined import shares
from dupmae_ir.index.format.row_set import RowSet, row_set
from dupmae_ir.index.index import Index
from dupmae_ir.search.candidates.dense import DenseIndex, DensePart, DenseSummary
from dupmae_ir.search.candidates.impact import ImpactIndex, ImpactPart, ImpactQuery
from dupmae_ir.search.candidates.rotated_dense import Best
from dupmae_ir.search.exact.certified_topk import Candidates, Outcome, Part
from dupmae_ir.search.exact.hits import best_positions

P = TypeVar("P", bound=Part)

Rows = Sequence[int | None]
"""A row to exclude for each query; None for no exclusion."""


class SegmentedPart(Generic[P]):
    """One batch of queries against all segments; a :class:`~dupmae_ir.search.exact.certified_topk.Part`.

    ``parts``: the part of each segment; None for a segment without a row to search.
    """

    def __init__(self, index: Index, parts: Sequence[P | None]) -> None:
        self.index = index
        self.parts = parts

    def top(self, queries: Sequence[int], depth: int) -> list[Candidates]:
        """The ``depth`` best rows of each segment, for each query."""
        # Most indexes have one segment, whose rows are those of the index.
        if len(self.parts) == 1 and self.parts[0]:
            return self.parts[0].top(queries, depth)
        segment_lists = []
        # ``starts`` has one more, the end of the last segment.
        for start, part in zip(self.index.starts, self.parts, strict=False):
            if part:
                segment_lists.append((start, part.top(queries, depth)))
        joined = []
        for position in range(len(queries)):
            lists = [(start, candidates[position]) for start, candidates in segment_lists]
            joined.append(_join(lists))
        return joined

    def scores(self, query: int, rows: np.ndarray) -> np.ndarray:
        """Exact scores of (m,) rows: (m,) float64."""
        if len(self.parts) == 1 and self.parts[0]:
            return self.parts[0].scores(query, rows)
        scores = np.zeros(len(rows))
        for segment, positions, segment_rows in shares(self.index.starts, rows):
            part = self.parts[segment]
            assert part is not None, "a row of a segment that is not searched"
            scores[positions] = part.scores(query, segment_rows)
        return scores


def _join(lists: list[tuple[int, Candidates]]) -> Candidates:
    """One list of the index from those of its segments, each with the first row of its segment."""
    if not lists:
        return Candidates(np.zeros(0, np.int64), -np.inf, True)
    rows = np.concatenate([start + candidates.rows for start, candidates in lists])
    bound = max(candidates.bound for _, candidates in lists)
    complete = all(candidates.complete for _, candidates in lists)
    return Candidates(rows.astype(np.int64), bound, complete)


Dense = SegmentedPart[DensePart]
Impact = SegmentedPart[ImpactPart]


class Splits:
    """Divides sets of rows by segment, each once: Lucene keeps a filter for every set."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self._parts: WeakKeyDictionary[RowSet, list[RowSet]] = WeakKeyDictionary()

    def __call__(self, allowed: np.ndarray | RowSet | None) -> list[RowSet | None]:
        """The part of each segment; None for all of its rows, an empty set for none of them."""
        selection = row_set(allowed, self.index.rows)
        if selection is None:
            return [None] * len(self.index.segments)
        if selection not in self._parts:
            masks = np.split(selection.mask, self.index.starts[1:-1])
            self._parts[selection] = [RowSet(mask) for mask in masks]
        parts: list[RowSet | None] = []
        for part in self._parts[selection]:
            # row_set makes None of a set of all rows.
            parts.append(row_set(part, part.documents) if len(part) else part)
        return parts


class SegmentedDense:
    """The dense indexes of all segments, of one kind."""

    def __init__(self, index: Index, splits: Splits, segments: Sequence[DenseIndex]) -> None:
        self.index = index
        self._splits = splits
        self.segments = list(segments)

    @property
    def kind(self) -> str:
        """The kind of index."""
        return self.segments[0].kind

    def summary(self) -> DenseSummary:
        """For the summary of a run, as the first segment."""
        count = len(self.segments)
        return replace(self.segments[0].summary(), segments=count if count > 1 else None)

    def queries(
        self, vectors: np.ndarray, threads: int = 1, allowed: np.ndarray | RowSet | None = None
    ) -> Dense:
        """The dense part of a search for (q, d) float32 query vectors; ``allowed``: the rows to search, (n,) bool."""
        parts: list[DensePart | None] = []
        for segment, rows in zip(self.segments, self._splits(allowed), strict=True):
            if _is_empty(rows):
                parts.append(None)
            else:
                parts.append(segment.queries(vectors, threads, rows))
        return SegmentedPart(self.index, parts)


class SegmentedImpact:
    """Postings and forward indexes of all segments."""

    def __init__(self, index: Index, splits: Splits, segments: Sequence[ImpactIndex]) -> None:
        self.index = index
        self._splits = splits
        self.segments = list(segments)

    def queries(
        self,
        queries: list[ImpactQuery],
        threads: int = 1,
        raw: bool = False,
        allowed: np.ndarray | RowSet | None = None,
    ) -> Impact:
        """The impact part of a search for quantised queries, in real units or, with ``raw``, in integers."""
        parts: list[ImpactPart | None] = []
        for segment, rows in zip(self.segments, self._splits(allowed), strict=True):
            if _is_empty(rows):
                parts.append(None)
            else:
                parts.append(segment.queries(queries, threads, raw, rows))
        return SegmentedPart(self.index, parts)


OnePass = Callable[
    [DensePart | None, ImpactPart, int, np.ndarray, Rows, Best], Sequence[Outcome] | None
]
"""A search of one segment: its parts, its number, the ranks of its rows, a row to leave out for each query, and what
segments before it found."""


def in_segments(
    dense: Dense | None, impact: Impact, excluded: Rows, hits: int, search: OnePass
) -> Sequence[Outcome] | None:
    """The best ``hits`` of the exact lists of all segments; None where a segment cannot be searched by one pass."""
    index = impact.index
    ranks = index.docid_rank
    best: Best = {}
    dense_parts: Sequence[DensePart | None] = [None] * len(impact.parts)
    if dense is not None:
        dense_parts = dense.parts
    if len(impact.parts) == 1 and impact.parts[0]:
        return search(dense_parts[0], impact.parts[0], 0, ranks, excluded, best)

    segment_outcomes: list[tuple[int, Sequence[Outcome]]] = []
    for number, part in enumerate(impact.parts):
        if part is None:
            continue
        start = int(index.starts[number])
        end = int(index.starts[number + 1])
        excluded_here = [_row_in_segment(row, start, end) for row in excluded]
        # ``best`` goes from segment to segment: what the first ones found excludes rows of the later ones.
        outcomes = search(dense_parts[number], part, number, ranks[start:end], excluded_here, best)
        if outcomes is None:
            return None
        segment_outcomes.append((start, outcomes))

    if not segment_outcomes:
        depths = (0,) if dense is None else (0, 0)
        nothing = Outcome(np.zeros(0, np.int64), np.zeros(0), True, depths, 0, -np.inf)
        return [nothing] * len(excluded)
    merged = []
    for query in range(len(excluded)):
        lists = [(start, outcomes[query]) for start, outcomes in segment_outcomes]
        merged.append(_merge(lists, ranks, hits))
    return merged


def _row_in_segment(row: int | None, start: int, end: int) -> int | None:
    """The number that a row of the index has in the segment of rows ``start`` to ``end``; None outside of it."""
    if row is None or not start <= row < end:
        return None
    return row - start


def _merge(lists: list[tuple[int, Outcome]], ranks: np.ndarray, hits: int) -> Outcome:
    """The best ``hits`` of one query's lists, each with the first row of its segment."""
    rows = np.concatenate([start + outcome.rows for start, outcome in lists]).astype(np.int64)
    scores = np.concatenate([outcome.scores for _, outcome in lists])
    best = best_positions(scores, ranks[rows], hits)
    outcomes = [outcome for _, outcome in lists]
    depths_by_part = zip(*(outcome.depths for outcome in outcomes), strict=True)
    return Outcome(
        rows[best],
        scores[best],
        all(outcome.exact for outcome in outcomes),
        tuple(map(sum, depths_by_part)),
        sum(outcome.candidates for outcome in outcomes),
        max(outcome.bound for outcome in outcomes),
    )


def _is_empty(rows: RowSet | None) -> bool:
    return rows is not None and not len(rows)
