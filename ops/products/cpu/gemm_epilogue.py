"""The end of a product's epilogue: the work on sums while they are in the first cache.

    act(sum)    act(alpha * sum)    act(alpha * sum + beta * addend)    act(sum, addend)

A bias or a residual alone costs nothing: the sums of a tile start with it
(`ops/products/cpu/tile.py`).  Scaling and activations come here, a panel of the result at a time,
in a loop that LLVM vectorizes.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.compiler import jit
from flowvm.compiler.native import Intrinsic, lower
from flowvm.ops.declare.cpu.body_kernel import Kind, numba_kind
from flowvm.ops.products.cpu.tile import caller

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


INLINE_ALWAYS = (
    True  # for flowvm.compiler.native: a call in a loop would keep it from being vectorized
)
FINAL, ACTIVATED, SCALED, ADDED = 0, 1, 2, 3  # what is left to do: nothing, or as above


def unchanged(x: object) -> Any:
    """The activation of an epilogue that has none."""
    return x


def _place_define(bits: int, store: bool) -> object:
    from llvmlite import ir
    from numba import types

    real = types.float32 if bits == 32 else types.float64
    kind = ir.FloatType() if bits == 32 else ir.DoubleType()

    def load_typing(
        typingctx: TypingContext, base: Type, index: Type
    ) -> tuple[Signature, Generator]:
        def codegen(
            context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
        ) -> Value:
            pointer = builder.inttoptr(values[0], kind.as_pointer())
            return builder.load(builder.gep(pointer, [values[1]]))

        return real(types.int64, types.int64), codegen

    def store_typing(
        typingctx: TypingContext, base: Type, index: Type, value: Type
    ) -> tuple[Signature, Generator]:
        def codegen(
            context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
        ) -> Value:
            pointer = builder.inttoptr(values[0], kind.as_pointer())
            builder.store(values[2], builder.gep(pointer, [values[1]]))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, real), codegen

    return store_typing if store else load_typing


def _view(base: int, index: int, bits: int) -> Any:
    kind = ctypes.c_float if bits == 32 else ctypes.c_double
    return kind.from_address(base + index * bits // 8)


def _load_python(base: int, index: int, bits: int) -> object:
    return _view(base, index, bits).value


def _store_python(base: int, index: int, value: object, bits: int) -> None:
    _view(base, index, bits).value = value


finish = caller(
    "riiii",
    """The end of an epilogue on a block of sums, by the function of `finisher`.

finish(function, plan, c, addend, rows, columns)

The plan is `flowvm.ops.products.cpu.gemm_kernels.Plan`; the block's rows are those of `out`, of
which it is a part, and so the columns of the plan's product if that is swapped.
""",
)


def _after_sum(act: Callable[[Number], Number]) -> Callable[[Number, Number], Number]:
    def join(x: Number, y: Number) -> Number:
        return act(x + y)

    return join


@functools.cache
def finisher(dtype: str, kind: Kind, act: Callable[..., object], joins: bool = False) -> int:
    """The address of the function that ends epilogues with `act`, a scalar function, on `dtype`,
    for plans of this kind.

    `joins`: it takes the sum and the addend as two arguments.
    """
    alone, join = (unchanged, act) if joins else (act, _after_sum(act))
    bits = 32 if dtype == "float32" else 64
    real = getattr(np, dtype)
    load = Intrinsic(
        functools.partial(_load_python, bits=bits), functools.partial(_place_define, bits, False)
    )
    store = Intrinsic(
        functools.partial(_store_python, bits=bits), functools.partial(_place_define, bits, True)
    )

    def end(p: Any, c: int, addend: int, rows: int, columns: int) -> None:
        scale, weight, what = real(p.alpha), real(p.beta), p.finish
        c_row, s_row, s_column = p.n, p.s_row, p.s_column
        if p.swap != 0:
            c_row, s_row, s_column = p.m, p.s_column, p.s_row
        for i in range(rows):
            to, at = i * c_row, i * s_row
            if what == ACTIVATED:
                for j in range(columns):
                    store(c, to + j, alone(load(c, to + j)))
            elif what != ADDED:
                for j in range(columns):
                    store(c, to + j, alone(scale * load(c, to + j)))
            elif s_column == 1:
                for j in range(columns):
                    more = weight * load(addend, at + j)
                    store(c, to + j, join(scale * load(c, to + j), more))
            else:
                for j in range(columns):
                    more = weight * load(addend, at + j * s_column)
                    store(c, to + j, join(scale * load(c, to + j), more))

    def make() -> jit.Lowered:
        from numba import types

        arguments = (numba_kind(kind), *[types.int64] * 4)
        return jit.c_function(lower(end, arguments, types.void))

    return jit.load(make, f"{end.__qualname__}, {dtype}")
