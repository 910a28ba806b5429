"""The data of the page's time machine: the page computes from it the result of `p.at`.

The page's program (`assets/moments.js`) is the second of two implementations; the first is
`flowvm.profiler.views.moment`, and a test holds them against each other.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.profiler.analysis.moments import NEVER, actors_of
from flowvm.profiler.run.columns import CAUSES
from flowvm.profiler.run.run import Run
from flowvm.profiler.run.spaces import spaces_of
from flowvm.profiler.views.moment import EVENTS, WAITS
from flowvm.profiler.views.plan import label
from flowvm.profiler.views.summary.facts import ProfileLike
from flowvm.vm.machine.words import KIND
from flowvm.vm.watch.flight import TIMES


class Columns(Protocol):
    """The data of the page, column by column (`flowvm.profiler.export.html`)."""

    run: Run

    @property
    def profile(self) -> ProfileLike:
        """The profile on the page."""

    def put(self, name: str, kind: str, values: object) -> None: ...

    def whole(self, name: str, values: object) -> None: ...

    def since(self, nanoseconds: Array) -> Array: ...


def rewinding(page: Columns) -> dict[str, object]:
    """Put the columns that moments are made of; everything else about them."""
    run, times = page.run, page.profile.moments.times
    # when each instruction came to its first stage, and how long after one to the next: small
    # numbers but for the first.  What never happened is NaN there, and -1 behind it.
    happened = times < NEVER
    page.put("t0", "f", np.where(happened[:, 0], page.since(times[:, 0]), np.nan))
    for k in range(1, len(TIMES)):
        page.whole(f"t{k}", np.where(happened[:, k], times[:, k] - times[:, k - 1], -1))
    page.put("kind", "b", run.kind)
    page.whole("size", run.size)
    page.put("operand", "i", run.operand)
    page.put("wait.begin", "f", page.since(run.waits.times[:, 0]))
    page.put("wait.end", "f", page.since(run.waits.times[:, 1]))
    page.put("wait.cause", "b", run.waits.cause)
    spaces = spaces_of(run)
    for k, space in enumerate(spaces):
        memory = page.profile.memory_of(space)
        page.put(f"level{k}.time", "f", page.since(memory.time))
        page.whole(f"level{k}.bytes", memory.nbytes)
    page.put("task.launch", "i", run.tasks.launch)
    page.put("task.number", "i", run.tasks.number)
    page.put(
        "task.begin",
        "f",
        np.where(run.tasks.times[:, 0] > 0, page.since(run.tasks.times[:, 0]), np.nan),
    )
    page.put(
        "task.end",
        "f",
        np.where(run.tasks.times[:, 1] > 0, page.since(run.tasks.times[:, 1]), np.nan),
    )
    waits = np.cumsum([0, *(len(part.profile.run.waits.cause) for part in page.profile.parts)])
    last = page.profile.moments.time[-1:].tolist()
    return {
        "wall": run.wall,
        "over": max(run.ended, run.begun, *last) - run.begun,
        "times": TIMES,
        "events": [EVENTS[name] for name in TIMES],
        "waits": [WAITS[cause] for cause in CAUSES],
        "launch": int(KIND.LAUNCH),
        "spaces": spaces,
        "first_waits": waits.tolist(),
        "plans": {name: _actors(plan) for name, plan in run.info.get("plans", {}).items()},
    }


def _actors(plan: dict[str, Any]) -> list[dict[str, object]]:
    """A Plan's actors as the page knows them."""
    titles = [task[0] for task in plan["tasks"]]
    return [
        {
            "first": first,
            "count": count,
            "label": label(titles[first : first + count]),
            "inputs": inputs,
            "credits": credits,
        }
        for _, first, count, inputs, credits in actors_of(plan)
    ]
