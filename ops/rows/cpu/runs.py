"""Loops over one run of memory that kernel bodies share: sums and moments; and numbers by rank.

LLVM may reorder the additions written here (`REASSOCIATE`), so it fills the vector unit with
several partial sums; a body that calls these needs no leave to reorder anything else.  How a run is
summed depends on its length alone.  Bodies pass slices: an index into a slice that starts at 0
vectorizes, where `x[at + j]` does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from flowvm.compiler.native import DTYPE, Intrinsic
from flowvm.meta.arrays import Array

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


REASSOCIATE = True  # for flowvm.compiler.native
RUN = 4096  # elements whose sum is formed before it joins the others
LEAST, MOST = 1e-30, 1e37  # between these a float32 mean of squares has all of its digits


def _rank_ir(builder: Builder, word: Value) -> Value:
    sign = builder.ashr(word, word.type(word.type.width - 1))
    return builder.xor(word, builder.and_(sign, word.type((1 << (word.type.width - 1)) - 1)))


def _define_rank() -> Callable[..., object]:
    from llvmlite import ir
    from numba import types

    def rank_of(typingctx: TypingContext, x: Type) -> tuple[Signature, Generator]:
        width = 32 if x == types.float32 else 64

        def codegen(
            context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
        ) -> Value:
            return _rank_ir(builder, builder.bitcast(values[0], ir.IntType(width)))

        return (types.int32 if width == 32 else types.int64)(x), codegen

    return rank_of


def _define_ranked() -> Callable[..., object]:
    from numba import types

    def number_of(typingctx: TypingContext, rank: Type) -> tuple[Signature, Generator]:
        result = types.float32 if rank == types.int32 else types.float64

        def codegen(
            context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
        ) -> Value:
            word = _rank_ir(builder, values[0])
            return builder.bitcast(word, context.get_value_type(result))

        return result(rank), codegen

    return number_of


def _rank(x: Number) -> object:
    kind = np.int32 if isinstance(x, np.float32) else np.int64
    word = x.view(kind)
    return word if word >= 0 else word ^ np.iinfo(kind).max


def _ranked(rank: Number) -> object:
    word = rank if rank >= 0 else rank ^ np.iinfo(rank.dtype).max
    return word.view(np.float32 if rank.dtype == np.int32 else np.float64)


def _build_rank(builder: Builder, values: list[Value], dtypes: list[str]) -> tuple[Value, str]:
    from llvmlite import ir

    width = 32 if dtypes[0] == "float32" else 64
    return _rank_ir(builder, builder.bitcast(values[0], ir.IntType(width))), f"int{width}"


def _build_ranked(builder: Builder, values: list[Value], dtypes: list[str]) -> tuple[Value, str]:
    from llvmlite import ir

    narrow = dtypes[0] == "int32"
    kind = ir.FloatType() if narrow else ir.DoubleType()
    word = builder.bitcast(_rank_ir(builder, values[0]), kind)
    return word, "float32" if narrow else "float64"


# an integer in the order of the numbers; NaN at either end
rank = Intrinsic(_rank, _define_rank, build=_build_rank)
ranked = Intrinsic(_ranked, _define_ranked, build=_build_ranked)  # the number of that rank


def _define_lowest() -> Callable[..., object]:
    def lowest_of(typingctx: TypingContext, x: Type) -> object:
        def codegen(
            context: CodeContext, builder: Builder, signature: Signature, values: object
        ) -> object:
            least = float(np.finfo(x.dtype.name).min)
            return context.get_constant(x.dtype, least)

        return x.dtype(x), codegen

    return lowest_of


def _build_lowest(builder: Builder, values: list[Value], dtypes: list[str]) -> tuple[Value, str]:
    return values[0].type(float(np.finfo(dtypes[0]).min)), dtypes[0]


# the lowest finite number of a float array's dtype, without Numba's table of all that NumPy knows
lowest = Intrinsic(
    lambda x: np.finfo(x.dtype).min, _define_lowest, build=_build_lowest, takes=DTYPE
)


def sum_of(x: Array) -> Number:
    """The sum."""
    total = x.dtype.type(0)
    for start in range(0, len(x), RUN):
        run = x[start : start + RUN]
        part = x.dtype.type(0)
        for j in range(len(run)):
            part += run[j]
        total += part
    return total


def squares_of(x: Array) -> Number:
    """The sum of the squares, in float64, for one element at least."""
    squares = x.dtype.type(0)
    for start in range(0, len(x), RUN):
        run = x[start : start + RUN]
        square = x.dtype.type(0)
        for j in range(len(run)):
            square += run[j] * run[j]
        squares += square
    if x.itemsize == 8 or holds(squares, len(x), x[0] == 0):
        return np.float64(squares)
    return _squares_apart(x, 0.0)


def moments_of(x: Array) -> tuple[Number, Number]:
    """Mean and sum of squared distances from it, in float64, for one element at least.

    The sum alone would leave an error in the last place of the mean, which is large against the
    spread where that is small against the mean; the distances' own mean takes it away.
    """
    real = x.dtype.type
    count = real(len(x))
    middle, off, squares = sum_of(x) / count, real(0), real(0)
    for start in range(0, len(x), RUN):
        run = x[start : start + RUN]
        part, square = real(0), real(0)
        for j in range(len(run)):
            d = run[j] - middle
            part += d
            square += d * d
        off += part
        squares += square
    squares = max(squares - off * off / count, real(0))
    if x.itemsize == 8 or holds(squares, len(x), (x[0] == middle) & (off == 0)):
        return np.float64(middle + off / count), np.float64(squares)
    mean = _sum_apart(x) / len(x)
    return mean, _squares_apart(x, mean)


def holds(squares: Number, count: int, flat: bool) -> Number:
    """Return whether float32 has all digits of a sum of `count` squares; `flat`: all elements seem
    to be equal, so that 0 is right.
    """
    mean = np.float64(squares) / count
    return (mean > LEAST and mean < MOST) or (squares == 0 and flat)


def _sum_apart(x: Array) -> float:
    """The sum in float64."""
    total = 0.0
    for j in range(len(x)):
        total += np.float64(x[j])
    return total


def _squares_apart(x: Array, mean: float) -> float:
    """The sum of the squared distances from a mean in float64."""
    total = 0.0
    for j in range(len(x)):
        d = np.float64(x[j]) - mean
        total += d * d
    return total


def float64_variance(exact: float, near: Number) -> float:
    """Return a variance in float64.

    It is `near`, which is `exact` rounded to the elements' dtype, unless `near` lacks digits.
    """
    wide = np.float64(near)
    return wide if wide > LEAST and wide < MOST else exact
