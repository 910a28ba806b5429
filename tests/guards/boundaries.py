"""An exception at every boundary between two bytecodes, one run for each.

`drive(run, check, ...)` counts the boundaries that a run passes in flowvm's code, in contextlib's
and in `run` itself, then runs once for each with an exception raised there, and checks after each.
`meet(start, ...)` runs something on another thread at each boundary, in place of an exception.
`interrupted(..., after=n)` is for one at random: it looks at bytecodes from the n-th call on only,
since counting all of them costs a hundred times what the run does.
CPython calls a trace function in front of every bytecode, and what that raises comes as if the
bytecode before it had: so these are all moments at which an exception can come, and more.

Not among them: finalizers and what they call, whose exceptions CPython ignores; and those at which
nothing can come without a trace function, since neither a signal is looked at nor memory allocated,
where they matter: between taking a sequence number from its counter and storing it, between taking
a lock and the block that is under it, or its end and the lock's release, in front of a NOP, which
CPython leaves out of the blocks that an exception would leave, and in front of the two instructions
by which a handler takes an exception and is done with it: CPython's table of handlers does not
cover them, so the thread would have that exception for good, and its frames with it. Nor those in
the simulator of a GPU, which stands for a driver that is no Python.  Nor, for another thread, those
between a call's look at what was renewed and its record, where CPython changes no threads.
"""

from __future__ import annotations

import contextlib
import dis
import itertools
import linecache
import random
import re
import sys
import threading
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any

from flowvm.vm.callers.lines import INTERNAL
from tools.patience import patience

PATIENCE = 250  # seconds for one run
BLOCKED_S = 0.02  # for which another thread is waited for
_MARK = "injected"
_LOCKED = re.compile(r"^\s*with (\w+\.)*_?lock:")
_SIMULATOR = "/cuda/simulator/"
_TAKES = frozenset({"seq", "_seq"})
_UNCOVERED = frozenset({"NOP", "PUSH_EXC_INFO", "POP_EXCEPT"})


class Interruption(BaseException):
    """An exception that a user's signal handler might raise."""


ERRORS: tuple[type[BaseException], ...] = (Interruption, KeyboardInterrupt, MemoryError)


def _closed(code: CodeType, known: dict[CodeType, set[int]] = {}) -> set[int]:  # noqa: B006
    """Return the offsets in front of which no exception comes: see the module."""
    if code not in known:
        steps = list(dis.get_instructions(code))
        known[code] = {
            step.offset
            for before, step in itertools.pairwise(steps)
            if before.opname.startswith("FOR_ITER") and step.argval in _TAKES
        }
        known[code] |= {step.offset for step in steps if step.opname in _UNCOVERED}
        line = 0
        for step in steps:
            line = (step.positions and step.positions.lineno) or line
            if _LOCKED.search(linecache.getline(code.co_filename, line)):
                known[code].add(step.offset)
    return known[code]


def _unshared(code: CodeType, known: dict[CodeType, set[int]] = {}) -> set[int]:  # noqa: B006
    """Return the offsets in front of which no other thread comes: see the module."""
    if code not in known:
        known[code], inside, written = set(), False, False
        for step in dis.get_instructions(code):
            if inside:
                known[code].add(step.offset)
            inside = (inside and not (written and step.opname == "CALL")) or (
                step.opname == "LOAD_GLOBAL" and step.argval == "renewed"
            )
            inside = inside and (step.opname, step.argval) != ("STORE_FAST", "_renewed")
            written = inside and (written or step.argval == "_write")
    return known[code]


