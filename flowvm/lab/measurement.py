"""This machine as numbers: what `Machine.here()` has."""

from __future__ import annotations

import functools
import statistics
import time
from typing import NamedTuple

import numpy as np

from flowvm.ops.shapes.fill import ones
from flowvm.profiler.front.profiles import profile
from flowvm.vm import sync
from flowvm.vm.machine.words import KIND

NAPS, NAP = 15, 0.002  # times that the worker falls asleep, and the seconds it gets for it
CALLS = 512  # one behind the other, without a wait
COPIED = 1 << 24  # bytes
COPIES = 5


class Measurement(NamedTuple):
    """Seconds until a worker that sleeps begins, seconds that the scheduler takes an instruction,
    bytes a second of a copy.
    """

    wake: float
    handover: float
    bandwidth: float


@functools.cache
def measurement() -> Measurement:
    """The median of some wake-ups and hand-overs, and the fastest copy; once a process."""
    x = ones(8)
    with profile(level=2) as naps:
        for _ in range(NAPS):
            time.sleep(NAP)
            x + 1
            sync()
    run = naps.run
    work = (run.kind == KIND.OP_CALL) & (run.time("started") > 0)
    woken = (run.time("started") - run.time("ready"))[work] / 1e9
    with profile(level=2) as calls:
        for _ in range(CALLS):
            x + 1
        sync()
    run = calls.run
    moments = np.sort(run.time("dispatched")[run.kind == KIND.OP_CALL])
    source, target = np.ones(COPIED // 8), np.empty(COPIED // 8)
    seconds = []
    for _ in range(COPIES):
        begun = time.perf_counter()
        np.copyto(target, source)
        seconds.append(time.perf_counter() - begun)
    handover = float(np.median(np.diff(moments))) / 1e9
    return Measurement(statistics.median(woken.tolist()), handover, COPIED / min(seconds))
