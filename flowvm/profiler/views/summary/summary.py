"""The summary screen: a verdict first, then a table, then what to do next.

`summarize` makes the view, plain values that tests and scripts can read; `Summary.screen` lays it
out for 80 to 160 columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from flowvm.errors import Status
from flowvm.profiler.analysis.bounds import bounded, crowded, short_of_memory
from flowvm.profiler.analysis.contention import cores_of, machine
from flowvm.profiler.analysis.tables import BY, STEP, Row
from flowvm.profiler.grammar import (
    CAUSES,
    Column,
    Line,
    Screen,
    Span,
    View,
    advised,
    bar,
    counted,
    flowed,
    headed,
    ms,
    percent,
    rate,
    size,
    table,
)
from flowvm.profiler.run.devices import said_of
from flowvm.profiler.run.roof import of_run
from flowvm.profiler.run.run import Run
from flowvm.profiler.views.summary.advice import LITTLE, advice
from flowvm.profiler.views.summary.facts import Facts, Summed, roof_share
from flowvm.profiler.views.summary.verdict import WORDS, Part, mostly, parts
from flowvm.vm.machine.words import INS, KIND

MOST = 12  # rows shown
SHOWN = 0.0005  # of the wall time: a row below says 0.0 %
# what no operator has, but a line
LINES = ("python", "asleep", "loader", "capture", "import", "gil")
MINE = 0.005  # shares below are not worth a word
SORTS = (
    "path", "run", "host", "count", "dep", "sched", "gigabytes", "gigaflops", "roof",
    "name", "hottest",
)  # fmt: skip
# what rows without a name are: flowvm's own, as that of a tensor's release
NAMELESS = {"line": "(flowvm)", "module": "(no module)"}


@dataclass(frozen=True)
class Steps:
    """Spans named "step": how many, and nanoseconds from when all that one issued had run to when
    all of the next had; of the first, from its begin.
    """

    count: int
    median: float
    least: int
    most: int


@dataclass(frozen=True, repr=False)
class Summary(View):
    """The data of the summary screen.  Times are nanoseconds, shares are of the wall time.

    `recording` is what the recorder took at most, none if it is not known (`costs.recording`).
    `bound` are the causes on the observed path, largest first, `parts` the same with the host's
    time told apart, and `mostly` says where most of the first of them was; `rows` the first of `of`
    lines of the table `by`, with `code` the text of their hottest lines, and `roof` their shares of
    the roofline, none if it was never measured; `advice` what to do next, each with something to
    type.
    """

    instructions: int
    overwritten: int
    lost: int  # ns of the block before the first instruction that is remembered
    raised: str  # the name of what the block was left by, "" if it came to its end
    failed: tuple[str, ...]  # instructions that failed, each with its line
    poisoned: int  # those that could not run for want of what failed
    wall: int
    level: int
    recording: float | None
    steps: Steps | None
    bound: tuple[tuple[str, float], ...]
    floor: int
    host: int
    by: str
    rows: tuple[Row, ...]
    code: tuple[str, ...]
    roof: tuple[float, ...]
    of: int
    advice: tuple[str, ...]
    devices: str = ""  # what times of devices are, where there are any
    parts: tuple[Part, ...] = ()
    mostly: str = ""
    streams: str = ""  # which stood still while another had work for it
    memory: str = ""  # what waited for memory in flight
    machine: str = ""  # what other processes had of it
    cores: int = 0  # that the process could use, 0: not known
    best: int = 0  # the floor on these

    def screen(self, width: int) -> Screen:
        """See View."""
        screen = Screen()
        if not self.instructions:
            ending = f": {self.raised} left the block" if self.raised else ""
            screen.add(("flow.profiler", "verdict"), f"  nothing was recorded{ending}")
            return screen
        screen.lines += self._verdict(width)
        if self.rows:
            screen.lines += self._table(width)
            if self.of > len(self.rows):
                more = f"p.table({self.by!r}) has all" if self.by != "op" else "p.table() has all"
                screen.add((f" {self.of - len(self.rows)} more: {more}", "head"))
        screen.lines += advised(self.advice, width)
        return screen.fitted(width)

    def _verdict(self, width: int) -> list[Line]:
        """The lines above the table; what does not fit is left out, the last first."""
        lost = f" ({self.overwritten:,} before them are forgotten)" if self.overwritten else ""
        known = [f"{counted(self.instructions, 'instruction')}{lost}", f"wall {ms(self.wall)} ms"]
        head = _fitting([[*known, *rest] for rest in self._about()], width - 15)
        causes: list[Span] = []
        for k, part in enumerate(p for p in self.parts if p.share >= MINE):
            name = WORDS[part.cause][0 if k else 1]
            style = CAUSES.get(part.cause, CAUSES["host"])[1] if k else "critical"
            causes.append((f"{name} {percent(part.share)}", style))
        causes.append(("[observed path, sums to wall]", "head"))
        parts = [self.fastest, f"host on the path {ms(self.host)} ms"]
        bound = flowed(causes, width - 11, indent="")
        times = f"times {self.devices}" if self.devices else ""
        return [
            [("flow.profiler", "verdict"), (f"  {head}", "")],
            *self.wrong(width),
            *([(" " * 11 if k else "bound by   ", "head"), *line] for k, line in enumerate(bound)),
            *(line for name, text in self.facts for line in headed(name, text, width)),
            *headed("floor", " · ".join(parts), width),
            *headed("devices", times, width),
        ]

    @property
    def fastest(self) -> str:
        """Words for the least time that the run could have taken."""
        by = f"on {counted(self.cores, 'core')}" if self.cores else "by data alone"
        headroom = f" ({self.wall / self.best:.1f}x headroom)" if self.best else ""
        return f"{ms(self.best)} ms {by}, if Python took no time{headroom}"

    @property
    def facts(self) -> tuple[tuple[str, str], ...]:
        """Names and texts of the lines below the shares; "" where there is nothing to say."""
        return (
            ("mostly", self.mostly), ("streams", self.streams), ("memory", self.memory),
            ("machine", self.machine),
        )  # fmt: skip

    def wrong(self, width: int) -> list[Line]:
        """Return the lines on failures, on the way the block was left, and on missing parts of
        it.
        """
        lines: list[Line] = []
        if self.lost:
            text = f"of {ms(self.lost + self.wall)} ms the last {ms(self.wall)} ms are remembered"
            lines.append([("recorder   ", "head"), (text, "")])
        if self.raised:
            lines.append([("left by    ", "head"), (self.raised, "bad")])
        if self.failed:
            more = [f"{len(self.failed) - 2} more"] if len(self.failed) > 2 else []
            more += [f"{self.poisoned:,} did not run for want of it"] if self.poisoned else []
            notes = [*self.failed[:2], *more, "flow.errors()"]
            lines.append([("failed     ", "head"), (_joined(notes, width - 11), "bad")])
        return lines

    def _about(self) -> list[list[str]]:
        """Steps and recorder in ever fewer words."""
        steps = [list[str]()]
        if self.steps is not None and self.steps.count > 1:
            s = self.steps
            short = f"{s.count:,} steps of {ms(s.median)} ms"
            steps = [[f"{short} ({ms(s.least)} to {ms(s.most)})"], [short], []]
        level = [f"recorder level {self.level}"]
        if self.recording is None:
            cost = [f"{level[0]}, overhead not measured yet"]
            return [[*steps[0], *cost], *([*some, *level] for some in steps), []]
        cost = [f"recorder overhead {percent(self.recording)}"]
        return [
            [*steps[0], f"{cost[0]} at level {self.level}"],
            *([*some, *cost] for some in steps),
        ]

    def _table(self, width: int) -> list[Line]:
        rows: list[list[str | Span]] = []
        for k, r in enumerate(self.rows):
            share = r.path / self.wall if self.wall else 0.0
            roof = self.roof[k] if self.roof else 0.0
            rows.append([
                r.name or NAMELESS.get(self.by, "-"), f"{r.count:,}", ms(r.run), f"{share:.1%}",
                (bar(share, 5), "run"),
                ms(r.dep), ms(r.sched),
                ms(r.host) if r.host else "-",
                rate(r.gigabytes) if r.nbytes else "-", rate(r.gigaflops) if r.flops else "-",
                percent(roof) if roof else "-", r.hottest or "-", self.code[k],
            ])  # fmt: skip
        columns = [
            Column(self.by, grow=True, least=18, where=self.by == "line"),
            Column("n", right=True, drop=1),
            Column("run ms", right=True),
            Column("on path", right=True), Column(""),
            Column("dep ms", right=True, drop=2), Column("sched ms", right=True, drop=2),
            Column("host ms", right=True),
            Column("GB/s", right=True, drop=5),
            Column("GFLOP/s", right=True, drop=4), Column("roof", right=True, drop=3),
            Column("hottest line", style="line", grow=True, where=True),
            Column("code", style="line", grow=True, least=16, spare=self.by != "line"),
        ]  # fmt: skip
        is_shown = {
            "roof": self.roof,
            "host ms": any(r.host for r in self.rows),
            "hottest line": self.by != "line",
            "code": any(self.code),
        }
        shown = [k for k, column in enumerate(columns) if is_shown.get(column.title, True)]
        return table([columns[k] for k in shown], [[row[k] for k in shown] for row in rows], width)

    def to_dict(self) -> dict[str, Any]:
        """See View; rows have their rates, and the share of the roofline where it is known."""
        fields = super().to_dict()
        for k, (row, r) in enumerate(zip(fields["rows"], self.rows, strict=True)):
            row |= {"gigabytes": r.gigabytes, "gigaflops": r.gigaflops}
            if self.roof:
                row["roof"] = self.roof[k]
        return fields


def _fitting(lines: list[list[str]], width: int) -> str:
    """The first of the lines that fits, or what of the last one does."""
    return next((x for x in map(" · ".join, lines) if len(x) <= width), _joined(lines[-1], width))


def _joined(parts: list[str], width: int) -> str:
    """As many of the parts as fit, at least one."""
    while len(parts) > 1 and len(" · ".join(parts)) > width:
        parts = parts[:-1]
    return " · ".join(parts)


def summarize(p: Summed, by: str = "", sort: str = SORTS[0]) -> Summary:
    """The summary of a profile; `by` default that which has what came first.  ArgumentError if
    there is no table `by`.
    """
    shares = parts(p)
    if not by:
        by = "line" if shares and shares[0].cause in LINES and shares[0].line else BY[0]
    rows, roof = p.table(by), of_run(p.run)
    if sort in ("name", "hottest"):
        rows.sort(key=lambda r: (getattr(r, sort), r.name))
    elif sort == "roof":
        rows.sort(key=lambda r: (-roof_share(roof, r), r.name))
    elif sort != SORTS[0]:
        rows.sort(key=lambda r: (-getattr(r, sort), r.name))
    bound = tuple((c, s) for c, s in p.bound.items() if s >= MINE)
    worth = [r for r in rows if max(r.path, r.host) >= SHOWN * p.run.wall] or rows
    shown = tuple((worth if sort == SORTS[0] else rows)[:MOST])
    sources = p.run.info.get("sources", {})
    return Summary(
        instructions=len(p),
        overwritten=int(p.run.info.get("overwritten", 0)),
        lost=int(p.run.info.get("lost", 0)),
        raised=str(p.run.info.get("raised", "")),
        failed=tuple(_failed(p.run)),
        poisoned=int((p.run.status == INS.POISONED).sum()),
        wall=p.run.wall,
        level=int(p.run.info.get("level", 0)),
        recording=p.recording,
        steps=_steps(p.run),
        bound=bound,
        floor=p.floor.length,
        host=round(p.bound["host"] * p.run.wall),
        by=by,
        rows=shown,
        code=tuple(sources.get(r.hottest, "") for r in shown),
        roof=() if roof is None else tuple(roof_share(roof, r) for r in shown),
        of=len(rows),
        advice=tuple(advice(Facts(p, by, shares, rows, roof))) if bound else (),
        devices=said_of(p.run),
        parts=tuple(shares),
        mostly=mostly(p.run, shares[0]) if shares else "",
        streams=_uneven(p),
        memory=_short(p),
        machine=machine(p.run),
        cores=cores_of(p.run),
        best=bounded(p.run, p.floor.length),
    )


def _uneven(p: Summed) -> str:
    crowd = crowded(p.run, p.lanes, p.floor.length)
    if crowd is None:
        return ""
    text = (
        f"{crowd.idle} was idle {percent(crowd.share)}; {crowd.many} independent {crowd.op} "
        f"({crowd.line}) on {crowd.stream}"
    )
    brings = p.run.wall - crowd.best >= LITTLE * p.run.wall
    return text if brings else f"{text}, which used all cores: moving them brings nothing"


def _short(p: Summed) -> str:
    shortage = short_of_memory(p.run)
    if not shortage.times or shortage.time < LITTLE * p.run.wall:
        return ""
    share, most = percent(shortage.time / p.run.wall), size(p.run.info.get("run_ahead_bytes", 0))
    return (
        f"{shortage.line} waited {shortage.times:,}x for memory in flight, in {share} of the time: "
        f"run_ahead_bytes is {most}"
    )


def _failed(run: Run) -> Iterator[str]:
    fine = (0, INS.POISONED, Status.CAPTURED)  # what was captured computes nothing, and is no error
    for i in np.flatnonzero(~np.isin(run.status, fine)).tolist():
        yield f"#{run.seq[i]} {run.names[run.op[i]]} {run.lines[run.line[i]]}".rstrip()


def _steps(run: Run) -> Steps | None:
    """The spans named "step" that began in the run."""
    spans = sorted(m[1:] for m in run.marks if m[0] == STEP and m[1] >= run.begun)
    if not spans:
        return None
    ended = np.where(run.kind == KIND.RELEASE, 0, run.time("ended"))  # a release holds nobody up
    over = [int(ended[first:last].max(initial=0)) or until for _, until, _, first, last in spans]
    lasted = np.diff(np.maximum.accumulate([spans[0][0], *over]))
    return Steps(len(spans), float(np.median(lasted)), int(lasted.min()), int(lasted.max()))
