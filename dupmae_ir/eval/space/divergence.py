"""Divergence of query-passage distance distributions (CoT-MoTE, Eq. 14-19), and t-SNE."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dupmae_ir.errors import EnvironmentProblem


class Divergence(NamedTuple):
    """Eq. 17 and 19, in nats."""

    kl: float
    js: float


def cosine_distances(queries: np.ndarray, passages: np.ndarray) -> np.ndarray:
    """(n, d), (m, d) -> (n, m) float64, 1 - cosine (CoT-MoTE Eq. 14). A zero vector has distance 1 from all others."""
    return np.asarray(1.0 - _unit(queries) @ _unit(passages).T)


def divergence(distances: np.ndarray) -> Divergence:
    """(n, n) distances, query i and passage i a pair -> KL and JS by CoT-MoTE Eq. 15-19, as printed.

    p1 is exp(-d) divided by its sum, p2 the same for d transposed; KL is the sum of p1 log(p1 / p2), JS the mean of the
    two divergences from (p1 + p2) / 2. The sums run over all n^2 entries. Raises ValueError for a matrix that is not
    square, for which Eq. 17 is undefined.
    """
    d = np.asarray(distances, np.float64)
    if d.ndim != 2 or d.shape[0] != d.shape[1]:
        raise ValueError(f"expected a square matrix of distances, got {d.shape}")
    p1 = np.exp(-d) / np.exp(-d).sum()
    p2 = np.exp(-d.T) / np.exp(-d.T).sum()
    average = (p1 + p2) / 2
    return Divergence(relative_entropy(p1, p2), (relative_entropy(p1, average) + relative_entropy(p2, average)) / 2)


def tsne(vectors: np.ndarray, perplexity: float = 30.0, seed: int = 0) -> np.ndarray:
    """(n, d) -> (n, 2) by scikit-learn's t-SNE under cosine distance; the same seed gives the same picture."""
    try:
        from sklearn.manifold import TSNE  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        message = "the picture requires scikit-learn: pip install scikit-learn; or omit --output"
        raise EnvironmentProblem(message) from None
    distances = np.maximum(cosine_distances(vectors, vectors), 0.0)  # rounding yields values such as -1e-16
    np.fill_diagonal(distances, 0.0)
    found = TSNE(2, perplexity=perplexity, metric="precomputed", init="random", random_state=seed)
    return np.asarray(found.fit_transform(distances), np.float64)


def _unit(vectors: np.ndarray) -> np.ndarray:
    v = np.asarray(vectors, np.float64)
    norms = np.linalg.norm(v, axis=1, keepdims=True)
    return np.asarray(v / np.where(norms == 0, 1.0, norms))


def relative_entropy(p: np.ndarray, q: np.ndarray) -> float:
    """Sum of p log(p / q) over all entries, in nats."""
    return float((p * np.log(p / q)).sum())
