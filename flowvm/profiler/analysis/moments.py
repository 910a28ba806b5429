"""The VM at a moment, from records alone: what each instruction, stream, tensor and actor was at.

A run has for each instruction the times at which it went from one stage to the next (TIMES of
`flowvm.vm.watch.flight`).  All of these are *events*, in the order of their times; a moment is a
number of events that have happened.  So a moment is exact where clocks are not: of two events at
one nanosecond that of the earlier instruction is first, for which the later one may have waited.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.profiler.run.run import Run
from flowvm.vm.machine.words import KIND
from flowvm.vm.watch.flight import TIMES

NEVER = int(np.iinfo(np.int64).max)
# what an instruction is at after as many of its TIMES
STATES = ("to come", "issued", "pending", "ready", "queued", "running", "ended", "done")
TO_COME, ISSUED, PENDING, READY, QUEUED, RUNNING, ENDED, DONE = range(8)


class Moments:
    """The events of a run, and what was at each.

    `time` and `index` have each event's time (ns) and instruction, `stage` which of TIMES it is.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        times = np.where(run.times > 0, run.times, NEVER)
        # a stage that was not written down was passed when the next one was; none goes back
        times = np.minimum.accumulate(times[:, ::-1], axis=1)[:, ::-1]
        self.times: Array = np.maximum.accumulate(times, axis=1)
        flat = self.times.reshape(-1)
        happened = np.flatnonzero(flat < NEVER)
        width = len(TIMES)
        self._at = happened[np.argsort(flat[happened], kind="stable")]
        self.time: Array = flat[self._at]
        self.index: Array = self._at // width
        self.stage: Array = self._at % width

    def __len__(self) -> int:
        return len(self._at)

    @cached_property
    def _rank(self) -> Array:
        """For each instruction and stage the number of its event, NEVER where it has none."""
        rank = np.full(self.times.size, NEVER)
        rank[self._at] = np.arange(len(self._at))
        return rank.reshape(self.times.shape)

    def number_at(self, time: int) -> int:
        """Return the number of events up to a time (ns)."""
        return int(np.searchsorted(self.time, time, side="right"))

    def number_of(self, i: int, stage: int) -> int:
        """Return the number of events when instruction `i` came to a stage; -1: it never did."""
        rank = int(self._rank[i, stage])
        return -1 if rank == NEVER else rank + 1

    def next(self, number: int, stage: int, steps: int) -> int:
        """The moment `steps` events of a stage (-1: of any) further on, or back; at either end the
        first or the last.
        """
        if stage < 0:
            return min(max(number + steps, 0), len(self))
        numbers = np.flatnonzero(self.stage == stage) + 1
        place = int(np.searchsorted(numbers, number, side="right"))
        # going back from between two of them, the one behind is the first step
        at = place - 1 + steps if steps > 0 else int(np.searchsorted(numbers, number)) + steps
        if at < 0:
            return 0
        return int(numbers[at]) if at < len(numbers) else len(self)

    def states(self, number: int) -> Array:
        """Return the state of each instruction, one of STATES."""
        states: Array = (self._rank < number).sum(axis=1)
        return states

    def queue(self, states: Array, stream: int) -> Array:
        """The instructions in a stream's queue, in their order."""
        own = np.flatnonzero((states == QUEUED) & (self.run.stream == stream))
        return own[np.argsort(self._rank[own, QUEUED - 1], kind="stable")]

    def accesses(self, states: Array) -> Array:
        """The operands that stand in their tensors' access lists, in program order: those of
        instructions that the scheduler has received and not yet seen end.
        """
        inside = (states >= PENDING) & (states < DONE)
        return np.flatnonzero(inside[self.run.owner])

    def waits_for(self, states: Array, i: int) -> Array:
        """The edges to an instruction whose producers are not done."""
        first, last = np.searchsorted(self.run.target, [i, i + 1])
        edges = np.arange(first, last)
        return edges[states[self.run.source[edges]] < DONE]


