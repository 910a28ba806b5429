"""Running sums and products of eight elements at a time: they make scans of rows fast.

Three steps of vectors give the running results of the eight alone; what came before is added to all
of them at once, so only one addition in eight waits for the one before.  Rows shorter than eight go
several at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from flowvm.compiler.native import Intrinsic
from flowvm.meta.arrays import Array
from flowvm.ops.rows.parts.fold_rules import MULTIPLY, Rule

if TYPE_CHECKING:
    from flowvm.meta.arrays import Number
    from flowvm.private.code_types import (
        Builder,
        CodeContext,
        Generator,
        Signature,
        Type,
        TypingContext,
        Value,
    )


LANES = 8


# --- eight at a time ----------------------------------------------------------------------------


def _block_python(
    keep: Callable[[Number, Number], Number], reverse: bool
) -> Callable[[Array, Array, int, object], object]:
    def block(out: Array, x: Array, at: int, carry: Number) -> Number:
        places = range(at, at + LANES)
        for i in reversed(places) if reverse else places:
            carry = keep(carry, type(carry)(x[i]))
            out[i] = carry
        return carry

    return block


def _lines_python(
    keep: Callable[[Number, Number], Number], reverse: bool
) -> Callable[[Array, Array, int, object, int], object]:
    def lines(out: Array, x: Array, at: int, carry: Number, n: int) -> Number:
        for first in range(at, at + LANES // n * n, n):
            places, total = range(first, first + n), carry
            for i in reversed(places) if reverse else places:
                total = keep(total, type(carry)(x[i]))
                out[i] = total
        return carry

    return lines


def _block_define(operation: str, reverse: bool, lines: bool) -> Callable[[], object]:
    """Return the definition of a block's intrinsic.

    `lines`: the eight elements are as many whole rows of n as they hold; the rest is undefined.
    """

    def define() -> object:
        from llvmlite import ir
        from numba import types

        i32, i64 = ir.IntType(32), ir.IntType(64)

        def mask(lanes: list[int]) -> Any:
            return ir.Constant(ir.VectorType(i32, LANES), lanes)

        def splat(number: int) -> object:
            return ir.Constant(ir.VectorType(i64, LANES), [number] * LANES)

        def codegen(
            context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
        ) -> Value:
            to, source, _, kind = signature.args[:4]
            floating = isinstance(kind, types.Float)
            wide = ir.VectorType(context.get_value_type(kind), LANES)
            combine = getattr(builder, "f" + operation if floating else operation)

            def place(array: Value, value: object) -> Value:
                data = context.make_array(array)(context, builder, value).data
                lanes = ir.VectorType(context.get_data_type(array.dtype), LANES)
                return builder.bitcast(builder.gep(data, [values[2]]), lanes.as_pointer())

            def align(array: Value) -> int:
                return int(context.get_abi_sizeof(context.get_data_type(array.dtype)))

            v = builder.load(place(source, values[1]), align=align(source))
            if v.type != wide:
                signed = getattr(source.dtype, "signed", True)
                widen = builder.fpext if floating else builder.sext if signed else builder.zext
                v = widen(v, wide)
            # -0.0 is what addition leaves alone; for 0.0 LLVM finds slower instructions
            neutral = 1 if operation == "mul" else -0.0 if floating else 0
            start = ir.Constant(wide, [neutral] * LANES)
            whole = builder.insert_element(ir.Constant(wide, ir.Undefined), values[3], i32(0))
            whole = builder.shuffle_vector(whole, start, mask([0] * LANES))
            if lines:
                size = builder.insert_element(
                    ir.Constant(ir.VectorType(i64, LANES), ir.Undefined), values[4], i32(0)
                )
                size = builder.shuffle_vector(size, size, mask([0] * LANES))
                numbers = ir.Constant(size.type, list(range(LANES)))
                position = builder.urem(numbers, size)
                if reverse:
                    position = builder.sub(builder.sub(size, position), splat(1))
            for shift in (1, 2, 4):
                if reverse:  # lane i takes lane i + shift, and the neutral element behind the end
                    moved = [i + shift if i + shift < LANES else LANES for i in range(LANES)]
                else:
                    moved = [i - shift if i >= shift else LANES for i in range(LANES)]
                other = builder.shuffle_vector(v, start, mask(moved))
                if lines:
                    inside = builder.icmp_unsigned(">=", position, splat(shift))
                    other = builder.select(inside, other, start)
                v = combine(v, other)
            last = builder.extract_element(v, i32(0 if reverse else LANES - 1))
            v = combine(v, whole)
            goal = place(to, values[0])
            stored = ir.VectorType(context.get_data_type(to.dtype), LANES)
            if v.type != stored:
                v = builder.fptrunc(v, stored)
            builder.store(v, goal, align=align(to))
            return values[3] if lines else combine(values[3], last)

        def block(
            typingctx: TypingContext, out: Type, x: Type, at: Type, carry: Type
        ) -> tuple[Signature, Generator]:
            return carry(out, x, types.int64, carry), codegen

        def rows(
            typingctx: TypingContext, out: Type, x: Type, at: Type, carry: Type, n: Type
        ) -> tuple[Signature, Generator]:
            return carry(out, x, types.int64, carry, types.int64), codegen

        return rows if lines else block

    return define


class Blocks(NamedTuple):
    """The functions of a scan by blocks of eight elements.

    forward   (out, x, at, carry): the running results of eight elements from `at` on, where `carry`
              is the result of all before them; returns the result of all up to their end
    backward  the same from the end to the front
    lines     (out, x, at, carry, n): the running results of the rows of n that eight elements hold
    """

    forward: Any
    backward: Any
    lines: Any
    lines_back: Any


@functools.cache
def blocks_of(rule: Rule) -> Blocks:
    """Return the Blocks of sums or of products."""
    operation = "mul" if rule in MULTIPLY else "add"
    return Blocks(
        *(
            Intrinsic(python(rule.keep, back), _block_define(operation, back, lines))
            for python, lines in ((_block_python, False), (_lines_python, True))
            for back in (False, True)
        )
    )
