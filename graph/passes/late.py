"""The pass that delays readers of a sum over ranks, so that backward goes on meanwhile.

The nodes of a stream run in their order.  A gradient that ranks have summed is divided, or copied,
right behind its exchange in the program.  The next nodes on that stream would wait for the exchange
as well.  This pass moves such readers, and the nodes that conflict with them, behind all nodes that
do not need them: to the end, or in front of the next exchange that does.

Exchanges keep their order, which is the same on all ranks.  Only sums of backward are moved:
gathered values are used up where they are, and memory would hold all of them at once.
"""

from __future__ import annotations

from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import Buffer, OpNode
from flowvm.graph.logical.rewriting import rebuilt
from flowvm.ops.collectives.exchanges import TRAFFIC


class _Late:
    """The nodes that wait, and the buffers that they touch."""

    def __init__(self) -> None:
        self.nodes: list[OpNode] = []
        self.touched: set[Buffer] = set()
        self.written: set[Buffer] = set()

    def add(self, node: OpNode) -> None:
        self.nodes.append(node)
        self.touched |= {operand.buffer for _, operand in node.accesses()}
        self.written |= {operand.buffer for operand in node.written()}

    def conflicts(self, node: OpNode) -> bool:
        """Return True if a node must not go in front of the late nodes."""
        return any(operand.buffer in self.written for _, operand in node.accesses()) or any(
            operand.buffer in self.touched for operand in node.written()
        )


def read_sums_late(graph: LogicalGraph) -> LogicalGraph:
    """Return the graph with readers of sums over ranks behind nodes that do not need them."""
    if len({node.stream for node in graph.nodes}) < 2:
        return graph
    result: list[OpNode] = []
    late, sums = _Late(), set[Buffer]()
    for node in graph.nodes:
        exchanges = "order" in node.operator.writes
        if late.nodes and (
            node.repeat != late.nodes[0].repeat or (exchanges and late.conflicts(node))
        ):
            result += late.nodes
            sums -= late.touched
            late = _Late()
        if exchanges:
            result.append(node)
            traffic = TRAFFIC.of(node.operator)
            sums_up = traffic is not None and traffic.sums
            if sums_up and node.phase == "backward" and node.repeat == 1:
                order = node.inputs[node.operator.inputs.index("order")].buffer
                sums |= {operand.buffer for operand in node.written()} - {order}
        elif late.conflicts(node) or any(o.buffer in sums for _, o in node.accesses()):
            late.add(node)
        else:
            result.append(node)
    result += late.nodes
    return graph if result == list(graph.nodes) else rebuilt(graph, result)
