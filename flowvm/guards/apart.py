"""Work that an exception of a signal handler must not come into: compiling, and importing what
compiles.

Signal handlers run on the main thread, so what that one asks for is done by another, and it waits.
Numba and llvmlite are not written for an exception between any two bytecodes: a module is left half
imported, a destructor finds its object half made.  What comes meanwhile is raised when the work is
done, which is kept.

The main thread may have left a lock taken that the work needs: an exception came between an import,
a line of `logging` or a call of Numba taking it and giving it back.  Nobody else can give it back,
so the main thread does while it waits.  After `PATIENCE` it says what it waits for.
"""

from __future__ import annotations

import _thread
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from flowvm.private.locks import give_back, taken

T = TypeVar("T")
NO_THREAD = "can't start new thread"  # CPython's words, of a RuntimeError
LOOK = 0.5  # seconds between two looks at what this thread has taken
PATIENCE = 10.0  # seconds after which it is said what is waited for
MOST_FRAMES = 12


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
        if not over.acquire(timeout=LOOK):
            _look_after(started[0], answer, over)
    except BaseException:
        if started:
            _wait_for(started[0], answer, over)
        raise
    done, value = answer.pop()
    if not done:
        try:
            raise value
        finally:
            del value  # or its traceback would hold itself
    result: T = value
    return result


def _wait_for(worker: int, answer: list[tuple[bool, Any]], over: threading.Lock) -> None:
    """Wait in spite of whatever comes; one is raised, of however many."""
    while not answer:
        with suppress(BaseException):
            _look_after(worker, answer, over)


def _look_after(worker: int, answer: list[tuple[bool, Any]], over: threading.Lock) -> None:
    """Wait, and give back what this thread has left taken; say once what takes long.

    The lock alone does not tell: an exception may have come when it was acquired already.
    """
    begun, told = time.monotonic(), False
    while not answer:
        for name in give_back():
            _say(f"flowvm: an exception had left {name} taken on the main thread; it is given back")
        if over.acquire(timeout=LOOK):
            return
        if not told and time.monotonic() - begun > PATIENCE:
            told = True
            _say(_report(worker))


def _report(worker: int) -> str:
    """Return text: a thread's stack that the main thread waits for, and who has which lock."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    names |= {worker: "the thread that works for it", 0: "a thread"}
    lines = [f"flowvm: the main thread has waited over {PATIENCE:g} s for another thread, which is"]
    frames = sys._current_frames()
    lines += _stack(frames.get(worker))
    for one in taken():
        lines.append(f"  {names.get(one.owner, f'thread {one.owner}')} has {one.name}")
        if one.owner not in (worker, 0):
            lines += _stack(frames.get(one.owner)) or ["    and does not run any more"]
    return "\n".join(lines)


def _stack(frame: Any) -> list[str]:
    return [
        f"    {step.filename}:{step.lineno} {step.name}"
        for step in traceback.extract_stack(frame, MOST_FRAMES)[::-1]
    ] if frame is not None else []  # fmt: skip


def _say(text: str) -> None:
    with suppress(OSError, ValueError, AttributeError):  # stderr may be closed, or none
        print(text, file=sys.stderr, flush=True)


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
