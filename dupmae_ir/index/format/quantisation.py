"""The impact scale: how it is chosen, checked and applied.

An impact is an OT weight times one global scale ``S``, rounded to an integer from 1 to 255 (one byte, and what Lucene
stores as a term frequency). The scale is the one asked for, else the model's own, else calibrated on the first
documents of the collection. It is fixed before the first impact is stored, recorded as ``scale`` in the index's
``meta.json``, and applied to queries as well, so a sum of products of impacts is ``S**2`` times the inner product.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dupmae_ir.errors import IndexMismatch

if TYPE_CHECKING:
    import scipy.sparse as sp

    from dupmae_ir.types import Representation

HIGHEST_IMPACT = 255
HIGHEST_LEXICAL_QUERY = 8191
"""Highest impact of a query term with lexical weights, which the documents' weights do not bound. Sums of 1,024 such
terms stay below 2**31; the sums of usual queries stay below 2**24, up to which Lucene's float32 scores are exact."""
CALIBRATION = 512
"""Documents in the first window at most, on which a scale is calibrated."""
HEADROOM = 1.1
"""How far later weights may exceed the largest calibrated one before they are clipped."""
UNCALIBRATED_SCALE = 32.0
"""For collections whose first documents have no weights at all."""


class Scale(NamedTuple):
    """The scale of an index and where it comes from, in words."""

    value: float
    source: str


def choose_scale(asked_for: float | None, of_model: float | None, first: Representation) -> Scale:
    """The scale asked for, else the model's own, else one calibrated on ``first``, the first documents."""
    if asked_for:
        return Scale(asked_for, "asked for")
    if of_model:
        return Scale(of_model, "the model's own")
    n = len(first)
    calibrated = calibrated_scale(first)
    if calibrated is None:
        return Scale(UNCALIBRATED_SCALE, f"the first {n} documents have no weight to calibrate on")
    return Scale(calibrated, f"255 / ({HEADROOM} x the largest weight of the first {n} documents)")


def calibrated_scale(first: Representation) -> float | None:
    """S = 255 / (1.1 x largest weight), to 4 significant digits so that all hardware computes the same number.

    None when there are no weights.
    """
    if first.ot is None or not first.ot.nnz:
        return None
    largest = float(first.ot.data.max())
    if not largest > 0:  # also for NaN
        return None
    return float(f"{HIGHEST_IMPACT / (HEADROOM * largest):.4g}")


def is_scale(value: object) -> bool:
    """Whether ``value`` can be a scale: a positive, finite number."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and value > 0
        and math.isfinite(value)
    )


def highest_query_impact(form: str) -> int:
    """The highest impact of a query term for an OT part of this form, ``mlm`` or ``lexical``."""
    return HIGHEST_LEXICAL_QUERY if form == "lexical" else HIGHEST_IMPACT


def quantise(
    ot: sp.csr_matrix, scale: float, highest: int = HIGHEST_IMPACT
) -> tuple[sp.csr_matrix, int]:
    """OT weights (n, V) -> impacts (n, V) CSR with ascending columns, and how many were clipped to ``highest``.

    Impacts are rounded as by :func:`rounded`; zeros are dropped.
    """
    import scipy.sparse as sp

    exact = sp.csr_matrix(ot, dtype=np.float64, copy=True)
    exact.sum_duplicates()  # also sorts the columns
    values, clipped = rounded(exact.data, scale, highest)
    impacts = sp.csr_matrix((values, exact.indices, exact.indptr), shape=exact.shape)
    impacts.eliminate_zeros()
    return impacts, clipped


def rounded(
    weights: np.ndarray, scale: float, highest: int = HIGHEST_IMPACT
) -> tuple[np.ndarray, int]:
    """(m,) weights -> (m,) impacts, 0 for weights that are not above 0, and how many were clipped to ``highest``.

    Impacts are uint8, or uint16 if ``highest`` is above 255 (queries only): weight * scale in float64, rounded half
    to even. Raises :class:`IndexMismatch` for a weight that is not finite.
    """
    exact = np.asarray(weights, np.float64)
    if not np.isfinite(exact).all():
        raise IndexMismatch("an OT weight is not finite; check the model's weights and `dtype`")
    scaled = np.rint(exact * scale)
    kind = np.uint8 if highest <= HIGHEST_IMPACT else np.uint16
    impacts = np.clip(scaled, 0, highest).astype(kind)
    return impacts, int(np.count_nonzero(scaled > highest))


def dropped(ot: sp.csr_matrix, impacts: sp.csr_matrix) -> int:
    """How many non-zero weights of ``ot`` are no longer in ``impacts``, because they were rounded to 0."""
    return int(np.count_nonzero(ot.data)) - int(impacts.nnz)
