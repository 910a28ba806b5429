"""Columns of what the issuing threads were seen doing: whose line, and whether it was the user's
Python, a sleep, a loader, or flowvm that took the time.

A sample stands for the time since the one before it of its thread.  Its line is that of the
innermost frame of the user's own code: neither flowvm's nor that of Python's library or an
installed package, which only do what that line asks for.
"""

from __future__ import annotations

import functools
import os
import sysconfig
from collections.abc import Sequence
from types import CodeType
from typing import Any, Protocol

import numpy as np

from flowvm.private.cpython import calls_nothing, stored_from
from flowvm.profiler.run.columns import CAUSES, SAMPLED
from flowvm.profiler.run.loss_places import Off
from flowvm.profiler.run.run import Run
from flowvm.vm.callers.lines import is_internal
from flowvm.vm.watch.sampling import Sample

BEFORE = 50_000_000  # ns: samples are asked for from so much earlier, to know what was used since
ASLEEP = 0.5  # of the time between two samples on a processor: below, the thread was not running
# folders of flowvm's own files, by what their code is at
_ROOMS = (
    (os.path.join("flowvm", "utils", "data") + os.sep, "loader"),
    (f"{os.sep}graph{os.sep}capture{os.sep}", "capture"),
    (f"{os.sep}graph{os.sep}passes{os.sep}", "capture"),
    (f"{os.sep}graph{os.sep}plan{os.sep}", "capture"),
    (os.path.join("flowvm", "compiler") + os.sep, "jit"),  # also what looks for what is kept
    (os.path.join("flowvm", "loading", "lazy.py"), "import"),
)
_LOADER = _ROOMS[0][0]
# of SAMPLED: a thread that is found behind one of these, and has not run, has just woken
_LASTING = tuple(SAMPLED.index(state) for state in ("asleep", "loader"))
# the frame below which a graph is captured, optimized and compiled, whoever's code runs there
_CAPTURES = (os.path.join("flowvm", "nn", "graph", "graph.py"), "_compile")
# files of the library in which a thread waits for something else than the GIL
_WAITING = ("threading.py", "queue.py", "selectors.py", "subprocess.py", "socket.py", "ssl.py")
# the code that imports modules, and that which runs a program's file
_IMPORTING = ("<frozen importlib._bootstrap", "<frozen runpy")
# rooms in which a thread waits for nothing but in waits of the VM's
_NEVER_WAITING = tuple(os.path.join("flowvm", room) + os.sep for room in ("eager", "vm"))
_APART = os.path.join("flowvm", "guards", "apart.py")  # waits for the thread that compiles
Frames = tuple[tuple[CodeType | None, int], ...]


class Lines(Protocol):
    """Numbers of lines and expressions (`flowvm.profiler.run.collect`)."""

    def at(self, code: object, last: int) -> int: ...
    def spot(self, code: Any, last: int) -> int: ...


