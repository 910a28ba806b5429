"""Bounds of a run: the time that it could have taken on the cores there are, and the causes of the
rest.

The floor (`flowvm.profiler.analysis.paths`) asks only what waits for what; so many cores also have
so much to do: no run is shorter than the processor time of its instructions over the cores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from flowvm.profiler.analysis.contention import STREAMS, cores_of, lack
from flowvm.profiler.analysis.paths import Segment
from flowvm.profiler.analysis.waits import Lane, device_of, held_back, order
from flowvm.profiler.run.columns import CAUSES, SAMPLED
from flowvm.profiler.run.run import Run
from flowvm.vm.machine.words import KIND

DRAINING = ("sync", "memory")  # waits in which streams run out of work
IDLE = 0.2  # of the busiest stream: a stream that ran less has room
MANY = 4  # instructions that could run side by side, below which nothing is to be moved


def work(run: Run) -> int:
    """Processor time of the host's instructions, in ns: of their streams and of all helpers, less
    what these lacked a core.
    """
    lasted = np.maximum(0, run.time("ended") - run.time("started"))
    known = np.zeros(len(run), bool)
    known[run.tasks.launch] = True  # of a launch whose tasks are known, those
    on_host = np.array([device_of(name) < 0 for name in run.streams], bool)
    real = (
        on_host[run.stream] & ~known & ~np.isin(run.kind, (KIND.TOUCH, KIND.BARRIER, KIND.CALLBACK))
    )
    each = np.zeros(len(run.streams), np.int64)
    tasks = np.diff(run.tasks.times, axis=1)[:, 0] * on_host[run.tasks.stream]
    for of, times in (
        (run.stream[real], lasted[real]), (run.tasks.stream, tasks),
        (run.shares.stream, np.diff(run.shares.times, axis=1)[:, 0]),
    ):  # fmt: skip
        np.add.at(each, of, times)
    had = [1 - lack(run, name, float(took)) for name, took in zip(run.streams, each, strict=True)]
    return int((each * np.array(had)).sum())


def bounded(run: Run, floor: int) -> int:
    """The floor on the cores there are; as it is where they are not known."""
    cores = cores_of(run)
    return max(floor, work(run) // cores) if cores else floor


def on_free_cores(run: Run) -> int:
    """Nanoseconds of the streams' processor time on the cores that other processes left the run;
    0: not known.
    """
    load = run.info.get("load")
    if load is None or load["others"] < 0 or not load["wall"]:
        return 0
    used = sum(on for name, _, on, _ in load["threads"] if name.startswith(STREAMS))
    free = cores_of(run) - load["others"] / load["wall"]
    return min(run.wall, int(used / free)) if free > 0 else run.wall


def refills(path: Sequence[Segment]) -> Iterator[tuple[str, int, Segment]]:
    """Yield pieces of the path that a wait, one of DRAINING, has made: its cause, the instruction
    that was waited for, and the piece.

    From a wait's end to the next instruction that runs, streams without work get some again.  A
    thread without a core (`core`) delays that.
    """
    cause, instruction = "", -1
    for s in path:
        if s.cause in DRAINING:
            cause, instruction = s.cause, s.instruction
        elif s.cause == "run":
            cause = ""
        elif cause and s.cause in ("sched", "host", "core"):
            yield cause, instruction, s


def waited(run: Run, path: Sequence[Segment], cause: str) -> dict[int, int]:
    """Count the path's waits of a cause by line."""
    return Counter(
        int(run.line[s.instruction]) for s in path if s.cause == cause and s.instruction >= 0
    )


class Short(NamedTuple):
    """Waits for memory in flight: how many, nanoseconds of all, and the line with most of them."""

    times: int
    time: int
    line: str


