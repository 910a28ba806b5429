"""Schedules are right, none is better than can be, and they are those of the literature."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

import flowvm as flow
from flowvm import lab
from flowvm.errors import ArgumentError, ScheduleError
from flowvm.lab import loops, native, simulation
from flowvm.lab.policies import POLICIES
from flowvm.lab.synthetic import KINDS

SAGA = Path(__file__).parent / "saga.json"
EXACT = ("heft", "cpop", "minmin", "maxmin")
NEAR = 1.05  # of those whose order the papers leave open


def random_dag(rng, n, chance=0.4, ccr=1.0):
    pairs = [(a, b) for a in range(n) for b in range(a + 1, n) if rng.random() < chance]
    return lab.Dag(rng.uniform(0.1, 2, n), [(a, b, rng.uniform(0, 2 * ccr)) for a, b in pairs])


@pytest.mark.parametrize("case", json.loads(SAGA.read_text()), ids=lambda case: str(case["seed"]))
def test_makespans_are_those_of_saga(case):
    dag = lab.Dag(case["cost"], [tuple(edge) for edge in case["edges"]])
    machine = lab.Machine(speeds=case["speed"], link=case["link"])
    for name, makespan in case["makespan"].items():
        schedule = lab.simulate(dag, machine, name)
        assert schedule.verify().tasks == len(dag)
        if name in EXACT:
            assert schedule.makespan == pytest.approx(makespan, rel=1e-6)
        else:
            assert schedule.makespan <= makespan * NEAR


@pytest.mark.parametrize("kind", KINDS)
def test_every_policy_keeps_every_edge(kind):
    dag = lab.synthetic(kind, n=4, ccr=0.5, cost="lognormal")
    machine = lab.Machine(speeds=[1.0, 2.0, 0.5], link=1.0)
    for name in POLICIES:
        schedule = lab.simulate(dag, machine, name)
        schedule.verify()
        assert schedule.makespan >= schedule.bounds.best * (1 - 1e-9), name


def test_nobody_beats_the_optimum(rng):
    for _ in range(12):
        dag = random_dag(rng, 6)
        machine = lab.Machine(speeds=rng.uniform(0.5, 2, 2), link=1.0)
        best = lab.optimal(dag, machine)
        best.verify()
        assert best.makespan >= best.bounds.best * (1 - 1e-9)
        for name in POLICIES:
            assert lab.simulate(dag, machine, name).makespan >= best.makespan * (1 - 1e-9), name


def test_optimum_is_that_of_every_order(rng):
    """Independent of the search: all orders, all assignments."""
    dag, machine = random_dag(rng, 4), lab.Machine(2, link=0.7)
    best = np.inf
    for order in itertools.permutations(range(4)):
        if any(
            order.index(s) > order.index(t) for s, t in zip(dag.source, dag.target, strict=True)
        ):
            continue
        for workers in itertools.product(range(2), repeat=4):
            end, free = np.zeros(4), [0.0, 0.0]
            for t in order:
                begin = free[workers[t]]
                for s, u, size in zip(dag.source, dag.target, dag.size, strict=True):
                    if u == t:
                        away = size / 0.7 if workers[s] != workers[t] else 0.0
                        begin = max(begin, end[s] + away)
                end[t] = free[workers[t]] = begin + dag.cost[t]
            best = min(best, end.max())
    assert lab.optimal(dag, machine).makespan == pytest.approx(best)


class Stepped(lab.Policy):
    """First come, first served by number, asked in Python."""

    def ready(self, task, now):
        super().ready(task, now)

    def key(self, dag, machine):
        return dag.cost


class Keyed(lab.Policy):
    def key(self, dag, machine):
        return dag.cost


def test_stepped_and_compiled_policies_are_one(rng):
    for link, wake, cores in ((None, 0.0, 3), (1.0, 0.2, 3), (2.0, 0.1, 2)):
        dag = random_dag(rng, 40, 0.1).with_release(np.arange(40) * 0.1)
        machine = lab.Machine(speeds=[1, 2, 1.5], link=link, wake=wake, handover=wake / 10,
                              cores=cores, shared=cores == 2)  # fmt: skip
        a, b = lab.simulate(dag, machine, Keyed), lab.simulate(dag, machine, Stepped)
        assert np.array_equal(a.worker, b.worker)
        assert np.allclose(a.start, b.start)


def test_a_loop_is_what_it_is_in_python(rng):
    dag = random_dag(rng, 12)
    ranks = [np.zeros(12), np.zeros(12)]
    args = dag.order, dag.out, dag.follower, dag.edge, dag.cost, dag.size
    native.call(loops.upward, *args, ranks[0])
    loops.upward(*args, ranks[1])
    assert np.array_equal(*ranks)


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda s: s.start.__isub__(0.5), "edges are broken"),
        (lambda s: s.end.__setitem__(0, s.end[0] + 1), "edges are broken|takes"),
        (lambda s: s.worker.__setitem__(slice(None), 0), "edges|overlap|takes"),
    ],
)
def test_verify_finds_what_is_broken(break_it, message):
    schedule = lab.simulate(lab.synthetic("lu", n=4, ccr=0.5), lab.Machine(3, link=1.0), "heft")
    break_it(schedule)
    if message.startswith("edges are broken") and "takes" not in message:
        schedule.start[schedule.dag.waits == 0] = 0
    with pytest.raises(ScheduleError, match=message):
        schedule.verify()


def test_a_policy_that_picks_what_is_not_ready_is_an_error():
    class Wrong(lab.Policy):
        def pick(self, worker, now):
            return 1

    class Far(lab.Policy):
        def pick(self, worker, now):
            return 1 << 20

    class Idle(lab.Policy):
        def pick(self, worker, now):
            return -1

    dag = lab.synthetic("chain", n=3)
    with pytest.raises(ScheduleError, match="1048576, which is not ready"):
        lab.simulate(dag, lab.Machine(1), Far)
    with pytest.raises(ScheduleError, match="not ready"):
        lab.simulate(dag, 1, Wrong)
    with pytest.raises(ScheduleError, match="runs 0 of 3"):
        lab.simulate(dag, 1, Idle)


def test_streams_bind_tasks_to_their_workers():
    dag = lab.Dag([1.0] * 6, [(0, 3), (1, 4)], stream=[0, 0, 0, 1, 1, 1])
    machine = lab.Machine(streams={0: 2, 1: 1})
    for name in ("fifo", "heft", "etf", "work_stealing"):
        try:
            worker = lab.simulate(dag, machine, name).worker
        except ScheduleError:
            assert name == "work_stealing"  # which looks at no kinds
            continue
        assert (worker[:3] < 2).all()
        assert (worker[3:] == 2).all()
    with pytest.raises(ArgumentError, match="no worker takes"):
        lab.simulate(dag, lab.Machine(streams={0: 2}))


def test_memory_is_kept_within_its_bound():
    dag = lab.Dag([1.0] * 8 + [1.0], [(k, 8) for k in range(8)], nbytes=1.0)
    wide = lab.simulate(dag, 8, "fifo")
    chains = lab.Dag([1.0] * 16, [(k, k + 8) for k in range(8)], nbytes=[1.0] * 8 + [0.0] * 8)
    held = lab.simulate(chains, 8, lab.memory_aware(2.0))
    assert wide.peak_memory == 9.0
    assert held.peak_memory <= 2.0 < lab.simulate(chains, 8).peak_memory


def test_a_simulated_run_is_a_profile():
    x = flow.ones(16, 16)
    with flow.profiler.profile() as p:
        y = (x @ x).tanh() @ x
        flow.vm.sync()
    assert y.shape == (16, 16)
    for dag in (lab.Dag.of(p), lab.synthetic("cholesky", n=3)):
        shown = lab.simulate(dag, 2, "critical_path").profile
        assert shown.verify().instructions == len(dag)
        assert shown.run.wall > 0
        for screen in (shown, shown.timeline(), shown.graph(), shown.critical_path()):
            assert str(screen)


def test_executed_is_what_was_planned_on_a_plain_machine():
    planned = lab.simulate(lab.synthetic("lu", n=4, ccr=0.5), lab.Machine(3, link=1.0), "heft")
    ran = simulation.execution(planned)
    ran.verify()
    assert ran.makespan <= planned.makespan * (1 + 1e-12)
    slow = lab.Machine(3, link=1.0, wake=0.1, handover=0.01, cores=2)
    assert lab.simulate(planned.dag, slow, "heft").makespan > planned.makespan


@pytest.mark.parametrize("policy", ["fifo", "heft", Stepped])
def test_python_has_a_core_while_it_issues(policy):
    dag = lab.Dag([1.0] * 4, release=[0.0, 1.0, 2.0, 3.0])
    alone = lab.simulate(dag, lab.Machine(2, cores=1, shared=True), policy)
    assert (alone.start >= 3.0).all()  # the one core is Python's until then
    assert alone.makespan == 7.0
    beside = lab.simulate(dag, lab.Machine(2, cores=2, shared=True), policy)
    assert beside.makespan == 4.0
    busy = lab.Dag([2.0] * 4, release=[0.0, 0.0, 0.0, 3.0])
    assert lab.simulate(busy, lab.Machine(2, cores=2), policy).makespan == 5.0
    shared = lab.simulate(busy, lab.Machine(2, cores=2, shared=True), policy)
    shared.verify()
    assert shared.makespan == 6.0  # one at a time until 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lab.Dag([1.0, -1.0]), "below 0"),
        (lambda: lab.Dag([1.0], [(0, 1)]), "tasks 0 to 0"),
        (lambda: lab.Dag([1.0, 1.0], [(0, 1), (1, 0)]), "circle"),
        (lambda: lab.Machine(0), "from 1 up"),
        (lambda: lab.Machine(2, speeds=[1.0]), "2 workers"),
        (lambda: lab.Machine(2, link="fast"), "8GB/s"),
        (lambda: lab.simulate(lab.Dag([1.0]), 1, "best"), "no policy 'best'"),
        (lambda: lab.synthetic("tree"), "no kind"),
        (lambda: lab.synthetic("fft", n=6), "power of two"),
    ],
)
def test_bad_input_is_an_error(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()


def test_a_worker_that_polls_is_not_woken():
    late = lab.Dag([1.0, 1.0], [], release=[0.0, 1.5])  # idle for 0.5 s
    for patience, ends in ((0.0, 2.7), (1.0, 2.5)):
        machine = lab.Machine(1, wake=0.2, patience=patience)
        for policy in ("fifo", "heft", "work_stealing:1"):  # by three loops
            assert lab.simulate(late, machine, policy).makespan == pytest.approx(ends)


def test_so_many_launches_are_in_flight():
    dag = lab.Dag([1.0] * 4, [(0, 1), (1, 2), (2, 3)], stream=[0, 0, 1, 1])
    workers = lab.Machine(streams={0: 1, 1: 1})
    spans = [lab.simulate(lab.launches(dag, 6, number), workers).makespan for number in (1, 2, 3)]
    assert spans == [24.0, 14.0, 14.0]  # one at a time; else the stages overlap


def test_an_actor_acts_without_a_break():
    edges = [(k, k + 1) for k in range(7)]
    stages = {"stream": [0] * 4 + [1] * 4, "actor": [0] * 4 + [1] * 4}
    dag = lab.Dag([1.0] * 8, edges, **stages)
    workers = lab.Machine(streams={0: 1, 1: 1})
    spans = [lab.simulate(lab.launches(dag, 6, number), workers).makespan for number in (1, 2, 3)]
    # tasks of two launches that take turns would let the second stage wait
    assert spans == [6 * 8.0, 7 * 4.0, 7 * 4.0]
    assert lab.simulate(lab.launches(lab.Dag(dag.cost, edges, actor=0), 3), 2).makespan == 24.0
    sizes = lab.Dag([1.0] * 4, [(0, 2, 5.0), (1, 2, 7.0), (2, 3, 9.0)], actor=[0, 0, 1, 1]).acts()
    assert (sizes.cost.tolist(), sizes.size.tolist(), sizes.nbytes.tolist()) == (
        [2.0, 2.0], [12.0], [0.0, 0.0],
    )  # fmt: skip


def test_a_plan_has_its_actors():
    side = flow.Stream("second stage")
    ones = flow.ones(4, 4)

    class Stages(flow.nn.Graph):
        def build(self, x):
            x = flow.relu(x @ ones)
            with flow.stream(side):
                return flow.relu(x @ ones) @ ones

    graph = Stages()
    graph(ones).numpy()
    dag = lab.Dag.of(graph.plans[0])
    assert len(np.unique(dag.actor)) == 2
    assert all(len(np.unique(dag.stream[dag.actor == k])) == 1 for k in (0, 1))
    acts = dag.acts()
    assert len(acts) == 2
    assert acts.work == dag.work
    assert (acts.source.tolist(), acts.target.tolist()) == ([0], [1])
