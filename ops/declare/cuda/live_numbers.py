"""Tasks of graphs: numbers that change from launch to launch are read from memory.

A captured CUDA graph has its kernels' parameters in it.  So a number that each launch brings (a
learning rate, a step count, a random seed) is not a parameter there but the address of one, and so
is the line that a kernel reports to: both lie in the launch's chunk.  `placed` turns an op's launch
into a task's; `put_steps` writes the numbers, and `collect_step` looks through the lines.

An address is passed as that of one more operand.  A task's arguments are therefore: the op's
operands, then an operand for each number that is live, then the line, then the other numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from numba import cuda

from flowvm.cuda.compiler.compilation import threads
from flowvm.cuda.launch import (
    LINE,
    STATUS_AT,
    Const,
    CudaLaunch,
    Details,
    KernelStep,
    LibraryStep,
    Operand,
    Param,
    Scalar,
    Scratch,
)
from flowvm.launch import View
from flowvm.meta.dtype import float64, int64
from flowvm.ops.declare.cuda.steps import written

Kernel = Callable[..., object]
WARP = 32
ALL = 0xFFFFFFFF
PUT = (8, 32, 128, 448)  # words that a put kernel writes; a launch has 4 KiB of parameters


def reports(launch: CudaLaunch) -> bool:
    """Return True if a kernel of the launch may find bad data."""
    return any(isinstance(p, Details) for step in launch.steps for p in step.params)


def placed(launch: CudaLaunch, operands: int, live: Sequence[bool]) -> CudaLaunch:
    """The launch as a task of a graph: `live` says which of its dynamic scalars are."""
    before = [sum(live[:i]) for i in range(len(live) + 1)]
    line = operands + before[-1]

    def moved(param: Param) -> Param:
        match param:
            case Scalar(i, kind) if live[i]:
                return Operand(operands + before[i], View(float64 if kind == "f" else int64, (1,)))
            case Scalar(i, kind):
                return Scalar(before[-1] + 1 + i - before[i], kind)
            case Details():
                return Operand(line, View(int64, (LINE,)))
        return param

    def of(step: KernelStep | LibraryStep) -> KernelStep | LibraryStep:
        if isinstance(step, LibraryStep):
            return step
        which = tuple(isinstance(p, Scalar) and live[p.i] for p in step.params)
        kernel = by_address(step.kernel, which) if any(which) else step.kernel
        return replace(step, kernel=kernel, params=tuple(map(moved, step.params)))

    return replace(launch, steps=tuple(map(of, launch.steps)))


@functools.cache
def by_address(kernel: Kernel, which: tuple[bool, ...]) -> Kernel:
    """`kernel`, with arrays of one number in the places of the numbers that `which` names."""
    names = [f"a{k}" for k in range(len(which))]
    arguments = [f"{n}[0]" if read else n for n, read in zip(names, which, strict=True)]
    text = f"def {kernel.__name__}({', '.join(names)}):\n    kernel({', '.join(arguments)})\n"
    variant = written(
        text, kernel.__name__, {"kernel": kernel}, f"{__name__}:by_address", kernel, which
    )
    variant.__module__ = kernel.__module__  # which tells what it is
    return variant


@functools.cache
def put_kernel(count: int) -> Kernel:
    """kernel(to, w0, w1, ...): write `count` words; one thread, for each is a parameter."""
    names = [f"w{k}" for k in range(count)]
    lines = [f"        to[{k}] = {n}" for k, n in enumerate(names)]
    text = "\n".join([
        f"def put({', '.join(['to', *names])}):", "    if cuda.grid(1) == 0:", *lines, ""
    ])  # fmt: skip
    return written(text, "put", {}, f"{__name__}:put_kernel", count)


def _pieces(count: int) -> list[int]:
    """Sizes of the put kernels that write `count` words."""
    whole, rest = divmod(count, PUT[-1])
    return [PUT[-1]] * whole + ([next(p for p in PUT if p >= rest)] if rest else [])


def put_capacity(count: int) -> int:
    """Return the number of words that `put_steps` writes for `count` values; the last may be 0."""
    return sum(_pieces(count))


def put_steps(to: Operand | Scratch, values: Sequence[Param]) -> tuple[KernelStep, ...]:
    """Steps that write `values`, a word each, to where `to` begins."""
    steps, at = [], 0
    for size in _pieces(len(values)):
        numbers = [*values[at : at + size], *[Const(0)] * (at + size - len(values))]
        target: Param = Scratch(to.offset + 8 * at, "int64", (size,))
        if isinstance(to, Operand):
            target = Operand(to.k, View(int64, (size,)), to.offset + 8 * at)
        steps.append(KernelStep(put_kernel(size), (target, *numbers), (1, 1, 1), (1, 1, 1)))
        at += size
    return tuple(steps)


def _collect(line: Any, lines: Any, count: int) -> None:
    """The first of the lines that has a status goes to `line`, and they are as new; one warp."""
    lane, has_index = cuda.threadIdx.x, False
    for first in range(0, count, WARP):
        at = LINE * (first + lane)
        bad = first + lane < count and lines[at + STATUS_AT] != 0
        votes = cuda.ballot_sync(ALL, bad)
        if bad:
            if not has_index and votes & ((1 << lane) - 1) == 0:
                for k in range(STATUS_AT):
                    line[k] = lines[at + k]
                line[STATUS_AT + 1] = first + lane
                cuda.threadfence_system()
                line[STATUS_AT] = lines[at + STATUS_AT]
            lines[at + STATUS_AT] = 0
        has_index = has_index or votes != 0


def collect_step(lines: int, count: int) -> KernelStep:
    """Return a step that copies the first line with a report into the instruction's line.

    It looks at `count` lines, which begin at operand `lines`, and adds the line's number.
    """
    params = (Details(), Operand(lines, View(int64, (LINE * count,))), Const(count))
    return KernelStep(_collect, params, (1, 1, 1), (threads(WARP), 1, 1))
