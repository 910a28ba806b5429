"""Walks of a convolution: compiled once for a dtype, called by address from the bodies of ops.

What an op's kernel adds to a walk is little: which arrays it has.  So a body is a call; the walk
behind it, where Numba and LLVM have their work, is shared by a convolution with a bias and without,
its gradient and the transposed ones.  The numbers of a plan go to it by address too: as a
NamedTuple of its fields each function in the walk would have dozens of parameters, and typing these
took longer than anything else.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from flowvm.compiler import jit
from flowvm.compiler.jit import llvm
from flowvm.compiler.native import Intrinsic, lower
from flowvm.ops.planes.cpu.conv_code import functions_apart

__all__ = ["array_at", "array_in", "call_walk", "numbers_address", "numbers_at", "walker"]

LARGE = 12  # blocks, before optimization, of a function that is not worth a copy in its caller


@functools.cache
def _numbers(plan: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(plan, np.int64)


def numbers_address(plan: tuple[int, ...]) -> int:
    """Where the numbers of a plan lie: one place for each plan, as long as the process lives."""
    return int(_numbers(plan).ctypes.data)


def numbers_at(kind: Any) -> Intrinsic:
    """at(address), inside a body: the `kind`, a NamedTuple of integers, that lies there."""

    def python(address: int) -> Any:
        return kind._make((ctypes.c_int64 * len(kind._fields)).from_address(address))

    def define() -> Any:
        from numba import types

        record = types.Record.make_c_struct([(name, types.int64) for name in kind._fields])

        def typing(typingctx: Any, address: Any) -> Any:
            def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
                return builder.inttoptr(values[0], context.get_value_type(record))

            return record(types.int64), codegen

        return typing

    return Intrinsic(python, define)


def _at_python(address: int, count: int) -> Any:
    return np.ctypeslib.as_array((ctypes.c_int64 * count).from_address(address))


def _at_define() -> Any:
    from numba import types

    def typing(typingctx: Any, address: Any, count: Any) -> Any:
        made = types.Array(types.int64, 1, "C")

        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            return _array(context, builder, made, values[0], values[1])

        return made(types.int64, types.int64), codegen

    return typing


def _array(context: Any, builder: Any, kind: Any, address: Any, count: Any) -> Any:
    """A flat array of so many elements at an address."""
    array = context.make_array(kind)(context, builder)
    array.data = builder.inttoptr(address, array.data.type)
    array.nitems = count
    array.itemsize = array.itemsize.type(kind.dtype.bitwidth // 8)
    array.shape = builder.insert_value(array.shape, count, 0)
    array.strides = builder.insert_value(array.strides, array.itemsize, 0)
    return array._getvalue()


array_at = Intrinsic(_at_python, _at_define)
array_at.__doc__ = """array_at(address, count), inside a body: the int64 array that lies there."""


def _array_python(memory: Any, at: int, count: int, like: Any) -> Any:
    dtype = np.dtype(like.dtype if isinstance(like, np.ndarray) else like)
    return memory[at : at + count * dtype.itemsize].view(dtype)


def _array_define() -> Any:
    from numba import types

    def typing(typingctx: Any, memory: Any, at: Any, count: Any, like: Any) -> Any:
        made = types.Array(like.dtype, 1, "C")

        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            data = context.make_array(memory)(context, builder, values[0]).data
            address = builder.ptrtoint(builder.gep(data, [values[1]]), values[1].type)
            return _array(context, builder, made, address, values[2])

        return made(memory, types.int64, types.int64, like), codegen

    return typing


array_in = Intrinsic(_array_python, _array_define)
array_in.__doc__ = """array_in(memory, at, count, like), inside a body: an array in bytes.

It has `count` elements from byte `at` on, of the dtype `like` or of that of the array `like`.  A
slice's `view` is the same, and takes a quarter of a second to compile.
"""


def _flat(value: Any) -> list[Any]:
    """An argument as Numba passes it: an array in parts."""
    if not isinstance(value, np.ndarray):
        return [ctypes.c_int64(value)]
    sizes = (value.size, value.itemsize)
    head = [None, None, *map(ctypes.c_int64, sizes), ctypes.c_void_p(value.ctypes.data)]
    return head + [ctypes.c_int64(n) for n in (*value.shape, *value.strides)]


def _walk_python(
    walk: int, a: Any, b: Any, c: Any, d: Any, kind: int, plan: int, scratch: Any, arena: Any,
    lo: int, hi: int,
) -> None:  # fmt: skip
    args = [_flat(v) for v in (a, b, c, d, kind, plan, scratch, arena, lo, hi)]
    ctypes.CFUNCTYPE(None)(walk)(*(part for parts in args for part in parts))


def _walk_define() -> Any:
    from llvmlite import ir
    from numba import types

    def typing(
        typingctx: Any, walk: Any, a: Any, b: Any, c: Any, d: Any, kind: Any, plan: Any,
        scratch: Any, arena: Any, lo: Any, hi: Any,
    ) -> Any:  # fmt: skip
        n = types.int64

        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            packer = context.get_arg_packer(signature.args[1:])
            passed = packer.as_arguments(builder, values[1:])
            function = ir.FunctionType(ir.VoidType(), [value.type for value in passed])
            builder.call(builder.inttoptr(values[0], function.as_pointer()), passed)
            return context.get_dummy_value()

        return types.void(n, a, b, c, d, n, n, scratch, arena, n, n), codegen

    return typing


call_walk = Intrinsic(_walk_python, _walk_define)
call_walk.__doc__ = """Call the `walker` at an address, inside a body.

call_walk(walk, out, first, second, third, kind, plan, scratch, arena, lo, hi)
"""


@functools.cache
def walker(walk: Callable[..., None], dtype: str) -> int:
    """The address of walk(out, first, second, third, kind, plan, scratch, arena, lo, hi), whose
    four arrays are of `dtype` and flat, and whose other arguments are those of `call_walk`.
    """

    def make() -> jit.Lowered:
        from numba import types

        real, byte = (types.Array(getattr(types, name), 1, "C") for name in (dtype, "uint8"))
        n = types.int64
        with functions_apart() as apart:
            lowered = lower(walk, (real, real, real, real, n, n, byte, byte, n, n), types.void)
        for module in lowered.modules:
            for function in module.functions:
                if function.name != lowered.name and sum(1 for _ in function.blocks) > LARGE:
                    function.add_function_attribute("noinline")
        lowered.modules.append(llvm.parse_assembly(str(apart)))
        return jit.c_function(lowered)._replace(loops_only=True)

    return jit.load(make, f"{walk.__qualname__}, {dtype}")
