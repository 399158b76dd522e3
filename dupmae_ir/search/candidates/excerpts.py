"""The dense part of a score with excerpts: a question may be about one sentence of a long passage.

A document with excerpts has, for a query q, with a ``share`` between 0 and 1,

    (1 - share) <q, document> + share max over its excerpts of <q, excerpt>

and one without has <q, document>. Products in float32 select candidates among all documents, and the reported score is
computed in float64 from what is stored, as in :mod:`dupmae_ir.search.candidates.dense`. The larger of two products
errs by no more than each of them, so the bounds, and the certificate, are those of one product.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from dupmae_ir.index.format.excerpts import Excerpts
from dupmae_ir.index.format.row_set import RowSet
from dupmae_ir.search.candidates.dense import DenseIndex, DensePart, best_of_blocks

_BLOCK = 512
"""Documents whose excerpts are decoded at a time."""


class ExcerptIndex(DenseIndex):
    """The (n, d) float32 ``vectors`` of documents and their ``excerpts``, searched in full."""

    kind = "excerpts"

    def __init__(self, vectors: np.ndarray, excerpts: Excerpts, share: float) -> None:
        super().__init__(None, vectors)
        self.excerpts = excerpts
        self.share = share

    @cached_property
    def longest(self) -> float:
        """The largest Euclidean norm of a document or an excerpt; reads all vectors."""
        longest = DenseIndex(None, self.vectors).longest
        for start in range(0, len(self.excerpts), _BLOCK):
            rows = np.arange(start, min(start + _BLOCK, len(self.excerpts)))
            codes, steps, _ = _of_rows(self.excerpts, rows)
            wide = codes.astype(np.float64)
            lengths = steps * np.sqrt(np.vecdot(wide, wide))
            longest = max(longest, float(lengths.max(initial=0.0)))
        return longest

    def _part(self, vectors: np.ndarray, threads: int, allowed: RowSet | None) -> DensePart:
        return ExcerptPart(self, vectors, threads, allowed)


class ExcerptPart(DensePart):
    """One batch of queries against an :class:`ExcerptIndex`."""

    dense: ExcerptIndex

    def _flat(self, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        allowed = self.allowed or RowSet(np.ones(len(self.dense.vectors), np.bool_))
        blocks = ((self.products(queries, rows), rows) for rows in allowed.blocks(_BLOCK))
        return best_of_blocks(len(queries), blocks, count)

    def scores(self, query: int, rows: np.ndarray) -> np.ndarray:
        """Exact scores of (m,) rows: (m,) float64."""
        own = super().scores(query, rows)
        wide = self.vectors[query].astype(np.float64)
        best = np.empty(len(rows))
        for start in range(0, len(rows), _BLOCK):
            codes, steps, counts = _of_rows(self.dense.excerpts, rows[start : start + _BLOCK])
            # Row by row, no matrix product, so that equal vectors get bit-identical scores.
            products = steps * np.vecdot(codes.astype(np.float64), wide)
            best[start : start + len(counts)] = _largest(products, counts)
        return self._joined(own, best)

    def products(self, queries: np.ndarray, rows: slice | np.ndarray) -> np.ndarray:
        """(q, m) float32 scores of (q, d) float32 queries and m rows, a slice or their numbers.

        They differ from exact ones by at most :meth:`error`, in proportion to the length of the query.
        """
        own = super().products(queries, rows)
        numbers = np.arange(len(self.dense.vectors))[rows] if isinstance(rows, slice) else rows
        best = np.empty_like(own)
        for start in range(0, len(numbers), _BLOCK):
            codes, steps, counts = _of_rows(self.dense.excerpts, numbers[start : start + _BLOCK])
            products = (codes.astype(np.float32) @ queries.T) * steps[:, None]
            best[:, start : start + len(counts)] = _largest(products.T, counts)
        return self._joined(own, best)

    def noise(self, query: int) -> float:
        """As :meth:`DensePart.noise`, with the roundings of a step and of the weighted sum."""
        wider = self.vectors.shape[1] + 16
        return wider * 2.0**-24 * self.length(query) * self.dense.longest

    def _joined(self, own: np.ndarray, best: np.ndarray) -> np.ndarray:
        """Scores of documents, from those of their vectors and of their best excerpts, -inf for one without."""
        share = own.dtype.type(self.dense.share)
        weighted = (1 - share) * own + share * best
        return np.where(np.isneginf(best), own, weighted)


def _of_rows(excerpts: Excerpts, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes (m, d) and steps (m,) of the excerpts of some documents, and how many each document has."""
    found = excerpts.of_rows(rows)
    return found.codes, found.steps, np.diff(found.starts)


def _largest(products: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """(..., n) the largest of the (..., m) products of each document's excerpts; -inf for one without."""
    has_excerpts = counts > 0
    largest = np.full((*products.shape[:-1], len(counts)), -np.inf, products.dtype)
    if has_excerpts.any():
        firsts = (np.cumsum(counts) - counts)[has_excerpts]
        largest[..., has_excerpts] = np.maximum.reduceat(products, firsts, axis=-1)
    return largest
