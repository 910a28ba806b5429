"""The instruction DAG as lanes: a lane for each stream, a row for each instruction.

A tree cannot show an instruction that waits for several others, so this is drawn as version control
draws histories: a row's mark stands in its stream's lane, and what it waited for in other streams
comes in from their lanes.  Edges within a lane are its order.  At the right stand the operands, and
by name every instruction that was waited for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flowvm.errors import ArgumentError, Status
from flowvm.meta.arrays import Array
from flowvm.profiler.analysis.waits import by_device
from flowvm.profiler.grammar import (
    ACCESS,
    Column,
    Drawn,
    Link,
    Node,
    Screen,
    Span,
    flowed,
    ms,
    table,
)
from flowvm.profiler.run.devices import said_of
from flowvm.profiler.run.run import Run
from flowvm.profiler.views.summary.facts import ProfileLike
from flowvm.vm.machine.edges import HAZARDS
from flowvm.vm.machine.words import INS, KIND
from flowvm.vm.watch.lanes import draw_lanes

MOST_ROWS = 60
PATHS = ("observed", "longest")  # what the run waited for; the longest chain of data
MOST_WAITS = 3  # named in a row


@dataclass(frozen=True)
class DagEdge:
    """The row waited for instruction `source`, which stands in `lane`."""

    source: int  # its number in the VM
    row: int  # of the source, -1 if it is not shown
    lane: int
    access: int  # of the operand that it is about: 0 const, 1 mut, 2 mut2
    hazard: str
    gating: bool


@dataclass(frozen=True)
class DagRow:
    """One instruction.  Times are nanoseconds; `wait` is from its issue to its start."""

    seq: int
    op: str
    lane: int
    critical: bool
    reads: tuple[str, ...]
    writes: tuple[tuple[int, str], ...]  # access, tensor
    edges: tuple[DagEdge, ...]
    run: int
    wait: int
    line: str
    status: int


@dataclass(frozen=True, repr=False)
class Dag(Drawn):
    """See the module."""

    lanes: tuple[str, ...]
    rows: tuple[DagRow, ...]
    hidden: int
    hint: str
    devices: str = ""  # what times of devices are, where there are any

    def drawn(self) -> tuple[list[Node], list[Link]]:
        """See Drawn."""
        nodes = [
            (f"i{row.seq}", f"#{row.seq} {row.op}\n{ms(row.run)} ms  {row.line}",
             self.lanes[row.lane], row.critical)
            for row in self.rows
        ]  # fmt: skip
        links = [
            (f"i{edge.source}", f"i{row.seq}", ACCESS[edge.access][2], edge.hazard)
            for row in self.rows
            for edge in row.edges
            if edge.row >= 0
        ]
        return nodes, links

    def screen(self, width: int) -> Screen:
        """See View."""
        screen = Screen()
        if not self.rows:
            screen.add(" no instruction to show")
            return screen
        drawn = draw_lanes(
            [row.lane for row in self.rows],
            [[e.lane for e in row.edges if e.row >= 0 and e.lane != row.lane] for row in self.rows],
            [row.critical for row in self.rows],
            [max((e.access for e in row.edges if e.lane != row.lane), default=0)
             for row in self.rows],
        )  # fmt: skip
        title = " ".join(f"{k}={name}" for k, name in enumerate(self.lanes))
        screen.add((f" lanes {title}", "head"))
        art = max(sum(len(t) for t, _ in line) for line in drawn)
        rest = table(_COLUMNS, [_cells(row) for row in self.rows], width - art - 2, indent=0)
        head = "".join(str(k % 10).ljust(3) for k in range(len(self.lanes)))
        screen.lines.append([(f" {head}"[: art + 1].ljust(art + 1) + " ", "head"), *rest[0]])
        for line, cells in zip(drawn, rest[1:], strict=True):
            pad = " " * (art - sum(len(t) for t, _ in line) + 1)
            screen.lines.append([(" ", ""), *line, (pad, ""), *cells])
        legend: list[Span] = [("◆ critical", "head"), ("○ off path", "head")]
        for number, name in enumerate(("const", "mut", "mut2")):
            legend.append((f"{ACCESS[number][0]} {name}", ACCESS[number][2]))
        if any(e.gating for row in self.rows for e in row.edges):
            legend.append(("! came last", "head"))
        if any(row.status for row in self.rows):
            legend += [("✗ failed", "bad"), ("∅ for want of what failed", "bad")]
        if self.hidden:
            legend.append((f"{self.hidden:,} rows hidden: {self.hint}", "head"))
        screen.lines += flowed(legend, width, "  ")
        if self.devices:
            screen.add((f" devices: times {self.devices}", "head"))
        return screen.cut(width)


_COLUMNS = [
    Column("id", style="id"),
    Column("op", grow=True, least=16),
    Column("reads", style="const", drop=6, grow=True, least=8),
    Column("writes", style="mut", drop=5, grow=True, least=6),
    Column("run ms", right=True, drop=3),
    Column("wait", right=True, drop=3),
    Column("waited for", drop=2, grow=True),
    Column("line", style="line", grow=True, where=True),
]


def _cells(row: DagRow) -> list[str | Span]:
    edges = sorted(row.edges, key=lambda e: not e.gating)  # what is cropped matters least
    waits = [f"#{e.source} {e.hazard}" + ("!" if e.gating else "") for e in edges]
    if len(waits) > MOST_WAITS:
        waits = [*waits[: MOST_WAITS - 1], f"{len(waits) - MOST_WAITS + 1} more"]
    style = "bad" if row.status else "critical" if row.critical else ""
    failed = {0: "", INS.POISONED: " ∅", Status.CAPTURED: ""}.get(row.status, " ✗")
    return [
        f"#{row.seq}",
        (row.op + failed, style),
        " ".join(row.reads),
        " ".join(f"{ACCESS[access][1]}{name}" for access, name in row.writes),
        ms(row.run),
        ms(row.wait),
        ", ".join(waits),
        row.line,
    ]


def dag(
    profile: ProfileLike,
    around: int | None = None,
    depth: int = 2,
    releases: bool = False,
    limit: int | None = MOST_ROWS,
    path: str = PATHS[0],
) -> Dag:
    """The DAG of a Profile.

    around     the number of an instruction: only what is at most `depth` edges from it
    releases   ReleaseTensor instructions too
    limit      rows at most, None for all
    path       which one is marked: one of PATHS
    ArgumentError: no such instruction, or another path.
    """
    run: Run = profile.run
    marked = on_path(profile, path)
    shown = run.kind != KIND.BARRIER
    if not releases:
        shown &= run.kind != KIND.RELEASE
    if around is not None:
        shown &= near(run, run.index(around), depth)
        shown[run.index(around)] = True
    chosen = np.flatnonzero(shown)
    started = run.time("started")
    never = np.iinfo(np.int64).max
    chosen = chosen[np.lexsort((chosen, np.where(started[chosen] > 0, started[chosen], never)))]
    hidden = 0
    if limit is not None and len(chosen) > limit:
        hidden = len(chosen) - limit
        chosen = chosen[:limit]
    streams = by_device(run, list({int(run.stream[i]) for i in chosen}))
    lane_of = {stream: k for k, stream in enumerate(streams)}
    row_of = {int(i): r for r, i in enumerate(chosen)}
    rows = [_row(profile, int(i), lane_of, row_of, marked) for i in chosen]
    hint = "p.graph(limit=None)" if around is None else f"p.graph(around={around}, limit=None)"
    return Dag(tuple(run.streams[s] for s in streams), tuple(rows), hidden, hint, said_of(run))


def on_path(profile: ProfileLike, path: str) -> set[int]:
    """The instructions that a path ran.  ArgumentError: none of PATHS."""
    if path not in PATHS:
        raise ArgumentError(f"path={path!r}: one of {', '.join(PATHS)}")
    if path == "longest":
        return set(profile.floor.path)
    return {s.instruction for s in profile.observed if s.cause == "run"}


def near(run: Run, centre: int, depth: int) -> Array:
    """Instructions at most `depth` edges from one."""
    if depth < 0:
        raise ArgumentError(f"depth={depth}: how many edges from the instruction, 0 or more")
    mask = np.zeros(len(run), bool)
    mask[centre] = True
    real = (run.kind[run.source] != KIND.RELEASE) & (run.kind[run.target] != KIND.RELEASE)
    source, target = run.source[real], run.target[real]
    for _ in range(depth):
        touched = mask[source] | mask[target]
        mask[source[touched]] = True
        mask[target[touched]] = True
    return mask


def _row(
    profile: ProfileLike, i: int, lane_of: dict[int, int], row_of: dict[int, int], marked: set[int]
) -> DagRow:
    run: Run = profile.run
    first, last = int(run.offsets[i]), int(run.offsets[i + 1])
    operands = [(int(run.access[k]) & 3, f"t{run.tensor[k]}") for k in range(first, last)]
    edges = []
    a, b = np.searchsorted(run.target, [i, i + 1])
    for e in range(int(a), int(b)):
        j = int(run.source[e])
        edges.append(
            DagEdge(
                int(run.seq[j]),
                row_of.get(j, -1),
                lane_of.get(int(run.stream[j]), lane_of[int(run.stream[i])]),
                int(run.access[run.operand[e]]) & 3,
                HAZARDS[run.hazard[e]],
                int(profile.order.producer[i]) == j,
            )
        )
    times = {name: int(run.time(name)[i]) for name in ("issued", "started", "ended")}
    return DagRow(
        int(run.seq[i]),
        run.names[run.op[i]],
        lane_of[int(run.stream[i])],
        i in marked,
        tuple(dict.fromkeys(name for access, name in operands if access == 0)),
        tuple(dict.fromkeys(o for o in operands if o[0] != 0)),
        tuple(edges),
        max(0, times["ended"] - times["started"]),
        max(0, times["started"] - times["issued"]),
        _where(run, i),
        int(run.status[i]),
    )


def _where(run: Run, i: int) -> str:
    """The line of an instruction; of what backward issued, that of the forward call too."""
    line = run.lines[run.line[i]]
    forward = int(run.forward[i]) if len(run.forward) else -1
    return f"{line} ↩ {run.lines[forward]}" if forward >= 0 else line
