"""In-memory fakes of faiss and Lucene, and brute-force search for comparison."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import faiss
import numpy as np

from dupmae_ir.index.format.rotated import map_codes, write_codes
from dupmae_ir.index.format.row_set import RowSet
from dupmae_ir.search.candidates.dense import DenseIndex
from dupmae_ir.search.candidates.impact import ImpactIndex, ImpactQuery
from dupmae_ir.search.candidates.rotated_dense import RotatedIndex


def rotated(vectors: np.ndarray) -> RotatedIndex:
    """The index of (n, d) float32 vectors with codes."""
    flat = faiss.IndexFlatIP(vectors.shape[1])
    flat.add(vectors)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "codes"
        write_codes(vectors, path)
        return RotatedIndex(flat, vectors, map_codes(path, *vectors.shape))


class NumpyFlat:
    """Searches like ``IndexFlatIP``, in float32; ``noise`` (documents,) is added to exaggerate its rounding."""

    def __init__(self, vectors: np.ndarray, noise: np.ndarray | None = None) -> None:
        self.vectors = vectors
        self.noise = noise
        self.depths: list[int] = []

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        self.depths.append(k)
        scores = queries @ self.vectors.T
        if self.noise is not None:
            scores = (scores + self.noise).astype(np.float32)
        rows = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(scores, rows, axis=1), rows


@dataclass
class Matrix:
    """Postings and forward index of a small (documents, V) integer matrix."""

    impacts: np.ndarray
    asked: list[tuple[int, int]] = field(default_factory=list)  #: (queries, depth) of each call

    def top(
        self,
        queries: list[dict[str, int]],
        k: int,
        threads: int = 1,
        by_docid: bool = False,
        allowed: RowSet | None = None,
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        assert not by_docid
        self.asked.append((len(queries), k))
        lists = []
        for terms in queries:
            ids = np.array([int(t[1:]) for t in terms])
            sums = self.scores(np.arange(len(self.impacts)), ids, np.array(list(terms.values())))
            # Ties in reverse row order: the search must not depend on Lucene's order.
            rows = np.lexsort((-np.arange(len(sums)), -sums))
            rows = rows[sums[rows] > 0]
            rows = (rows if allowed is None else rows[allowed.mask[rows]])[:k]
            lists.append((rows, sums[rows]))
        return lists

    def scores(
        self, rows: np.ndarray, query_ids: np.ndarray, query_impacts: np.ndarray
    ) -> np.ndarray:
        return self.impacts[rows][:, query_ids].astype(np.int64) @ query_impacts


@dataclass
class World:
    """A small random collection with many equal scores, and queries for it."""

    vectors: np.ndarray
    query_vectors: np.ndarray
    impacts: np.ndarray
    query_impacts: np.ndarray
    scale: float
    docids: list[str]

    @classmethod
    def draw(
        cls,
        rng: np.random.Generator,
        documents: int,
        queries: int = 3,
        dim: int = 3,
        terms: int = 4,
        levels: int = 3,
    ) -> World:
        """``levels`` few and ``dim`` small make ties; about a third of the documents is a copy of another.

        All numbers are small multiples of powers of two, so every sum is exact and equal scores are equal.
        """
        vectors = rng.integers(-levels, levels + 1, (documents, dim)).astype(np.float32) / 4
        matching = rng.random((documents, 1)) < rng.choice([0.05, 0.3, 1.0])
        impacts = rng.integers(0, levels, (documents, terms)) * matching
        copies = rng.integers(0, documents, documents // 3)
        vectors[: len(copies)], impacts[: len(copies)] = vectors[copies], impacts[copies]
        return cls(
            vectors,
            rng.integers(-levels, levels + 1, (queries, dim)).astype(np.float32) / 2,
            impacts,
            rng.integers(0, levels, (queries, terms)) * (rng.random((queries, 1)) > 0.2),
            scale=float(rng.choice([1.0, 2.0, 4.0])),
            docids=[str(d) for d in rng.permutation(documents)],
        )

    @property
    def ranks(self) -> np.ndarray:
        ranks = np.empty(len(self.docids), np.int64)
        ranks[sorted(range(len(self.docids)), key=self.docids.__getitem__)] = np.arange(
            len(self.docids)
        )
        return ranks

    def dense(self, flat: object = None) -> DenseIndex:
        return DenseIndex(flat or NumpyFlat(self.vectors), self.vectors)

    def impact(self) -> tuple[ImpactIndex, Matrix]:
        matrix = Matrix(self.impacts)
        names = [f"w{i}" for i in range(self.impacts.shape[1])]
        return ImpactIndex(lambda: matrix, matrix, names, self.scale, len(self.docids)), matrix

    def sparse_queries(self) -> list[ImpactQuery]:
        return [
            ImpactQuery(np.flatnonzero(q), q[q > 0].astype(np.int64)) for q in self.query_impacts
        ]

    def scores(self, dense: float = 1.0, impact: float = 1.0) -> np.ndarray:
        """Brute force, one matrix product a side: (queries, documents) float64."""
        d = self.query_vectors.astype(np.float64) @ self.vectors.astype(np.float64).T
        i = (self.query_impacts @ self.impacts.T) / self.scale**2
        return dense * d + impact * i

    def best(
        self, scores: np.ndarray, k: int, floor: float = -np.inf, without: int | None = None
    ) -> list[tuple[float, str]]:
        """The first k (score, docid) of one row of :meth:`scores` in the order of every list."""
        rows = enumerate(zip(scores, self.docids, strict=True))
        kept = [(score, docid) for row, (score, docid) in rows if score > floor and row != without]
        return sorted(kept, key=lambda pair: (-pair[0], pair[1]))[:k]
