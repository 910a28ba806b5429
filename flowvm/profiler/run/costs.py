"""The cost of recording itself.

Of the user's own code (`overhead(fn)`): the same code at every level, in turns.  Levels take turns
within a round, in an order that changes, and what is reported is the median of the rounds' ratios:
what the machine does beside it hits all levels alike.

Of an instruction (`recording()`): the processor time that the recorder adds, measured once a
process, in some milliseconds, on a VM of its own that no thread runs: the sequential engine's loop
on records that do nothing, with and without recording, and the notes that issuing threads make.
It times a run's instructions is what every summary says.  Much of that runs beside Python, on the
scheduler's and the workers' cores, so a run was at most so much longer for it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import overload

import numpy as np

from flowvm.compiler import jit
from flowvm.errors import ArgumentError
from flowvm.guards.regions import reverting
from flowvm.meta.arrays import Array
from flowvm.profiler.grammar import Column, Screen, View, ms, table
from flowvm.vm.engine.engine import engine
from flowvm.vm.engine.entries import no_op
from flowvm.vm.machine.machine import start
from flowvm.vm.machine.words import ARRAY, CTL, ENT, REC, RING
from flowvm.vm.watch.flight import Flight, every

LEVELS = (0, 1, 2, 3)
_NO_OP = "int32(int64, int64, int64, int64)"
BATCH, ROUNDS = 1024, 12  # records that are timed at once; times each level is
NOTES = 64  # notes that are timed at once
_EVERY = tuple(every(level) for level in LEVELS)  # instructions a note
_TIMED = ("drain", "stamp_some")  # functions of the VM
WORDS = ("nothing", "times, operands, lines", "exact times, tasks", "Python stacks")


@dataclass(frozen=True, repr=False)
class Overhead(View):
    """The cost of recording in `rounds` rounds: for each of LEVELS the median ns of a call, and by
    how much it is longer than without recording (0.02 is 2 %; less than none is noise).  A call has
    `instructions`.
    """

    rounds: int
    instructions: int
    nanoseconds: tuple[float, ...]
    longer: tuple[float, ...]

    def screen(self, width: int) -> Screen:
        """See View."""
        screen = Screen()
        screen.add(
            (" recorder", "verdict"),
            f"  level 1 {self.longer[1]:+.1%} · level 2 {self.longer[2]:+.1%}",
            (f" · {self.rounds} rounds of {self.instructions:,} instructions", "head"),
        )
        rows = [
            [f"{level}", ms(lasts), f"{more:+.1%}" if level else "", f"{extra:.0f}", note]
            for level, lasts, more, extra, note in zip(
                LEVELS, self.nanoseconds, self.longer, self.each, WORDS, strict=True
            )
        ]
        columns = [
            Column("level", right=True), Column("ms", right=True), Column("longer", right=True),
            Column("ns an instruction", right=True), Column("records", style="line"),
        ]  # fmt: skip
        screen.lines += table(columns, rows, width)
        return screen.fitted(width)

    @property
    def each(self) -> tuple[float, ...]:
        """Nanoseconds more an instruction, for each of LEVELS."""
        per = self.nanoseconds[0] / max(1, self.instructions)
        return tuple(per * more for more in self.longer)


@dataclass(frozen=True, repr=False)
class Recording(View):
    """For each of LEVELS the ns of processor time that recording an instruction takes: of the VM's
    threads, and of the issuing thread; and those that a task of a graph's replay takes.
    """

    native: tuple[float, ...]
    python: tuple[float, ...]
    task: tuple[float, ...]

    @property
    def each(self) -> tuple[float, ...]:
        """Nanoseconds an instruction, for each of LEVELS."""
        return tuple(a + b for a, b in zip(self.native, self.python, strict=True))

    def screen(self, width: int) -> Screen:
        """See View."""
        screen = Screen()
        screen.add((" recorder", "verdict"), ("  processor time an instruction, ns", "head"))
        columns = [Column(t, right=True) for t in ("level", "VM", "Python", "both", "task")]
        columns.append(Column("records", style="line"))
        rows = [
            [f"{level}", *(f"{ns:.0f}" for ns in some), note]
            for level, note, *some in zip(
                LEVELS, WORDS, self.native, self.python, self.each, self.task, strict=True
            )
        ]
        screen.lines += table(columns, rows, width)
        return screen.fitted(width)


@functools.cache
def recording() -> Recording:
    """Return the cost of recording on this machine, measured at the first call."""
    m = np.zeros(ARRAY.WORDS, np.int64)
    start(m)
    m[REC.AT : REC.AT + REC.LENGTH * REC.WORDS] = 0  # which have been touched where it is used
    m[ENT.AT + ENT.KERNEL] = jit.native(no_op, _NO_OP)
    m[ENT.AT + ENT.COUNT], m[ENT.AT + ENT.UNITS], m[ENT.AT + ENT.GRAIN] = 3, 1, 1
    drained = [_least(functools.partial(_drained, m, level)) / BATCH for level in LEVELS]
    stamped = [_least(functools.partial(_stamped, m, level)) / BATCH for level in LEVELS]
    flight = Flight(SimpleNamespace(words=m, m=m, running=False))
    with reverting(flight.sampling.stop):  # it has one from level 2 on, which looks at this thread
        noted = [_least(functools.partial(_noted, flight, level)) for level in LEVELS]
    notes = [ns / NOTES / max(1, every) for ns, every in zip(noted, _EVERY, strict=True)]
    return Recording(
        tuple(max(0.0, ns - drained[0]) for ns in drained),
        (0.0, *notes[1:]),
        tuple(max(0.0, ns - stamped[0]) for ns in stamped),
    )


def recorded_ns() -> tuple[float, float] | None:
    """Return the cost of recording an instruction, and a task, at the present level; None without
    memory to measure it in, or while helpers still compile the code to measure.
    """
    if not engine.loops.all_cached(_TIMED):
        return None
    try:
        profile = recording()
    except MemoryError:
        return None
    return profile.each[engine.flight.level], profile.task[engine.flight.level]


def _least(run: Callable[[], int]) -> int:
    """The shortest of some times: what else the machine does makes them longer only."""
    return min(run() for _ in range(ROUNDS))


def _drained(m: Array, level: int) -> int:
    """Nanoseconds in which BATCH instructions run that do nothing."""
    first = int(m[CTL.RECEIVED])
    seqs = np.arange(first, first + BATCH)
    ring = m[RING.AT : RING.AT + RING.SLOTS * RING.WORDS].reshape(RING.SLOTS, RING.WORDS)
    ring[seqs & RING.SLOT_MASK, RING.MARK] = seqs + 1
    m[CTL.LEVEL] = level
    begun = time.perf_counter_ns()
    engine.loops.compiled(_TIMED[0])(m.ctypes.data)
    return time.perf_counter_ns() - begun


def _stamped(m: Array, level: int) -> int:
    """Nanoseconds in which BATCH tasks are stamped."""
    m[CTL.LEVEL] = level
    begun = time.perf_counter_ns()
    engine.loops.compiled(_TIMED[1])(m.ctypes.data, BATCH)
    return time.perf_counter_ns() - begun


def _noted(flight: Flight, level: int) -> int:
    """Nanoseconds in which NOTES notes are made."""
    words, every = flight.vm.words, max(1, _EVERY[level])
    words[CTL.LEVEL] = level
    first = int(words[CTL.RECEIVED])
    begun = time.perf_counter_ns()
    for seq in range(first, first + NOTES * every, every):
        words[CTL.RECEIVED] = seq
        flight.note(seq)
    return time.perf_counter_ns() - begun


@overload
def overhead(fn: None = None, rounds: int = 20) -> Recording: ...


@overload
def overhead(fn: Callable[[], object], rounds: int = 20) -> Overhead: ...


def overhead(fn: Callable[[], object] | None = None, rounds: int = 20) -> Overhead | Recording:
    """Measure how much longer `fn()` takes while it is recorded, at each level; without a function,
    the cost of recording one instruction, which summaries of runs print.

    `fn` is called `4 * rounds + 1` times, each until all it issued has run; make it a step or many
    small ones, some milliseconds long.  ArgumentError: no function, or fewer rounds than one.

    >>> costs = flow.profiler.overhead(lambda: flow.ones(2) + 1, rounds=1)
    >>> type(costs).__name__
    'Overhead'
    """
    if fn is None:
        return recording()
    if not callable(fn) or rounds < 1:
        raise ArgumentError(f"overhead({fn!r}, {rounds}): give a function and at least one round")
    flight, before = engine.flight, engine.flight.level
    times = np.zeros((rounds, len(LEVELS)))
    count = 0
    try:
        fn()
        engine.waits.wait_idle()
        for k in range(rounds):
            for level in np.roll(LEVELS, k).tolist():
                flight.set_level(level)
                first, begun = int(engine.words[CTL.RECEIVED]), time.perf_counter_ns()
                fn()
                engine.waits.wait_idle()
                times[k, level] = time.perf_counter_ns() - begun
                count = int(engine.words[CTL.RECEIVED]) - first
    finally:
        flight.set_level(before)
    longer = np.median(times / times[:, :1], axis=0) - 1
    return Overhead(rounds, count, tuple(np.median(times, axis=0).tolist()), tuple(longer.tolist()))
