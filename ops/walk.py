"""The walk over the rows of an elementwise kernel, compiled once and called by all of them.

A row is a run along the innermost dimension.  A kernel brings one function for each kind of row;
the walk finds the kind, moves every operand's pointer from row to row, and cuts the first and last
row where the range [lo, hi) begins and ends.  Kernels call it by name, `WALK`, which keeps each of
them to a few loops.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np

from flowvm import jit
from flowvm.native import Intrinsic

__all__ = ["MAX_NDIM", "OPERANDS_AT", "STRIDED", "WALK", "provide", "walk"]

OPERANDS_AT = 8  # the word of `args` where the operands' addresses begin
MAX_NDIM = 32  # and the most operands
STRIDED = -1
ODD = 1 << 62  # in no row's pattern
WALK = "flowvm_walk"


def walk(args: int, layout: int, lo: int, hi: int, count: int, sizes: int, table: int) -> int:
    """Call the row function for each row of [lo, hi); the first that fails ends it.

    `table` has (pattern, row function) pairs; all rows have the same inner strides, so one of them
    serves all. The outer indices count up like an odometer: only the first row divides.
    """
    if lo >= hi:
        return 0
    pointers = _stack()
    steps, index = pointers + 8 * MAX_NDIM, pointers + 16 * MAX_NDIM
    ndim = _load(layout)
    shape, last = layout + 8, ndim - 1
    n = _load(shape + 8 * last)
    pattern = 0
    for k in range(count):
        step = _load(shape + 8 * (ndim * (k + 1) + last))
        _store(steps + 8 * k, step)
        _store(pointers + 8 * k, _load(args + 8 * (OPERANDS_AT + k)))
        if step == 0:
            pattern |= 1 << k
        elif step != 1:
            pattern |= ODD
    while _load(table) != pattern and _load(table) != STRIDED:
        table += 16
    row = _load(table + 8)
    column, rest = lo % n, lo // n
    _shift(pointers, shape, sizes, count, ndim, last, column)
    for d in range(last - 1, -1, -1):
        size = _load(shape + 8 * d)
        _store(index + 8 * d, rest % size)
        _shift(pointers, shape, sizes, count, ndim, d, rest % size)
        rest //= size
    while True:
        length = min(n - column, hi - lo)
        status = _call_row(row, pointers, steps, length, args)
        lo += length
        if status != 0 or lo >= hi:
            return int(status)
        _shift(pointers, shape, sizes, count, ndim, last, -column)
        column = 0
        d = last - 1
        while _load(index + 8 * d) + 1 == _load(shape + 8 * d):
            _store(index + 8 * d, 0)
            _shift(pointers, shape, sizes, count, ndim, d, 1 - _load(shape + 8 * d))
            d -= 1
        _store(index + 8 * d, _load(index + 8 * d) + 1)
        _shift(pointers, shape, sizes, count, ndim, d, 1)


def _shift(
    pointers: int, shape: int, sizes: int, count: int, ndim: int, d: int, steps: int
) -> None:
    """Move every operand's pointer by `steps` in dimension `d`."""
    if steps != 0:
        for k in range(count):
            stride = _load(shape + 8 * (ndim * (k + 1) + d)) * _load(sizes + 8 * k)
            _store(pointers + 8 * k, _load(pointers + 8 * k) + steps * stride)


def _load_define() -> Any:
    from llvmlite import ir
    from numba import types

    def typing(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            return builder.load(builder.inttoptr(values[0], ir.IntType(64).as_pointer()))

        return types.int64(types.int64), codegen

    return typing


def _store_define() -> Any:
    from llvmlite import ir
    from numba import types

    def typing(typingctx: Any, address: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            builder.store(values[1], builder.inttoptr(values[0], ir.IntType(64).as_pointer()))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    return typing


def _stack_define() -> Any:
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils

    def typing(typingctx: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            word = ir.IntType(64)
            return builder.ptrtoint(cgutils.alloca_once(builder, word, size=3 * MAX_NDIM), word)

        return types.int64(), codegen

    return typing


def _call_row_define() -> Any:
    from llvmlite import ir
    from numba import types

    def typing(typingctx: Any, row: Any, pointers: Any, steps: Any, length: Any, args: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            word = ir.IntType(64)
            kind = ir.FunctionType(ir.IntType(32), [word] * 4).as_pointer()
            status = builder.call(builder.inttoptr(values[0], kind), values[1:])
            return builder.sext(status, word)

        return types.int64(*([types.int64] * 5)), codegen

    return typing


def _word_at(address: int) -> ctypes.c_int64:
    return ctypes.c_int64.from_address(address)


def _call_row_python(row: int, pointers: int, steps: int, length: int, args: int) -> int:
    kind = ctypes.CFUNCTYPE(ctypes.c_int32, *([ctypes.c_int64] * 4))
    return int(kind(row)(pointers, steps, length, args))


_stack_memory = np.zeros(
    3 * MAX_NDIM, np.int64
)  # where plain Python runs `walk`, one call at a time
_load = Intrinsic(lambda address: _word_at(address).value, _load_define)
_store = Intrinsic(lambda address, value: setattr(_word_at(address), "value", value), _store_define)
_stack = Intrinsic(lambda: _stack_memory.ctypes.data, _stack_define)
_call_row = Intrinsic(_call_row_python, _call_row_define)


@functools.cache
def provide() -> None:
    """Let elementwise kernels that are compiled or loaded later call `walk`."""
    words = ", ".join(["int64"] * 7)
    jit.provide(WALK, jit.native(walk, f"int32({words})"))
