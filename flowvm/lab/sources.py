"""Graphs of work from what was recorded, or will be replayed, as columns of which a Dag is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowvm.errors import ArgumentError
from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import OpNode
from flowvm.meta.arrays import Array
from flowvm.profiler.front.profiles import Profile
from flowvm.profiler.run.run import Run
from flowvm.vm.machine.edges import connect
from flowvm.vm.machine.words import KIND, OPERAND
from flowvm.vm.watch.trace import Trace
from flowvm.vm.watch.work import flops_of

Columns = dict[str, Any]  # the arguments of a Dag
WORK = (KIND.OP_CALL, KIND.CALLBACK, KIND.LAUNCH)  # kinds of instructions that compute
SECOND = 1e9  # nanoseconds
# of a task that nobody has measured: seconds, bytes and operations a second
CALL, BYTES, FLOPS = 1e-6, 8e9, 2e10


def of_run(run: Run, issued: bool) -> tuple[Columns, Array]:
    """The instructions of a run that computed; what waits (a release, a read) is no work."""
    started, ended = run.time("started"), run.time("ended")
    worked = np.isin(run.kind, WORK) & (started > 0) & (ended >= started)
    rows = np.flatnonzero(worked)
    place = np.cumsum(worked) - 1
    both = worked[run.source] & worked[run.target]
    source, target = run.source[both], run.target[both]
    size = np.where(run.hazard[both] == 0, run.size[run.operand[both]], 0)
    writes = np.repeat(worked, np.diff(run.offsets)) & (run.access & OPERAND.ALLOCATE != 0)
    nbytes = np.zeros(len(run))
    np.add.at(nbytes, run.owner[writes], run.size[writes])
    release = (run.time("issued")[rows] - run.begun).clip(0) / SECOND if issued else 0.0
    columns = {
        "cost": (ended - started)[rows] / SECOND,
        "edges": (place[source], place[target], size.astype(np.float64)),
        "op": [run.names[k] for k in run.op[rows]],
        "stream": run.stream[rows],
        "nbytes": nbytes[rows],
        "release": release,
        "hazard": run.hazard[both],
    }
    return columns, rows


def of_trace(trace: Trace) -> Columns:
    """The instructions of a trace that computed."""
    place: dict[int, int] = {}
    rows: list[Any] = []
    for k, ins in enumerate(trace.instructions):
        if ins.kind in WORK:
            place[k] = len(rows)
            rows.append(ins)
    edges = [(place[e.source], place[e.target]) for e in trace.edges
             if e.source in place and e.target in place]  # fmt: skip
    return {
        "cost": [max(0, ins.ended - ins.started) / SECOND for ins in rows],
        "edges": edges,
        "op": [ins.name for ins in rows],
        "stream": [ins.stream for ins in rows],
    }


def of_nodes(nodes: Sequence[OpNode], cost: object) -> Columns:
    """The nodes of a graph, or of its Plan: edges by what they read and write, as the scheduler
    would make them.
    """
    owner, tensor, writes, sizes = [], [], [], []
    numbers: dict[object, int] = {}
    nbytes = np.zeros(len(nodes))
    for k, node in enumerate(nodes):
        for access, operand in node.accesses():
            buffer = operand.buffer
            fresh = buffer not in numbers
            owner.append(k)
            tensor.append(numbers.setdefault(buffer, len(numbers)))
            writes.append(access != "const")
            sizes.append(buffer.nbytes)
            if fresh and writes[-1]:
                nbytes[k] += buffer.nbytes
    edges = connect(np.array(owner, np.int64), np.array(tensor, np.int64), np.array(writes, bool))
    size = np.array(sizes, np.float64)[edges.operand]
    return {
        "cost": np.broadcast_to(np.asarray(cost, np.float64), (len(nodes),)),
        "edges": (edges.source, edges.target, np.where(edges.hazard == 0, size, 0.0)),
        "op": [node.operator.name for node in nodes],
        "stream": [node.stream for node in nodes],
        "nbytes": nbytes,
        "hazard": edges.hazard,
    }


def costs(graph: LogicalGraph, like: object) -> Array:
    """Seconds of each node: measured ones of a Profile of level 2 that replayed the same graph,
    those of a function of a node, or an estimate by bytes and operations.  ArgumentError: the
    profile's Plan has other tasks.
    """
    nodes = graph.nodes
    if isinstance(like, Profile):
        rows = like.plan().tasks
        at = {row.number: row for row in rows}
        names = [at[k].op if k in at else "" for k in range(len(nodes))]
        if len(rows) != len(nodes) or names != [node.operator.name for node in nodes]:
            raise ArgumentError(
                f"schedule: {graph.name} has {len(nodes)} tasks, and the Plan of the profile "
                f"{len(rows)}, or others; record its replays without a schedule"
            )
        if not any(row.count for row in rows):
            raise ArgumentError("schedule: like= is a profile of level=2, which has tasks' times")
        return np.array([at[k].each for k in range(len(nodes))]) / SECOND
    return np.array([like(node) if callable(like) else estimate(node) for node in nodes])


def estimate(node: OpNode) -> float:
    """Seconds of a node that nobody has measured."""
    metas = [operand.meta for operand in (*node.outputs, *node.inputs)]
    nbytes = sum(meta.numel * meta.dtype.itemsize for meta in metas)
    return CALL + nbytes / BYTES + flops_of(node.operator.name, metas) / FLOPS
