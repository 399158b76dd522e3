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
        if len(self.parts) == 1 and self.parts[0]:
            return self.parts[0].top(queries, depth)
        starts = self.index.starts
        lists = [
            (start, part.top(queries, depth))
            for start, part in zip(starts, self.parts, strict=False)
            if part
        ]
        return [
            self._joined([(start, found[query]) for start, found in lists])
            for query in range(len(queries))
        ]

    def scores(self, query: int, rows: np.ndarray) -> np.ndarray:
        """Exact scores of (m,) rows: (m,) float64."""
        if len(self.parts) == 1 and self.parts[0]:
            return self.parts[0].scores(query, rows)
        out = np.zeros(len(rows))
        for segment, here, inside in shares(self.index.starts, rows):
            part = self.parts[segment]
            assert part is not None, "a row of a segment that is not searched"
            out[here] = part.scores(query, inside)
        return out

    def _joined(self, found: list[tuple[int, Candidates]]) -> Candidates:
        if not found:
            return Candidates(np.zeros(0, np.int64), -np.inf, True)
        rows = np.concatenate([start + candidates.rows for start, candidates in found])
        bound = max(candidates.bound for _, candidates in found)
        return Candidates(
            rows.astype(np.int64), bound, all(candidates.complete for _, candidates in found)
        )


Dense = SegmentedPart[DensePart]
Impact = SegmentedPart[ImpactPart]


class Splits:
    """Divides sets of rows by segment, each once: Lucene keeps a filter for every set."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self._known: WeakKeyDictionary[RowSet, list[RowSet]] = WeakKeyDictionary()

    def __call__(self, allowed: np.ndarray | RowSet | None) -> list[RowSet | None]:
        """The part of each segment; None for all of its rows, an empty set for none of them."""
        chosen = row_set(allowed, self.index.rows)
        if chosen is None:
            return [None] * len(self.index.segments)
        if chosen not in self._known:
            self._known[chosen] = [
                RowSet(part) for part in np.split(chosen.mask, self.index.starts[1:-1])
            ]
        return [
            row_set(part, part.documents) if len(part) else part for part in self._known[chosen]
        ]


class SegmentedDense:
    """The dense indexes of all segments, of one kind."""

    def __init__(self, index: Index, splits: Splits, segments: Sequence[DenseIndex]) -> None:
        self.index, self._splits, self.segments = index, splits, list(segments)

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
        pairs = zip(self.segments, self._splits(allowed), strict=True)
        parts = [
            None if _none(some) else segment.queries(vectors, threads, some)
            for segment, some in pairs
        ]
        return SegmentedPart(self.index, parts)


class SegmentedImpact:
    """Postings and forward indexes of all segments."""

    def __init__(self, index: Index, splits: Splits, segments: Sequence[ImpactIndex]) -> None:
        self.index, self._splits, self.segments = index, splits, list(segments)

    def queries(
        self,
        queries: list[ImpactQuery],
        threads: int = 1,
        raw: bool = False,
        allowed: np.ndarray | RowSet | None = None,
    ) -> Impact:
        """The impact part of a search for quantised queries, in real units or, with ``raw``, in integers."""
        pairs = zip(self.segments, self._splits(allowed), strict=True)
        parts = [
            None if _none(some) else segment.queries(queries, threads, raw, some)
            for segment, some in pairs
        ]
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
    ranks, best = index.docid_rank, Best()
    if len(impact.parts) == 1 and impact.parts[0]:
        return search(
            None if dense is None else dense.parts[0], impact.parts[0], 0, ranks, excluded, best
        )
    found: list[tuple[int, Sequence[Outcome]]] = []
    for number, part in enumerate(impact.parts):
        start, end = int(index.starts[number]), int(index.starts[number + 1])
        if part is None:
            continue
        own = [row - start if row is not None and start <= row < end else None for row in excluded]
        outcomes = search(
            None if dense is None else dense.parts[number],
            part,
            number,
            ranks[start:end],
            own,
            best,
        )
        if outcomes is None:
            return None
        found.append((start, outcomes))
    if not found:
        nothing = Outcome(
            np.zeros(0, np.int64), np.zeros(0), True, (0,) if dense is None else (0, 0), 0, -np.inf
        )
        return [nothing] * len(excluded)
    return [
        _merged([(start, outcomes[query]) for start, outcomes in found], ranks, hits)
        for query in range(len(excluded))
    ]


def _merged(found: list[tuple[int, Outcome]], ranks: np.ndarray, hits: int) -> Outcome:
    rows = np.concatenate([start + outcome.rows for start, outcome in found]).astype(np.int64)
    scores = np.concatenate([outcome.scores for _, outcome in found])
    best = best_positions(scores, ranks[rows], hits)
    outcomes = [outcome for _, outcome in found]
    return Outcome(
        rows[best],
        scores[best],
        all(outcome.exact for outcome in outcomes),
        tuple(map(sum, zip(*(outcome.depths for outcome in outcomes), strict=True))),
        sum(outcome.candidates for outcome in outcomes),
        max(outcome.bound for outcome in outcomes),
    )


def _none(some: RowSet | None) -> bool:
    return some is not None and not len(some)
