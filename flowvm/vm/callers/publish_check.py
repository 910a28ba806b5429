"""A check that no thread is in the middle of publishing a record, for the debug build of the call
path.

From the moment when a thread has a sequence number until its record is marked, the scheduler waits
for that record.  Whoever waits for the scheduler then waits for itself; whoever issues is behind a
hole; and a garbage collection may run finalizers that do either.  With FLOWVM_DEBUG_CALLS=1 every
call notes in `begun` which number it took, and `assert_none` is asked wherever something is issued,
waited for, allocated or collected.  Otherwise nothing is noted and nobody asks.
"""

from __future__ import annotations

import gc
import threading
from typing import Any

from flowvm.config import config
from flowvm.errors import VMError
from flowvm.vm.callers.hot import hot
from flowvm.vm.machine.words import RING

begun: dict[int, int] = {}  # thread -> the number that it took last
broken: list[str] = []  # forbidden actions inside an open record


def publishing(words: Any) -> int:
    """Return the number of the record that this thread has not published yet; -1 if there is
    none.
    """
    seq = begun.get(threading.get_ident(), -1)
    mark = words[RING.AT + (seq & RING.SLOT_MASK) * RING.WORDS + RING.MARK]
    return seq if seq >= 0 and mark < seq + 1 else -1


def assert_none(words: object, what: str) -> None:
    """Raise VMError if this thread is publishing a record while it does `what`."""
    seq = publishing(words)
    if seq >= 0:
        broken.append(what)
        raise VMError(f"{what} while instruction #{seq} of this thread is being published")


def watch(words: object) -> None:
    """Let calls assert that no record is open.  Note garbage collections inside an open record,
    which cannot raise.
    """
    hot["none_begun"] = lambda: assert_none(words, "something was issued")

    def collecting(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and publishing(words) >= 0:
            broken.append("a garbage collection")

    gc.callbacks.append(collecting)


if config.debug_calls:
    hot.update({"begun": begun, "get_ident": threading.get_ident})
