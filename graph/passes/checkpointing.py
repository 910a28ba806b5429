"""Less memory for more arithmetic: values of forward are forgotten and computed again in backward.

*Checkpointing* (Chen et al. 2016, "Training deep nets with sublinear memory cost"): of a call that
is marked (`OpNode.region`), only what goes in is kept.  What backward reads of the rest is made by
clones of its nodes, each in front of the first node that needs it.

*Recomputation* does the same, without being told, for values that cost little more than their
memory traffic: an activation, a normalized row, the scores of attention.  Either those alone whose
arguments are there in backward anyway, or all that can be made of such by a few cheap nodes;
whichever has the smaller peak.  Of these, what spares nothing is kept after all, and so is what
spares a smaller share of the peak than `LogicalGraph.spared` times its share of the graph's price,
the dearest first; an op of the same sizes in all layers stands or falls as one.  It runs where
memory matters more than time (`LogicalGraph.order` is "memory").

*Pairs* are cheaper still: an elementwise value whose gradient reads the same arguments (GELU, SiLU)
is computed again by the gradient's kernel, which reads them anyway and shares the exponential.

Clones compute what the first time computed, bit for bit: they have the same operands and the same
live numbers, so dropout draws the mask that it drew.  What changes memory (statistics of a batch
norm) runs once; and what reads memory that was changed since is not cloned but kept.

Invariant: a clone's `again` is that of its region (or its node) and its phase "backward", so no
other pass takes it for what was computed before, or moves it there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from flowvm.eager.interpreter import Operator
from flowvm.errors import ArgumentError
from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import Buffer, BufferKind, Operand, OpNode, is_pure
from flowvm.graph.logical.rewriting import rebuilt
from flowvm.graph.passes.fusion import is_elementwise
from flowvm.graph.passes.fusion_program import program_of, real_of
from flowvm.graph.passes.order import order_for_memory, peak_of
from flowvm.graph.passes.prices import kernel_price

SMALL = 1 << 12  # bytes: what is smaller is rather kept
CHEAP = ("cast", "index_select", "normalize", "softmax")  # beside elementwise operators
SLIGHT = 0.01  # share of the peak: an order is not searched for kinds that need not spare more
SHORT = 64  # the inner dimension up to which a product is cheap for each element that it makes
FLOPS, MEMORY = 1e11, 1.5e10  # operations and bytes a second, of products and of other kernels


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
    clones = _Clones(facts, {})
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
    choices = [_Clones(facts, {})]
    for deep in (False, True):
        places: dict[Buffer, int] = {}
        derivable: set[Buffer] = set()
        for place, node in enumerate(graph.nodes):
            if not (facts.cheap(place) and facts.repeatable(place)):
                continue
            needed = facts.last_needed(node)
            if all(facts.at_hand(o.buffer, needed, derivable) for o in node.inputs):
                places.update({o.buffer: place for o in node.outputs})
                if deep:
                    derivable.update(o.buffer for o in node.outputs)
        choices.append(_Clones(facts, places))
    return _worthy(facts, min(choices, key=lambda clones: clones.peak)).result


def _worthy(facts: _Facts, clones: _Clones) -> _Clones:
    """Clones without those that spare too little for their price, the dearest first."""
    kinds: dict[object, set[int]] = {}
    for place in set(clones.places.values()):
        node = facts.graph.nodes[place]
        metas = tuple(o.meta for o in (*node.outputs, *node.inputs))
        kinds.setdefault((node.operator, metas, node.attrs), set()).add(place)

    def price(kind: object) -> float:
        return sum(_price(facts.graph.nodes[p]) for p in kinds[kind])

    total = sum(map(_price, facts.graph.nodes))
    for kind in sorted(kinds, key=lambda kind: (-price(kind), min(kinds[kind]))):
        if facts.graph.spared and facts.graph.spared * price(kind) < SLIGHT * total:
            break  # so are those behind it
        without = _Clones(
            facts, {b: p for b, p in clones.places.items() if p not in kinds[kind]}
        )  # and what only these were made of
        spared = (without.peak - clones.peak) / max(1, clones.peak)
        if spared * total <= facts.graph.spared * (clones.price - without.price):
            clones = without
    return clones


def _price(node: OpNode) -> float:
    return kernel_price(node, FLOPS, MEMORY)


def pair_with_gradients(graph: LogicalGraph) -> LogicalGraph:
    """Compute elementwise values of forward again in the kernels of their gradients."""
    if graph.order != "memory":
        return graph
    facts = _Facts(graph)
    free = max((b.number for b in graph.buffers()), default=-1) + 1
    copies: dict[Buffer, Buffer] = {}
    kernels: dict[int, list[OpNode]] = {}  # by the place in front of which they run
    gone: set[int] = set()
    for place, node in enumerate(graph.nodes):
        if not (facts.cheap(place) and facts.repeatable(place) and is_elementwise(node)):
            continue
        (out,) = node.outputs
        at = facts.first_in_backward(out.buffer)
        gradient = next((p for p in facts.gradients(place, at) if p not in gone), -1)
        if gradient < 0 or any(o.buffer in copies for o in graph.nodes[gradient].inputs):
            continue
        copy = replace(out, buffer=replace(out.buffer, number=free))
        free += 1
        copies[out.buffer] = copy.buffer
        gone.add(gradient)
        other = graph.nodes[gradient]
        members = [replace(node, outputs=(copy,)), other]
        outputs = (copy, *other.outputs)
        program = program_of(members, other.inputs, outputs)
        kernels.setdefault(min(at, gradient), []).append(
            replace(
                other,
                operator=program.operator,
                outputs=outputs,
                attrs=(tuple(o.meta for o in outputs),),
                scalars=program.lives,
                again=node.number + 1,
            )
        )
    nodes: list[OpNode] = []
    for place, node in enumerate(graph.nodes):
        nodes += kernels.get(place, ())
        if place in gone:
            continue
        behind = node.phase != "forward"
        nodes.append(replace(node, inputs=_moved(node.inputs, copies)) if behind else node)
    return rebuilt(graph, nodes)


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

    def first_in_backward(self, buffer: Buffer) -> int:
        """Return the first node behind forward that reads a buffer, -1 if there is none."""
        places = self.readers.get(buffer, ())
        return min((p for p in places if self.graph.nodes[p].phase != "forward"), default=-1)

    def gradients(self, place: int, at: int) -> Iterator[int]:
        """The elementwise nodes of backward that read all that the node at `place` reads, with the
        same result for both if they run in front of `at`.
        """
        nodes = self.graph.nodes
        node = nodes[place]
        if at < 0:
            return
        for p in dict.fromkeys(p for o in node.inputs for p in self.readers[o.buffer]):
            other = nodes[p]
            first = min(p, at)
            if (
                other.phase == "backward"
                and self.repeatable(p)
                and is_elementwise(other)
                and real_of(other) == real_of(node)
                and set(node.inputs) <= set(other.inputs)
                and other.outputs[0].meta.shape == node.outputs[0].meta.shape
                and node.repeat == other.repeat == nodes[at].repeat
                and node.stream == other.stream == nodes[at].stream
                and all(self.unchanged(o, place, first) for o in node.inputs)
                and all(self.unchanged(o, first - 1, p) for o in other.inputs)
            ):
                yield p

    def last_needed(self, node: OpNode) -> int:
        """Return the last place in backward that needs a node's results."""
        return max(self.last_in_backward(o.buffer) for o in node.outputs)

    def cheap(self, place: int) -> bool:
        """Return True if a forward node costs little more than its memory traffic."""
        node = self.graph.nodes[place]
        simple = _is_simple(node.operator)
        if node.operator.name.partition("[")[0] == "matmul":  # with an epilogue, too
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


