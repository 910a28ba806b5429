"""Waits of instructions, and gaps of streams: the account of all time.

Two different numbers, never mixed.  An *instruction's wait* is the time from its issue to its
start, cut in three: `dep` until the last of its producers has ended, `queue` until the stream has
ended what was in front, `sched` the rest, when nothing but the VM stood in the way.  A *stream's
gap* is the time in which the stream ran nothing, with one cause at each moment:

    host    nothing was issued yet: Python was running
    jit     nor could it be: a kernel was being compiled, or loaded from the cache
    credit  nor could it be: issuing waited for room in the queue
    memory  nor could it be: issuing waited for what is in flight to give memory back
    sync    nor could it be: an issuing thread waited for a value
    gil     nor could it be: an issuing thread could have run, but another Python thread had the
            GIL (recorded from level 2 on, as `core` is: `flowvm.vm.watch.offcpu`)
    core    nor could it be: an issuing thread was ready and had no core
    dep     what ran next was issued and waited for a producer, on another stream or a callback
    sched   what ran next waited for the VM

A stream's time is run + gaps, exactly.  Between two instructions of which the later was issued
before the earlier ended there is no gap but `sched`.

Bounds: `issued` is what the scheduler has seen (`flowvm.vm.machine.stamps`), so a scheduler that
sleeps or is off its core lets `host` look longer and `sched` shorter by as much.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.profiler.run.columns import CAUSES
from flowvm.profiler.run.run import Run
from flowvm.vm.machine.words import KIND, OPERAND

HELD = 2_000  # ns between issued and received that are of the scheduler's own pace
GAPS = ("host", "jit", "credit", "memory", "sync", "gil", "core", "dep", "sched")
STATES = ("run", *GAPS)
# where waits of several threads overlap, the first that applies
_FIRST = ("jit", "credit", "memory", "sync", "gil", "core")
_HERE = (KIND.TOUCH, KIND.BARRIER)  # kinds that run on the scheduler, in no stream
_ASIDE = (*_HERE, KIND.RELEASE)  # no stream stands still for these: what is ready goes first


@dataclass(frozen=True)
class Order:
    """For each instruction, the instructions in front of it: indices, -1 for none.

    `finished`: it has happened, all of it.  `producer`: of what it had to wait for, what ended
    last, at `produced`.  `front`: what its stream ended last before it started, at `freed`.
    """

    finished: Array
    producer: Array
    produced: Array
    front: Array
    freed: Array


def order(run: Run) -> Order:
    """Return the instructions that stood in front of each instruction."""
    n = len(run)
    started, ended = run.time("started"), run.time("ended")
    finished = (run.time("released") > 0) & (ended > 0)
    producer, produced = np.full(n, -1), np.zeros(n, np.int64)
    real = finished[run.source]
    source, target = run.source[real], run.target[real]
    late = np.lexsort((ended[source], target))
    source, target = source[late], target[late]
    last = np.flatnonzero(np.append(target[1:] != target[:-1], True)[: len(target)])
    producer[target[last]], produced[target[last]] = source[last], ended[source[last]]
    barriers = np.flatnonzero(finished & (run.kind == KIND.BARRIER))
    if len(barriers):  # a barrier waits for everything before it
        so_far = np.maximum.accumulate(np.where(finished, ended, 0))
        where = np.maximum.accumulate(
            np.where(np.where(finished, ended, 0) == so_far, np.arange(n), -1)
        )
        behind = barriers[barriers > 0]
        producer[behind], produced[behind] = where[behind - 1], so_far[behind - 1]
    front, freed = np.full(n, -1), np.zeros(n, np.int64)
    mine = np.flatnonzero(finished & ~np.isin(run.kind, _HERE))
    mine = mine[np.lexsort((mine, started[mine], run.stream[mine]))]
    for stream in np.unique(run.stream[mine]):
        of = mine[run.stream[mine] == stream]
        latest = np.maximum.accumulate(ended[of])
        where = np.maximum.accumulate(np.where(ended[of] == latest, np.arange(len(of)), 0))
        front[of[1:]], freed[of[1:]] = of[where[:-1]], latest[:-1]
    return Order(finished, producer, produced, front, freed)


def held_back(run: Run) -> Array:
    """Return the instructions that the scheduler held back until others had given memory back: with
    theirs, the instructions in flight would have exceeded `run_ahead_bytes`.
    """
    most = int(run.info.get("run_ahead_bytes", 0))
    received, late = run.time("received"), run.time("received") - run.time("issued")
    if not most or not (late > HELD).any():
        return np.zeros(len(run), bool)
    takes = np.where((run.access & OPERAND.ALLOCATE) != 0, run.size, 0)
    own = np.add.reduceat(np.append(takes, 0), run.offsets[:-1]) * (np.diff(run.offsets) > 0)
    own = own + run.scratch
    needed = np.concatenate(([0], np.cumsum(own)))  # by those below, in program order
    over = run.time("released")
    back = np.argsort(over, kind="stable")
    freed = np.concatenate(([0], np.cumsum(own[back])))
    gone = np.searchsorted(over[back], received - HELD)
    held: Array = (late > HELD) & (own > 0) & (needed[1:] - freed[gone] > most)
    return held


@dataclass(frozen=True)
class Waits:
    """Nanoseconds of each instruction between issue and start; the three sum to it."""

    dep: Array
    queue: Array
    sched: Array


def waits(run: Run, before: Order | None = None) -> Waits:
    """Return the waits of each instruction; 0 for those that have not run."""
    before = before or order(run)
    issued, started = run.time("issued"), run.time("started")
    start = np.where(before.finished, np.maximum(started, issued), issued)
    dep = np.clip(before.produced, issued, start)
    queue = np.clip(before.freed, dep, start)
    return Waits(dep - issued, queue - dep, start - queue)


def away(run: Run) -> tuple[Array, Array]:
    """Return the waits of issuing threads: borders, and in each interval between two an index into
    GAPS.

    The first interval is before the first border, the last after the last.
    """
    borders = np.unique(run.waits.times)
    cause = np.zeros(len(borders) + 1, np.int64)  # GAPS[0] is host
    for name in reversed(_FIRST):
        of = run.waits.times[run.waits.cause == CAUSES.index(name)]
        level = np.zeros(len(borders) + 1, np.int64)
        np.add.at(level, np.searchsorted(borders, of[:, 0]) + 1, 1)
        np.add.at(level, np.searchsorted(borders, of[:, 1]) + 1, -1)
        cause[np.cumsum(level) > 0] = GAPS.index(name)
    return borders, cause


def split(begun: Array, ended: Array, borders: Array, cause: Array) -> Array:
    """For intervals [begun, ended): nanoseconds of each of GAPS by what issuing threads did."""
    shares = np.zeros((len(begun), len(GAPS)), np.int64)
    if not len(begun):
        return shares
    for k in np.unique(cause):
        width = np.where(cause[1:-1] == k, np.diff(borders), 0) if len(borders) else borders
        total = np.concatenate(([0], np.cumsum(width)))

        def until(t: Array, k: int = k, total: Array = total) -> Array:
            """Time with cause k until t, counted from the first border."""
            if not len(borders):
                return t
            at = np.searchsorted(borders, t, side="right") - 1
            inside = np.maximum(at, 0)
            own = np.where(cause[at + 1] == k, t - borders[inside], 0)
            return np.where(at < 0, own, total[inside] + own).astype(np.int64)

        shares[:, k] = until(ended) - until(begun)
    return shares


@dataclass(frozen=True)
class Lane:
    """The course of one stream: intervals [begin, end) that tile the run, each with an index into
    STATES, and for `run`, `dep` and `sched` the instruction that ran or came next, else -1.

    Gaps before an issue are one interval of `host` here; `total` has them by what issuing threads
    did meanwhile.
    """

    stream: int
    begin: Array
    end: Array
    state: Array
    instruction: Array
    total: dict[str, int]


def lanes(run: Run, before: Order | None = None) -> list[Lane]:
    """A Lane for each stream that ran something, by device; the moments that releases take are
    gaps.
    """
    before = before or order(run)
    borders, cause = away(run)
    mine = np.flatnonzero(before.finished & ~np.isin(run.kind, _ASIDE))
    return [
        _lane(run, before, stream, mine[run.stream[mine] == stream], borders, cause)
        for stream in by_device(run, np.unique(run.stream[mine]).tolist())
    ]


def by_device(run: Run, streams: list[int]) -> list[int]:
    """Streams in the order of lanes: the host's, then each device's, whenever they were made."""

    return sorted(streams, key=lambda stream: (device_of(run.streams[stream]), stream))


def device_of(name: str) -> int:
    """The index of the device that a stream of this name belongs to, -1 for the host."""
    index = re.match(r"cuda:(\d+)", name)
    return int(index[1]) if index else -1


def _lane(run: Run, before: Order, stream: int, of: Array, borders: Array, cause: Array) -> Lane:
    started, ended = run.time("started"), run.time("ended")
    of = of[np.lexsort((of, started[of]))]
    begun = np.clip(started[of], run.begun, run.ended)
    over = np.clip(np.maximum.accumulate(ended[of]), run.begun, run.ended)
    free = np.concatenate(([run.begun], over[:-1]))  # when the stream had ended what was in front
    start = np.maximum(begun, free)
    issued = np.clip(run.time("issued")[of], free, start)
    dep = np.clip(before.produced[of], issued, start)
    # four intervals an instruction, and one after the last
    cuts = np.column_stack((free, issued, dep, start, np.maximum(over, start)))
    begin, end = cuts[:, :-1].ravel(), cuts[:, 1:].ravel()
    states = [STATES.index(name) for name in ("host", "dep", "sched", "run")]
    state = np.tile(states, len(of))
    instruction = np.repeat(of, 4)
    instruction[state == STATES.index("host")] = -1
    rest = over[-1] if len(of) else run.begun
    begin, end = np.append(begin, rest), np.append(end, run.ended)
    state, instruction = np.append(state, STATES.index("host")), np.append(instruction, -1)
    shares = split(np.append(free, rest), np.append(issued, run.ended), borders, cause).sum(axis=0)
    total = dict(zip(GAPS, shares.tolist(), strict=True))
    length = end - begin
    for name in ("dep", "sched", "run"):
        total[name] = total.get(name, 0) + int(length[state == STATES.index(name)].sum())
    real = length > 0
    return Lane(stream, begin[real], end[real], state[real], instruction[real], total)
