"""Memory: bytes over time, what they were for, who had them at the peak, what lives on.

Parts at every moment: what is in use, by kind (`flowvm.profiler.run.kinds`); the workspace of
running instructions (a graph's chunk, too); and what code has let go of but instructions in flight
still need.  The last is no leak: a buffer is released when the last instruction that uses it is.
What a line makes again and again and nothing frees may be one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.profiler.analysis.tables import births, repeats
from flowvm.profiler.grammar import (
    Column,
    Screen,
    View,
    advised,
    bar,
    flowed,
    ms,
    percent,
    size,
    table,
)
from flowvm.profiler.run.kinds import KINDS, OTHER, held_before
from flowvm.profiler.run.run import Run
from flowvm.profiler.run.spaces import allocation_times, inside, space_named, spaces_of
from flowvm.profiler.views.memory.memory_parts import PARTS, course_of, in_words, kinds_in, together
from flowvm.profiler.views.summary.facts import ProfileLike
from flowvm.vm.watch.spaces import HOST

if TYPE_CHECKING:
    from flowvm.meta.device import DeviceLike
    from flowvm.profiler.analysis.tables import Births


ROWS = 5  # of the chart
MOST_OWNERS = 10
KEPT = 4  # repetitions from which on what lives on is suspicious
SMALL = 1024  # bytes that are not
MOST_PLACES = 200  # (operator, line) that are looked at, those with most bytes
FULL = "█"  # the glyph that has eighths
BEFORE = "before it"
_EIGHTHS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Place:
    """An operator at a line: what it had at the peak, and in the whole run.

    `made` tensors in the run, of which `kept` (`kept_bytes`) live at its end; `suspect`: each time
    that something is repeated leaves some.  `kind` is what most of it was for, `keeper` what keeps
    the kept alive.
    """

    name: str
    line: str
    nbytes: int
    count: int
    made: int
    kept: int
    kept_bytes: int
    suspect: bool
    kind: str = "other"
    keeper: str = ""


@dataclass(frozen=True, repr=False)
class MemoryView(View):
    """See the module.  Bytes, and nanoseconds from the start of the run.

    `course` has, for each of equal parts of the run, PARTS when their sum was largest; `at_peak`
    has PARTS at the peak.  `earlier` is of the `before` bytes that were there before the run what
    lives still.  `waiting` are (bytes, tensors) to be released at the peak, `waits_for` what most
    of them wait for.  It is the memory of `space`; `others` are other memories and their peaks.
    """

    wall: int
    peak: int
    peak_time: int
    during: str
    end: int
    before: int
    scratch: int
    course: tuple[tuple[int, ...], ...]
    at_peak: tuple[int, ...]
    places: tuple[Place, ...]
    earlier: tuple[Place, ...]
    of: int
    waiting: tuple[int, int]
    waits_for: str
    most_waiting: int
    advice: tuple[str, ...]
    space: str = HOST
    others: tuple[tuple[str, int], ...] = ()
    waiting_kinds: str = ""  # what was to be released at the peak was for

    def screen(self, width: int) -> Screen:
        """See View."""
        screen = Screen()
        during = f" in {self.during}" if self.during else ""
        of = f"  {self.space}" if self.others else ""
        screen.add(
            (f" memory{of}  peak {size(self.peak)}", "verdict"),
            f" at {ms(self.peak_time)} ms{during}",
            (f" · {size(self.end)} at the end", "head"),
        )
        screen.lines += flowed(((word, "") for word in in_words(self).split()), width, " ", " ")
        screen.lines += self._chart(width)
        columns = [
            Column("at the peak", right=True), Column("", drop=5), Column("n", right=True, drop=4),
            Column("kind"), Column("made by", grow=True),
            Column("line", style="line", grow=True, where=True),
            Column("kept", right=True, drop=3), Column("kept alive by", grow=True, drop=2),
            Column(""),
        ]  # fmt: skip
        screen.lines += table(columns, self._rows(), width)
        if self.of > len(self.places):
            screen.add((f"   and {self.of - len(self.places)} more", "head"))
        if self.waiting[0] > self.peak // 200:
            share = percent(self.waiting[0] / max(1, self.peak))
            screen.add(
                (f" to be released at the peak: {size(self.waiting[0])} ({share}) in "
                 f"{self.waiting[1]:,} tensors{self.waiting_kinds}", "dep"),
                f", let go of, but needed by {self.waits_for}",
            )  # fmt: skip
        if self.others:
            peaks = [f"{name} {size(peak)}" for name, peak in self.others]
            ask = f"p.memory({self.others[0][0]!r})"
            screen.add((f" other memories, at most: {', '.join(peaks)}   {ask}", "head"))
        screen.lines += advised(self.advice, width)
        return screen.fitted(width)

    def _rows(self) -> list[list[Any]]:
        """The largest first; of the run's places, only those that are known by name."""
        known = sum(p.nbytes for p in self.earlier)
        scratch = Place("what ran", "", self.scratch, 0, 0, 0, 0, False, "workspace")
        others = Place(BEFORE, "", self.before - known, 0, 0, 0, 0, False)
        more = [p for p in (*self.earlier, scratch, others) if p.nbytes > 0]
        return [
            [size(p.nbytes), (bar(p.nbytes / max(1, self.peak), 8), "run" if p.made else "head"),
             f"{p.count:,}" if p.count else "", p.kind, (p.name, "" if p.made else "head"), p.line,
             f"{p.kept:,} of {p.made:,}" if p.made else "", p.keeper,
             ("a leak?", "bad") if p.suspect else ""]
            for p in sorted((*self.places, *more), key=lambda p: -p.nbytes)
        ]  # fmt: skip

    def _chart(self, width: int) -> list[Any]:
        course = np.array(self.course, np.int64).reshape(-1, len(PARTS))
        if not len(course) or self.peak <= 0:
            return []
        columns = max(20, min(width - 12, len(course)))
        tops = np.cumsum(_coarser(course, columns), axis=1) / self.peak * ROWS
        lines = []
        for row in range(ROWS - 1, -1, -1):
            label = size(self.peak * (row + 1) / ROWS) if row % 2 == 0 else ""
            line = [(f"{label:>10}┤", "head")]
            for parts in tops.tolist():
                inside = [min(max(p - row, 0.0), 1.0) for p in parts]
                k = int(np.argmax(np.diff(inside, prepend=0.0)))  # has most of this cell
                glyph, style, _ = PARTS[k]
                filled = inside[-1]
                if filled < 1.0:
                    eighths = round(filled * 8)
                    whole = glyph == FULL or eighths == 0
                    glyph = _EIGHTHS[eighths] if whole else (glyph if filled >= 0.5 else " ")
                line.append((glyph, style))
            lines.append(line)
        legend = [
            (f"{PARTS[k][0]} {PARTS[k][2]} {size(self.at_peak[k])}", PARTS[k][1])
            for k in np.flatnonzero(course.sum(axis=0) * np.array(self.at_peak)).tolist()
        ]
        end = f"{ms(self.wall)} ms"
        axis = "0" + end.rjust(columns - 1)
        return [*lines, [(" " * 11 + axis, "head")], *flowed(legend, width)]


