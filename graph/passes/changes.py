"""The changes of passes to a graph: nodes that were merged, removed or added.

An optimized graph keeps its captured graph (`LogicalGraph.captured`), and passes are functions.  So
their changes are found by a second run of the passes, when somebody asks.  Passes keep no identity
of nodes; nodes before and after are matched by the buffers that they write.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType

from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import Buffer, OpNode
from flowvm.graph.passes.passes import optimize


@dataclass(frozen=True)
class PassChange:
    """The changes of one pass.  `made` has its new nodes, each with the nodes merged into it."""

    name: str
    before: int
    after: int
    made: tuple[tuple[OpNode, tuple[OpNode, ...]], ...]
    removed: tuple[OpNode, ...]
    moved: bool  # nodes stand in another order
    nodes: tuple[OpNode, ...]  # all there are behind it

    @property
    def changed(self) -> bool:
        """True if the pass changed the list of nodes visibly."""
        return bool(self.made or self.removed or self.moved)


@dataclass(frozen=True)
class Changes:
    """All passes of one graph.

    left_out  names of passes that were switched off
    became   for each captured node the node of the optimized graph that does its work, or the name
             of the pass that removed it
    """

    before: LogicalGraph
    after: LogicalGraph
    left_out: tuple[str, ...]
    passes: tuple[PassChange, ...]
    became: tuple[OpNode | str, ...]


def changes(graph: LogicalGraph) -> Changes:
    """Return the changes of the passes to an optimized graph; none if it was not optimized here."""
    if graph.captured is None:
        return Changes(graph, graph, (), (), tuple(graph.nodes))
    captured, without = graph.captured
    changes: list[PassChange] = []
    became: list[OpNode | str] = list(captured.nodes)

    def record_change(name: str, before: LogicalGraph, after: LogicalGraph) -> None:
        into = matched(before.nodes, after.nodes)
        changes.append(_change(name, before.nodes, after.nodes, into))
        for k, node in enumerate(became):
            if not isinstance(node, str):
                became[k] = into.get(id(node), name)

    optimized = optimize(captured, without, record_change)
    return Changes(captured, optimized, without, tuple(changes), tuple(became))


def _change(
    name: str, before: Sequence[OpNode], after: Sequence[OpNode], into: dict[int, OpNode]
) -> PassChange:
    parts: dict[int, list[OpNode]] = defaultdict(list)
    for node in before:
        if id(node) in into:
            parts[id(into[id(node)])].append(node)
    nodes = [
        (node, tuple(parts[id(node)]))
        for node in after
        if len(parts[id(node)]) != 1 or parts[id(node)][0].operator is not node.operator
    ]
    places = {id(node): k for k, node in enumerate(after)}
    order = [places[id(into[id(node)])] for node in before if id(node) in into]
    # what is merged stands where its last part stood; only the order of the others tells
    matched_places = [k for k in order if len(parts[id(after[k])]) == 1]
    return PassChange(
        name,
        len(before),
        len(after),
        tuple(nodes),
        tuple(node for node in before if id(node) not in into),
        matched_places != sorted(matched_places),
        tuple(after),
    )


def matched(before: Sequence[OpNode], after: Sequence[OpNode]) -> dict[int, OpNode]:
    """Match each node before, by id, with the node after that does its work; others are gone."""
    into: dict[int, OpNode] = {}
    free = list(after)
    for key in (_same, _alike):  # the same node; one whose results lie elsewhere
        slots = defaultdict(list)
        for node in free:
            slots[key(node)].append(node)
        for node in before:
            if id(node) not in into and slots[key(node)]:
                into[id(node)] = slots[key(node)].pop(0)
        used_nodes = {id(node) for node in into.values()}
        free = [node for node in free if id(node) not in used_nodes]
    writers: dict[Buffer, OpNode] = {}
    for node in free:
        writers.update(dict.fromkeys((o.buffer for o in node.written()), node))
    merging = {id(node) for node in free}
    readers: dict[Buffer, list[OpNode]] = defaultdict(list)
    for node in reversed(before):  # readers come first, so whatever feeds a merged one is known
        if id(node) not in into:
            written = [o.buffer for o in node.written()]
            makers = [writers[b] for b in written if b in writers]
            of = [into[id(r)] for b in written for r in readers[b] if id(r) in into]
            makers += [node for node in of if id(node) in merging]
            if makers:
                into[id(node)] = makers[0]
        for operand in node.inputs:
            readers[operand.buffer].append(node)
    return into


def _same(node: OpNode) -> object:
    places = tuple((id(o.buffer), o.offset) for o in node.written())
    return node.operator.name, places, node.code, node.last, node.again


def _alike(node: OpNode) -> tuple[str, str, str, CodeType | None, int, int]:
    return node.operator.name, node.scope, node.phase, node.code, node.last, node.again
