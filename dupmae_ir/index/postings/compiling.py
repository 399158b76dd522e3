"""What the compiled loops take, and when they pay: importing numba and loading its cached functions takes a third of a
second."""

from __future__ import annotations

import functools
import importlib.util
import sys
from typing import NamedTuple

import numpy as np

SMALL = 1 << 18
"""Numbers (impacts, or rows times queries) that numpy handles in a few milliseconds."""

MUCH = 128 * SMALL
"""Numbers that numpy handles in about the time that loading takes: a process that got so far is likely to go on."""

BLOCK = 64
"""Rows whose codes are multiplied together, component by component."""
GROUP = 32
"""Components of a block that are multiplied before its rows are bounded again."""

_LOOPS = "dupmae_ir.index.postings.kernels"
_left_to_numpy = 0


def pays(numbers: int) -> bool:
    """Whether to use :mod:`dupmae_ir.index.postings.kernels` for this amount of work; results are the same without.

    False without numba, and for small work in a process that has neither loaded the loops nor done much without them.
    """
    global _left_to_numpy
    if _LOOPS in sys.modules or numbers > SMALL or _left_to_numpy > MUCH:
        return _installed()
    # Threads may lose an addition to each other; then the loops are loaded a little later.
    _left_to_numpy += numbers
    return False


@functools.cache
def _installed() -> bool:
    return importlib.util.find_spec("numba") is not None


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


class Codes(NamedTuple):
    """What bounds inner products; see :mod:`dupmae_ir.index.format.rotated`.

    Shapes and types: ``head`` (g, b, 32, 64) int8, ``tail`` (n, t) int8, ``rests`` (g, 64 b) float32, ``errors`` (n,)
    float32, ``most_errors`` (b,) float32.
    """

    head: np.ndarray
    tail: np.ndarray
    rests: np.ndarray
    errors: np.ndarray
    most_errors: np.ndarray


class CodeQueries(NamedTuple):
    """Queries for :class:`Codes`, float32: ``constants`` (q,) and ``weights`` (q, d) times codes give the product of
    the decoded vectors; ``spreads`` (q, g) times ``rests`` bound what the groups after g add, ``own`` (q,) times
    ``errors`` what the codes lack; ``slacks`` (q,) bound the rounding of a sum. ``unit``: what one impact adds."""

    constants: np.ndarray
    weights: np.ndarray
    spreads: np.ndarray
    own: np.ndarray
    slacks: np.ndarray
    unit: np.float32
