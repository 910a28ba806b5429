"""A recorded run: the DAG of the instructions issued meanwhile.

The flight recorder's instructions (`flowvm.vm.watch.flight`) as objects to read.  The edges are
computed from the operands by the rule itself (`flowvm.vm.machine.edges`), not copied from the
engine.  So they are complete, also if the producer had finished long before, and `verify` can check
the engine by them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from flowvm.files.printable import printable
from flowvm.guards.regions import Switched
from flowvm.meta.arrays import Array
from flowvm.vm.callers.lines import short_position
from flowvm.vm.machine.edges import HAZARDS, connect, tensors_of
from flowvm.vm.machine.words import CTL, ENT, KIND, OPERAND, Access, Kind
from flowvm.vm.watch.device_times import place_on_devices
from flowvm.vm.watch.flight import TIMES, Recorded, Snapshot
from flowvm.vm.watch.lanes import Line, draw_lanes, encodable
from flowvm.vm.watch.uses import UNUSED, Times, joined, uses_of

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

MOST_WAITS = 4  # instructions named in a row's "waits for"
_NAMES = {Kind.RELEASE_TENSOR: "release", Kind.TOUCH_TENSORS: "wait"}


@dataclass(frozen=True)
class TracedOperand:
    """One access: `tensor` numbers the storages of the trace in order of appearance."""

    tensor: int
    access: Access
    name: str  # the operator's name for it
    what: str  # dtype and shape


@dataclass(frozen=True)
class Edge:
    """Instruction `target`, an index into the trace, must wait for `source` because of `tensor`."""

    source: int
    target: int
    hazard: str  # RAW, WAR or WAW
    tensor: int


@dataclass(frozen=True)
class Traced:
    """One instruction.  `started` and `ended` are nanoseconds of the monotonic clock."""

    seq: int
    name: str
    kind: Kind
    stream: int
    operands: tuple[TracedOperand, ...]
    started: int
    ended: int
    status: int
    where: str  # "file.py:12" of the user's line, or ""

    @property
    def microseconds(self) -> float:
        """The duration of the instruction."""
        return (self.ended - self.started) / 1e3


@dataclass
class Trace:
    """The instructions of a recorded run in program order, and the edges between them."""

    instructions: list[Traced] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    result: object = None
    dropped: int = 0
    streams: dict[int, str] = field(default_factory=dict)  # the streams' names
    # (instruction, tensor) -> when a launch that may run beside others read it, and wrote it: see
    # `flowvm.vm.watch.uses`
    uses: dict[tuple[int, int], list[Times]] = field(default_factory=dict)

    def predecessors(self, index: int) -> list[Edge]:
        """Return the edges for which instruction `index` waits."""
        return [e for e in self.edges if e.target == index]

    def __len__(self) -> int:
        return len(self.instructions)

    def __iter__(self) -> Iterator[Traced]:
        return iter(self.instructions)

    def __repr__(self) -> str:
        lost = f", {self.dropped} more not recorded" if self.dropped else ""
        return f"<Trace: {len(self.instructions)} instructions, {len(self.edges)} edges{lost}>"

    def rows(self) -> list[tuple[str, ...]]:
        """Return a row for each instruction, under the titles of `heads`.

        A tensor's dtype and shape stand where it is written (or first read); `waits for` names the
        instructions in front.
        """
        waits: dict[int, list[str]] = {}
        for e in self.edges:
            waits.setdefault(e.target, []).append(f"#{self.instructions[e.source].seq} {e.hazard}")
        lanes = len({ins.stream for ins in self.instructions}) > 1
        known: set[int] = set()
        rows = []
        for i, ins in enumerate(self.instructions):
            reads = [_operand(o, known) for o in ins.operands if o.access == Access.CONST]
            writes = [_operand(o, known) for o in ins.operands if o.access != Access.CONST]
            if ins.kind == Kind.RELEASE_TENSOR:
                writes = ["free", *(f"t{o.tensor}" for o in ins.operands)]
            front = waits.get(i, [])
            if len(front) > MOST_WAITS:
                front = [*front[: MOST_WAITS - 1], f"{len(front) - MOST_WAITS + 1} more"]
            row = [f"#{ins.seq}", ins.name, " ".join(reads), " ".join(writes), ", ".join(front)]
            row += [self.streams.get(ins.stream, str(ins.stream))] if lanes else []
            row += [f"{ins.microseconds:.1f}", ins.where]
            rows.append(tuple(map(printable, row)))
        return rows

    def heads(self) -> tuple[str, ...]:
        """Return the titles of the columns of `rows`; the stream only if there are several."""
        lanes = len({ins.stream for ins in self.instructions}) > 1
        stream = ("stream",) if lanes else ()
        return ("id", "op", "reads", "writes", "waits for", *stream, "us", "line")

    def longest(self) -> list[int]:
        """The instructions on the longest path of dependences, each as long as it ran; a release is
        on none.
        """
        best: list[tuple[int, int]] = []  # the earliest end of each, and its predecessor
        front: dict[int, list[int]] = {}
        for e in self.edges:
            front.setdefault(e.target, []).append(e.source)
        for k, ins in enumerate(self.instructions):
            begun, after = max(((best[j][0], j) for j in front.get(k, ())), default=(0, -1))
            best.append((begun + max(0, ins.ended - ins.started), after))
        real = [k for k, i in enumerate(self.instructions) if i.kind != Kind.RELEASE_TENSOR]
        at, path = max(real, key=lambda k: best[k][0], default=-1), []
        while at >= 0:
            path.append(at)
            at = best[at][1]
        return path[::-1]

    def lanes(self) -> list[Line]:
        """A drawing for each row: a lane for each stream, and what comes in from other lanes; the
        longest path is marked.
        """
        streams = sorted({ins.stream for ins in self.instructions})
        lane = [streams.index(ins.stream) for ins in self.instructions]
        come: list[list[int]] = [[] for _ in lane]
        access = [0] * len(lane)
        for e in self.edges:
            if lane[e.source] != lane[e.target]:
                come[e.target].append(lane[e.source])
                operands = self.instructions[e.target].operands
                kinds = [int(o.access) for o in operands if o.tensor == e.tensor]
                access[e.target] = max(access[e.target], *kinds, 0)
        path = set(self.longest())
        return draw_lanes(lane, come, [k in path for k in range(len(lane))], access)

    def __str__(self) -> str:
        art = ["".join(text for text, _ in line) for line in self.lanes()]
        rows = [("", *self.heads())]
        rows += [(a, *row) for a, row in zip(art, self.rows(), strict=True)]
        widths = [max(len(r[c]) for r in rows) for c in range(len(rows[0]))]
        padded = [[c.ljust(n) for c, n in zip(r, widths, strict=True)] for r in rows]
        return encodable("\n".join("  ".join(r).rstrip() for r in padded))

    # the rows in colours, for so many columns: set by `flowvm` itself, which knows screens
    screen: ClassVar[Callable[[Trace, int], Any]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Trace.screen(self, options.max_width)


def _operand(o: TracedOperand, known: set[int]) -> str:
    mark = {Access.CONST: "", Access.MUT: "━", Access.MUT2: "═"}[o.access]
    what = "" if o.tensor in known or not o.what else f":{o.what.replace(' ', '')}"
    known.add(o.tensor)
    return f"{mark}t{o.tensor}{what}"


class _Releasing(Protocol):
    def release_dead(self) -> None:
        """Issue the releases of storages that nothing refers to any more."""


class Traceable(Recorded, Protocol):
    """An engine whose instructions are traced."""

    @property
    def storages(self) -> _Releasing:
        """The ids of memories."""


class record(Switched):  # noqa: N801 - read as a part of the with statement
    """Record every instruction issued inside; the trace is complete when the block is left."""

    def __init__(self, vm: Traceable) -> None:
        self.vm, self.trace = vm, Trace()
        self.recording = vm.flight.at_least(2)
        self.issued = 0

    def _switch(self) -> Trace:
        self.recording._switch()
        self.issued = int(self.vm.words[CTL.RECEIVED])
        return self.trace

    def _on_exit(self, *error: object) -> None:
        self.vm.storages.release_dead()
        self.vm.waits.wait_idle()
        _fill(self.trace, self.vm, self.vm.flight.look(self.issued))

    def _undo(self) -> None:
        self.recording._undo()


def _fill(trace: Trace, vm: Recorded, snapshot: Snapshot) -> None:
    trace.dropped = snapshot.overwritten
    trace.streams.update((s, vm.streams.name(s)) for s in set(snapshot.stream.tolist()))
    kinds = vm.m[ENT.AT + snapshot.entry * ENT.WORDS + ENT.KIND]
    counts = np.diff(snapshot.offsets)
    owner = np.repeat(np.arange(len(snapshot.seq)), counts)
    tensor = tensors_of(owner, snapshot.storage, kinds == KIND.RELEASE)
    edges = connect(owner, tensor, snapshot.access & 3 != OPERAND.CONST)
    shown = (kinds != KIND.BARRIER) & ((kinds != KIND.TOUCH) | (counts > 0))
    place = np.cumsum(shown) - 1
    devices = int(vm.words[CTL.DEVICES])
    times, _, _ = place_on_devices(
        snapshot.times, snapshot.stream, kinds, edges, devices, snapshot.devices.times
    )
    trace.instructions += [
        _traced(vm, snapshot, times, int(i), int(kinds[i]), tensor) for i in np.flatnonzero(shown)
    ]
    infos = [vm.entries.info[e][0] if e < len(vm.entries.info) else None for e in snapshot.entry]
    for i, k, writes, started, ended in uses_of(snapshot, infos).tolist():
        used = trace.uses.setdefault((int(place[i]), int(tensor[k])), [UNUSED, UNUSED])
        used[writes] = joined(used[writes], (started, ended))
    for source, target, hazard, k in zip(
        edges.source, edges.target, edges.hazard, edges.operand, strict=True
    ):
        ends = int(place[source]), int(place[target])
        trace.edges.append(Edge(*ends, HAZARDS[hazard], int(tensor[k])))


def _traced(
    vm: Recorded, snapshot: Snapshot, times: Array, i: int, number: int, tensor: Array
) -> Traced:
    entry, kind = int(snapshot.entry[i]), Kind(number)
    info = vm.entries.info[entry][0] if entry < len(vm.entries.info) else None
    metas, names = getattr(info, "metas", ()), getattr(info, "names", ())
    operands = []
    for k, flat in enumerate(range(int(snapshot.offsets[i]), int(snapshot.offsets[i + 1]))):
        what = repr(metas[k]) if k < len(metas) else ""
        name = names[k] if k < len(names) else ""
        access = Access(int(snapshot.access[flat]) & 3)
        operands.append(TracedOperand(int(tensor[flat]), access, name, what))
    name = getattr(info, "name", None) or _NAMES.get(kind, kind.name.lower())
    return Traced(
        int(snapshot.seq[i]),
        name,
        kind,
        int(snapshot.stream[i]),
        tuple(operands),
        int(times[i, TIMES.index("started")]),
        int(times[i, TIMES.index("ended")]),
        int(snapshot.status[i]),
        short_position(snapshot.codes[i], snapshot.lasts[i]),
    )