class _Tracer:
    """Counts boundaries from call number `after` on, and raises `kind` at number `at`."""

    def __init__(self, code: CodeType, at: int, kind: type[BaseException], after: int = 0) -> None:
        self.code, self.at, self.kind, self.after = code, at, kind, after
        self.count = self.calls = 0
        self.where = ""

    def call(self, frame: FrameType, event: str, value: Any) -> Any:
        code = frame.f_code
        if not self._is_looked_at(code) or self._is_in_finalizer(frame):
            return None
        self.calls += 1
        if self.calls <= self.after:
            return None
        if self.calls == self.after + 1 > 1:
            self._look_at_callers(frame.f_back)
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.step

    def _is_in_finalizer(self, frame: FrameType | None) -> bool:
        while frame is not None and frame.f_code is not self.code:
            if frame.f_code.co_name == "__del__":
                return True
            frame = frame.f_back
        return False

    def _is_looked_at(self, code: CodeType) -> bool:
        if code is self.code or code.co_filename == contextlib.__file__:
            return True
        return INTERNAL[code.co_filename] and _SIMULATOR not in code.co_filename

    def _look_at_callers(self, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code.co_name != "__del__":
            if self._is_looked_at(frame.f_code):
                frame.f_trace_opcodes, frame.f_trace_lines = True, False
                frame.f_trace = self.step
            if frame.f_code is self.code:
                return
            frame = frame.f_back

    def is_open(self, frame: FrameType) -> bool:
        """Return True if what is raised here can come in front of the next bytecode."""
        return frame.f_lasti not in _closed(frame.f_code)

    def step(self, frame: FrameType, event: str, value: Any) -> Any:
        if event == "opcode" and self.is_open(frame):
            self.count += 1  # first: a capture sets this function again after it has raised
            if self.count == self.at + 1:
                code = frame.f_code
                self.where = f"{code.co_filename}:{frame.f_lineno} {code.co_qualname}"
                self.where += f" at bytecode {frame.f_lasti}"
                self.reach()
        return self.step

    def reach(self) -> None:
        raise self.kind(_MARK)


class _Meeting(_Tracer):
    """Runs `other` on another thread at boundary `at`, which goes on behind it; if that waits for a
    lock that this thread has, it goes on first.
    """

    def __init__(self, code: CodeType, at: int, other: Callable[[], Any]) -> None:
        super().__init__(code, at, BaseException)
        self.other = other
        self.answers: list[Any] = []
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.answers.append(self.other())
        except BaseException as error:
            self.answers.append(error)

    def is_open(self, frame: FrameType) -> bool:
        """Return True if another thread can come in front of the next bytecode."""
        return super().is_open(frame) and frame.f_lasti not in _unshared(frame.f_code)

    def reach(self) -> None:
        self.thread.start()
        self.thread.join(BLOCKED_S)


def meet(
    start: Callable[[], tuple[Callable[[], Any], Callable[[], Any], Callable[[Any, Any], Any]]],
    *,
    most: int | None = None,
    seed: int = 0,
) -> int:
    """Run `start()`, which gives (run, other, check), once for each boundary that `run` passes, or
    `most` of them, with all of `other` on another thread there; return how many there were.

    `check(a, b)`, with what both gave or raised, says what is wrong, or something false.
    AssertionError with the first of all that was wrong.
    """
    run, other, check = start()
    assert not (problem := check(run(), other())), f"one after the other: {problem}"
    run = start()[0]
    total = _traced(run, _Meeting(run.__code__, -1, other)).count
    places = list(range(total))
    if most is not None and most < total:
        places = sorted(random.Random(seed).sample(places, most))
    wrong: list[str] = []
    for at in places:
        run, other, check = start()
        tracer = _Meeting(run.__code__, at, other)
        with patience(PATIENCE):
            before, answer = sys.gettrace(), None
            sys.settrace(tracer.call)
            try:
                answer = run()
            except Exception as error:
                answer = error
            finally:
                sys.settrace(before)
            if not tracer.where:
                continue  # this run passed fewer
            tracer.thread.join()
            problem = check(answer, tracer.answers.pop())
        if problem:
            wrong.append(f"in front of {tracer.where}: {problem}")
    assert not wrong, f"{len(wrong)} of {len(places)} boundaries:\n" + "\n".join(wrong[:20])
    return len(places)


def interrupted(
    run: Callable[[], Any],
    at: int,
    kind: type[BaseException],
    after: int = 0,
    errors: list[BaseException] | None = None,
) -> tuple[str, str]:
    """Run with an exception at boundary `at` behind call number `after`.

    Return its place, and the outcome if it is another error.  `errors` gets the exception.
    """
    tracer = _Tracer(run.__code__, at, kind, after)
    before, problem = sys.gettrace(), "the exception was swallowed"
    sys.settrace(tracer.call)
    try:
        run()
    except BaseException as error:
        sys.settrace(before)
        problem = "" if _is_ours(error) else repr(error)
        if errors is not None:
            errors.append(error)
    finally:
        sys.settrace(before)
    return tracer.where, problem if tracer.where else ""


def _is_ours(error: BaseException | None) -> bool:
    """Return True if the error is the exception that was raised, or tells of it."""
    return error is not None and (
        _MARK in error.args or _is_ours(error.__cause__) or _is_ours(error.__context__)
    )


def count(run: Callable[[], Any]) -> int:
    """Count the boundaries that a run passes."""
    return _traced(run, _Tracer(run.__code__, -1, BaseException)).count


def count_calls(run: Callable[[], Any]) -> int:
    """Count the calls for which `interrupted(..., after=)` may wait."""
    return _traced(run, _Tracer(run.__code__, -1, BaseException, sys.maxsize)).calls


def _traced(run: Callable[[], Any], tracer: _Tracer) -> _Tracer:
    before = sys.gettrace()
    sys.settrace(tracer.call)
    try:
        run()
    finally:
        sys.settrace(before)
    return tracer


def drive(
    start: Callable[[], Callable[[], Any]],
    check: Callable[[], Any],
    *,
    most: int | None = None,
    seed: int = 0,
    errors: Sequence[type[BaseException]] = ERRORS,
    keep: bool = False,
) -> int:
    """Run `start()` with an exception at each boundary, or at `most` of them; how many there were.

    `check()` says, after each run and when the exception is gone, or before if it is to `keep`,
    what is wrong, or something false. AssertionError with the first of all that was wrong.
    """
    start()()  # what is only done once
    total = count(start())
    places = list(range(total))
    if most is not None and most < total:
        places = sorted(random.Random(seed).sample(places, most))
    wrong: list[str] = []
    for n, at in enumerate(places):
        kind = errors[(n + seed) % len(errors)]
        with patience(PATIENCE):
            caught = list[BaseException]() if keep else None
            where, problem = interrupted(start(), at, kind, errors=caught)
            problem = problem or check()
        if problem:
            wrong.append(f"{kind.__name__} in front of {where}: {problem}")
    assert not wrong, f"{len(wrong)} of {len(places)} boundaries:\n" + "\n".join(wrong[:20])
    return len(places)
