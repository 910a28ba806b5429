"""Work that no signal handler's exception may interrupt: compiling, and importing modules that
compile.

Signal handlers run on the main thread, so another thread does the main thread's work while it
waits.  Numba and llvmlite are not written for an exception between any two bytecodes: a module
stays half imported, a destructor finds its object half made.  An exception that comes meanwhile is
raised after the work, whose result is kept.

The main thread may have left a lock taken that the work needs.  An exception came after an import,
a line of `logging` or a call of Numba had taken it.  No other thread can release it, so the main
thread does while it waits.  It reports a wait if the other thread has hardly run for `PATIENCE`;
compiling may take longer.
"""

from __future__ import annotations

import _thread
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from flowvm.guards.collection import Uncollected
from flowvm.private.locks import give_back, held_locks

if TYPE_CHECKING:
    from collections.abc import Sequence


T = TypeVar("T")
NO_THREAD = "can't start new thread"  # CPython's words, of a RuntimeError
LOOK = 0.5  # seconds between two checks of the locks that this thread has taken
PATIENCE = 10.0  # seconds after which the wait is reported, if the other thread waits itself:
IDLE = 0.01  # it has used less than this part of a core
MOST_FRAMES = 12


def apart(function: Callable[..., T], *args: object) -> T:
    """Return `function(*args)`, called on a thread where no signal handler runs."""
    if threading.current_thread() is not threading.main_thread() or sys.is_finalizing():
        return function(*args)  # when Python ends no other thread runs any more
    answer: list[tuple[bool, Any]] = []
    started: list[int] = []  # filled by one call of C: the thread's number, if one started
    over = threading.Lock()
    over.acquire()
    tasks: list[int] = []
    start = map(_thread.start_new_thread, (_answer,), ((answer, over, tasks, function, args),))
    try:
        try:
            started.extend(start)
        except RuntimeError as error:
            if started or str(error) != NO_THREAD:
                raise
            return function(*args)  # memory is short: then here, for all that may come meanwhile
        if not over.acquire(timeout=LOOK):
            _look_after(started[0], tasks, answer, over)
    except BaseException:
        if started:
            _wait_for(started[0], tasks, answer, over)
        raise
    succeeded, value = answer.pop()
    if not succeeded:
        try:
            raise value
        finally:
            del value  # or its traceback would hold itself
    result: T = value
    return result


def _wait_for(
    worker: int, tasks: list[int], answer: Sequence[tuple[bool, object]], over: threading.Lock
) -> None:
    """Wait to the end in spite of exceptions; raise one of them afterwards."""
    while not answer:
        with suppress(BaseException):
            _look_after(worker, tasks, answer, over)


def _look_after(
    worker: int, tasks: list[int], answer: Sequence[tuple[bool, object]], over: threading.Lock
) -> None:
    """Wait, and release locks that this thread has left taken.  Print once if it takes long.

    The lock alone does not tell: an exception may have come when it was acquired already.
    """
    begun, used, is_idle = time.monotonic(), _used(tasks), False
    while not answer:
        for name in give_back():
            _say(f"flowvm: an exception had left {name} taken on the main thread; it is given back")
        if over.acquire(timeout=LOOK):
            return
        if not is_idle and (waited := time.monotonic() - begun) > PATIENCE:
            before, used = used, _used(tasks)
            if is_idle := used - before <= IDLE * waited:
                _say(_report(worker))
            begun += waited


def _used(tasks: list[int]) -> float:
    """Return the seconds of a core that the thread has used; 0 where the system does not tell."""
    try:
        words = Path(f"/proc/self/task/{tasks[0]}/schedstat").read_text().split()
        return int(words[0]) * 1e-9
    except (OSError, IndexError, ValueError):
        return 0.0


def _report(worker: int) -> str:
    """Return a report: the stack of the thread for which the main thread waits, and the owner of
    each lock.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    names |= {worker: "the thread that works for it", 0: "a thread"}
    lines = [
        f"flowvm: the main thread has waited over {PATIENCE:g} s for another thread, which is at"
    ]
    with Uncollected():
        frames = sys._current_frames()
        lines += _stack(frames.get(worker))
        for one in held_locks():
            lines.append(f"  {names.get(one.owner, f'thread {one.owner}')} has {one.name}")
            if one.owner not in (worker, 0):
                lines += _stack(frames.get(one.owner)) or ["    and does not run any more"]
    return "\n".join(lines)


def _stack(frame: FrameType | None) -> list[str]:
    return [
        f"    {step.filename}:{step.lineno} {step.name}"
        for step in traceback.extract_stack(frame, MOST_FRAMES)[::-1]
    ] if frame is not None else []  # fmt: skip


def _say(text: str) -> None:
    with suppress(OSError, ValueError, AttributeError):  # stderr may be closed, or none
        print(text, file=sys.stderr, flush=True)


def _answer(
    answer: list[tuple[bool, object]],
    over: threading.Lock,
    tasks: list[int],
    function: Callable[..., object],
    args: tuple[object, ...],
) -> None:
    try:
        tasks.append(threading.get_native_id())
        answer.append((True, function(*args)))
    except BaseException as error:
        answer.append((False, error))
    finally:
        over.release()
