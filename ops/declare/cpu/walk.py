"""The walk through the tiles of an elementwise kernel, compiled once and called by all of them.

A plan (`ops/declare/cpu/tile_plan.py`) says what the tiles are.  The walk finds each operand's
place in a tile, moves what is to be staged into its stage, calls the kernel's function for the
tile, and moves staged results out.  Kernels call it by name, `WALK`, which keeps each of them to a
few loops.

`copy` is the kernel of a plain copy: it moves the tiles and calls no kernel.

What moves elements is large and in three kernels, so it is compiled once too, and called by its
name, `MOVE`.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from flowvm.compiler import helpers, jit
from flowvm.compiler.native import Intrinsic
from flowvm.loading.lazy import lazy
from flowvm.ops.declare.cpu import moves
from flowvm.ops.declare.cpu.moves import load_word, store_word
from flowvm.ops.declare.cpu.tile_plan import HEADER, MAX_NDIM, OPERAND, PATTERN, STAGE, STAGED
from flowvm.private.numba import NUMBA

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


llvm = lazy("llvmlite.binding")

WORDS_ONLY = True

OPERANDS_AT = 8  # the word of `args` where the operands' addresses begin
WALK, MOVE = "flowvm_walk", "flowvm_move"
_MOVE_ARGS = 9
# words of the walk's memory: the tile's pointers, its row steps, where staged operands come from,
# the outer indices; then the stages, aligned to a cache line, each rounded up to one
_STEPS, _HOME, _INDEX, _STAGES = MAX_NDIM, 2 * MAX_NDIM, 3 * MAX_NDIM, 4 * MAX_NDIM
_WORDS = _STAGES + (STAGE + 64 * (MAX_NDIM + 1)) // 8


def walk(args: int, layout: int, lo: int, hi: int, outs: int, count: int, table: int) -> int:
    """Call the tile function for the tiles [lo, hi); the first that fails ends it.

    The first `outs` of `count` operands are outputs. `table` has (pattern, tile function) pairs,
    one of which serves all tiles.
    """
    if lo >= hi:
        return 0
    memory = stack_memory()
    steps, home, index = memory + 8 * _STEPS, memory + 8 * _HOME, memory + 8 * _INDEX
    stages = (memory + 8 * _STAGES + 63) // 64 * 64
    outer, pattern, flat = load_word(layout, 0), load_word(layout, PATTERN), load_word(layout, 6)
    while load_word(table, 0) != pattern:
        table += 16
    function = load_word(table, 1)
    operands, each = layout + 8 * (HEADER + outer), 8 * (OPERAND + outer)
    staged_shape = 0  # shape of the tile that is in the stages; 0 when nothing is
    for unit in range(lo, hi):
        row, column, rows, columns = _locate(layout, unit, index)
        shape = (rows << 32) + columns
        for k in range(count):
            words = operands + k * each
            at = load_word(args, OPERANDS_AT + k) + _offset(words, outer, index, row, column)
            step = load_word(words, 3)
            if load_word(words, 0) == STAGED:
                size, place = load_word(words, 1), stages + load_word(words, 2)
                if k >= outs and not (staged_shape == shape and load_word(home, k) == at):
                    across = load_word(words, 4)
                    move(size, place, columns * size, size, at, step, across, rows, columns)
                store_word(home, k, at)
                at, step = place, columns * size
            store_word(memory, k, at)
            store_word(steps, k, step)
        staged_shape = shape
        if flat:
            status = call_kernel(function, memory, steps, 1, rows * columns, args)
        else:
            status = call_kernel(function, memory, steps, rows, columns, args)
        if status != 0:
            return int(status)
        for k in range(outs):
            words = operands + k * each
            if load_word(words, 0) == STAGED:
                size, place = load_word(words, 1), load_word(memory, k)
                at, step, across = load_word(home, k), load_word(words, 3), load_word(words, 4)
                move(size, at, step, across, place, columns * size, size, rows, columns)
    return 0


def copy(args: int, layout: int, lo: int, hi: int) -> int:
    """The kernel of a copy: operand 1 to operand 0, elements of one size."""
    to, source = load_word(args, OPERANDS_AT), load_word(args, OPERANDS_AT + 1)
    copy_tiles(to, source, layout, lo, hi, stack_memory())
    return 0


def copy_tiles(to: int, source: int, layout: int, lo: int, hi: int, index: int) -> None:
    """Tiles [lo, hi) of a copy's plan; `index` is memory for a word each outer dimension."""
    outer = load_word(layout, 0)
    first = layout + 8 * (HEADER + outer)
    second = first + 8 * (OPERAND + outer)
    size, d_row, d_col = load_word(first, 1), load_word(first, 3), load_word(first, 4)
    s_row, s_col = load_word(second, 3), load_word(second, 4)
    for unit in range(lo, hi):
        row, column, rows, columns = _locate(layout, unit, index)
        t = to + _offset(first, outer, index, row, column)
        f = source + _offset(second, outer, index, row, column)
        move(size, t, d_row, d_col, f, s_row, s_col, rows, columns)