def actors_of(plan: dict[str, Any]) -> list[Any]:
    """A Plan's actors; all its tasks as one where it has no others."""
    return plan["actors"] or [[0, 0, len(plan["tasks"]), [], []]]


def registers(run: Run, plan: dict[str, Any], launches: Array, time: int) -> list[dict[str, Any]]:
    """Each actor of a Plan at a time (ns), from the recorded tasks of its launches.

    `acts` that are over, the `task` that runs (-1: none), `mailbox`: for each actor that it reads
    from the registers that arrived and were not consumed, `credits`: for each actor that gives
    registers back how many it may still fill before it has to wait.  An actor of repeated tasks
    acts for each repetition; with one of others it counts launches.

    One that rests has a `launch` to act for (its place among them, -1: none), `waits`, what it
    lacks for that ("regst" or "credit", and the actor that it comes from), and `since` (ns) when:
    from when the launch was there and its act before was over, or where it lacks nothing, from when
    the last of that came.
    """
    actors = actors_of(plan)
    of_task = np.repeat(np.arange(len(actors)), [a[2] for a in actors])
    own = np.isin(run.tasks.launch, launches)
    number, launch = run.tasks.number[own], np.searchsorted(launches, run.tasks.launch[own])
    begun, over = run.tasks.times[own, 0], run.tasks.times[own, 1]
    place = (of_task[number], launch)
    shape = (len(actors), len(launches))
    ended_tasks = np.zeros(shape, np.int64)  # tasks of an act that have ended
    np.add.at(ended_tasks, place, (over <= time) & (over > 0))
    started = np.zeros(shape, np.int64)
    np.add.at(started, place, (begun <= time) & (begun > 0))
    repeats = [[task[2] for task in plan["tasks"][a[1] : a[1] + a[2]]] for a in actors]
    times = [each[0] if len({*each}) == 1 else 1 for each in repeats]  # acts for a launch
    counts = np.array([sum(r) // n for r, n in zip(repeats, times, strict=True)])[:, None]
    acts, fired = (ended_tasks // counts).sum(axis=1), (-(-started // counts)).sum(axis=1)
    ends = np.zeros(shape, np.int64)
    np.maximum.at(ends, place, over)
    start_times = run.time("started")[launches]
    free_registers = []

    def ahead(j: int, k: int) -> int:
        """Return the number of registers of actor j that actor k has not begun to consume."""
        if times[j] == times[k]:
            return int(acts[j] - fired[k])
        return int(acts[j] // times[j] + -fired[k] // times[k])

    for k, (_, _, _, inputs, credits) in enumerate(actors):
        mine = (place[0] == k) & (begun <= time) & (time < over)
        mailbox = {int(j): ahead(j, k) for j in inputs}
        free = {int(j): int(n + ahead(j, k)) for j, n in credits}
        next_one, since, waits = int(fired[k]) // times[k], -1, []
        if mine.any() or next_one >= len(launches) or not 0 < start_times[next_one] <= time:
            next_one = -1
        else:
            waits = [("regst", j) for j, n in mailbox.items() if n <= 0]
            waits += [("credit", j) for j, n in free.items() if n <= 0]
            past = over[(place[0] == k) & (over <= time)].max(initial=0)
            since = max(int(start_times[next_one]), int(past))
            if not waits:
                came = [int(ends[j, next_one]) for j in inputs]
                came += [int(ends[j, next_one - n]) for j, n in credits if next_one >= n]
                since = max([since, *(t for t in came if t <= time)])
        free_registers.append(
            {
                "acts": int(acts[k]),
                "task": int(number[mine][0]) if mine.any() else -1,
                "mailbox": mailbox, "credits": free,
                "launch": next_one, "waits": waits, "since": since,
            }
        )  # fmt: skip
    return free_registers


def launches_at(run: Run, states: Array) -> Array:
    """The launches of graphs that run."""
    return np.flatnonzero((run.kind == KIND.LAUNCH) & (states == RUNNING))
