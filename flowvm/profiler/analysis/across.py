"""Exchanges among ranks, from their runs side by side: which belong together, which rank was late,
and how much of their time was hidden behind computation.

Times of all runs are of one clock; a run's `shift` is what is added to its own for that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.profiler.analysis.waits import Order
from flowvm.profiler.run.run import Run
from flowvm.vm.machine.words import KIND

EXCHANGES = (
    "all_reduce", "all_reduce_", "reduce_", "all_gather", "reduce_scatter", "all_to_all",
    "broadcast", "broadcast_", "barrier", "send", "recv", "recv_",
)  # fmt: skip
COLLECTIVES = "comm"  # the lane of all that is no message
_LANE = re.compile(rf"(?:rank \d+ )?(?:cuda:\d+ )?({COLLECTIVES}|send\d+|recv\d+)")


@dataclass(frozen=True, eq=False)
class Exchanges:
    """Exchanges of one rank, in the order in which they began: columns.  `instruction` is the one
    that exchanged, or launched the graph that did.
    """

    names: list[str]
    lanes: list[str]
    begin: Array
    end: Array
    nbytes: Array
    instruction: Array

    def collectives(self) -> Exchanges:
        """Return the exchanges that are collectives, without messages."""
        return self.those([k for k, lane in enumerate(self.lanes) if lane_of(lane) == COLLECTIVES])

    def those(self, own: list[int]) -> Exchanges:
        """Some of them."""
        return Exchanges(
            [self.names[k] for k in own], [self.lanes[k] for k in own],
            self.begin[own], self.end[own], self.nbytes[own], self.instruction[own],
        )  # fmt: skip


def lane_of(stream: str) -> str:
    """Return the lane of exchanges that a stream is, whatever its rank; "" for other streams."""
    match = _LANE.fullmatch(stream)
    return match[1] if match else ""


def is_lane(stream: str) -> bool:
    """Return True if a stream is one for exchanges among ranks."""
    return bool(lane_of(stream))


def _calls(run: Run) -> Exchanges:
    """All kernels of a run, eager ones and tasks of graphs."""
    started, ended = run.time("started"), run.time("ended")
    own = np.flatnonzero((run.kind == KIND.OP_CALL) & (started > 0) & (ended > 0))
    begin = np.concatenate((started[own], run.tasks.times[:, 0]))
    end = np.concatenate((ended[own], run.tasks.times[:, 1]))
    ops = np.concatenate((run.op[own], run.tasks.op))
    streams = np.concatenate((run.stream[own], run.tasks.stream))
    nbytes = np.concatenate((run.nbytes[own], run.tasks.nbytes))
    instruction = np.concatenate((own, run.tasks.launch))
    order = np.argsort(begin, kind="stable")
    return Exchanges(
        [run.names[k] for k in ops[order].tolist()],
        [run.streams[k] for k in streams[order].tolist()],
        begin[order], end[order], nbytes[order], instruction[order],
    )  # fmt: skip


def exchanges_of(run: Run) -> Exchanges:
    """Return the exchanges of one rank."""
    calls = _calls(run)
    own = [
        k
        for k, (name, lane) in enumerate(zip(calls.names, calls.lanes, strict=True))
        if name in EXCHANGES and is_lane(lane)
    ]
    return calls.those(own)


def computing(run: Run) -> Array:
    """Return the intervals in which a kernel ran that exchanges nothing: rows of begin and end that
    do not touch.
    """
    calls = _calls(run)
    own = [k for k, lane in enumerate(calls.lanes) if not is_lane(lane)]
    return union(calls.begin[own], calls.end[own])


def union(begin: Array, end: Array) -> Array:
    """Intervals that overlap made one: rows of begin and end, in their order."""
    real = end > begin
    begin, end = begin[real], end[real]
    if not len(begin):
        return np.zeros((0, 2), np.int64)
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], np.maximum.accumulate(end[order])
    first = np.append(True, begin[1:] > end[:-1])
    last = np.append(first[1:], True)
    return np.column_stack((begin[first], end[last]))


def common(a: Array, b: Array) -> int:
    """For how long intervals of both, rows as `union` gives them, are at the same time."""
    total = i = j = 0
    while i < len(a) and j < len(b):
        total += max(0, int(min(a[i, 1], b[j, 1]) - max(a[i, 0], b[j, 0])))
        if a[i, 1] < b[j, 1]:
            i += 1
        else:
            j += 1
    return total


@dataclass(frozen=True, eq=False)
class Tied:
    """Collectives that all ranks made together: row k is the k-th, a column a rank."""

    names: list[str]
    nbytes: Array
    begin: Array
    end: Array
    instruction: Array

    def __len__(self) -> int:
        return len(self.names)

    @property
    def last(self) -> Array:
        """For each collective, the time at which the last rank came."""
        moments: Array = self.begin.max(1, initial=0)
        return moments

    @property
    def late(self) -> Array:
        """For each collective, the rank that came last."""
        return self.begin.argmax(1) if len(self.begin) else np.zeros(0, np.int64)

    @property
    def waited(self) -> Array:
        """For how long the first was there before the last."""
        first: Array = self.begin.min(1, initial=np.iinfo(np.int64).max)
        return self.last - first


def tied(each: Sequence[Exchanges], shifts: Sequence[int]) -> Tied | None:
    """The collectives that belong together: with one group of all ranks the k-th of each.

    None where ranks made different ones, because several groups exchange, or because a recorder has
    lost the first of them.
    """
    own = [one.collectives() for one in each]
    if any(one.names != own[0].names for one in own):
        return None
    begin = np.column_stack([one.begin + s for one, s in zip(own, shifts, strict=True)])
    end = np.column_stack([one.end + s for one, s in zip(own, shifts, strict=True)])
    instruction = np.column_stack([one.instruction for one in own])
    return Tied(own[0].names, own[0].nbytes, begin, end, instruction)


def before(run: Run, order: Order, i: int, begin: int) -> Iterator[tuple[int, int, str, int]]:
    """Yield the intervals in front of the start of instruction `i`, back to the moment `begin`:
    from, to, and "run" with the instruction that ran, "sched" with the one that came next, or
    "host" with the one that was not issued yet.
    """
    issued, started, ended = (run.time(name) for name in ("issued", "started", "ended"))
    at = int(started[i])
    while at > begin:
        gates = [(int(issued[i]), -1)]
        gates += [(int(order.produced[i]), int(order.producer[i]))]
        gates += [(int(order.freed[i]), int(order.front[i]))]
        over, gate = max(gates)
        over = min(over, at)
        if over < at:
            yield max(over, begin), at, "sched", i
        if gate < 0:
            yield begin, max(over, begin), "host", i
            return
        at = min(over, int(started[gate]))
        yield max(at, begin), max(min(over, int(ended[gate])), begin), "run", gate
        i = gate
