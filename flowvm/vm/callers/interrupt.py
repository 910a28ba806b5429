"""Ctrl-C while the VM runs.

KeyboardInterrupt may come between any two bytecodes.  What switches something is made so that
nothing is left behind (`flowvm.guards.regions`).  But in a `__del__` and in callbacks of weak
references and the garbage collection it would be swallowed, and between a storage's id and the
tensor that owns it memory would be lost: there it is put off until a millisecond later.  So it is
where a lock would stay taken: in Python code of a library that takes one or gives it back (imports,
`logging`, `threading`, `multiprocessing`, Numba, llvmlite), and on CPython 3.14 between an
`__enter__` and its block, anybody's.  Who waits for such a lock is interrupted, when that was put
off `STUCK` times at one place; so is a finalizer of the program's that takes longer than `LONG_S`.

Where that is, functions say themselves: `protected` and `waiting` register the code that runs, so a
function may be renamed, moved or generated.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import gc
import os
import queue
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import CodeType, FrameType
from typing import TypeVar

from flowvm.guards import regions
from flowvm.private.cpython import enters_block
from flowvm.vm.callers import tracebacks
from flowvm.vm.callers.lines import INTERNAL

# CPython ignores exceptions in their frames
_CALLBACKS = {weakref.__file__, sys.modules[weakref.WeakSet.__module__].__file__}
# of finalizers in there the same is true where an object's end calls them, and not its own package
_FINALIZING = os.path.join(os.path.dirname(threading.__file__), "multiprocessing", "util.py")
_BETWEEN = {threading.__file__, contextlib.__file__, functools.__file__, queue.__file__}  # called
# by flowvm as a part of it; and so are the files of these packages
_PACKAGES = tuple(
    f"{os.sep}{name}{os.sep}"
    for name in ("llvmlite", "numba", "importlib", "logging", "multiprocessing", "concurrent")
)
_IMPORTING = "<frozen importlib._bootstrap"
# Functions that take a lock or give it back by a step of Python, as `with lock:` does not.  Before
# Python 3.13 an exception in `Thread.join` gives back the lock of a thread that still runs, and
# becomes a RuntimeError if that thread ends at this moment.
_TAKING = frozenset({
    "acquire", "release", "__enter__", "__exit__", "_acquireLock", "_releaseLock",
    "_acquire_restore", "_release_save", "_get_module_lock", "cb", "_lock_unlock_module",
    "start_event", "end_event", "enter_fn", "exit_fn", "_wait_for_tstate_lock",
})  # fmt: skip
LONG_S = 1.0  # seconds that a finalizer of the program's gets to end
TRIES = 5  # so often at least: another finalizer's frame may lie where the last one's lay
STUCK = 100  # so often it is put off at one place, a millisecond each, before that is a wait

_Function = TypeVar("_Function", bound=Callable[..., object])

# By id, because code is compared by its contents, and two generated functions may be equal.
_protected: weakref.WeakValueDictionary[int, CodeType] = weakref.WeakValueDictionary()
_waiting: weakref.WeakValueDictionary[int, CodeType] = weakref.WeakValueDictionary()


def protected(function: _Function) -> _Function:
    """Decorate a function of flowvm: no interrupt comes in it, nor in the functions that it
    calls.
    """
    code = function.__code__
    _protected[id(code)] = code
    return function


def waiting(function: _Function) -> _Function:
    """Decorate a function that may be interrupted wherever it is called, but for a finalizer: its
    record was published.
    """
    code = function.__code__
    _waiting[id(code)] = code
    return function


def is_protected(code: CodeType) -> bool:
    """Return True if a function with this code is `protected`."""
    return _protected.get(id(code)) is code


def is_waiting(code: CodeType) -> bool:
    """Return True if a function with this code is `waiting`."""
    return _waiting.get(id(code)) is code


class _LibraryFiles(dict[str, bool]):
    def __missing__(self, name: str) -> bool:
        library = name in _BETWEEN or name.startswith(_IMPORTING)
        self[name] = library = library or any(folder in name for folder in _PACKAGES)
        return library


_LIBRARY: dict[str, bool] = _LibraryFiles()  # by the name of a file
_TAKES = {contextlib.__file__: False, functools.__file__: False}  # files whose methods take no lock
_is_installed = [False]
raised = [0]  # the number of Ctrl-C that became a KeyboardInterrupt
_Tries = list[tuple[object, float]]  # the place of the last tries of a Ctrl-C, and their moments
_late: _Tries = []  # by the finalizer that runs
_stuck: _Tries = []  # by the innermost frame that waits, and its bytecode


def _is_taking(code: CodeType) -> bool:
    """Return whether this is a library's function that takes a lock or gives it back."""
    file = code.co_filename
    return code.co_name in _TAKING and _LIBRARY[file] and _TAKES.get(file, True)


