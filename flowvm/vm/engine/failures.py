"""Failures of instructions, kept until somebody sees them.

Workers push (sequence number, status, details) to the ERR ring.  `collect` turns them into
`Failure`s while the issuing frame is still remembered.  A failure is *seen* when its exception was
raised at a sync point; unseen ones are reported at exit.

A failure keeps only words and lines.  A raised exception has a traceback, whose frames have locals,
which are tensors.  So a raised exception is given away, and an equal one is kept in its place.  Of
a callback's frames only files, names and lines are kept.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator
from dataclasses import dataclass
from types import CodeType, FunctionType, TracebackType
from typing import TYPE_CHECKING

from flowvm.errors import Status, VMError, exception_for
from flowvm.files.printable import printable
from flowvm.guards.forks import held_at_fork
from flowvm.loading.lazy import lazy
from flowvm.vm.callers.hot import FRAMES, hot
from flowvm.vm.callers.lines import apart, short_position
from flowvm.vm.callers.tracebacks import users
from flowvm.vm.machine.lang import load_acquire
from flowvm.vm.machine.words import ARG, CTL, ENT, ERR
from flowvm.vm.watch.notes import Failing, caret_lines, note_of

if TYPE_CHECKING:
    from flowvm.vm.engine import exit_code
else:  # at the end of a process, if anything failed
    exit_code = lazy("flowvm.vm.engine.exit_code")

KEEP = 1024  # failures remembered; an older one still raises, with less to say


@dataclass(repr=False)
class Failure:
    """One failed instruction.  Prints as a line.

    >>> x = flow.tensor([1]) // flow.tensor([0])
    >>> try:
    ...     flow.vm.sync()
    ... except flow.FlowError as error:
    ...     print(type(error).__name__)
    DivisionByZeroError
    >>> flow.vm.errors()[-1].name
    'floor_divide'
    """

    seq: int
    name: str
    exception: BaseException  # is never raised: `waiters_exception` gives it away
    code: CodeType | None
    last: int
    seen: bool = False
    operands: str = ""
    captured: bool = False  # no failure, as long as its missing value is not needed
    scope: str = ""  # path of the module, of a graph's task
    info: object = None  # the entry's
    note: str = ""  # the text added to the exception
    traceback: TracebackType | None = None  # of a Python callback that raised: the user's frames
    forward: tuple[CodeType | None, int] = (None, 0)  # of a graph's task: the forward call
    last_told: Callable[[], BaseException | None] = lambda: None

    def waiters_exception(self) -> BaseException:
        """Return the exception to raise.  All waiters get the same object as long as one of them
        holds it.
        """
        error = self.last_told()
        if error is None:
            error = self.exception
            self.exception = _another(error)
            # built-in exceptions have no weak references, so each waiter gets its own
            if type(error).__weakrefoffset__:
                self.last_told = weakref.ref(error)
        return error

    def where(self) -> str:
        """The user's line that issued the instruction, with a caret line."""
        return caret_lines(self.code, self.last)

    def __repr__(self) -> str:
        where = short_position(self.code, self.last)
        note = "" if self.seen else "  (seen by nobody so far)"
        what = f"{type(self.exception).__name__}: {self.exception}"
        return printable(f"#{self.seq} {self.name}  {where}  {what}{note}", lines=True)


class Errors(list[Failure]):
    """The failed instructions, oldest first; printed, a line each.

    >>> flow.vm.Errors()
    no errors
    """

    def __repr__(self) -> str:
        return "\n".join(map(repr, self)) or "no errors"


