"""Made-up runs whose times are possible ones: a machine of one line an instruction.

Instructions start when they are issued, their producers have ended and their stream is free, each
after a random moment; the issuing thread pauses, compiles, and waits for values.  All in
nanoseconds from 0.
"""

from __future__ import annotations

import random

import numpy as np

from flowvm.profiler.front.profiles import Profile
from flowvm.profiler.front.ranks import Ranks
from flowvm.profiler.run.columns import CAUSES
from flowvm.profiler.run.run import Run, Waits
from flowvm.vm.machine.edges import connect, tensors_of
from flowvm.vm.machine.words import KIND, OPERAND


def synthetic(seed: int, length: int = 200, streams: int = 3, tensors: int = 12) -> Run:
    """A random run of `length` instructions."""
    rng = random.Random(seed)
    rows, operands, waits = [], [], []
    now, free, ended, last = 0, [0] * streams, [], {}
    readers: dict[int, list[int]] = {}
    for i in range(length):
        x = rng.random()
        now += rng.choice((1, 5, 20, 400))
        if x < 0.04:
            waits.append((CAUSES.index("jit"), now, now + 300))
            now += 300
        touch = x > 0.93
        stream = rng.randrange(streams)
        reads = rng.sample(range(tensors), rng.randrange(1, 3))
        write = None if touch else rng.randrange(tensors)
        front = [last[t] for t in reads if t in last]
        if write is not None:
            front += readers.get(write, []) + ([last[write]] if write in last else [])
        issued = now
        produced = max((ended[j] for j in front), default=0)
        ready = max(issued, produced) + rng.choice((0, 1, 3))
        start = ready if touch else max(ready, free[stream]) + rng.choice((0, 2, 9))
        end = start if touch else start + rng.choice((0, 1, 30, 500))
        if not touch:
            free[stream] = end
        ended.append(end)
        rows.append((i % 7, KIND.TOUCH if touch else KIND.OP_CALL, stream, issued, start, end))
        operands.append([(t, OPERAND.CONST) for t in reads])
        if write is not None:
            operands[-1].insert(
                0, (write, OPERAND.MUT | (OPERAND.ALLOCATE if write not in last else 0))
            )
            last[write], readers[write] = i, []
        for t in reads:
            readers.setdefault(t, []).append(i)
        if touch:
            now = max(now, end + rng.choice((0, 5)))
            waits.append((CAUSES.index("sync"), issued, now))
    return of_rows(rows, operands, waits, max([now, *ended]))


def of_rows(rows, operands, waits=(), ended=None) -> Run:
    """A Run of (op, kind, stream, issued, started, ended), operands, waits (cause, from, to)."""
    table = np.array(rows, np.int64).reshape(-1, 6)
    n = len(table)
    counts = [len(o) for o in operands]
    flat = np.array([pair for o in operands for pair in o], np.int64).reshape(-1, 2)
    owner = np.repeat(np.arange(n), counts)
    release = table[:, 1] == KIND.RELEASE
    tensor = tensors_of(owner, flat[:, 0], release)
    edges = connect(owner, tensor, flat[:, 1] & 3 != OPERAND.CONST)
    issued, started, over = table[:, 3], table[:, 4], table[:, 5]
    times = np.column_stack((issued, issued, started, started, started, over, over + 1))
    return Run(
        begun=0,
        ended=int(over.max(initial=0)) if ended is None else ended,
        names=[f"op{k}" for k in range(int(table[:, 0].max(initial=0)) + 1)],
        lines=["a.py:1", "a.py:2"],
        streams=[f"s{k}" for k in range(32)],
        modules=[""],
        info={"overwritten": 0, "live": {}},
        seq=np.arange(n) + 100,
        op=table[:, 0].astype(np.int32),
        kind=table[:, 1].astype(np.int8),
        stream=table[:, 2].astype(np.int16),
        line=(np.arange(n) % 2).astype(np.int32),
        status=np.zeros(n, np.int64),
        times=times,
        nbytes=np.full(n, 64),
        flops=np.zeros(n, np.int64),
        scratch=np.zeros(n, np.int64),
        offsets=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        tensor=tensor.astype(np.int32),
        access=flat[:, 1].astype(np.int8),
        size=np.full(len(flat), 64),
        source=edges.source.astype(np.int32),
        target=edges.target.astype(np.int32),
        hazard=edges.hazard.astype(np.int8),
        operand=edges.operand.astype(np.int32),
        waits=Waits(
            np.array([c for c, _, _ in waits], np.int8),
            np.array([(a, b) for _, a, b in waits], np.int64).reshape(-1, 2),
            np.zeros(len(waits), np.int64),
        ),
    )


def meeting(late: list[int], own: int) -> Run:
    """A rank that computes (`op0` in stream 0) and meets others in all-reduces (stream 1), `late`
    ns after 1000, 2000, ...; each is over 500 behind the round thousand.
    """
    rows, operands = [], []
    for k, after in enumerate(late):
        at = 1000 * (k + 1)
        rows.append((0, KIND.OP_CALL, 0, at - 400, at - 300, at + after - 10))
        rows.append((1, KIND.OP_CALL, 1, at - 350, at + after, at + 500))
        operands.append([(2 * k, OPERAND.MUT | OPERAND.ALLOCATE)])
        operands.append([(2 * k + 1, OPERAND.MUT | OPERAND.ALLOCATE), (2 * k, OPERAND.CONST)])
    run = of_rows(rows, operands, [(0, 100 + own, 200 + own)])
    run.names, run.streams = ["matmul", "all_reduce"], ["cpu", "comm"]
    run.info["spaces"] = ["cpu", "cpu"]
    return run


def three_ranks(seed: int) -> Ranks:
    """Return ranks whose clocks differ, that meet five times, with random work between."""
    rng = random.Random(seed)
    shifts = [0, 10_000, 3000]
    ranks = []
    for k, shift in enumerate(shifts):
        run = meeting([rng.randrange(0, 300) for _ in range(5)], k)
        for times in (run.times, run.waits.times):
            times[times > 0] += 20_000 - shift
        run.begun, run.ended = 20_100 + 10 * k - shift, run.ended + 20_000 - shift
        ranks.append(Profile(run))
    return Ranks(ranks, shifts)
