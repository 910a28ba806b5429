"""Questions of passes to a graph, and the tools to rebuild it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import Buffer, BufferKind, Operand, OpNode, is_pure


def writers_of(graph: LogicalGraph) -> dict[Buffer, int]:
    """Count the nodes that write each buffer."""
    places: dict[Buffer, int] = {}
    for node in graph.nodes:
        for buffer in {operand.buffer for operand in node.written()}:
            places[buffer] = places.get(buffer, 0) + 1
    return places


class Accesses:
    """The accesses of each buffer: its readers and writers by place, and its visibility."""

    def __init__(self, graph: LogicalGraph) -> None:
        self.nodes = graph.nodes
        self.shown = {operand.buffer for operand in graph.outputs}
        self.reads: dict[Buffer, list[int]] = {}
        self.writes: dict[Buffer, list[int]] = {}
        for place, node in enumerate(graph.nodes):
            for operand in node.inputs:
                self.reads.setdefault(operand.buffer, []).append(place)
            for operand in node.written():
                self.writes.setdefault(operand.buffer, []).append(place)

    def hidden(self, buffer: Buffer) -> bool:
        """Return True if only nodes of the graph see the buffer."""
        return buffer.kind is BufferKind.TEMPORARY and buffer not in self.shown

    def only_readers(self, buffer: Buffer, *places: int) -> bool:
        """Return True if the buffer is hidden, and exactly these nodes read it."""
        return self.hidden(buffer) and set(self.reads.get(buffer, ())) == set(places)

    def maker(self, buffer: Buffer) -> int:
        """The place of the node that makes it, if that alone writes it; else -1."""
        writes = self.writes.get(buffer, [])
        alone = buffer.kind is BufferKind.TEMPORARY and len(writes) == 1
        return writes[0] if alone and is_pure(self.nodes[writes[0]]) else -1

    def unchanged(self, buffer: Buffer, first: int, end: int) -> bool:
        """Return True if no node from place `first` up to, but not at, `end` writes the buffer."""
        return not any(first <= place < end for place in self.writes.get(buffer, ()))


def together(one: OpNode, other: OpNode) -> bool:
    """Return True if two nodes may be merged, or stand at one place: same stream, same repetitions.

    Operations that backward repeats are not merged into the forward part, where they came from.
    """
    if one.again != other.again and one.phase != other.phase:
        return False
    return one.stream == other.stream and one.repeat == other.repeat


def rebuilt(
    graph: LogicalGraph, nodes: Sequence[OpNode], moved: dict[Buffer, Operand] | None = None
) -> LogicalGraph:
    """A graph of these nodes, numbered anew; operands in a buffer of `moved` go to that place."""
    places = moved or {}

    def put(operand: Operand) -> Operand:
        while operand.buffer in places:
            operand = operand.moved(places[operand.buffer])
        return operand

    copies = [
        replace(
            node,
            number=number,
            inputs=tuple(map(put, node.inputs)),
            outputs=tuple(map(put, node.outputs)),
        )
        for number, node in enumerate(nodes)
    ]
    return replace(graph, nodes=copies, outputs=[put(o) for o in graph.outputs])