def _coarser(course: Array, columns: int) -> Array:
    """Reduce a course to `columns` columns: of each the moment with the largest sum."""
    places = np.arange(len(course)) * columns // len(course)
    total = course.sum(axis=1)
    order = np.lexsort((total, places))
    last = np.flatnonzero(np.append(np.diff(places[order]) > 0, True))
    sizes: Array = course[order[last]]
    return sizes


def memory_view(profile: ProfileLike, device: DeviceLike | None = None) -> MemoryView:
    """The memory of a Profile: of a device, by default the first in use, else the host.

    ArgumentError: nothing of that device is in the run.
    """
    run: Run = profile.run
    space = space_named(run, device)
    data = profile.memory_of(space)
    known = births(run, space)
    moment = data.peak_time
    at_peak = (known.born <= moment) & (known.died > moment)
    let_go = at_peak & (known.freed <= moment)
    ends = (known.died > run.ended) & (known.freed > run.ended)  # not even let go of
    chunks = repeats(run, KEPT)
    keepers = {t: (1, f"was {owner}") for t, _, owner in run.info.get("purposes", ()) if owner}
    keepers |= {row[0]: (row[1], row[3]) for row in run.info.get("held", ()) if row[3]}
    places = [
        _place(run, known, pair, at_peak, ends, chunks, data.peak, keepers)
        for pair in _pairs(known.op, known.line, known.size, at_peak | ends)
    ]
    places.sort(key=lambda p: (-p.nbytes, not p.suspect, -p.kept_bytes, p.name, p.line))
    shown = [p for k, p in enumerate(places) if (k < MOST_OWNERS and p.nbytes) or p.suspect]
    waiting = int(known.size[let_go].sum())
    course = course_of(run, data, known, space)
    view = MemoryView(
        wall=run.wall,
        peak=data.peak,
        peak_time=max(0, moment - run.begun),
        during=_during(run, moment, space),
        end=int(data.nbytes[-1]) if len(data.nbytes) else data.peak,
        before=data.before,
        scratch=data.scratch,
        course=course.parts,
        at_peak=course.at_peak,
        places=tuple(shown),
        earlier=_earlier(run, data.before, space),
        of=sum(p.nbytes > 0 or p.suspect for p in places),
        waiting=(waiting, int(let_go.sum())),
        waits_for=_waits_for(profile, known.release[let_go], known.size[let_go]),
        most_waiting=course.most_waiting,
        advice=(),
        space=space,
        waiting_kinds=kinds_in(known.kind[let_go], known.size[let_go]),
        others=tuple((s, profile.memory_of(s).peak) for s in spaces_of(run) if s != space),
    )
    object.__setattr__(view, "advice", tuple(_advice(run, view)))
    return view


