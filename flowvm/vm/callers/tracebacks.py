"""Tracebacks that show the user's lines: flowvm's own frames are cut out of its own errors.

Only of a `FlowError`, which says what is wrong with the call, of what a Python callback raised and,
when it is printed, of a Ctrl-C, which comes wherever flowvm happens to be: any other exception that
leaves flowvm is a bug of flowvm's, and its frames are what a report needs.
`FLOWVM_TB=full`, or `flow.config.tb`, keeps all.

A traceback grows by an entry a frame while an exception travels up, so it is cut at the borders,
where flowvm is left: a handler there sets the traceback anew and ends in a bare `raise`, which, of
all ways to raise, adds no entry of its own.  A `try` costs nothing where nothing is raised.  Such a
handler is in each generated call, in `Module.__call__` and wherever Python waits for the VM.  A
function composed of ops has none, because a call more for each would be felt: what leaves one is
cut when somebody asks for it, for the `__traceback__` of a `FlowError` is a property; by
`sys.excepthook`, when Python prints it; and hidden by IPython and pytest, which look for a local
variable `__tracebackhide__`.  Complete it is for who has it of `sys.exc_info()` and never asked the
error: `logging.exception`, `traceback.print_exc`.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

from flowvm.config import config
from flowvm.errors import FlowError, on_made
from flowvm.private.cpython import traceback_slot
from flowvm.vm.callers.lines import INTERNAL

on_interrupted: list[Callable[[TracebackType | None], None]] = []  # called for an unhandled Ctrl-C
NOTE = "flowvm: raised by "  # the beginning of the note of an asynchronous error

P = ParamSpec("P")
R = TypeVar("R")


def users(tb: TracebackType | None) -> TracebackType | None:
    """The entries of a traceback that are not flowvm's, as a new one."""
    entries = []
    while tb is not None:
        if not INTERNAL[tb.tb_frame.f_code.co_filename]:
            entries.append(tb)
        tb = tb.tb_next
    inner: TracebackType | None = None
    for entry in reversed(entries):
        inner = TracebackType(inner, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return inner


def cut(error: BaseException) -> None:
    """Cut flowvm's frames out of a traceback; called by a handler that ends in a bare `raise`."""
    if config.tb == "user":
        error.__traceback__ = users(error.__traceback__)


def border(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that users call: tracebacks of its exceptions show only users' frames.

    For functions that wait or are called seldom.  Functions called once an op have a handler of
    their own.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            if ours(error):
                cut(error)
            raise

    return call


def ours(error: BaseException) -> bool:
    """Return True if flowvm raises the exception on purpose."""
    if isinstance(error, FlowError):
        return True
    return any(str(note).startswith(NOTE) for note in getattr(error, "__notes__", ()))


def shown(error: BaseException, tb: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback to print."""
    theirs = ours(error) or isinstance(error, KeyboardInterrupt)
    return users(tb) if theirs and config.tb == "user" else tb


def hide() -> None:
    """Mark flowvm's frames on the stack for IPython and pytest; called when an error is made."""
    install()
    if config.tb != "user":
        return
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        function = code.co_flags & inspect.CO_OPTIMIZED  # a module's locals would keep it
        if INTERNAL[code.co_filename] and function:
            frame.f_locals["__tracebackhide__"] = True
        frame = frame.f_back


on_made.append(hide)

_raw: Any = traceback_slot()


def _traceback(error: FlowError) -> TracebackType | None:
    """Return the value of `error.__traceback__` for Python code: the user's frames, from the first
    look on.
    """
    whole: TracebackType | None = _raw.__get__(error)
    tb = whole
    while tb is not None and not INTERNAL[tb.tb_frame.f_code.co_filename]:
        tb = tb.tb_next
    shortened = users(whole) if tb is not None and config.tb == "user" else None
    if shortened is None:
        return whole
    _raw.__set__(error, shortened)
    return shortened


setattr(FlowError, "__traceback__", property(_traceback, _raw.__set__))  # noqa: B010 - for mypy


def install() -> None:
    """Let Python print flowvm's errors without flowvm's frames, whoever printed errors before.

    Called when the VM starts and when an error is made, for some come before it: importing flowvm
    changes nothing.
    """
    before = sys.excepthook
    if getattr(before, "__module__", "") == __name__:
        return

    def hook(kind: type[BaseException], error: BaseException, tb: TracebackType | None) -> None:
        for function in on_interrupted if issubclass(kind, KeyboardInterrupt) else ():
            function(tb)
        tb = shown(error, tb)
        before(kind, error.with_traceback(tb), tb)

    sys.excepthook = hook
