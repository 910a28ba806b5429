"""Execution order: nodes are put where less memory is alive at once.

A graph may run in any order in which conflicting accesses keep theirs.  Code computes things when
it comes to them; memory wants otherwise: a gradient used up as soon as it is there, and a value not
before it is needed, if what it is made of is kept anyway.  `_Steps.settle` goes through an order
and lets every node that frees more than it takes run at once; gone through backwards it is the
other half, because what a node frees in one direction of time it takes in the other.  Finding the
best order is NP-hard (Sethi 1975, register allocation for straight-line programs), so both are
tried in turns, and the smallest peak wins: that of the program's own order, unless another is
smaller.

`LogicalGraph.order` says how far this goes, as OneFlow's straightening does: "program" leaves nodes
alone; "speed" moves those that cost nothing to move; "memory" also lets an optimizer update each
small parameter as soon as its gradient is there, though one task for all of them is faster, so that
gradients die one by one (and see `flowvm.graph.passes.checkpointing.recompute`).  "auto" is
"memory" where eager code would need at least 2 MiB, else "speed"; and what is computed again must
pay there, so that a graph is not slower than eager code.

Invariants: nodes of one `repeat` section stay together and inside it; an optimizer's nodes stay
behind all forward nodes, since those are the ones that can fail on data (an index out of range),
and a step that fails is to leave the parameters alone; the result follows from the graph alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import Buffer, BufferKind, OpNode, is_pure
from flowvm.graph.logical.rewriting import rebuilt
from flowvm.graph.memory.offsets import ALIGNMENT
from flowvm.graph.passes.updates import MOST_BYTES

ORDERS = ("auto", "speed", "memory", "program")
WORTH = 2 << 20  # bytes that eager code would need beside variables, from which memory matters
# where nobody asked for less memory, the percent of the peak that computing values again must spare
# for a percent of time: passes win two or three percent over eager code, which are to stay
SPARED = 12
ROUNDS = 3  # of forwards and backwards


def order_for_memory(graph: LogicalGraph) -> LogicalGraph:
    """The graph with its nodes in the order of the smallest peak that is found."""
    if graph.order == "program" or len({node.stream for node in graph.nodes}) > 1:
        return graph  # of several streams, what is alive at once is not told by the order
    result: list[OpNode] = []
    sections = [list(part) for _, part in groupby(graph.nodes, key=lambda node: node.repeat)]
    for place, section in enumerate(sections):
        behind = [node for part in sections[place + 1 :] for node in part]
        steps = _Steps(graph, section, result, behind)
        result += [section[k] for k in steps.best()]
    return rebuilt(graph, result)


def settled(graph: LogicalGraph) -> LogicalGraph:
    """The graph with its order decided, if it is "auto"."""
    if graph.order != "auto":
        return graph
    order = "memory" if graph.eager >= WORTH else "speed"
    return replace(graph, order=order, spared=SPARED)


def peak_of(graph: LogicalGraph) -> int:
    """The most bytes of temporaries alive at one node, outputs not counted, which have memory of
    their own.
    """
    return _Steps(graph, graph.nodes).peak(range(len(graph.nodes)))


@dataclass(eq=False)
class _Value:
    """A temporary that a section's nodes touch: its users inside, before and behind the section."""

    size: int
    users: list[int] = field(default_factory=list)
    before: bool = False
    behind: bool = False
    remaining_users: int = 0  # while an order is gone through: users to come


