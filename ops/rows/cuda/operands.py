"""Operands and steps that rules of dense tensors are made of."""

from __future__ import annotations

from collections.abc import Callable

from flowvm.cuda.compiler.compilation import threads
from flowvm.cuda.launch import KernelStep, Operand, Param, blocks_for
from flowvm.launch import View
from flowvm.meta.meta import TensorMeta
from flowvm.ops.rows.cuda.teams import MOST


def flat(k: int, meta: TensorMeta) -> Operand:
    """Operand `k` in one dimension."""
    return Operand(k, View(meta.dtype, (meta.numel,)))


def part(k: int, meta: TensorMeta, first: int, count: int) -> Operand:
    """`count` of its elements, from `first` on."""
    return Operand(k, View(meta.dtype, (count,)), first * meta.dtype.itemsize)


def halves(k: int, meta: TensorMeta) -> tuple[Operand, Operand]:
    """The first half of its elements, and the second."""
    half = meta.numel // 2
    return part(k, meta, 0, half), part(k, meta, half, half)


def each_step(kernel: Callable[..., object], count: int, *params: Param) -> KernelStep:
    """A launch with a thread for each of `count`, which is `cuda.grid(1)`."""
    block = threads(MOST)
    return KernelStep(kernel, params, blocks_for(count, block), (block, 1, 1))
