"""One launch for many tensors: the updates of an optimizer, whose kernels can do parts of arrays.

A step with a `part` is elementwise over one-dimensional operands of one length, each element by
itself: `part(start, stride, arrays..., numbers...)` does every `stride`-th element from `start`.
Members whose parts, types and numbers are alike become one launch, whose blocks take CHUNK elements
of one member each.  Which one that is, and where its operands are, a block reads from a table in
scratch memory: the blocks in front of each member, then for each its length and its addresses.  The
table is written by kernels in front whose parameters it is (`placing.put_steps`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from flowvm.cuda.compiler.compilation import signature_of, threads
from flowvm.cuda.launch import (
    Address,
    Const,
    CudaLaunch,
    KernelStep,
    Operand,
    Param,
    Scalar,
    Scratch,
)
from flowvm.ops.declare.cuda.addresses import KINDS, array_at
from flowvm.ops.declare.cuda.live_numbers import put_capacity, put_steps
from flowvm.ops.declare.cuda.steps import written

BLOCK = 256
CHUNK = 4096  # elements of a member that a block does
Kernel = Callable[..., object]


def merges(launch: CudaLaunch) -> bool:
    """Return True if the launch may be a member of one launch of many."""
    return len(launch.steps) == 1 and _part_of(launch) is not None


def _part_of(launch: CudaLaunch) -> Kernel | None:
    step = launch.steps[0]
    if not isinstance(step, KernelStep) or any(isinstance(p, Scratch) for p in step.params):
        return None
    arrays = [p.view for p in step.params if isinstance(p, Operand)]
    plain = all(v.dtype.name in KINDS and v.dense and v.shape == arrays[0].shape for v in arrays)
    return step.part if plain else None


def merged(
    launches: Sequence[CudaLaunch],
    operands: Sequence[Sequence[int]],
    scalars: Sequence[Sequence[int]],
) -> CudaLaunch:
    """Return one launch for several, each of which `merges` accepts.

    `operands` and `scalars` give, for each member, the positions of its own among those of the
    whole.
    """
    groups: dict[Any, list[tuple[Operand, ...]]] = {}
    for launch, own, numbers in zip(launches, operands, scalars, strict=True):
        if not launch.steps or not launch.steps[0].params:
            continue
        step: Any = launch.steps[0]
        moved = [_moved(p, own, numbers) for p in step.params]
        arrays = tuple(p for p in moved if isinstance(p, Operand))
        others = tuple(p for p in moved if not isinstance(p, Operand))
        if arrays[0].view.shape[0]:
            key = step.part, signature_of(step)[: len(arrays)], others
            groups.setdefault(key, []).append(arrays)
    steps: list[KernelStep] = []
    scratch = 0
    for (part, kinds, others), members in groups.items():
        table, blocks = _table(members)
        place = Scratch(scratch, "int64", (put_capacity(len(table)),))
        steps += put_steps(place, table)
        kernel = each_kernel(part, tuple(kind[0] for kind in kinds), len(others), CHUNK)
        params = (place, Const(len(members)), *others)
        steps.append(KernelStep(kernel, params, (blocks, 1, 1), (threads(BLOCK), 1, 1)))
        scratch += -(-8 * place.shape[0] // 256) * 256
    outputs = tuple(meta for launch in launches for meta in launch.outputs)
    return CudaLaunch(outputs, tuple(steps), scratch)


def _moved(param: Param, operands: Sequence[int], scalars: Sequence[int]) -> Param:
    match param:
        case Operand(k):
            return replace(param, k=operands[k])
        case Scalar(i):
            return replace(param, i=scalars[i])
    return param


def _table(members: Sequence[tuple[Operand, ...]]) -> tuple[list[Param], int]:
    """The words of the table, and how many blocks there are."""
    begins, rows, blocks = [], list[Param](), 0
    for arrays in members:
        count = arrays[0].view.shape[0]
        begins.append(Const(blocks))
        blocks += -(-count // CHUNK)
        rows += [Const(count), *(Address(a.k, a.offset) for a in arrays)]
    return [*begins, *rows], blocks


@functools.cache
def each_kernel(part: Kernel, kinds: tuple[str, ...], numbers: int, chunk: int) -> Kernel:
    """kernel(table, members, numbers...): a block does `chunk` elements of one member, by `part`,
    whose arrays are of the dtypes `kinds`.
    """
    names = [f"n{k}" for k in range(numbers)]
    arrays = [f"{kind}_at(table[row + {1 + k}], first, count)" for k, kind in enumerate(kinds)]
    text = "\n".join([
        f"def each({', '.join(['table', 'members', *names])}):",
        "    block = cuda.blockIdx.x",
        "    low, high = 0, members",
        "    while high - low > 1:",
        "        middle = (low + high) // 2",
        "        if table[middle] <= block:",
        "            low = middle",
        "        else:",
        "            high = middle",
        f"    row = members + {1 + len(kinds)} * low",
        f"    first = (block - table[low]) * {chunk}",
        f"    count = min({chunk}, table[row] - first)",
        f"    part({', '.join(['cuda.threadIdx.x', 'cuda.blockDim.x', *arrays, *names])})",
        "",
    ])  # fmt: skip
    space = {"part": part, **{f"{kind}_at": array_at[kind] for kind in set(kinds)}}
    return written(text, "each", space, f"{__name__}:each_kernel", part, kinds, numbers, chunk)
