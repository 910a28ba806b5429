"""Two paths through a run: how fast it could have been, and what it really waited for.

The *floor* is the longest path through the data dependences, weighted by how long each instruction
ran: with any number of streams, and a host that takes no time, it takes that long.  Of launches
that were in flight together only what each had to wait for the others counts (see `beside`).

The *observed path* walks back from the end of the run.  An instruction that ran leads to whatever
ended last of what it had to wait for: its producer, what was in front of it in its stream, or its
own issue.  From an issue on the path follows the issuing thread, back to the last time that it
waited; a `sync` leads to the instruction that was waited for, a `credit` to the one whose end made
room.  An instruction that was not received until others had given memory back (`memory`) leads to
the last of these.  The segments tile the run: they sum to its wall time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.profiler.analysis.beside import launches, uses
from flowvm.profiler.analysis.waits import Order, held_back, order
from flowvm.profiler.run.columns import CAUSES
from flowvm.profiler.run.run import Run
from flowvm.vm.machine.words import KIND

PATH = ("run", "sched", "host", "sync", "credit", "memory", "jit", "gil", "core")


@dataclass(frozen=True)
class Floor:
    """`length` in ns, and the instructions on the path in the order that they run."""

    length: int
    path: list[int]


def floor(run: Run, duration: Array | None = None) -> Floor:
    """The longest path through the data dependences; `duration` says how long each takes."""
    if not len(run):
        return Floor(0, [])
    if duration is None:
        duration = np.maximum(0, run.time("ended") - run.time("started"))
    duration = np.where(run.kind == KIND.RELEASE, 0, duration)  # a release holds nobody up
    # edges are sorted by target and point forwards, so one pass in program order is enough
    first = np.searchsorted(run.target, np.arange(len(run) + 1)).tolist()
    source, lasts = run.source.tolist(), duration.tolist()
    together = launches(run, duration)
    used = uses(run) if together else {}
    finish, via = [0] * len(run), [-1] * len(run)
    for i in range(len(run)):
        best, where = 0, -1
        launch, fronts = together.get(i), source[first[i] : first[i + 1]]
        for j in fronts:
            if finish[j] > best and (launch is None or j not in together):
                best, where = finish[j], j
        finish[i], via[i] = best + lasts[i], where
        if launch is not None:
            launch.base = best
            for j in fronts:
                held = int(launch.follow(together[j], used[i], used[j])) if j in together else 0
                if held > best:
                    best, via[i] = held, j
            finish[i] = round(launch.end)
    at = max(range(len(run)), key=finish.__getitem__)
    length, path = finish[at], []
    while at >= 0:
        path.append(at)
        at = via[at]
    return Floor(length, path[::-1])


class WhatIf(int):
    """Nanoseconds of a floor, a number like any other, which prints as a sentence."""

    text: str

    def __repr__(self) -> str:
        return self.text

    __str__ = __repr__


def what_if_text(run: Run, what: str, factor: float, now: int, then: int) -> WhatIf:
    """The floor `then`, with what it says: it is `now` so long, and `what` would take `factor`
    times as long.
    """
    took = "took no time" if factor == 0 else f"took {factor:g} times as long"
    changed = f"{100 * abs(now - then) / max(1, now):.0f} % {'less' if then <= now else 'more'}"
    what_if = WhatIf(then)
    what_if.text = (
        f"if {what} {took}, the floor would be {_ms(then)} ms instead of {_ms(now)} "
        f"({changed}); the run took {_ms(run.wall)} ms"
    )
    return what_if


def _ms(nanoseconds: float) -> str:
    """Three digits, and all in front of the point."""
    value = nanoseconds / 1e6
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def what_if(run: Run, chosen: Callable[[str], bool], factor: float = 0.0) -> int:
    """The floor if the operators that `chosen(name)` picks took `factor` times as long."""
    duration = np.maximum(0, run.time("ended") - run.time("started"))
    picked = np.array([chosen(name) for name in run.names], bool)[run.op]
    return floor(run, np.where(picked, duration * factor, duration).astype(np.int64)).length


class Segment(NamedTuple):
    """A piece of the observed path: a cause of PATH, and the instruction that it is about or -1."""

    begin: int
    end: int
    cause: str
    instruction: int


def observed(run: Run, before: Order | None = None) -> list[Segment]:
    """The observed path, first segment first."""
    return _Walk(run, before or order(run)).walk()


def totals(path: list[Segment]) -> dict[str, int]:
    """Nanoseconds of each cause on a path, for all of PATH."""
    total = dict.fromkeys(PATH, 0)
    for segment in path:
        total[segment.cause] += segment.end - segment.begin
    return total


class _Walk:
    """One walk back through a run.  `at` only ever decreases, and each segment begins where the
    next ends, so they tile the run whatever the clocks say.
    """

    def __init__(self, run: Run, before: Order) -> None:
        self.run, self.at, self.segments = run, run.ended, list[Segment]()
        self.issued, self.started, self.ended, self.released = (
            run.time(name).tolist() for name in ("issued", "started", "ended", "released")
        )
        self.producer, self.produced = before.producer.tolist(), before.produced.tolist()
        self.front, self.freed = before.front.tolist(), before.freed.tolist()
        self.finished, self.held = before.finished, held_back(run).tolist()
        self.received = run.time("received").tolist()
        self.passed: set[int] = set()
        late = np.argsort(run.waits.times[:, 1], kind="stable")
        self.waits = run.waits.times[late].tolist()
        self.causes = run.waits.cause[late].tolist()
        self.next_wait = len(self.waits) - 1  # those after it have been passed
        waiters = np.flatnonzero(before.finished & np.isin(run.kind, (KIND.TOUCH, KIND.BARRIER)))
        self.waiters = waiters[np.argsort(run.time("ended")[waiters], kind="stable")]
        self.waiters_ended = run.time("ended")[self.waiters]
        real = np.flatnonzero(before.finished)
        self.by_release = real[np.argsort(run.time("released")[real], kind="stable")]
        self.release_times = run.time("released")[self.by_release]

    def emit(self, begin: int, cause: str, instruction: int) -> None:
        begin = min(max(begin, self.run.begun), self.at)
        if begin < self.at:
            self.segments.append(Segment(begin, self.at, cause, instruction))
            self.at = begin

    def walk(self) -> list[Segment]:
        real = np.flatnonzero(self.finished & (self.run.time("ended") <= self.run.ended))
        node = -1
        if len(real):
            last = int(real[np.argmax(self.run.time("ended")[real])])
            if self.ended[last] >= self.run.ended:
                node = last
        while self.at > self.run.begun:
            node = self.host() if node < 0 else self.instruction(node)
        return self.segments[::-1]

    def instruction(self, i: int) -> int:
        """Back from the end of an instruction to what let it start; -1 is its issuing thread."""
        if i in self.passed:  # only in a run whose order was broken
            return -1
        self.passed.add(i)
        self.emit(self.started[i], "run", i)
        gate = max(self.produced[i], self.freed[i], self.issued[i])
        if self.held[i] and self.received[i] > gate:
            self.emit(self.received[i], "sched", i)
            last = self._last(self.by_release, self.release_times, gate)
            self.emit(self.ended[last] if last >= 0 else gate, "memory", i)
            return last
        self.emit(gate, "sched", i)
        if self.producer[i] >= 0 and self.produced[i] == gate:
            return int(self.producer[i])
        if self.front[i] >= 0 and self.freed[i] == gate:
            return int(self.front[i])
        return -1

    def host(self) -> int:
        """Back along the issuing threads, to the instruction that the last of their waits was for,
        or to the beginning.
        """
        while self.next_wait >= 0:
            begun, ended = self.waits[self.next_wait]
            cause = CAUSES[self.causes[self.next_wait]]
            if cause in ("gil", "core"):
                ended = min(ended, self.at)
            if ended > self.at:  # the path has come here from inside this wait, or from before it
                self.next_wait -= 1
                continue
            self.next_wait -= 1
            self.emit(ended, "host", -1)
            if cause == "sync":
                last = self._last(self.waiters, self.waiters_ended, begun)
            elif cause in ("credit", "memory"):
                last = self._last(self.by_release, self.release_times, begun)
            else:
                last = -1
            if last >= 0:
                self.emit(self.ended[last], cause, last)
                return last
            self.emit(begun, cause, -1)
        self.emit(self.run.begun, "host", -1)
        return -1

    def _last(self, of: Array, times: Array, begun: int) -> int:
        """The last of `of` whose time is in [begun, at], or -1."""
        k = int(np.searchsorted(times, self.at, side="right")) - 1
        return int(of[k]) if k >= 0 and times[k] >= begun else -1