def _is_simple(operator: Operator) -> bool:
    """Return True if an operator goes through memory once or twice and does little else."""
    if operator.origin.recipe is not None and operator.origin.recipe[0] == "rows":
        return all(_is_simple(part[0]) for part in operator.origin.recipe[1][1])
    return bool(operator.kernel.aliases) or operator.name in CHEAP


class _Clones:
    """The values to compute again, and the graph that does so.

    places   the values, each with the place of the node that makes it
    copies   the buffers that backward reads instead; refused: values that must be kept after all
    """

    def __init__(self, facts: _Facts, places: dict[Buffer, int]) -> None:
        self.facts = facts
        self.places = places
        self.copies: dict[Buffer, Buffer] = {}
        self.refused: set[Buffer] = set()
        self.free = max((b.number for b in facts.graph.buffers()), default=-1) + 1

    @functools.cached_property
    def result(self) -> LogicalGraph:
        """The graph in which each value has a number of its own."""
        return self.graph(lambda node: node.number + 1) if self.places else self.facts.graph

    @functools.cached_property
    def peak(self) -> int:
        """The peak of `result` in its best order."""
        return peak_of(order_for_memory(self.result))

    @functools.cached_property
    def price(self) -> float:
        """Seconds that a launch computes again for."""
        return sum(_price(node) for node in self.result.nodes if node.again)

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
