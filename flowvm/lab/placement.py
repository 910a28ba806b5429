"""Streams for the tasks of a Plan, by a policy: `graph.config.schedule("heft", streams=[...])`.

The optimized graph is scheduled as any other graph of work, each stream a worker; a task goes to
the stream of its worker, in the order of the schedule.  What makes the Plan cuts it into actors, as
it does where `build` names streams itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flowvm.errors import ArgumentError, CaptureError
from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import OpNode
from flowvm.lab.graphs import Dag
from flowvm.lab.machines import Machine
from flowvm.lab.policies import policy_of
from flowvm.lab.simulation import simulate
from flowvm.lab.sources import costs, of_nodes
from flowvm.meta.device import cpu
from flowvm.vm.callers.hot import CALL_STREAM


class Placement:
    """A policy for the tasks of a graph, the streams that it has, and what tasks cost."""

    def __init__(
        self, policy: object, streams: Sequence[Any], like: object, machine: Machine | None
    ) -> None:
        self.policy, self.streams, self.like = policy_of(policy), list(streams), like
        if machine is not None and machine.workers != len(self.streams):
            raise ArgumentError(
                f"schedule: a machine of {machine.workers} workers for {len(self.streams)} streams"
            )
        self.machine = machine

    def __repr__(self) -> str:
        return f"tasks by {self.policy!r} on {len(self.streams)} streams"

    def __call__(self, graph: LogicalGraph) -> LogicalGraph:
        """The graph with its nodes on the streams of the policy's schedule, in its order.

        Nodes of other streams, which exchange with ranks, keep theirs.  Nodes that repeat, for
        micro-batches, are scheduled by themselves.  CaptureError: the graph is on a device.
        """
        if graph.devices() - {cpu}:
            raise CaptureError(f"{graph.name}: config.schedule places tasks on the CPU's streams")
        numbers = [CALL_STREAM if s is None else s.number for s in self.streams]
        own = {*numbers, CALL_STREAM}
        others = sorted({node.stream for node in graph.nodes} - own)
        machine = self.machine or Machine(len(numbers))
        if others:
            machine = Machine(
                speeds=[*machine.speeds, *[1.0] * len(others)],
                streams=[0] * len(numbers) + list(range(1, len(others) + 1)),
            )
        where, cost = [*numbers, *others], costs(graph, self.like)
        nodes: list[OpNode] = []
        for _, part in itertools.groupby(graph.nodes, lambda node: node.repeat):
            section = list(part)  # repeated nodes stay together, between those that run once
            dag = self.dag(section, cost[len(nodes) : len(nodes) + len(section)], own, others)
            schedule = simulate(dag, machine, self.policy)
            for k in schedule.order.tolist():
                stream = where[schedule.worker[k]]
                nodes.append(replace(section[k], number=len(nodes), stream=stream))
        streams = [s for s in self.streams if s is not None and s not in graph.streams]
        return replace(graph, nodes=nodes, streams=[*graph.streams, *streams])

    def dag(self, nodes: Sequence[OpNode], cost: object, own: set[int], others: list[int]) -> Dag:
        columns = of_nodes(nodes, cost)
        columns["stream"] = [
            0 if node.stream in own else 1 + others.index(node.stream) for node in nodes
        ]
        return Dag(**columns)
