"""Time in which an issuing thread could have run and did not: the `core` and `gil` waits of the
recorder.

A thread's processor time falls behind the wall clock while the system runs something else on its
core (`core`), while another thread has the GIL (`gil`), and while it blocks: in a sleep, a lock, a
read, which is the program's own doing and stays `host`.  They are told apart by what happened
elsewhere.  How long a thread was ready to run without a core is counted by Linux; to wait for the
GIL means that another Python thread was on a processor, so `gil` is at most what those used;
another thread that computes without the GIL while this one sleeps, or waits for what that computes,
is taken to have had it.  The lines of the others are noted with what they used: who had the GIL.

A `look` compares the two clocks of the calling thread since its last look, in which it was in no
wait of the VM's.  It gives the amount lost, not the time: `flowvm.profiler.run.collect` puts that
where nothing was issued.  Amounts below LEAST are not looked into, so a look is one system call.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

from flowvm.guards.collection import Uncollected
from flowvm.vm.watch.cores import scheduled

LEAST = 50_000  # ns off the processor in one stretch, below which it stays `host`
FRESH = 10_000_000  # ns between looks at other threads; more if looks take over a SHARE of the time
SHARE = 100
DEEP = 64  # frames of a thread that are looked at for a line
NATIVE = ("flowvm-sched", "flowvm-w:", "flowvm-h:")  # threads that never hold the GIL


def _used(thread: int) -> int:
    """Processor time of a thread of this process, 0 if it is over."""
    try:
        return time.clock_gettime_ns((~thread << 3) | 6)  # Linux: the clock of thread number so
    except OSError:
        return 0


def _others(own: int) -> dict[int, int]:
    """Return the nanoseconds that each other thread was on a core or ready for one, by native
    thread id.  Only threads that may hold the GIL count: one with the GIL and no core keeps others
    waiting.  The VM's own threads hold the GIL only on a core.
    """
    # not threading.enumerate(): its lock may be held where a finalizer issues instructions
    every = list(threading._active.values())  # type: ignore[attr-defined]
    others = [(t.native_id, t.name) for t in every if not t.name.startswith(NATIVE)]
    return {
        n: _used(n) + (0 if name.startswith("flowvm-") else scheduled(n)[1])
        for n, name in others
        if n is not None and n != own
    }


class Ran(NamedTuple):
    """Another Python thread ran for `used` ns between two moments; then it was in these frames
    (code and offset), the innermost first.
    """

    begun: int
    ended: int
    name: str
    used: int
    frames: tuple[tuple[Any, int], ...]


def _ran(used: dict[int, int], since: int, now: int) -> list[Ran]:
    """List the lines of other Python threads that have `used` much time, by their system numbers.

    The calling thread has the GIL: they are where they were when they gave it away.
    """
    every = [t for t in list(threading._active.values()) if used.get(t.native_id, 0) >= LEAST]  # type: ignore[attr-defined]
    every = [t for t in every if not t.name.startswith("flowvm-")]
    lines = list[Ran]()
    if not every:
        return lines
    with Uncollected():
        tops = sys._current_frames()
        for thread in every:
            frame: FrameType | None = tops.get(thread.ident)
            stack = list[tuple[Any, int]]()
            while frame is not None and len(stack) < DEEP:
                stack.append((frame.f_code, frame.f_lasti))
                frame = frame.f_back
            lines.append(Ran(since, now, thread.name, used[thread.native_id], tuple(stack)))
    return lines


class _Clocks:
    """The clocks of a thread at its last look.  `read` is the time of the last look at the other
    threads, to be repeated when it is `due`.  `small` is the time lost since, below LEAST.
    """

    __slots__ = ("cpu", "due", "others", "read", "ready", "small", "wall")

    def __init__(self) -> None:
        self.wall, self.cpu = time.monotonic_ns(), time.thread_time_ns()
        self.read, self.ready, self.small = self.wall, 0, 0
        self.others: dict[int, int] = {}
        self.elsewhere(self.wall)

    def elsewhere(self, now: int) -> tuple[int, int, list[Ran]]:
        """Return the reasons why the calling thread did not run since the last call: time without a
        core, time in which others may have had the GIL, and the lines of those.
        """
        thread, first = threading.get_native_id(), not self.others
        ready, others = scheduled(thread)[1], _others(thread)
        core = max(0, ready - self.ready - self.small)
        used = {n: max(0, t - self.others.get(n, t)) for n, t in others.items()}
        gil = sum(max(0, t - self.others.get(n, 0)) for n, t in others.items())
        if self.others.keys() - others.keys():  # one is over: it may have had the GIL all the time
            gil += now - self.read
        ran = [] if first else _ran(used, self.read, now)
        self.read, self.ready, self.others, self.small = now, ready, others, 0
        took = time.monotonic_ns() - now
        self.due = now + max(FRESH, SHARE * took)
        return core, gil, ran


class OffCpu:
    """The clocks of all issuing threads.  Each thread sees its own; what it has lost is told to
    `lost(since, until, nanoseconds, of these without a core)`, and where other Python threads were
    to `ran`; `begins()` is called by a thread that was not known.
    """

    def __init__(
        self,
        lost: Callable[[int, int, int, int], None],
        begins: Callable[[], None] = lambda: None,
        ran: Callable[[list[Ran]], None] = lambda rows: None,
    ) -> None:
        self.lost, self.begins, self.ran = lost, begins, ran
        self.threads = threading.local()
        self.issuing: dict[int, None] = {}  # numbers of the threads, in the system

    def restart(self) -> None:
        """Forget all threads' clocks; the calling one begins now."""
        self.threads = threading.local()
        self.issuing = {}
        self._clocks()

    def _clocks(self) -> _Clocks:
        """Make the clocks of the calling thread, which is new here."""
        own: _Clocks = _Clocks()
        self.threads.clocks = own
        self.issuing[threading.get_native_id()] = None
        return own

    def begin(self, ready: int = 0) -> None:
        """Restart the calling thread's clocks after a wait: time lost in the wait does not count.

        `ready`: the nanoseconds without a core by the end of the wait, if that is known.
        """
        try:
            own: _Clocks = self.threads.clocks
        except AttributeError:
            self._clocks()
            self.begins()
            return
        since, own.wall, own.cpu = own.wall, time.monotonic_ns(), time.thread_time_ns()
        if own.wall > own.due:
            self._elsewhere(own, own.wall)
        elif own.wall - since >= LEAST:  # who waits yields its core, or wakes late
            self._without_core_by(own, ready or scheduled(threading.get_native_id())[1])

    def without_core(self, ready: int) -> int:
        """Return the nanoseconds that the calling thread has had no core since its last look, if it
        had been `ready` without one for so long by now; 0: not known.
        """
        own: _Clocks | None = getattr(self.threads, "clocks", None)
        return max(0, ready - own.ready - own.small) if own is not None and own.ready else 0

    def late(self, since: int, now: int, ready: int = 0) -> None:
        """The calling thread could have gone on at `since`, and does now.  By then it had been
        `ready` without a core for so long; 0: not known.
        """
        own: _Clocks | None = getattr(self.threads, "clocks", None)
        if own is not None:
            self._without_core_by(own, ready)
        core, gil = self._elsewhere(own, now) if own is not None else (0, now - since)
        lost = min(now - since, core + gil)
        if lost >= LEAST:
            self.lost(now - lost, now, lost, min(core, lost))

    @staticmethod
    def _without_core_by(own: _Clocks, ready: int) -> None:
        """Let what comes be counted from `ready` on."""
        if ready > own.ready:
            own.ready, own.small = ready, 0

    def _elsewhere(self, own: _Clocks, now: int) -> tuple[int, int]:
        core, gil, ran = own.elsewhere(now)
        if ran:
            self.ran(ran)
        return core, gil

    def look(self) -> int:
        """Find the time that the calling thread has lost since its last look.  Return the present
        time.
        """
        try:
            own: _Clocks = self.threads.clocks
        except AttributeError:
            own = self._clocks()
            self.begins()
        now, used = time.monotonic_ns(), time.thread_time_ns()
        since = own.wall
        lost = now - since - used + own.cpu
        own.wall, own.cpu = now, used
        if lost < LEAST:
            own.small += lost
            if now > own.due:
                self._elsewhere(own, now)
        else:
            core, gil = self._elsewhere(own, now)
            if (lost := min(lost, core + gil)) >= LEAST:
                self.lost(since, now, lost, min(core, lost))
        return now
