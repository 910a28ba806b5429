"""The cost of `flowvm top` for the training loop that it watches, as a ratio to the unwatched loop.

The watcher is one process for the whole measurement, stopped and continued in turn, so that its
start does not count.  The median of paired ratios counts.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import flowvm as flow
from tools.bench.measure import Result, seconds_per_call
from tools.bench.targets import mlp, stepping

LOOKS_S = 0.5  # as often as the screen refreshes
ROUND_S = 1.0  # of a training loop: some looks, and a stretch that weather does not change
PAUSE_S = 0.05  # for an answer that was on its way when the watcher was stopped


def results(rounds: int) -> Iterator[Result]:
    """The row."""
    step = stepping(mlp)(flow)

    def loop(count: int) -> None:
        for _ in range(count):
            step()
        flow.vm.sync()

    loop(20)
    count = max(10, round(ROUND_S / seconds_per_call(loop, 200)))
    command = [sys.executable, "-m", "flowvm", "top", str(os.getpid()), "--json"]
    watcher = subprocess.Popen(
        [*command, "--interval", str(LOOKS_S)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    ratios, watched, alone = [], [], []
    try:
        assert watcher.stdout is not None
        if not watcher.stdout.readline():  # it has started, and looked
            return
        for k in range(2 * rounds + 1):
            pair = {}
            for seconds in (True, False) if k % 2 else (False, True):
                watcher.send_signal(signal.SIGCONT if seconds else signal.SIGSTOP)
                time.sleep(PAUSE_S)
                pair[seconds] = seconds_per_call(loop, count)
            if k:  # one round goes first that is not counted
                watched.append(pair[True])
                alone.append(pair[False])
                ratios.append(pair[True] / pair[False])
    finally:
        watcher.send_signal(signal.SIGCONT)
        watcher.terminate()
        watcher.communicate()
    ratio = statistics.median(ratios)
    yield Result(
        "MLP step, watched by `flowvm top`", "us", statistics.median(watched) * 1e6, "not watched",
        statistics.median(alone) * 1e6, ratio, "at most 1.01x", ratio <= 1.01,
    )  # fmt: skip
