"""Compiled integer matrix products. Needs numba, which is optional; import this module inside functions only.

The code uses only generic instructions; LLVM fuses them on processors that can multiply pairs of 16-bit integers
(AVX-512 VNNI, AVX2).
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from dupmae_ir.models.checkpoints.stored import GROUP

ROWS, OUTPUTS = 4, 64
"""Inputs and outputs multiplied together; their sums fill the registers."""
_WORD, _INDEX = ir.IntType(32), ir.IntType(64)
_LANES, _PAIRS, _BYTES = (
    ir.VectorType(ir.IntType(bits), n) for bits, n in ((32, 16), (32, 32), (8, 32))
)
_PARTS = range(OUTPUTS // 16)


@njit(nogil=True, cache=True)
def multiply(inputs, units, codes, factors, outputs):  # type: ignore[no-untyped-def]
    """See :class:`~dupmae_ir.models.inference.quantised_linear.QuantisedLinear`.

    ``inputs`` (l, k) int16, padded to a multiple of 4 rows; ``units`` (l, k / 64) float32; ``codes`` (n / 64, k / 2,
    64, 2) int8; ``factors`` (k / 64, n) float32; ``outputs`` (l, n) float32, zeros, modified in place.
    """
    width, groups = inputs.shape[1], len(factors)
    sums = np.empty((ROWS, OUTPUTS), np.int32)
    for panel in range(len(codes)):
        first = panel * OUTPUTS
        for group in range(groups):
            factor = factors[group, first : first + OUTPUTS]
            for row in range(0, len(inputs), ROWS):
                start = (panel * groups + group) * GROUP * OUTPUTS
                _sums(codes, start, inputs, row * width + group * GROUP, width, sums)
                for r in range(min(ROWS, len(units) - row)):
                    output, some, unit = (
                        outputs[row + r, first : first + OUTPUTS],
                        sums[r],
                        units[row + r, group],
                    )
                    for n in range(OUTPUTS):
                        output[n] += np.float32(some[n]) * (factor[n] * unit)


@intrinsic
def _sums(_, codes, start, inputs, first, width, sums):  # type: ignore[no-untyped-def]
    """Set (4, 64) int32 ``sums`` to the products of 64 components of four rows with the codes from byte ``start``."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        arrays = [
            context.make_array(signature.args[i])(context, builder, arguments[i]).data
            for i in (0, 2, 5)
        ]
        rows = [
            builder.add(arguments[3], builder.mul(arguments[4], _INDEX(r))) for r in range(ROWS)
        ]
        totals = [[_LANES([0] * 16) for _ in _PARTS] for _ in range(ROWS)]
        for pair in range(GROUP // 2):
            places = [
                builder.add(arguments[1], _INDEX(2 * OUTPUTS * pair + 32 * part)) for part in _PARTS
            ]
            weights = [
                builder.sext(_load(builder, arrays[0], place, _BYTES), _PAIRS) for place in places
            ]
            for row, sums_of_row in zip(rows, totals, strict=True):
                word = _load(builder, arrays[1], builder.add(row, _INDEX(2 * pair)), _WORD)
                lanes = builder.insert_element(ir.Constant(_LANES, ir.Undefined), word, _WORD(0))
                lanes = builder.shuffle_vector(lanes, lanes, _LANES([0] * 16))
                inputs = builder.sext(
                    builder.bitcast(lanes, ir.VectorType(ir.IntType(16), 32)), _PAIRS
                )
                for part in _PARTS:
                    products = builder.mul(weights[part], inputs)
                    for half in range(2):
                        odd_or_even = _LANES(list(range(half, 32, 2)))
                        some = builder.shuffle_vector(products, products, odd_or_even)
                        sums_of_row[part] = builder.add(sums_of_row[part], some)
        for row, sums_of_row in enumerate(totals):
            for part, total in enumerate(sums_of_row):
                place = builder.gep(arrays[2], [_INDEX(OUTPUTS * row + 16 * part)])
                builder.store(total, builder.bitcast(place, _LANES.as_pointer())).align = 4
        return context.get_dummy_value()

    return types.void(codes, start, inputs, first, width, sums), generate


def _load(builder: ir.IRBuilder, pointer: ir.Value, place: ir.Value, kind: ir.Type) -> ir.Value:
    """A value of this type from a place that need not be aligned."""
    value = builder.load(builder.bitcast(builder.gep(pointer, [place]), kind.as_pointer()))
    value.align = 1
    return value
