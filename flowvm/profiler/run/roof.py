"""The machine's limits: bytes per second of a copy, operations per second of a product.

`roofline()` measures it once, with NumPy's kernels, so that the measure is not ours: a copy of
arrays that no cache holds, and products of float32 matrices by whatever BLAS NumPy has; on as many
threads as flowvm has workers.  What it found is kept beside the cached kernels, by processor.  The
summary uses it where it is there (`known`), and never measures by itself.

An operator's share of the roofline is the larger of its two shares.  More than 100 % of the
bandwidth means that operands were in a cache; more than 100 % of the product rate, a better product
than NumPy's.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.compiler import cache, jit
from flowvm.config import config
from flowvm.errors import ArgumentError
from flowvm.files.schema import integer, number, read_json, record, text
from flowvm.profiler.grammar import Screen, View

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowvm.profiler.run.run import Run

COPIED = 32 << 20  # bytes a thread copies at a time
SIDE = 384  # of the matrices
SECONDS = 0.12  # each thing is measured for so long
WINDOW = 0.004  # seconds over which the rate of several threads is taken, at least


_SAVED = record(cpu=text(), threads=integer(1, 1 << 16), gigabytes=number, gigaflops=number)


@dataclass(frozen=True, repr=False)
class Roofline(View):
    """Rates in billions a second: `gigabytes` read and written by a copy, `gigaflops` of a float32
    product, on `threads` threads of `cpu`.
    """

    cpu: str
    threads: int
    gigabytes: float
    gigaflops: float

    @property
    def ridge(self) -> float:
        """Operations a byte from which on the product rate is the bound, not the bandwidth."""
        return self.gigaflops / self.gigabytes

    def share(self, nbytes: float, flops: float, nanoseconds: float) -> float:
        """Return the reached part of the possible rate: the larger of the two shares; 0 if it took
        no time.
        """
        if nanoseconds <= 0:
            return 0.0
        return max(nbytes / nanoseconds / self.gigabytes, flops / nanoseconds / self.gigaflops)

    def screen(self, width: int) -> Screen:
        """See View."""
        screen = Screen()
        screen.add(
            (" roofline", "verdict"),
            f"  {self.gigabytes:.1f} GB/s · {self.gigaflops:.0f} GFLOP/s float32 · "
            f"{self.ridge:.1f} operations a byte",
            (f" · {self.threads} thread{'s' * (self.threads > 1)} of {self.cpu}", "head"),
        )
        return screen


@functools.cache
def cpu_name() -> str:
    """The processor, which a run remembers."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _entry(threads: int) -> str:
    key = json.dumps([cpu_name(), os.cpu_count(), threads, np.__version__])
    return f"roofline-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def known() -> Roofline | None:
    """Return the limits that were measured on this machine before, or None."""
    threads = config.workers
    data = cache.read(jit.cache_dir(), _entry(threads))
    if data is None:
        return None
    try:
        roofline = read_roofline(read_json(data, "a measured roofline"))
    except ArgumentError:
        return None
    return roofline if roofline.gigabytes > 0 and roofline.gigaflops > 0 else None


def read_roofline(saved: Any) -> Roofline:
    """Return the Roofline of a file; ArgumentError if the file has none."""
    _SAVED(saved, "a roofline")
    return Roofline(**saved)


def of_run(run: Run) -> Roofline | None:
    """The roofline of the machine that a run was recorded on, if anybody has measured it."""
    if "roofline" in run.info:
        return read_roofline(run.info["roofline"])
    return known() if run.info.get("cpu") == cpu_name() else None


def roofline(again: bool = False) -> Roofline:
    """Return this machine's limits: measured on the first call (a third of a second), or `again`.

    Run it while nothing else does: other programs make the roof lower than it is.

    >>> machine = flow.profiler.roofline()
    >>> machine.threads >= 1
    True
    """
    roofline = None if again else known()
    if roofline is not None:
        return roofline
    threads = config.workers
    roofline = Roofline(cpu_name(), threads, _copied(threads) / 1e9, _multiplied(threads) / 1e9)
    with contextlib.suppress(OSError):
        cache.write(jit.cache_dir(), _entry(threads), json.dumps(roofline.to_dict()).encode())
    return roofline


def _copied(threads: int) -> float:
    """Bytes a second, read and written."""
    work = []
    for _ in range(threads):
        source = np.ones(COPIED // 8)
        work.append(functools.partial(np.copyto, np.zeros_like(source), source))
    return _rate(work, 2 * COPIED)


def _multiplied(threads: int) -> float:
    """Operations a second: the better of one product, which BLAS may spread over threads of its
    own, and one on each thread.
    """

    def product() -> Callable[[], object]:
        a = np.ones((SIDE, SIDE), np.float32)
        return functools.partial(np.matmul, a, a.copy(), out=np.empty_like(a))

    alone = _rate([product()], 2 * SIDE**3)
    if threads == 1:
        return alone
    return max(alone, _rate([product() for _ in range(threads)], 2 * SIDE**3))


def _rate(work: Sequence[Callable[[], object]], amount: int) -> float:
    """`amount` for each call of each thread, a second: the best moment of SECONDS."""
    for one in work:
        one()
    start = threading.Barrier(len(work))
    spans: list[list[tuple[float, float]]] = [[] for _ in work]

    def repeat(k: int) -> None:
        start.wait()
        until = time.perf_counter() + SECONDS
        while not spans[k] or time.perf_counter() < until:
            begun = time.perf_counter()
            work[k]()
            spans[k].append((begun, time.perf_counter()))

    helpers = [threading.Thread(target=repeat, args=(k,)) for k in range(1, len(work))]
    for helper in helpers:
        helper.start()
    repeat(0)
    for helper in helpers:
        helper.join()
    return best_rate(spans, amount)


def best_rate(spans: list[list[tuple[float, float]]], amount: int) -> float:
    """`amount` for each span of each thread, a second: the best stretch of time that begins with
    one and lasts WINDOW, or as long as the shortest; what threads do is counted as it overlaps it,
    so that one that stood still while another had the machine for itself does not count twice.
    """
    flat = np.array([span for own in spans for span in own])
    begun, over = flat[:, 0], flat[:, 1]
    length = max(WINDOW if len(spans) > 1 else 0.0, float((over - begun).min()))
    ends = over.max()
    best = 0.0
    for at in begun:
        until = min(at + length, ends)
        inside = np.clip(np.minimum(over, until) - np.maximum(begun, at), 0, None) / (over - begun)
        if until - at >= length * 0.999 or len(flat) == 1:
            best = max(best, float(inside.sum()) * amount / (until - at))
    return best or amount * len(flat) / float(ends - begun.min())
