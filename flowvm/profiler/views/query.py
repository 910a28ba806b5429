"""Asking a run: which instructions are such and such, in a line of Python's own syntax.

    p.query("op == 'matmul' and wait.dep > 0.1")
    p.query("'train.py:4' in line and critical")
    p.query("stream == 'h2d' and bytes / 2**20 > 4 or status != 0")

An expression is parsed by Python and evaluated here, over whole columns: comparisons, and, or, not,
in, arithmetic, numbers, strings, and the names of COLUMNS.  Nothing else is there, so an expression
cannot call or reach anything.  The tasks of graphs' replays are rows too, with `task` at 0 or more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from flowvm.errors import ArgumentError
from flowvm.meta.arrays import Array
from flowvm.profiler.analysis.expressions import true_of
from flowvm.profiler.analysis.tables import BY
from flowvm.profiler.grammar import Column, Screen, View, counted, cropped, ms, rate, size, table
from flowvm.profiler.run.devices import said_of
from flowvm.profiler.run.run import Run
from flowvm.profiler.views.summary.facts import ProfileLike
from flowvm.vm.machine.words import KIND

MOST_ROWS = 20

# name -> what it is; times are milliseconds
COLUMNS: dict[str, str] = {
    "seq": "its number in the VM",
    "task": "number of the task in a graph's Plan, -1 for an instruction",
    "op": "operator",
    "kind": "op, release, wait, barrier, callback, launch or task",
    "line": "the user's line, file.py:12",
    "module": "path of the module: Net.layers.0",
    "forward": "of what backward issued, the line of the forward call",
    "stream": "name of the stream",
    "run": "how long it ran",
    "wait": "from its issue to its start",
    "wait.dep": "of that, for its producers",
    "wait.queue": "of that, for what was in front in its stream",
    "wait.sched": "of that, for the VM",
    "issued": "when it was issued, from the start of the run",
    "started": "when it started",
    "ended": "when it ended",
    "bytes": "of its operands",
    "flops": "operations of products and convolutions",
    "gbs": "GB/s while it ran",
    "gflops": "GFLOP/s while it ran",
    "operands": "how many",
    "status": "0, or what its kernel returned",
    "critical": "whether it is on the observed path",
    "longest": "whether it is on the longest path through the data, which is the floor",
}
KINDS = {
    KIND.OP_CALL: "op", KIND.RELEASE: "release", KIND.BARRIER: "barrier", KIND.TOUCH: "wait",
    KIND.CALLBACK: "callback", KIND.LAUNCH: "launch", KIND.RESTORE: "restore",
}  # fmt: skip


@dataclass(frozen=True)
class Matched:
    """An instruction, or a task of the launch `seq`.  Times are nanoseconds."""

    seq: int
    task: int  # -1 for an instruction
    op: str
    stream: str
    run: int
    dep: int
    queue: int
    sched: int
    nbytes: int
    critical: bool
    line: str
    module: str

    @property
    def name(self) -> str:
        """#311, or #311.4 for a task."""
        return f"#{self.seq}" + (f".{self.task}" if self.task >= 0 else "")


@dataclass(frozen=True, repr=False)
class Query(View):
    """The instructions that an expression is true of, those that ran longest first.

    Iterates over `rows`, which are at most `limit`; `count` of `total` matched.
    """

    text: str
    rows: tuple[Matched, ...]
    count: int
    total: int
    run: int  # ns, of all that matched
    wait: int
    devices: str = ""  # what times of devices are, where there are any

    def __iter__(self) -> Iterator[Matched]:
        return iter(self.rows)

    def __len__(self) -> int:
        return self.count

    def screen(self, width: int) -> Screen:
        """See View."""
        screen = Screen()
        summary = f"{self.count:,} of {counted(self.total, 'instruction')}"
        if self.count:
            summary += f" · ran {ms(self.run)} ms · waited {ms(self.wait)} ms"
        room = width - len(summary) - 4
        screen.add(f" {summary}   ", (cropped(self.text, room) if room > 8 else "", "head"))
        if not self.rows:
            return screen.cut(width)
        where = any(row.module for row in self.rows)
        columns = [c for c in _SHOWN if where or c.title != "module"]
        screen.lines += table(columns, [_cells(row, where) for row in self.rows], width)
        hidden = self.count - len(self.rows)
        if hidden:
            screen.add((f" {hidden} more: p.query(..., limit=None)", "head"))
        if self.devices:
            screen.add((f" devices: times {self.devices}", "head"))
        return screen.cut(width)


_SHOWN = [
    Column("id", style="id"),
    Column("op", grow=True),
    Column("stream", drop=3),
    Column("run ms", right=True),
    Column("dep", right=True, drop=1),
    Column("queue", right=True, drop=1),
    Column("sched", right=True, drop=1),
    Column("bytes", right=True, drop=4),
    Column("GB/s", right=True, drop=5),
    Column("module", drop=6, grow=True),
    Column("line", style="line", grow=True, where=True),
]


def _cells(row: Matched, where: bool) -> list[Any]:
    waits = [ms(t) if t else "-" for t in (row.dep, row.queue, row.sched)]
    return [
        row.name, (row.op, "critical" if row.critical else ""), row.stream, ms(row.run), *waits,
        size(row.nbytes), rate(row.nbytes / row.run if row.run else 0),
        *([row.module] if where else []), row.line,
    ]  # fmt: skip


# --- columns ----------------------------------------------------------------------------------


