"""The actors of a Plan on several streams: chains of tasks, and the waits between them.

A stream runs in order, so its tasks are cut only where it talks to another one: a chain begins
with a task that waits for something more of another stream than the one in front of it did, and
ends with one that another stream waits for.
Between actors there are

- registers (an actor reads, or overwrites, what another one has used): the consumer waits for the
  producer, and the producer, `regst_num` launches later, for the consumer: its credit;
- loop-carried ones: what an actor leaves in a variable, and one in front of it uses in the next
  launch: a credit of one.

Where nodes are repeated, their actors act for each repetition: a chain is cut where the number of
repetitions changes, and between two of a section inputs and credits count repetitions
(`flowvm.vm.workers.actors` has the rule).  A register that one of them makes for another has as
many copies as the producer has credits; what stays from one repetition to the next is
loop-carried, too.  An actor of a section has `in_flight` credits.  One that waits for nobody in it,
on another stream than the one with most of its tasks, has one more: what it fetches is there when
it is wanted.

Collectives have one order on all ranks, kept by a variable that all of a stream change.  Those of
forward and of backward follow each other as they would with one repetition in flight; where
`abreast` says that all who take part have as many, as 1F1B has them: that many of forward, then one
of backward and one of forward in turn.

The edges are those of the VM's own rule, `[one writer]? readers*`, on buffers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import Buffer, BufferKind, OpNode


@dataclass(eq=False)
class ActorDesc:
    """A chain of tasks on one stream: numbers `first` to `first + count - 1` of the Plan.

    inputs   numbers of the actors that it waits for
    credits  (actor, n): acts for a launch when that actor has acted for the one n before it; or,
             if n is negative, for the repetition so many behind it, or the launch's last
    times    how often it acts for a launch
    copies   of the registers that it makes for others of its section
    """

    number: int
    stream: int
    first: int
    count: int
    inputs: list[int] = field(default_factory=list)
    credits: list[tuple[int, int]] = field(default_factory=list)
    times: int = 1
    copies: int = 1

    def tells(self, others: Sequence[ActorDesc]) -> list[int]:
        """Return the actors that its acting may let act: they wait for it or for its credit."""
        return [
            other.number
            for other in others
            if self.number in other.inputs or any(n == self.number for n, _ in other.credits)
        ]


def by_actor(graph: LogicalGraph) -> LogicalGraph:
    """The graph with its nodes in an order in which each actor's are side by side.

    CaptureError is never needed: chains talk at their ends only, so no two wait for each other.
    """
    chains, waits = _chains(graph.nodes)
    order: list[int] = []
    placed: set[int] = set()
    pending = list(range(len(chains)))
    while pending:
        ready = next(c for c in pending if waits[c] <= placed)
        order += chains[ready]
        placed.add(ready)
        pending.remove(ready)
    nodes = [replace(graph.nodes[p], number=n) for n, p in enumerate(order)]
    return replace(graph, nodes=nodes)


def actors_of(graph: LogicalGraph, regst_num: int) -> list[ActorDesc]:
    """The actors of a graph whose nodes stand as `by_actor` leaves them."""
    chains, waits = _chains(graph.nodes)
    actors = [
        _actor(k, graph.nodes[chain[0]], chain, sorted(waits[k])) for k, chain in enumerate(chains)
    ]
    section = [actor for actor in actors if actor.times > 1]
    tasks = Counter(node.stream for node in graph.nodes if node.repeat > 1)
    for actor in section:
        fetches = actor.stream != max(tasks, key=tasks.__getitem__)
        alone = fetches and all(actors[k].times == 1 for k in actor.inputs)
        actor.copies = min(actor.times, graph.in_flight + alone)
    for actor in actors:
        for k in actor.inputs:
            producer = actors[k]
            together = producer.times == actor.times > 1
            producer.credits.append((actor.number, producer.copies if together else regst_num))
    for maker, user in _handed_on(graph, section):
        known = actors[maker].credits
        known[:] = [c for c in known if c[0] != user] + [(user, actors[maker].copies)]
    for before, after in _carried(graph, actors):
        known = actors[after].credits
        known[:] = [c for c in known if c[0] != before] + [(before, 1)]
    for before, after in _in_turn(graph, section) if graph.abreast > 1 else ():
        actors[after].credits.append((before, graph.abreast))
        actors[before].credits.append((after, 1 - graph.abreast))
    return actors


def _in_turn(graph: LogicalGraph, section: Sequence[ActorDesc]) -> set[tuple[int, int]]:
    """(backward, forward) actors of one stream whose collectives take turns."""
    orders = _orders(graph)
    pairs: set[tuple[int, int]] = set()
    for buffer in orders:
        ways: dict[str, list[int]] = {"forward": [], "backward": []}
        for actor in section:
            nodes = graph.nodes[actor.first : actor.first + actor.count]
            if any(o.buffer is buffer for node in nodes for o in node.written()):
                ways[nodes[0].phase].append(actor.number)
        pairs |= {(b, f) for b in ways["backward"] for f in ways["forward"]}
    return pairs


def _orders(graph: LogicalGraph) -> set[Buffer]:
    """Variables that repeated nodes change for their order alone."""
    named: dict[Buffer, set[str]] = {}
    for node in graph.nodes:
        for name, operand in zip(node.operator.signature.inputs, node.inputs, strict=True):
            if node.repeat > 1 and operand.buffer.kind is BufferKind.VARIABLE:
                named.setdefault(operand.buffer, set()).add(name)
    return {buffer for buffer, names in named.items() if names == {"order"}}


def _actor(number: int, first: OpNode, chain: list[int], inputs: list[int]) -> ActorDesc:
    return ActorDesc(number, first.stream, chain[0], len(chain), inputs, times=first.repeat)


def passed_on(graph: LogicalGraph, actors: Sequence[ActorDesc]) -> dict[Buffer, list[ActorDesc]]:
    """Temporaries that are another one in each repetition, and that several actors use: which, the
    one that makes it first.  Of buffers that lie in one block, the first stands for all.
    """
    users: dict[Buffer, dict[ActorDesc, None]] = {}
    outside, same = {o.buffer for o in graph.outputs}, graph.shared()
    for actor in actors:
        for node in graph.nodes[actor.first : actor.first + actor.count]:
            for _, operand in node.accesses():
                buffer = same.get(operand.buffer, operand.buffer)
                users.setdefault(buffer, {})[actor] = None
                if actor.times == 1 or buffer.kind is not BufferKind.TEMPORARY:
                    outside.add(buffer)
    return {b: [*who] for b, who in users.items() if len(who) > 1 and b not in outside}


def _handed_on(graph: LogicalGraph, section: Sequence[ActorDesc]) -> set[tuple[int, int]]:
    """(maker, user) of such registers.  Edges between neighbours in a chain of waiting add up to
    more credits than there are copies, so each user returns its own.
    """
    handed = passed_on(graph, section).values()
    return {(who[0].number, user.number) for who in handed for user in who[1:]}


def conflicts(nodes: Sequence[OpNode]) -> list[tuple[int, int]]:
    """Return the (earlier, later) places of nodes that must keep their order.

    Pairs that follow from others on the same buffer are left out.
    """
    sizes: dict[tuple[int, int], None] = {}
    writer: dict[Buffer, int] = {}
    readers: dict[Buffer, list[int]] = {}
    for place, node in enumerate(nodes):
        written = {o.buffer: None for o in node.written()}
        for buffer in dict.fromkeys(o.buffer for _, o in node.accesses()):
            before = readers.get(buffer, []) if buffer in written else []
            if buffer in writer:
                before = [writer[buffer], *before]
            sizes.update(((p, place), None) for p in before if p != place)
        for buffer in dict.fromkeys(o.buffer for _, o in node.accesses()):
            if buffer in written:
                writer[buffer], readers[buffer] = place, []
            else:
                readers.setdefault(buffer, []).append(place)
    return list(sizes)


def _chains(nodes: Sequence[OpNode]) -> tuple[list[list[int]], list[set[int]]]:
    """Places of each chain's nodes, in the order of their first ones; the chains each waits for."""
    latest_of: dict[tuple[int, int], int] = {}  # of each stream that a node waits for
    for a, b in conflicts(nodes):
        if nodes[a].stream != nodes[b].stream:
            key = b, nodes[a].stream
            latest_of[key] = max(a, latest_of.get(key, a))  # those in front of it have run then
    across: dict[int, list[int]] = {}
    for (b, _), a in latest_of.items():
        across.setdefault(b, []).append(a)
    ends = {*latest_of.values()}
    chains: list[list[int]] = []
    chain_of: list[int] = []
    latest: dict[int, int] = {}
    waits: list[set[int]] = []
    behind: list[set[int]] = []  # chains that are over when one begins
    for place, node in enumerate(nodes):
        needed = {chain_of[a] for a in across.get(place, ())}
        last = latest.get(node.stream, -1)
        cut = last < 0 or chains[last][-1] in ends or not needed <= behind[last]
        if cut or nodes[chains[last][-1]].repeat != node.repeat:
            latest[node.stream] = len(chains)
            chains.append([])
            waits.append(needed | ({last} if last >= 0 else set()))  # a stream runs in order
            behind.append(waits[-1].union(*(behind[c] for c in waits[-1])))
        chains[latest[node.stream]].append(place)
        chain_of.append(latest[node.stream])
    return chains, waits


