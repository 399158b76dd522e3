"""The dense part: faiss proposes, float64 decides.

faiss multiplies in float32, and its last digits depend on how many queries go in at once. So its scores only
choose candidates; what is reported is the inner product of the stored float32 vectors accumulated in float64,
the same for a document whatever the batch, the depth or the company.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np

from dupmae_ir.device import faiss_threads
from dupmae_ir.errors import IndexMismatch
from dupmae_ir.index.config import FLAT
from dupmae_ir.search.certified_topk import Candidates

MANY = 16
"""From so many questions on, one matrix product is faster than faiss's loop over them."""
_BLOCK = 8192
"""Rows converted to float64 at a time."""


class DenseIndex:
    """A flat inner-product index: ``index`` a faiss ``IndexFlatIP``, ``vectors`` (n, d) float32 what it holds."""

    kind = FLAT
    certifies = True  #: whether its lists can be shown to miss nothing

    def __init__(self, index: Any, vectors: np.ndarray) -> None:
        self.index = index
        self.vectors = vectors
        self.flat = index  #: whose memory ``vectors`` is; another index may propose

    @cached_property
    def longest(self) -> float:
        """The largest Euclidean norm of a vector; reads all of them."""
        return _longest(self.vectors)

    def described(self) -> dict[str, Any]:
        """For the summary of a run: which index it is, and whether it can certify."""
        return {"kind": self.kind, "exact": self.certifies}

    def queries(self, vectors: np.ndarray, threads: int = 1) -> DensePart:
        """The dense part of a search for (q, d) float32 query vectors."""
        if vectors.shape[1] != self.vectors.shape[1]:
            raise IndexMismatch(
                f"the index holds {self.vectors.shape[1]}-dimensional vectors but the queries have {vectors.shape[1]}; "
                "search with the encoder that made the index"
            )
        return self._part(np.ascontiguousarray(vectors, dtype=np.float32), threads)

    def _part(self, vectors: np.ndarray, threads: int) -> DensePart:
        return DensePart(self, vectors, threads)


class DensePart:
    """One batch of queries against a :class:`DenseIndex`; a :class:`~dupmae_ir.search.certified_topk.Part`."""

    def __init__(self, dense: DenseIndex, vectors: np.ndarray, threads: int) -> None:
        self.dense = dense
        self.vectors = vectors
        self.threads = threads

    def top(self, queries: Sequence[int], depth: int) -> list[Candidates]:
        wanted = min(depth, len(self.dense.vectors))
        with faiss_threads(self.threads), as_product(len(queries)):
            scores, rows = self.dense.index.search(self.vectors[list(queries)], wanted)
        complete = wanted == len(self.dense.vectors)
        return [
            Candidates(
                rows[i].astype(np.int64), -np.inf if complete else float(scores[i, -1]) + self.noise(query), complete
            )
            for i, query in enumerate(queries)
        ]

    def scores(self, query: int, rows: np.ndarray) -> np.ndarray:
        return inner_products(self.vectors[query], self.dense.vectors, rows)

    def noise(self, query: int) -> float:
        """How far a float32 inner product of d terms can be from the true one, summed in any order:
        d units in the last place of |q| |v| (Higham, Accuracy and Stability, section 3.1), and a few for good measure.
        """
        length = float(np.linalg.norm(self.vectors[query].astype(np.float64)))
        return (self.vectors.shape[1] + 8) * 2.0**-24 * length * self.dense.longest


@contextmanager
def as_product(queries: int) -> Iterator[None]:
    """Let faiss multiply matrices for :data:`MANY` queries and more in here. Its own threshold, which is for all of
    the process and put back afterwards, waits for hundreds (1.15: queries x width of 128,000)."""
    import faiss

    before = faiss.cvar.distance_compute_blas_threshold
    if queries >= MANY:
        faiss.cvar.distance_compute_blas_threshold = 1
    try:
        yield
    finally:
        faiss.cvar.distance_compute_blas_threshold = before


def inner_products(query: np.ndarray, vectors: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """<query, vectors[rows]>: (d,) and (n, d) float32, (m,) rows -> (m,) float64.

    Row by row (no matrix product), so that equal vectors get equal scores, to the bit.
    """
    wide = query.astype(np.float64)
    out = np.empty(len(rows))
    for start in range(0, len(rows), _BLOCK):
        block = vectors[rows[start : start + _BLOCK]].astype(np.float64)
        out[start : start + len(block)] = np.vecdot(block, wide)
    return out


def _longest(vectors: np.ndarray) -> float:
    """The largest Euclidean norm of (n, d) rows; 0 for none."""
    squares = (np.vecdot(b, b).max() for b in _blocks(vectors))
    return float(np.sqrt(max(squares, default=0.0)))


def _blocks(vectors: np.ndarray) -> Any:
    return (vectors[s : s + _BLOCK].astype(np.float64) for s in range(0, len(vectors), _BLOCK))
