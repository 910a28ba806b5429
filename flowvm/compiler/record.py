"""A line for each compilation, in a file of the cache: what was made, by which process and thread,
when, and the seconds of each phase.

`flowvm.compiler.progress` reads from it how long a kernel will take; `flowvm.compiler.waterfall`
draws it.  Seconds are processor time of the compiling thread, so other programs hardly change them;
`waited` is the time that passed until another process, which made the same, was done.

Everything here runs under the lock of `flowvm.compiler.jit`, one compilation at a time, but for
`read` and `append`.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from flowvm.compiler import cache
from flowvm.errors import ArgumentError
from flowvm.files.schema import mapping, number, read_json, record, text

FILE = "compilations.jsonl"  # in the cache: the latest compilation is the last line
LONGEST = 200  # characters of a kernel's name: some are an expression
MOST_BYTES = 1 << 18  # of the file; when it has twice as many, the older lines go

START = "start"  # a helper's Python, and the import of flowvm
NUMBA = "Numba"  # its import, and what it makes ready once a process
FRONT = "front end"  # Numba's: bytecode to LLVM's code
LINK = "linking"
PASSES = "LLVM passes"
CODE = "code"  # LLVM's: machine code from its own
LOAD = "loading"
PHASES = (START, NUMBA, FRONT, LINK, PASSES, CODE, LOAD)


class Compilation(NamedTuple):
    """A function that was made, or waited for.  `began` is the monotonic clock's, which all
    processes have in common; `parent` is the process that a helper works for, 0 where there is
    none; `job` is the helper's.
    """

    name: str
    digest: str
    process: int
    parent: int
    job: str
    thread: str
    began: float
    passed: float
    waited: float
    seconds: dict[str, float]

    @property
    def busy(self) -> float:
        """Processor seconds of all phases."""
        return sum(self.seconds.values())


class _Own:
    """This process as a helper: what it works for."""

    parent = 0
    job = ""


own = _Own()

_check = record(
    name=text(LONGEST), digest=text(64), process=number, parent=number, job=text(LONGEST),
    thread=text(LONGEST), began=number, passed=number, waited=number,
    seconds=mapping(number, len(PHASES)),
)  # fmt: skip


# --- the phases of the compilation at hand --------------------------------------------------------


class _Clock:
    """The compiling thread's processor time, by phase."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self.phase = ""  # outside of all
        self.since = 0.0

    def switch(self, phase: str) -> str:
        """Begin a phase; return the one that ends."""
        now, before = time.thread_time(), self.phase
        if before:
            self.spent[before] = self.spent.get(before, 0.0) + now - self.since
        self.phase, self.since = phase, now
        return before


_clock = _Clock()


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Count the time inside the with statement as this phase's, and not as that around it."""
    before = _clock.switch(name)
    try:
        yield
    finally:
        _clock.switch(before)


@contextlib.contextmanager
def phases() -> Iterator[dict[str, float]]:
    """Count the phases inside the with statement.  The value has their seconds afterwards."""
    global _clock
    outer, _clock = _clock, _Clock()
    try:
        yield _clock.spent
    finally:
        _clock = outer


# --- the file -------------------------------------------------------------------------------------


def write(
    folder: Path, name: str, digest: str, began: float, waited: float, seconds: dict[str, float]
) -> None:
    """Append the compilation that ends now.  A folder that cannot be written is left alone: the
    cache has warned about it already.
    """
    row = Compilation(
        name[:LONGEST], digest[:12], os.getpid(), own.parent, own.job[:LONGEST],
        threading.current_thread().name[:LONGEST], round(began, 4),
        round(time.monotonic() - began, 4), round(waited, 4),
        {phase: round(spent, 4) for phase, spent in seconds.items() if spent >= 5e-5},
    )  # fmt: skip
    append(folder, row)


def append(folder: Path, row: Compilation) -> None:
    """Append a line to the file of `folder`."""
    with contextlib.suppress(OSError):
        size = cache.append(folder, FILE, json.dumps(row._asdict()).encode() + b"\n")
        if size > 2 * MOST_BYTES:
            content = (cache.read(folder, FILE) or b"")[-MOST_BYTES:]
            cache.write(folder, FILE, content[content.find(b"\n") + 1 :])


def read(folder: Path) -> list[Compilation]:
    """Return what was compiled with this cache, the latest last.  Lines that are damaged are left
    out.
    """
    rows = []
    for line in (cache.read(folder, FILE) or b"").splitlines():
        with contextlib.suppress(ArgumentError):
            row = read_json(line, FILE)
            _check(row, FILE)
            rows.append(Compilation(**row))
    return rows


def began(folder: Path) -> None:
    """Append the start of this process, a helper or the one that helpers are forked from: the
    processor time that it has used so far.
    """
    now = time.monotonic()
    write(folder, "start of a helper", "", now, 0.0, {START: time.process_time()})
