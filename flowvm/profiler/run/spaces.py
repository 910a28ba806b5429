"""Memories of a run: the place and the time of allocations.  Each device has a memory of its own,
and so has the host.

An instruction makes tensors in the memory of its stream, and a ReleaseTensor runs where its tensor
was made.  The host's instructions take memory when they start, and give it back when they end; a
device's, both when they are opened, for what comes later on the stream runs later there.
"""

from __future__ import annotations

import numpy as np

from flowvm.errors import ArgumentError
from flowvm.meta.arrays import Array
from flowvm.profiler.run.run import Run
from flowvm.vm.watch.spaces import HOST


def inside(run: Run, space: str) -> Array:
    """Return a mask of the instructions that allocate in memory `space`."""
    names = run.info.get("spaces") or [HOST] * len(run.streams)
    inside: Array = np.array([name == space for name in names], bool)[run.stream]
    return inside


def allocation_times(run: Run) -> Array:
    """Return the time at which each instruction takes memory."""
    return np.where(run.opened > 0, run.opened, run.time("started"))


def returned(run: Run) -> Array:
    """Return the time at which each instruction gives memory back: its workspace, and the tensor
    that a ReleaseTensor releases.
    """
    return np.where(run.opened > 0, run.opened, run.time("ended"))


def spaces_of(run: Run) -> list[str]:
    """Return the memories in which there was anything: the host's first, then devices in the order
    of their numbers, whichever was used first in the process.  Of several ranks in one run each has
    its own (`flowvm.profiler.run.rank_runs`).
    """
    live, known = run.info.get("live", {}), dict.fromkeys(run.info.get("spaces", ()))
    used = sorted(
        (name for name in known if live.get(name) or _allocates(run, name)),
        key=lambda name: (len(name), name),
    )
    return list(dict.fromkeys(((HOST,) if HOST in known or not used else ()) + tuple(used)))


def _allocates(run: Run, space: str) -> bool:
    mine = inside(run, space)
    return bool((run.scratch[mine] > 0).any() or (np.diff(run.offsets)[mine] > 0).any())


def space_named(run: Run, device: object) -> str:
    """The memory of `device`, a flow.device or its name; None: that of the first device on which
    the run made something, else the host's.  ArgumentError: nothing of it is in the run.
    """
    spaces = spaces_of(run)
    if device is None:
        return next((n for n in spaces if n != HOST and _allocates(run, n)), spaces[0])
    name = "cuda:0" if str(device) == "cuda" else str(device)
    if name not in spaces:
        raise ArgumentError(f"memory(device={name!r}): in this run there is {', '.join(spaces)}")
    return name
