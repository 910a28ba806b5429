"""The VM obeys: any policy gives program order's values, an order is had again, and a broken
scheduler is met.
"""

from __future__ import annotations

import numpy as np
import pytest

import flowvm as flow
from flowvm import lab
from flowvm.errors import ArgumentError, ModeError, ScheduleError
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import CTL
from flowvm.vm.watch.pending import issued
from flowvm.vm.workers.shell import WINDOW
from tests.vm.live import until
from tests.vm.mutants import HAZARDS, MUTANT, forgetful_scheduler

KEPT = []  # of a scheduler that forgets, what would be freed too early


def step():
    """Independent chains, joined, with updates in place: hazards of all three kinds."""
    x = flow.arange(16.0).reshape(4, 4)
    chains = []
    for k in range(4):
        y = x + float(k)
        for _ in range(3):
            y = (y @ x).tanh()
        y.add_(1.0)
        chains.append(y)
    x.mul_(2.0)
    total = chains[0] * x
    for y in chains[1:]:
        total = total + y
    return total


@pytest.fixture(scope="module")
def expected():
    with flow.vm.sequential():
        return step().numpy().copy()


@pytest.fixture(scope="module")
def like():
    with flow.profiler.profile() as p:
        result = step()
        flow.vm.sync()
    assert result.shape == (4, 4)
    return p


@pytest.fixture(scope="module")
def streams():
    return [None, flow.Stream("a"), flow.Stream("b", priority=1)]


GRAPHLESS = ("fifo", "lifo", "random", "pct", "work_stealing")


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("name", [*GRAPHLESS, "critical_path", "adversarial", "heft"])
def test_values_are_those_of_program_order(name, depth, expected, like, streams):
    for several in ((), streams):
        scheduling = flow.vm.schedule(name, like=like, streams=several, depth=depth)
        with flow.vm.record() as trace, scheduling as sched:
            values = step().numpy()
        assert np.array_equal(values, expected)
        assert flow.vm.verify(trace).pairs > 0
        assert sorted(sched.order.numbers) == list(range(len(sched.order)))
        with flow.vm.replay(sched.order, streams=streams) as again:
            assert np.array_equal(step().numpy(), expected)
        assert again.order == sched.order


def test_one_seed_is_one_order(streams):
    def order(seed):
        with flow.vm.schedule("random", seed=seed, depth=0, gather=True) as sched:
            step()
        return sched.order.numbers

    assert order(1) == order(1) != order(2)


def test_a_static_schedule_has_its_workers(like, streams):
    planned = lab.simulate(lab.Dag.of(like), len(streams), "heft")
    with flow.vm.schedule("heft", like=like, streams=streams) as sched:
        step()
    lanes = [engine.streams.count and (0 if s is None else s.number) for s in streams]
    went = dict(zip(sched.order.numbers, sched.lanes, strict=True))
    assert [went[k] for k in range(len(went))] == [lanes[w] for w in planned.worker]


def test_memory_goes_back_to_the_stream_that_had_it(streams):
    x, reserved = flow.rand(100, 100), []  # 40 KB: fifty results fill a slab
    for count in (20, 200):
        # the first that has room gets it, which is the default stream
        with flow.stream(streams[1]), flow.vm.schedule("fifo", streams=streams[:2]):
            for _ in range(count):
                y = x + 1.0
                y = y * 2.0
                flow.vm.sync()
        reserved.append(flow.vm.stats()["reserved_bytes"])
    assert y.shape == (100, 100)
    assert reserved[1] == reserved[0]


def test_a_policy_in_ten_lines_is_asked(expected, streams):
    class Oldest(lab.Policy):
        def begin(self, dag, machine):
            self.tasks = []

        def ready(self, task, now):
            self.tasks.append(task)

        def pick(self, worker, now):
            return self.tasks.pop(0) if self.tasks else -1

    with flow.vm.schedule(Oldest, depth=0, gather=True) as sched:
        values = step().numpy()
    assert np.array_equal(values, expected)
    assert sched.order.numbers != sorted(sched.order.numbers)

    class Wrong(Oldest):
        def pick(self, worker, now):
            return 1 << 20

    with pytest.raises(ScheduleError, match="not ready"), flow.vm.schedule(Wrong):
        step()
    assert np.array_equal(step().numpy(), expected)  # and all is as it was


