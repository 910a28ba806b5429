"""Launches of a Plan that were in flight together: what each used when, and how much of it depends
on the others.

Such a launch is no stretch of work from its start to its end: some of its tasks run while those of
the launch before still do, and between them it waits for its turn.  So its *work* is the time in
which any of its tasks ran, and it depends on another launch only from the work that it had done
when it first used what both use.  Invariant: no model of this module ends later than the run did.
"""

from __future__ import annotations

from bisect import bisect_right

from flowvm.meta.arrays import Array
from flowvm.profiler.run.run import Run
from flowvm.vm.watch.uses import UNUSED, Times, joined

Uses = dict[int, dict[int, tuple[bool, int, int]]]


def uses(run: Run) -> Uses:
    """For each such launch and tensor: whether it was written, first started, last ended; the times
    are 0 where no task ran or was recorded.
    """
    uses: Uses = {}
    for i, tensor, writes, (begun, over) in zip(
        run.uses.of.tolist(), run.uses.tensor.tolist(), run.uses.writes.tolist(),
        run.uses.times.tolist(), strict=True,
    ):  # fmt: skip
        of = uses.setdefault(i, {})
        known = of.get(tensor, (False, *UNUSED))
        of[tensor] = known[0] or writes, *joined(known[1:], (begun, over))
    return uses


def uses_by_access(run: Run) -> dict[tuple[int, int], list[Times]]:
    """For each such launch and tensor: when it was read, and when it was written."""
    times_of: dict[tuple[int, int], list[Times]] = {}
    for i, tensor, writes, times in zip(
        run.uses.of.tolist(), run.uses.tensor.tolist(), run.uses.writes.tolist(),
        map(tuple, run.uses.times.tolist()), strict=True,
    ):  # fmt: skip
        of = times_of.setdefault((i, tensor), [UNUSED, UNUSED])
        of[writes] = joined(of[writes], times)
    return times_of


class Launch:
    """One launch, as if nothing but data could hold it up: it begins its work at `base`, and from
    `before` of it on goes on no earlier than `ready`, for each of `fronts`.
    """

    def __init__(self, started: int, stretches: list[tuple[int, int]], scale: float) -> None:
        self.started, self.scale, self.base = started, scale, 0.0
        self.fronts: list[tuple[float, float]] = []  # before, ready
        self.begun: list[int] = []  # of disjoint stretches in which a task ran
        self.ended: list[int] = []
        self.work_before = [0]  # work before each of them, and all of it
        for begun, ended in sorted(stretches):
            if self.ended and begun <= self.ended[-1]:
                begun = self.begun.pop()
                ended = max(ended, self.ended.pop())
                self.work_before.pop()
            self.begun.append(begun)
            self.ended.append(ended)
            self.work_before.append(self.work_before[-1] + ended - begun)

    def work(self, moment: int) -> float:
        """The work done at a moment of the run."""
        k = bisect_right(self.begun, moment) - 1
        if k < 0:
            return 0.0
        return self.scale * (self.work_before[k] + min(moment, self.ended[k]) - self.begun[k])

    @property
    def length(self) -> float:
        """All of its work."""
        return self.scale * self.work_before[-1]

    def at(self, work: float) -> float:
        """Return the earliest time at which `work` nanoseconds of it can be done."""
        held = (ready + work - before for before, ready in self.fronts if before < work)
        return max(self.base + work, max(held, default=0.0))

    @property
    def end(self) -> float:
        """Return the earliest time at which all of it can be done."""
        return max([self.at(self.length), *(ready for _, ready in self.fronts)])

    def follow(self, front: Launch, mine: dict[int, tuple[bool, int, int]],
               theirs: dict[int, tuple[bool, int, int]]) -> float:  # fmt: skip
        """Wait for what `front` does to the tensors that both use; until when, at most."""
        latest = 0.0
        for tensor, (writes, _, over) in theirs.items():
            changed, begun, _ = mine.get(tensor, (False, 0, 0))
            if tensor not in mine or not (writes or changed):
                continue
            if over and begun:
                before, ready = self.work(begun), front.at(front.work(over))
            else:  # not known when: it was no later than this one's start
                before, ready = 0.0, front.at(front.work(self.started))
            self.fronts.append((before, ready))
            latest = max(latest, ready)
        return latest


def launches(run: Run, duration: Array) -> dict[int, Launch]:
    """The launches that may run beside others; `duration` is what each instruction would take."""
    started, ended = run.time("started").tolist(), run.time("ended").tolist()
    tasks: dict[int, list[tuple[int, int]]] = {i: [] for i in run.uses.of.tolist()}
    for i, (begun, over) in zip(run.tasks.launch.tolist(), run.tasks.times.tolist(), strict=True):
        if i in tasks:
            tasks[i].append((begun, over))
    uses = {}
    for i, stretches in tasks.items():
        span = ended[i] - started[i]
        scale = float(duration[i]) / span if span > 0 else 0.0
        uses[i] = Launch(started[i], stretches or [(started[i], max(started[i], ended[i]))], scale)
    return uses