def _carried(graph: LogicalGraph, actors: Sequence[ActorDesc]) -> set[tuple[int, int]]:
    """Return (before, after) pairs: actor `after` must wait with the next launch or repetition.

    It waits until `before`, which comes behind it, has acted for this one.  They share lasting
    memory, and one of them writes it.
    """
    carried = set()
    uses: dict[Buffer, dict[int, bool]] = {}
    stays = {b for b in graph.buffers() if b.kind is BufferKind.VARIABLE}
    repeated = {o.buffer for n in graph.nodes if n.repeat > 1 for _, o in n.accesses()}
    once = {o.buffer for n in graph.nodes if n.repeat == 1 for _, o in n.accesses()}
    outputs = {o.buffer for o in graph.outputs}
    for actor in actors:
        for node in graph.nodes[actor.first : actor.first + actor.count]:
            for access, operand in node.accesses():
                users = uses.setdefault(operand.buffer, {})
                users[actor.number] = users.get(actor.number, False) or access != "const"
    turns = _in_turn(graph, [a for a in actors if a.times > 1]) if graph.abreast > 1 else set()
    orders = _orders(graph) if turns else set()
    for buffer, users in uses.items():
        between = buffer in repeated and buffer in once | outputs  # repetitions, not launches
        if buffer not in stays and not between:
            continue
        for a, writes in users.items():
            pairs = {(b, a) for b, w in users.items() if b > a and (w or writes)}
            if buffer in orders:
                pairs -= turns
            if buffer not in stays:
                pairs = {(b, a) for b, a in pairs if actors[a].times == actors[b].times > 1}
            carried |= pairs
    return carried
