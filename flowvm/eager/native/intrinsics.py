"""The primitives of `flowvm.eager.native.cpython` for Numba; imported only to compile."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from flowvm.private.numba import NUMBA


def external(name: str, signature: str) -> Any:
    """A C function of CPython."""
    args, result = NUMBA.normalize_signature(signature)
    return types.ExternalFunction(name, result(*args))


def bits_of(typingctx: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.bitcast(values[0], ir.IntType(64))

    return types.int64(types.float64), codegen


def double_of(typingctx: Any, bits: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.bitcast(values[0], ir.DoubleType())

    return types.float64(types.int64), codegen


def single_of(typingctx: Any, bits: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        low = builder.trunc(values[0], ir.IntType(32))
        return builder.fpext(builder.bitcast(low, ir.FloatType()), ir.DoubleType())

    return types.float64(types.int64), codegen


SCRATCH = 40  # words


def scratch(typingctx: Any) -> Any:
    """The address of SCRATCH words on the stack, which each place that says this has of its own."""

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        word = ir.IntType(64)
        room = NUMBA.cgutils.alloca_once(builder, word, size=ir.Constant(word, SCRATCH))
        return builder.ptrtoint(room, word)

    return types.int64(), codegen
