"""Less memory for more arithmetic: values of forward are forgotten and computed again in backward.

*Checkpointing* (Chen et al. 2016, "Training deep nets with sublinear memory cost"): of a call that
is marked (`OpNode.region`), only what goes in is kept.  What backward reads of the rest is made by
clones of its nodes, each in front of the first node that needs it.

*Recomputation* does the same, without being told, for values that cost little more than their
memory traffic: an activation, a normalized row, the scores of attention.  Either those alone whose
arguments are there in backward anyway, or all that can be made of such by a few cheap nodes;
whichever has the smaller peak.  It runs where memory matters more than time (`LogicalGraph.order`
is "memory").

Clones compute what the first time computed, bit for bit: they have the same operands and the same
live numbers, so dropout draws the mask that it drew.  What changes memory (statistics of a batch
norm) runs once; and what reads memory that was changed since is not cloned but kept.

Invariant: a clone's `again` is that of its region (or its node) and its phase "backward", so no
other pass takes it for what was computed before, or moves it there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from flowvm.errors import ArgumentError
from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import Buffer, BufferKind, Operand, OpNode, is_pure
from flowvm.graph.logical.rewriting import rebuilt
from flowvm.graph.passes.order import order_for_memory, peak_of

SMALL = 1 << 12  # bytes: what is smaller is rather kept
CHEAP = ("cast", "index_select", "normalize", "softmax")  # beside elementwise operators
SHORT = 64  # the inner dimension up to which a product is cheap for each element that it makes


def check_marks(
    name: str, marks: Iterable[object], called: set[object], paths: Iterable[str]
) -> None:
    """ArgumentError for modules, or paths, that are to be checkpointed and were not called."""
    for mark in marks:
        if mark not in called:
            what = repr(mark) if isinstance(mark, str) else f"this {type(mark).__name__}"
            near = [p for p in paths if isinstance(mark, str) and p.startswith(mark)]
            raise ArgumentError(
                f"{name}: config.checkpoint was given {what}, and build called no such module.  A "
                f"container that is only iterated over is not called: name what is in it"
                + (f" ({', '.join(near[1:4])})" if near[1:] else "")
            )


def checkpoint_regions(graph: LogicalGraph) -> LogicalGraph:
    """Let backward compute again the values of marked calls that it needs."""
    if not any(node.region for node in graph.nodes):
        return graph
    facts = _Facts(graph)
    clones = _Clones(facts)
    for place, node in enumerate(graph.nodes):
        if not node.region or node.phase != "forward" or not facts.repeatable(place):
            continue
        for operand in node.outputs:
            readers = facts.readers.get(operand.buffer, ())
            inside = all(
                graph.nodes[r].region == node.region
                for r in readers
                if graph.nodes[r].phase == "forward"
            )
            if inside and operand.buffer not in facts.shown:
                clones.places[operand.buffer] = place
    return clones.graph(lambda node: node.region)


def recompute(graph: LogicalGraph) -> LogicalGraph:
    """Forget cheap values until backward, the largest first, if that lowers the peak."""
    if graph.order != "memory":
        return graph
    facts = _Facts(graph)
    graphs = [graph]
    for deep in (False, True):
        clones = _Clones(facts)
        derivable: set[Buffer] = set()
        for place, node in enumerate(graph.nodes):
            if not (facts.cheap(place) and facts.repeatable(place)):
                continue
            needed = facts.last_needed(node)
            if all(facts.at_hand(o.buffer, needed, derivable) for o in node.inputs):
                clones.places.update({o.buffer: place for o in node.outputs})
                if deep:
                    derivable.update(o.buffer for o in node.outputs)
        graphs.append(clones.graph(lambda node: node.number + 1))
    return min(graphs, key=lambda g: peak_of(order_for_memory(g)))


class _Facts:
    """The readers and writers of each buffer, by places in the graph."""

    def __init__(self, graph: LogicalGraph) -> None:
        self.graph = graph
        self.readers: dict[Buffer, list[int]] = {}
        self.writers: dict[Buffer, list[int]] = {}
        for place, node in enumerate(graph.nodes):
            for operand in node.inputs:
                self.readers.setdefault(operand.buffer, []).append(place)
            for operand in node.written():
                self.writers.setdefault(operand.buffer, []).append(place)
        self.shown = {operand.buffer for operand in graph.outputs}

    def repeatable(self, place: int) -> bool:
        """Return True if a node only makes temporaries that nothing else writes."""
        node = self.graph.nodes[place]
        return is_pure(node) and all(
            o.buffer.kind is BufferKind.TEMPORARY and len(self.writers[o.buffer]) == 1
            for o in node.outputs
        )

    def unchanged(self, operand: Operand, since: int, until: int) -> bool:
        """Return True if no node between two places writes the operand's buffer."""
        return not any(since < p < until for p in self.writers.get(operand.buffer, ()))

    def last_in_backward(self, buffer: Buffer) -> int:
        """Return the last node behind forward that reads a buffer, -1 if there is none."""
        places = self.readers.get(buffer, ())
        return max((p for p in places if self.graph.nodes[p].phase != "forward"), default=-1)

    def last_needed(self, node: OpNode) -> int:
        """Return the last place in backward that needs a node's results."""
        return max(self.last_in_backward(o.buffer) for o in node.outputs)

    def cheap(self, place: int) -> bool:
        """Return True if a forward node costs little more than its memory traffic."""
        node = self.graph.nodes[place]
        name = node.operator.name.partition("[")[
            0
        ]  # of those that passes made: what they begin with
        simple = node.operator.kernel.aliases or name in CHEAP
        if name == "matmul":
            simple = node.inputs[0].meta.shape[-1] <= SHORT
        large = any(o.buffer.nbytes >= SMALL for o in node.outputs)
        is_shown = any(o.buffer in self.shown for o in node.outputs)
        return node.phase == "forward" and not node.again and large and simple and not is_shown

    def at_hand(self, buffer: Buffer, until: int, derivable: set[Buffer]) -> bool:
        """Return True if backward has a buffer up to some place anyway, or can make it again."""
        return (
            buffer.kind is not BufferKind.TEMPORARY
            or buffer in self.shown
            or buffer in derivable
            or self.last_in_backward(buffer) >= max(until, 0)
        )


