"""One core, and a busy machine: calls, reads and graphs where the VM's threads have no own core.

Ours and PyTorch run in turn in a process of their own, first with one core, then beside four others
that compute.  A row is by the processor's time of all threads, or by the clock.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import flowvm as flow
from tools.bench import eager, reading
from tools.bench.graph import _ours_step
from tools.bench.measure import Result
from tools.bench.targets import mlp, stepping

BUSY = 4  # processes that compute beside a busy row
ONE_CORE, BESIDE = "one core", f"beside {BUSY} busy processes"
WORK = "while True:\n    sum(range(1000))"
Runner = Callable[[int], None]


def _times(call: Callable[[], Any]) -> Runner:
    def run(count: int) -> None:
        for _ in range(count):
            call()

    return run


def _graph(lib: Any) -> Runner:
    """A training step of an MLP: ours as a graph, PyTorch's eager."""
    return _times(_ours_step(mlp) if lib is flow else stepping(mlp)(lib))


CASES: tuple[tuple[str, Callable[[Any], Runner], int], ...] = (
    ("a + b, 8x8", eager.add, 2_000),
    ("(y + 1).sum().item()", lambda lib: _times(reading.total(lib)), 500),
    ("bool((y > 0).all())", lambda lib: _times(reading.branch(lib)), 500),
    ("matmul, relu, sum, backward, 8x8", eager.step_8x8, 300),
    ("mlp step", lambda lib: _times(stepping(mlp)(lib)), 30),
    ("mlp step, graph", _graph, 30),
)


def _seconds(run: Runner, count: int, wait: Callable[[], object]) -> tuple[float, float]:
    """Seconds a call, of the processor and of the clock; `wait` waits for what was issued."""
    processor, clock = time.process_time(), time.perf_counter()
    run(count)
    wait()
    return (time.process_time() - processor) / count, (time.perf_counter() - clock) / count


def measure(rounds: int, only: str) -> Iterator[tuple[str, list[list[float]]]]:
    """Yield, in the measuring process, a case's name and medians: ours, PyTorch's and the ratio, by
    the processor's time and by the clock.
    """
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(1)
    flow.set_num_threads(1)
    for name, make, count in CASES:
        if only not in name:
            continue
        ours, theirs = make(flow), make(torch)
        pairs = []
        for k in range(rounds + 1):
            pair = _seconds(ours, count, flow.vm.sync), _seconds(theirs, count, bool)
            if k > 0:
                pairs.append(pair)
        medians = []
        for by in range(2):
            mine, other = [p[0][by] for p in pairs], [p[1][by] for p in pairs]
            ratios = [a / b for a, b in zip(mine, other, strict=True)]
            medians.append([statistics.median(some) for some in (mine, other, ratios)])
        yield name, medians


def results(peers: dict[str, Any], rounds: int, only: str) -> Iterator[Result]:
    """Two rows for each case and condition; none where PyTorch is not there."""
    if "torch" not in peers:
        return
    for condition in (ONE_CORE, BESIDE):
        count = BUSY if condition == BESIDE else 0
        busy = [subprocess.Popen([sys.executable, "-c", WORK]) for _ in range(count)]
        try:
            for name, medians in _measured(condition, rounds, only):
                for by, (mine, other, ratio) in zip(("processor", "clock"), medians, strict=True):
                    yield Result(
                        f"{name}, {condition}, by the {by}",
                        "us", mine * 1e6, "torch", other * 1e6, ratio, "at most 1.0x", ratio <= 1.0,
                    )  # fmt: skip
        finally:
            for process in busy:
                process.kill()
                process.wait()


def _measured(condition: str, rounds: int, only: str) -> list[tuple[str, list[list[float]]]]:
    command = [sys.executable, "-m", "tools.bench.contended", str(rounds), "--only", only]
    command += ["--one-core"] * (condition == ONE_CORE)
    process = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [tuple(json.loads(line)) for line in process.stdout.splitlines()]


def main() -> int:
    """Measure in this process, and print JSON lines for `results`."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.contended")
    parser.add_argument("rounds", type=int)
    parser.add_argument("--only", default="")
    parser.add_argument("--one-core", action="store_true")
    options = parser.parse_args()
    if options.one_core:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    for row in measure(options.rounds, options.only):
        print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