class _Table:
    """The columns of a Profile by name, each made when it is asked for; tasks follow."""

    def __init__(self, profile: ProfileLike) -> None:
        self.profile, self.run = profile, profile.run
        self.count = len(self.run) + len(self.run.tasks.launch)

    def column(self, name: str) -> Array:
        run: Run = self.run
        if name in (*BY, "forward"):
            return self._texts(name)
        if name == "kind":
            names = np.array([KINDS[k] for k in run.kind.tolist()], object)
            return np.concatenate((names, np.full(len(run.tasks.launch), "task", object)))
        if name in ("issued", "started", "ended"):
            own, task = run.time(name), run.tasks.times[:, int(name == "ended")]
            at = np.concatenate((own, task))
            return np.where(at > 0, (at - run.begun) / 1e6, np.nan)
        if name.startswith("wait"):
            waits = self.profile.waits
            parts = {"wait.dep": (waits.dep,), "wait.queue": (waits.queue,),
                     "wait.sched": (waits.sched,)}  # fmt: skip
            spent = sum(parts.get(name, (waits.dep, waits.queue, waits.sched)))
            return self._both(spent, 0) / 1e6
        if name == "critical":
            on_path = {s.instruction for s in self.profile.observed if s.cause == "run"}
            return self._both(np.isin(np.arange(len(run)), list(on_path)), False)
        if name == "longest":
            return self._both(np.isin(np.arange(len(run)), self.profile.floor.path), False)
        return self._numbers(name)

    def _numbers(self, name: str) -> Array:
        run: Run = self.run
        if name == "run":
            own = np.maximum(0, run.time("ended") - run.time("started"))
            return np.concatenate((own, np.diff(run.tasks.times, axis=1)[:, 0])) / 1e6
        if name in ("gbs", "gflops"):
            of, lasted = self._numbers("bytes" if name == "gbs" else "flops"), self._numbers("run")
            return np.divide(of, lasted * 1e6, out=np.zeros(self.count), where=lasted > 0)
        pairs = {
            "seq": (run.seq, run.seq[run.tasks.launch]),
            "task": (np.full(len(run), -1), run.tasks.number),
            "bytes": (run.nbytes, run.tasks.nbytes),
            "flops": (run.flops, run.tasks.flops),
            "status": (run.status, 0),
            "operands": (np.diff(run.offsets), 0),
        }
        return self._both(*pairs[name])

    def _texts(self, name: str) -> Array:
        run: Run = self.run
        of = {
            "op": (run.op, run.tasks.op, run.names),
            "line": (run.line, run.tasks.line, run.lines),
            "module": (run.module, run.tasks.module, run.modules or [""]),
            "forward": (np.maximum(run.forward, -1), run.tasks.forward, [*run.lines, ""]),
            "stream": (run.stream, run.tasks.stream, run.streams),
        }
        own, tasks, names = of[name]
        texts: Array = np.array(names or [""], object)[np.concatenate((own, tasks))]
        return texts

    def _both(self, own: Any, tasks: object) -> Array:
        rest = np.broadcast_to(np.asarray(tasks), len(self.run.tasks.launch))
        return np.concatenate((own, rest))


def columns_of(profile: ProfileLike) -> dict[str, Array]:
    """All of COLUMNS, an element an instruction, then one for each task of graphs' replays."""
    of = _Table(profile)
    return {name: of.column(name) for name in COLUMNS}


def query(profile: ProfileLike, text: str, limit: int | None = MOST_ROWS) -> Query:
    """The instructions of a Profile that an expression is true of, those that ran longest first.

    text    see the module; COLUMNS are what it may name
    limit   rows at most, None for all
    ArgumentError: it is no such expression; a caret says where.
    """
    if not isinstance(text, str):
        raise ArgumentError(f"query({text!r}): an expression as a text, like 'run > 1'")
    if limit is not None and limit < 0:
        raise ArgumentError(f"limit={limit}: rows at most, 0 or more, or None for all")
    of = _Table(profile)
    text = text.strip()
    matched = np.flatnonzero(true_of(text, COLUMNS, of.column, of.count))
    run: Run = profile.run
    nanoseconds = {
        n: np.round(of.column(n) * 1e6).astype(np.int64)
        for n in ("run", "wait.dep", "wait.queue", "wait.sched")
    }
    ordered = matched[np.argsort(-nanoseconds["run"][matched], kind="stable")][:limit]
    names = ("seq", "task", "op", "stream", "bytes", "critical", "line", "module")
    shown = {n: of.column(n)[ordered].tolist() for n in names}
    shown |= {n: values[ordered].tolist() for n, values in nanoseconds.items()}
    rows = [
        Matched(seq, task, op, stream, ran, dep, queue, sched, nbytes, critical, line, module)
        for seq, task, op, stream, ran, dep, queue, sched, nbytes, critical, line, module in zip(
            *(shown[n] for n in ("seq", "task", "op", "stream", "run", "wait.dep", "wait.queue",
                                 "wait.sched", "bytes", "critical", "line", "module")),
            strict=True,
        )
    ]  # fmt: skip
    waited = sum(int(nanoseconds[n][matched].sum()) for n in nanoseconds if n != "run")
    # a launch's time is that of its tasks
    alone = matched[~np.isin(matched - len(run), np.flatnonzero(
        np.isin(run.tasks.launch, matched[matched < len(run)])))]  # fmt: skip
    ran = int(nanoseconds["run"][alone].sum())
    return Query(text, tuple(rows), len(matched), of.count, ran, waited, said_of(profile.run))
