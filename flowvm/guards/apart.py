"""Work that an exception of a signal handler must not come into: compiling, and importing what
compiles.

Signal handlers run on the main thread, so what that one asks for is done by another, and it waits.
Numba and llvmlite are not written for an exception between any two bytecodes: a module is left half
imported, a destructor finds its object half made.  What comes meanwhile is raised when the work is
done, which is kept.
"""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")
NO_THREAD = "can't start new thread"  # CPython's words, of a RuntimeError


def apart(function: Callable[..., T], *args: Any) -> T:
    """`function(*args)`, where no signal handler runs."""
    if threading.current_thread() is not threading.main_thread() or sys.is_finalizing():
        return function(*args)  # when Python ends no other thread runs any more
    answer: list[tuple[bool, Any]] = []
    started: list[int] = []  # by one call of C: it has the thread's number if there is a thread
    over = threading.Lock()
    over.acquire()
    start = map(_thread.start_new_thread, (_answer,), ((answer, over, function, args),))
    try:
        try:
            started.extend(start)
        except RuntimeError as error:
            if started or str(error) != NO_THREAD:
                raise
            return function(*args)  # memory is short: then here, for all that may come meanwhile
        over.acquire()
    except BaseException:
        if started:
            _wait_for(answer, over)
        raise
    done, value = answer.pop()
    if not done:
        try:
            raise value
        finally:
            del value  # or its traceback would hold itself
    result: T = value
    return result


def _wait_for(answer: list[tuple[bool, Any]], over: threading.Lock) -> None:
    """Wait in spite of whatever comes; one is raised, of however many.

    The lock alone does not tell: an exception may have come when it was acquired already.
    """
    while not answer:
        with suppress(BaseException):
            over.acquire(timeout=0.1)


def _answer(
    answer: list[tuple[bool, Any]],
    over: threading.Lock,
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    try:
        answer.append((True, function(*args)))
    except BaseException as error:
        answer.append((False, error))
    finally:
        over.release()
