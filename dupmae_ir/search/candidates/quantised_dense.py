"""Dense candidates from smaller indexes: one byte per dimension; scores come from the stored float32 vectors.

``sq8`` scans all codes. The quantisation error is known, so unseen documents have an upper bound:

    <q, x> = <q, decoded(x)> + <q, x - decoded(x)>  <=  score of the code + |q| max |x - decoded(x)|

An unseen document's code scores no more than the last one returned, so ``sq8`` lists are as exact as the flat
index's. With postings, :mod:`~dupmae_ir.search.exact.one_pass` multiplies the codes and allows for the same error.
``ivf-sq8`` and ``hnsw-sq8`` search a part of the collection: their bound is infinite, and their lists are not certified
unless every document was scanned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dupmae_ir.device import faiss_threads
from dupmae_ir.index.config import FLAT
from dupmae_ir.index.format.dense_kinds import DenseKind, open_kind, search_effort
from dupmae_ir.index.format.row_set import RowSet
from dupmae_ir.index.postings.compiling import pays
from dupmae_ir.search.candidates.dense import (
    MANY,
    DenseIndex,
    DensePart,
    DenseSummary,
    FlatOnDemand,
    best_products,
    multiplied,
    open_flat,
    selected,
    selector,
)
from dupmae_ir.search.exact.certified_topk import Candidates

if TYPE_CHECKING:
    from dupmae_ir.index.format.segment import Segment

LOOKAHEAD = 2
"""A pass over the codes keeps this many times the requested rows, so that going deeper once needs no second pass."""
_BLOCK = 32768
"""Rows decoded per step; smaller blocks spend their time on selecting the best of each block."""
_FEW = 12
"""At most this many queries are multiplied with the codes as they are; more, as a product with float32 copies."""


def open_dense(segment: Segment, kind: str = FLAT, nprobe: int = 0, ef_search: int = 0) -> DenseIndex:
    """The dense index ``kind`` of a segment; 0 selects ``nprobe`` and ``ef_search`` automatically."""
    if kind == FLAT:
        return open_flat(segment)
    opened = open_kind(segment, kind)
    dense: DenseIndex
    if kind == "sq8":
        assert opened.meta["error"] is not None  # known of this kind
        dense = QuantisedIndex(opened.index, segment.vectors, opened.meta["error"])
    else:
        dense = ApproximateIndex(opened, segment.vectors, nprobe or ef_search)
    dense.flat = FlatOnDemand(segment)
    return dense


class QuantisedIndex(DenseIndex):
    """A faiss ``IndexScalarQuantizer`` of ``vectors`` whose decoded rows are at most ``error`` away from them."""

    kind = "sq8"

    def __init__(self, index: Any, vectors: np.ndarray, error: float) -> None:
        import faiss

        super().__init__(index, vectors)
        self.error = error
        least, span = faiss.vector_to_array(index.sq.trained).astype(np.float64).reshape(2, -1)
        # Decoded, a code c is least + (c + 1/2) step.
        self.step = span / 255
        self.middle = least + self.step / 2
        # An upper bound on the norm of any decoded vector and of the intermediate values that rounding is relative to.
        self.longest = float(np.linalg.norm(np.abs(least) + 1.01 * np.abs(span)))

    @property
    def codes(self) -> np.ndarray:
        """(n, d) uint8, memory-mapped if faiss has mapped the file."""
        import faiss

        size = len(self.vectors) * self.vectors.shape[1]
        codes = faiss.rev_swig_ptr(self.index.codes.data(), size).reshape(self.vectors.shape)
        codes.flags.writeable = False
        return codes

    def _part(self, vectors: np.ndarray, threads: int, allowed: RowSet | None) -> DensePart:
        return QuantisedPart(self, vectors, threads, allowed)


class QuantisedPart(DensePart):
    """One batch of queries against a :class:`QuantisedIndex`."""

    dense: QuantisedIndex

    def __init__(self, dense: QuantisedIndex, vectors: np.ndarray, threads: int, allowed: RowSet | None = None) -> None:
        super().__init__(dense, vectors, threads, allowed)
        self._seen: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def top(self, queries: Sequence[int], depth: int) -> list[Candidates]:
        """The ``depth`` best codes of each query; the bound includes the quantisation error."""
        count = min(depth, self.documents)
        missing = [query for query in queries if query not in self._seen or len(self._seen[query][0]) < count]
        if missing:
            with faiss_threads(self.threads):
                scores, rows = self._scan(self.vectors[missing], min(LOOKAHEAD * count, self.documents))
            self._seen.update({query: (rows[i], scores[i]) for i, query in enumerate(missing)})
        return [self._first(query, count) for query in queries]

    def products(self, queries: np.ndarray, rows: slice | np.ndarray) -> np.ndarray:
        """As :meth:`DensePart.products`, by the codes of the rows."""
        # <q, decoded> = <q, middle> + <q step, code>
        constants = (queries @ self.dense.middle).astype(np.float32)
        weights = (queries * self.dense.step).astype(np.float32)
        codes = self.dense.codes
        if len(queries) > _FEW or not pays(len(queries) * codes.size):
            return multiplied(weights, codes, rows) + constants[:, None]
        from dupmae_ir.index.postings import kernels

        chosen = codes[rows]
        chosen.flags.writeable = False  # as the mapped codes: one compiled signature
        scores = np.empty((len(queries), len(chosen)), np.float32)
        kernels.code_products(chosen, weights, constants, scores)
        return scores

    def error(self, query: int) -> float:
        """As :meth:`DensePart.error`, with the quantisation error."""
        # The noise once for the sum, once for decoding in another order than when the error was measured.
        return self.length(query) * self.dense.error + 2 * self.noise(query)

    def _scan(self, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """(q, count) scores of codes and rows, best first: by faiss's scan, or by a product of decoded blocks."""
        if self.copies(len(queries)) or len(queries) >= MANY:
            return best_products(queries, self._decoded(), count)
        if self.allowed is None:
            scores, rows = self.dense.index.search(queries, count)
        else:
            scores, rows = self.dense.index.search(queries, count, params=selected(self.allowed))
        return scores, rows

    def _decoded(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """All rows that are searched, and the vectors of their codes, block by block."""
        index, codes = self.dense.index, self.dense.codes
        if self.allowed is not None:
            yield from ((rows, index.sa_decode(codes[rows])) for rows in self.allowed.blocks(_BLOCK))
            return
        for start in range(0, len(codes), _BLOCK):
            block = codes[start : start + _BLOCK]
            yield np.arange(start, start + len(block)), index.sa_decode(block)

    def _first(self, query: int, count: int) -> Candidates:
        rows, scores = self._seen[query]
        if count == self.documents:
            return Candidates(rows[:count], -np.inf, True)
        return Candidates(rows[:count], float(scores[count - 1]) + self.error(query), False)


class ApproximateIndex(DenseIndex):
    """An opened ``ivf-sq8`` or ``hnsw-sq8`` index; ``effort`` is nprobe or efSearch, 0 for the automatic value."""

    certifies = False

    def __init__(self, opened: DenseKind, vectors: np.ndarray, effort: int = 0) -> None:
        super().__init__(opened.index, vectors)
        self.kind = opened.kind
        automatic = search_effort(opened.meta)
        assert automatic is not None
        self.effort, self.reason = (effort, "given") if effort else automatic

    def summary(self) -> DenseSummary:
        """For the summary of a run."""
        nprobe, ef_search = (self.effort, None) if self.kind == "ivf-sq8" else (None, self.effort)
        return DenseSummary(self.kind, self.certifies, nprobe, ef_search, self.reason)

    def _part(self, vectors: np.ndarray, threads: int, allowed: RowSet | None) -> DensePart:
        return ApproximatePart(self, vectors, threads, allowed)


class ApproximatePart(DensePart):
    """One batch of queries against an :class:`ApproximateIndex`."""

    dense: ApproximateIndex

    def top(self, queries: Sequence[int], depth: int) -> list[Candidates]:
        """At least ``depth`` rows of each query, without a bound; all rows if the index cannot supply that many.

        A search restricted to few rows reads their float32 vectors instead, so that its lists have a bound.
        """
        if self.copies(1):
            return super().top(queries, depth)
        search = self._lists if self.dense.kind == "ivf-sq8" else self._graph
        with faiss_threads(self.threads):
            lists = search(list(queries), depth)
        return [self._everything() if rows is None else Candidates(rows, np.inf, False) for rows in lists]

    def _graph(self, queries: list[int], depth: int) -> list[np.ndarray | None]:
        """All ``effort`` candidates of the graph search are used. Duplicates of a document can disconnect the graph;
        the search then returns too few rows: None. A restricted search visits more, in proportion."""
        import faiss

        count = min(max(depth, self.dense.effort), self.documents)
        visited = -(-count * len(self.dense.vectors) // self.documents)
        parameters = faiss.SearchParametersHNSW(efSearch=visited, **self._selected)  # type: ignore[attr-defined]  # not in faiss's stub
        _, rows = self.dense.index.search(self.vectors[queries], count, params=parameters)
        least = count if self.allowed is None else min(depth, count)
        return [r[r >= 0].astype(np.int64) if (r >= 0).sum() >= least else None for r in rows]

    def _lists(self, queries: list[int], depth: int) -> list[np.ndarray | None]:
        """If the probed lists contain fewer documents than requested, ``nprobe`` doubles until they suffice."""
        import faiss

        count = min(depth, self.documents)
        nprobe = min(self.dense.effort, self.dense.index.nlist)
        lists: dict[int, np.ndarray] = {}
        while left := [query for query in queries if query not in lists]:
            parameters = faiss.SearchParametersIVF(nprobe=nprobe, **self._selected)  # type: ignore[call-arg]  # nor is this
            _, rows = self.dense.index.search(self.vectors[left], count, params=parameters)
            lists.update({query: r.astype(np.int64) for query, r in zip(left, rows, strict=True) if (r >= 0).all()})
            if nprobe == self.dense.index.nlist:
                break
            nprobe = min(2 * nprobe, self.dense.index.nlist)
        return [lists.get(query) for query in queries]

    @property
    def _selected(self) -> dict[str, Any]:
        return {} if self.allowed is None else {"sel": selector(self.allowed)}

    def _everything(self) -> Candidates:
        rows = np.arange(len(self.dense.vectors)) if self.allowed is None else self.allowed.rows
        return Candidates(rows, -np.inf, True)
