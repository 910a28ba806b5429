"""A policy gives the tasks of a Plan their streams: values stay, and so does the order of edges."""

from __future__ import annotations

import numpy as np
import pytest

import flowvm as flow
from flowvm import lab, nn
from flowvm.errors import ArgumentError
from flowvm.lab.sources import costs


class Branches(nn.Graph):
    """Chains that need each other at the end only, and an update in place."""

    def __init__(self):
        super().__init__()
        self.weight = flow.ones(8, 8) * 0.1

    def build(self, x):
        chains = []
        for k in range(3):
            y = x + float(k)
            for _ in range(2):
                y = (y @ self.weight).tanh()
            chains.append(y)
        self.weight.mul_(0.5)
        return chains[0] @ chains[1] + chains[2]


@pytest.fixture(scope="module")
def streams():
    return [None, flow.Stream("placed")]


def calls(graph, count=4):
    x = flow.arange(64.0).reshape(8, 8) * 0.01
    return [graph(x).numpy().copy() for _ in range(count)]


def test_policies_place_tasks_and_keep_values(streams):
    expected = calls(Branches())
    for policy in ("heft", "fifo", "random:3", lab.work_stealing(1)):
        graph = Branches()
        graph.config.schedule(policy, streams=streams)
        for value, other in zip(calls(graph), expected, strict=True):
            assert np.array_equal(value, other), policy
        used = {node.stream for node in graph.plans[0].graph.nodes}
        assert used == {0, streams[1].number}, policy
        assert "on 2 streams" in repr(graph.config)


def test_a_plan_runs_as_it_was_scheduled(streams):
    graph = Branches()
    graph.config.disable("fusion", "epilogues")
    plain = calls(graph)
    with flow.profiler.profile(level=2) as p:
        calls(graph)
    before = graph.plans[-1]
    dag = lab.Dag.of(before, cost=p)
    assert dag.work > 0
    assert np.allclose(dag.cost, costs(before.graph, p))
    planned = lab.simulate(dag, 2, "heft")
    again = Branches()
    again.config.disable("fusion", "epilogues")
    again.config.schedule("heft", streams=streams, like=p)
    for value, other in zip(calls(again), plain, strict=True):
        assert np.array_equal(value, other)
    plan = again.plans[-1]
    lanes = {0: 0, streams[1].number: 1}
    for lane in (0, 1):  # each stream has the tasks of its worker, in the order of the schedule
        mine = [n.operator.name for n in plan.graph.nodes if lanes[n.stream] == lane]
        expected = [dag.names[dag.op[t]] for t in planned.order if planned.worker[t] == lane]
        assert mine == expected
    assert len(plan.actors) >= 3
    graph.config.disable("common")  # another Plan: the profile is not of it
    graph.config.schedule("heft", streams=streams, like=p)
    graph.config.enable("fusion")
    with pytest.raises(ArgumentError, match="tasks"):
        calls(graph)


def test_training_is_the_same(streams):
    def losses(placed):
        flow.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        sgd = flow.optim.SGD(model.parameters(), lr=0.1)

        class Step(nn.Graph):
            def __init__(self):
                super().__init__()
                self.model = model
                self.add_optimizer(sgd)

            def build(self, x):
                loss = self.model(x).square().mean()
                loss.backward()
                return loss

        step = Step()
        if placed:
            step.config.schedule("heft", streams=streams)
        x = flow.arange(32.0).reshape(4, 8) * 0.1
        values = [step(x).item() for _ in range(5)]
        return values, [p.numpy().copy() for p in model.parameters()], step

    plain, weights, _ = losses(False)
    values, others, step = losses(True)
    assert values == plain
    assert all(np.array_equal(a, b) for a, b in zip(weights, others, strict=True))
    assert len({node.stream for node in step.plans[-1].graph.nodes}) == 2
    step.config.schedule(None)  # and back: the streams that build names
    assert "streams" not in repr(step.config)


def test_micro_batches_are_placed_too(streams):
    def trained(policy):
        flow.manual_seed(3)
        model = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, 3)
        )
        adam = flow.optim.AdamW(model.parameters(), lr=0.01)

        class Step(nn.Graph):
            def __init__(self):
                super().__init__()
                self.model = model
                self.add_optimizer(adam)
                self.config.set_gradient_accumulation_steps(3)

            def build(self, x):
                loss = self.model(x).square().mean()
                loss.backward()
                return loss

        step = Step()
        if policy:
            step.config.schedule(policy, streams=streams)
        x = flow.arange(72.0).reshape(12, 6) * 0.1
        losses = [step(x).numpy().copy() for _ in range(4)]
        return [*losses, *[p.numpy().copy() for p in model.state_dict().values()]], step

    expected, _ = trained(None)
    for policy in ("heft", "random:1", "random:2"):
        values, step = trained(policy)
        nodes = step.plans[-1].graph.nodes
        assert {node.stream for node in nodes if node.repeat == 3} == {0, streams[1].number}
        assert all(np.array_equal(a, b) for a, b in zip(values, expected, strict=True)), policy


def test_what_cannot_be_placed_is_an_error(streams):
    graph = Branches()
    for wrong in ((), (None,), (None, None)):
        with pytest.raises(ArgumentError, match="two different streams"):
            graph.config.schedule("heft", streams=wrong)
    with pytest.raises(ArgumentError, match="no policy"):
        graph.config.schedule("best", streams=streams)
    with pytest.raises(ArgumentError, match="3 workers for 2"):
        graph.config.schedule("heft", streams=streams, machine=lab.Machine(3))
