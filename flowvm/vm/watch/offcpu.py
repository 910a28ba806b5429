"""Times at which an issuing thread could have run and did not: the `gil` waits of the recorder.

A thread's processor time falls behind the wall clock while another thread has the GIL, while the
system runs something else on its core, and while it blocks: in a sleep, a lock, a read.  The first
two are `gil`; the third is the program's own doing and stays `host`.  They are told apart by what
happened elsewhere: to wait for the GIL means that another Python thread was on a processor, and
how long a thread was ready to run without a core is counted by Linux.  So what is `gil` is at most
the sum of those two; another thread that computes without the GIL while this one sleeps, or waits
for what that computes, is taken to have had it.

A `look` compares the two clocks of the calling thread since its last look, in which it was in no
wait of the VM's.  It gives the amount lost, not the time: `flowvm.profiler.run.collect` puts that
where nothing was issued.  Amounts below LEAST are not looked into, so a look is one system call.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable

LEAST = 50_000  # ns off the processor in one stretch, below which it stays `host`
FRESH = 10_000_000  # ns between looks at other threads; more if looks take over a SHARE of the time
SHARE = 100
_libc = ctypes.PyDLL(None)  # which keeps the GIL
NATIVE = ("flowvm-sched", "flowvm-w:", "flowvm-h:")  # threads that never hold the GIL


def _ready(thread: int) -> int:
    """Nanoseconds that a thread of this process was ready to run and had no core; 0: not known.

    The file is read without releasing the GIL; Python's own functions release it three times.  With
    other threads that want the GIL, each release would take 5 ms, and the measurement would cause
    the loss.
    """
    file = _libc.open(b"/proc/self/task/%d/schedstat" % thread, os.O_RDONLY | os.O_CLOEXEC)
    if file < 0:
        return 0
    text = ctypes.create_string_buffer(64)
    count = _libc.read(file, text, 64)
    _libc.close(file)
    try:
        return int(text.raw[: max(0, count)].split()[1])
    except (IndexError, ValueError):
        return 0


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
    found = [(t.native_id, t.name) for t in every if not t.name.startswith(NATIVE)]
    return {
        n: _used(n) + (0 if name.startswith("flowvm-") else _ready(n))
        for n, name in found
        if n is not None and n != own
    }


class _Clocks:
    """The clocks of a thread at its last look.  `read` is the time of the last look at the other
    threads, to be repeated when it is `due`.  `small` is the time lost since, below LEAST.
    """

    __slots__ = ("cpu", "due", "others", "read", "ready", "small", "wall")

    def __init__(self) -> None:
        self.wall, self.cpu = time.monotonic_ns(), time.thread_time_ns()
        self.read, self.ready, self.small = 0, 0, 0
        self.others: dict[int, int] = {}
        self.elsewhere(self.wall)

    def elsewhere(self, now: int) -> int:
        """Return the nanoseconds that may have kept the calling thread from running since the last
        call.
        """
        thread = threading.get_native_id()
        ready, others = _ready(thread), _others(thread)
        kept = max(0, ready - self.ready - self.small)
        kept += sum(max(0, t - self.others.get(n, 0)) for n, t in others.items())
        if self.others.keys() - others.keys():  # one is over: it may have had the GIL all the time
            kept += now - self.read
        self.read, self.ready, self.others, self.small = now, ready, others, 0
        took = time.monotonic_ns() - now
        self.due = now + max(FRESH, SHARE * took)
        return kept


class OffCpu:
    """The clocks of all issuing threads; each thread reads its own.  Lost time is reported by
    `lost(since, until, nanoseconds)`.  A new thread calls `begins()`.
    """

    def __init__(
        self, lost: Callable[[int, int, int], None], begins: Callable[[], None] = lambda: None
    ) -> None:
        self.lost, self.begins = lost, begins
        self.threads = threading.local()

    def restart(self) -> None:
        """Forget all threads' clocks; the calling one begins now."""
        self.threads = threading.local()
        self.threads.clocks = _Clocks()

    def begin(self) -> None:
        """Restart the calling thread's clocks after a wait: time lost in the wait does not
        count.
        """
        try:
            own: _Clocks = self.threads.clocks
        except AttributeError:
            self.threads.clocks = _Clocks()
            self.begins()
            return
        own.wall, own.cpu = time.monotonic_ns(), time.thread_time_ns()
        if own.wall > own.due:
            own.elsewhere(own.wall)

    def look(self) -> int:
        """Find the time that the calling thread has lost since its last look.  Return the present
        time.
        """
        try:
            own: _Clocks = self.threads.clocks
        except AttributeError:
            own = self.threads.clocks = _Clocks()
            self.begins()
        now, used = time.monotonic_ns(), time.thread_time_ns()
        since = own.wall
        lost = now - since - used + own.cpu
        own.wall, own.cpu = now, used
        if lost < LEAST:
            own.small += lost
            if now > own.due:
                own.elsewhere(now)
        elif (lost := min(lost, own.elsewhere(now))) >= LEAST:
            self.lost(since, now, lost)
        return now
