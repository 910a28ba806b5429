"""The schedule verifier on a recorded run: did anything start before what it had to wait for?

What waits for a device on a device is checked where the device's own times are known: at level 3.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flowvm.errors import ScheduleError
from flowvm.meta.arrays import Array
from flowvm.profiler.analysis.beside import uses_by_access
from flowvm.profiler.analysis.waits import Order, device_of
from flowvm.profiler.run.run import Run
from flowvm.vm.machine.words import KIND
from flowvm.vm.watch.device_times import DEVICE, HOST, SEEN
from flowvm.vm.watch.uses import CONFLICTS, in_wrong_order
from flowvm.vm.watch.verify import Verified

GRAIN = 2000  # ns: of what a driver says between events
MOST_BROKEN = 10  # pairs named in an error


def verified(run: Run, before: Order) -> Verified:
    """Count the pairs that were checked; ScheduleError names the first one in the wrong order."""
    both = before.finished[run.source] & before.finished[run.target]
    # a device's instruction whose times the host saw is only known to have been handed over in time
    is_exact, away = run.clock == SEEN, run.clock != HOST
    both &= ~((is_exact[run.source] | is_exact[run.target]) & away[run.source] & away[run.target])
    source, target = run.source[both], run.target[both]
    begun = np.where(is_exact, run.opened, run.time("started"))
    early = begun[target] + _slack(run, source, target) < run.time("ended")[source]
    # launches that may run beside each other: what their tasks did decides
    early &= ~(np.isin(source, run.uses.of) & np.isin(target, run.uses.of))
    early[list(_in_wrong_order(run, source, target))] = True
    if early.any():
        named = [
            f"#{run.seq[a]} {run.names[run.op[a]]} and #{run.seq[b]} {run.names[run.op[b]]} "
            f"overlap on tensor t{run.tensor[k]}"
            for a, b, k in zip(
                source[early][:MOST_BROKEN],
                target[early][:MOST_BROKEN],
                run.operand[both][early][:MOST_BROKEN],
                strict=True,
            )
        ]
        raise ScheduleError(
            f"{int(early.sum())} of {len(source)} conflicting pairs ran in the wrong order:\n  "
            + "\n  ".join(named)
        )
    return Verified(int((run.kind != KIND.BARRIER).sum()), len(source))


def _slack(run: Run, source: Array, target: Array) -> Array:
    """Return the possible error of the times of two instructions: on one device the grain of its
    events, on two devices the uncertainty of their clocks.
    """
    within = sum(c["within_ns"] for c in run.info.get("clocks", {}).values())
    spaces = np.array([device_of(name) for name in run.streams], np.int64)
    one = spaces[run.stream[source]] == spaces[run.stream[target]]
    both = (run.clock[source] == DEVICE) & (run.clock[target] == DEVICE)
    return np.where(both, np.where(one, GRAIN, GRAIN + within), 0)


def _in_wrong_order(run: Run, source: Array, target: Array) -> Iterator[int]:
    """Pairs of launches, of those given, whose tasks used a tensor in the wrong order."""
    used = uses_by_access(run)
    tensors: dict[int, list[int]] = {}
    for i, tensor in used:
        tensors.setdefault(i, []).append(tensor)
    for k, (a, b) in enumerate(zip(source.tolist(), target.tolist(), strict=True)):
        if any(
            in_wrong_order(used[a, tensor][one], used[b, tensor][other])
            for tensor in tensors.get(a, ())
            if (b, tensor) in used
            for one, other in CONFLICTS
        ):
            yield k
