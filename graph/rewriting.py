"""What passes ask of a graph, and how they make another one of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flowvm.graph.logical import Buffer, LogicalGraph, Operand, OpNode

__all__ = ["is_pure", "rebuilt", "writers_of"]


def writers_of(graph: LogicalGraph) -> dict[Buffer, int]:
    """How many nodes write each buffer."""
    found: dict[Buffer, int] = {}
    for node in graph.nodes:
        for buffer in {operand.buffer for operand in node.written()}:
            found[buffer] = found.get(buffer, 0) + 1
    return found


def is_pure(node: OpNode) -> bool:
    """Whether a node only makes new values: it changes nothing that was there before."""
    return not node.into and not node.operator.writes and not node.operator.unsized


def rebuilt(
    graph: LogicalGraph,
    nodes: Sequence[OpNode],
    moved: dict[Buffer, Operand] | None = None,
) -> LogicalGraph:
    """A graph of these nodes, numbered anew; operands in a buffer of `moved` go to that place."""
    places = moved or {}

    def put(operand: Operand) -> Operand:
        while operand.buffer in places:
            to = places[operand.buffer]
            operand = Operand(to.buffer, to.offset + operand.offset, operand.meta)
        return operand

    made = [
        replace(
            node,
            number=number,
            inputs=tuple(map(put, node.inputs)),
            outputs=tuple(map(put, node.outputs)),
        )
        for number, node in enumerate(nodes)
    ]
    return replace(graph, nodes=made, outputs=[put(o) for o in graph.outputs])
