"""Memory of tensors: its amount, its uses and its owners.

    print(flow.memory.summary())

`p.memory()` of a profile has the same over time, with what was freed since.
"""

from __future__ import annotations

import sys

from flowvm.errors import ArgumentError
from flowvm.loading.listing import listing
from flowvm.meta.device import Device, cpu
from flowvm.profiler.analysis.census import space_of
from flowvm.profiler.views.memory.memory_now import MemoryNow, memory_now
from flowvm.vm import empty_cache, reset_peak, stats

__all__ = ["allocated", "empty_cache", "max_allocated", "reserved", "reset_peak", "summary"]
__dir__ = listing(globals())

REPORT = 86  # columns of a report in an error
INDENT = " " * 14


def summary(device: Device | str | None = None) -> MemoryNow:
    """Return the present use of a device's memory, by default the CPU's.  It is sorted by kind,
    with the largest owners, the lines that made them, and the references that keep them alive.
    Nothing is waited for.

    ArgumentError: a CUDA device that has not been used.
    """
    place = cpu if device is None else Device(device)
    if place is cpu:
        return memory_now()
    module = sys.modules.get("flowvm.cuda.driver.streams")
    used = [s for s in module.used() if s.runtime.index == place.index] if module else []
    if not used:
        raise ArgumentError(f"{place} has no memory of flowvm's: no tensor was made on it yet")
    return memory_now(space_of(used[0].compute))


def allocated() -> int:
    """Return the bytes that tensors have now."""
    return stats()["live_bytes"]


def max_allocated() -> int:
    """Return the most bytes that tensors had since the process began, or since `reset_peak()`."""
    return stats()["peak_bytes"]


def reserved() -> int:
    """Return the bytes that flowvm has from the system.  The part that tensors do not use is kept
    for others.
    """
    return stats()["reserved_bytes"]


def report(stream: int) -> str:
    """Return the summary as the body of an out-of-memory error of a stream."""
    lines = memory_now(space_of(stream)).screen(REPORT).plain().split("\n")
    first = lines[0].removeprefix(" memory  ")
    body = [INDENT + line.removeprefix(" ") for line in lines[1:]]
    return "\n".join([f"    memory    {first}", *body])
