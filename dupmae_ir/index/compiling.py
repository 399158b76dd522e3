"""When compiled loops pay: importing numba and loading its cached functions takes a third of a second."""

from __future__ import annotations

import functools
import importlib.util
import sys

SMALL = 1 << 18
"""Numbers (impacts, or rows times queries) that numpy handles in a few milliseconds."""


def pays(numbers: int) -> bool:
    """Whether to use :mod:`dupmae_ir.index.kernels` for this amount of work; results are the same without.

    False without numba, and for small work in a process that has not loaded the kernels.
    """
    return ("dupmae_ir.index.kernels" in sys.modules or numbers > SMALL) and _installed()


@functools.cache
def _installed() -> bool:
    return importlib.util.find_spec("numba") is not None
