"""One order for every list: score descending, equal scores by docid ascending, on every machine."""

from __future__ import annotations

import numpy as np

from dupmae_ir.io.runs import best_first
from dupmae_ir.types import Hit

__all__ = ["best_first", "best_positions", "without"]


def best_positions(scores: np.ndarray, ranks: np.ndarray, k: int) -> np.ndarray:
    """Where the ``k`` best of (m,) ``scores`` are, best first: (min(k, m),) int64.

    ``ranks`` (m,) decides between equal scores, lowest first. A tie across the k-th place is decided the same way.
    """
    kept = np.arange(len(scores))
    if k < len(scores):
        kth = np.partition(scores, len(scores) - k)[len(scores) - k]
        kept = np.flatnonzero(scores >= kth)
    order = np.lexsort((ranks[kept], -scores[kept]))
    return kept[order[:k]]


def without(hits: list[Hit], docid: str, k: int) -> list[Hit]:
    """The first ``k`` hits other than ``docid``."""
    return [hit for hit in hits if hit.docid != docid][:k]
