"""Call: one node of the LogicalGraph, as its translation sees it."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowvm.eager.live import now
from flowvm.graph.logical.nodes import OpNode
from flowvm.meta.dtype import DType
from flowvm.meta.meta import TensorMeta
from flowvm.onnx.memory import Memory
from flowvm.onnx.writer import Writer


class Call:
    """A node with its operands as ONNX's values.

    attrs    its attributes and numbers by name
    metas    of its inputs; `outs` of its outputs, or of what it writes if it has none
    """

    def __init__(self, node: OpNode, memory: Memory, w: Writer) -> None:
        self.node, self.memory, self.w = node, memory, w
        self.metas = [o.meta for o in node.inputs]
        written = [o.meta for access, o in node.accesses() if access == "mut"]
        self.outs = [o.meta for o in node.outputs] or written
        names = (*node.operator.signature.attrs, *node.operator.signature.scalars)
        numbers = [now(s) for s in node.scalars]
        self.attrs: dict[str, Any] = dict(zip(names, (*node.attrs, *numbers), strict=True))

    @property
    def out(self) -> TensorMeta:
        """The meta of the first output."""
        return self.outs[0]

    @property
    def count(self) -> int:
        """The number of inputs."""
        return len(self.metas)

    def x(self, place: int = 0) -> str:
        """An input's value."""
        return self.memory.read(self.node.inputs[place])

    def wants(self, place: int) -> bool:
        """Return True if any node reads this output."""
        return self.memory.is_read(self.node.outputs[place])

    def number(self, value: Any, dtype: DType | None = None) -> str:
        """Return a constant of a dtype, by default the first output's."""
        return self.w.constant(np.asarray(value), dtype or self.out.dtype)

    def as_out(self, value: str, dtype: DType) -> str:
        """A value of `dtype` as the first output's dtype."""
        return value if dtype is self.out.dtype else self.w.cast(value, self.out.dtype)

    def cut(self, value: str, dim: int, start: int, end: int) -> str:
        """A part of a value along one dimension."""
        return self.w.op("Slice", value, *[self.w.ints(n) for n in (start, end, dim)])
