"""Ctrl-C while the VM runs.

KeyboardInterrupt may come between any two bytecodes.  Between taking a sequence number and
publishing its record it would leave a hole in the ring that stops the VM, and in a `__del__` it
would be swallowed: there it is put off until a millisecond later.

Where that is, functions say themselves: `protected` and `waiting` register the code that runs, so a
function may be renamed, moved or generated.
"""

from __future__ import annotations

import _thread
import signal
import threading
import time
import weakref
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, TypeVar

from flowvm.vm.callers.lines import INTERNAL

_Function = TypeVar("_Function", bound=Callable[..., Any])

# By id, for code is compared by what it says, and two generated functions may say the same.
_protected: weakref.WeakValueDictionary[int, CodeType] = weakref.WeakValueDictionary()
_waiting: weakref.WeakValueDictionary[int, CodeType] = weakref.WeakValueDictionary()


def protected(function: _Function) -> _Function:
    """Decorates a function of flowvm in which, and in what it calls, no interrupt may come."""
    code = function.__code__
    _protected[id(code)] = code
    return function


def waiting(function: _Function) -> _Function:
    """Decorates one that may be interrupted wherever it is called: its record was published."""
    code = function.__code__
    _waiting[id(code)] = code
    return function


def is_protected(code: CodeType) -> bool:
    """Whether `protected` knows this code."""
    return _protected.get(id(code)) is code


def is_waiting(code: CodeType) -> bool:
    """Whether `waiting` knows this code."""
    return _waiting.get(id(code)) is code


def interrupt(signum: int, frame: FrameType | None) -> None:
    """SIGINT: raise KeyboardInterrupt, but not where it would leave a hole or be swallowed."""
    at = frame
    while at is not None:
        code = at.f_code
        if is_waiting(code):
            break
        if is_protected(code) or code.co_filename == weakref.__file__:
            _thread.start_new_thread(_interrupt_again, (signum,))
            return
        if not INTERNAL[code.co_filename] and code.co_filename != threading.__file__:
            break  # a user's function, called by those
        at = at.f_back
    signal.default_int_handler(signum, frame)


def _interrupt_again(signum: int) -> None:
    """Send a Ctrl-C that was put off once more.

    From another thread: here it would come in its own handler.
    """
    time.sleep(0.001)
    _thread.interrupt_main(signal.Signals(signum))
