"""Maxima of a row of windows, with their places, in registers.

Lanes are neighbours in the row of results.  All taps of a window go by while the best values and
their taps stay in registers; every second element comes out of two loads.  Reads that would leave
the plane, and rows shorter than a vector, go under a mask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flowvm.compiler.native import ARRAYS, Intrinsic
from flowvm.errors import CompileError
from flowvm.meta.arrays import Array
from flowvm.ops.declare.cpu.vector_code import Emitter, emitter, registers

STRIDES = (1, 2, 3, 4)  # those whose elements are picked out of vectors

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowvm.private.code_types import Builder, Function, Module, Value


def _max_python(
    out: Array, index: Array, to: int, x: Array, at: int, place: int, count: int, rows: int,
    apart: int, taps: int, step: int, gap: int, edge: int, width: int, room: int,
) -> None:  # fmt: skip
    for j in range(count):
        best, where = None, place
        for b in range(rows):
            for e in range(taps):
                column = j * step - edge + e * gap
                if 0 <= column < width:
                    v = x[at + b * apart + column]
                    if best is None or v > best or v != v:
                        best, where = v, place + b * apart + column
        out[to + j] = best
        index[to + j] = where


class _Maxima(Emitter):
    """The function `max_row`; `index` is a vector of int32."""

    def __init__(self, module: Module, dtype: str) -> None:
        size = max(4, np.dtype(dtype).itemsize)
        super().__init__(module, dtype, registers().bytes // size)
        kind = np.dtype(dtype).kind
        self.signed = kind == "i"
        self.index = self.ir.VectorType(self.i32, self.lanes)
        lowest = float("-inf") if kind == "f" else int(np.iinfo(dtype).min) if self.signed else 0
        self.lowest = self.ir.Constant(self.vector, [self.real(lowest)] * self.lanes)
        self.steps = self.ir.Constant(self.index, [self.i32(k) for k in range(self.lanes)])

    def many(self, b: Builder, number: Value) -> Value:
        """An int64 in each lane of an index."""
        return self.splat(b, b.trunc(number, self.i32), self.index)

    def inside(self, b: Builder, columns: Value, width: Value) -> Value:
        """A mask of the columns that a row of the plane has."""
        return b.icmp_unsigned("<", columns, width)

    def larger(self, b: Builder, v: Value, best: Value) -> Value:
        """A mask of what is larger, or no number."""
        if np.dtype(self.dtype).kind == "f":
            return b.or_(b.fcmp_ordered(">", v, best), b.fcmp_unordered("uno", v, v))
        return (b.icmp_signed if self.signed else b.icmp_unsigned)(">", v, best)

    def masked(self, b: Builder, x: Value, at: Value, columns: Value, width: Value) -> Value:
        """The vector at a place; `lowest` where the row has no such column."""
        args = [self.vector, self.vector.as_pointer(), self.i32, self.bits, self.vector]
        load = self.declared(f"llvm.masked.load.{self.suffix}.p0", self.vector, args[1:])
        place = b.bitcast(b.gep(x, [at]), self.vector.as_pointer())
        mask = self.inside(b, columns, width)
        return b.call(load, [place, self.i32(self.size), mask, self.lowest])

    def begins(self, stride: int) -> list[int]:
        """Return the begins of vectors with every `stride`-th element; the last ends with one."""
        return [*range(0, (stride - 1) * self.lanes, self.lanes), (stride - 1) * (self.lanes - 1)]

    def picked(self, b: Builder, vectors: list[Value], stride: int) -> Value:
        """Every `stride`-th element of vectors that lie at `begins`."""
        result, lanes = vectors[0], self.lanes
        places = [stride * k for k in range(lanes)]
        for begin, vector in zip(self.begins(stride)[1:], vectors[1:], strict=True):
            pick = [p if p < begin else min(lanes + p - begin, 2 * lanes - 1) for p in places]
            lanewise = self.ir.Constant(self.index, [*map(self.i32, pick)])
            result = b.shuffle_vector(result, vector, lanewise)
            places = [k if p < begin + lanes else p for k, p in enumerate(places)]
        return result

    def spread(self, b: Builder, x: Value, row: Value, columns: Value, mask: Value) -> Value:
        """The elements at `columns` of a row, one after the other; `lowest` outside of the mask."""
        result, none = self.lowest, self.ir.Constant(self.index, None)
        near = b.select(mask, columns, none)  # column 0 is in every row
        for lane in range(self.lanes):
            column = b.sext(b.extract_element(near, self.i32(lane)), self.i64)
            value = b.load(b.gep(x, [b.add(row, column)]))
            result = b.insert_element(result, value, self.i32(lane))
        return b.select(mask, result, self.lowest)

    def reader(
        self, b: Builder, x: Value, step: Value, stride: int, width: Value
    ) -> Callable[[Value, Value, bool], tuple[Value, Value]]:
        """read(row, column, plain): the elements of a tap, and a mask of those that the plane has.

        `stride` is `step` if it is one of STRIDES, else 0.
        """
        apart = b.mul(self.steps, self.many(b, step))
        every = self.ir.Constant(self.bits, [self.i1(1)] * self.lanes)

        def read(row: Value, column: Value, plain: bool) -> tuple[Value, Value]:
            at, first = b.add(row, column), self.many(b, column)
            columns = b.add(first, apart)
            mask = every if plain else self.inside(b, columns, width)
            if stride == 0:
                return self.spread(b, x, row, columns, mask), mask
            near = b.add(first, self.steps)
            vectors = []
            for begin in self.begins(stride):
                place = b.add(at, self.i64(begin))
                if plain:
                    vectors.append(self.load(b, x, place))
                else:
                    own = self.ir.Constant(self.index, [self.i32(begin)] * self.lanes)
                    vectors.append(self.masked(b, x, place, b.add(near, own), width))
            return self.picked(b, vectors, stride), mask

        return read

    def max_row(self) -> Function:
        """(out, index, x, place, count, rows, apart, taps, step, gap, edge, width, room)"""
        n, pointer = self.i64, self.pointer

        def emit(b: Builder, function: Function) -> None:
            step = function.args[8]
            for stride in STRIDES:
                with b.if_then(b.icmp_signed("==", step, n(stride))):
                    self.windows(b, function, stride)
                    b.ret_void()
            self.windows(b, function, 0)
            b.ret_void()

        args = [pointer, n.as_pointer(), pointer, *[n] * 10]
        return self.shared("max_row", args, emit)

    def windows(self, b: Builder, function: Function, stride: int) -> None:
        """All windows of the row, a vector of them at a time."""
        out, index, x, place, count, rows, apart, taps, step, gap, edge, width, room = function.args
        n, lanes = self.i64, self.lanes
        columns = self.many(b, width)
        read = self.reader(b, x, step, stride, columns)
        reach = b.mul(b.sub(taps, n(1)), gap)
        deep = b.add(b.mul(b.sub(rows, n(1)), apart), b.add(reach, b.mul(step, n(lanes))))
        own = b.mul(self.steps, self.many(b, step))

        def block(j: Value) -> None:
            rest = b.sub(count, j)
            whole = b.icmp_signed(">=", rest, n(lanes))
            rest = b.select(whole, n(lanes), rest)
            first = b.sub(b.mul(j, step), edge)
            last = b.add(first, b.add(b.mul(b.sub(rest, n(1)), step), reach))
            plain = b.and_(b.icmp_signed(">=", first, n(0)), b.icmp_signed("<", last, width))
            plain = b.and_(plain, b.icmp_signed("<=", b.add(first, deep), room))
            ends = []
            with b.if_else(plain) as (then, otherwise):
                for branch, within in ((then, True), (otherwise, False)):
                    with branch:
                        state = self.taps(b, read, (rows, apart, taps, gap), first, within)
                        ends.append((b.block, state))
            best, where = b.phi(self.vector), b.phi(self.index)
            for end, state in ends:
                best.add_incoming(state[0], end)
                where.add_incoming(state[1], end)
            wide = self.ir.VectorType(n, lanes)
            places = b.add(
                b.sext(b.add(where, own), wide), self.splat(b, b.add(place, first), wide)
            )
            spot = b.bitcast(b.gep(index, [j]), wide.as_pointer())
            with b.if_else(whole) as (then, otherwise):
                with then:
                    self.store(b, best, out, j)
                    b.store(places, spot, align=8)
                with otherwise:
                    mask = self.mask(b, rest)
                    self.store(b, best, out, j, mask)
                    kinds = [wide, wide.as_pointer(), self.i32, self.bits]
                    name = f"llvm.masked.store.v{lanes}i64.p0"
                    store = self.declared(name, self.ir.VoidType(), kinds)
                    b.call(store, [places, spot, self.i32(8), mask])

        self.loop(b, n(0), count, lanes, block)

    def taps(
        self, b: Builder, read: Callable[[Value, Value, bool], tuple[Value, Value]],
        sizes: tuple[Value, ...], first: Value, plain: bool,
    ) -> list[Value]:  # fmt: skip
        """The largest elements of a vector of windows, and their distance from the first tap's."""
        rows, apart, taps, gap = sizes
        none = self.ir.Constant(self.index, None if plain else [self.i32(-1)] * self.lanes)

        def row(k: Value, state: list[Value]) -> list[Value]:
            down = b.mul(k, apart)

            def tap(e: Value, state: list[Value]) -> list[Value]:
                best, where = state
                across = b.mul(e, gap)
                v, mask = read(down, b.add(first, across), plain)
                wins = self.larger(b, v, best)
                if not plain:  # the first that is there, whatever it is
                    absent = b.icmp_signed("<", where, self.ir.Constant(self.index, None))
                    wins = b.or_(wins, b.and_(absent, mask))
                spot = self.many(b, b.add(down, across))
                return [b.select(wins, v, best), b.select(wins, spot, where)]

            return self.counted(b, taps, 1, state, tap)[1]

        return self.counted(b, rows, 1, [self.lowest, none], row)[1]


def _build_max(builder: Builder, v: list[Value], dtypes: list[str]) -> tuple[None, str]:
    out, index, x = dtypes[0], dtypes[1], dtypes[3]
    if out != x or index != "int64":
        raise CompileError(f"maxima of {x} as {out} and {index}: give arrays of one dtype, int64")
    spots = [builder.gep(v[k], [v[at]]) for k, at in ((0, 2), (1, 2), (3, 4))]
    function = emitter(_Maxima, builder.module, out).max_row()
    builder.call(function, [*spots, *v[5:]])
    return None, ""


max_row = Intrinsic(_max_python, None, build=_build_max, takes=ARRAYS)
max_row.__doc__ = """The largest elements of a row of windows, and their places, inside a body.

max_row(out, index, to, x, at, place, count, rows, apart, taps, step, gap, edge, width, room):
`count` windows go to out[to:] and index[to:].  Each has `rows` rows, `apart` elements apart, the
first at x[at:], which is number `place` of its plane.  Windows have `taps` columns, `gap` apart,
and begin `step` apart, the first `edge` columns in front of the plane, whose rows have `width`.
Elements may be read up to x[at + room].
"""
