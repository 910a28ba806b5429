"""The verdict: what had most of the path, told finer than by cause, and the line that had it.

The host's share of the path is cut by what issuing threads were seen doing (from level 2 on); every
other cause is its own.  Whatever had most comes first, with the line that had most of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from flowvm.profiler.analysis.hosting import HOSTED, Spent, spent, text_of
from flowvm.profiler.analysis.paths import Segment
from flowvm.profiler.run.run import Run

LEAST = 4  # of the host's time on the path a share 1/LEAST must have been seen, to be told apart
# what had the time -> (how a list calls it, how it is called where it comes first, what it is)
WORDS: dict[str, tuple[str, str, str]] = {
    "run": ("run", "RUN", "running"),
    "python": ("your Python", "YOUR PYTHON", "your own code"),
    "asleep": ("asleep", "ASLEEP", "a sleep, a read, another thread"),
    "loader": ("loader", "LOADER", "the DataLoader's next batch"),
    "import": ("imports", "IMPORTING", "modules were imported"),
    "flowvm": ("dispatch", "HOST DISPATCH", "flowvm issues op by op"),
    "capture": ("capture", "CAPTURING", "a graph was captured and compiled"),
    "host": ("host", "HOST DISPATCH", "Python"),
    "sync": ("sync", "SYNC", "Python waited for a value"),
    "credit": ("credit", "CREDIT", "Python waited for memory, or for room in the queue"),
    "jit": ("jit", "COMPILING", "a kernel was compiled or loaded"),
    "gil": ("gil", "GIL", "another thread had the GIL or the core"),
    "sched": ("sched", "SCHEDULER", "the VM waited for a core"),
}


class Pathed(Protocol):
    """A profile, as far as this goes."""

    run: Run

    @property
    def bound(self) -> dict[str, float]:
        """Shares of the wall time by cause."""

    @property
    def observed(self) -> list[Segment]:
        """The path that sums to the wall time."""

    @property
    def host(self) -> list[Spent]:
        """What the host's part of it went to."""


@dataclass(frozen=True)
class Part:
    """What had a share of the wall time: one of WORDS; and where most of it was: the line, that
    with the expression in it, the operator, and the nanoseconds there.
    """

    cause: str
    share: float
    line: str
    where: str
    op: str
    there: int


def parts(p: Pathed) -> list[Part]:
    """What the path consists of, most first; the shares sum to 1."""
    wall = max(1, p.run.wall)
    shares: dict[str, float] = dict(p.bound)
    most: dict[str, Spent] = {}
    for one in p.host:
        most.setdefault(one.state, one)
    for cause in HOSTED:
        seen = spent(p.run, p.observed, (cause,))
        own, known = shares.pop(cause, 0.0), sum(one.time for one in seen)
        if known * LEAST < own * wall:  # too little of it was seen
            shares[cause] = shares.get(cause, 0.0) + own
            continue
        for one in seen:
            shares[one.state] = shares.get(one.state, 0.0) + own * one.time / known
    ran = _on_path(p)
    found = [_part(p.run, cause, share, most, ran) for cause, share in shares.items()]
    return sorted(found, key=lambda part: -part.share)


def _on_path(p: Pathed) -> dict[str, dict[int, int]]:
    """By cause, the time of each instruction's line and operator on the path."""
    found: dict[str, dict[int, int]] = {}
    for s in p.observed:
        if s.instruction >= 0:
            own = found.setdefault(s.cause, {})
            own[s.instruction] = own.get(s.instruction, 0) + s.end - s.begin
    return found


def _part(
    run: Run, cause: str, share: float, most: dict[str, Spent], ran: dict[str, dict[int, int]]
) -> Part:
    if cause in most and cause not in ran:
        one = most[cause]
        name = run.lines[one.line] if one.line >= 0 else ""
        return Part(cause, share, name, text_of(run, one.line, one.spot), "", one.time)
    total: dict[tuple[int, int], int] = {}
    example: dict[tuple[int, int], int] = {}
    for i, time in ran.get(cause, {}).items():
        key = int(run.line[i]), int(run.op[i])
        total[key] = total.get(key, 0) + time
        example[key] = i
    if not total:
        return Part(cause, share, "", "", "", 0)
    line, op = max(total, key=lambda k: (total[k], -k[0]))
    spot = int(run.spot[example[line, op]]) if len(run.spot) else -1
    return Part(
        cause, share, run.lines[line] if line >= 0 else "", text_of(run, line, spot),
        run.names[op] if cause == "run" else "", total[line, op],
    )  # fmt: skip


def mostly(run: Run, part: Part) -> str:
    """Where most of a part was, in words; "" if that is not known."""
    if not part.where:
        return ""
    share = 100 * part.there / max(1, run.wall)
    op = f"{part.op}, " if part.op else ""
    return f"{part.where} has {share:.0f} %: {op}{WORDS[part.cause][2]}"
