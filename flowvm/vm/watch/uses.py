"""Times at which parallel launches used the operands that they share.

Launches of a Plan on several streams may be in flight together (`flowvm.vm.workers.actors`), so the
times of the whole instructions do not show their order.  The times of the tasks that touch an
operand do, with their kind of access.  One launch may read an operand that another already reads
for the last time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.vm.watch.flight import Snapshot

Times = tuple[int, int]
CONFLICTS = ((True, False), (True, True), (False, True))  # of two uses: whether each writes
UNUSED = (0, 0)  # no task of the launch did it, or none that is remembered


def joined(a: Times, b: Times) -> Times:
    """Join two times of use to the span of both."""
    if UNUSED in (a, b):
        return max(a, b)
    return min(a[0], b[0]), max(a[1], b[1])


def in_wrong_order(earlier: Times, later: Times) -> bool:
    """Return True if both uses took place, and the earlier one was not over when the later one
    began.
    """
    return UNUSED not in (earlier, later) and earlier[1] > later[0]


def uses_of(snapshot: Snapshot, infos: Sequence[Any]) -> Array:
    """Return rows (instruction, flat operand, writes, started, ended) for launches of Plans.

    `infos` has the objects of the VM's entries, for each instruction.  An operand has a row for
    tasks that write it and one for tasks that only read it, with the times of the first and the
    last.  They are UNUSED if none ran or is remembered.
    """
    rows = []
    launches = {
        int(snapshot.seq[i]): i for i, info in enumerate(infos) if getattr(info, "accesses", ())
    }
    times: dict[tuple[int, int, bool], Times] = {}
    for launch, task, _, _, started, ended in snapshot.tasks.tolist() if launches else ():
        if launch in launches:
            for k, writes in _touched(infos[launches[launch]].accesses[task]):
                known = times.get((launch, k, writes), UNUSED)
                times[launch, k, writes] = joined(known, (started, ended))
    for launch, i in launches.items():
        touched = dict.fromkeys(use for task in infos[i].accesses for use in _touched(task))
        first = int(snapshot.offsets[i])
        if first < int(snapshot.offsets[i + 1]):
            rows += [
                (i, first + k, writes, *times.get((launch, k, writes), UNUSED))
                for k, writes in touched
            ]
    return np.array(rows, np.int64).reshape(-1, 5)


def _touched(task: Sequence[tuple[int, bool]]) -> list[tuple[int, bool]]:
    """Yield each operand of a task once, with True if the task writes it."""
    writes: dict[int, bool] = {}
    for k, changes in task:
        writes[k] = writes.get(k, False) or changes
    return list(writes.items())
