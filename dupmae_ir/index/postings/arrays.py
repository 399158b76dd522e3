"""The arrays of the postings and of a search, as the compiled loops and numpy take them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Files(NamedTuple):
    """The arrays of the postings; see :mod:`dupmae_ir.index.postings.format` for what they contain.

    Shapes and types: ``starts`` (w + 1,) int64, ``pointers`` (w, V + 1) uint32, ``maxima`` (w, V) uint8, ``rows`` (s,)
    uint16, ``impacts`` (s,) uint8, ``columns`` (w, V) uint16, ``column_starts`` (w + 1,) int64, ``dense`` (d,) uint8.
    """

    starts: np.ndarray
    pointers: np.ndarray
    maxima: np.ndarray
    rows: np.ndarray
    impacts: np.ndarray
    columns: np.ndarray
    column_starts: np.ndarray
    dense: np.ndarray


class Queries(NamedTuple):
    """Several queries: terms (t,) int64 and weights (t,) int32; query q has those from ``starts[q]`` to the next."""

    starts: np.ndarray
    terms: np.ndarray
    weights: np.ndarray


class Kept(NamedTuple):
    """Candidates of each query, (q, m): their rows int32, sums of impacts int32 and totals float32."""

    rows: np.ndarray
    sums: np.ndarray
    totals: np.ndarray
