"""The pass that moves a layer's bias to the elementwise nodes behind the layer, on a device.

There, a product is a call of cuBLAS, and what is behind it a kernel of its own, so no epilogue goes
through sums that are still in a cache.  But a layer with a bias costs a kernel that spreads the
bias over the result before the product adds to it; a fused kernel that reads the result anyway adds
the bias for nothing.  So the layer becomes a product and an addition, which `fusion` joins with the
rest.

Results may differ in the last place: the bias is added when the product was rounded.
"""

from __future__ import annotations

from dataclasses import replace

from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import Buffer, BufferKind, OpNode
from flowvm.graph.logical.rewriting import Accesses, rebuilt, together
from flowvm.graph.passes.epilogues import REAL
from flowvm.graph.passes.fusion import is_elementwise
from flowvm.ops.declare.registry import operator_of
from flowvm.ops.pointwise.arithmetic import _add
from flowvm.ops.products.matmul import _affine, _matmul_nt

_WITH_BIAS, _WITHOUT = operator_of(_affine), operator_of(_matmul_nt)


def split_biases(graph: LogicalGraph) -> LogicalGraph:
    """Make a product and an addition of each layer that elementwise nodes read the result of."""
    accesses = Accesses(graph)
    number = max((b.number for b in graph.buffers()), default=0)
    nodes: list[OpNode] = []
    for place, node in enumerate(graph.nodes):
        if node.operator is not _WITH_BIAS or not _worth(accesses, place):
            nodes.append(node)
            continue
        (out,), (*factors, bias) = node.outputs, node.inputs
        number += 1
        sums = replace(out, buffer=Buffer(number, BufferKind.TEMPORARY, out.buffer.nbytes))
        nodes.append(replace(node, operator=_WITHOUT, inputs=tuple(factors), outputs=(sums,)))
        nodes.append(replace(node, operator=_add.operator, inputs=(sums, bias)))
    return graph if len(nodes) == len(graph.nodes) else rebuilt(graph, nodes)


def _worth(accesses: Accesses, place: int) -> bool:
    node = accesses.nodes[place]
    (out,) = node.outputs
    if accesses.maker(out.buffer) != place or out.meta.dtype.name not in REAL:
        return False  # a float16 sum starts with the bias and is rounded once
    if node.inputs[0].meta.ndim < 2 or any(o.step for o in (*node.inputs, out)):
        return False
    readers = [accesses.nodes[p] for p in accesses.reads.get(out.buffer, ())]
    return any(
        together(node, reader)
        and is_elementwise(reader)
        and reader.outputs[0].meta.shape == out.meta.shape
        and out in reader.inputs
        for reader in readers
    )
