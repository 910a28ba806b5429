"""The Plan's screens: a compiled graph as it stands, and what a run's replays did."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.errors import ArgumentError
from flowvm.graph.plan.actors import ActorDesc
from flowvm.graph.plan.tables import _state
from flowvm.profiler import Profile, profile
from flowvm.profiler.export import chrome, trace_rules
from flowvm.profiler.export.html import _Page
from flowvm.profiler.front import live
from flowvm.profiler.views.replays import Replays
from flowvm.vm.machine.words import KIND, OPERAND
from tests.profiler.synthetic import of_rows
from tests.vm.live import until


class Chain(nn.Graph):
    """Two layers on one stream."""

    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))

    def build(self, x):
        return self.model(x).sum()


class Two(nn.Graph):
    """A producer and a consumer on two streams."""

    def __init__(self):
        super().__init__()
        self.one, self.two = flow.Stream("one"), flow.Stream("two")
        self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)

    def build(self, x):
        with flow.stream(self.one):
            y = flow.relu(self.a(x))
        with flow.stream(self.two):
            return flow.tanh(self.b(y)).sum()


def replayed(graph, times):
    x = flow.ones(32, 64)
    graph(x).item()
    with profile() as p:
        for _ in range(times):
            out = graph(x)
        out.item()
    return p


def test_tasks_of_a_plan_on_one_stream(tmp_path):
    graph = Chain()
    p = replayed(graph, 5)
    view = p.plan()
    plan = graph.plans[0]
    assert (view.name, view.launches, view.registers) == (plan.name, 5, len(plan.registers))
    assert [t.op for t in view.tasks] == [t.node.operator.name for t in plan.tasks]
    assert [t.module for t in view.tasks] == [t.node.scope for t in plan.tasks]
    assert all(t.count == 5 for t in view.tasks)
    assert sum(t.share for t in view.tasks) == pytest.approx(1.0)
    assert all(t.line.startswith("test_view_plan.py:") for t in view.tasks)
    assert 0 <= view.between < 1
    p.save(tmp_path / "run.flowtrace")
    for q in (flow.profiler.load(tmp_path / "run.flowtrace"), pickle.loads(pickle.dumps(p))):
        assert q.plan() == view


def test_actors_of_a_plan_on_two_streams():
    graph = Two()
    p = replayed(graph, 6)
    view, plan = p.plan(), graph.plans[0]
    assert [(a.inputs, a.credits) for a in view.actors] == [
        (tuple(a.inputs), tuple(a.credits)) for a in plan.actors
    ]
    assert [a.stream for a in view.actors[:2]] == ["one", "two"]
    assert all(a.acts == 6 for a in view.actors)
    assert view.notes[0].startswith("throughput limit: a0")
    assert view.regst_num == 2


def test_actors_are_drawn_with_regsts_and_credits(tmp_path):
    """In the terminal, as a file, on the page; and messages are arrows of the trace."""
    p = replayed(Two(), 3)
    view = p.plan()
    nodes, links = view.drawn()
    assert [node[0] for node in nodes] == [f"a{a.number:02}" for a in view.actors]
    regsts = {(a, b) for a, b, _, what in links if what == "regst"}
    assert regsts == {(f"a{n:02}", f"a{a.number:02}") for a in view.actors for n in a.inputs}
    assert sum(what.startswith("credit") for *_, what in links) == sum(
        len(a.credits) for a in view.actors
    )
    text = view.graph(100).plain()
    assert max(map(len, text.split("\n"))) <= 100
    assert all(f"a{a.number:02}" in text for a in view.actors)
    assert "╰" in text  # from one lane to another
    svg = view.save(tmp_path / "plan.svg").read_text()
    assert svg.count("<g id=") == len(view.actors)
    assert ">regst</text>" in svg
    assert ">credit</text>" in svg
    (plan,) = [plan for plan in _Page(p).data()["plans"] if plan["actors"]]
    assert plan["drawing"].count("<g id=") == len(view.actors)
    events = chrome.events(p)
    assert trace_rules.problems({"traceEvents": events}) == []
    arrows = [e for e in events if e.get("cat") == "message"]
    assert len(arrows) == 2 * len(regsts) * 3
    assert len({e["tid"] for e in arrows}) == 2


def test_a_compiled_plan_as_it_stands():
    graph = Two()
    replayed(graph, 3)
    view = graph.plans[0].table()
    assert [(a.acts, a.state, a.free) for a in view.actors] == [(4, "IDLE", 2)] * len(view.actors)
    chain = Chain()
    replayed(chain, 1)
    tasks = chain.plans[0].table().tasks
    assert "model.0.weight" in tasks[0].reads
    assert tasks[0].writes.startswith("chunk+")
    assert tasks[-1].writes == "operand 0"


def test_watching_shows_the_actors_while_a_block_runs(monkeypatch, capsys):
    graph = Two()
    replayed(graph, 1)
    monkeypatch.setattr(live, "LINE_S", 0.001)
    with graph.plans[0].watch() as watching:
        until(lambda: watching.looks >= 2, "it was shown twice")
    lines = capsys.readouterr().err.splitlines()
    acts = " · ".join(f"a{k:02} 2 IDLE" for k in range(len(graph.plans[0].actors)))
    assert lines[0] == f"Plan {graph.plans[0].name}  {acts}"
    with pytest.raises(ArgumentError, match="hz=0"):
        graph.plans[0].watch(0)


def test_what_an_actor_does_follows_from_the_counts():
    first = ActorDesc(0, 2, 0, 1, [], [(1, 2)])
    second = ActorDesc(1, 3, 1, 1, [0], [])
    both = [first, second]
    assert _state(both, first, [3, 3], 3) == "IDLE"
    assert _state(both, first, [2, 1], 3) == "ACT 3"
    assert _state(both, first, [3, 1], 4) == "CREDIT ← a01"  # its second register is still read
    assert _state(both, second, [1, 1], 2) == "WAIT ← a00"
    first.times = 4  # repeated: the other waits for its last repetition
    assert _state(both, second, [7, 1], 2) == "WAIT ← a00"
    assert _state(both, second, [8, 1], 2) == "ACT 2"
    assert _state(both, first, [7, 0], 3) == "ACT 8"
    assert _state(both, first, [8, 0], 3) == "CREDIT ← a01"


def test_what_bounds_and_what_a_register_would_change():
    """Launches of 10 a producer and 30 a consumer: the consumer is the limit, and one register
    would do if it were not that the producer then has to wait for it.
    """
    run = of_rows([(0, KIND.LAUNCH, 0, 0, 0, 400)] * 10, [[(1, OPERAND.CONST)]] * 10)
    known = {
        "registers": 3, "chunk": 64, "regst_num": 1,
        "actors": [[0, 0, 1, [], [[1, 1]]], [1, 1, 1, [0], []]],
        "tasks": [["a", "", 1, 0, 0], ["b", "", 1, 1, 0]],
    }  # fmt: skip
    lasts = np.array([[10] * 10, [30] * 10])
    replays = Replays(run, "g", known, np.arange(10))
    assert replays.played(lasts, 1) == 400  # strictly one after the other
    known["regst_num"] = 2
    known["actors"][0][4] = [[1, 2]]
    assert replays.played(lasts, 2) == 10 + 300
    assert replays.played(lasts, 1) == 400
    begun = np.zeros((2, 10), np.int64)
    notes = replays.what_if(begun, begun + lasts, lasts)
    assert notes == ["throughput limit: a01 (0.000 ms an act)"]


def test_what_let_an_actor_begin_has_the_wait():
    run = of_rows([(0, KIND.LAUNCH, 0, 0, 0, 400)] * 3, [[(1, OPERAND.CONST)]] * 3)
    known = {
        "registers": 3, "chunk": 64, "regst_num": 1,
        "actors": [[0, 0, 1, [], [[1, 1]]], [1, 1, 1, [0], []]],
        "tasks": [["a", "", 1, 0, 0], ["b", "", 1, 1, 0]],
    }  # fmt: skip
    replays = Replays(run, "g", known, np.arange(3))
    begun = np.array([[0, 40, 80], [10, 50, 90]])
    over = np.array([[10, 50, 90], [40, 80, 120]])
    issued = np.zeros(3, np.int64)
    assert replays.waited(0, begun, over, issued) == {"credit a01": 60.0}
    assert replays.waited(1, begun, over, issued) == {"a00": 20.0}


@pytest.mark.parametrize("width", [80, 100, 160])
def test_it_fits(width):
    for graph in (Chain(), Two()):
        for view in (replayed(graph, 2).plan(), graph.plans[0].table()):
            text = view.screen(width).plain()
            assert max(map(len, text.split("\n"))) <= width
            view.screen(width).plain(ascii_only=True).encode("ascii")
            json.dumps(view.to_dict())


def test_what_is_not_there_is_said():
    with pytest.raises(ArgumentError, match="no graph was replayed in this run"):
        Profile().plan()
    p = replayed(Chain(), 1)
    with pytest.raises(ArgumentError, match="no plan 'Other' in this run; there are Chain"):
        p.plan("Other")


def test_without_tasks_the_shape_is_known_and_it_is_said_what_is_missing():
    for graph in (Chain(), Two()):
        x = flow.ones(32, 64)
        graph(x).item()
        with profile(level=1) as p:
            graph(x).item()
        view = p.plan()
        assert len(view.tasks) == len(graph.plans[0].tasks)
        assert len(view.actors) == len(graph.plans[0].actors)
        assert view.notes[0].startswith("tasks were not recorded")
        assert all(a.acts == 0 and not a.state for a in view.actors)
        view.screen(100)


def test_two_plans_of_one_graph_are_told_apart():
    graph = Chain()
    small, large = flow.ones(4, 64), flow.ones(256, 64)
    for x in (small, large):
        graph(x).item()
    with profile() as p:
        for x in (small, large, large):
            graph(x).item()
    assert sorted([p.plan("Chain").launches, p.plan("Chain (2)").launches]) == [1, 2]
