"""Actors that overlap: a loader, a copy and a computation, each on a stream of its own.

Loading and copying wait, as for a disk or a DMA engine, without taking a core; computing keeps one
busy.  The three of a batch depend on each other, so one launch at a time takes their sum, and
launches beside each other take as long as the slowest.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

import flowvm as flow
from flowvm.compiler import jit
from flowvm.eager.declaration import Invocation, Kernel, Signature
from flowvm.eager.interpreter import Operator
from flowvm.graph.capture.capture import capturing
from flowvm.graph.plan.plan import compile_plan
from flowvm.meta.meta import TensorMeta
from flowvm.vm.machine.lang import clock, futex_wait, words_at
from tools.bench.measure import Result, seconds_per_call

STAGES = (("load", 2.0), ("copy", 1.0), ("compute", 3.0))  # milliseconds
BATCHES = 40


def wait_kernel(args: int, layout: int, lo: int, hi: int) -> int:
    """Sleep for the nanoseconds in the layout: nobody wakes the word that it sleeps on."""
    word = words_at(layout, 2)
    end = clock() + word[1]
    while clock() < end:
        futex_wait(word, 0, 0, max(1, (end - clock()) // 1000))
    return 0


def work_kernel(args: int, layout: int, lo: int, hi: int) -> int:
    """Keep a core busy for the nanoseconds in the layout."""
    end = clock() + words_at(layout, 2)[1]
    while clock() < end:
        pass
    return 0


def _stage(name: str, milliseconds: float) -> Any:
    kernel = work_kernel if name == "compute" else wait_kernel

    def lower(metas: tuple[TensorMeta, ...], attrs: tuple[Any, ...]) -> Invocation:
        native = jit.native(kernel, "int32(int64, int64, int64, int64)")
        return Invocation((metas[0],), native, np.array([0, milliseconds * 1e6], np.int64))

    return Operator(name, Signature(("x",), ("out",)), Kernel(lower)).call


def _seconds(regst_num: int) -> float:
    """Return the seconds for a batch, with `regst_num` copies of every register."""
    streams = [flow.Stream("loader"), flow.Stream("copy"), None]
    batch = flow.zeros(256)
    with capturing("pipeline", [(batch, "batch")]) as capture:
        x = batch
        for (name, milliseconds), stream in zip(STAGES, streams, strict=True):
            with flow.stream(stream):
                x = _stage(name, milliseconds)(x)
        capture.output(x)
    plan = compile_plan(replace(capture.graph, regst_num=regst_num))

    def run(count: int) -> None:
        launches = [plan.launch([batch]) for _ in range(count)]
        flow.vm.sync()
        del launches

    run(3)
    return seconds_per_call(run, BATCHES)


def results(rounds: int) -> Iterator[Result]:
    """One register of each kind against two of them."""
    pairs = [(_seconds(2), _seconds(1)) for _ in range(max(3, rounds // 3))]
    speedup = statistics.median(one / two for two, one in pairs)
    yield Result(
        "graph: loader 2, copy 1, compute 3 ms, regst_num 2 against 1",
        "ms a batch",
        statistics.median(two for two, _ in pairs) * 1e3,
        "regst_num 1",
        statistics.median(one for _, one in pairs) * 1e3,
        1 / speedup,
        reach="at least 1.8 times as fast",
        met=speedup >= 1.8,
    )
