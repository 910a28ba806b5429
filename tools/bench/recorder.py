"""The cost of the flight recorder, and the time to analyse its records.

Costs are ratios of one run: the levels take turns, and the median of paired ratios counts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import flowvm as flow
from flowvm.profiler.export.html import html
from flowvm.vm.machine.words import REC
from tools.bench.eager import Runner, add, step_8x8
from tools.bench.graph import _ours_step
from tools.bench.measure import Result, seconds_per_call
from tools.bench.targets import mlp, stepping, transformer

HUNDRED_THOUSAND = 100_000


def _synced(run: Runner) -> Runner:
    """`run(count)`, and wait for the last."""

    def whole(count: int) -> None:
        run(count)
        flow.vm.sync()

    return whole


def _repeated(step: Callable[[], object]) -> Runner:
    """`run(count)` makes `count` steps and waits for the last."""

    def run(count: int) -> None:
        for _ in range(count):
            step()
        flow.vm.sync()

    return run


def _costs(run: Runner, count: int, rounds: int) -> dict[int, tuple[float, float]]:
    """For levels 0, 1 and 2: median seconds a call, and the median of the ratios to level 0."""
    times: dict[int, list[float]] = {0: [], 1: [], 2: []}
    before = flow.profiler.level
    try:
        for k in range(rounds + 1):
            for level in (0, 1, 2) if k % 2 else (2, 1, 0):
                flow.profiler.level = level
                run(max(1, count // 10))
                seconds = seconds_per_call(run, count)
                if k:  # one round goes first that is not counted
                    times[level].append(seconds)
    finally:
        flow.profiler.level = before
    return {
        level: (
            statistics.median(some),
            statistics.median(a / b for a, b in zip(some, times[0], strict=True)),
        )
        for level, some in times.items()
    }


def results(rounds: int) -> Iterator[Result]:
    """Every row."""
    graph = _ours_step(mlp)
    graph()  # the first step is eager: it makes the optimizer's state
    cases = [
        ("a + b, 8x8", _synced(add(flow)), 10_000, {1: 1.05, 2: 1.15}),
        ("matmul, relu, sum, backward, 8x8", _synced(step_8x8(flow)), 1_000, {1: 1.05, 2: 1.12}),
        ("MLP step", _repeated(stepping(mlp)(flow)), 100, {1: 1.03, 2: 1.12}),
        ("transformer step", _repeated(stepping(transformer)(flow)), 10, {1: 1.03, 2: 1.12}),
        ("graph: MLP step", _repeated(graph), 300, {1: 1.10}),
    ]
    for name, run, count, reach in cases:
        costs = _costs(run, count, rounds)
        for level, most in reach.items():
            seconds, ratio = costs[level]
            yield Result(
                f"recorder, level {level}: {name}", "us", seconds * 1e6, "off",
                costs[0][0] * 1e6, ratio, f"at most {most}x", ratio <= most,
            )  # fmt: skip
    step = stepping(mlp)(flow)
    while flow.vm.stats()["issued"] < REC.LENGTH:
        step()
    for name, analyse, most in (
        ("summary", lambda p: (p.table("op"), p.lanes, p.floor, p.memory_of()), 1),
        ("observed path", lambda p: p.observed, 1),
        ("HTML page", html, 2),
    ):
        best = float("inf")
        for _ in range(max(1, rounds // 2)):
            p = flow.profiler.last()
            start = time.perf_counter()
            analyse(p)
            best = min(best, (time.perf_counter() - start) * HUNDRED_THOUSAND / len(p))
        row = f"profile of 100,000 instructions: {name}"
        yield Result(row, "s", best, reach=f"at most {most}", met=best <= most)
