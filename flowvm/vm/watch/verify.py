"""The schedule verifier: a check that a recorded run kept every order that its operands demand.

Independent of the engine's edges: for every tensor, every two accesses in program order of which
one at least writes must not have overlapped, the earlier one ending before the later one started.
Launches of a Plan on several streams may be in flight together: between those, the times count at
which their tasks read and wrote the tensor.  One of which no task did, because it or one in front
of it had failed, is in nobody's way.  Starts and ends are readings of one clock, each taken where
the memory order that the engine relies on has an instruction begin after what it waited for has
ended.
"""

from __future__ import annotations

from dataclasses import dataclass

from flowvm.errors import ScheduleError
from flowvm.vm.machine.words import Access
from flowvm.vm.watch.trace import Trace
from flowvm.vm.watch.uses import CONFLICTS, UNUSED, in_wrong_order


@dataclass(frozen=True)
class Verified:
    """The count of checks: `pairs` of conflicting accesses, in `instructions` instructions.

    >>> flow.vm.Verified(instructions=4, pairs=4).pairs
    4
    """

    instructions: int
    pairs: int


def verify(trace: Trace) -> Verified:
    """Check a recorded run; ScheduleError names the first pairs that broke the order.

    >>> with flow.vm.record() as trace:
    ...     x = (flow.ones(2) + 1).add_(1)
    >>> flow.vm.verify(trace).pairs > 0
    True
    """
    accesses: dict[int, list[tuple[int, bool]]] = {}
    for index, ins in enumerate(trace.instructions):
        touched: dict[int, bool] = {}
        for o in ins.operands:
            touched[o.tensor] = touched.get(o.tensor, False) or o.access != Access.CONST
        for tensor, writes in touched.items():
            accesses.setdefault(tensor, []).append((index, writes))
    pairs, broken = 0, []
    for tensor, uses in accesses.items():
        since_write: list[tuple[int, bool]] = []
        for index, writes in uses:
            # earlier conflicting accesses; the ones before the last write are ordered through it
            for earlier, earlier_writes in since_write:
                if writes or earlier_writes:
                    pairs += 1
                    if _overlap(trace, earlier, index, tensor):
                        a, b = trace.instructions[earlier], trace.instructions[index]
                        broken.append((a, b, tensor))
            if writes and trace.uses.get((index, tensor)) != [UNUSED, UNUSED]:
                since_write = []
            since_write.append((index, writes))
    if broken:
        lines = [
            f"#{a.seq} {a.name} and #{b.seq} {b.name} overlap on tensor t{tensor}"
            for a, b, tensor in broken[:10]
        ]
        raise ScheduleError(
            f"{len(broken)} of {pairs} conflicting pairs ran in the wrong order:\n  "
            + "\n  ".join(lines)
        )
    return Verified(len(trace.instructions), pairs)


def _overlap(trace: Trace, earlier: int, later: int, tensor: int) -> bool:
    """Return True if the earlier instruction's use of a tensor had not ended when the later one
    began its own.
    """
    before, after = trace.uses.get((earlier, tensor)), trace.uses.get((later, tensor))
    if before is None or after is None:
        return trace.instructions[earlier].ended > trace.instructions[later].started
    return any(in_wrong_order(before[a], after[b]) for a, b in CONFLICTS)