class Failures:
    """The failures of one engine."""

    def __init__(self, vm: Failing) -> None:
        self.vm = vm
        self.count = 0
        self.by_seq: dict[int, Failure] = {}
        self.raised: dict[int, BaseException] = {}  # of host callbacks, by sequence number
        self.lock = held_at_fork(threading.Lock())
        # the memory report for an out-of-memory error; a higher layer sets it
        self.about_memory: Callable[[int], str] = lambda stream: ""
        # called with the numbers + 1 of failed instructions when their error is about to be raised
        self.told_of: Callable[[set[int]], None] = lambda causes: None

    def new(self) -> bool:
        """Return True if the workers have reported failures that `collect` has not read."""
        return bool(self.vm.words[CTL.ERROR_COUNT] != self.count)

    def collect(self) -> None:
        """Read the workers' reports."""
        if not self.new():
            return
        with self.lock:
            total = load_acquire(self.vm.m, CTL.ERROR_COUNT)
            self.count = max(self.count, total - ERR.LENGTH)  # older ones were overwritten
            while self.count < total:
                at = ERR.AT + self.count % ERR.LENGTH * ERR.WORDS
                if load_acquire(self.vm.m, at + ERR.MARK) != self.count + 1:
                    break  # counted, not yet written
                self._read(self.vm.m[at : at + ERR.WORDS].tolist())
                self.count += 1

    def _read(self, report: list[int]) -> None:
        seq, status = report[ERR.SEQ], report[ERR.STATUS]
        info = self.vm.entries.info[(report[ERR.ENTRY] - ENT.AT) // ENT.WORDS][0]
        name = str(getattr(info, "name", info))
        exception = self.raised.pop(seq, None)
        traceback = None
        if exception is not None:
            traceback = _lines_alone(users(exception.__traceback__))
            _forget_frames(exception)
        else:
            exception = exception_for(
                status,
                report[ERR.DETAILS : ERR.DETAILS + ARG.N_DETAILS],
                getattr(info, "names", ()),
            )
        code, last, _ = apart(hot["codes"][seq & (FRAMES - 1)], hot["lasts"][seq & (FRAMES - 1)])
        operands, scope, forward = str(getattr(info, "operands", "")), "", (None, 0)
        if hasattr(info, "locate"):  # a LaunchPlan: the line that was captured says more
            inner, code, last, operands = info.locate(report[ERR.TASK])
            name = f"{inner} of {name}"
            if report[ERR.TASK] >= 0:
                scope = info.recorded[report[ERR.TASK]][1]
                forward = info.forward[report[ERR.TASK]]
        captured = status == Status.CAPTURED
        failure = Failure(
            seq, name, exception, code, last, captured, operands, captured, scope, info,
            traceback=traceback, forward=forward,
        )  # fmt: skip
        self.by_seq[seq] = failure
        while len(self.by_seq) > KEEP:
            self.by_seq.pop(next(iter(self.by_seq)))

    def awaited(self, seq: int, seconds: float) -> Failure | None:
        """Return the failure of instruction `seq`.  Wait up to `seconds` for a worker's report.  A
        launch by actors poisons its outputs when a task fails, and reports after all actors have
        acted.
        """
        until = time.monotonic() + seconds
        self.collect()
        while (failure := self.by_seq.get(seq)) is None and time.monotonic() < until:
            time.sleep(0.001)
            self.collect()
        return failure

    def exception(self, seq: int) -> BaseException:
        """Return the exception of the failed instruction `seq`, with a note of the line that issued
        it.
        """
        while (failure := self.by_seq.get(seq)) is None and self.new():
            self.collect()  # a worker has counted a report in front of it and is about to write it
        if failure is None:
            return VMError(
                f"this tensor is poisoned by instruction #{seq}, which failed too long ago to be "
                f"remembered"
            )
        error = failure.waiters_exception()
        failure.seen, failure.captured = True, False
        # anew each time: more poisoned instructions may be known by now
        note = note_of(self.vm, failure)
        notes = getattr(error, "__notes__", [])
        if failure.note in notes:
            notes[notes.index(failure.note)] = note
        else:
            error.add_note(note)
        failure.note = note
        if failure.exception is not error:
            failure.exception.__notes__ = list(error.__notes__)
        return error.with_traceback(failure.traceback)

    def to_raise(self, seq: int) -> BaseException:
        """Return the exception of the failed instruction `seq`, to be raised now."""
        failure = self.by_seq.get(seq)
        matters = failure is None or not failure.captured  # left out by a capture: no failure
        error = self.exception(seq)
        if matters:
            self._tell({seq + 1}, error)
        return error

    def _tell(self, causes: set[int], error: BaseException) -> None:
        """Call `told_of`, which may find no memory; then add that to the raised error."""
        try:
            self.told_of(causes)
        except Exception as problem:
            error.add_note(f"flowvm: nothing was restored: {problem!r}; call flow.vm.restore()")

    def raise_unseen(self) -> None:
        """Raise the first failure that nobody has seen, and count the others as seen with it."""
        unseen = [f for f in list(self.by_seq.values()) if not f.seen]  # others may collect
        if not unseen:
            return
        error = self.exception(unseen[0].seq)
        for other in unseen[1:]:
            other.seen = True
            text = f"flowvm: and #{other.seq} {other.name}: {other.exception!r}"
            error.add_note(printable(text, lines=True))
        self._tell({failure.seq + 1 for failure in unseen if not failure.captured}, error)
        raise error

    def last(self) -> BaseException | None:
        """Return the newest failure's exception, or None."""
        failures = self.all()
        return self.exception(failures[-1].seq) if failures else None

    def all(self) -> Errors:
        """Return the failures remembered, oldest first."""
        self.collect()
        return Errors(f for f in list(self.by_seq.values()) if not f.captured)

    def after_fork_in_child(self) -> None:
        """Mark the parent's failures as seen in a forked child.  The parent reports them; reading a
        poisoned tensor still raises.
        """
        self.collect()
        for failure in self.by_seq.values():
            failure.seen = True

    def report_unseen(self) -> None:
        """Print the failures that nobody has seen, at exit.  The process has failed then, but not a
        prompt.
        """
        self.collect()
        unseen = [f for f in self.by_seq.values() if not f.seen]
        for failure in unseen[:5]:
            text = (
                f"flowvm: instruction #{failure.seq} {failure.name} failed and nobody looked at "
                f"its result: {type(failure.exception).__name__}: {failure.exception}\n"
                f"{failure.where()}"
            )
            print(printable(text, lines=True), file=sys.stderr)
        if len(unseen) > 5:
            print(f"flowvm: and {len(unseen) - 5} more failed instructions", file=sys.stderr)
        if unseen and not hasattr(sys, "ps1"):
            exit_code.fail()


def _another(error: BaseException) -> BaseException:
    """Return an equal exception without a traceback."""
    kind = type(error)
    try:
        copy: BaseException = kind.__new__(kind, *error.args)
    except Exception:  # a class of the user's that is made in another way
        return error
    copy.__dict__.update(error.__dict__)
    if notes := getattr(error, "__notes__", None):
        copy.__notes__ = list(notes)
    copy.__cause__, copy.__context__ = error.__cause__, error.__context__
    copy.__suppress_context__ = error.__suppress_context__
    return copy


def _forget_frames(error: BaseException | None) -> None:
    """Release the frames of an exception and of its causes."""
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        error.__traceback__ = _lines_alone(error.__traceback__)
        error = error.__cause__ or error.__context__


def _lines_alone(tb: TracebackType | None) -> TracebackType | None:
    """Return a traceback that prints alike, whose frames have neither locals nor the function."""
    entries = []
    while tb is not None:
        entries.append(tb)
        tb = tb.tb_next
    tail: TracebackType | None = None
    for entry in reversed(entries):
        code = _stand_in.__code__.replace(
            co_filename=entry.tb_frame.f_code.co_filename,
            co_name=entry.tb_frame.f_code.co_name,
            co_qualname=entry.tb_frame.f_code.co_qualname,
            co_firstlineno=entry.tb_lineno,
        )
        frame = FunctionType(code, {})().gi_frame  # a frame without a caller
        tail = TracebackType(tail, frame, -1, entry.tb_lineno)
    return tail


def _stand_in() -> Generator[None, None, None]:
    yield
