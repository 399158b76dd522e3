"""Inner products of 4-bit codes with integer weights, as instructions for numba's compiler.

A chunk is 128 components: byte i of its 64 has the code of component i in its low half and that of component i + 64 in
its high half. A weight w, |w| <= 32,512, is two signed bytes: w = 256 high + low. Where the processor has AVX-512 VNNI,
one instruction multiplies 64 codes by bytes of weights and adds them in fours; elsewhere shifts and products of 32 bits
give the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.base import BaseContext
from numba.core.typing.templates import Signature
from numba.extending import intrinsic

from dupmae_ir.compiled import has_vnni

_WORD = ir.IntType(32)
_LANES = ir.VectorType(_WORD, 16)
"""A register of AVX-512: 16 numbers of 32 bits, or 64 bytes. Elsewhere LLVM splits it into narrower ones."""
_VNNI = "llvm.x86.avx512.vpdpbusd.512"
"""Multiplies 64 unsigned bytes by 64 signed ones and adds them, four at a time, to 16 sums."""

Pair = tuple[ir.Value, ir.Value]  # what belongs to the high bytes of weights, and to the low


@intrinsic
def block_products(_, codes, high, low, products):  # type: ignore[no-untyped-def]
    """Set (64,) int32 ``products`` of a chunk of 64 rows, (16, 64, 4) uint8, with (128,) int8 bytes of weights."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        codes_at, high_at, low_at, products_at = _pointers(context, builder, signature, arguments)
        # Four registers hold the sums of 64 rows; each lane belongs to one row. The loops are unrolled here: they emit
        # instructions.
        sums = [(_lanes(0), _lanes(0))] * 4
        for four in range(16):
            # Four components of the low halves and four of the high halves: their weights are the same for every row.
            pairs = []
            for component in (4 * four, 4 * four + 64):
                high_word = _load(builder, high_at, _index(component), _WORD)
                low_word = _load(builder, low_at, _index(component), _WORD)
                pairs.append((_spread(builder, high_word), _spread(builder, low_word)))
            for group in range(4):
                codes_of_group = _load(builder, codes_at, _index(256 * four + 64 * group), _LANES)
                sums[group] = _add_products(context, builder, sums[group], codes_of_group, pairs)
        for group in range(4):
            target = builder.gep(products_at, [_index(16 * group)])
            target = builder.bitcast(target, _LANES.as_pointer())
            builder.store(_combine_bytes(builder, sums[group]), target).align = 4
        return context.get_dummy_value()

    return types.void(codes, high, low, products), generate


@intrinsic
def row_product(_, codes, start, high, low, first, chunks):  # type: ignore[no-untyped-def]
    """The product, int32, of ``chunks`` chunks of a row, bytes from ``start``, with the weights from ``first``."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        codes_at, high_at, low_at = _pointers(context, builder, signature, arguments)
        codes_at = builder.gep(codes_at, [arguments[1]])
        high_at = builder.gep(high_at, [arguments[4]])
        low_at = builder.gep(low_at, [arguments[4]])
        # On the stack, since a loop cannot assign values; the optimizer keeps them in registers.
        high_sum_at = cgutils.alloca_once_value(builder, _lanes(0))
        low_sum_at = cgutils.alloca_once_value(builder, _lanes(0))
        with cgutils.for_range(builder, arguments[5]) as chunk:
            codes_of_chunk = _load(builder, codes_at, builder.mul(chunk.index, _index(64)), _LANES)
            pairs = []
            for half in (0, 64):
                component = builder.add(builder.mul(chunk.index, _index(128)), _index(half))
                high_weights = _load(builder, high_at, component, _LANES)
                low_weights = _load(builder, low_at, component, _LANES)
                pairs.append((high_weights, low_weights))
            sums = (builder.load(high_sum_at), builder.load(low_sum_at))
            high_sum, low_sum = _add_products(context, builder, sums, codes_of_chunk, pairs)
            builder.store(high_sum, high_sum_at)
            builder.store(low_sum, low_sum_at)
        total = _combine_bytes(builder, (builder.load(high_sum_at), builder.load(low_sum_at)))
        add_lanes = builder.module.declare_intrinsic(
            "llvm.vector.reduce.add.v16i32", (), ir.FunctionType(_WORD, [_LANES])
        )
        return builder.call(add_lanes, [total])

    return types.int32(codes, start, high, low, first, chunks), generate


@intrinsic
def near_rows(_, bounds, start, threshold):  # type: ignore[no-untyped-def]
    """Which of 64 float32 bounds from ``start`` are not below ``threshold``: a bit of a uint64 each."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        (bounds_at,) = _pointers(context, builder, signature, arguments)
        block = _load(builder, bounds_at, arguments[1], ir.VectorType(ir.FloatType(), 64))
        # Unordered: true for NaN, which excludes no row.
        near = builder.fcmp_unordered(">=", block, _spread(builder, arguments[2], 64))
        return builder.bitcast(near, ir.IntType(64))

    return types.uint64(bounds, start, threshold), generate


