"""The critical path: what the run really waited for, segment by segment, and the floor beside it.

The observed path tiles the run, so its segments sum to the wall time; neighbours of one cause and
one operator are one row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from flowvm.profiler.analysis.host_time import HOSTED, during, text_of
from flowvm.profiler.analysis.paths import Segment
from flowvm.profiler.grammar import (
    CAUSES,
    Column,
    Screen,
    Span,
    View,
    bar,
    counted,
    flowed,
    headed,
    ms,
    percent,
    table,
)
from flowvm.profiler.run.devices import said_of
from flowvm.profiler.run.run import Run
from flowvm.profiler.views.summary.facts import ProfileLike
from flowvm.profiler.views.summary.verdict import WORDS
from flowvm.vm.machine.words import KIND

MOST_ROWS = 40
LEAST = 0.001  # of the run: shorter pieces are summed up


@dataclass(frozen=True)
class Piece:
    """Neighbouring segments of one cause and operator.  Times are ns from the start of the run.  Of
    the host's time `op` says what issuing threads were doing, as far as they were seen.
    """

    begin: int
    end: int
    cause: str
    op: str
    first: int  # number of the first instruction, -1 for none
    count: int
    stream: str
    line: str


@dataclass(frozen=True, repr=False)
class Critical(View):
    """See the module."""

    wall: int
    pieces: tuple[Piece, ...]
    shares: tuple[tuple[str, float], ...]
    floor: int
    floor_path: tuple[str, ...]  # operators on the floor path with their counts
    what_if: tuple[tuple[str, int], ...]  # operator, the floor without it
    devices: str = ""  # what times of devices are, where there are any

    def screen(self, width: int) -> Screen:
        """See View."""
        screen = Screen()
        shares = [(f"{WORDS[c][0]} {percent(s)}", "") for c, s in self.shares if s >= 0.005]
        screen.lines += flowed(
            [(" observed path", "verdict"), (f"{ms(self.wall)} ms =", ""), *shares], width, "  ", ""
        )
        worth = [p for p in self.pieces if p.end - p.begin >= LEAST * self.wall] or self.pieces
        longest = sorted(worth, key=lambda p: p.begin - p.end)[:MOST_ROWS]
        shown = sorted(longest, key=lambda p: p.begin)
        rows: list[list[str | Span]] = [
            [
                ms(p.begin), ms(p.end - p.begin),
                (bar((p.end - p.begin) / max(1, self.wall), 8), CAUSES[p.cause][1]),
                # of the host's time what was seen, which says more than that it was
                (p.op if p.op and p.first < 0 else WORDS[p.cause][0], CAUSES[p.cause][1]),
                _named(p),
                p.stream, p.line,
            ]
            for p in shown
        ]  # fmt: skip
        columns = [
            Column("at ms", right=True, drop=1), Column("ms", right=True), Column("", drop=4),
            Column("cause"), Column("instruction", grow=True), Column("stream", drop=5),
            Column("line", style="line", grow=True, where=True),
        ]  # fmt: skip
        screen.lines += table(columns, rows, width)
        if len(self.pieces) > len(shown):
            rest = sum(p.end - p.begin for p in self.pieces) - sum(p.end - p.begin for p in shown)
            count = counted(len(self.pieces) - len(shown), "shorter one")
            screen.add((f"   and {count}, {ms(rest)} ms", "head"))
        steps = [f"{name} →" for name in self.floor_path[:-1]] + list(self.floor_path[-1:])
        floor = f"{ms(self.floor)} ms, if nothing but data were waited for"
        lines = headed(" floor", floor, width)
        screen.lines += [[(name, "verdict"), text] for (name, _), text in lines]
        screen.lines += flowed(((step, "") for step in steps), width, " ", " " * 8) if steps else []
        for op, without in self.what_if:
            screen.add(("   what-if ", "head"), f"{op} free: {ms(self.floor)} → {ms(without)} ms")
        if self.devices:
            screen.add((f" devices: times {self.devices}", "head"))
        return screen.cut(width)


def _named(piece: Piece) -> str:
    if piece.first < 0:
        return ""
    return f"#{piece.first} {piece.op}" + (f" ×{piece.count:,}" if piece.count > 1 else "")


def critical(profile: ProfileLike) -> Critical:
    """The critical path of a Profile."""
    run: Run = profile.run
    pieces: list[Piece] = []
    for segment in profile.observed:
        i = segment.instruction
        if segment.cause in HOSTED and len(run.samples.line):
            pieces += _pieces_by_line(run, segment)
            continue
        op = run.names[run.op[i]] if i >= 0 else ""
        begin, end = segment.begin - run.begun, segment.end - run.begun
        last = pieces[-1] if pieces else None
        if last is not None and (last.cause, last.op) == (segment.cause, op):
            pieces[-1] = Piece(
                last.begin, end, last.cause, op, last.first, last.count + 1, last.stream, last.line
            )
            continue
        stream = run.streams[run.stream[i]] if i >= 0 else ""
        line = run.lines[run.line[i]] if i >= 0 else ""
        seq = int(run.seq[i]) if i >= 0 else -1
        pieces.append(Piece(begin, end, segment.cause, op, seq, 1, stream, line))
    floor = profile.floor
    names = [run.names[run.op[i]] for i in floor.path]
    return Critical(
        run.wall,
        tuple(pieces),
        tuple(profile.bound.items()),
        floor.length,
        _shortened(names),
        tuple((op, profile.what_if(op)) for op in _heaviest(run, floor.path)),
        said_of(run),
    )


def _pieces_by_line(run: Run, segment: Segment) -> list[Piece]:
    """A segment of the host's, cut where issuing threads were seen at another line."""
    lines: list[Piece] = []
    for begin, end, state, line, spot in during(run, segment.begin, segment.end):
        word = WORDS[state][0] if state else ""
        where = text_of(run, line, spot)
        last = lines[-1] if lines else None
        begin, end = begin - run.begun, end - run.begun
        if last is not None and (last.op, last.line) == (word, where):
            lines[-1] = replace(last, end=end)
        else:
            lines.append(Piece(begin, end, segment.cause, word, -1, 1, "", where))
    return lines


def _shortened(names: list[str]) -> tuple[str, ...]:
    """Neighbours of one name as "name ×3"; the middle of a long path left out."""
    runs: list[tuple[str, int]] = []
    for name in names:
        if runs and runs[-1][0] == name:
            runs[-1] = name, runs[-1][1] + 1
        else:
            runs.append((name, 1))
    texts = [f"{name} ×{n:,}" if n > 1 else name for name, n in runs]
    if len(texts) > 10:
        texts = [*texts[:5], f"({len(texts) - 9} more)", *texts[-4:]]
    return tuple(texts)


def _heaviest(run: Run, path: list[int]) -> list[str]:
    """The three operators with the most time on the floor path."""
    total: dict[str, int] = {}
    lasted = run.time("ended") - run.time("started")
    for i in path:
        if run.kind[i] == KIND.RELEASE:
            continue
        name = run.names[run.op[i]]
        total[name] = total.get(name, 0) + int(lasted[i])
    return sorted(total, key=lambda name: -total[name])[:3]
