"""This machine as numbers: what `Machine.here()` has."""

from __future__ import annotations

import contextlib
import functools
import os
import statistics
import time
from typing import NamedTuple

import numpy as np

from flowvm.ops.shapes.fill import ones
from flowvm.profiler.front.profiles import profile
from flowvm.vm import schedule, sync
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import CTL, KIND

NAPS, NAP = 15, 0.002  # times that the worker falls asleep, and the seconds it gets for it
CALLS = 512  # one behind the other, without a wait
COPIED = 1 << 24  # bytes
COPIES = 5


class Measurement(NamedTuple):
    """Numbers of a machine.

    wake       seconds until a worker that sleeps begins
    patience   seconds that it polls before it sleeps
    handover   seconds that the scheduler takes an instruction of a stream's queue
    choice     seconds between an instruction and the one that waits for it, under a policy
    bandwidth  bytes a second of a copy
    """

    wake: float
    patience: float
    handover: float
    choice: float
    bandwidth: float


@functools.cache
def measurement(cores: int) -> Measurement:
    """The median of some wake-ups and hand-overs, and the fastest copy; once a process and number
    of cores that it may use.
    """
    x = ones(8)
    polls = int(engine.words[CTL.SPINS])
    yields = []
    with schedule("fifo"), profile(level=2) as naps:  # where a thread that waits runs nothing
        for _ in range(NAPS):
            time.sleep(NAP)
            x + 1
            begun = time.perf_counter()
            for _ in range(polls):
                os.sched_yield()
            yields.append(time.perf_counter() - begun)
            sync()
    run = naps.run
    work = (run.kind == KIND.OP_CALL) & (run.time("started") > 0)
    woken = (run.time("started") - run.time("ready"))[work] / 1e9
    return Measurement(
        statistics.median(woken.tolist()), min(yields), _between(False), _between(True),
        _bandwidth(),
    )  # fmt: skip


def _between(policy: bool) -> float:
    """Seconds from one instruction to the next; under a policy that next one waits for it."""
    x = ones(8)
    block = schedule("fifo", gather=True) if policy else contextlib.nullcontext()
    with profile(level=2) as calls, block:
        y = x
        for _ in range(CALLS):
            y = y + 1 if policy else x + 1
        sync()
    run = calls.run
    work = run.kind == KIND.OP_CALL
    if policy:
        begun, ended = np.sort(run.time("started")[work]), np.sort(run.time("ended")[work])
        return float(np.median(begun[1:] - ended[:-1])) / 1e9
    return float(np.median(np.diff(np.sort(run.time("dispatched")[work])))) / 1e9


def _bandwidth() -> float:
    source, target = np.ones(COPIED // 8), np.empty(COPIED // 8)
    seconds = []
    for _ in range(COPIES):
        begun = time.perf_counter()
        np.copyto(target, source)
        seconds.append(time.perf_counter() - begun)
    return COPIED / min(seconds)
