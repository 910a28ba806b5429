"""Rows of memory that kernels of convolution and pooling copy, add a number to, and sum.

Such rows are often shorter than two vectors, where a loop that LLVM vectorizes by itself does most
of its work one element at a time; so their end goes under a mask here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from flowvm.compiler.native import ARRAYS, Intrinsic
from flowvm.errors import CompileError
from flowvm.meta.arrays import Array
from flowvm.ops.declare.cpu.vector_code import Emitter, address_of, emitter, registers, same_reals
from flowvm.private.numba import NUMBA

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowvm.private.code_types import (
        Builder,
        CodeContext,
        Function,
        Generator,
        Signature,
        Type,
        Typing,
        TypingContext,
        Value,
    )


def _add_python(to: Array, to_at: int, x: Array, x_at: int, count: int, plus: object) -> None:
    to[to_at : to_at + count] = x[x_at : x_at + count] + plus


def _sum_python(x: Array, x_at: int, count: int) -> object:
    return x[x_at : x_at + count].sum()


def _gather_python(
    to: Array, to_at: int, x: Array, x_at: int, table: Array, at: int, n: int
) -> None:
    places = table[at : at + n]
    to[to_at : to_at + n] = np.where(places < 0, 0, x[x_at + np.maximum(places, 0)])


def _take_python(to: Array, to_at: int, x: Array, x_at: int, count: int, step: int) -> None:
    to[to_at : to_at + count] = x[x_at::step][:count]


class _Rows(Emitter):
    """The functions of all three."""

    def row(
        self, b: Builder, to: object, count: Value, read: Callable[[Value, Value], object]
    ) -> None:
        """to[:count] = read(k, lanes or None for all) for every vector k, the last under a mask."""

        def turn(k: object, state: list[Value]) -> list[Value]:
            self.store(b, read(k, None), to, k)
            return state

        did, _ = self.counted(b, count, self.lanes, [], turn)
        rest = b.sub(count, did)
        with b.if_then(b.icmp_signed(">", rest, self.i64(0))):
            self.store(b, read(did, rest), to, did, self.mask(b, rest))

    def read_plus(self, b: Builder, x: Value, plus: object) -> Callable[[Value, Value], Value]:
        more = self.splat(b, plus)

        def read(k: Value, rest: Value) -> Value:
            if rest is None:
                return b.fadd(self.load(b, x, k), more)
            return b.fadd(self.load(b, x, k, self.mask(b, rest)), more)

        return read

    def read_every(self, b: object, x: object) -> Callable[[Value, Value], Value]:
        def read(k: object, rest: object) -> Value:
            if rest is None:
                return self.load(b, x, k)
            return self.load(b, x, k, self.mask(b, rest))

        return read

    def read_second(self, b: Builder, x: Value) -> Callable[[Value, Value], Value]:
        """Every second element, and nothing behind the last: the upper half ends with it."""
        n, lanes = self.i64, self.lanes
        kind = self.ir.VectorType(self.i32, lanes)
        picked = [2 * k if 2 * k < lanes else 2 * k + 1 for k in range(lanes)]
        pick = self.ir.Constant(kind, [self.i32(k) for k in picked])

        def read(k: Value, rest: Value) -> Value:
            low = b.mul(k, n(2))
            high = b.add(low, n(lanes - 1))
            if rest is None:
                return b.shuffle_vector(self.load(b, x, low), self.load(b, x, high), pick)
            twice = b.mul(rest, n(2))
            first = self.mask(b, b.sub(twice, n(1)))
            second = self.mask(b, b.sub(twice, n(lanes)))
            lower = self.load(b, x, low, first)
            return b.shuffle_vector(lower, self.load(b, x, high, second), pick)

        return read

    def add_row(self) -> Function:
        """(to, x, count, plus)"""
        pointer, n = self.real.as_pointer(), self.i64

        def emit(b: Builder, function: Function) -> None:
            to, x, count, plus = function.args
            self.row(b, to, count, self.read_plus(b, x, plus))
            b.ret_void()

        return self.shared("add_row", [pointer, pointer, n, self.real], emit)

    def sum_row(self) -> Function:
        """(x, count, to): four vectors of sums, then the last elements one vector at a time."""
        pointer, n = self.real.as_pointer(), self.i64

        def emit(b: Builder, function: Function) -> None:
            x, count, to = function.args

            def four(k: Value, sums: Sequence[object]) -> list[object]:
                places = [b.add(k, n(j * self.lanes)) for j in range(4)]
                return [
                    b.fadd(total, self.load(b, x, place))
                    for total, place in zip(sums, places, strict=True)
                ]

            did, sums = self.counted(b, count, 4 * self.lanes, [self.zero] * 4, four)
            total = b.fadd(b.fadd(sums[0], sums[1]), b.fadd(sums[2], sums[3]))

            def one(k: Value, sums: list[Value]) -> list[Value]:
                return [b.fadd(sums[0], self.load(b, x, b.add(k, did)))]

            more, (total,) = self.counted(b, b.sub(count, did), self.lanes, [total], one)
            did = b.add(did, more)
            rest = self.load(b, x, did, self.mask(b, b.sub(count, did)))
            total = self.added(b, [b.fadd(total, rest)] + [self.zero] * (self.lanes - 1))
            b.store(b.extract_element(total, self.i32(0)), to)
            b.ret_void()

        return self.shared("sum_row", [pointer, n, pointer], emit)

    def take_row(self) -> Function:
        """(to, x, count, step)"""
        pointer, n = self.real.as_pointer(), self.i64

        def emit(b: Builder, function: Function) -> None:
            to, x, count, step = function.args
            with b.if_then(b.icmp_signed("==", step, n(1))):
                self.row(b, to, count, self.read_every(b, x))
                b.ret_void()
            with b.if_then(b.icmp_signed("==", step, n(2))):
                self.row(b, to, count, self.read_second(b, x))
                b.ret_void()

            def turn(k: Value, state: list[Value]) -> list[Value]:
                b.store(b.load(b.gep(x, [b.mul(k, step)])), b.gep(to, [k]))
                return state

            self.counted(b, count, 1, [], turn)
            b.ret_void()

        return self.shared("take_row", [pointer, pointer, n, n], emit)

    def gather_row(self) -> Function:
        """(to, x, table, count): vectors, which processors that have masks gather at once."""
        pointer, n = self.real.as_pointer(), self.i64

        def at_once(b: Builder, to: object, x: Value, table: Value, k: Value) -> None:
            kind = self.ir.VectorType(self.i32, self.lanes)
            places = b.load(b.bitcast(b.gep(table, [k]), kind.as_pointer()), align=4)
            inside = b.icmp_signed(">=", places, self.ir.Constant(kind, None))
            spots = self.ir.VectorType(pointer, self.lanes)
            args = [spots, self.i32, self.bits, self.vector]
            gather = self.declared(
                f"llvm.masked.gather.{self.suffix}.v{self.lanes}p0", self.vector, args
            )
            wide = self.ir.VectorType(n, self.lanes)
            bytes_in = self.ir.Constant(wide, [n(self.size)] * self.lanes)
            first = self.splat(b, b.ptrtoint(x, n), wide)
            far = b.add(first, b.mul(b.sext(places, wide), bytes_in))
            args = [b.inttoptr(far, spots), self.i32(self.size), inside, self.zero]
            value = b.call(gather, args)
            self.store(b, value, to, k)

        def one(b: Builder, to: Value, x: Value, table: Value, k: Value) -> None:
            place = b.load(b.gep(table, [k]))
            outside = b.icmp_signed("<", place, self.i32(0))
            near = b.sext(b.select(outside, self.i32(0), place), n)
            value = b.load(b.gep(x, [near]))
            b.store(b.select(outside, self.ir.Constant(self.real, 0.0), value), b.gep(to, [k]))

        def emit(b: Builder, function: Function) -> None:
            to, x, table, count = function.args

            def turn(k: Value, state: list[Value]) -> list[Value]:
                if registers().bytes == 64:
                    at_once(b, to, x, table, k)
                else:
                    for lane in range(self.lanes):
                        one(b, to, x, table, b.add(k, n(lane)))
                return state

            self.counted(b, count, self.lanes, [], turn)
            b.ret_void()

        args = [pointer, pointer, self.i32.as_pointer(), n]
        return self.shared("gather_row", args, emit)


def _gather_define() -> Typing:
    from numba import types

    def typing(
        typingctx: TypingContext,
        to: Type,
        to_at: Type,
        x: Type,
        x_at: Type,
        table: Type,
        at: Type,
        count: Type,
    ) -> tuple[Signature, Generator] | None:
        n = types.int64
        if not same_reals(to, x) or table.dtype != types.int32:
            return None

        def codegen(
            context: CodeContext, builder: Builder, sig: Signature, v: Sequence[Value]
        ) -> Value:
            e = emitter(_Rows, builder.module, str(to.dtype))
            spots = [address_of(context, builder, sig, v, k) for k in (0, 2, 4)]
            builder.call(e.gather_row(), [*spots, v[6]])
            return context.get_dummy_value()

        return types.void(to, n, x, n, table, n, n), codegen

    return typing


def _add_define() -> Typing:
    from numba import types

    def typing(
        typingctx: TypingContext,
        to: Type,
        to_at: Type,
        x: Type,
        x_at: Type,
        count: Type,
        plus: Type,
    ) -> tuple[Signature, Generator] | None:
        n = types.int64
        if not same_reals(to, x):
            return None

        def codegen(
            context: CodeContext, builder: Builder, sig: Signature, v: Sequence[Value]
        ) -> Value:
            e = emitter(_Rows, builder.module, str(to.dtype))
            spots = [address_of(context, builder, sig, v, k) for k in (0, 2)]
            builder.call(e.add_row(), [*spots, v[4], v[5]])
            return context.get_dummy_value()

        return types.void(to, n, x, n, n, to.dtype), codegen

    return typing


def _take_define() -> Typing:
    from numba import types

    def typing(
        typingctx: TypingContext,
        to: Type,
        to_at: Type,
        x: Type,
        x_at: Type,
        count: Type,
        step: Type,
    ) -> tuple[Signature, Generator] | None:
        n = types.int64
        if to.dtype != x.dtype:
            return None

        def codegen(
            context: CodeContext, builder: Builder, sig: Signature, v: Sequence[Value]
        ) -> Value:
            e = emitter(
                _Rows, builder.module, "bool" if to.dtype == types.boolean else str(to.dtype)
            )
            spots = [address_of(context, builder, sig, v, k) for k in (0, 2)]
            builder.call(e.take_row(), [*spots, v[4], v[5]])
            return context.get_dummy_value()

        return types.void(to, n, x, n, n, n), codegen

    return typing


def _sum_define() -> Typing:
    from numba import types

    def typing(
        typingctx: TypingContext, x: Type, x_at: Type, count: Type
    ) -> tuple[Signature, Generator] | None:
        n = types.int64
        if not same_reals(x):
            return None

        def codegen(
            context: CodeContext, builder: Builder, sig: Signature, v: Sequence[Value]
        ) -> Value:
            e = emitter(_Rows, builder.module, str(x.dtype))
            spot = NUMBA.cgutils.alloca_once(builder, e.real)
            builder.call(e.sum_row(), [address_of(context, builder, sig, v, 0), v[2], spot])
            return builder.load(spot)

        return x.dtype(x, n, n), codegen

    return typing


def _rows(builder: Builder, dtypes: list[str], reals: bool = True) -> _Rows:
    """The functions for rows of dtypes that are one."""
    kind = dtypes[0]
    if any(dtype != kind for dtype in dtypes) or (reals and not kind.startswith("float")):
        raise CompileError(f"rows of {', '.join(dtypes)}: give arrays of one dtype")
    return emitter(_Rows, builder.module, kind)


def _build_add(builder: Builder, v: list[Value], dtypes: list[str]) -> tuple[None, str]:
    spots = [builder.gep(v[k], [v[k + 1]]) for k in (0, 2)]
    builder.call(_rows(builder, dtypes[:3:2]).add_row(), [*spots, v[4], v[5]])
    return None, ""


def _build_sum(builder: Builder, v: list[Value], dtypes: list[str]) -> tuple[Value, str]:
    e = _rows(builder, dtypes[:1])
    spot = builder.alloca(e.real)
    builder.call(e.sum_row(), [builder.gep(v[0], [v[1]]), v[2], spot])
    return builder.load(spot), dtypes[0]


def _build_take(builder: Builder, v: list[Value], dtypes: list[str]) -> tuple[None, str]:
    spots = [builder.gep(v[k], [v[k + 1]]) for k in (0, 2)]
    builder.call(_rows(builder, dtypes[:3:2], False).take_row(), [*spots, v[4], v[5]])
    return None, ""


def _build_gather(builder: Builder, v: list[Value], dtypes: list[str]) -> tuple[None, str]:
    spots = [builder.gep(v[k], [v[k + 1]]) for k in (0, 2, 4)]
    builder.call(_rows(builder, dtypes[:3:2]).gather_row(), [*spots, v[6]])
    return None, ""


add_row = Intrinsic(_add_python, _add_define, build=_build_add, takes=ARRAYS)
add_row.__doc__ = """to[to_at:][:count] = x[x_at:][:count] + plus, inside a body.

add_row(to, to_at, x, x_at, count, plus): made for short rows, whose end goes under a mask.
"""
sum_row = Intrinsic(_sum_python, _sum_define, build=_build_sum, takes=ARRAYS)
sum_row.__doc__ = """The sum of x[x_at:][:count], inside a body: sum_row(x, x_at, count)."""
take_row = Intrinsic(_take_python, _take_define, build=_build_take, takes=ARRAYS)
take_row.__doc__ = """to[to_at:][:count] = x[x_at::step][:count], inside a body, for any dtype.

take_row(to, to_at, x, x_at, count, step): made for short rows and steps 1 and 2.
"""
gather_row = Intrinsic(_gather_python, _gather_define, build=_build_gather, takes=ARRAYS)
gather_row.__doc__ = """to[to_at:][:count] = x[x_at + table[at:][:count]], inside a body.

gather_row(to, to_at, x, x_at, table, at, count): `count` is whole vectors; `table` is int32, and
where it is negative, 0 is stored.
"""
