"""Values of all ranks for the profiler, and the differences between their clocks.

Ranks of one host read one monotonic clock.  Between hosts a rank asks the first one for the time,
and takes the answer that came soonest: the clocks then agree to half of how long that took.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

from flowvm.config import config
from flowvm.errors import CommunicationError

ROUNDS = 16


class Place(Protocol):
    """The interface of the world that this module needs."""

    rank: int
    size: int
    control: Any
    boards: dict[int, int]

    def raise_fault(self) -> None:
        """Raise CommunicationError if exchanges have ended because of an error."""


def gathered(place: Place, value: object) -> tuple[list[object], list[int]]:
    """Every rank's value, and the nanoseconds to be added to each rank's clock.

    CommunicationError if a rank does not come.
    """
    arrived, begun = place.control.Ibarrier(), time.monotonic()
    while not arrived.Test():
        place.raise_fault()
        waited = time.monotonic() - begun
        if waited > config.distributed_timeout:
            raise CommunicationError(
                f"rank {place.rank} waited {waited:.0f} s for others to gather what ranks recorded"
            )
        time.sleep(0.002)  # and not in MPI, which would take the core
    values = place.control.allgather(value)
    alone = len(place.boards) == place.size  # all on this host
    return values, [0] * place.size if alone else measured_shifts(place)


def measured_shifts(place: Place) -> list[int]:
    """Measure by how many nanoseconds each rank's clock is behind the first rank's.  All ranks call
    it.
    """
    control, shifts = place.control, [0] * place.size
    for other in range(1, place.size):
        soonest = -1
        for _ in range(ROUNDS):
            if place.rank == other:
                control.recv(source=0)
                control.send(time.monotonic_ns(), dest=0)
            elif place.rank == 0:
                sent = time.monotonic_ns()
                control.send(None, dest=other)
                theirs = control.recv(source=other)
                took = time.monotonic_ns() - sent
                if soonest < 0 or took < soonest:
                    soonest, shifts[other] = took, sent + took // 2 - theirs
    agreed: list[int] = control.bcast(shifts)
    return agreed
