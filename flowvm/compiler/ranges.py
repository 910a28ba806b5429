"""Faster lowering of a loop over a range by Numba's front end: the length of the range, and the
iteration.

Numba's own has a branch for a step of 0 and one for either direction, decided where the code runs,
and keeps each number in a structure in memory of its own.  Nearly every step is written as a
number, so the way is known here, and nothing is left but a subtraction; a step that is known only
where the code runs is Numba's.

The next number is declared not to overflow.  It is used only within the range, so that is true.
Then LLVM knows that x[i] has no negative i if the range begins at 0 or above.  It must know that to
vectorize the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from flowvm.compiler.lines import Find, Way
from flowvm.private.numba import NUMBA, overloads_of

if TYPE_CHECKING:
    from flowvm.private.code_types import Builder, CodeContext, Signature, Value


ITER, STOP, STEP, COUNT = range(4)  # the parts of an iterator, as Numba has them


def ways(context: object) -> list[Way]:
    """Return the replacements for Numba's own functions while flowvm compiles."""
    known = ((range, _range_found), ("getiter", _iterator_found), ("iternext", _next_found))
    selectors = [(overloads_of(context, of), finder) for of, finder in known]
    return [
        *((selector, "find", finder(selector.find)) for selector, finder in selectors),
        (context, "pair_first", lambda builder, pair, kind: builder.extract_value(pair, 0)),
        (context, "pair_second", lambda builder, pair, kind: builder.extract_value(pair, 1)),
    ]


def _signed_types() -> tuple[dict[object, object], dict[object, object]]:
    """Return the types of ranges and their iterators that these replacements serve: signed
    integers.
    """
    from numba import types

    kinds = (
        (types.int32, types.range_state32_type, types.range_iter32_type),
        (types.int64, types.range_state64_type, types.range_iter64_type),
    )
    return {r: whole for whole, r, _ in kinds}, {i: whole for whole, _, i in kinds}


def _structure(
    context: CodeContext, builder: Builder, kind: object, parts: Sequence[object]
) -> Value:
    from llvmlite import ir

    value = ir.Constant(context.get_value_type(kind), ir.Undefined)
    for k, part in enumerate(parts):
        value = builder.insert_value(value, part, k)
    return value


def _range_found(plain: Find) -> Find:
    def find(kinds: object) -> Callable[..., object]:
        lowered = plain(kinds)

        def build(
            context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
        ) -> Value:
            if signature.return_type not in _signed_types()[0]:
                return lowered(context, builder, signature, values)
            whole = values[0].type
            start, stop, step = (
                (whole(0), *values, whole(1))
                if len(values) == 1
                else (*values, whole(1))
                if len(values) == 2
                else values
            )
            result = _structure(context, builder, signature.return_type, [start, stop, step])
            result.flowvm_range = start, stop, step  # for a caller that iterates it at once
            return result

        return build

    return find


def _iterator_found(plain: Find) -> Find:
    from llvmlite import ir

    def find(kinds: Any) -> Any:
        lowered = plain(kinds)
        if kinds[0] not in _signed_types()[0]:
            return lowered

        def build(
            context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
        ) -> Value:
            start, stop, step = getattr(values[0], "flowvm_range", (None, None, None))
            if not isinstance(step, ir.Constant) or step.constant == 0:
                return lowered(context, builder, signature, values)
            count = _count(builder, start, stop, step)
            spots = [_variable(builder, value) for value in (start, count)]
            parts = [spots[0], stop, step, spots[1]]
            return _structure(context, builder, signature.return_type, parts)

        return build

    return find


def _count(builder: Builder, start: object, stop: Value, step: Value) -> Value:
    """Return the length of a range; 0 or less if it is empty."""
    whole, by = stop.type, step.constant
    distance = stop if getattr(start, "constant", None) == 0 else builder.sub(stop, start)
    if by == 1:
        return distance
    rest = builder.srem(distance, step)
    rest = rest if by > 0 else builder.neg(rest)
    more = builder.zext(builder.icmp_signed(">", rest, whole(0)), whole)
    return builder.add(builder.sdiv(distance, step), more)


def _variable(builder: Builder, value: Value) -> Value:
    spot = NUMBA.cgutils.alloca_once(builder, value.type)
    builder.store(value, spot)
    return spot


def _next_found(plain: Find) -> Find:
    def find(kinds: Any) -> Any:
        if kinds[0] not in _signed_types()[1]:
            return plain(kinds)

        def build(
            context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
        ) -> Value:
            (iterator,) = values
            iter_, step, count_ = (builder.extract_value(iterator, k) for k in (ITER, STEP, COUNT))
            value, count = builder.load(iter_), builder.load(count_)
            builder.store(builder.sub(count, count.type(1), flags=["nsw"]), count_)
            builder.store(builder.add(value, step, flags=["nsw"]), iter_)
            valid = builder.icmp_signed(">", count, count.type(0))
            return _structure(context, builder, signature.return_type, [value, valid])

        return build

    return find