def _add_products(
    context: BaseContext, builder: ir.IRBuilder, sums: Pair, codes: ir.Value, pairs: list[Pair]
) -> Pair:
    """Add the products of 64 bytes of codes and weights to the sums.

    ``pairs``: the weights of the codes' low halves, then of their high halves. With VNNI each sum has the products of
    its byte of the weights. Otherwise the second has the products of complete weights and the first stays 0, so
    :func:`_combine_bytes` gives the same number.
    """
    vnni = has_vnni(context)
    for shift, pair in zip((0, 4), pairs, strict=True):
        half = builder.and_(builder.lshr(codes, _lanes(shift)), _lanes(0x0F0F0F0F))
        if vnni:
            dot = builder.module.declare_intrinsic(_VNNI, (), ir.FunctionType(_LANES, [_LANES] * 3))
            high_sum = builder.call(dot, [sums[0], half, pair[0]])
            low_sum = builder.call(dot, [sums[1], half, pair[1]])
            sums = (high_sum, low_sum)
            continue
        for bit in range(0, 32, 8):
            code = builder.and_(builder.lshr(half, _lanes(bit)), _lanes(15))
            # To the top of the lane and back down with an arithmetic shift: the byte with its sign.
            high, low = (
                builder.ashr(builder.shl(weights, _lanes(24 - bit)), _lanes(24)) for weights in pair
            )
            product = builder.mul(code, _combine_bytes(builder, (high, low)))
            sums = (sums[0], builder.add(sums[1], product))
    return sums


def _combine_bytes(builder: ir.IRBuilder, pair: Pair) -> ir.Value:
    """256 times the value of the high bytes plus the value of the low bytes."""
    return builder.add(builder.shl(pair[0], _lanes(8)), pair[1])


def _pointers(
    context: BaseContext, builder: ir.IRBuilder, signature: Signature, values: Sequence[ir.Value]
) -> list[ir.Value]:
    """Pointers to the data of those arguments that are arrays."""
    pointers = []
    for kind, value in zip(signature.args, values, strict=True):
        if isinstance(kind, types.Array):
            pointers.append(context.make_array(kind)(context, builder, value).data)
    return pointers


def _load(builder: ir.IRBuilder, pointer: ir.Value, index: ir.Value, kind: ir.Type) -> ir.Value:
    """A value of type ``kind`` at an index of an array, which need not be aligned for it."""
    value = builder.load(builder.bitcast(builder.gep(pointer, [index]), kind.as_pointer()))
    value.align = 1
    return value


def _spread(builder: ir.IRBuilder, value: ir.Value, lanes: int = 16) -> ir.Value:
    """A vector with ``value`` in every lane."""
    vector = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
    vector = builder.insert_element(vector, value, ir.Constant(_WORD, 0))
    first_lane = ir.Constant(ir.VectorType(_WORD, lanes), [0] * lanes)
    return builder.shuffle_vector(vector, vector, first_lane)


def _lanes(number: int) -> ir.Constant:
    return ir.Constant(_LANES, [number] * 16)


def _index(number: int) -> ir.Constant:
    return ir.Constant(ir.IntType(64), number)
