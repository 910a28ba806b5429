"""Progress lines on the terminal while kernels are compiled, and how long each will take.

A line names the kernel being compiled and the expected time, and says that it happens once.  At a
prompt it comes if the delay is noticeable, in a script once it takes more than two seconds.  The
next line comes when twice as long has passed, so there are few.  Lines stay: removing one would
also remove text that the user typed or the program printed meanwhile.  There are no lines while
another owner has the terminal: rich's displays, which replace `sys.stderr`, and `telling`, which
shows kernels in a line of its own.

The expected time is the kernel's last time with this cache (`flowvm.compiler.record`), else its
time elsewhere (`flowvm.compiler.seconds`), scaled by other kernels' times here and there.  It is
processor time of the compiling thread, so other programs do not change it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from flowvm.compiler import record
from flowvm.config import config, say
from flowvm.files.printable import printable
from flowvm.guards.regions import reverting
from flowvm.loading.lazy import lazy

if TYPE_CHECKING:
    import statistics

    from flowvm.compiler import seconds
else:  # when a kernel is made, and not with flowvm
    statistics = lazy("statistics")
    seconds = lazy("flowvm.compiler.seconds")

AT_A_PROMPT = 0.5  # seconds that are felt there
PATIENCE = 2.0  # seconds of a burst that show nothing in a script
BURST_ENDS_AFTER = 0.5  # seconds without compiling
UNKNOWN = 1.0  # seconds of a kernel without a measured time
WORTH_MEASURING = 0.01  # seconds
TENTH = 0.1  # seconds that are worth a word, and that say how quick a machine is


class _Work:
    """An op whose kernels are compiled; `first` is called before the first of them."""

    __slots__ = ("first", "op")

    def __init__(self, op: str, first: Callable[[], None] | None) -> None:
        self.op, self.first = op, first


class _Burst:
    """Kernels compiled one after another.  Guarded by the lock of `flowvm.compiler.jit`."""

    def __init__(self) -> None:
        self.spent = 0.0
        self.count = 0
        self.ended = 0.0
        self.spoken = 0.0  # for how many seconds of the burst a line has spoken
        self.listener: Callable[[str], None] | None = None
        # ops of all threads; a kernel counts as the last one's, which may be another thread's
        self.works: list[_Work] = []

    def begin(self) -> float:
        """Return the start time of a kernel's compilation.  It begins a burst of its own if the
        last burst is long over.
        """
        start = time.monotonic()
        if start - self.ended > BURST_ENDS_AFTER:
            self.spent, self.count, self.spoken = 0.0, 0, 0.0
        return start

    def end(self, start: float) -> None:
        self.ended = time.monotonic()
        self.spent += self.ended - start
        self.count += 1

    def announce(self, name: str) -> None:
        """Print a line if the kernel `name` is worth one."""
        known = estimate(name)
        prompt = hasattr(sys, "ps1")
        first = AT_A_PROMPT if prompt else PATIENCE
        will_be = self.spent + (known or (UNKNOWN if prompt else 0.0))
        if will_be < max(first, 2 * self.spoken):
            return
        self.spoken = will_be
        long = f", about {_rounded(known)} s" if known is not None and known >= TENTH else ""
        before = "1 kernel" if self.count == 1 else f"{self.count} kernels"
        far = f"{before} made in {_rounded(self.spent)} s, " if self.count else ""
        print(
            f"flowvm: making {printable(shown(name))}{long}; {far}once on this machine",
            file=sys.stderr,
            flush=True,
        )


_burst = _Burst()


@contextlib.contextmanager
def compiling(name: str) -> Iterator[str]:
    """A context for the compilation of the kernel `name`, which is said where somebody looks.  The
    value is the name with the op that the kernel is for.
    """
    burst = _burst
    for work in burst.works[-1:]:
        name = f"{work.op}: {name}"
        if work.first is not None:
            first, work.first = work.first, None
            first()
    name = name[: record.LONGEST]
    start = burst.begin()
    if burst.listener is not None:
        burst.listener(name)
    elif on_terminal():
        burst.announce(name)
    try:
        yield name
    finally:
        burst.end(start)


def making(op: str, first: Callable[[], None] | None = None) -> reverting:
    """Name the op for which kernels are compiled inside the with statement.  `first` is called
    before the first compilation.
    """
    works, work = _burst.works, _Work(op, first)

    def undo() -> None:
        if work in works:  # not where an exception came before
            works.remove(work)

    return reverting(undo, lambda: works.append(work))


def shown(name: str) -> str:
    """ "softmax (float32)" of "softmax: rows_body.<locals>.body, float32 float32"."""
    what, _, dtypes = name.rpartition(", ")
    op, _, kernel = what.rpartition(": ")
    different = dict.fromkeys(word for word in dtypes.split() if word != "->")
    if not what or not all(map(str.isidentifier, different)):
        return name.partition(": ")[0]
    return f"{op or kernel} ({', '.join(different)})"


def _rounded(seconds: float) -> str:
    return f"{seconds:.1f}" if seconds < 3 else f"{seconds:.0f}"


def on_terminal() -> bool:
    """Return True if stderr is a terminal."""
    terminal = sys.__stderr__
    return terminal is not None and terminal is sys.stderr and terminal.isatty()


def tell(text: str) -> None:
    """Print a line of news at Python's prompt; elsewhere from FLOWVM_DEBUG=1 on."""
    if hasattr(sys, "ps1") and on_terminal() and config.debug < 1:
        print(f"\x1b[2mflowvm: {printable(text)}\x1b[0m", file=sys.stderr, flush=True)
    else:
        say(1, text)


def telling(listener: Callable[[str], None]) -> reverting:
    """Call `listener` with the name of each kernel compiled inside the with statement, and print
    nothing.
    """
    burst = _burst
    back = functools.partial(setattr, burst, "listener", burst.listener)
    return reverting(back, functools.partial(setattr, burst, "listener", listener))


# --- how long it takes ----------------------------------------------------------------------------


def estimate(name: str) -> float | None:
    """Return the estimated seconds to make a kernel; None if nothing is known."""
    times, reference = measured(), seconds.SECONDS
    if (own := _of(name, times)) is not None:
        return own
    if (other := _of(name, reference)) is None:
        return None
    both = [
        times[k] / reference[k] for k in times.keys() & reference.keys() if reference[k] >= TENTH
    ]
    return other * (statistics.median(both) if both else 1.0)


def _of(name: str, table: dict[str, float]) -> float | None:
    """Return a kernel's seconds in a table: for this op, or the most that other ops with this
    kernel took.
    """
    if name in table:
        return table[name]
    kernel = _kernel(name)
    return max((took for k, took in table.items() if _kernel(k) == kernel), default=None)


def _kernel(name: str) -> str:
    op, _, kernel = name.partition(": ")
    return kernel or op


def measured() -> dict[str, float]:
    """Return the seconds of each kernel that was compiled with this cache."""
    rows = record.read(config.cache_dir)
    return {row.name: row.busy for row in rows if row.busy >= WORTH_MEASURING}


def _after_fork_in_child() -> None:
    global _burst  # compilations of the parent do not run here
    _burst = _Burst()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