def test_lower_priorities_go_first(streams):
    late, soon = flow.Stream("late", priority=5), flow.Stream("soon", priority=-5)
    with flow.vm.schedule("fifo", depth=0, gather=True) as sched:
        for stream in (late, soon):
            with flow.stream(stream):
                tensors = [flow.ones(2) for _ in range(3)]
    assert len(tensors) == 3
    assert sched.order.numbers == [3, 4, 5, 0, 1, 2]
    with pytest.raises(ArgumentError, match="from -20 to 19"):
        flow.Stream(priority=40)


def test_a_full_window_behind_a_schedule_that_gathered():
    """A pass of the scheduler that takes as many records as it may leaves none of them behind."""
    with flow.vm.schedule("fifo", depth=0, gather=True):
        (flow.ones(2) + 1).sum().item()
    x = flow.zeros(4) + 1
    flow.vm.sync()
    engine.words[CTL.HOLD] = 1
    try:
        tensors = [x + k for k in range(WINDOW)]
    finally:
        engine.words[CTL.HOLD] = 0
    until(lambda: engine.words[CTL.HEAD] == issued(), "the scheduler dispatches what it took")
    assert [y[0].item() for y in tensors] == [1 + k for k in range(WINDOW)]


def test_an_order_is_a_file(tmp_path):
    with flow.vm.schedule("lifo") as sched:
        step()
    sched.order.save(tmp_path / "order.json")
    with flow.vm.replay(tmp_path / "order.json") as again:
        step()
    assert again.order == sched.order
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ArgumentError):
        flow.vm.replay(tmp_path / "bad.json")


def test_another_program_is_not_replayed():
    with flow.vm.schedule("lifo") as sched:
        step()
    with pytest.raises(ScheduleError, match="other instructions"), flow.vm.replay(sched.order):
        flow.ones(3) + 1


def test_what_cannot_be_scheduled_is_an_error(streams):
    with pytest.raises(ArgumentError, match="like="):
        flow.vm.schedule("heft")
    with pytest.raises(ArgumentError, match="no policy"):
        flow.vm.schedule("best")
    with flow.vm.schedule("fifo") as sched:
        with pytest.raises(ModeError, match="another policy"), flow.vm.schedule("lifo"):
            pass
        with pytest.raises(ModeError, match="when the order is known"):
            print(sched.order)
    wrong = pytest.raises(ModeError, match="sequential")
    with flow.vm.sequential(), wrong, flow.vm.schedule("fifo"):
        pass


def test_errors_come_through_a_policy():
    index = flow.tensor([1, 9])
    with flow.vm.schedule("random", seed=1):
        row = flow.ones(4)[index]
        with pytest.raises(IndexError):
            row.numpy()


def test_nothing_breaks_a_whole_scheduler(streams):
    assert not lab.explore(step, tries=10, policy="random", streams=streams).failures


def forgetful_step():
    """With nothing freed, so that the one hazard forgotten is between two ops."""
    a, b = flow.ones(8), flow.full((8,), 2.0)
    c = a * b
    rest = [c + float(k) for k in range(6)]
    a.add_(5.0)
    rest.append(rest[0] * a)
    KEPT.append((a, b, c, rest))
    return rest[-1]


def test_a_dropped_edge_is_found_and_shrunk():
    with forgetful_scheduler():
        engine.words[MUTANT] = HAZARDS["WAR"]
        report = lab.explore(forgetful_step, tries=1000)
    assert len(report.failures) == 1
    matter = report.failures[0].matter
    assert 2 <= len(matter) <= 6
    assert {"mul", "add"} <= {met.op for met in matter}
    assert "overlap" in report.failures[0].why or "value" in report.failures[0].why
    assert not lab.explore(forgetful_step, tries=3).failures


def test_explore_refuses_a_step_that_changes_what_it_begins_with():
    w = flow.zeros(3)
    for step in (lambda: w.add_(1), lambda: flow.randn(3)):
        with pytest.raises(ArgumentError, match="another value 0 when it runs again"):
            lab.explore(step, tries=3)


@pytest.mark.parametrize("streams", [2, "cpu"])
def test_streams_are_a_list(streams):
    with pytest.raises(ArgumentError, match=r"streams is a list of flow\.Streams"):
        flow.vm.schedule("random", streams=streams)