def _pairs(op: Array, line: Array, nbytes: Array, chosen: Array) -> list[tuple[int, int]]:
    """(operator, line) of the chosen, those with most bytes first."""
    if not chosen.any():
        return []
    both, which = np.unique(
        np.column_stack((op[chosen], line[chosen])), axis=0, return_inverse=True
    )
    total = np.bincount(which.ravel(), nbytes[chosen])
    largest = np.argsort(-total, kind="stable")[:MOST_PLACES]
    return [(int(both[k, 0]), int(both[k, 1])) for k in largest]


def _place(
    run: Run,
    known: Births,
    pair: tuple[int, int],
    at_peak: Array,
    ends: Array,
    chunks: Array,
    peak: int,
    keepers: dict[int, tuple[int, str]],
) -> Place:
    mine = (known.op == pair[0]) & (known.line == pair[1])
    survivors = mine & ends
    count = int(survivors.sum())
    in_chunk = np.searchsorted(chunks, known.maker[survivors], side="right")
    # those of the last one, such as gradients, may go when the next one begins
    early = in_chunk < len(chunks)
    grown = int(known.size[survivors][early].sum())
    often = len(np.unique(in_chunk[early])) >= max(KEPT - 1, len(chunks) // 2)
    shown = mine & at_peak
    of = shown if shown.any() else mine
    kind = int(np.bincount(known.kind[of], known.size[of], len(KINDS)).argmax())
    who = [keepers[t] for t in known.tensor[survivors if count else of].tolist() if t in keepers]
    return Place(
        run.names[pair[0]],
        run.lines[pair[1]],
        int(known.size[shown].sum()),
        int(shown.sum()),
        int(mine.sum()),
        count,
        int(known.size[survivors].sum()),
        bool(often and grown >= max(SMALL, peak // 1000)),
        list(KINDS)[kind],
        together(who),
    )


def _earlier(run: Run, before: int, space: str) -> tuple[Place, ...]:
    """List the memory from before the run that lives at its end, by kind; at most `before`
    bytes.
    """
    held = held_before(run, space)
    rows = []
    for number, kind in enumerate(KINDS):
        mine = [(nbytes, keeper) for k, nbytes, keeper in held if k == number]
        nbytes = min(before, sum(n for n, _ in mine))
        before -= nbytes
        if nbytes and number != OTHER:
            who = together((n, keeper) for n, keeper in mine if keeper)
            rows.append(
                Place(BEFORE, "", nbytes, len(mine), 0, len(mine), nbytes, False, kind, who)
            )
    return tuple(rows)


def _during(run: Run, moment: int, space: str) -> str:
    """The instruction that took its memory at that moment, or was running."""
    started, ended = allocation_times(run), run.time("ended")
    running = np.flatnonzero((started <= moment) & (ended > moment) & inside(run, space))
    if not len(running):
        return ""
    i = int(running[np.argmax(started[running])])
    return f"#{run.seq[i]} {run.names[run.op[i]]}  {run.lines[run.line[i]]}".rstrip()


def _waits_for(profile: ProfileLike, releases: Array, nbytes: Array) -> str:
    """Name the instruction for which most of the bytes to be released wait."""
    run: Run = profile.run
    total: dict[str, int] = {}
    for i, n in zip(releases.tolist(), nbytes.tolist(), strict=True):
        j = int(profile.order.producer[i]) if i >= 0 else -1
        name = run.names[run.op[j]] if j >= 0 else "the VM's turn"
        total[name] = total.get(name, 0) + n
    names = sorted(total, key=lambda name: (-total[name], name))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _advice(run: Run, view: MemoryView) -> list[str]:
    rows = []
    for p in [p for p in view.places if p.suspect][:2]:
        where = f" at {p.line}" if p.line else ""
        rows.append(
            f"{p.kept:,} of {p.made:,} tensors of {p.name}{where} are never freed "
            f"({size(p.kept_bytes)})"
            + (f", kept by {p.keeper}" if p.keeper else "")
            + ": keep x.item() or x.detach(), not what autograd hangs on to"
        )
    if view.peak and view.waiting[0] > view.peak // 4:
        rows.append(
            f"{percent(view.waiting[0] / view.peak)} of the peak waits for instructions in flight: "
            f"no leak: Python is ahead, and what it lets go of stays until it was read last"
        )
    if view.peak and view.scratch > view.peak // 3:
        rows.append(
            f"{size(view.scratch)} is scratch of running instructions (a graph's chunk, too): "
            f"graph.plans[0].memory_report() says of what"
        )
    heavy = view.places[0] if view.places else None
    if not rows and heavy is not None and heavy.nbytes > view.peak // 3 and heavy.count > 1:
        rows.append(
            f"{heavy.name} has {percent(heavy.nbytes / view.peak)} of the peak: a smaller batch, "
            f"or flow.utils.checkpoint, which computes it again in backward"
        )
    return rows
