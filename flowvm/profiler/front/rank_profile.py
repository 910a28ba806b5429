"""One Profile of all ranks: each rank's own analysis, side by side.

What a rank waited for, and its observed path, are found in its own run; a path through all of them
would need to know which message was the answer to which.  Collectives, which all ranks make
together, tie them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cached_property

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.profiler.analysis import across
from flowvm.profiler.analysis.across import Tied
from flowvm.profiler.analysis.host_time import Spent
from flowvm.profiler.analysis.paths import Floor, Segment, totals
from flowvm.profiler.analysis.tables import Row
from flowvm.profiler.analysis.waits import Lane, Order
from flowvm.profiler.front.profiles import Part, Profile
from flowvm.profiler.run.rank_runs import joined, placed, title
from flowvm.profiler.run.run import Run
from flowvm.profiler.views.flame import Flame

_SUMS = ("count", "run", "path", "dep", "queue", "sched", "nbytes", "flops", "host")


class Joined(Profile):
    """See the module.  Shares of time are of all ranks' time together."""

    def __init__(self, runs: Sequence[Run], shifts: Sequence[int]) -> None:
        own = placed(runs, shifts)
        super().__init__(joined(own))
        first = np.cumsum([0, *(len(run) for run in own)]).tolist()
        self._parts = [
            Part(title(k), Profile(run), n)
            for k, (run, n) in enumerate(zip(own, first[:-1], strict=True))
        ]

    @property
    def parts(self) -> list[Part]:
        """The ranks."""
        return self._parts

    @cached_property
    def tied(self) -> Tied | None:
        """The collectives that ranks made together, by the instructions of this run; None where
        they made different ones.
        """
        each = [across.exchanges_of(part.profile.run) for part in self.parts]
        collectives = across.tied(each, [0] * len(each))
        if collectives is None:
            return None
        return replace(
            collectives, instruction=collectives.instruction + [part.first for part in self.parts]
        )

    @cached_property
    def order(self) -> Order:
        """The instructions that stood in front of each instruction on its own rank."""

        def later(name: str, part: Part) -> Array:
            own: Array = getattr(part.profile.order, name)
            return (
                np.where(own >= 0, own + part.first, own) if name in ("producer", "front") else own
            )

        return Order(
            **{
                field.name: np.concatenate([later(field.name, part) for part in self.parts])
                for field in fields(Order)
            }
        )

    @cached_property
    def lanes(self) -> list[Lane]:
        """The state of each stream at every moment of its rank's run."""
        return [
            replace(
                lane, instruction=np.where(lane.instruction >= 0, lane.instruction + part.first, -1)
            )
            for part in self.parts
            for lane in part.profile.lanes
        ]

    @cached_property
    def observed(self) -> list[Segment]:
        """Each rank's path, one behind the other."""
        return [
            s._replace(instruction=s.instruction + part.first if s.instruction >= 0 else -1)
            for part in self.parts
            for s in part.profile.observed
        ]

    @cached_property
    def host(self) -> list[Spent]:
        """The host's work on each rank's path, most first."""
        return sorted(
            (one for part in self.parts for one in part.profile.host), key=lambda one: -one.time
        )

    @cached_property
    def floor(self) -> Floor:
        """The longest of the ranks'."""
        longest = max(self.parts, key=lambda part: part.profile.floor.length)
        longest_path = longest.profile.floor
        return Floor(longest_path.length, [i + longest.first for i in longest_path.path])

    @property
    def bound(self) -> dict[str, float]:
        """Shares of all ranks' time by cause on their observed paths, largest first."""
        total = totals(self.observed)
        wall = max(1, sum(total.values()))
        return {c: t / wall for c, t in sorted(total.items(), key=lambda item: -item[1])}

    def table(self, by: str = "op") -> list[Row]:
        """Sums over all ranks by "op", "line", "module" or "stream"."""
        rows: dict[str, Row] = {}
        for part in self.parts:
            for row in part.profile.table(by):
                one = rows.get(row.name)
                if one is not None:
                    longer = row if row.run > one.run else one
                    sums = {name: getattr(one, name) + getattr(row, name) for name in _SUMS}
                    row = replace(longer, **sums, devices=one.devices or row.devices)
                rows[row.name] = row
        return sorted(rows.values(), key=lambda r: (-r.path, -r.run, r.name))

    def flame(self, by: str = "time") -> Flame:
        """Flame graphs of all ranks, each below its name."""
        stacks = [
            ((part.name, *stack), weight)
            for part in self.parts
            for stack, weight in part.profile.flame(by).stacks
        ]
        return Flame(by, tuple(stacks))
