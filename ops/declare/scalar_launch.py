"""The lowered form of an op of scalars, for every device: a `ScalarLaunch`.

Elementwise ops, casts, copies, fills and the fused programs of graphs answer one.  `on_cpu` makes
the CPU's Invocation of it; `ops/declare/cuda/elementwise.py` makes CUDA kernels.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from flowvm.eager.declaration import Invocation
from flowvm.meta.meta import Size, TensorMeta
from flowvm.ops.declare.cpu.element_tiles import DIVISION_BY_ZERO, NO_PROBABILITY, Program
from flowvm.ops.declare.cpu.elementwise_kernel import elementwise_kernel
from flowvm.ops.declare.cpu.tile_plan import PATTERN, plan_of
from flowvm.ops.declare.cpu.walk import copy_kernel


@dataclass(frozen=True)
class ScalarLaunch:
    """For every element: the outputs are `expr` of the inputs.

    `inputs` are read as tensors of the outputs' shape, repeated where they are smaller.  `args`,
    `stored` and `compute` go together, as in `elementwise_kernel`: names, dtypes in memory
    ("float64" or "int64" of a number), dtypes that `expr` computes in.  `numbers` are the names of
    the dynamic scalars among `args`, and `pack` their struct codes, first to last.

    `once` is lines that name further values for `expr`, computed from the dynamic scalars alone, in
    float64 and not for each element.  `into` says which inputs the results replace, where there are
    no `outputs`: then all inputs are dense and of one shape.

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
    copy: bool = False
    repeats: bool = False
    once: str = ""
    into: tuple[int, ...] = ()

    @property
    def raises(self) -> int:
        """The status where `expr` raises: integers do where they are divided by zero, floats where
        they are no probabilities.
        """
        return NO_PROBABILITY if "probability(" in self.expr else DIVISION_BY_ZERO

    @property
    def shape(self) -> Size:
        """The shape of the computation."""
        return (self.outputs or self.inputs)[0].shape

    @property
    def results(self) -> tuple[TensorMeta, ...]:
        """The metas in which the results of `expr` are stored."""
        return self.outputs or tuple(self.inputs[k] for k in self.into)

    @property
    def hoisted(self) -> tuple[str, ...]:
        """The names that `once` gives values."""
        return assigned(self.once)

    @property
    def prelude(self) -> str:
        """`once` as a program whose results are these values."""
        return f"{self.once}\n({', '.join(self.hoisted)},)" if self.once else ""

    @property
    def strides(self) -> list[tuple[int, ...]]:
        """The strides of every operand, outputs first, as tensors of the outputs' shape."""
        shape = self.shape
        return [m.stride for m in self.outputs] + [broadcast_stride(m, shape) for m in self.inputs]

    def on_cpu(self) -> Invocation:
        """The CPU's."""
        sizes = [m.dtype.itemsize for m in (*self.outputs, *self.inputs)]
        plan = plan_of(self.shape, self.strides, sizes, copy=self.copy)
        pattern = int(plan.layout[PATTERN]) if self.repeats or self.into else None
        kernel = copy_kernel() if self.copy else self.kernel(pattern)
        return Invocation(self.outputs, kernel, *plan, 0, self.pack[::-1])

    def kernel(self, pattern: int | None) -> int:
        """The address of the CPU's kernel for plans of `pattern`, None for all."""
        late = self.hoisted
        program = Program(
            self.expr,
            (*self.args, *late),
            (*self.stored, *["float64"] * len(late)),
            tuple(m.dtype.name for m in self.results),
            (*self.compute, *self.compute[:1] * len(late)),
            frozenset(self.numbers),
            self.raises,
            self.prelude,
            self.into,
        )
        return elementwise_kernel(program, pattern)


def assigned(program: str) -> tuple[str, ...]:
    """The names that the lines of a program give values, first to last."""
    places: list[ast.AST] = []
    for line in ast.parse(program).body:  # an import waits for this: no more than is needed
        places += line.targets if isinstance(line, ast.Assign) else [line]
    nodes = [node for place in places for node in ast.walk(place)]
    stored = [n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return tuple(dict.fromkeys(stored))


def broadcast_stride(meta: TensorMeta, shape: Sequence[int]) -> tuple[int, ...]:
    """The strides by which a tensor is read as one of `shape`: 0 where it repeats."""
    lead = len(shape) - meta.ndim
    own = [0 if d == 1 else s for d, s in zip(meta.shape, meta.stride, strict=True)]
    return (0,) * lead + tuple(own)
