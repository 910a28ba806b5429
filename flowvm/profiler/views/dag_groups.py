"""The DAG by lines or modules: one row for all instructions of a line, module or function.

For a run too large to read by instructions: a step of a training loop is a few dozen lines.  A row
is of one stream, and stands where its first instruction started.  In a loop a line needs what a
later line made in the iteration before; such an edge leads upwards (`↩`) and is only named.  Where
spans say what a step is, what leads upwards within one is marked `↑`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from flowvm.errors import ArgumentError
from flowvm.meta.arrays import Array
from flowvm.profiler.grammar import ACCESS, Column, Drawn, Link, Node, Screen, counted, ms, table
from flowvm.profiler.run.run import Run
from flowvm.profiler.views.dag import PATHS, near, on_path
from flowvm.profiler.views.spots import spot_of
from flowvm.profiler.views.summary.facts import ProfileLike
from flowvm.vm.machine.edges import HAZARDS
from flowvm.vm.machine.words import KIND
from flowvm.vm.watch.lanes import draw_lanes

COLLAPSES = ("line", "module")
MOST = 3  # operators, or rows needed, that are named


@dataclass(frozen=True)
class Need:
    """`count` instructions of a row wait for some of `row`."""

    row: int
    count: int
    access: int  # the strongest: 0 const, 1 mut, 2 mut2
    hazards: tuple[str, ...]
    within: bool = False  # spans say that all of it is of the same step


@dataclass(frozen=True)
class Group:
    """A row.  Times are nanoseconds, sums over its instructions; `seq` is the first of them."""

    name: str
    lane: int
    seq: int
    count: int
    ops: tuple[tuple[str, int], ...]  # the most frequent first
    run: int
    dep: int
    wait: int
    critical: bool
    needs: tuple[Need, ...]
    text: str  # of the line


@dataclass(frozen=True, repr=False)
class Collapsed(Drawn):
    """See the module."""

    by: str
    lanes: tuple[str, ...]
    rows: tuple[Group, ...]
    instructions: int
    hidden: int

    def screen(self, width: int) -> Screen:
        """See View."""
        screen = Screen()
        if not self.rows:
            screen.add(" no instruction to show")
            return screen
        drawn = draw_lanes(
            [row.lane for row in self.rows],
            [[self.rows[n.row].lane for n in row.needs
              if n.row < r and self.rows[n.row].lane != row.lane]
             for r, row in enumerate(self.rows)],
            [row.critical for row in self.rows],
            [max((n.access for n in row.needs if self.rows[n.row].lane != row.lane), default=0)
             for row in self.rows],
        )  # fmt: skip
        title = " ".join(f"{k}={name}" for k, name in enumerate(self.lanes))
        count = counted(self.instructions, "instruction")
        screen.add((f" {count} by {self.by}   lanes {title}", "head"))
        art = max(sum(len(t) for t, _ in line) for line in drawn)
        cells = [self._cells(r) for r in range(len(self.rows))]
        columns = _COLUMNS if any(row.text for row in self.rows) else _COLUMNS[:-1]
        rest = table(columns, [c[: len(columns)] for c in cells], width - art - 2, indent=0)
        head = "".join(str(k % 10).ljust(3) for k in range(len(self.lanes)))
        screen.lines.append([(f" {head}"[: art + 1].ljust(art + 1) + " ", "head"), *rest[0]])
        for line, cell in zip(drawn, rest[1:], strict=True):
            pad = " " * (art - sum(len(t) for t, _ in line) + 1)
            screen.lines.append([(" ", ""), *line, (pad, ""), *cell])
        more = f"   {self.hidden} rows hidden: p.graph(collapse={self.by!r}, limit=None)"
        upwards = [n.within for r, row in enumerate(self.rows) for n in row.needs if n.row > r]
        legend = " ◆ critical  ○ off path"
        legend += "  ↩ from the iteration before" if not all(upwards) else ""
        legend += "  ↑ of a line below, in the same step" if any(upwards) else ""
        screen.add((legend, "head"),
                   (more if self.hidden else "", "head"))  # fmt: skip
        return screen

    def drawn(self) -> tuple[list[Node], list[Link]]:
        """See Drawn."""
        nodes = [
            (f"g{r}", f"{row.name}\n{counted(row.count, 'instruction')}", self.lanes[row.lane],
             row.critical)
            for r, row in enumerate(self.rows)
        ]  # fmt: skip
        links = [
            (f"g{need.row}", f"g{r}", ACCESS[need.access][2], "/".join(need.hazards))
            for r, row in enumerate(self.rows)
            for need in row.needs
            if need.row != r
        ]
        return nodes, links

    def _cells(self, r: int) -> list[Any]:
        row = self.rows[r]
        ops = [f"{n}× {op}" if n > 1 else op for op, n in row.ops[:MOST]]
        ops += ["..."] if len(row.ops) > MOST else []
        needs = [
            ("" if n.row < r else "↑ " if n.within else "↩ ")
            + f"{self.rows[n.row].name} {'/'.join(n.hazards)}"
            for n in row.needs
            if n.row != r
        ]
        more = f" and {len(needs) - MOST} more" if len(needs) > MOST else ""
        return [
            (row.name, "critical" if row.critical else ""), str(row.count), ", ".join(ops),
            ms(row.run), ms(row.dep), ms(row.wait), ", ".join(needs[:MOST]) + more, row.text,
        ]  # fmt: skip


_COLUMNS = [
    Column("of", grow=True, where=True),
    Column("n", right=True),
    Column("operators", grow=True),
    Column("run ms", right=True),
    Column("dep", right=True, drop=3),
    Column("wait", right=True, drop=4),
    Column("needs", style="const", drop=2, grow=True),
    Column("source", style="line", drop=1, grow=True),
]


def collapsed(
    profile: ProfileLike,
    by: str,
    around: int | None,
    depth: int,
    limit: int | None,
    path: str = PATHS[0],
) -> Collapsed:
    """The DAG of a Profile by lines or modules; see `flowvm.profiler.views.dag.dag`.

    ArgumentError: `by` is none of COLLAPSES; no such instruction.
    """
    if by not in COLLAPSES:
        raise ArgumentError(f"collapse={by!r}: it is one of {', '.join(map(repr, COLLAPSES))}")
    run: Run = profile.run
    shown = ~np.isin(run.kind, (KIND.BARRIER, KIND.RELEASE))
    if around is not None:
        shown &= near(run, run.index(around), depth)
        shown[run.index(around)] = True
    chosen = np.flatnonzero(shown)
    started = run.time("started")[chosen]
    chosen = chosen[np.lexsort((chosen, np.where(started > 0, started, np.iinfo(np.int64).max)))]
    members: dict[tuple[str, int], list[int]] = {}
    names = _names(run, by)
    for i in chosen.tolist():
        members.setdefault((names[i], int(run.stream[i])), []).append(i)
    rows = dict(list(members.items())[:limit])
    streams = sorted({stream for _, stream in rows})
    place = np.full(len(run), -1)
    for r, own in enumerate(rows.values()):
        place[own] = r
    needs = _needs(run, place, len(rows))
    marked = on_path(profile, path)
    groups = [
        _group(profile, name, streams.index(stream), own, marked, needs[r], by)
        for r, ((name, stream), own) in enumerate(rows.items())
    ]
    return Collapsed(
        by, tuple(run.streams[s] for s in streams), tuple(groups), len(chosen),
        len(members) - len(rows),
    )  # fmt: skip


def _names(run: Run, by: str) -> list[str]:
    """Return the group of each instruction."""
    if by == "line":
        return [run.lines[k] or "flowvm" for k in run.line.tolist()]
    names = [
        run.modules[k] if k else spot_of(run, i).function or "flowvm"
        for i, k in enumerate(run.module.tolist())
    ]
    for launch in np.unique(run.tasks.launch).tolist():  # a launch is its modules' common path
        own = run.tasks.module[run.tasks.launch == launch]
        paths = [run.modules[k] for k in np.unique(own).tolist() if run.modules[k]]
        names[launch] = _common(paths) or names[launch]
    return names


def _common(paths: list[str]) -> str:
    """The path that several begin with: of model.fc1 and model.fc2 it is model."""
    split = [path.split(".") for path in paths]
    lines = []
    for parts in zip(*split, strict=False):
        if len(set(parts)) > 1:
            break
        lines.append(parts[0])
    return ".".join(lines)


def _needs(run: Run, place: Array, count: int) -> list[tuple[Need, ...]]:
    """For each row what it needs of others."""
    frames: list[dict[int, list[Any]]] = [{} for _ in range(count)]
    real = (place[run.source] >= 0) & (place[run.target] >= 0)
    access = run.access[run.operand[real]] & 3
    step = _steps(run)
    within = (step[run.source[real]] == step[run.target[real]]) & (step[run.target[real]] >= 0)
    for a, b, kind, hazard, same in zip(
        place[run.source[real]].tolist(), place[run.target[real]].tolist(),
        access.tolist(), run.hazard[real].tolist(), within.tolist(), strict=True,
    ):  # fmt: skip
        need = frames[b].setdefault(a, [0, 0, set(), True])
        need[3] &= same
        need[0] += 1
        need[1] = max(need[1], kind)
        need[2].add(HAZARDS[hazard])
    return [
        tuple(Need(a, n, kind, tuple(sorted(hazards)), within)
              for a, (n, kind, hazards, within) in sorted(of.items()))
        for of in frames
    ]  # fmt: skip


def _steps(run: Run) -> Array:
    """The number of the innermost span that each instruction was issued in, -1 for none."""
    step = np.full(len(run), -1)
    spans = [(m[4], m[5]) for m in run.marks if m[5] > m[4]]
    for k, (first, last) in enumerate(sorted(spans, key=lambda s: s[0] - s[1])):
        step[first:last] = k
    return step


def _group(
    profile: ProfileLike,
    name: str,
    lane: int,
    own: list[int],
    marked: set[int],
    needs: tuple[Need, ...],
    by: str,
) -> Group:
    run: Run = profile.run
    at = np.array(own)
    waits = profile.waits
    ops = Counter(run.names[k] for k in run.op[at].tolist())
    lasted = np.maximum(0, run.time("ended")[at] - run.time("started")[at])
    return Group(
        name,
        lane,
        int(run.seq[at].min()),
        len(own),
        tuple(ops.most_common()),
        int(lasted.sum()),
        int(waits.dep[at].sum()),
        int((waits.dep[at] + waits.queue[at] + waits.sched[at]).sum()),
        not marked.isdisjoint(own),
        needs,
        spot_of(run, own[0]).text if by == "line" else "",
    )
