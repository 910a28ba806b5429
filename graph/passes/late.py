"""The pass that delays readers of a sum over ranks, so that backward goes on meanwhile.

The nodes of a stream run in their order.  A gradient that ranks have summed is divided, or copied,
right behind its exchange in the program.  The next nodes on that stream would wait for the exchange
as well.  This pass moves such readers, and the nodes that conflict with them, behind all nodes that
do not need them: to the end, or in front of the next exchange that does.  There those of the first
sums come first, so that updates run while the last sum is under way.

Exchanges keep their order, which is the same on all ranks.  Only sums of backward are moved:
gathered values are used up where they are, and memory would hold all of them at once.
"""

from __future__ import annotations

from operator import itemgetter

from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import Buffer, OpNode
from flowvm.graph.logical.rewriting import rebuilt
from flowvm.ops.collectives.exchanges import TRAFFIC


class _Late:
    """The nodes that wait, and the buffers that they touch."""

    def __init__(self) -> None:
        self.nodes: list[tuple[int, OpNode]] = []
        self.touched: set[Buffer] = set()
        self.written: set[Buffer] = set()

    def add(self, number: int, node: OpNode) -> None:
        self.nodes.append((number, node))
        self.touched |= {operand.buffer for _, operand in node.accesses()}
        self.written |= {operand.buffer for operand in node.written()}

    def in_order(self) -> list[OpNode]:
        """The nodes, those of the first sums first."""
        return [node for _, node in sorted(self.nodes, key=itemgetter(0))]

    def conflicts(self, node: OpNode) -> bool:
        """Return True if a node must not go in front of the late nodes."""
        return any(operand.buffer in self.written for _, operand in node.accesses()) or any(
            operand.buffer in self.touched for operand in node.written()
        )


def is_sum(node: OpNode) -> bool:
    """Return True if a node sums gradients over ranks."""
    if "order" not in node.operator.signature.writes:
        return False
    traffic = TRAFFIC.of(node.operator)
    sums_up = traffic is not None and traffic.sums
    return sums_up and node.phase == "backward" and node.repeat == 1


def order_buffer(node: OpNode) -> Buffer:
    """The buffer of an exchange's lane, which all exchanges change."""
    return node.inputs[node.operator.signature.inputs.index("order")].buffer


def sums_awaited(graph: LogicalGraph) -> list[int]:
    """Return a number for each node: how many sums of gradients are made up to the last one that it
    waits for.
    """
    read: dict[Buffer, int] = {}
    written: dict[Buffer, int] = {}
    numbers, sums = [], 0
    for node in graph.nodes:
        exchanges = "order" in node.operator.signature.writes
        apart = {order_buffer(node)} if exchanges else set()
        writes = {operand.buffer for operand in node.written()} - apart
        touched = {operand.buffer for _, operand in node.accesses()} - apart
        before = [written.get(b, 0) for b in touched] + [read.get(b, 0) for b in writes]
        number = max(before, default=0)
        numbers.append(number)
        if is_sum(node):
            sums += 1
            number = sums
        for buffer in touched:
            read[buffer] = max(read.get(buffer, 0), number)
        for buffer in writes:
            written[buffer] = number
    return numbers


def read_sums_late(graph: LogicalGraph) -> LogicalGraph:
    """Return the graph with readers of sums over ranks behind nodes that do not need them."""
    if len({node.stream for node in graph.nodes}) < 2:
        return graph
    result: list[OpNode] = []
    late, sums = _Late(), set[Buffer]()
    for number, node in zip(sums_awaited(graph), graph.nodes, strict=True):
        exchanges = "order" in node.operator.signature.writes
        if late.nodes and (
            node.repeat != late.nodes[0][1].repeat or (exchanges and late.conflicts(node))
        ):
            result += late.in_order()
            sums -= late.touched
            late = _Late()
        if exchanges:
            result.append(node)
            if is_sum(node):
                sums |= {operand.buffer for operand in node.written()} - {order_buffer(node)}
        elif late.conflicts(node) or any(o.buffer in sums for _, o in node.accesses()):
            late.add(number, node)
        else:
            result.append(node)
    result += late.in_order()
    return graph if result == list(graph.nodes) else rebuilt(graph, result)
