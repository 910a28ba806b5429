"""A policy of one's own schedules the same compiled as in Python, in simulation and in the VM."""

from __future__ import annotations

import heapq
from collections import deque

import numpy as np
import pytest

import flowvm as flow
from flowvm import lab
from flowvm.errors import PolicyWarning, ScheduleError
from flowvm.lab import simulation
from flowvm.lab.native_policy import compiled


class Stack(lab.Policy):
    def begin(self, dag, machine):
        self.tasks = []

    def ready(self, task, now):
        self.tasks.append(task)

    def pick(self, worker, now):
        return self.tasks.pop() if self.tasks else -1


class Best(Stack):
    """Methods of its own, a key that looks at the machine, floats, a time."""

    def begin(self, dag, machine):
        self.tasks, self.dag, self.machine = [], dag, machine
        self.last, self.picked = 0.0, 0

    def worth(self, task, worker):
        return self.dag.cost[task] / self.machine.speeds[worker]

    def pick(self, worker, now):
        if not self.tasks or (worker == 2 and now < self.last + 0.1 and self.picked % 5 == 4):
            return -1
        best = max(self.tasks, key=lambda t: (self.worth(t, worker), -t))
        self.tasks.remove(best)
        self.last, self.picked = now, self.picked + 1
        return best


class Heaps(lab.Policy):
    """A heap of tuples, a deque for each worker, an array that is written."""

    def begin(self, dag, machine):
        self.rank = dag.upward()
        self.heap = []
        self.own = [deque() for _ in range(machine.workers)]
        self.wakes = np.zeros(len(dag), np.int64)

    def ready(self, task, now):
        self.wakes[task] += 1
        if task % 3 == 0:
            self.own[task % len(self.own)].appendleft(task)
        else:
            heapq.heappush(self.heap, (-self.rank[task], self.wakes[task], task))

    def pick(self, worker, now):
        if self.own[worker]:
            return self.own[worker].popleft()
        if self.heap:
            _, count, task = heapq.heappop(self.heap)
            return task if count == 1 else -1
        for k in range(len(self.own)):
            if len(self.own[k]) > 0:
                return self.own[k].pop()
        return -1


class Sorted(Stack):
    """A sorted list, a loop over it, elements taken out of the middle."""

    def begin(self, dag, machine):
        self.tasks, self.dag, self.sum = [], dag, 0.5

    def ready(self, task, now):
        self.tasks.append(task)
        self.tasks.sort(key=lambda t: self.dag.cost[t] + t % 3, reverse=True)
        self.sum += self.dag.cost[task]

    def pick(self, worker, now):
        for k, t in enumerate(self.tasks):
            if t % 2 == 0 and self.dag.cost[t] < self.sum and k < 4:
                del self.tasks[k]
                return t
        return self.tasks.pop(len(self.tasks) // 2) if self.tasks else -1


DAG = lab.synthetic("lu", n=6, cost="lognormal", ccr=0.4)
MACHINE = lab.Machine(speeds=[1.0, 2.0, 1.5], link=2.0, wake=0.1, handover=0.01)


@pytest.mark.parametrize(
    "kind", [Stack, Best, Heaps, Sorted, lab.work_stealing, lambda: lab.memory_aware(12.0)]
)
def test_compiled_is_what_python_does(kind):
    for machine in (MACHINE, lab.Machine(3, cores=2, shared=True)):
        for dag in (DAG, DAG.with_release(np.arange(len(DAG)) % 7 * 0.5)):
            policy = kind()
            policy.begin(dag, machine)
            native = compiled(policy, len(dag))
            assert native.why == ""
            a = simulation._compiled(dag, machine, policy, native)
            b = simulation._stepped(dag, machine, kind())
            assert a.verify().tasks == len(dag)
            assert np.array_equal(a.worker, b.worker)
            assert np.allclose(a.start, b.start, rtol=1e-12)


def test_many_tasks_are_scheduled_compiled():
    dag = lab.synthetic("layered", n=simulation.WORTH, cost="lognormal")
    schedule = lab.simulate(dag, 4, Stack)
    assert schedule.asked == "compiled"
    assert np.array_equal(schedule.start, simulation._stepped(dag, lab.Machine(4), Stack()).start)
    assert "in Python" in lab.simulate(DAG, 4, Stack).asked


class Any(Stack):
    def pick(self, worker, now):
        return min(t for t in self.tasks) if self.tasks else -1


class Float(Stack):
    def ready(self, task, now):
        self.tasks.append(now)


class New(Stack):
    def ready(self, task, now):
        self.newest = task
        super().ready(task, now)


class Patient(Stack):
    is_compiled = False


@pytest.mark.parametrize(
    ("kind", "why"),
    [(Any, "self.tasks is used as a whole"), (Float, "float"), (New, "newest is not there"),
     (Patient, "is_compiled")],
)  # fmt: skip
def test_what_is_not_compiled_says_why(kind, why):
    policy = kind()
    policy.begin(DAG, MACHINE)
    assert why in compiled(policy, len(DAG)).why


class Wrong(Stack):
    def pick(self, worker, now):
        return 1 << 20


class Idle(Stack):
    def pick(self, worker, now):
        return -1


class Raises(Stack):
    def pick(self, worker, now):
        return self.tasks[99]


def test_wrong_policies_are_errors_in_simulation():
    dag = lab.synthetic("chain", n=simulation.WORTH)
    with pytest.raises(ScheduleError, match="1048576, which is not ready"):
        lab.simulate(dag, 2, Wrong)
    with pytest.raises(ScheduleError, match=f"runs 0 of {simulation.WORTH} tasks"):
        lab.simulate(dag, 2, Idle)
    with pytest.raises(IndexError):  # Python's own, from where the policy is wrong
        lab.simulate(dag, 2, Raises)


def step():
    x = flow.arange(16.0).reshape(4, 4)
    chains = [((x + float(k)) @ x).tanh().add_(1.0) for k in range(4)]
    x.mul_(2.0)
    total = chains[0] * x
    for y in chains[1:]:
        total = total + y
    return total


def test_the_vm_asks_compiled_policies_without_python():
    with flow.vm.sequential():
        expected = step().numpy().copy()
    streams = [None, flow.Stream("compiled")]
    with flow.profiler.profile() as like:
        result = step()
        flow.vm.sync()
    assert result.shape == (4, 4)

    def order(kind, depth, several):
        with flow.vm.schedule(
            kind, depth=depth, gather=depth == 0, streams=several, like=like
        ) as sched:
            assert np.array_equal(step().numpy(), expected)
        assert sched.asked == "compiled"
        assert sorted(sched.order.numbers) == list(range(len(sched.order)))
        return sched.order

    assert order(Stack, 0, ()) == order(Stack, 0, ())
    assert order(Best, 0, ()) != order(Stack, 0, ())
    for kind in (Stack, Heaps, lab.work_stealing(3), lab.memory_aware(400.0)):
        order(kind, 2, streams)
    with flow.stream(streams[1]):  # streams that keep their work are workers, too
        order(lab.work_stealing(3), 1, ())
    with pytest.warns(PolicyWarning, match="used as a whole"), flow.vm.schedule(Any, depth=0):
        pass
    for kind, text in ((Wrong, "not ready"), (Idle, "picks none"), (Raises, "raises where")):
        with pytest.raises(ScheduleError, match=text), flow.vm.schedule(kind):
            assert np.array_equal(step().numpy(), expected)
    assert np.array_equal(step().numpy(), expected)  # and all is as it was
