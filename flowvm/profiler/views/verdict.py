"""The verdict: what had most of the path, told finer than by cause, and the line that had it.

The host's share of the path is cut by what issuing threads were seen doing (from level 2 on), and
what lacked a core is told from what ran (`flowvm.profiler.analysis.contention`); every other cause
is its own.  Whatever had most comes first, with the line that had most of it; what other processes
took comes last, for it is the machine's and not the program's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from flowvm.profiler.analysis.contention import lack, takers
from flowvm.profiler.analysis.host_time import HOSTED, Spent, spent, text_of
from flowvm.profiler.analysis.paths import Segment
from flowvm.profiler.run.run import Run
from flowvm.vm.machine.words import KIND

ISSUING = ("host", "flowvm")  # what issuing took: by instructions, where it was not seen
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
    "credit": ("credit", "CREDIT", "Python waited for room in the queue"),
    "memory": ("memory", "MEMORY", "memory of work in flight reached run_ahead_bytes"),
    "jit": ("jit", "COMPILING", "a kernel was compiled or loaded"),
    "gil": ("gil", "GIL", "another Python thread had the GIL or the core"),
    "own": ("own threads", "OWN THREADS", "flowvm's other threads had the cores"),
    "core": ("no core", "NO CORE", "other processes had the cores"),
    "sched": ("sched", "SCHEDULER", "a ready instruction waited for the VM to start it"),
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
    def busy(self) -> dict[str, float]:
        """The share of the wall time in which each stream ran something."""

    @property
    def host(self) -> list[Spent]:
        """The host's work on the path, by line."""


@dataclass(frozen=True)
class Part:
    """A part of the wall time: one of WORDS; and its largest share: the line, the line with the
    expression, the operator, and the nanoseconds there.
    """

    cause: str
    share: float
    line: str
    where: str
    op: str
    there: int


def parts(p: Pathed) -> list[Part]:
    """Return the parts of the path, most first, without the share of other processes; they sum to
    1.
    """
    wall = max(1, p.run.wall)
    shares: dict[str, float] = dict(p.bound)
    most: dict[str, Spent] = {}
    for one in p.host:
        most.setdefault(one.state, one)
    captured = 0.0  # of it, without a core
    for cause in HOSTED:
        seen = spent(p.run, p.observed, (cause,))
        own, known = shares.pop(cause, 0.0), sum(one.time for one in seen)
        if known * LEAST < own * wall:  # too little of it was seen
            shares[cause] = shares.get(cause, 0.0) + own
            continue
        for one in seen:
            part = own * one.time / known
            shares[one.state] = shares.get(one.state, 0.0) + part
            captured += part if (cause, one.state) == ("core", "capture") else 0.0
    _give_captures(p, shares, most)
    _tell_cores(p, shares, captured)
    ran = _on_path(p)
    rows = [_part(p.run, cause, share, most, ran) for cause, share in shares.items()]
    return sorted(rows, key=lambda part: (part.cause == "core", -part.share))


def _give_captures(p: Pathed, shares: dict[str, float], most: dict[str, Spent]) -> None:
    """Move time in which a capture compiled from "jit" to "capture"."""
    for one in spent(p.run, p.observed, ("jit",)):
        if one.state == "capture":
            part = min(shares.get("jit", 0.0), one.time / max(1, p.run.wall))
            shares["jit"] -= part
            shares["capture"] = shares.get("capture", 0.0) + part
            most.setdefault("capture", one)


def _tell_cores(p: Pathed, shares: dict[str, float], captured: float) -> None:
    """Share lost core time out among the threads that had the cores: the loss of issuing threads
    (`captured` of it in captures, for which flowvm's other threads and processes compile), and that
    of instructions that ran, or were about to.
    """
    who = takers(p.run)
    if not who:
        return
    without = shares.pop("core", 0.0)
    for taker, share in who.items():
        shares[taker] = shares.get(taker, 0.0) + without * share
    if captured:
        shares["capture"] -= captured * who["core"]
        shares["core"] += captured * who["core"]
    for (cause, stream), share in _running(p).items():
        wanted = sum(share for (_, s), share in _running(p).items() if s == stream) * p.run.wall
        lacked = share * lack(p.run, stream, max(wanted, p.busy.get(stream, 0.0) * p.run.wall))
        for taker, part in takers(p.run, f"flowvm-w:{stream}").items():
            if taker != "own":  # its own helpers and the scheduler work for it
                shares[cause] -= lacked * part
                shares[taker] = shares.get(taker, 0.0) + lacked * part


def _running(p: Pathed) -> dict[tuple[str, str], float]:
    """Shares of the wall time in which the path ran instructions, or these were ready to start, by
    that and the stream.
    """
    running: dict[tuple[str, str], float] = {}
    for s in p.observed:
        if s.cause in ("run", "sched") and s.instruction >= 0:
            key = s.cause, p.run.streams[p.run.stream[s.instruction]]
            running[key] = running.get(key, 0.0) + (s.end - s.begin) / max(1, p.run.wall)
    return running


def _on_path(p: Pathed) -> dict[str, dict[int, int]]:
    """By cause, the time of each instruction's line and operator on the path."""
    on_path: dict[str, dict[int, int]] = {}
    for s in p.observed:
        if s.instruction >= 0:
            own = on_path.setdefault(s.cause, {})
            own[s.instruction] = own.get(s.instruction, 0) + s.end - s.begin
    return on_path


def _issued(run: Run, cause: str, share: float) -> Part:
    """Return the Part of unsampled issuing: the line with most of the instructions."""
    own = run.line[(run.kind != KIND.RELEASE) & (run.line >= 0)]
    if not len(own):
        return Part(cause, share, "", "", "", 0)
    counts = np.bincount(own)
    line = int(counts.argmax())
    first = int(np.flatnonzero((run.line == line) & (run.kind != KIND.RELEASE))[0])
    spot = int(run.spot[first]) if len(run.spot) else -1
    time = round(share * run.wall * counts[line] / len(own))
    return Part(cause, share, run.lines[line], text_of(run, line, spot), "", time)


def _part(
    run: Run, cause: str, share: float, most: dict[str, Spent], ran: dict[str, dict[int, int]]
) -> Part:
    if cause == "gil" and (who := run.info.get("ran")):
        line, spot, name, _ = who[0]
        thread = f" (thread {name})" if name else ""
        where = text_of(run, line, spot) + thread if line >= 0 else thread.strip()
        return Part(
            cause, share, run.lines[line] if line >= 0 else "", where, "", round(share * run.wall)
        )
    if cause in ISSUING and not (cause in most and most[cause].line >= 0):
        return _issued(run, cause, share)
    if cause in most and cause not in ran:
        one = most[cause]
        name = run.lines[one.line] if one.line >= 0 else ""
        nanoseconds = min(one.time, round(share * run.wall))  # the rest had no core
        return Part(cause, share, name, text_of(run, one.line, one.spot), "", nanoseconds)
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
        run.names[op] if cause == "run" else "", min(total[line, op], round(share * run.wall)),
    )  # fmt: skip


def mostly(run: Run, part: Part) -> str:
    """Describe the largest share of a part; "" if it is not known."""
    if not part.where:
        return ""
    share = 100 * part.there / max(1, run.wall)
    op = f"{part.op}, " if part.op else ""
    return f"{part.where} has {share:.0f} %: {op}{WORDS[part.cause][2]}"
