"""Timing that can be trusted on a noisy machine.

Ours and the peer run in turn, in one process, and the median of the ratios counts.
"""

from __future__ import annotations

import importlib
import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


def import_jax() -> Any:
    """JAX, computing on one thread.

    It makes as many as there are CPUs for it when it starts, whatever its flags say, so it starts
    with one.
    """
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})
    try:
        jax = importlib.import_module("jax")
        jax.devices()
    finally:
        os.sched_setaffinity(0, cpus)
    return jax


@dataclass
class Result:
    """One row of the table.

    `ours` and `peer` are medians in `unit`; `ratio` is the median of paired ratios ours / peer.
    """

    name: str
    unit: str
    ours: float
    peer_name: str = ""
    peer: float | None = None
    ratio: float | None = None
    reach: str = ""
    met: bool | None = None
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return asdict(self)


def seconds_per_call(function: Callable[[int], None], count: int) -> float:
    """Seconds a call of `function(count)`, which makes `count` of them."""
    start = time.perf_counter()
    function(count)
    return (time.perf_counter() - start) / count


def paired(
    ours: Callable[[int], None], peer: Callable[[int], None] | None, count: int, rounds: int
) -> tuple[float, float | None, float | None]:
    """Median seconds a call of both, taken in turn, and the median of the ratios.

    One round goes first that is not counted.
    """
    ours(max(1, count // 10))
    if peer is None:
        return statistics.median(seconds_per_call(ours, count) for _ in range(rounds)), None, None
    peer(max(1, count // 10))
    mine, theirs = [], []
    for _ in range(rounds):
        mine.append(seconds_per_call(ours, count))
        theirs.append(seconds_per_call(peer, count))
    ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
    return statistics.median(mine), statistics.median(theirs), statistics.median(ratios)


def lowest_in_turn(runs: list[Callable[[int], float]], rounds: int, seconds: float) -> list[float]:
    """The lowest seconds a call of each run, which makes so many and gives the seconds of one.

    They are taken in turn; a measurement takes about `seconds`, and a thousand calls at most.
    """
    counts = [max(1, min(1000, int(seconds / max(run(2), 1e-7)))) for run in runs]
    lowest = [math.inf] * len(runs)
    for _ in range(rounds):
        for i, (run, count) in enumerate(zip(runs, counts, strict=True)):
            lowest[i] = min(lowest[i], run(count))
    return lowest
