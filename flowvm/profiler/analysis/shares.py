"""Shares of instructions: the threads that ran one, helpers beside the stream's worker.

Recorded from level 2 on, for the last 4,096 shares of each helper.  A share is the time from a
helper's first chunk of a kernel (of one of its phases) to its last; the worker takes chunks all the
time that its instruction runs, so it has no shares of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.profiler.run.run import Run


@dataclass(frozen=True)
class Helped:
    """A helper's part in an instruction: nanoseconds that it ran, and chunks."""

    name: str
    run: int
    chunks: int


def helper_name(run: Run, stream: int, helper: int) -> str:
    """Return the thread's name in the system, less "flowvm-h:": cpu.0."""
    return f"{run.streams[stream]}.{helper}"


def helpers_of(run: Run, i: int) -> tuple[Helped, ...]:
    """The helpers that took part in instruction `i`, by their numbers."""
    mine = np.flatnonzero(run.shares.of == i)
    lasted = np.diff(run.shares.times[mine], axis=1)[:, 0]
    rows = []
    for helper in np.unique(run.shares.helper[mine]).tolist():
        own = run.shares.helper[mine] == helper
        name = helper_name(run, int(run.stream[i]), helper)
        rows.append(Helped(name, int(lasted[own].sum()), int(run.shares.chunks[mine][own].sum())))
    return tuple(rows)


def threads_of(run: Run, i: int) -> int:
    """Return the number of threads that ran instruction `i`, the stream's worker among them."""
    return 1 + len(np.unique(run.shares.helper[run.shares.of == i]))


def helper_lanes(run: Run, stream: int) -> list[tuple[str, Array]]:
    """For each helper of a stream its name, and its shares: begin, end, instruction; in order."""
    rows = []
    of = run.shares.stream == stream
    for helper in np.unique(run.shares.helper[of]).tolist():
        own = np.flatnonzero(of & (run.shares.helper == helper))
        own = own[np.argsort(run.shares.times[own, 0], kind="stable")]
        lane = np.column_stack((run.shares.times[own], run.shares.of[own])).astype(np.int64)
        lane[:, :2] = np.clip(lane[:, :2], run.begun, run.ended)
        rows.append((helper_name(run, stream, helper), lane))
    return rows
