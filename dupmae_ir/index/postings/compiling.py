"""Arguments of the compiled loops, in a module that needs no numba."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

BLOCK = 64
"""Rows whose first components are multiplied together."""
CHUNK = 128
"""Components per chunk; one half of each code, 64 bytes in all, is multiplied by one instruction."""

ALL = np.zeros(0, np.bool_)
"""The mask of all rows."""
# As the mask of a RowSet: numba would compile the loops again for a writable array.
ALL.flags.writeable = False


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
    """Several queries: terms (t,) int64 and weights (t,) int32, for query q from ``starts[q]`` to ``starts[q + 1]``."""

    starts: np.ndarray
    terms: np.ndarray
    weights: np.ndarray


class Kept(NamedTuple):
    """Candidates of a query, (m,), or of several, (q, m): rows int32, sums of impacts int32 and totals float32."""

    rows: np.ndarray
    sums: np.ndarray
    totals: np.ndarray


class Survivors(NamedTuple):
    """Rows (m,) int32 that can be among the best of a query, int32 sums of impacts, float32 upper and lower bounds."""

    rows: np.ndarray
    sums: np.ndarray
    totals: np.ndarray
    lowers: np.ndarray


class Codes(NamedTuple):
    """Codes of vectors, which bound inner products; see :mod:`dupmae_ir.index.format.rotated`.

    Shapes and types: ``head`` (b, 16, 64, 4), ``high`` (n, 64 (c - 1)) and ``low`` (n, 64 c) uint8, ``rests`` (64 b,)
    and ``errors`` (3, 64 b) float32.
    """

    head: np.ndarray
    high: np.ndarray
    low: np.ndarray
    rests: np.ndarray
    errors: np.ndarray


class CodeQuery(NamedTuple):
    """A query for :class:`Codes`.

    ``high`` and ``low`` (128 c,) int8: the bytes of integer weights. Twice their products with halves of codes, minus
    ``offsets`` (3,) int32 and times ``scale``, plus the ``constant`` are the product of decoded vectors. ``lengths``
    (3,) float32 times ``errors`` bound the error of the codes, ``spread`` times ``rests`` what the other chunks add to
    the first; ``slack`` bounds the rounding of a sum. ``unit``: the score of one unit of impact.
    """

    constant: np.float32
    high: np.ndarray
    low: np.ndarray
    offsets: np.ndarray
    scale: np.float32
    lengths: np.ndarray
    spread: np.float32
    slack: np.float32
    unit: np.float32
