"""The ways in which reductions and scans join two elements; kernel bodies are made with them.

LLVM makes vectors of a loop that joins elements if it may do so in any order.  Python has no word
for that, so sums, products and extremes in any order are intrinsics here.  A `Rule` is one of them
with what else a reduction needs to know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flowvm.compiler.native import Intrinsic
from flowvm.meta.arrays import Number
from flowvm.meta.dtype import dtype_named
from flowvm.ops.scalar.half import STORED, widened

if TYPE_CHECKING:
    from flowvm.private.code_types import Builder, CodeContext, Signature, Type, Value


INLINE_ALWAYS = (
    True  # for flowvm.compiler.native: a call in a loop would keep it from being vectorized
)


# --- joining two in any order -----------------------------------------------------------------


def _in_any_order(
    python: Callable[[Number, Number], object],
    floats: Callable[..., object],
    integers: Callable[..., object],
) -> Intrinsic:
    """Return an intrinsic for `python` on two numbers of one dtype.

    LLVM may apply it in any order to any number of elements, so it can make vectors of a loop.
    """

    def define() -> Callable[..., object]:
        def typed(context: object, a: Type, b: object) -> tuple[object, Callable[..., object]]:
            from numba import types

            build = floats if isinstance(a, types.Float) else integers
            signed = getattr(a, "signed", False)

            def codegen(
                context: CodeContext,
                builder: Builder,
                signature: Signature,
                values: Sequence[Value],
            ) -> Value:
                return build(builder, *values, signed)

            return a(a, a), codegen

        return typed

    def build_words(builder: Builder, values: list[Value], dtypes: list[str]) -> tuple[object, str]:
        build = floats if dtypes[0].startswith("float") else integers
        return build(builder, *values, dtypes[0].startswith("int")), dtypes[0]

    return Intrinsic(python, define, build=build_words)


def _extreme(sign: str) -> Intrinsic:
    def floats(builder: Builder, a: Value, b: Value, signed: bool) -> object:
        flags = ("nnan", "nsz")
        better = builder.fcmp_ordered(sign, a, b, flags=flags)
        return builder.select(better, a, b, flags=flags)

    def integers(builder: Builder, a: Value, b: Value, signed: bool) -> Value:
        compare = builder.icmp_signed if signed else builder.icmp_unsigned
        return builder.select(compare(sign, a, b), a, b)

    python = max if sign == ">" else min
    return _in_any_order(python, floats, integers)


# these two give anything where an operand is NaN
larger_of = _extreme(">")
smaller_of = _extreme("<")

_sum_of = _in_any_order(
    lambda a, b: a + b,
    lambda builder, a, b, _: builder.fadd(a, b, flags=("reassoc", "contract")),
    lambda builder, a, b, _: builder.add(a, b),
)
_product_of = _in_any_order(
    lambda a, b: a * b,
    lambda builder, a, b, _: builder.fmul(a, b, flags=("reassoc", "contract")),
    lambda builder, a, b, _: builder.mul(a, b),
)


def _choose_define() -> Callable[..., object]:
    def typed(
        context: object, condition: Type, a: Type, b: object
    ) -> tuple[object, Callable[..., object]]:
        def codegen(
            context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
        ) -> Value:
            return builder.select(*values)

        return a(condition, a, a), codegen

    return typed


# `a if condition else b` of one dtype, computed and never jumped over: LLVM would make of a jump
# around a store a masked store, which the next load of the same place has to wait for
choose = Intrinsic(
    lambda condition, a, b: a if condition else b,
    _choose_define,
    build=lambda builder, values, dtypes: (builder.select(*values), dtypes[1]),
)


def _number_of(name: str) -> Intrinsic:
    """The float32 that bits of the dtype `name` in an int16 stand for."""

    def define() -> Callable[..., object]:
        def typed(context: object, bits: object) -> tuple[object, Callable[..., object]]:
            from numba import types

            def codegen(
                context: CodeContext,
                builder: Builder,
                signature: Signature,
                values: Sequence[Value],
            ) -> Value:
                return widened(builder, values[0], name)

            return types.float32(bits), codegen

        return typed

    def python(bits: object) -> object:
        dtype = dtype_named(name)
        return np.float32(dtype.loaded(np.array(bits, np.int16).view(dtype.storage)))

    def build_words(builder: Builder, values: list[Value], dtypes: list[str]) -> tuple[Value, str]:
        return widened(builder, values[0], name), "float32"

    return Intrinsic(python, define, build=build_words)


REDUCED = {name: _number_of(name) for name in STORED}


# --- rules --------------------------------------------------------------------------------------


class Rule(NamedTuple):
    """The way in which a reduction joins two elements.

    join      in any order, on numbers of the result's dtype
    keep      in the order given, on partials; a NaN in either must stay
    start     the first value of a run of elements, from (zero, one, one of its elements)
    wide      dtype in which partials are kept; "": the result's
    watches   True if `join` does not keep NaN, so that the loop must look for it
    """

    join: Intrinsic
    keep: Callable[[Number, Number], Number]
    start: Callable[[Number, Number, Number], Number]
    wide: str
    watches: bool

    @property
    def neutral(self) -> int:
        """The sum or the product of no elements."""
        neutral: int = self.start(0, 1, 0)
        return neutral


def _plus(a: Number, b: Number) -> object:
    return a + b


def _times(a: Number, b: Number) -> Number:
    return a * b


def _larger(a: Number, b: Number) -> object:
    return choose((b > a) | (b != b), b, a)  # a NaN, once in, stays: nothing is larger


def _smaller(a: Number, b: Number) -> object:
    return choose((b < a) | (b != b), b, a)


def _zero(zero: object, one: object, element: object) -> object:
    return zero


def _one(zero: object, one: object, element: object) -> object:
    return one


def _element(zero: object, one: object, element: object) -> object:
    return element


# of floats, of integers
ADD = (Rule(_sum_of, _plus, _zero, "float64", False), Rule(_sum_of, _plus, _zero, "int64", False))
MULTIPLY = (
    Rule(_product_of, _times, _one, "float64", False),
    Rule(_product_of, _times, _one, "int64", False),
)
LARGEST = (
    Rule(larger_of, _larger, _element, "", True),
    Rule(larger_of, _larger, _element, "", False),
)
SMALLEST = (
    Rule(smaller_of, _smaller, _element, "", True),
    Rule(smaller_of, _smaller, _element, "", False),
)