@functools.cache
def _library() -> tuple[str, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple({sysconfig.get_path(name) + os.sep for name in names})


@functools.cache
def is_library(filename: str) -> bool:
    """Return True if a source file belongs to Python's library, or to an installed package."""
    return filename.startswith(("<frozen", *_library()))


def off_processor(samples: Sequence[Sample]) -> dict[int, list[Off]]:
    """By thread, when it was seen not to run, but for what waits for other threads."""
    times: dict[int, list[Off]] = {}
    last: dict[int, Sample] = {}
    for sample in samples:
        before, last[sample.thread] = last.get(sample.thread), sample
        frames = [(code, at) for code, at in sample.frames if code is not None]
        if before is not None and _slept(before, sample) and not _waits(frames):
            lost = sample.time - before.time - (sample.used - before.used)
            times.setdefault(sample.thread, []).append(Off(before.time, sample.time, lost))
    return times


def add_samples(run: Run, samples: Sequence[Sample], lines: Lines) -> None:
    """Fill the columns of samples, which begin with `sample_`; of what was before the run, none."""
    issuing = set(np.unique(run.spot).tolist())
    last: dict[int, Sample] = {}
    stacks: dict[tuple[int, ...], int] = {}
    at: dict[int, tuple[int, int, int, int]] = {}  # of each thread: state, line, expression, stack
    rows = []
    for sample in samples:
        before, last[sample.thread] = last.get(sample.thread), sample
        begin = max(run.begun, before.time if before is not None else 0)
        end = sample.time
        if begin >= end or not sample.frames:
            continue
        frames = [(code, at) for code, at in sample.frames if code is not None]
        captures = _capturing(frames)
        k = mine(frames, captures + 1)
        line, spot = (lines.at(*frames[k]), lines.spot(*frames[k])) if k >= 0 else (-1, -1)
        inner = frames[:k] if k >= 0 else frames
        state, woke = "capture", False
        if captures < 0:
            issues = k == 0 and (spot in issuing or _stores(lines, frames[0], issuing))
            state = _state(inner, frames, issues, _slept(before, sample))
            moment = (begin + end) // 2
            woke = state == "gil" and not _waited(run, sample, moment, "", inner)
            state = _waited(run, sample, moment, state, inner)
        own = [frame for frame in frames if not is_internal(frame[0].co_filename)]
        stack = tuple(n for frame in own for n in (lines.at(*frame), lines.spot(*frame)))
        number = stacks.setdefault(stack, len(stacks))
        what = (SAMPLED.index(state), line, spot, number)
        if woke and at.get(sample.thread, what)[0] in _LASTING:
            what = at[sample.thread]  # just now, and was there for most of the time
        at[sample.thread] = what
        rows.append((begin, end, sample.thread, *what))
    table = np.array(rows, np.int64).reshape(-1, 7)
    run.sample_times = table[:, :2]
    run.sample_thread = table[:, 2]
    run.sample_state = table[:, 3].astype(np.int8)
    run.sample_line, run.sample_spot, run.sample_stack = table[:, 4:].T.astype(np.int32)
    run.sample_stacks = [list(stack) for stack in stacks]


def mine(frames: Sequence[tuple[CodeType, int]], first: int = 0) -> int:
    """The place of the innermost frame of the user's own code, of those from `first` on; of none
    but the library's, that of the innermost that is not flowvm's; -1: all are.
    """
    outside = -1
    for k in range(first, len(frames)):
        code = frames[k][0]
        if is_internal(code.co_filename):
            continue
        if not is_library(code.co_filename):
            return k
        if outside < 0 and not code.co_filename.startswith("<frozen"):  # no line that can be opened
            outside = k
    return outside


def _capturing(frames: list[tuple[CodeType, int]]) -> int:
    """The place of the outermost frame that captures a graph, -1 for none."""
    for k in range(len(frames) - 1, -1, -1):
        code = frames[k][0]
        if code.co_name == _CAPTURES[1] and code.co_filename.endswith(_CAPTURES[0]):
            return k
    return -1


@functools.lru_cache(maxsize=1 << 12)
def _cannot_wait(code: CodeType, last: int) -> bool:
    name = code.co_filename
    own = is_internal(name) and any(room in name for room in _NEVER_WAITING)
    return own or calls_nothing(code, last)


def _stores(lines: Lines, frame: tuple[CodeType, int], issuing: set[int]) -> bool:
    """Return True if a frame stores what an op has just returned: the tensor that the name had is
    freed, which is flowvm's own.
    """
    before = _stored_from(*frame)
    return before >= 0 and lines.spot(frame[0], before) in issuing


@functools.lru_cache(maxsize=1 << 12)
def _stored_from(code: CodeType, last: int) -> int:
    return stored_from(code, last)


def _slept(before: Sample | None, sample: Sample) -> bool:
    if before is None or sample.time <= before.time:
        return False
    return (sample.used - before.used) / (sample.time - before.time) < ASLEEP


def _state(
    inner: list[tuple[CodeType, int]], frames: list[tuple[CodeType, int]], issues: bool, slept: bool
) -> str:
    """Return the state of a sampled thread, by the frames that the user's line has called.

    A thread sleeps in what it has called.  One that does not run between two calls, or in one that
    waits for nothing but in waits of the VM's, as issuing does, is kept from running.
    """
    inner_frames = frames[
        : len(inner) + 1
    ]  # and the line's own: of a program's import it is the importer
    if any(code.co_filename.startswith(_IMPORTING) for code, _ in inner_frames):
        return "import"
    files = [code.co_filename for code, _ in inner if is_internal(code.co_filename)]
    for folder, state in _ROOMS:
        if any(folder in file for file in files):
            return state
    if any(_LOADER in code.co_filename for code, _ in frames[len(inner) + 1 :]):
        return "loader"  # the user's Dataset makes a batch
    if slept and (issues or (frames and _cannot_wait(*frames[0]))):
        return "gil"
    if issues or files:
        return "flowvm"
    return "asleep" if slept else "python"


def _waited(run: Run, sample: Sample, moment: int, state: str, inner: list[Any]) -> str:
    """The cause of the wait in which a thread was at a moment, or `state`."""
    times = run.wait_times
    inside = (times[:, 0] <= moment) & (moment < times[:, 1]) & (run.wait_thread == sample.thread)
    causes = {CAUSES[k] for k in run.wait_cause[inside].tolist()}
    for cause in ("jit", "credit", "memory", "sync"):
        if cause in causes:
            return cause
    for cause in ("core", "gil"):
        if cause in causes and state != "loader" and not _waits(inner):
            return cause
    return state


def _waits(inner: list[tuple[CodeType, int]]) -> bool:
    """Return True if the innermost frame waits for another thread, or sleeps."""
    file = inner[0][0].co_filename if inner else ""
    return os.path.basename(file) in _WAITING or file.endswith(_APART)