def _locate(layout: int, unit: int, index: int) -> tuple[int, int, int, int]:
    """Return a tile's first row and column, height and width; store the outer indices at
    `index`.
    """
    outer, height, width = load_word(layout, 0), load_word(layout, 3), load_word(layout, 4)
    rows, columns = load_word(layout, 1), load_word(layout, 2)
    row = column = 0
    if width < columns:  # a division costs as much as a short row
        across = (columns + width - 1) // width
        column, unit = unit % across * width, unit // across
    if height < rows:
        down = (rows + height - 1) // height
        row, unit = unit % down * height, unit // down
    for d in range(outer - 1, -1, -1):
        n = load_word(layout, HEADER + d)
        store_word(index, d, unit % n)
        unit //= n
    return row, column, min(height, rows - row), min(width, columns - column)


def _offset(words: int, outer: int, index: int, row: int, column: int) -> int:
    """Bytes from an operand's first element to the tile's."""
    at = row * load_word(words, 3) + column * load_word(words, 4)
    for d in range(outer):
        at += load_word(index, d) * load_word(words, OPERAND + d)
    return int(at)


def _stack_define() -> Callable[[Number], object]:
    from llvmlite import ir
    from numba import types

    def typing(typingctx: TypingContext) -> tuple[Signature, Generator]:
        def codegen(
            context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
        ) -> Value:
            word = ir.IntType(64)
            return builder.ptrtoint(NUMBA.cgutils.alloca_once(builder, word, size=_WORDS), word)

        return types.int64(), codegen

    return typing


def _move_define() -> object:
    from numba import types

    return types.ExternalFunction(MOVE, types.void(*([types.int64] * _MOVE_ARGS)))


def _call_define() -> Callable[..., object]:
    from llvmlite import ir
    from numba import types

    def typing(
        typingctx: TypingContext,
        tile: Type,
        pointers: Type,
        steps: Type,
        rows: Type,
        columns: Type,
        args: Type,
    ) -> tuple[Signature, Generator]:
        def codegen(
            context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
        ) -> Value:
            word = ir.IntType(64)
            kind = ir.FunctionType(ir.IntType(32), [word] * 5).as_pointer()
            status = builder.call(builder.inttoptr(values[0], kind), values[1:])
            return builder.sext(status, word)

        return types.int64(*([types.int64] * 6)), codegen

    return typing


def _call_python(tile: int, pointers: int, steps: int, rows: int, columns: int, args: int) -> int:
    kind = ctypes.CFUNCTYPE(ctypes.c_int32, *([ctypes.c_int64] * 5))
    return int(kind(tile)(pointers, steps, rows, columns, args))


def _stack_text(result: str) -> str:
    return f"""
{result}.at = alloca [{_WORDS} x i64]
{result} = ptrtoint ptr {result}.at to i64
"""


def _move_text(result: str, *values: str) -> str:
    return f"""
declare void @{MOVE}({", ".join(["i64"] * _MOVE_ARGS)})
call void @{MOVE}({", ".join(f"i64 {value}" for value in values)})
"""


def _call_text(result: str, tile: str, *values: str) -> str:
    return f"""
{result}.f = inttoptr i64 {tile} to ptr
{result}.s = call i32 {result}.f({", ".join(f"i64 {value}" for value in values)})
{result} = sext i32 {result}.s to i64
"""


