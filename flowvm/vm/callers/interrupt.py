"""Ctrl-C while the VM runs.

KeyboardInterrupt may come between any two bytecodes.  Between taking a sequence number and
publishing its record it would leave a hole in the ring that stops the VM, and in a `__del__` it
would be swallowed: there it is put off until a millisecond later.
"""

from __future__ import annotations

import _thread
import signal
import threading
import time
import weakref
from types import FrameType

from flowvm.vm.callers.lines import INTERNAL

__all__ = ["PROTECTED", "WAITING", "interrupt"]

# flowvm's functions, by name, in which no interrupt may come ...
PROTECTED: set[str] = {
    "publish", "__del__", "refill", "release_dead", "reclaim", "_run_callback", "start", "stop"
}  # fmt: skip
# ... and those that they call after their record was published
WAITING: set[str] = {"make_room", "_wait"}


def interrupt(signum: int, frame: FrameType | None) -> None:
    """SIGINT: raise KeyboardInterrupt, but not where it would leave a hole or be swallowed."""
    at = frame
    while at is not None:
        code = at.f_code
        internal = INTERNAL[code.co_filename]
        if internal and code.co_name in WAITING:
            break
        if (internal and code.co_name in PROTECTED) or code.co_filename == weakref.__file__:
            _thread.start_new_thread(_interrupt_again, (signum,))
            return
        if not internal and code.co_filename != threading.__file__:
            break  # a user's function, called by those
        at = at.f_back
    signal.default_int_handler(signum, frame)


def _interrupt_again(signum: int) -> None:
    """Send a Ctrl-C that was put off once more.

    From another thread: here it would come in its own handler.
    """
    time.sleep(0.001)
    _thread.interrupt_main(signal.Signals(signum))
