"""What a terminal shows while kernels are compiled: a line, once that took more than a second in
all.

It is there only while something compiles, so that nothing else is ever printed behind it; and not
while somebody else owns the terminal's lines: rich's displays, which replace `sys.stderr`, and who
is `telling` of kernels in a line of its own.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator

from flowvm.config import config, say
from flowvm.regions import reverting

PATIENCE = 1.0  # seconds of a burst that show nothing
BURST_ENDS_AFTER = 0.5  # seconds without compiling


class _Burst:
    """Kernels compiled one after another.  Guarded by the lock of `flowvm.compiler.jit`."""

    def __init__(self) -> None:
        self.spent = 0.0
        self.count = 0
        self.ended = 0.0
        self.listener: Callable[[str], None] | None = None

    def begin(self) -> float:
        """Now, when a kernel is compiled next; in a burst of its own if the last is long over."""
        start = time.monotonic()
        if start - self.ended > BURST_ENDS_AFTER:
            self.spent, self.count = 0.0, 0
        return start

    def end(self, start: float) -> None:
        self.ended = time.monotonic()
        self.spent += self.ended - start
        self.count += 1


_burst = _Burst()


@contextlib.contextmanager
def compiling(name: str) -> Iterator[None]:
    """The kernel `name` is compiled inside."""
    burst = _burst
    if burst.listener is not None:
        burst.listener(name)
    if burst.listener is not None or not on_terminal():
        yield
        return
    start = burst.begin()
    show = burst.spent > PATIENCE
    if show:
        text = f"flowvm: compiling kernels (first run only) ... {burst.count}"
        print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if show:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
        burst.end(start)


def on_terminal() -> bool:
    """Whether a line may be written to stderr and taken back."""
    terminal = sys.__stderr__
    return terminal is not None and terminal is sys.stderr and terminal.isatty()


def tell(text: str) -> None:
    """A line of news for who sits at a prompt; for others from FLOWVM_DEBUG=1 on."""
    if hasattr(sys, "ps1") and on_terminal() and config.debug < 1:
        print(f"\r\x1b[2K\x1b[2mflowvm: {text}\x1b[0m", file=sys.stderr, flush=True)
    else:
        say(1, text)


def telling(listener: Callable[[str], None]) -> reverting:
    """Call `listener` with the name of each kernel that is compiled inside, and show nothing."""
    burst = _burst
    back = functools.partial(setattr, burst, "listener", burst.listener)
    return reverting(back, functools.partial(setattr, burst, "listener", listener))


def _after_fork_in_child() -> None:
    global _burst  # what compiled in the parent does not here
    _burst = _Burst()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
