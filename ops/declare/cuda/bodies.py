"""CPU bodies as CUDA kernels, for ops without a rule of their own.

A body works on any range of its units, so a thread takes one unit after another, and neighbouring
threads take neighbouring units.  Each phase is a step.  A body that counts (of a mut2 op) counts in
one thread.  A thread that is to have an arena gets its part of scratch memory; that bounds how many
there are.

What a body finds wrong is a status: it is reported with the details that the thread has left.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence

from numba import types

from flowvm.cuda.compiler.compilation import simulated, status_of, threads
from flowvm.cuda.launch import (
    STATUS_AT,
    Const,
    CudaLaunch,
    Details,
    KernelStep,
    Operand,
    Param,
    Scalar,
    Scratch,
    blocks_for,
)
from flowvm.eager.interpreter import Operator
from flowvm.errors import Status
from flowvm.launch import PHASE_BITS, Launch, View
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.cuda.steps import written

BLOCK = 128
MOST_BLOCKS = 1 << 12
MOST_ARENA = 256 << 20  # bytes of all threads together
ALIGNED = 256
ELEMENT = 16  # bytes of the largest element
DETAILS = 6

Kernel = Callable[..., object]


def adapted(op: Operator, launch: Launch, metas: tuple[TensorMeta, ...]) -> CudaLaunch:
    """The body of `launch` as a CUDA launch."""
    views = launch.views or tuple(View.of(m) for m in (*launch.outputs, *metas))
    consts = tuple(_passed(c) for c in launch.consts)
    names = frozenset(inspect.signature(launch.body).parameters)
    arena = -(-launch.arena // ELEMENT) * ELEMENT  # of a thread: devices refuse misaligned elements
    kernel = body_kernel(
        launch.body, len(views), consts, op.signature.scalar_kinds, "scratch" in names,
        arena if "arena" in names else None, "details" in names,
    )  # fmt: skip
    before: list[Param] = _operands(views)
    for const in launch.consts:
        numbers = const if isinstance(const, tuple) else (const,)
        before += [Const(c if isinstance(c, float) else int(c)) for c in numbers]
    before += [Scalar(i, "f" if k == "d" else "i") for i, k in enumerate(op.signature.scalar_kinds)]
    bytes_ = launch.scratch
    if "scratch" in names:
        before.append(Scratch(0, "uint8", (launch.scratch,)))
    least = _threads_at_once(arena)
    if "arena" in names:
        start = -(-bytes_ // ALIGNED) * ALIGNED
        before.append(Scratch(start, "uint8", (least * arena,)))
        bytes_ = start + least * arena
    steps: list[KernelStep] = []
    if op.signature.unsized:
        once = (1, 1, 1)
        params = (*before, Const(-1), Const(0), Details())
        steps.append(KernelStep(kernel, params, once, once, counts=True))
    phases = [(launch.units, launch.grain), *launch.phases]
    for number, (units, _) in enumerate(phases):
        if units:
            params = (*before, Const(number << PHASE_BITS), Const(units), Details())
            block, grid = _grid(units, least)
            steps.append(KernelStep(kernel, params, grid, block))
    return CudaLaunch(launch.outputs, tuple(steps), bytes_)


def _operands(views: Sequence[View]) -> list[Param]:
    """The arrays; one that is not given is empty, and lies where the first one does."""
    params: list[Param] = []
    place = 0
    for view in views:
        params.append(Operand(place if view.given is not False else 0, view))
        place += view.given is not False
    return params


def _passed(const: object) -> tuple[Callable[..., object] | None, str]:
    """Return a const's type in the kernel, None for a number; and "b" or "n" for each number."""
    numbers = const if isinstance(const, tuple) else (const,)
    kinds = "".join("b" if isinstance(c, bool) else "n" for c in numbers)
    return type(const) if isinstance(const, tuple) else None, kinds


def is_body(kernel: Kernel) -> bool:
    """Return True if this module made the kernel."""
    return kernel.__module__ == __name__


def _threads_at_once(arena: int) -> int:
    """Return the most threads that may run, with `arena` bytes each."""
    most = 2 * threads(BLOCK) if simulated() else BLOCK * MOST_BLOCKS
    return max(1, min(most, MOST_ARENA // arena)) if arena else most


def _grid(units: int, most: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    block = min(threads(BLOCK), most)
    return (block, 1, 1), blocks_for(min(units, most), block, max(1, most // block))


@functools.cache
def body_kernel(
    body: Callable[..., object], arrays: int,
    consts: tuple[tuple[Callable[..., object] | None, str], ...], scalars: str, scratch: bool,
    arena: int | None, details: bool,
) -> Kernel:  # fmt: skip
    """kernel(arrays..., consts..., scalars..., [scratch], [arena], first, units, details): the body
    for each of the units from `first` on; where `first` is -1 it counts.
    """
    names = [f"a{k}" for k in range(arrays)]
    values = list(names)
    for k, (kind, codes) in enumerate(consts):
        own = [f"c{k}_{i}" for i in range(len(codes))]
        names += own
        numbers = [f"{n} != 0" if c == "b" else n for n, c in zip(own, codes, strict=True)]
        if kind is None:
            values += numbers
        elif kind is tuple:
            values.append(f"({', '.join(numbers)},)")
        else:
            values.append(f"t{k}({', '.join(numbers)})")
    names += [f"s{k}" for k in range(len(scalars))]
    values += [f"s{k}" for k in range(len(scalars))]
    has_arena = arena is not None
    names += ["scratch"] * scratch + ["arena"] * has_arena
    values += ["scratch"] * scratch + ["mine"] * has_arena
    mine = [f"mine = arena[thread * {arena} : (thread + 1) * {arena}]"] if has_arena else []
    local = [f"local = cuda.local.array({DETAILS}, int64)", "local[:] = 0"] if details else []
    unit = ", ".join([*values, "u", "u + 1", *(["local"] * details)])
    both = ", ".join([*values, "-1", "-1", *(["details[:6]"] * details)])
    lines = [
        f"def on_units({', '.join(names)}, first, units, details):",
        "    thread, step = cuda.grid(1), cuda.gridsize(1)",
        *(f"    {line}" for line in (*mine, *local)),
        *(_counting(both) if details else []),
        "    for u in range(first + thread, first + units, step):",
        f"        status = status_of(body, ({unit},), RAISED)",
        "        if status != 0:",
        *([f"            for k in range({DETAILS}):", "                details[k] = local[k]"]
          if details else []),
        "            cuda.threadfence_system()",
        f"            details[{STATUS_AT}] = status",
        "            return",
    ]  # fmt: skip
    text = "\n".join(lines)
    space = {
        "body": body, "status_of": status_of, "int64": types.int64,
        "RAISED": int(Status.INVALID_VALUE),
        **{f"t{k}": kind for k, (kind, _) in enumerate(consts) if kind is not None},
    }  # fmt: skip
    arguments = (body, arrays, consts, scalars, scratch, arena, details)
    kernel = written(text, "on_units", space, f"{__name__}:body_kernel", *arguments)
    kernel.__name__ = kernel.__qualname__ = body.__name__
    return kernel


def _counting(passed: str) -> Sequence[str]:
    return [
        "    if first < 0:",
        f"        status = status_of(body, ({passed},), RAISED)",
        "        if status != 0:",
        f"            details[{STATUS_AT}] = status",
        "        return",
    ]
