"""The dense part of a score: candidates from faiss, exact scores in float64.

faiss multiplies in float32, and its last digits depend on the number of queries per call. Its scores therefore only
select candidates. The reported score is the inner product of the stored float32 vectors accumulated in float64, which
does not depend on the batch, the depth or the other candidates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dupmae_ir.device import faiss_threads
from dupmae_ir.errors import IndexMismatch
from dupmae_ir.index.dense_kinds import FLAT
from dupmae_ir.index.format.row_set import RowSet, row_set
from dupmae_ir.search.exact.certified_topk import Candidates

if TYPE_CHECKING:
    from dupmae_ir.index.format.segment import Segment

MANY = 16
"""With at least this many queries, one matrix product is faster than faiss's loop over them."""
FEW = 8
"""A search restricted to at most one row in this many copies these vectors and multiplies them; with more rows, faiss
reads all vectors in order and skips the others."""
_BLOCK = 8192
"""Rows converted to float64 per step."""
_MULTIPLIED = 512
"""Rows multiplied per step. They are not aligned in the file, so numpy copies them; the copy stays in a cache."""


@dataclass(frozen=True)
class DenseSummary:
    """The kind of a dense index, and its segments if there are several."""

    kind: str
    segments: int | None = None


class DenseIndex:
    """A flat inner-product index: ``index`` searches as faiss's ``IndexFlatIP`` of the (n, d) float32 ``vectors``."""

    kind = FLAT

    def __init__(self, index: Any, vectors: np.ndarray) -> None:
        self.index = index
        self.vectors = vectors

    @cached_property
    def longest(self) -> float:
        """The largest Euclidean norm of a vector; reads all vectors."""
        largest_squares = []
        for start in range(0, len(self.vectors), _BLOCK):
            block = self.vectors[start : start + _BLOCK].astype(np.float64)
            largest_squares.append(np.vecdot(block, block).max())
        return float(np.sqrt(max(largest_squares, default=0.0)))

    def summary(self) -> DenseSummary:
        """For the summary of a run."""
        return DenseSummary(self.kind)

    def queries(
        self, vectors: np.ndarray, threads: int = 1, allowed: np.ndarray | RowSet | None = None
    ) -> DensePart:
        """The dense part of a search for (q, d) float32 query vectors; ``allowed``: the rows to search, (n,) bool."""
        if vectors.shape[1] != self.vectors.shape[1]:
            raise IndexMismatch(
                f"the index has {self.vectors.shape[1]}-dimensional vectors but the queries have {vectors.shape[1]}; "
                "search with the encoder that built the index"
            )
        selection = row_set(allowed, len(self.vectors))
        return self._part(np.ascontiguousarray(vectors, dtype=np.float32), threads, selection)

    def _part(self, vectors: np.ndarray, threads: int, allowed: RowSet | None) -> DensePart:
        return DensePart(self, vectors, threads, allowed)