class _Steps:
    """A section's nodes by number: the order that they must keep, and the values that they touch.

    Two numbers more are gates, which run as soon as they can: `count` is behind all forward nodes
    and in front of all updates, `count + 1` behind backward too and in front of those updates that
    are to become one.
    """

    def __init__(
        self,
        graph: LogicalGraph,
        nodes: Sequence[OpNode],
        before: Sequence[OpNode] = (),
        behind: Sequence[OpNode] = (),
    ) -> None:
        self.count = len(nodes)
        self.nodes = nodes
        self.together = graph.order == "speed"
        results = {operand.buffer for operand in graph.outputs}
        others = [{o.buffer for n in part for _, o in n.accesses()} for part in (before, behind)]
        values: dict[Buffer, _Value] = {}
        self.touched: list[list[_Value]] = [[] for _ in range(self.count + 2)]
        for k, node in enumerate(nodes):
            for buffer in dict.fromkeys(o.buffer for _, o in node.accesses()):
                if buffer.kind is not BufferKind.TEMPORARY or buffer in results:
                    continue
                if buffer not in values:
                    size = -(-max(buffer.nbytes, 1) // ALIGNMENT) * ALIGNMENT
                    values[buffer] = _Value(size, [], buffer in others[0], buffer in others[1])
                values[buffer].users.append(k)
                self.touched[k].append(values[buffer])
        self.values = list(values.values())
        self.in_place = [bool(n.operator.kernel.aliases) and is_pure(n) for n in nodes] + [
            False,
            False,
        ]
        self.earlier: list[set[int]] = [set() for _ in range(self.count + 2)]
        self.later: list[set[int]] = [set() for _ in range(self.count + 2)]
        self._depend()

    def _depend(self) -> None:
        writer: dict[Buffer, int] = {}
        readers: dict[Buffer, list[int]] = {}
        first, updates, small = self.count, [], []
        for k, node in enumerate(self.nodes):
            before = self.earlier[k]
            accesses = list(node.accesses())
            for access, operand in accesses:
                if operand.buffer in writer:
                    before.add(writer[operand.buffer])
                if access != "const":
                    before.update(readers.get(operand.buffer, ()))
            for access, operand in accesses:
                if access == "const":
                    readers.setdefault(operand.buffer, []).append(k)
                else:
                    writer[operand.buffer] = k
                    readers[operand.buffer] = []
            if node.phase == "optimizer":
                updates.append(k)
                if all(operand.meta.nbytes <= MOST_BYTES for _, operand in accesses):
                    small.append(k)
                first = min(first, k)
        before_first = range(first)
        self._gate(
            self.count, [k for k in before_first if self.nodes[k].phase == "forward"], updates
        )
        self._gate(self.count + 1, before_first, small if self.together else ())
        for k, before in enumerate(self.earlier):
            before.discard(k)
            for other in before:
                self.later[other].add(k)

    def _gate(self, gate: int, behind: Iterable[int], in_front: Iterable[int]) -> None:
        if behind and in_front:
            self.earlier[gate].update(behind)
            for k in in_front:
                self.earlier[k].add(gate)

    def best(self) -> list[int]:
        """The order of the smallest peak."""
        order = best = list(range(self.count))
        least = self.peak(best)
        for _ in range(ROUNDS):
            start = least
            for backwards in (False, True):
                order = self.settle(order, least, backwards)
                peak = self.peak(order)
                if peak < least:
                    best, least = order, peak
            if least == start:
                break
        return best

    def _change(self, k: int, backwards: bool) -> tuple[int, int, int]:
        """Return the bytes that node `k`, run now, takes, frees, and takes from freed ones."""
        takes, frees = [], []
        for value in self.touched[k]:
            opened, closed = (value.behind, value.before) if backwards else (
                value.before, value.behind
            )  # fmt: skip
            if value.remaining_users == len(value.users) and not opened:
                takes.append(value.size)
            elif value.remaining_users == 1 and not closed:
                frees.append(value.size)
            if value.remaining_users == len(value.users) == 1 and not opened and not closed:
                frees.append(value.size)  # nobody else wants it
        shared = 0
        if self.in_place[k] and takes:
            over = list(frees)
            for size in takes:
                if size in over:
                    over.remove(size)
                    shared += size
        return sum(takes), sum(frees), shared

    def _start(self, backwards: bool) -> int:
        """Reset to the start, where nothing has run; return the bytes that are alive."""
        for value in self.values:
            value.remaining_users = len(value.users)
        return sum(v.size for v in self.values if (v.behind if backwards else v.before))

    def peak(self, order: Sequence[int]) -> int:
        """The most bytes alive at one node, in this order."""
        most = live = self._start(False)
        for k in order:
            takes, frees, shared = self._change(k, False)
            most = max(most, live + takes - shared)
            live += takes - frees
            for value in self.touched[k]:
                value.remaining_users -= 1
        return most

    def settle(self, order: Sequence[int], most: int, backwards: bool) -> list[int]:
        """`order` with nodes that free more than they take moved to where they first can run, if
        no more than `most` bytes are alive there; `backwards`, moved behind in the same way.
        """
        needs, gives = (self.later, self.earlier) if backwards else (self.earlier, self.later)
        waiting = [len(n) for n in needs]
        live = self._start(backwards)
        settled = [False] * (self.count + 2)
        result: list[int] = []
        for start in reversed(order) if backwards else order:
            queue = deque([start])
            while queue:
                k = queue.popleft()
                if settled[k] or waiting[k]:
                    continue
                takes, frees, shared = self._change(k, backwards)
                early = k != start and k < self.count
                if early and (frees <= takes or live + takes - shared > most):
                    continue
                settled[k] = True
                live += takes - frees
                if k < self.count:
                    result.append(k)
                near = set(gives[k])
                for other in gives[k]:
                    waiting[other] -= 1
                for value in self.touched[k]:
                    value.remaining_users -= 1
                    if value.remaining_users == 1:
                        near.update(value.users)
                queue.extend(sorted(n for n in near if not settled[n]))
        return result[::-1] if backwards else result
