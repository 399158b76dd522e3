"""Inner products of 4-bit codes with whole-number weights, as instructions for numba's compiler.

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

_WORD, _LANES = ir.IntType(32), ir.VectorType(ir.IntType(32), 16)
_VNNI = "llvm.x86.avx512.vpdpbusd.512"

Pair = tuple[ir.Value, ir.Value]  # what belongs to the high bytes of weights, and to the low


@intrinsic
def block_products(_, codes, high, low, products):  # type: ignore[no-untyped-def]
    """Set (64,) int32 ``products`` to those of a chunk of 64 rows, (16, 64, 4) uint8, with (128,) int8 weights."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        of, *weights, to = _pointers(context, builder, signature, arguments)
        sums = [(_lanes(0), _lanes(0))] * 4
        for four in range(16):
            places = _place(4 * four), _place(4 * four + 64)
            pairs = [
                tuple(_spread(builder, _load(builder, p, place, _WORD)) for p in weights)
                for place in places
            ]
            for rows in range(4):
                some = _load(builder, of, _place(256 * four + 64 * rows), _LANES)
                sums[rows] = _added(context, builder, sums[rows], some, pairs)
        for rows in range(4):
            place = builder.bitcast(builder.gep(to, [_place(16 * rows)]), _LANES.as_pointer())
            builder.store(_joined(builder, sums[rows]), place).align = 4
        return context.get_dummy_value()

    return types.void(codes, high, low, products), generate


@intrinsic
def row_product(_, codes, start, high, low, first, chunks):  # type: ignore[no-untyped-def]
    """The product, int32, of ``chunks`` chunks of a row, bytes from ``start``, with the weights from ``first``."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        of, *weights = _pointers(context, builder, signature, arguments)
        of, *weights = (
            builder.gep(of, [arguments[1]]),
            *(builder.gep(p, [arguments[4]]) for p in weights),
        )
        sums = [cgutils.alloca_once_value(builder, _lanes(0)) for _ in weights]
        with cgutils.for_range(builder, arguments[5]) as chunk:
            some = _load(builder, of, builder.mul(chunk.index, _place(64)), _LANES)
            halves = [
                builder.add(builder.mul(chunk.index, _place(128)), _place(half)) for half in (0, 64)
            ]
            pairs = [tuple(_load(builder, p, half, _LANES) for p in weights) for half in halves]
            before = builder.load(sums[0]), builder.load(sums[1])
            for at, after in zip(sums, _added(context, builder, before, some, pairs), strict=True):
                builder.store(after, at)
        total = _joined(builder, [builder.load(at) for at in sums])
        kind = ir.FunctionType(_WORD, [_LANES])
        return builder.call(
            builder.module.declare_intrinsic("llvm.vector.reduce.add.v16i32", (), kind), [total]
        )

    return types.int32(codes, start, high, low, first, chunks), generate


@intrinsic
def near_rows(_, bounds, start, least):  # type: ignore[no-untyped-def]
    """Which of 64 float32 bounds from ``start`` are not below ``least``: a bit of a uint64 each."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        (of,) = _pointers(context, builder, signature, arguments)
        some = _load(builder, of, arguments[1], ir.VectorType(ir.FloatType(), 64))
        return builder.bitcast(
            builder.fcmp_unordered(">=", some, _spread(builder, arguments[2], 64)), ir.IntType(64)
        )

    return types.uint64(bounds, start, least), generate


def _added(
    context: BaseContext, builder: ir.IRBuilder, sums: Pair, codes: ir.Value, pairs: list[Pair]
) -> Pair:
    """The sums with the products of 64 bytes of codes and the weights of their low and of their high halves added."""
    vnni = "+avx512vnni" in context.codegen().magic_tuple()[2]
    for shift, pair in zip((0, 4), pairs, strict=True):
        half = builder.and_(builder.lshr(codes, _lanes(shift)), _lanes(0x0F0F0F0F))
        if vnni:
            dot = builder.module.declare_intrinsic(_VNNI, (), ir.FunctionType(_LANES, [_LANES] * 3))
            sums = (
                builder.call(dot, [sums[0], half, pair[0]]),
                builder.call(dot, [sums[1], half, pair[1]]),
            )
            continue
        for byte in range(0, 32, 8):
            code = builder.and_(builder.lshr(half, _lanes(byte)), _lanes(15))
            signed = [
                builder.ashr(builder.shl(bytes_, _lanes(24 - byte)), _lanes(24)) for bytes_ in pair
            ]
            sums = sums[0], builder.add(sums[1], builder.mul(code, _joined(builder, signed)))
    return sums


def _joined(builder: ir.IRBuilder, pair: Sequence[ir.Value]) -> ir.Value:
    return builder.add(builder.shl(pair[0], _lanes(8)), pair[1])


def _pointers(
    context: BaseContext, builder: ir.IRBuilder, signature: Signature, values: Sequence[ir.Value]
) -> list[ir.Value]:
    """Pointers to the data of those arguments that are arrays."""
    pairs = zip(signature.args, values, strict=True)
    return [
        context.make_array(kind)(context, builder, a).data
        for kind, a in pairs
        if isinstance(kind, types.Array)
    ]


def _load(builder: ir.IRBuilder, pointer: ir.Value, place: ir.Value, kind: ir.Type) -> ir.Value:
    """A value of this type from a place that need not be aligned."""
    value = builder.load(builder.bitcast(builder.gep(pointer, [place]), kind.as_pointer()))
    value.align = 1
    return value


def _spread(builder: ir.IRBuilder, value: ir.Value, times: int = 16) -> ir.Value:
    one = ir.Constant(ir.VectorType(value.type, times), ir.Undefined)
    one = builder.insert_element(one, value, ir.Constant(_WORD, 0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(_WORD, times), [0] * times))


def _lanes(number: int) -> ir.Constant:
    return ir.Constant(_LANES, [number] * 16)


def _place(number: int) -> ir.Constant:
    return ir.Constant(ir.IntType(64), number)
