"""The lanes of the page's timeline, and how the ranks of a run are tied.

Lanes of one process stand together: its observed path, when its Python waited, its streams with
their helpers, the tasks of its graphs.
"""

from __future__ import annotations

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.profiler.analysis.shares import helper_lanes
from flowvm.profiler.analysis.waits import STATES
from flowvm.profiler.export.time_machine import Columns
from flowvm.profiler.grammar import CAUSES
from flowvm.profiler.run.columns import CAUSES as HOST_CAUSES
from flowvm.profiler.views.ranks import ranks_summary
from flowvm.profiler.views.summary.facts import PartLike

ALL_STATES = tuple(dict.fromkeys((*STATES, *CAUSES)))


def _lane(
    page: Columns, lanes: list[dict[str, object]], name: str, kind: str, **columns: object
) -> None:
    """A lane of the timeline: intervals that begin and end in order."""
    key = f"lane{len(lanes)}"
    for column, values in columns.items():
        page.whole(f"{key}.{column}", values)
    lanes.append({"name": name, "kind": kind, "key": key})


def lanes_of(page: Columns) -> list[dict[str, object]]:
    """List the lanes of all processes, one process behind the other."""
    lanes: list[dict[str, object]] = []
    for number, part in enumerate(page.profile.parts):
        _lanes_of(page, part, lanes)
        for lane in lanes:
            lane.setdefault("part", number)
    return lanes


def _lanes_of(page: Columns, part: PartLike, lanes: list[dict[str, object]]) -> None:
    run, first = part.profile.run, part.first
    own = f"{part.name} ".lstrip()
    path = part.profile.observed

    def instructions(some: object) -> Array:
        places = np.asarray(some, np.int64)
        return np.where(places >= 0, places + first, -1)

    _lane(
        page, lanes, f"{own}critical path", "path",
        begin=page.since(np.array([s.begin for s in path], np.int64)),
        end=page.since(np.array([s.end for s in path], np.int64)),
        what=[ALL_STATES.index(s.cause) for s in path],
        ins=instructions([s.instruction for s in path]),
    )  # fmt: skip
    order = np.argsort(run.waits.times[:, 0], kind="stable")
    waited = run.waits.times[order]
    over = np.maximum.accumulate(waited[:, 1]) if len(waited) else waited[:, 1]
    cause = [ALL_STATES.index(HOST_CAUSES[c]) for c in run.waits.cause[order].tolist()]
    _lane(
        page, lanes, f"{own}python waits", "python", begin=page.since(waited[:, 0]),
        end=page.since(over), what=cause, ins=np.full(len(waited), -1),
    )  # fmt: skip
    for lane in part.profile.lanes:
        _lane(
            page, lanes, run.streams[lane.stream], "stream", begin=page.since(lane.begin),
            end=page.since(lane.end),
            what=[ALL_STATES.index(STATES[s]) for s in lane.state.tolist()],
            ins=instructions(lane.instruction),
        )  # fmt: skip
        for name, shares in helper_lanes(run, lane.stream):
            _lane(
                page, lanes, name, "stream", begin=page.since(shares[:, 0]),
                end=page.since(shares[:, 1]),
                what=np.full(len(shares), ALL_STATES.index("run")),
                ins=instructions(shares[:, 2]),
            )  # fmt: skip
    for stream in np.unique(run.tasks.stream).tolist():
        tasks = np.flatnonzero(run.tasks.stream == stream)
        tasks = tasks[np.argsort(run.tasks.times[tasks, 0], kind="stable")]
        _lane(
            page, lanes, f"{run.streams[stream]} tasks", "tasks",
            begin=page.since(run.tasks.times[tasks, 0]),
            end=page.since(run.tasks.times[tasks, 1]),
            what=np.full(len(tasks), ALL_STATES.index("run")),
            ins=instructions(run.tasks.launch[tasks]),
            task=run.tasks.number[tasks], op=run.tasks.op[tasks], line=run.tasks.line[tasks],
        )  # fmt: skip


def ranks_of(page: Columns) -> dict[str, object]:
    """Return the ranks' times of computing, exchanging and being late; put the parts of
    collectives.
    """
    parts, tied = page.profile.parts, page.profile.tied
    summary = ranks_summary([part.profile for part in parts], [0] * len(parts))
    names: list[str] = []
    if tied is not None:
        names = tied.names
        page.put("tie.instruction", "i", tied.instruction.ravel())
        page.whole("tie.begin", page.since(tied.begin.ravel()))
        page.whole("tie.end", page.since(tied.end.ravel()))
        page.whole("tie.bytes", tied.nbytes)
    return {
        **summary.to_dict(),
        "names": names,
        "bound": [list(part.profile.bound.items()) for part in parts],
    }
