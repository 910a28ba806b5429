"""A Plan: its actors with registers and credits, or its tasks; and what its replays did.

`flowvm.graph.plan.plan.Plan.table` makes a `PlanView` of a compiled graph as it stands now;
`flowvm.profiler.views.replays` makes one of a recorded run, which knows how long everything took
and what it waited for.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from flowvm.profiler.grammar import (
    Column,
    Drawn,
    Link,
    Node,
    Screen,
    Span,
    advised,
    bar,
    ms,
    percent,
    rate,
    size,
    table,
)
from flowvm.profiler.terminal import USUAL
from flowvm.vm.watch.lanes import draw_lanes

MOST_ROWS = 40


@dataclass(frozen=True)
class TaskRow:
    """A task.  `each` is nanoseconds a run of it, `share` of what all tasks took; 0: not known."""

    number: int
    op: str
    repeat: int
    stream: str
    reads: str
    writes: str
    module: str
    line: str
    count: int = 0
    each: float = 0.0
    share: float = 0.0
    gigabytes: float = 0.0
    gigaflops: float = 0.0


@dataclass(frozen=True)
class ActorRow:
    """An actor: it acts for a launch when all of `inputs` have, and of each of `credits`, (actor,
    n), that actor has for the launch n before.

    `free` of the Plan's registers nobody reads now, None where that is not known.  `busy` is a
    share of the run, `each` the nanoseconds of an act; `state` what it does now or waited for.
    """

    number: int
    label: str
    stream: str
    tasks: int
    inputs: tuple[int, ...]
    credits: tuple[tuple[int, int], ...]
    free: int | None
    acts: int
    busy: float
    each: float
    state: str


@dataclass(frozen=True, repr=False)
class PlanView(Drawn):
    """See the module.  `launches` and `each` (ns of one) are 0 where nothing was recorded;
    `between` is the share of them in which no task ran.
    """

    name: str
    streams: tuple[str, ...]
    regst_num: int
    registers: int
    chunk: int
    launches: int
    each: float
    between: float
    actors: tuple[ActorRow, ...]
    tasks: tuple[TaskRow, ...]
    notes: tuple[str, ...]
    flows: tuple[tuple[int, int], ...] = ()  # between tasks: the writer of a register, its user

    def drawn(self) -> tuple[list[Node], list[Link]]:
        """Return the Plan's actors, an edge for each regst from its writer to each reader, and back
        for each credit; of a single actor its tasks, an edge from the writer of a register to its
        users, or where that is not known in their order.
        """
        if not self.actors:
            longest = max((t.each for t in self.tasks), default=0.0)
            nodes = [
                (f"t{t.number}", f"{t.number} {t.op}\n{_took(t.each)}{t.line}", t.stream,
                 t.each == longest > 0)
                for t in self.tasks
            ]  # fmt: skip
            if self.flows:
                return nodes, [(f"t{a}", f"t{b}", "const", "register") for a, b in self.flows]
            ids = [node[0] for node in nodes]
            return nodes, [(a, b, "const", "in order") for a, b in pairwise(ids)]
        most = max(self.actors, key=lambda a: a.busy).number
        nodes = [
            (f"a{a.number:02}", f"a{a.number:02} {a.label}\n{_took(a.each)}{_regsts(self, a)}",
             a.stream, a.number == most and a.busy > 0)
            for a in self.actors
        ]  # fmt: skip
        links = []
        for a in self.actors:
            links += [(f"a{n:02}", f"a{a.number:02}", "const", "regst") for n in a.inputs]
            links += [
                (f"a{n:02}", f"a{a.number:02}", "mut2", f"credit, {back} back")
                for n, back in a.credits
            ]
        return nodes, links

    def graph(self, width: int = USUAL) -> Screen:
        """Draw the Plan's actors as lanes, a stream each, with the regsts and credits that they
        wait for.
        """
        streams = list(dict.fromkeys(a.stream for a in self.actors))
        place = {a.number: k for k, a in enumerate(self.actors)}
        screen = Screen()
        if not self.actors:
            screen.add(f" Plan {self.name} is one actor: nobody waits for anybody")
            return screen
        lane = [streams.index(a.stream) for a in self.actors]
        most = max(self.actors, key=lambda a: a.busy)
        drawn = draw_lanes(
            lane,
            [[lane[place[n]] for n in a.inputs if place[n] < k and lane[place[n]] != lane[k]]
             for k, a in enumerate(self.actors)],
            [a is most and a.busy > 0 for a in self.actors],
            [0] * len(self.actors),
        )  # fmt: skip
        art = max(sum(len(text) for text, _ in line) for line in drawn)
        titles = " ".join(f"{k}={name}" for k, name in enumerate(streams))
        screen.add((f" Plan {self.name}", "verdict"), (f"  lanes {titles}", "head"))
        rows: list[list[str | Span]] = [
            [
                f"a{a.number:02}", a.label, " ".join(f"a{n:02}" for n in a.inputs) or "-",
                " ".join(f"a{n:02}-{back}" for n, back in a.credits) or "-", _regsts(self, a),
                ms(a.each) if a.each else "", a.state,
            ]
            for a in self.actors
        ]  # fmt: skip
        columns = [
            Column("actor", style="id"), Column("", grow=True), Column("regsts of", style="const"),
            Column("credits of", style="credit"), Column("free", drop=3),
            Column("ms", right=True, drop=2), Column("waited for", grow=True, drop=1),
        ]  # fmt: skip
        cells = table(*_used(columns, rows), width - art - 2, indent=0)
        screen.lines.append([(" " * (art + 2), ""), *cells[0]])
        for line, row in zip(drawn, cells[1:], strict=True):
            pad = " " * (art - sum(len(text) for text, _ in line) + 1)
            screen.lines.append([(" ", ""), *line, (pad, ""), *row])
        screen.add((" ◆ busiest  a02-1: of the launch before   p.plan().save('plan.svg')", "head"))
        return screen.cut(width)

    def screen(self, width: int) -> Screen:
        """See View."""
        screen = Screen()
        parts = [
            f"{len(self.tasks)} tasks",
            f"{len(self.actors)} actors on {len(self.streams)} streams"
            if self.actors
            else "one actor, one stream",
            f"{self.registers} registers" + (f" ×{self.regst_num}" if self.actors else ""),
            f"chunk {size(self.chunk)}",
        ]
        screen.add((f" Plan {self.name}", "verdict"), f"  {' · '.join(parts)}")
        if self.launches:
            screen.add(
                (" replays", "verdict"),
                f"  {self.launches:,} · {ms(self.each)} ms each"
                + (", several in flight" if self.actors and self.regst_num > 1 else "")
                + (f", {percent(self.between)} between tasks" if not self.actors else ""),
            )
        screen.lines += self._actors(width) if self.actors else self._tasks(width)
        screen.lines += advised(self.notes, width)
        return screen.fitted(width)

    def line(self) -> str:
        """Return the activity of the Plan in one line, for a log."""
        does = [f"a{a.number:02} {a.acts:,} {a.state}".rstrip() for a in self.actors]
        return f"Plan {self.name}  " + (" · ".join(does) or f"{len(self.tasks)} tasks")

    def _actors(self, width: int) -> list[list[tuple[str, str]]]:
        rows = []
        for a in self.actors:
            waits = " ".join(f"a{n:02}" for n in a.inputs)
            credits = " ".join(f"a{k:02}" + (f"-{n}" if n > 1 else "") for k, n in a.credits)
            style = {"A": "good", "W": "dep", "C": "credit", "c": "credit"}.get(a.state[:1], "")
            free = f"{self.regst_num if a.free is None else a.free}/{self.regst_num}"
            rows.append([
                f"a{a.number:02}", a.label, a.stream, f"{a.tasks}", waits or "-", credits or "-",
                free if a.free is not None else "", f"{a.acts:,}" if a.acts else "",
                ms(a.each) if a.each else "", (bar(a.busy, 6), "run"),
                percent(a.busy) if a.each else "", (a.state, style),
            ])  # fmt: skip
        columns = [
            Column("actor", style="id"), Column("", grow=True), Column("stream", drop=2),
            Column("tasks", right=True, drop=6), Column("inputs", drop=3),
            Column("credits", style="credit", drop=4), Column("free/num", right=True, drop=5),
            Column("acts", right=True, drop=1), Column("ms", right=True), Column("", drop=7),
            Column("busy", right=True),
            Column("waited for" if self.launches else "state", grow=True),
        ]  # fmt: skip
        return table(*_used(columns, rows), width)

    def _tasks(self, width: int) -> list[list[tuple[str, str]]]:
        most = sorted(self.tasks, key=lambda t: (-t.share, t.number))[:MOST_ROWS]
        shown = sorted(most, key=lambda t: t.number)
        rows = [
            [
                f"{t.number}", t.op + (f" ×{t.repeat}" if t.repeat > 1 else ""), t.reads, t.writes,
                f"{t.count:,}" if t.count else "", ms(t.each) if t.each else "",
                f"{t.share:.1%}" if t.count else "", (bar(t.share, 6), "run"),
                rate(t.gigabytes) if t.count else "", rate(t.gigaflops) if t.gigaflops else "",
                t.module, t.line,
            ]
            for t in shown
        ]  # fmt: skip
        columns = [
            Column("task", right=True, style="id"), Column("op", grow=True),
            Column("reads", style="const", grow=True), Column("writes", style="mut", grow=True),
            Column("n", right=True, drop=5), Column("ms", right=True), Column("share", right=True),
            Column("", drop=6), Column("GB/s", right=True, drop=3),
            Column("GFLOP/s", right=True, drop=2), Column("module", drop=1, grow=True),
            Column("line", style="line", grow=True, where=True),
        ]  # fmt: skip
        lines = table(*_used(columns, rows), width)
        if len(self.tasks) > len(shown):
            lines.append([(f"   and {len(self.tasks) - len(shown)} more tasks", "head")])
        return lines


def _took(each: float) -> str:
    return f"{ms(each)} ms  " if each else ""


def _regsts(view: PlanView, a: ActorRow) -> str:
    """Return the number of an actor's registers, and of the free ones where it is known."""
    return f"{a.free}/{view.regst_num} regsts" if a.free is not None else f"{view.regst_num} regsts"


def _used(columns: list[Column], rows: list[Any]) -> tuple[list[Column], list[Any]]:
    """Without the columns in which no row says anything."""

    def says(cell: object) -> bool:
        return bool(cell[0] if isinstance(cell, tuple) else cell)

    used = [k for k in range(len(columns)) if any(says(row[k]) for row in rows)]
    return [columns[k] for k in used], [[row[k] for k in used] for row in rows]


def label(names: list[str]) -> str:
    """Return the name of a chain of tasks: its first and its last."""
    if len(names) <= 1:
        return names[0] if names else ""
    return f"{names[0]} … {names[-1]}"
