"""The LLVM code of the transforms of `ops/planes/cpu/conv_winograd.py`.

Imported only to compile.  A lane is a channel, so every step is of whole vectors: sums and
differences of vectors, whose order is the same wherever a channel lies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir

from flowvm.ops.declare.cpu.vector_code import Emitter

if TYPE_CHECKING:
    from flowvm.private.code_types import Builder, Function, Value

TAPS, TILE = 3, 4  # rows and columns of a kernel, and of a tile


def emit_transform(name: str, dtype: str, lanes: int) -> ir.Module:
    """A module whose function `entry` is `transform_weights`, `transform_tiles` or
    `transform_sums`.
    """
    e = Emitter(ir.Module(), dtype, lanes)
    n, pointer = e.i64, e.pointer
    kinds, emit = {
        "weights": ([pointer, n, n, n, pointer, n, n], _emit_weights),
        "tiles": ([pointer, n, n, pointer, n, n], _emit_tiles),
        "sums": ([pointer, n, n, n, pointer, n, pointer, pointer], _emit_sums),
    }[name]
    emit(e, e.function("entry", kinds))
    return e.module


def _weights_of(e: Emitter, b: Builder, x: list[Value]) -> list[Value]:
    """Three weights of a line, times G: the weights at four places."""
    half = e.splat(b, ir.Constant(e.real, 0.5))
    ends, middle = b.fmul(half, b.fadd(x[0], x[2])), b.fmul(half, x[1])
    return [x[0], b.fadd(ends, middle), b.fsub(ends, middle), x[2]]


def _tile_of(b: Builder, x: list[Value]) -> list[Value]:
    """Four pixels of a line, times B transposed."""
    return [b.fsub(x[0], x[2]), b.fadd(x[1], x[2]), b.fsub(x[2], x[1]), b.fsub(x[1], x[3])]


def _sums_of(b: Builder, x: list[Value]) -> list[Value]:
    """The sums at four places, times A transposed: two results."""
    return [b.fadd(b.fadd(x[0], x[1]), x[2]), b.fsub(b.fsub(x[1], x[2]), x[3])]


def _emit_weights(e: Emitter, function: Function) -> None:
    w, step, following, count, u, place, u_following = function.args
    b = ir.IRBuilder(function.append_basic_block("entry"))

    def kernel(i: Value) -> None:
        source, target = b.gep(w, [b.mul(i, following)]), b.gep(u, [b.mul(i, u_following)])
        taps = [e.load(b, source, b.mul(step, e.i64(k))) for k in range(TAPS * TAPS)]
        columns = [_weights_of(e, b, taps[k::TAPS]) for k in range(TAPS)]
        for y in range(TILE):
            row = _weights_of(e, b, [column[y] for column in columns])
            for x, value in enumerate(row):
                e.store(b, value, target, b.mul(place, e.i64(TILE * y + x)))

    e.loop(b, e.i64(0), count, 1, kernel)
    b.ret_void()


def _emit_tiles(e: Emitter, function: Function) -> None:
    x, row, count, v, place, following = function.args
    b = ir.IRBuilder(function.append_basic_block("entry"))

    def column(at: Value) -> list[Value]:
        """A column of four pixels, transformed."""
        return _tile_of(b, [e.load(b, b.gep(x, [b.mul(row, e.i64(k))]), at) for k in range(TILE)])

    def tile(i: Value, state: list[Value]) -> list[Value]:
        at = b.mul(i, e.i64(2 * e.lanes))
        later = [column(b.add(at, e.i64(k * e.lanes))) for k in (2, 3)]
        columns = [state[:TILE], state[TILE:], *later]
        target = b.gep(v, [b.mul(i, following)])
        for y in range(TILE):
            for k, value in enumerate(_tile_of(b, [line[y] for line in columns])):
                e.store(b, value, target, b.mul(place, e.i64(TILE * y + k)))
        return [*later[0], *later[1]]

    before = [*column(e.i64(0)), *column(e.i64(e.lanes))]  # which a tile and the next have both
    e.counted(b, count, 1, before, tile)
    b.ret_void()


def _emit_sums(e: Emitter, function: Function) -> None:
    m, place, following, count, y, row, bias, flags = function.args
    b = ir.IRBuilder(function.append_basic_block("entry"))
    plus = e.load(b, bias, 0)

    def tile(i: Value, state: list[Value]) -> list[Value]:
        k = b.sub(b.sub(count, e.i64(1)), i)  # from the right: see `transform_sums`
        source = b.gep(m, [b.mul(k, following)])
        target = b.gep(y, [b.mul(k, e.i64(2 * e.lanes))])
        sums = [e.load(b, source, b.mul(place, e.i64(t))) for t in range(TILE * TILE)]
        columns = [_sums_of(b, sums[t::TILE]) for t in range(TILE)]
        (flag,) = state
        for line in range(2):
            at = b.gep(target, [row]) if line else target
            for across, value in enumerate(_sums_of(b, [column[line] for column in columns])):
                total = b.fadd(value, plus)
                flag = e.fma(b, total, e.zero, flag)  # no number, if the total is not finite
                e.store(b, total, at, across * e.lanes)
        return [flag]

    _, (flag,) = e.counted(b, count, 1, [e.load(b, flags, 0)], tile)
    e.store(b, flag, flags, 0)
    b.ret_void()
