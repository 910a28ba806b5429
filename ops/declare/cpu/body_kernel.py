"""Kernels from body functions, in the one form that the VM calls.

    int32 kernel(uint64 args, uint64 layout, int64 lo, int64 hi, uint64 arena)

`args` points at int64 words: 0-5 error details, 6 scratch address, 7 stream, then one address per
operand (outputs first), then one word per dynamic scalar.  `layout` points at immutable int64
words.  [lo, hi) is the part of the work to do; any split into ranges gives the same result.
`arena` is memory of the thread that runs the range.  The kernel returns 0 or a status.

A body is `body(arrays..., consts..., scalars..., [scratch], [arena], lo, hi, [details])` and
returns None or a status.  `details`, if the last parameter has that name, is an int64 array of the
six error details.  A body that raises returns RAISED.

Only the body goes through Numba; what reads the words for it is LLVM text made here.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flowvm.compiler import jit
from flowvm.compiler.native import LoweredFunction, lower
from flowvm.ops.declare.cpu.text import IN_MEMORY, SIZES, Text, converted
from flowvm.ops.declare.cpu.walk import OPERANDS_AT
from flowvm.ops.scalar.half import STORED
from flowvm.vm.machine.layout import ARENA_BYTES

__all__ = ["RAISED", "body_kernel", "body_layout"]

RAISED = 5  # flowvm.errors.Status.INVALID_VALUE
SCRATCH_AT = 6

Operand = tuple[str, int, bool]  # dtype name, ndim, contiguous


def body_layout(
    views: Sequence[tuple[Sequence[int], Sequence[int]]],
    consts: Sequence[int | float | bool] = (),
    scratch: int = 0,
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Layout words of a body kernel: each operand's shape and strides, consts, bytes of scratch."""
    words: list[int] = []
    for shape, strides in views:
        words += [*shape, *strides]
    for const in consts:
        words.append(_bits(const) if isinstance(const, float) else int(const))
    return np.array([*words, scratch], np.int64)


def _bits(value: float) -> int:
    return int(np.float64(value).view(np.int64))


def body_kernel(
    body: Callable[..., Any],
    operands: Sequence[Operand],
    const_kinds: Sequence[str] = (),
    scalar_kinds: Sequence[str] = (),
    scratch: bool = False,
    arena: bool = False,
    *,
    reassociate: bool = False,
    counts: bool = False,
) -> int:
    """The address of a kernel that calls `body` on arrays over the operands.

    `operands` are (dtype name, ndim, contiguous), outputs first; `const_kinds` and `scalar_kinds`
    say "i", "f" or "b" of each const in the layout and each dynamic scalar.  `body_layout` makes
    the layout.  `reassociate` lets LLVM reorder sums in `body` itself, which vectorizes them.
    `counts`: the body is also called with the range [-1, -1) (of mut2 outputs); all others promise
    LLVM lo >= 0, or Numba's care for negative indices would keep loops over x[lo:hi] scalar.
    """
    return _body(
        body,
        tuple(operands),
        tuple(const_kinds),
        tuple(scalar_kinds),
        bool(scratch),
        bool(arena),
        bool(reassociate),
        bool(counts),
    )


@functools.cache
def _body(
    body: Callable[..., Any],
    operands: tuple[Operand, ...],
    const_kinds: tuple[str, ...],
    scalar_kinds: tuple[str, ...],
    scratch: bool,
    arena: bool,
    reassociate: bool,
    counts: bool,
) -> int:
    details = _check_body(body, operands, const_kinds, scalar_kinds, scratch, arena)

    def make() -> jit.Lowered:
        from numba import types

        def array(dtype: str, ndim: int, layout: str) -> Any:
            return types.Array(
                getattr(types, "boolean" if dtype == "bool" else dtype), ndim, layout
            )

        kinds = {"i": types.int64, "f": types.float64, "b": types.boolean}
        signature = [array(d, n, "C" if c else "A") for d, n, c in operands]
        signature += [kinds[k] for k in (*const_kinds, *scalar_kinds)]
        signature += [array("uint8", 1, "C")] * (scratch + arena)
        signature += [types.int64, types.int64]
        signature += [array("int64", 1, "C")] if details else []
        inner = lower(body, tuple(signature), reassociate=reassociate)
        text = _body_text(inner, operands, const_kinds, scalar_kinds, scratch, arena, details)
        if not counts:
            text = text.replace("entry:\n", f"entry:\n{_ASSUME}", 1)
            text += "declare void @llvm.assume(i1)\n"
        return jit.linked(inner, text)

    name = f"{body.__qualname__}, {' '.join(dtype for dtype, _, _ in operands)}"
    return jit.load(make, name)