def short_of_memory(run: Run) -> Short:
    """Return the instructions and issuing threads that `run_ahead_bytes` kept back."""
    late = run.time("received") - run.time("issued")
    of = np.flatnonzero(held_back(run))
    waits = run.waits.times[run.waits.cause == CAUSES.index("memory")]
    times: dict[int, int] = {}
    for line, took in zip(run.line[of].tolist(), late[of].tolist(), strict=True):
        times[line] = times.get(line, 0) + took
    inside = np.isin(run.samples.state, SAMPLED.index("memory"))
    for line, (begun, ended) in zip(
        run.samples.line[inside].tolist(), run.samples.times[inside].tolist(), strict=True
    ):
        times[line] = times.get(line, 0) + ended - begun
    line = max(times, key=lambda k: times[k], default=-1)
    # instructions wait side by side: the time in which any does
    both = np.concatenate((waits, np.column_stack((run.time("issued"), run.time("received")))[of]))
    return Short(len(of) + len(waits), covered(both), run.lines[line] if line >= 0 else "")


def serialized(run: Run, path: Sequence[Segment]) -> dict[int, int]:
    """By instruction, the nanoseconds of the path for which its stream stood still, because what
    ran on another stream had the memory that it waited for.

    The path leads through what had the memory, as it does through a producer.  Without the limit
    the two would have run beside each other, on cores that are free.
    """
    held, times = held_back(run), dict[int, int]()
    if not held.any():
        return times
    started, ended, before = run.time("started"), run.time("ended"), order(run)
    gate = np.maximum(np.maximum(before.produced, before.freed), run.time("issued"))
    ran = [s.instruction for s in path if s.cause == "run"]
    for j, i in pairwise(ran):
        if held[i] and run.stream[i] != run.stream[j]:
            stood = int(ended[j] - max(started[j], gate[i]))
            if stood > 0:
                times[i] = stood
    return times


def covered(spans: np.ndarray) -> int:
    """Nanoseconds in any of the rows of from, to."""
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    over = np.maximum.accumulate(spans[:, 1]) if len(spans) else spans[:, 1]
    begin = np.maximum(spans[1:, 0], over[:-1])
    return int(np.diff(spans[:1]).sum() + np.maximum(0, spans[1:, 1] - begin).sum())


class Crowded(NamedTuple):
    """A stream ran `many` instructions of one operator and line of which none waits for another,
    while `idle` had next to nothing to do.  `best` is how long they take if both share them.
    """

    stream: str
    idle: str
    share: float  # of the wall time in which it stood still
    op: str
    line: str
    many: int
    best: int


def crowded(run: Run, lanes: Sequence[Lane], floor: int) -> Crowded | None:
    """The streams that are used unevenly, if any are."""
    own = [lane for lane in lanes if device_of(run.streams[lane.stream]) < 0]
    if len(own) < 2:
        return None
    most = max(own, key=lambda lane: lane.total["run"])
    least = min(own, key=lambda lane: lane.total["run"])
    ran = most.total["run"]
    if ran * 2 < run.wall or least.total["run"] > IDLE * ran:
        return None
    lasted = np.maximum(0, run.time("ended") - run.time("started"))
    of = np.flatnonzero((run.stream == most.stream) & (run.kind == KIND.OP_CALL))
    totals: dict[tuple[int, int], int] = {}
    for line, op, took in zip(
        run.line[of].tolist(), run.op[of].tolist(), lasted[of].tolist(), strict=True
    ):
        totals[line, op] = totals.get((line, op), 0) + took
    if not totals:
        return None
    line, op = max(totals, key=lambda k: totals[k])
    mine = np.zeros(len(run), bool)
    mine[of] = (run.line[of] == line) & (run.op[of] == op)
    count, chain = int(mine.sum()), _chain(run, mine)
    if count < MANY or 2 * chain > count or 2 * totals[line, op] < ran:
        return None
    moved = totals[line, op] // 2
    best = max(bounded(run, floor), run.wall - moved, on_free_cores(run))
    return Crowded(
        run.streams[most.stream], run.streams[least.stream],
        1 - least.total["run"] / max(1, run.wall), run.names[op],
        run.lines[line] if line >= 0 else "", count, best,
    )  # fmt: skip


def _chain(run: Run, mine: np.ndarray) -> int:
    """Return the length of the longest chain of these that wait for each other."""
    longest = mine.astype(np.int64).tolist()
    own = list(longest)
    for a, b in zip(run.source.tolist(), run.target.tolist(), strict=True):
        longest[b] = max(longest[b], longest[a] + own[b])
    return max(longest, default=0)
