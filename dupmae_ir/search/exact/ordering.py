"""The order of every ranked list: score descending, equal scores by docid ascending."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dupmae_ir.types import Hit


def best_positions(scores: np.ndarray, ranks: np.ndarray, k: int) -> np.ndarray:
    """Positions of the ``k`` best of (m,) ``scores``, best first: (min(k, m),) int64.

    ``ranks`` (m,) breaks ties, lowest first, including ties at the k-th place.
    """
    kept = np.arange(len(scores))
    if k < len(scores):
        kth = np.partition(scores, len(scores) - k)[len(scores) - k]
        kept = np.flatnonzero(scores >= kth)
    order = np.lexsort((ranks[kept], -scores[kept]))
    return kept[order[:k]]


def without(hits: Sequence[Hit], docid: str, k: int) -> list[Hit]:
    """The first ``k`` hits other than ``docid``."""
    return [hit for hit in hits if hit.docid != docid][:k]
