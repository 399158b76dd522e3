"""Compiled loops over the numbers of a query's states. Needs numba, which is optional; import this module inside
functions only.

Each returns the bits of its numpy version, which passes over its input a dozen times: together a third of a query's
time. No operation is fused with the next, since that would round once where numpy rounds twice.
"""

from __future__ import annotations

import numpy as np

from dupmae_ir.compiled import compiled
from dupmae_ir.models.checkpoints.stored import GROUP

_WHOLE = np.float32(1.5 * 2**23)
"""x + _WHOLE - _WHOLE is x rounded to a whole number, half to even, for abs(x) < 2 ** 22: so large float32 numbers have
no fractions. numba calls a function for each np.rint."""
_BLOCK = 512
"""Numbers that each loop over a block handles; their intermediate results stay in the cache."""


@compiled
def round_groups(x, largest_input, smallest, inputs, units):  # type: ignore[no-untyped-def]
    """See :class:`~dupmae_ir.models.inference.quantised_linear.QuantisedLinear`.

    ``x`` (l, k) float32; ``largest_input`` and ``smallest`` float32; set are ``inputs`` (l or more, k) int16 and
    ``units`` (l, k / 64) float32.
    """
    for row in range(len(x)):
        for group in range(units.shape[1]):
            numbers = x[row, group * GROUP : (group + 1) * GROUP]
            rounded = inputs[row, group * GROUP : (group + 1) * GROUP]
            largest = smallest
            for i in range(GROUP):
                largest = max(largest, abs(numbers[i]))
            unit = largest / largest_input
            units[row, group] = unit
            for i in range(GROUP):
                rounded[i] = np.int16(numbers[i] / unit + _WHOLE - _WHOLE)


@compiled
def gelu(x, values, slopes, steps, max_point, outputs):  # type: ignore[no-untyped-def]
    """See :func:`~dupmae_ir.models.inference.query_model.gelu` and
    :func:`~dupmae_ir.models.inference.query_model.erf`.

    ``x`` and ``outputs`` (n,) float32; ``values`` and ``slopes`` float32, of the error function at multiples of
    1 / ``steps`` up to ``max_point``, both float32.
    """
    one = np.float32(1)
    two = np.float32(2)
    three = np.float32(3)
    half = np.float32(0.5)
    root_half = np.float32(0.5**0.5)
    sizes = np.empty(_BLOCK, np.float32)
    points = np.empty(_BLOCK, np.uint32)
    point_values = np.empty(_BLOCK, np.float32)
    point_slopes = np.empty(_BLOCK, np.float32)
    for start in range(0, len(x), _BLOCK):
        numbers = x[start : start + _BLOCK]
        results = outputs[start : start + _BLOCK]
        # Three loops, since one that reads the table as well would not be vectorised.
        for i in range(len(numbers)):
            sizes[i] = min(abs(numbers[i] * root_half), max_point)
            points[i] = np.uint32(sizes[i] * steps + _WHOLE - _WHOLE)
        for i in range(len(numbers)):
            point_values[i] = values[points[i]]
            point_slopes[i] = slopes[points[i]]
        for i in range(len(numbers)):
            a = np.float32(points[i]) / steps
            h = sizes[i] - a
            correction = one - a * h + (two * a * a - one) * h * h / three
            erf = point_values[i] + point_slopes[i] * h * correction
            if numbers[i] < 0:
                erf = -erf
            results[i] = numbers[i] * (one + erf) * half
