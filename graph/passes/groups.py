"""Groups of nodes that may become one node: the search that the fusion passes share.

A group is run at one place: behind everything that makes or changes what it reads, before anything
that reads what it makes or changes what it read.  Its members only make new values, each of which
has one writer, so that between members nothing but "made before it is read" matters.

A node joins the groups that make what it reads, where that is `allowed`; a pass says by `fits`
which sets of nodes it can make one node of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import BufferKind, Operand, OpNode, is_pure
from flowvm.graph.logical.rewriting import Accesses, rebuilt, together, writers_of

MOST_OPERANDS = 24  # of a kernel: an instruction record holds 28 words
MOST_NODES = 64  # of a group


@dataclass(eq=False)
class Group:
    """Nodes to be joined, by their places in the graph."""

    places: list[int] = field(default_factory=list)
    at: int = -1  # the place in front of which it runs


class Groups(Accesses):
    """The groups of a graph, and the facts for their search, computed once."""

    def __init__(self, graph: LogicalGraph) -> None:
        super().__init__(graph)
        self.graph = graph
        self.group_of: dict[int, Group] = {}
        self.writers = writers_of(graph)
        repeated = [place for place, node in enumerate(graph.nodes) if node.repeat > 1]
        # nodes that a launch runs several times stand together: [first, behind the last)
        self.section = (repeated[0], repeated[-1] + 1) if repeated else (0, 0)

    def makes_values(self, node: OpNode) -> bool:
        """Return True if a node only makes whole temporaries that nobody else writes."""
        return is_pure(node) and all(
            o.buffer.kind is BufferKind.TEMPORARY and self.writers[o.buffer] == 1 and o.offset == 0
            for o in node.outputs
        )

    def search(
        self, joins: Callable[[OpNode], bool], fits: Callable[[list[OpNode]], bool]
    ) -> list[Group]:
        """Return the groups of at least two nodes that `joins` accepts."""
        for place, node in enumerate(self.graph.nodes):
            if not (self.makes_values(node) and joins(node)):
                continue
            group = Group([place])
            for before in self._producers(node):
                candidate = Group(sorted({*before.places, *group.places}))
                if self.allowed(candidate, fits):
                    group = candidate
            for p in group.places:
                self.group_of[p] = group
        groups = {id(g): g for g in self.group_of.values() if len(g.places) > 1}
        return list(groups.values())

    def shrunk(self, group: Group, fits: Callable[[list[OpNode]], bool]) -> bool:
        """Leave out the last nodes of a group until it is `allowed`; False if that leaves one."""
        while len(group.places) > 1 and not self.allowed(group, fits):
            del self.group_of[group.places.pop()]
        return len(group.places) > 1

    def members(self, group: Group) -> list[OpNode]:
        return [self.graph.nodes[p] for p in group.places]

    def joined(self, pairs: Sequence[tuple[Group, OpNode]]) -> LogicalGraph:
        """The graph with these nodes in the places of these groups."""
        fused: dict[int, list[OpNode]] = {}
        for group, node in pairs:
            fused.setdefault(group.at, []).append(node)
        gone = {place for group, _ in pairs for place in group.places}
        nodes = []
        for place, node in enumerate(self.graph.nodes):
            nodes += _in_order(fused.get(place, []))
            if place not in gone:
                nodes.append(node)
        return rebuilt(self.graph, [*nodes, *_in_order(fused.get(len(self.graph.nodes), []))])

    def interface(self, members: Sequence[OpNode]) -> tuple[list[Operand], list[Operand]]:
        """Return the operands that nodes read from outside, and the results needed outside."""
        inside = {o.buffer for m in members for o in m.outputs}
        inputs = [o for m in members for o in m.inputs if o.buffer not in inside]
        numbers = {id(m) for m in members}
        outputs = []
        for out in (o for m in members for o in m.outputs):
            readers = [self.graph.nodes[r] for r in self.reads.get(out.buffer, ())]
            if out.buffer in self.shown or any(id(r) not in numbers for r in readers):
                outputs.append(out)
        return list(dict.fromkeys(inputs)), outputs

    def _producers(self, node: OpNode) -> list[Group]:
        """The groups that make what a node reads, each once."""
        groups: dict[int, Group] = {}
        for operand in node.inputs:
            group = self.group_of.get(self.writes.get(operand.buffer, [-1])[0])
            if group is not None:
                groups[id(group)] = group
        return list(groups.values())

    def _runs_at(self, place: int, behind: int) -> int:
        """Return the place at which the node at `place` runs, which may be the place of its group.

        `behind` is -1 for the place after which a reader of the node may run.
        """
        group = self.group_of.get(place)
        if group is None or len(group.places) == 1:
            return place
        return group.at + behind if behind else min(place, group.at)

    def allowed(self, group: Group, fits: Callable[[list[OpNode]], bool]) -> bool:
        """Return True if the nodes may run together, and store their place in the group."""
        members, places = self.members(group), set(group.places)
        if len(members) > MOST_NODES or not all(together(members[0], m) for m in members):
            return False
        inside = {o.buffer for m in members for o in m.outputs}
        behind, before = -1, group.places[-1] + 1  # it runs behind one place, before the other
        for place, member in zip(group.places, members, strict=True):
            for operand in member.inputs:
                if operand.buffer in inside:
                    continue
                for write in self.writes.get(operand.buffer, ()):
                    if write < place:
                        behind = max(behind, self._runs_at(write, -1))
                    else:
                        before = min(before, write)
            for out in member.outputs:
                readers = self.reads.get(out.buffer, ())
                before = min([before, *(self._runs_at(r, 0) for r in readers if r not in places)])
        first, last = self.section
        if members[0].repeat > 1:
            before = min(before, last)
        elif first < before < last:
            before = first
        group.at = before
        return behind < before and not self._reads_itself(group) and fits(members)

    def _reads_itself(self, group: Group) -> bool:
        """Return True if the group needs its own results, by way of other groups at its place."""
        visited: set[int] = set()
        others: list[int] = []  # places of groups that need what it makes
        pending, mine = list(group.places), set(group.places)
        while pending:
            for out in self.graph.nodes[pending.pop()].outputs:
                for reader in self.reads.get(out.buffer, ()):
                    other = self.group_of.get(reader)
                    if reader in mine or other is None or id(other) in visited:
                        continue
                    if other.at == group.at and len(other.places) > 1:
                        visited.add(id(other))
                        pending += other.places
                        others += other.places
        needed = {o.buffer for p in group.places for o in self.graph.nodes[p].inputs}
        buffers = {o.buffer for p in others for o in self.graph.nodes[p].outputs}
        return not needed.isdisjoint(buffers)


def _in_order(nodes: list[OpNode]) -> list[OpNode]:
    """Sort nodes inserted at one place: a node comes before the readers of its results."""
    pending, ordered = list(nodes), []
    while pending:
        buffers = {operand.buffer for node in pending for operand in node.outputs}
        ready = next(n for n in pending if not any(o.buffer in buffers for o in n.inputs))
        ordered.append(ready)
        pending.remove(ready)
    return ordered
