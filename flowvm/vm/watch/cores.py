"""Use of the cores: for each thread the time on a core, and the time ready without one.

Linux counts both for every thread.  Two readings, one in front of a piece of code and one behind
it, say who took the cores from whom: threads that issue, flowvm's own threads and the processes
that compile for it, other threads of Python, or other processes.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from typing import NamedTuple

import numpy as np

from flowvm.compiler import helpers
from flowvm.meta.arrays import Array
from flowvm.vm.machine.wait_words import WAIT

_FILE = ctypes.create_string_buffer(b"/proc/thread-self/schedstat")
_libc = ctypes.PyDLL(None)  # which keeps the GIL
OWN = "flowvm-"  # names of flowvm's threads begin with it
KINDS = ("issuing", "own", "python", "compiling")


def scheduled(thread: int) -> tuple[int, int]:
    """Nanoseconds that a thread of this process was on a core, and ready without one; (0, 0): not
    known.

    Read without letting the GIL go, as Python's own functions do three times: with others that want
    it, each would take 5 ms, and what looks for that would be what takes the time.
    """
    file = _libc.open(b"/proc/self/task/%d/schedstat" % thread, os.O_RDONLY | os.O_CLOEXEC)
    if file < 0:
        return 0, 0
    text = ctypes.create_string_buffer(64)
    _libc.read(file, text, 64)
    _libc.close(file)
    return _counts(text.raw)


def _counts(text: bytes) -> tuple[int, int]:
    """Return the two counts in a file's text; (0, 0): not known.

    `int` is not asked for an error: CPython loses a Ctrl-C that comes while `int` words one.
    """
    words = text[: max(0, text.find(b"\n"))].split()[:2]
    if len(words) < 2 or not all(map(bytes.isdigit, words)):
        return 0, 0
    return int(words[0]), int(words[1])


def new_cell() -> Array:
    """A cell for waits (`WAIT`), with what it takes to note the counts when one is over."""
    cell = np.zeros(WAIT.WORDS, np.int64)
    cell[WAIT.FILE], cell[WAIT.FLAGS] = ctypes.addressof(_FILE), os.O_RDONLY | os.O_CLOEXEC
    for word, function in (WAIT.OPEN, "open"), (WAIT.READ, "read"), (WAIT.CLOSE, "close"):
        cell[word] = ctypes.cast(getattr(_libc, function), ctypes.c_void_p).value or 0
    return cell


def ready_by(cell: Array) -> int:
    """Nanoseconds that a thread had been ready without a core when its wait was over; 0: not
    known.
    """
    return _counts(cell[WAIT.TEXT : WAIT.TEXT + WAIT.TEXT_BYTES // 8].tobytes())[1]


class Reading(NamedTuple):
    """Counts at a `moment`: of each thread of this process, by its number in the system, its name
    and its nanoseconds on a core and ready without; of the process with its past threads; of
    processes that compile for it, by number; of everything on all cores, -1 if not known.
    """

    moment: int
    threads: dict[int, tuple[str, int, int]]
    process: int
    compiling: dict[int, int]
    everything: int


def reading() -> Reading:
    """Take a reading of the system's counts."""
    every = [(t.native_id, t.name) for t in list(threading._active.values())]  # type: ignore[attr-defined]
    threads = {n: (name, *scheduled(n)) for n, name in every if n is not None}
    compiling = {}
    for pid in helpers.at_work():
        try:
            compiling[pid] = time.clock_gettime_ns((~pid << 3) | 2)  # the clock of that process
        except OSError:
            continue
    now, used = time.monotonic_ns(), time.process_time_ns()
    return Reading(now, threads, used, compiling, _everything())


def _everything() -> int:
    """Nanoseconds that something ran on all cores of the machine; -1: not known."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            words = file.readline().split()
        ticks = [int(word) for word in words[1:9]]
    except (OSError, ValueError):
        return -1
    if words[0] != "cpu" or len(ticks) < 5:
        return -1
    idle = ticks[3] + ticks[4]
    return (sum(ticks) - idle) * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))


def between(before: Reading, after: Reading, issuing: set[int]) -> dict[str, object]:
    """Return the use of the cores between two readings, as plain values: `cores` that this process
    may use, `wall`, `others` (nanoseconds of other processes, -1: not known), and of each thread
    its name, kind (one of KINDS), nanoseconds on a core and ready without.  `issuing` are numbers
    of threads.
    """
    rows = []
    known = 0
    for number, (name, used, ready) in after.threads.items():
        _, first, idle = before.threads.get(number, (name, 0, 0))
        kind = "own" if name.startswith(OWN) else "issuing" if number in issuing else "python"
        rows.append([name, kind, max(0, used - first), max(0, ready - idle)])
        known += used - first
    process = after.process - before.process
    gone = [name for n, (name, *_) in before.threads.items() if n not in after.threads]
    if process - known > 1_000_000:  # of threads that are over, and began inside perhaps
        own = bool(gone) and all(name.startswith(OWN) for name in gone)
        rows.append([gone[0] if own else "", "own" if own else "python", process - known, 0])
    helped = sum(used - before.compiling.get(n, 0) for n, used in after.compiling.items())
    if helped > 0:
        rows.append(["", "compiling", helped, 0])
    others, wall = -1, after.moment - before.moment
    cores = len(os.sched_getaffinity(0))
    if before.everything >= 0 and after.everything >= 0:
        others = max(0, after.everything - before.everything - process - max(0, helped))
        others = min(others, max(0, cores * wall - process))  # it is counted in ticks of 10 ms
    return {"cores": cores, "wall": wall, "others": others, "threads": rows}