class FlatOnDemand:
    """The faiss index of a segment's vectors, read by the first search; a search in one pass needs no faiss."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment

    def search(self, *arguments: Any, **options: Any) -> tuple[np.ndarray, np.ndarray]:
        """As ``IndexFlatIP.search``."""
        return self._segment.faiss_index.search(*arguments, **options)


def open_flat(segment: Segment) -> DenseIndex:
    """The flat index of a segment."""
    return DenseIndex(FlatOnDemand(segment), segment.vectors)


class DensePart:
    """One batch of queries against a :class:`DenseIndex`; a :class:`~dupmae_ir.search.exact.certified_topk.Part`."""

    def __init__(
        self, dense: DenseIndex, vectors: np.ndarray, threads: int, allowed: RowSet | None = None
    ) -> None:
        self.dense = dense
        self.vectors = vectors
        self.threads = threads
        self.allowed = allowed

    @property
    def documents(self) -> int:
        """How many rows are searched."""
        return len(self.dense.vectors) if self.allowed is None else len(self.allowed)

    def top(self, queries: Sequence[int], depth: int) -> list[Candidates]:
        """faiss's ``depth`` best rows of each query; the bound allows for float32 rounding."""
        count = min(depth, self.documents)
        with faiss_threads(self.threads):
            scores, rows = self._flat(self.vectors[list(queries)], count)
        complete = count == self.documents
        candidates = []
        for position, query in enumerate(queries):
            bound = -np.inf
            if not complete:
                bound = float(scores[position, -1]) + self.noise(query)
            candidates.append(Candidates(rows[position].astype(np.int64), bound, complete))
        return candidates

    def _flat(self, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """(q, count) float32 scores and rows, best first, of (q, d) queries."""
        if self.allowed is None:
            with as_product(len(queries)):
                scores, rows = self.dense.index.search(queries, count)
        elif self.copies(len(queries)):
            vectors = self.dense.vectors
            blocks = ((block, vectors[block]) for block in self.allowed.blocks(_BLOCK))
            scores, rows = best_products(queries, blocks, count)
        else:
            scores, rows = self.dense.index.search(queries, count, params=selected(self.allowed))
        return scores, rows

    def copies(self, queries: int) -> bool:
        """Whether a restricted search of this many queries multiplies copies of the rows, instead of selecting."""
        if self.allowed is None:
            return False
        return queries >= MANY or len(self.allowed) * FEW <= len(self.dense.vectors)

    def scores(self, query: int, rows: np.ndarray) -> np.ndarray:
        """Exact scores of (m,) rows: (m,) float64."""
        return inner_products(self.vectors[query], self.dense.vectors, rows)

    def products(self, queries: np.ndarray, rows: slice | np.ndarray) -> np.ndarray:
        """(q, m) float32 inner products of (q, d) float32 queries and m rows, a slice or their numbers.

        They differ from exact ones by at most :meth:`error`, in proportion to the length of the query.
        """
        return multiplied(queries, self.dense.vectors, rows)

    def error(self, query: int) -> float:
        """Upper bound on the error of :meth:`products` with a query of this batch."""
        return self.noise(query)

    def noise(self, query: int) -> float:
        """Upper bound on the error of a float32 inner product of d terms, summed in any order:
        d units in the last place of |q| |v| (Higham, Accuracy and Stability, section 3.1), plus a margin of 8.
        """
        return (self.vectors.shape[1] + 8) * 2.0**-24 * self.length(query) * self.dense.longest

    def length(self, query: int) -> float:
        """The Euclidean norm of a query."""
        return float(np.linalg.norm(self.vectors[query].astype(np.float64)))


@contextmanager
def as_product(queries: int) -> Iterator[None]:
    """Within the block, faiss uses a matrix product if there are at least :data:`MANY` queries. Its own threshold, a
    process-wide variable that is restored afterwards, is in the hundreds (1.15: queries x width of 128,000)."""
    import faiss

    before = faiss.cvar.distance_compute_blas_threshold
    if queries >= MANY:
        faiss.cvar.distance_compute_blas_threshold = 1
    try:
        yield
    finally:
        faiss.cvar.distance_compute_blas_threshold = before


def selected(allowed: RowSet) -> Any:
    """faiss's search parameters for a search of the allowed rows only."""
    import faiss

    # faiss's stubs are wrong
    selector = faiss.IDSelectorBitmap(allowed.bits)  # type: ignore[call-arg, arg-type]
    return faiss.SearchParameters(sel=selector)  # type: ignore[call-arg]


def best_products(
    queries: np.ndarray, blocks: Iterable[tuple[np.ndarray, np.ndarray]], count: int
) -> tuple[np.ndarray, np.ndarray]:
    """The ``count`` best rows of each of (q, d) queries: (q, count) float32 scores and int64 rows, best first.

    ``blocks``: rows (m,) and their (m, d) float32 vectors.
    """
    import faiss

    def best_of_each() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for numbers, vectors in blocks:
            with as_product(len(queries)):
                block_scores, block_rows = faiss.knn(
                    queries, vectors, min(count, len(vectors)), metric=faiss.METRIC_INNER_PRODUCT
                )
            yield block_scores, numbers[block_rows]

    return best_of_blocks(len(queries), best_of_each(), count)


def best_of_blocks(
    queries: int, blocks: Iterable[tuple[np.ndarray, np.ndarray]], count: int
) -> tuple[np.ndarray, np.ndarray]:
    """The ``count`` best rows of each query: (q, count) float32 scores and int64 rows, best first.

    ``blocks``: (q, m) scores, and the rows that have them, (m,) or (q, m).
    """
    scores = np.empty((queries, 0), np.float32)
    rows = np.empty((queries, 0), np.int64)
    for block_scores, block_rows in blocks:
        scores = np.hstack([scores, block_scores])
        rows = np.hstack([rows, np.broadcast_to(block_rows, block_scores.shape)])
        if scores.shape[1] > count:
            best = np.argpartition(-scores, count - 1, axis=1)[:, :count]
            scores = np.take_along_axis(scores, best, 1)
            rows = np.take_along_axis(rows, best, 1)
    order = np.argsort(-scores, axis=1, kind="stable")
    return np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)


def multiplied(queries: np.ndarray, stored: np.ndarray, rows: slice | np.ndarray) -> np.ndarray:
    """(q, m) float32 products of (q, d) float32 queries and m rows, a slice or their numbers, of (n, d) ``stored``."""
    # A slice is a view of the vectors; numbers of rows are looked up block by block.
    source = stored[rows] if isinstance(rows, slice) else rows
    scores = np.empty((len(queries), len(source)), np.float32)
    for start in range(0, len(source), _MULTIPLIED):
        block = source[start : start + _MULTIPLIED]
        vectors = block if isinstance(rows, slice) else stored[block]
        # For few queries, rows as the long side is half again as fast as the other way round.
        products = vectors.astype(np.float32, copy=False) @ queries.T
        scores[:, start : start + len(block)] = products.T
    return scores


def inner_products(query: np.ndarray, vectors: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """<query, vectors[rows]>: (d,) and (n, d) float32, (m,) rows -> (m,) float64.

    Computed row by row (no matrix product), so that equal vectors get bit-identical scores.
    """
    wide = query.astype(np.float64)
    out = np.empty(len(rows))
    for start in range(0, len(rows), _BLOCK):
        block = vectors[rows[start : start + _BLOCK]].astype(np.float64)
        out[start : start + len(block)] = np.vecdot(block, wide)
    return out