class _Clones:
    """The values to compute again, and the graph that does so.

    places   the values, each with the place of the node that makes it
    copies   the buffers that backward reads instead; refused: values that must be kept after all
    """

    def __init__(self, facts: _Facts) -> None:
        self.facts = facts
        self.places: dict[Buffer, int] = {}
        self.copies: dict[Buffer, Buffer] = {}
        self.refused: set[Buffer] = set()
        self.free = max((b.number for b in facts.graph.buffers()), default=-1) + 1

    def graph(self, number: Callable[[OpNode], int]) -> LogicalGraph:
        """Return the graph whose backward reads clones of values; `number` gives their `again`."""
        result: list[OpNode] = []
        for place, node in enumerate(self.facts.graph.nodes):
            if node.phase != "forward":
                for operand in node.inputs:
                    for source in self._sources(operand.buffer, place):
                        result.append(self._clone(source, number(source)))
                node = replace(node, inputs=_moved(node.inputs, self.copies))
            result.append(node)
        return rebuilt(self.facts.graph, result)

    def _sources(self, buffer: Buffer, until: int) -> Iterator[OpNode]:
        """The nodes that are to run again for the sake of a buffer, in front of `until`.

        What is yielded is cloned before the next is asked for.
        """
        waiting = [buffer]
        while waiting:
            top = waiting[-1]
            if top not in self.places or top in self.copies or top in self.refused:
                waiting.pop()
                continue
            node = self.facts.graph.nodes[self.places[top]]
            if not self._may_run(self.places[top], until):
                self.refused.update(o.buffer for o in node.outputs)
                continue
            inner = [
                o.buffer
                for o in node.inputs
                if o.buffer in self.places
                and o.buffer not in self.copies
                and o.buffer not in self.refused
            ]
            waiting += inner
            if not inner:
                yield node

    def _may_run(self, place: int, until: int) -> bool:
        """Return True if a node can run in front of `until` with the same result and as often."""
        nodes = self.facts.graph.nodes
        return nodes[place].repeat == nodes[until].repeat and all(
            self.facts.unchanged(o, place, until) for o in nodes[place].inputs
        )

    def _clone(self, node: OpNode, again: int) -> OpNode:
        buffers = {
            o.buffer: replace(o.buffer, number=self.free + k) for k, o in enumerate(node.outputs)
        }
        self.free += len(buffers)
        inputs, outputs = _moved(node.inputs, self.copies), _moved(node.outputs, buffers)
        self.copies.update({old: new for old, new in buffers.items() if old in self.places})
        return replace(
            node, inputs=inputs, outputs=outputs, phase="backward", region=0, again=again
        )


def _moved(operands: Iterable[Operand], copies: dict[Buffer, Buffer]) -> tuple[Operand, ...]:
    return tuple(replace(o, buffer=copies[o.buffer]) if o.buffer in copies else o for o in operands)
