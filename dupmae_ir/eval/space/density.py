"""Gaussian kernel density of points in the plane (CoT-MoTE, A.1 and Figure 4A), and its contour lines."""

from __future__ import annotations

import numpy as np
from scipy.stats import gaussian_kde

from dupmae_ir.eval.space.divergence import Divergence, relative_entropy

GRID = 60  #: values per axis at which a contour is traced
LEVELS = (0.2, 0.5, 0.8)  #: contours, as shares of the largest density
_LEAST = 1e-300  #: replaces a density that underflows to 0, so that logarithms are finite

Segment = tuple[tuple[float, float], tuple[float, float]]


def density(points: np.ndarray, at: np.ndarray) -> np.ndarray:
    """(n, 2) points, (m, 2) -> (m,) Gaussian kernel density with Scott's bandwidth (scipy's ``gaussian_kde``)."""
    return np.maximum(gaussian_kde(np.asarray(points, np.float64).T)(np.asarray(at, np.float64).T), _LEAST)


def density_divergence(queries: np.ndarray, passages: np.ndarray) -> Divergence:
    """(n, 2), (n, 2) -> KL and JS of the two kernel densities, each normalised over all 2n points.

    This is the reading of A.1 in which p1 and p2 are the densities of queries and passages in the t-SNE plane. It
    depends on the seed of t-SNE.
    """
    at = np.concatenate([queries, passages])
    p1, p2 = (found / found.sum() for found in (density(queries, at), density(passages, at)))
    middle = (p1 + p2) / 2
    return Divergence(relative_entropy(p1, p2), (relative_entropy(p1, middle) + relative_entropy(p2, middle)) / 2)


def contours(points: np.ndarray, low: np.ndarray, high: np.ndarray) -> list[Segment]:
    """Contours of the density of (n, 2) ``points`` at ``LEVELS``, as segments inside the box ``low`` to ``high``."""
    xs, ys = (np.linspace(low[n], high[n], GRID) for n in range(2))
    grid = np.stack(np.meshgrid(xs, ys, indexing="ij"), axis=-1)
    values = density(points, grid.reshape(-1, 2)).reshape(GRID, GRID)
    return [segment for share in LEVELS for segment in _traced(xs, ys, values - share * values.max())]


def _traced(xs: np.ndarray, ys: np.ndarray, values: np.ndarray) -> list[Segment]:
    """Marching squares: where (len(xs), len(ys)) ``values`` change sign, interpolated linearly on each cell's edges."""
    positive = values > 0
    mixed = positive[:-1, :-1].astype(int) + positive[1:, :-1] + positive[:-1, 1:] + positive[1:, 1:]
    segments = []
    for i, j in np.argwhere((mixed > 0) & (mixed < 4)):
        corners = [(i, j), (i + 1, j), (i + 1, j + 1), (i, j + 1)]
        crossings = []
        for (a, b), (c, d) in zip(corners, corners[1:] + corners[:1], strict=True):
            start, end = float(values[a, b]), float(values[c, d])
            if (start > 0) != (end > 0):
                t = start / (start - end)
                crossings.append((float(xs[a] + t * (xs[c] - xs[a])), float(ys[b] + t * (ys[d] - ys[b]))))
        segments += list(zip(crossings[::2], crossings[1::2], strict=True))
    return segments
