"""Launches that many rules share, and `wide`, the type that kernels reckon in.

A *flat* step has a thread for each unit.  A *row* step has `lanes` neighbouring threads for each
row: they read its elements together, and a row, not an element, costs the divisions that say where
it lies.  Both kinds of kernel go on with further units while there are some (grid-stride loops).
"""

from __future__ import annotations

import functools
import linecache
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.compiler.native import Overloaded
from flowvm.cuda.compiler.compilation import simulated
from flowvm.cuda.compiler.compilation import threads as threads
from flowvm.cuda.launch import Const, KernelStep, Operand, Param, Scratch, blocks_for, itemsize_of
from flowvm.launch import View

if TYPE_CHECKING:
    from flowvm.meta.arrays import Number

BLOCK = 256
MOST_BLOCKS = 1 << 14  # of a grid; an H100 runs a thousand of them at a time


def _float32(x: Number) -> object:
    return np.float32(x)


def _float64(x: Number) -> object:
    return np.float64(x)


def _int32(x: Number) -> object:
    return np.int32(x)


def _int64(x: Number) -> object:
    return np.int64(x)


def _bool(x: object) -> object:
    return x


_WIDE = {
    "bool": _bool, "int32": _int32, "int64": _int64, "float32": _float32, "float64": _float64
}  # fmt: skip
wide = Overloaded("wide", _WIDE, "The number as kernels reckon with it: float16 as float32.")


def most_blocks() -> int:
    """The largest grid of a flat or row step: few blocks in the simulator, so that tests see loops
    go round.
    """
    return 4 if simulated() else MOST_BLOCKS


def flat_step(kernel: Callable[..., object], units: int, *params: Param) -> KernelStep:
    """A launch with a thread for each unit."""
    block = threads(BLOCK)
    return KernelStep(kernel, params, blocks_for(units, block, most_blocks()), (block, 1, 1))


def row_step(kernel: Callable[..., object], rows: int, length: int, *params: Param) -> KernelStep:
    """A launch with a power of two of threads for each row; that is the kernel's last parameter."""
    block, lanes = threads(BLOCK), 1
    while lanes < min(length, block):
        lanes *= 2
    grid = blocks_for(rows, block // lanes, most_blocks())
    return KernelStep(kernel, (*params, Const(lanes)), grid, (block, 1, 1))


@functools.cache
def whole(part: Callable[..., object], count: int) -> Callable[..., Any]:
    """The kernel that does all elements by `part(start, stride, ...)`, of `count` parameters."""
    names = ", ".join(f"a{k}" for k in range(count))
    text = f"def {part.__name__}({names}):\n    part(cuda.grid(1), cuda.gridsize(1), {names})\n"
    return written(text, part.__name__, {"part": part}, f"{__name__}:whole", part, count)


def elements_step(part: Callable[..., object], units: int, *params: Param) -> KernelStep:
    """A launch of `part(start, stride, params...)`, with a thread for each element: see `part` in
    `KernelStep`.
    """
    return replace(flat_step(whole(part, len(params)), units, *params), part=part)


def written(
    text: str, name: str, space: dict[str, Any], maker: str, *arguments: object
) -> Callable[..., Any]:
    """The kernel `name` of this program, with these globals and `cuda`, which `maker` makes of
    `arguments`.
    """
    # not a module's global: that is, while the simulator runs a kernel of it, the launch's own
    from numba import cuda

    file = f"<flowvm cuda {name} {zlib.crc32(text.encode()):x}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    space = {**space, "cuda": cuda}
    exec(compile(text, file, "exec"), space)
    space[name].__module__ = maker.partition(":")[0]
    return remade_by(space[name], maker, *arguments)


def remade_by(kernel: Any, maker: str, *arguments: Any) -> Callable[..., Any]:
    """`kernel`, which says how it is made again elsewhere: by "module:function" of arguments."""
    kernel.recipe = maker, arguments
    function: Callable[..., object] = kernel
    return function


def consts(*values: float | tuple[float, ...]) -> tuple[Const, ...]:
    """Numbers, and NamedTuples of them, as parameters; booleans as integers."""
    return tuple(Const(v if isinstance(v, (float, tuple)) else int(v)) for v in values)


def operands(*views: View) -> tuple[Operand, ...]:
    """The instruction's first operands, as these views."""
    return tuple(Operand(k, view) for k, view in enumerate(views))


def reserve(*sizes: tuple[str, int]) -> tuple[tuple[Scratch, ...], int]:
    """Arrays of (dtype, elements) one after another in scratch memory, and the bytes of all."""
    arrays, offset = [], 0
    for dtype, count in sizes:
        arrays.append(Scratch(offset, dtype, (count,)))
        size = itemsize_of(dtype) * count
        offset += -(-size // 256) * 256
    return tuple(arrays), offset
