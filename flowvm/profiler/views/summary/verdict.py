"""The verdict: what had most of the path, told finer than by cause, and the line that had it.

The host's share of the path is cut by what issuing threads were seen doing (from level 2 on), and
what lacked a core is told from what ran (`flowvm.profiler.analysis.contention`); every other cause
is its own.  Whatever had most comes first, with the line that had most of it; what other processes
took comes last, for it is the machine's and not the program's.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from flowvm.profiler.analysis.bounds import on_free_cores, refills, serialized
from flowvm.profiler.analysis.contention import blocked, lack, own_takers, takers, unserved
from flowvm.profiler.analysis.host_time import HOSTED, Spent, spent, text_of, without_core
from flowvm.profiler.analysis.paths import Floor, Segment
from flowvm.profiler.run.run import Run
from flowvm.vm.machine.words import KIND

BLOCKED = ("asleep", "gil")  # in which a thread does not run and wants no core
ISSUING = ("host", "flowvm")  # what issuing took: by instructions, where it was not seen
LEAST = 4  # of the host's time on the path a share 1/LEAST must have been seen, to be told apart
LONG = 0.02  # of the wall time: a wait for the VM in which many instructions take part
FEW = 4  # samples: one of fewer has too much of the time, whatever the thread did between them
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

    @property
    def floor(self) -> Floor:
        """The longest path through the data dependences."""


class Part(NamedTuple):
    """A part of the wall time: one of WORDS; and its largest share: the line, the line with the
    expression, the operator, and the nanoseconds there.  `gross` is the share with what it lacked
    cores: whoever mends the cause needs none of these.
    """

    cause: str
    share: float
    line: str
    where: str
    op: str
    time: int
    gross: float


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
        states = spent(p.run, p.observed, (cause,))
        own, known = shares.pop(cause, 0.0), sum(one.time for one in states)
        if known * LEAST < own * wall or len(p.run.samples.line) < FEW:  # too little was recorded
            shares[cause] = shares.get(cause, 0.0) + own
            continue
        for one in states:
            part = own * one.time / known
            shares[one.state] = shares.get(one.state, 0.0) + part
            captured += part if (cause, one.state) == ("core", "capture") else 0.0
    _give_captures(p, shares, most)
    gross, ran = dict(shares), _on_path(p)
    _tell_cores(p, shares, captured)
    had = p.bound.get("sched", 0.0)
    _give_refills(p, gross, {}, 1.0, True)
    _give_refills(p, shares, ran, shares.get("sched", 0.0) / had if had else 0.0, False)
    if times := serialized(p.run, p.observed):
        _give_serialized(p, times, gross, {}, 1.0)
        _give_serialized(p, times, shares, ran, _free(p))
    for one in without_core(p.run, p.observed):
        gross[one.state] = gross.get(one.state, 0.0) + one.time / wall
    rows = [
        _part(p.run, cause, share, most, ran)._replace(gross=max(share, gross.get(cause, 0.0)))
        for cause, share in shares.items()
    ]
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
    without = shares.pop("core", 0.0) + _not_blocked(p, shares)
    for taker, share in who.items():
        # what the VM's threads did meanwhile, an issuing thread has asked for
        parts = own_takers(p.run) if taker == "own" else {taker: 1.0}
        for cause, part in parts.items():
            shares[cause] = shares.get(cause, 0.0) + without * share * part
    if captured:
        shares["capture"] -= captured * who["core"]
        shares["core"] += captured * who["core"]
    for (cause, stream), share in _running(p).items():
        duration = sum(share for (_, s), share in _running(p).items() if s == stream) * p.run.wall
        lacking = lack if cause == "run" else unserved
        lacked = share * lacking(p.run, stream, max(duration, p.busy.get(stream, 0.0) * p.run.wall))
        for taker, part in takers(p.run, f"flowvm-w:{stream}").items():
            if taker != "own":  # its own helpers and the scheduler work for it
                shares[cause] -= lacked * part
                shares[taker] = shares.get(taker, 0.0) + lacked * part


def _not_blocked(p: Pathed, shares: dict[str, float]) -> float:
    """Take from a sleep, and from a wait for the GIL, what these cannot have been, for a thread is
    blocked in both; return the share: the thread had no core.
    """
    most = blocked(p.run)
    total = sum(shares.get(cause, 0.0) for cause in BLOCKED)
    excess = total - (most if most is not None else p.run.wall) / max(1, p.run.wall)
    if excess <= 0:
        return 0.0
    for cause in BLOCKED:
        shares[cause] = shares.get(cause, 0.0) * (1 - excess / total)
    return excess


def _give_refills(
    p: Pathed, shares: dict[str, float], ran: dict[str, dict[int, int]], share: float, lacks: bool
) -> None:
    """Move what refilling streams took, of "sched" and of dispatch, to the waits in which they ran
    out of work: without these, it would have happened while streams ran.  Of "sched", `share` is
    what had a core; a thread's own lack of one is moved where `lacks`.
    """
    issued: dict[str, list[Segment]] = {}
    for cause, instruction, piece in refills(p.observed):
        if piece.cause == "host":
            issued.setdefault(cause, []).append(piece)
            continue
        if piece.cause == "core":
            if lacks:
                _move(shares, "core", cause, (piece.end - piece.begin) / max(1, p.run.wall))
            continue
        time = round((piece.end - piece.begin) * share)
        _move(shares, "sched", cause, time / max(1, p.run.wall))
        if instruction >= 0:
            own = ran.setdefault(cause, {})
            own[instruction] = own.get(instruction, 0) + time
    for cause, pieces in issued.items():
        states = spent(p.run, pieces, ("host",))
        time = sum(one.time for one in states if one.state == "flowvm")
        if "host" in shares:  # not told apart
            time = sum(piece.end - piece.begin for piece in pieces)
        _move(shares, "host" if "host" in shares else "flowvm", cause, time / max(1, p.run.wall))


def _give_serialized(
    p: Pathed, times: dict[int, int], shares: dict[str, float], ran: dict[str, dict[int, int]],
    most: float,
) -> None:  # fmt: skip
    """Move what streams ran, each while another stood still for want of memory in flight, from
    "run" to "memory": `most` of the wall time, for cores that are not there run nothing.
    """
    total = sum(times.values())
    share = max(0.0, min(1.0, most * p.run.wall / total))
    _move(shares, "run", "memory", share * total / max(1, p.run.wall))
    own = ran.setdefault("memory", {})
    for instruction, time in times.items():
        own[instruction] = own.get(instruction, 0) + round(share * time)


def _free(p: Pathed) -> float:
    """The share of the wall time that the streams need not have taken, beside each other on the
    cores that other processes left.
    """
    wall = max(1, p.run.wall)
    return 1 - max(*p.busy.values(), on_free_cores(p.run) / wall, p.floor.length / wall)


def _move(shares: dict[str, float], source: str, target: str, share: float) -> None:
    share = min(share, shares.get(source, 0.0))
    if share:
        shares[source] -= share
        shares[target] = shares.get(target, 0.0) + share


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
    """By cause, the time of each instruction's line and operator on the path.

    A long wait for the VM is of all instructions that waited then, not of the first alone.
    """
    on_path: dict[str, dict[int, int]] = {}
    for s in p.observed:
        if s.instruction >= 0:
            own, lasted = on_path.setdefault(s.cause, {}), s.end - s.begin
            several = s.cause == "sched" and lasted >= LONG * p.run.wall
            waited = _waiting(p.run, s) if several else [s.instruction]
            for i in waited:
                own[i] = own.get(i, 0) + lasted // len(waited)
    return on_path


def _waiting(run: Run, s: Segment) -> list[int]:
    """Return the instructions that had been issued by the end of a piece of the path, and none of
    which had started by its beginning.
    """
    waits = (run.time("issued") < s.end) & (run.time("started") > s.begin)
    waits &= ~np.isin(run.kind, (KIND.RELEASE, KIND.TOUCH, KIND.BARRIER))
    return np.flatnonzero(waits).tolist() or [s.instruction]


def _issued(run: Run, cause: str, share: float) -> Part:
    """Return the Part of unsampled issuing: the line with most of the instructions."""
    own = run.line[(run.kind != KIND.RELEASE) & (run.line >= 0)]
    if not len(own):
        return Part(cause, share, "", "", "", 0, share)
    counts = np.bincount(own)
    line = int(counts.argmax())
    first = int(np.flatnonzero((run.line == line) & (run.kind != KIND.RELEASE))[0])
    spot = int(run.spot[first]) if len(run.spot) else -1
    time = round(share * run.wall * counts[line] / len(own))
    return Part(cause, share, run.lines[line], text_of(run, line, spot), "", time, share)


def _part(
    run: Run, cause: str, share: float, most: dict[str, Spent], ran: dict[str, dict[int, int]]
) -> Part:
    if cause == "gil" and (who := run.info.get("ran")):
        line, spot, name, _ = who[0]
        thread = f" (thread {name})" if name else ""
        where = text_of(run, line, spot) + thread if line >= 0 else thread.strip()
        return Part(
            cause,
            share,
            run.lines[line] if line >= 0 else "",
            where,
            "",
            round(share * run.wall),
            share,
        )
    if cause in ISSUING and not (cause in most and most[cause].line >= 0):
        return _issued(run, cause, share)
    if cause in most and cause not in ran:
        one = most[cause]
        name = run.lines[one.line] if one.line >= 0 else ""
        nanoseconds = min(one.time, round(share * run.wall))  # the rest had no core
        return Part(cause, share, name, text_of(run, one.line, one.spot), "", nanoseconds, share)
    total: dict[tuple[int, int], int] = {}
    example: dict[tuple[int, int], int] = {}
    for i, time in ran.get(cause, {}).items():
        key = int(run.line[i]), int(run.op[i])
        total[key] = total.get(key, 0) + time
        example[key] = i
    if not total:
        return Part(cause, share, "", "", "", 0, share)
    line, op = max(total, key=lambda k: (total[k], -k[0]))
    spot = int(run.spot[example[line, op]]) if len(run.spot) else -1
    return Part(
        cause, share, run.lines[line] if line >= 0 else "", text_of(run, line, spot),
        run.names[op] if cause == "run" else "",
        min(total[line, op], round(share * run.wall)), share,
    )  # fmt: skip


def mostly(run: Run, part: Part) -> str:
    """Describe the largest share of a part; "" if it is not known."""
    if not part.where:
        return ""
    share = 100 * part.time / max(1, run.wall)
    op = f"{part.op}, " if part.op else ""
    return f"{part.where} has {share:.0f} %: {op}{WORDS[part.cause][2]}"
