"""Simulated runs as the profiler's columns.

Of a recorded run instructions keep what they had, operands, lines and modules, and get the times
and the lane of the schedule; others write a tensor each and read those of the tasks they wait for.
"""

from __future__ import annotations

import numpy as np

from flowvm.lab.graphs import Dag
from flowvm.lab.sources import SECOND
from flowvm.meta.arrays import Array
from flowvm.profiler.run.run import Run
from flowvm.vm.machine.words import KIND, OPERAND


def run_of(dag: Dag, workers: int, begin: Array, finish: Array, worker: Array) -> Run:
    """The Run of a schedule's starts, ends and workers: times in nanoseconds from 0."""
    lanes = [f"worker {w}" for w in range(workers)]
    if dag.run is not None:
        run = _part(dag.run, dag.rows)
        order = np.arange(len(dag))
    else:
        order = dag.order
        run = _synthetic_run(dag, order)
    start = np.rint(begin[order] * SECOND).astype(np.int64) + 1
    end = np.maximum(start, np.rint(finish[order] * SECOND).astype(np.int64) + 1)
    came = np.zeros(len(order), np.int64)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    np.maximum.at(came, place[dag.target], end[place[dag.source]])
    came = np.maximum(came, np.rint(dag.release[order] * SECOND).astype(np.int64) + 1)
    run.times = np.column_stack((
        np.minimum(came, np.rint(dag.release[order] * SECOND).astype(np.int64) + 1),
        np.rint(dag.release[order] * SECOND).astype(np.int64) + 1,
        came, np.minimum(came, start), start, end, end,
    ))  # fmt: skip
    run.begun, run.ended = 0, int(end.max(initial=0))
    run.stream = worker[order].astype(np.int16)
    run.streams = lanes
    run.opened = np.zeros(len(order), np.int64)
    run.clock = np.zeros(len(order), np.int8)
    spaces = {"spaces": ["cpu"] * len(lanes)} if "spaces" in run.info else {}
    run.info = {"machine": "simulated", "level": 2, "overwritten": 0} | spaces
    run.info["sources"] = dag.run.info.get("sources", {}) if dag.run is not None else {}
    return run


def _part(run: Run, rows: Array) -> Run:
    """The instructions `rows` of a run, without what is not theirs."""
    counts = np.diff(run.offsets)[rows]
    operands = np.flatnonzero(np.isin(run.owner, rows))
    place = np.full(len(run), -1, np.int64)
    place[rows] = np.arange(len(rows))
    where = np.full(len(run.tensor), -1, np.int64)
    where[operands] = np.arange(len(operands))
    both = (place[run.source] >= 0) & (place[run.target] >= 0)
    names = {n: getattr(run, n) for n in ("names", "lines", "modules", "spots")}
    per = ("seq", "op", "kind", "line", "spot", "module", "forward", "forward_spot", "status",
           "nbytes", "flops", "scratch")  # fmt: skip
    columns = {n: getattr(run, n)[rows] for n in per if len(getattr(run, n))}
    return Run(
        **names, **columns,
        offsets=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        tensor=run.tensor[operands], access=run.access[operands], size=run.size[operands],
        source=place[run.source[both]].astype(np.int32),
        target=place[run.target[both]].astype(np.int32),
        hazard=run.hazard[both], operand=where[run.operand[both]].astype(np.int32),
        info=dict(run.info),
    )  # fmt: skip


def _synthetic_run(dag: Dag, order: Array) -> Run:
    """A run whose instructions write a tensor each and read those of the tasks they wait for."""
    n = len(dag)
    place = np.empty(n, np.int64)
    place[order] = np.arange(n)
    source, target = place[dag.source], place[dag.target]
    by_target = np.lexsort((source, target))
    source, target = source[by_target], target[by_target]
    reads = np.bincount(target, minlength=n)
    offsets = np.concatenate(([0], np.cumsum(reads + 1))).astype(np.int64)
    first = offsets[:-1]
    tensor = np.zeros(offsets[-1], np.int32)
    access = np.zeros(offsets[-1], np.int8)
    size = np.zeros(offsets[-1], np.int64)
    tensor[first] = np.arange(n)
    access[first] = OPERAND.MUT | OPERAND.ALLOCATE
    size[first] = dag.nbytes[order].astype(np.int64)
    within = np.arange(len(source)) - np.concatenate(([0], np.cumsum(reads)[:-1]))[target]
    operand = first[target] + 1 + within
    tensor[operand] = source
    size[operand] = dag.size[by_target].astype(np.int64)
    nbytes = np.add.reduceat(size, first) if n else np.zeros(0, np.int64)
    none = np.zeros(n, np.int64)
    return Run(
        names=list(dag.names) or ["task"], lines=["simulated"], modules=[""],
        seq=np.arange(n, dtype=np.int64), op=dag.op[order].astype(np.int32),
        kind=np.full(n, KIND.OP_CALL, np.int8), line=np.zeros(n, np.int32), status=none.copy(),
        nbytes=nbytes, flops=none.copy(), scratch=none.copy(), offsets=offsets, tensor=tensor,
        access=access, size=size, source=source.astype(np.int32), target=target.astype(np.int32),
        hazard=np.zeros(len(source), np.int8), operand=operand.astype(np.int32),
        info={},
    )  # fmt: skip
