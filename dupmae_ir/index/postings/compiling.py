"""When compiled loops pay: importing numba and loading its cached functions takes a third of a second."""

from __future__ import annotations

import functools
import importlib.util
import sys

SMALL = 1 << 18
"""Numbers (impacts, or rows times queries) that numpy handles in a few milliseconds."""

MUCH = 128 * SMALL
"""Numbers that numpy handles in about the time that loading takes: a process that got so far is likely to go on."""

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
