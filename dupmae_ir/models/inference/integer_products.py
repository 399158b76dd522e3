"""Compiled integer matrix products. Needs numba, which is optional; import this module inside functions only.

Where the processor has AVX-512 VNNI, one instruction multiplies pairs of 16-bit integers and adds them to sums. It is
written as assembly: for Intel's processors LLVM replaces it by two instructions, with which the products take 1.9 times
as long. Elsewhere LLVM fuses generic code into the instructions that the processor has (AVX2).
"""

from __future__ import annotations

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.extending import intrinsic

from dupmae_ir.compiled import compiled, has_vnni
from dupmae_ir.models.checkpoints.stored import GROUP

ROWS = 4
"""Inputs multiplied together."""
OUTPUTS = 64
"""Outputs computed together; the sums of so many rows and outputs fill the registers."""
_WORD = ir.IntType(32)
_INDEX = ir.IntType(64)
_LANES = ir.VectorType(ir.IntType(32), 16)
"""Sums of 16 outputs."""
_PAIRS = ir.VectorType(ir.IntType(16), 32)
"""Factors of 16 outputs, two components of the input each."""
_BYTES = ir.VectorType(ir.IntType(8), 32)
"""The codes of these."""
_VNNI = "vpdpwssd $3, $2, $0"
"""Multiplies 32 signed numbers of 16 bits by 32 others and adds them, two at a time, to 16 sums."""
# numba leaves it out, and LLVM ends the process where assembly is to be compiled without it.
binding.initialize_native_asmparser()
_PARTS = range(OUTPUTS // 16)
_HAS_WIDE_REGISTERS = bool(binding.get_host_cpu_features().get("avx512bw"))
_TOGETHER = [list(_PARTS)] if _HAS_WIDE_REGISTERS else [[part] for part in _PARTS]
"""Parts whose sums are in registers together: all, in 32 registers of 64 bytes (AVX-512); one, in 16 of 32 bytes."""


@compiled
def multiply(inputs, units, codes, factors, outputs):  # type: ignore[no-untyped-def]
    """See :class:`~dupmae_ir.models.inference.quantised_linear.QuantisedLinear`.

    ``inputs`` (l, k) int16, padded to a multiple of 4 rows; ``units`` (l, k / 64) float32; ``codes`` (n / 64, k / 2,
    64, 2) int8; ``factors`` (k / 64, n) float32; ``outputs`` (l, n) float32, zeros, modified in place.
    """
    width = inputs.shape[1]
    groups = len(factors)
    sums = np.empty((ROWS, OUTPUTS), np.int32)
    for panel in range(len(codes)):
        first = panel * OUTPUTS
        for group in range(groups):
            factor = factors[group, first : first + OUTPUTS]
            for row in range(0, len(inputs), ROWS):
                start = (panel * groups + group) * GROUP * OUTPUTS
                _sums(codes, start, inputs, row * width + group * GROUP, width, sums)
                # Without the rows of padding.
                for r in range(min(ROWS, len(units) - row)):
                    output = outputs[row + r, first : first + OUTPUTS]
                    row_sums = sums[r]
                    unit = units[row + r, group]
                    # In the order of the numpy version, so that both give the same bits.
                    for n in range(OUTPUTS):
                        output[n] += np.float32(row_sums[n]) * (factor[n] * unit)


@intrinsic
def _sums(_, codes, start, inputs, first, width, sums):  # type: ignore[no-untyped-def]
    """Set (4, 64) int32 ``sums`` to the products of 64 components of four rows with the codes from byte ``start``."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        def data_of(index):  # type: ignore[no-untyped-def]
            array = context.make_array(signature.args[index])
            return array(context, builder, arguments[index]).data

        codes_data = data_of(0)
        inputs_data = data_of(2)
        sums_data = data_of(5)
        add_products = _add_by_vnni if has_vnni(context) else _add_products
        # The first component of each row.
        row_starts = [
            builder.add(arguments[3], builder.mul(arguments[4], _INDEX(r))) for r in range(ROWS)
        ]
        for parts in _TOGETHER:
            totals = [dict.fromkeys(parts, _LANES([0] * 16)) for _ in range(ROWS)]
            # Unrolled: a pair of components at a time, since processors multiply and add pairs of 16-bit integers.
            for pair in range(GROUP // 2):
                weights = {}
                for part in parts:
                    offset = builder.add(arguments[1], _INDEX(2 * OUTPUTS * pair + 32 * part))
                    codes_of_part = _load(builder, codes_data, offset, _BYTES)
                    weights[part] = builder.sext(codes_of_part, _PAIRS)
                for row_start, row_totals in zip(row_starts, totals, strict=True):
                    # Two int16 components as one word, which is copied to all lanes.
                    position = builder.add(row_start, _INDEX(2 * pair))
                    word = _load(builder, inputs_data, position, _WORD)
                    lanes = builder.insert_element(
                        ir.Constant(_LANES, ir.Undefined), word, _WORD(0)
                    )
                    lanes = builder.shuffle_vector(lanes, lanes, _LANES([0] * 16))
                    inputs = builder.bitcast(lanes, _PAIRS)
                    for part in parts:
                        row_totals[part] = add_products(
                            builder, row_totals[part], weights[part], inputs
                        )
            for row, row_totals in enumerate(totals):
                for part, total in row_totals.items():
                    target = builder.gep(sums_data, [_INDEX(OUTPUTS * row + 16 * part)])
                    builder.store(total, builder.bitcast(target, _LANES.as_pointer())).align = 4
        return context.get_dummy_value()

    return types.void(codes, start, inputs, first, width, sums), generate


def _add_by_vnni(
    builder: ir.IRBuilder, sums: ir.Value, weights: ir.Value, inputs: ir.Value
) -> ir.Value:
    """As :func:`_add_products`, by one instruction."""
    # The first of the three registers that are read is the one that is written.
    dot = ir.InlineAsm(ir.FunctionType(_LANES, [_LANES] * 3), _VNNI, "=v,0,v,v")
    factors = [builder.bitcast(values, _LANES) for values in (weights, inputs)]
    return builder.call(dot, [sums, *factors])


def _add_products(
    builder: ir.IRBuilder, sums: ir.Value, weights: ir.Value, inputs: ir.Value
) -> ir.Value:
    """``sums`` plus the products of 32 pairs, two at a time."""
    wide = ir.VectorType(_WORD, 32)
    products = builder.mul(builder.sext(weights, wide), builder.sext(inputs, wide))
    for half in range(2):
        odd_or_even = _LANES(list(range(half, 32, 2)))
        sums = builder.add(sums, builder.shuffle_vector(products, products, odd_or_even))
    return sums


def _load(builder: ir.IRBuilder, pointer: ir.Value, offset: ir.Value, kind: ir.Type) -> ir.Value:
    """A value of this type from an offset that need not be aligned."""
    value = builder.load(builder.bitcast(builder.gep(pointer, [offset]), kind.as_pointer()))
    value.align = 1
    return value