def _note(tries: _Tries, place: object) -> None:
    """Add a try; those at another place do not count any more."""
    if tries and tries[-1][0] != place:
        tries.clear()
    tries.append((place, time.monotonic()))


def _is_stuck(frame: FrameType) -> bool:
    """Return whether the innermost frame is where it was put off many times: it waits there."""
    _note(_stuck, (id(frame), frame.f_lasti))
    return len(_stuck) > STUCK


def _is_ending(frame: FrameType) -> bool:
    """Return True if this is the frame of a multiprocessing finalizer that runs just now."""
    code, caller = frame.f_code, frame.f_back
    if code.co_filename != _FINALIZING or code.co_qualname != "Finalize.__call__":
        return False
    folder = os.path.dirname(_FINALIZING)
    return caller is None or os.path.dirname(caller.f_code.co_filename) != folder


def interrupt(signum: int, frame: FrameType | None) -> None:
    """Handle SIGINT: raise KeyboardInterrupt, but not where it would leave a hole or be
    swallowed.
    """
    if frame is not None and _puts_off(frame):
        _thread.start_new_thread(_interrupt_again, (signum,))
        return
    _stuck.clear()
    _late.clear()
    raised[0] += 1
    signal.default_int_handler(signum, frame)


def install() -> None:
    """Delay a Ctrl-C where it would be lost, unless the program has a handler, and print it without
    flowvm's frames.  Once: whoever sets Python's own handler again has it.
    """
    if _is_installed[0] or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
        tracebacks.install()
        _is_installed[0] = True


def _puts_off(frame: FrameType) -> bool:
    """Return whether an exception must not come at this frame now."""
    at: FrameType | None = frame
    collecting = {getattr(call, "__code__", None) for call in gc.callbacks}
    takes_long = _takes_long(frame, collecting)
    if enters_block(frame.f_code, frame.f_lasti):
        return True
    while at is not None:
        code = at.f_code
        if is_waiting(code):
            break  # but what a finalizer waits for ends before it, and it would be swallowed there
        ignored = code.co_name == "__del__" or code.co_filename in _CALLBACKS or code in collecting
        if ignored or is_protected(code) or _is_ending(at):
            return True
        if _is_taking(code) and not _is_stuck(frame):
            return True
        generated = code.co_qualname.startswith("__create_fn__.")  # a dataclass's, anybody's
        if not (generated or INTERNAL[code.co_filename] or _LIBRARY[code.co_filename]):
            break  # a user's function, called by flowvm's
        at = at.f_back
    return _finalizer(at, collecting) is not None and not takes_long


def _finalizer(at: FrameType | None, collecting: set[CodeType | None]) -> FrameType | None:
    """Return the frame of the innermost finalizer that runs, None if there is none."""
    while at is not None and at.f_code.co_name != "__del__" and at.f_code not in collecting:
        at = at.f_back
    return at


def _takes_long(frame: FrameType, collecting: set[CodeType | None]) -> bool:
    """Return whether each try of a Ctrl-C for so long has come in one finalizer: it seems to wait.

    A try follows each that was put off.  When it comes, a busy machine decides: so moments say how
    long it has been, and not whether it is the same finalizer.
    """
    _note(_late, id(_finalizer(frame, collecting)))
    return len(_late) > TRIES and _late[-1][1] - _late[0][1] > LONG_S


def _interrupt_again(signum: int) -> None:
    """Send a delayed Ctrl-C once more.

    From another thread: here it would come in its own handler.  As a signal, for the main thread
    may wait for something by now, which `_thread.interrupt_main` does not end.
    """
    time.sleep(0.001)
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, signum)


protected(regions._dropped)  # that room is below this one
