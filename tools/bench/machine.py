"""The VM itself: instructions a second, round trips, scaling, streams."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import flowvm as flow
from flowvm.compiler import jit
from flowvm.vm.engine.engine import engine
from flowvm.vm.engine.entries import no_op
from flowvm.vm.machine.lang import clock
from flowvm.vm.machine.words import ENT, KIND, OPERAND
from tools.bench.measure import Result
from tools.bench.native_issue import chain, free_ids, random_dag, run, sliding_dag


def spin_kernel(args: int, layout: int, lo: int, hi: int) -> int:
    """Keep a core busy for a millisecond."""
    end = clock() + 1_000_000
    while clock() < end:
        pass
    return 0


def throughput(rounds: int) -> Iterator[Result]:
    """Instructions a second through scheduler and worker, issued natively."""
    programs = (
        ("chain", chain(1_000_000), [OPERAND.MUT]),
        (
            "random DAG, 1,000 tensors",
            random_dag(1_000_000, 1000, 0),
            [OPERAND.MUT, OPERAND.CONST, OPERAND.CONST],
        ),
    )
    for name, program, access in programs:
        rate = statistics.median(1e-6 / run(program, access) for _ in range(rounds))
        yield Result(
            f"instructions a second, {name}", "million/s", rate, reach="at least 5", met=rate >= 5
        )


def policies(rounds: int) -> Iterator[Result]:
    """Run the program under a policy that chooses among ready instructions."""
    program = random_dag(100_000, 1000, 0)
    access = [OPERAND.MUT, OPERAND.CONST, OPERAND.CONST]
    for name in ("fifo", "lifo"):
        with flow.vm.schedule(name, depth=64):
            cost = min(run(program, access) for _ in range(rounds))
        yield Result(f"an instruction of a random DAG, policy {name}", "ns", cost * 1e9)


def round_trip(rounds: int) -> Result:
    """Issue one instruction and wait for it."""
    kernel = jit.native(no_op, "int32(int64, int64, int64, int64)")
    entry = engine.entries.new(KIND.OP_CALL, [OPERAND.MUT], kernel=kernel, info="bench")
    storage = free_ids(1)[0]
    times = []
    for _ in range(1000 * rounds):
        start = time.perf_counter()
        engine.records.issue(entry, [storage])
        engine.waits.wait_for([storage])
        times.append(time.perf_counter() - start)
    median = statistics.median(times) * 1e6
    return Result("issue one and wait, median", "us", median, reach="at most 15", met=median <= 15)


def scaling(rounds: int) -> Iterator[Result]:
    """Cost of an instruction over program length and live tensors, against the cheapest."""
    access = [OPERAND.MUT, OPERAND.CONST, OPERAND.CONST]
    cases = [(n, 1000) for n in (1_000, 10_000, 100_000, 1_000_000)]
    cases += [(300_000, live) for live in (100, 1_000, 10_000, 100_000)]
    programs = [(n, live, sliding_dag(n, live, 1)) for n, live in cases]
    costs: dict[tuple[int, int], list[float]] = {(n, live): [] for n, live in cases}
    for _ in range(rounds):  # in turn, so that a slow moment hits all of them
        for n, live, program in programs:
            repeats = max(1, 200_000 // n)  # a short program needs many runs to be measured at all
            costs[n, live].append(statistics.median(run(program, access) for _ in range(repeats)))
    medians = {key: statistics.median(values) for key, values in costs.items()}
    least = min(medians.values())
    for (n, live), cost in medians.items():
        ratio = cost / least
        yield Result(
            f"{n:,} instructions, {live:,} tensors",
            "ns",
            cost * 1e9,
            "cheapest",
            least * 1e9,
            ratio,
            "at most 1.5x",
            ratio <= 1.5,
        )


def streams(rounds: int) -> Result:
    """Two independent chains of a 1 ms kernel: on two streams against one."""
    kernel = jit.native(spin_kernel, "int32(int64, int64, int64, int64)")
    entry = engine.entries.new(KIND.OP_CALL, [OPERAND.MUT], kernel=kernel, info="spin")
    a, b = free_ids(2)
    second = flow.Stream("bench")

    def chains(stream: int) -> float:
        flow.vm.sync()
        start = time.perf_counter()
        for _ in range(50):
            engine.records.issue(entry, [a])
            engine.records.issue(entry | stream << ENT.BITS, [b])
        flow.vm.sync()
        return time.perf_counter() - start

    speedups = [chains(0) / chains(second.number) for _ in range(rounds)]
    best = statistics.median(speedups)
    return Result(
        "two chains of a 1 ms kernel, two streams",
        "x faster",
        best,
        reach="at least 1.7",
        met=best >= 1.7,
    )


def results(rounds: int) -> Iterator[Result]:
    """All rows."""
    yield from throughput(rounds)
    yield from policies(rounds)
    yield round_trip(rounds)
    yield streams(rounds)
    yield from scaling(rounds)