_stack_memory = np.zeros(_WORDS, np.int64)  # where plain Python runs `walk`, one call at a time
stack_memory = Intrinsic(lambda: _stack_memory.ctypes.data, _stack_define, text=_stack_text)
move = Intrinsic(moves.move, _move_define, cuda=moves.move, text=_move_text)
# the function at an address, which takes five words: a tile's, or a kernel
call_kernel = Intrinsic(_call_python, _call_define, text=_call_text)


@functools.cache
def provide() -> None:
    """Let elementwise kernels that are compiled or loaded later call `walk`."""
    provide_move()
    words = ", ".join(["int64"] * 7)
    jit.provide(WALK, jit.native(walk, f"int32({words})"))


@functools.cache
def provide_move() -> None:
    """Let kernels that are compiled or loaded later call `moves.move`.

    It takes over a second to compile.  Until a helper has done that, a plain loop stands in for it,
    which has few elements to move in the first seconds of a first run, and moves the same.
    """
    address = helpers.native_if_cached(moves.move, _MOVE_SIGNATURE)
    if address is None:
        jit.provide(_TUNED, ctypes.addressof(_tuned))
        address = jit.load(_plain_move, "plain move")
        helpers.later(f"{__name__}:make_move", _use_tuned)
    jit.provide(MOVE, address)


def make_move() -> int:
    """The address of `moves.move`."""
    return jit.native(moves.move, _MOVE_SIGNATURE)


_MOVE_SIGNATURE = f"void({', '.join(['int64'] * _MOVE_ARGS)})"
_TUNED = "flowvm_tuned_move"
_tuned = ctypes.c_int64(0)  # the address of `moves.move`, once it is there


def _use_tuned() -> None:
    address = helpers.native_if_cached(moves.move, _MOVE_SIGNATURE)
    _tuned.value = make_move() if address is None else address


def _plain_move() -> jit.Lowered:
    """`moves.move` as a loop over rows and columns; or that itself, as soon as it is there."""
    names = ["size", "to", "d_row", "d_col", "source", "s_row", "s_col", "rows", "columns"]
    passed = ", ".join(f"i64 %{name}" for name in names)
    blocks = "".join(_PLAIN_LOOP.replace("#", str(8 * size)) for size in (1, 2, 4, 8, 16))
    text = f"""
@{_TUNED} = external global i64
define void @entry({passed}) {{
  %tuned = load atomic i64, ptr @{_TUNED} acquire, align 8
  %there = icmp ne i64 %tuned, 0
  br i1 %there, label %pass, label %look
pass:
  %function = inttoptr i64 %tuned to ptr
  call void %function({passed})
  ret void
look:
  %high = icmp sgt i64 %rows, 0
  %wide = icmp sgt i64 %columns, 0
  %some = and i1 %high, %wide
  br i1 %some, label %plain, label %end
plain:
  switch i64 %size, label %end [i64 1, label %row8
    i64 2, label %row16
    i64 4, label %row32
    i64 8, label %row64
    i64 16, label %row128]
{blocks}
end:
  ret void
}}
"""
    return jit.Lowered([llvm.parse_assembly(text)], "entry", loops_only=True)


# rows and columns are at least 1
_PLAIN_LOOP = """
row#:
  %r# = phi i64 [0, %plain], [%r#n, %next#]
  %rt# = mul i64 %r#, %d_row
  %rf# = mul i64 %r#, %s_row
  %t# = add i64 %to, %rt#
  %f# = add i64 %source, %rf#
  br label %column#
column#:
  %c# = phi i64 [0, %row#], [%c#n, %column#]
  %ct# = mul i64 %c#, %d_col
  %cf# = mul i64 %c#, %s_col
  %at# = add i64 %t#, %ct#
  %of# = add i64 %f#, %cf#
  %tp# = inttoptr i64 %at# to ptr
  %fp# = inttoptr i64 %of# to ptr
  %v# = load i#, ptr %fp#, align 1
  store i# %v#, ptr %tp#, align 1
  %c#n = add i64 %c#, 1
  %cmore# = icmp slt i64 %c#n, %columns
  br i1 %cmore#, label %column#, label %next#
next#:
  %r#n = add i64 %r#, 1
  %rmore# = icmp slt i64 %r#n, %rows
  br i1 %rmore#, label %row#, label %end
"""


@functools.cache
def copy_kernel() -> int:
    """The address of `copy`."""
    provide_move()
    return jit.native(copy, "int32(int64, int64, int64, int64)")
