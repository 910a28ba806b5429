"""What an op of scalars comes down to, for every device: a `ScalarLaunch`.

Elementwise ops, casts, copies, fills and the fused programs of graphs answer one.  `on_cpu` makes
the CPU's Invocation of it; `ops/declare/cuda/elementwise.py` makes CUDA kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowvm.eager.interpreter import Invocation
from flowvm.meta import TensorMeta
from flowvm.ops.declare.cpu.elementwise_kernel import DIVISION_BY_ZERO, elementwise_kernel
from flowvm.ops.declare.cpu.plan import PATTERN, plan_of
from flowvm.ops.declare.cpu.walk import copy_kernel

__all__ = ["ScalarLaunch", "broadcast_stride"]


@dataclass(frozen=True)
class ScalarLaunch:
    """For every element: the outputs are `expr` of the inputs.

    `inputs` are read as tensors of the outputs' shape, repeated where they are smaller.  `args`,
    `stored` and `compute` go together, as in `elementwise_kernel`: names, dtypes in memory
    ("float64" or "int64" of a number), dtypes that `expr` computes in.  `numbers` are the names of
    the dynamic scalars among `args`, and `pack` their struct codes, first to last.  `raises` is the
    status where `expr` raises.

    `copy`: `expr` is "x" and moves the bytes.  `repeats`: many calls are like this one, so it is
    worth a kernel for its pattern of strides alone.
    """

    outputs: tuple[TensorMeta, ...]
    inputs: tuple[TensorMeta, ...]
    expr: str
    args: tuple[str, ...]
    stored: tuple[str, ...]
    compute: tuple[str, ...]
    numbers: tuple[str, ...] = ()
    pack: str = ""
    raises: int = DIVISION_BY_ZERO
    copy: bool = False
    repeats: bool = False

    @property
    def strides(self) -> list[tuple[int, ...]]:
        """Of every operand, outputs first, as tensors of the outputs' shape."""
        shape = self.outputs[0].shape
        return [m.stride for m in self.outputs] + [broadcast_stride(m, shape) for m in self.inputs]

    def on_cpu(self) -> Invocation:
        """The CPU's."""
        sizes = [m.dtype.itemsize for m in (*self.outputs, *self.inputs)]
        plan = plan_of(self.outputs[0].shape, self.strides, sizes, copy=self.copy)
        pattern = int(plan.layout[PATTERN]) if self.repeats else None
        kernel = copy_kernel() if self.copy else self.kernel(pattern)
        return Invocation(self.outputs, kernel, *plan, 0, self.pack[::-1])

    def kernel(self, pattern: int | None) -> int:
        """The address of the CPU's kernel for plans of `pattern`, None for all."""
        return elementwise_kernel(
            self.expr,
            self.args,
            self.stored,
            [m.dtype.name for m in self.outputs],
            self.compute,
            self.numbers,
            self.raises,
            pattern=pattern,
        )


def broadcast_stride(meta: TensorMeta, shape: Sequence[int]) -> tuple[int, ...]:
    """The strides by which a tensor is read as one of `shape`: 0 where it repeats."""
    lead = len(shape) - meta.ndim
    own = [0 if d == 1 else s for d, s in zip(meta.shape, meta.stride, strict=True)]
    return (0,) * lead + tuple(own)
