"""Arrays in a body's memory: its arena and scratch, which are bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.compiler.native import MEMORY, Intrinsic

if TYPE_CHECKING:
    from flowvm.private.code_types import (
        Builder,
        CodeContext,
        Signature,
        Type,
        TypingContext,
        Value,
    )


def _array_python(memory: Any, at: int, count: int, like: Any) -> object:
    dtype = np.dtype(like.dtype if isinstance(like, np.ndarray) else like)
    if memory.ctypes.data + at & dtype.itemsize - 1:  # a CPU reads it all the same; a GPU does not
        raise ValueError(f"byte {at} of an arena is misaligned for {dtype.name}")
    return memory[at : at + count * dtype.itemsize].view(dtype)


def _array_define() -> Callable[..., object]:
    from numba import types

    def typing(
        typingctx: TypingContext, memory: object, at: object, count: object, like: Type
    ) -> object:
        kind = types.Array(like.dtype, 1, "C")

        def codegen(
            context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
        ) -> Value:
            data = context.make_array(memory)(context, builder, values[0]).data
            array = context.make_array(kind)(context, builder)
            array.data = builder.bitcast(builder.gep(data, [values[1]]), array.data.type)
            array.nitems = values[2]
            size = context.get_abi_sizeof(context.get_data_type(kind.dtype))
            array.itemsize = array.itemsize.type(size)
            array.shape = builder.insert_value(array.shape, values[2], 0)
            array.strides = builder.insert_value(array.strides, array.itemsize, 0)
            return array._getvalue()

        return kind(memory, types.int64, types.int64, like), codegen

    return typing


array_in = Intrinsic(_array_python, _array_define, takes=MEMORY)
array_in.__doc__ = """array_in(memory, at, count, like), inside a body: an array in bytes.

It has `count` elements from byte `at` on, of the dtype `like` or of that of the array `like`.  A
slice's `view` is the same, and takes a quarter of a second to compile.
"""
