"""The timeline: a lane for Python, the scheduler and every stream, and why lanes stood still.

A column of a lane shows the cause that had most of its time; red is what lay on the observed path.
Below stand the longest gaps, each with what was waited for.
"""

from __future__ import annotations

import itertools
import textwrap
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from flowvm.errors import ArgumentError
from flowvm.meta.arrays import Array
from flowvm.profiler.analysis.host_time import HOSTED, text_of
from flowvm.profiler.analysis.host_time import inside as inside_of
from flowvm.profiler.analysis.shares import helper_lanes
from flowvm.profiler.analysis.waits import STATES
from flowvm.profiler.grammar import ACCESS, CAUSES, Line, Screen, View, counted, ms, padded, percent
from flowvm.profiler.run.columns import CAUSES as HOST_CAUSES
from flowvm.profiler.run.devices import said_of
from flowvm.profiler.run.run import Run
from flowvm.profiler.views.summary.facts import ProfileLike
from flowvm.profiler.views.summary.verdict import WORDS
from flowvm.vm.machine.edges import HAZARDS

if TYPE_CHECKING:
    from flowvm.profiler.analysis.paths import Segment
    from flowvm.profiler.analysis.waits import Lane


NAME = 16  # columns of a lane's name
LEAST = 12  # columns of time
MOST_GAPS = 8
MOST_HELPERS = 8  # lanes of a stream's helpers


@dataclass(frozen=True)
class LaneCells:
    """One lane: for each column a name of CAUSES or "" and whether it is critical; share busy."""

    name: str
    cells: tuple[tuple[str, bool], ...]
    busy: float


@dataclass(frozen=True)
class Gap:
    """A lane stood still from `begin` to `end` (ns from the start of the run)."""

    lane: str
    begin: int
    end: int
    cause: str
    text: str


@dataclass(frozen=True, repr=False)
class Timeline(View):
    """See the module."""

    title: str
    begin: int  # ns from the start of the run
    end: int
    lanes: tuple[LaneCells, ...]
    marks: tuple[tuple[int, str], ...]  # column, text
    gaps: tuple[Gap, ...]
    threshold: int
    devices: str = ""  # what times of devices are, where there are any

    def screen(self, width: int) -> Screen:
        """See View."""
        screen = Screen()
        cell_count = len(self.lanes[0].cells) if self.lanes else 1
        columns = min(cell_count, max(LEAST, width - NAME - 8))
        per = (self.end - self.begin) / columns
        shown = dict.fromkeys(c for lane in self.lanes for c, _ in lane.cells if c)
        legend = [(f"  {CAUSES[c][0]} {c}", CAUSES[c][1]) for c in CAUSES if c in shown]
        screen.add((f" {self.title}", "verdict"), (f" · 1 column = {ms(per)} ms", "head"))
        screen.add(" ", *legend, ("  red: on the observed path", "critical"))
        screen.add(" " * (NAME + 1), (_axis(self.begin, self.end, columns), "head"))
        for lane in self.lanes:
            spans = [(f" {padded(lane.name, NAME - 1)} ", "")]
            for cause, critical in _merged(lane.cells, columns):
                glyph, style, _ = CAUSES.get(cause, (" ", "", ""))
                spans.append((glyph, "critical" if critical and cause == "run" else style))
            screen.lines.append([*spans, (f"{percent(lane.busy):>6}", "head")])
        if self.marks:
            row = [" "] * (columns + 8)
            for at, text in self.marks:
                column = at * columns // cell_count
                if column + len(text) > columns:  # the arrow behind what it says
                    text = text[1:] + text[0]
                    column -= len(text) - 1
                row[max(0, column) : max(0, column) + len(text)] = list(text)
            screen.add(" " * (NAME + 1) + "".join(row).rstrip())
        if self.gaps:
            screen.add((f" gaps over {ms(self.threshold)} ms", "head"))
        for gap in self.gaps:
            times = f"   {ms(gap.begin)}–{ms(gap.end)}"
            cause = CAUSES[gap.cause][1]
            text = f"{gap.lane}: {gap.text}"
            head: Line = [(padded(times, 20), ""), (padded(gap.cause, 8), cause)]
            indent = 28 if width >= 70 else 6  # it names a line: below, where there is no room
            parts = textwrap.wrap(text, width - indent, break_on_hyphens=False)
            if indent == 6:
                screen.lines.append(head)
                head = [(" " * indent, "")]
            for part in parts:
                screen.lines.append([*head, (part, "")])
                head = [(" " * indent, "")]
        if self.devices:
            screen.add((f" devices: times {self.devices}", "head"))
        return screen.cut(width)


