"""When launches that ran beside each other used what they share.

Launches of a Plan on several streams may be in flight together (`flowvm.vm.workers.actors`), so the
times of the instruction as a whole say nothing of their order: that of the tasks that touch an
operand does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowvm.vm.watch.flight import Snapshot

Array = np.ndarray[Any, Any]


def uses_of(seen: Snapshot, infos: Sequence[Any]) -> Array:
    """Rows (instruction, flat operand, writes, started, ended), for such launches alone.

    `infos` has what the VM's entries are about, for each instruction.  The times are those of the
    first and the last task that touched the operand, 0 where tasks were not recorded.
    """
    rows = []
    launches = {
        int(seen.seq[i]): i for i, info in enumerate(infos) if getattr(info, "accesses", ())
    }
    times: dict[tuple[int, int], tuple[int, int]] = {}
    for launch, task, _, _, started, ended in seen.tasks.tolist() if launches else ():
        if launch in launches:
            for k, _ in infos[launches[launch]].accesses[task]:
                begun, over = times.get((launch, k), (started, ended))
                times[launch, k] = min(begun, started), max(over, ended)
    for launch, i in launches.items():
        writes: dict[int, bool] = {}
        for touched in infos[i].accesses:
            for k, changes in touched:
                writes[k] = writes.get(k, False) or changes
        first = int(seen.offsets[i])
        if first < int(seen.offsets[i + 1]):
            rows += [
                (i, first + k, changes, *times.get((launch, k), (0, 0)))
                for k, changes in writes.items()
            ]
    return np.array(rows, np.int64).reshape(-1, 5)
