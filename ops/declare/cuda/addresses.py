"""Arrays that a kernel makes of addresses that it has read from memory.

`array_at[dtype](address, first, count)` is elements `first` to `first + count - 1` of the
one-dimensional array of `dtype` that begins at `address`, in global memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.compiler.native import Intrinsic
from flowvm.private.numba_cuda import NUMBA_CUDA

if TYPE_CHECKING:
    from flowvm.private.code_types import (
        Builder,
        CodeContext,
        Generator,
        Signature,
        Type,
        TypingContext,
        Value,
    )


KINDS = ("float32", "float64", "int64")


def _python(kind: str) -> Callable[[int, int, int], object]:
    size = np.dtype(kind).itemsize

    def array(address: int, first: int, count: int) -> Any:
        raw: Any = (ctypes.c_char * (size * int(count))).from_address(int(address + size * first))
        return np.frombuffer(raw, kind)

    return array


def _define(kind: str) -> Callable[[], object]:
    def define() -> Callable[..., object]:
        from llvmlite import ir
        from numba.cuda import types

        cgutils = NUMBA_CUDA.cgutils
        element = getattr(types, kind)
        result = types.Array(element, 1, "C")
        word = ir.IntType(64)

        def array(
            typingctx: TypingContext, address: Type, first: Type, count: Type
        ) -> tuple[Signature, Generator]:
            def codegen(
                context: CodeContext,
                builder: Builder,
                signature: Signature,
                values: Sequence[Value],
            ) -> Value:
                stored = context.get_data_type(element)
                size = word(context.get_abi_sizeof(stored))
                begin = builder.add(values[0], builder.mul(values[1], size))
                place = builder.inttoptr(begin, ir.PointerType(stored, 1))  # global memory
                array = context.make_array(result)(context, builder)
                array.data = builder.addrspacecast(place, ir.PointerType(stored))
                array.nitems, array.itemsize = values[2], size
                array.shape = cgutils.pack_array(builder, [values[2]])
                array.strides = cgutils.pack_array(builder, [size])
                array.meminfo = cgutils.get_null_value(array.meminfo.type)
                array.parent = cgutils.get_null_value(array.parent.type)
                return array._getvalue()

            return result(types.int64, types.int64, types.int64), codegen

        return array

    return define


array_at = {kind: Intrinsic(_python(kind), _define(kind)) for kind in KINDS}