def _merged(cells: tuple[tuple[str, bool], ...], columns: int) -> list[tuple[str, bool]]:
    """The cells in fewer columns: of those that fall together what most of them show."""
    borders = [k * len(cells) // columns for k in range(columns + 1)]
    together = (cells[a:b] for a, b in itertools.pairwise(borders))
    return [max(own, key=own.count) for own in together]


def timeline(
    profile: ProfileLike,
    t: tuple[float, float] | None = None,
    lanes: list[str] | None = None,
    follow: int | None = None,
    width: int = 100,
) -> Timeline:
    """The timeline of a Profile.

    t       milliseconds from the start, by default the whole run
    lanes   names of the streams to show; "python" and "scheduler" are lanes too
    follow  the number of an instruction to mark
    ArgumentError: no such lane, instruction or time.
    """
    run: Run = profile.run
    begin, end = _window(run, t)
    columns = max(LEAST, width - NAME - 8)
    borders = np.linspace(begin, end, columns + 1)
    tracks = [_path(profile.observed, borders), _python(run, borders), _scheduler(run, borders)]
    critical = [s for s in profile.observed if s.cause == "run"]
    for lane in profile.lanes:
        own = [s for s in critical if run.stream[s.instruction] == lane.stream]
        tracks.append(_stream(run, lane, own, borders))
        tracks += _helpers(run, lane.stream, borders)
    tracks += _tasks(run, borders)
    if lanes is not None:
        names = [lane.name for lane in tracks]
        missing = [name for name in lanes if name not in names]
        if missing:
            raise ArgumentError(f"no lane {missing[0]!r} in this run; there are {', '.join(names)}")
        tracks = [lane for lane in tracks if lane.name in lanes]
    marks: tuple[tuple[int, str], ...] = ()
    if follow is not None:
        at = run.index(follow)
        column = int(np.searchsorted(borders, run.time("started")[at], side="right")) - 1
        if 0 <= column < columns:
            marks = ((column, f"▲#{follow} {run.names[run.op[at]]}"),)
    threshold = max(1, (end - begin) // 40)
    shown = {lane.name for lane in tracks}
    gaps = [g for g in _gaps(profile, begin, end, threshold) if g.lane in shown]
    return Timeline(
        f"{counted(len(run), 'instruction')} · {ms(end - begin)} ms",
        int(begin - run.begun),
        int(end - run.begun),
        tuple(tracks),
        marks,
        tuple(sorted(sorted(_joined(gaps), key=lambda g: g.begin - g.end)[:MOST_GAPS], key=_begin)),
        int(threshold),
        said_of(run),
    )


def _joined(gaps: list[Gap]) -> list[Gap]:
    """Gaps of several lanes at one time and for one reason, such as Python's, as one."""
    merged: list[Gap] = []
    for gap in sorted(gaps, key=lambda g: g.begin - g.end):
        for k, one in enumerate(merged):
            both = min(one.end, gap.end) - max(one.begin, gap.begin)
            if one.text == gap.text and 10 * both >= 9 * (gap.end - gap.begin):
                if gap.lane not in one.lane.split(", "):
                    merged[k] = replace(one, lane=f"{one.lane}, {gap.lane}")
                break
        else:
            merged.append(gap)
    return merged


def _begin(gap: Gap) -> int:
    return gap.begin


def _window(run: Run, t: tuple[float, float] | None) -> tuple[int, int]:
    if t is None:
        return run.begun, max(run.ended, run.begun + 1)
    begin, end = (run.begun + int(1e6 * x) for x in t)
    if not run.begun <= begin < min(end, run.ended):
        raise ArgumentError(
            f"t={t!r}: two times in ms from the start of the run, which lasts {ms(run.wall)}"
        )
    return begin, min(end, run.ended)


def _axis(begin: int, end: int, columns: int) -> str:
    """Times in ms under a tick every so many columns."""
    row = [" "] * (columns + 8)
    for column in range(0, columns, max(12, columns // 6)):
        text = ms(begin + (end - begin) * column / columns)
        if column + len(text) <= columns:
            row[column : column + len(text)] = list(text)
    row[columns : columns + 3] = list(" ms")
    return "".join(row).rstrip()


def _inside(begun: Array, ended: Array, borders: Array) -> Array:
    """Time of disjoint sorted intervals in each column."""
    if not len(begun):
        return np.zeros(len(borders) - 1)
    points = np.column_stack((begun, ended)).ravel().astype(float)
    work = np.cumsum(ended - begun)
    values = np.column_stack((work - (ended - begun), work)).ravel().astype(float)
    inside: Array = np.diff(np.interp(borders, points, values))
    return inside


def _cells(times: dict[str, Array], critical: Array | None = None) -> list[tuple[str, bool]]:
    names = list(times)
    table = np.vstack([times[name] for name in names])
    largest = table.argmax(axis=0)
    some = table.max(axis=0) > 0
    red = (
        np.zeros(len(largest), bool)
        if critical is None
        else critical * 2 > table[largest, range(len(largest))]
    )
    return [(names[k] if s else "", bool(r)) for k, s, r in zip(largest, some, red, strict=True)]


def _path(path: list[Segment], borders: Array) -> LaneCells:
    """Return the cells of the observed path; busy is the share of it in which something ran."""
    times = {}
    for cause in CAUSES:
        own = [(s.begin, s.end) for s in path if s.cause == cause]
        begun, ended = np.array(own, np.int64).reshape(-1, 2).T
        times[cause] = _inside(begun, ended, borders)
    busy = float(times["run"].sum() / max(1.0, np.diff(borders).sum()))
    return LaneCells("observed path", tuple(_cells(times, times["run"])), busy)


def _tasks(run: Run, borders: Array) -> list[LaneCells]:
    """Return the cells of graphs' tasks that ran on other streams than that of their launch."""
    spans = []
    away = run.tasks.stream != run.stream[run.tasks.launch]
    for stream in np.unique(run.tasks.stream[away]).tolist():
        own = run.tasks.times[away & (run.tasks.stream == stream)]
        own = own[np.argsort(own[:, 0], kind="stable")]
        ran = _inside(own[:, 0], own[:, 1], borders)
        busy = float(ran.sum() / max(1.0, np.diff(borders).sum()))
        name = f"{run.streams[stream]} tasks"
        spans.append(LaneCells(name, tuple(_cells({"run": ran})), busy))
    return spans


def _python(run: Run, borders: Array) -> LaneCells:
    """Return the cells of the issuing threads: all time without a wait is Python's."""
    times = {}
    waited = np.zeros(len(borders) - 1)
    for k, cause in enumerate(HOST_CAUSES):
        own = run.waits.times[run.waits.cause == k]
        own = own[np.argsort(own[:, 0], kind="stable")]
        over = np.maximum.accumulate(own[:, 1]) if len(own) else own[:, 1]
        begun = (
            np.maximum(own[:, 0], np.concatenate(([run.begun], over[:-1])))
            if len(own)
            else own[:, 0]
        )
        real = over > begun
        times[cause] = _inside(begun[real], over[real], borders)
        waited += times[cause]
    width = np.diff(borders)
    times["run"] = np.maximum(0, width - waited)
    busy = float(times["run"].sum() / max(1.0, width.sum()))
    return LaneCells("python", tuple(_cells(times)), busy)


def _scheduler(run: Run, borders: Array) -> LaneCells:
    """Columns in which the scheduler took, dispatched or released something."""
    moments = np.concatenate([run.time(n) for n in ("received", "dispatched", "released")])
    counts, _ = np.histogram(moments[moments > 0], borders)
    cells = tuple(("sched" if n else "", False) for n in counts)
    return LaneCells("scheduler", cells, float((counts > 0).mean()))


def _stream(run: Run, lane: Lane, critical: list[Segment], borders: Array) -> LaneCells:
    times = {}
    for k, name in enumerate(STATES):
        own = lane.state == k
        times[name] = _inside(lane.begin[own], lane.end[own], borders)
    red = np.array([(s.begin, s.end) for s in critical], np.int64).reshape(-1, 2)
    on_path = _inside(red[:, 0], red[:, 1], borders)
    busy = float(times["run"].sum() / max(1.0, np.diff(borders).sum()))
    return LaneCells(run.streams[lane.stream], tuple(_cells(times, on_path)), busy)


def _helpers(run: Run, stream: int, borders: Array) -> list[LaneCells]:
    """Return the cells of a stream's first helpers, where they were recorded."""
    spans = []
    for name, own in helper_lanes(run, stream)[:MOST_HELPERS]:
        times = {"run": _inside(own[:, 0], own[:, 1], borders)}
        busy = float(times["run"].sum() / max(1.0, np.diff(borders).sum()))
        spans.append(LaneCells(name, tuple(_cells(times)), busy))
    return spans


def waited_for(run: Run, source: int, target: int) -> str:
    """Describe the wait of `target` for `source`: operand, access, producer and hazard."""
    edges = np.flatnonzero((run.source == source) & (run.target == target))
    producer = f"#{run.seq[source]} {run.names[run.op[source]]}"
    if not len(edges):
        return producer
    edge = int(edges[0])
    flat = int(run.operand[edge])
    own = flat - int(run.offsets[target])
    line, _, access = ACCESS[int(run.access[flat]) & 3]
    hazard = HAZARDS[run.hazard[edge]]
    return f"t{run.tensor[flat]} ({access} #{own}) ◄{line[0]} {producer} ({hazard})"


def _gaps(profile: ProfileLike, begin: int, end: int, threshold: int) -> list[Gap]:
    run, before = profile.run, profile.order
    spans = []
    for lane in profile.lanes:
        name = run.streams[lane.stream]
        long = np.flatnonzero(
            (lane.state != STATES.index("run")) & (lane.end - lane.begin >= threshold)
            & (lane.end > begin) & (lane.begin < end)
        )  # fmt: skip
        for k in long.tolist():
            cause, i = STATES[lane.state[k]], int(lane.instruction[k])
            b, e = int(lane.begin[k]), int(lane.end[k])
            if cause == "host":
                cause, text = _host_gap(run, lane, k, b, e)
            elif cause == "dep":
                what = waited_for(run, int(before.producer[i]), i)
                text = f"#{run.seq[i]} {run.names[run.op[i]]} waited for {what}"
            else:
                text = f"#{run.seq[i]} {run.names[run.op[i]]} was ready and not started"
            spans.append(Gap(name, b - run.begun, e - run.begun, cause, text))
    return spans


def _host_gap(run: Run, lane: Lane, k: int, begin: int, end: int) -> tuple[str, str]:
    """The cause of a gap in which nothing was issued, and where Python was."""
    best, cause = (end - begin) // 2, "host"
    for number, name in enumerate(HOST_CAUSES):
        own = run.waits.times[run.waits.cause == number]
        inside = np.clip(np.minimum(own[:, 1], end) - np.maximum(own[:, 0], begin), 0, None).sum()
        if inside > best:
            best, cause = int(inside), name
    states = inside_of(run, begin, end)
    if cause in HOSTED and states:
        first = states[0]
        share = percent(first.time / sum(one.time for one in states))
        where = text_of(run, first.line, first.spot)
        return cause, f"{where or 'Python'} had {share} of it: {WORDS[first.state][2]}"
    later = lane.instruction[k + 1 :]
    later = later[later >= 0]
    where = run.lines[run.line[later[0]]] if len(later) else ""
    reasons = {"host": "nothing was issued", "jit": "a kernel was compiled or loaded"}
    text = reasons.get(cause, CAUSES[cause][2])
    return cause, f"{text}; Python went on to {where}" if where else text
