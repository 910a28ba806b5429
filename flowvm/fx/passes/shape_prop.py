"""Shapes of each node's result in a traced graph, from a run of the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from flowvm.eager.tensor import Tensor
from flowvm.fx.interpreter import Interpreter
from flowvm.fx.node import Node, map_aggregate
from flowvm.loading.listing import listing, own_names
from flowvm.meta.dtype import DType
from flowvm.meta.formats import contiguous_format
from flowvm.meta.meta import Size

if TYPE_CHECKING:
    from flowvm.meta.formats import MemoryFormat


__dir__ = listing(globals())


class TensorMetadata(NamedTuple):
    """The metadata of a tensor without its values.  `memory_format` is set for tensors in C order,
    else None.  Nothing is quantized.
    """

    shape: Size
    dtype: DType
    requires_grad: bool
    stride: tuple[int, ...]
    memory_format: MemoryFormat | None
    is_quantized: bool
    qparams: dict[str, object]


def _facts(value: object) -> object:
    if not isinstance(value, Tensor):
        return value
    form = contiguous_format if value.is_contiguous() else None
    stride = tuple(value.stride())
    return TensorMetadata(value.shape, value.dtype, value.requires_grad, stride, form, False, {})


class ShapeProp(Interpreter):
    """An Interpreter that records each node's result in `node.meta`. "tensor_meta" is a
    TensorMetadata, or tuples, lists and dicts of them; "type" is the result's class.

    >>> traced = flow.fx.symbolic_trace(nn.Sequential(nn.Linear(3, 4), nn.ReLU()))
    >>> _ = flow.fx.passes.shape_prop.ShapeProp(traced).propagate(flow.ones(2, 3))
    >>> for node in traced.graph.nodes:
    ...     print(node.name, tuple(node.meta["tensor_meta"].shape))
    input_1 (2, 3)
    _0 (2, 4)
    _1 (2, 4)
    output (2, 4)
    """

    def run_node(self, n: Node) -> Any:
        """Return the value of a node, and record it."""
        result = super().run_node(n)
        metas: list[Tensor] = []
        map_aggregate(result, lambda v: metas.append(v) if isinstance(v, Tensor) else None)
        if metas:
            n.meta["tensor_meta"] = map_aggregate(result, _facts)
        n.meta["type"] = type(result)
        return result

    def propagate(self, *args: object) -> Any:
        """Run the graph for these arguments; return its result."""
        return super().run(*args)


__all__ = own_names(globals())