_ASSUME = """  %forward = icmp sge i64 %lo, 0
  call void @llvm.assume(i1 %forward)
"""


def _check_body(
    body: Callable[..., Any],
    operands: tuple[Operand, ...],
    const_kinds: tuple[str, ...],
    scalar_kinds: tuple[str, ...],
    scratch: bool,
    arena: bool,
) -> bool:
    """Whether `body` takes details; an error where its parameters are not what it will be given."""
    for dtype, _, _ in operands:
        if dtype in STORED or dtype not in IN_MEMORY:
            raise ValueError(
                f"{body.__name__}: a body cannot take {dtype} arrays; convert them first"
            )
    names = list(inspect.signature(body).parameters)
    details = names[-1:] == ["details"]
    wanted = len(operands) + len(const_kinds) + len(scalar_kinds) + scratch + arena + 2 + details
    if len(names) != wanted:
        raise ValueError(
            f"{body.__name__}({', '.join(names)}) would be called with {len(operands)} arrays, "
            f"{len(const_kinds)} consts, {len(scalar_kinds)} scalars{', scratch' * scratch}"
            f"{', arena' * arena}, lo, hi{', details' * details}: {wanted} arguments"
        )
    return details


def _body_text(
    inner: LoweredFunction,
    operands: tuple[Operand, ...],
    const_kinds: tuple[str, ...],
    scalar_kinds: tuple[str, ...],
    scratch: bool,
    arena: bool,
    details: bool,
) -> str:
    t = Text()
    t.put("%argp = inttoptr i64 %args to ptr")
    t.put("%layp = inttoptr i64 %layout to ptr")
    values: list[str] = []

    def array(data: str, itemsize: int, shape: list[str], strides: list[str]) -> None:
        count = functools.reduce(lambda a, b: t.new(f"mul i64 {a}, {b}"), shape, "1")
        values.extend(["null", "null", count, str(itemsize), data, *shape, *strides])

    def number(base: str, index: int, kind: str) -> None:
        value = t.word(base, index, "double" if kind == "f" else "i64")
        if kind == "b":
            value = t.new(f"icmp ne i64 {value}, 0")
            if inner.args_ir[len(values)] == "i8":
                value = t.new(f"zext i1 {value} to i8")
        values.append(value)

    at = 0
    for k, (dtype, ndim, _) in enumerate(operands):
        size = SIZES[IN_MEMORY[dtype]]
        shape = [t.word("%layp", at + d) for d in range(ndim)]
        elements = [t.word("%layp", at + ndim + d) for d in range(ndim)]
        strides = [t.new(f"mul i64 {s}, {size}") for s in elements]
        array(t.word("%argp", OPERANDS_AT + k, "ptr"), size, shape, strides)
        at += 2 * ndim
    for i, kind in enumerate(const_kinds):
        number("%layp", at + i, kind)
    for i, kind in enumerate(scalar_kinds):
        number("%argp", OPERANDS_AT + len(operands) + i, kind)
    if scratch:
        size_word = t.word("%layp", at + len(const_kinds))
        array(t.word("%argp", SCRATCH_AT, "ptr"), 1, [size_word], ["1"])
    if arena:
        array(t.new("inttoptr i64 %arena to ptr"), 1, [str(ARENA_BYTES)], ["1"])
    values += ["%lo", "%hi"]
    if details:
        array("%argp", 8, ["6"], ["8"])
    return _body_entry(inner, t, values)


def _body_entry(inner: LoweredFunction, t: Text, values: list[str]) -> str:
    result = getattr(inner.result, "type", inner.result)  # of an optional: the status it may be
    returns = "" if result.name == "none" else IN_MEMORY[result.name]
    passed = "".join(f", {k} {v}" for k, v in zip(inner.args_ir, values, strict=True))
    t.put(f"%r = alloca {returns or 'ptr'}")
    t.put("%e = alloca ptr")
    t.put(f'%s = call i32 @"{inner.name}"(ptr %r, ptr %e{passed})')
    t.put("switch i32 %s, label %raised [i32 0, label %value i32 -2, label %none]")
    t.label("value")
    status = "0"
    if returns:
        status = converted(t, t.new(f"load {returns}, ptr %r"), result.name, "int32")
    t.put(f"ret i32 {status}")
    t.label("none")
    t.put("ret i32 0")
    t.label("raised")
    t.put(f"ret i32 {RAISED}")
    declared = "".join(f", {a}" for a in inner.args_ir)
    return f"""
declare i32 @"{inner.name}"(ptr, ptr{declared})
define i32 @entry(i64 %args, i64 %layout, i64 %lo, i64 %hi, i64 %arena) {{
entry:
{t}
}}
"""
