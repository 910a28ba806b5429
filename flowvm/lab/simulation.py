"""A graph of work run on a machine that is not there.

Keyed policies and static schedules run compiled.  A policy with `ready` and `pick` of its own is
asked by the same rules, compiled where it can be, else in Python: whenever a worker is free it
asks, the fastest first.
"""

from __future__ import annotations

import heapq
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from flowvm.errors import ArgumentError, ScheduleError
from flowvm.lab import loops, policy_state
from flowvm.lab.graphs import Dag
from flowvm.lab.machines import Bounds, Machine, bounds
from flowvm.lab.native import call
from flowvm.lab.native_policy import Native, compiled
from flowvm.lab.policies import Policy, policy_of
from flowvm.lab.records import run_of
from flowvm.meta.arrays import Array
from flowvm.profiler.front.profiles import Profile

ROUNDING = 1e-9  # of times in a schedule that somebody else made
MOST_TASKS = 12  # of graphs that `optimal` tries every order of
WORTH = 1000  # tasks from which a policy that is asked is compiled: below, Python is as fast


class Checked(NamedTuple):
    """Counts of a verification: the tasks, and the edges between them."""

    tasks: int
    edges: int


class Schedule:
    """The time and place of each task: `start`, `end` (seconds) and `worker`, arrays by task.

    >>> s = flow.lab.simulate(flow.lab.Dag([1.0, 2.0], [(0, 1)]), flow.lab.Machine(2))
    >>> s.makespan, s.start.tolist()
    (3.0, [0.0, 1.0])
    """

    def __init__(
        self, dag: Dag, machine: Machine, start: Array, end: Array, worker: Array, policy: str = ""
    ) -> None:
        self.dag, self.machine, self.policy = dag, machine, policy
        self.start, self.end, self.worker = start, end, worker
        self.asked = ""  # of a policy with `pick`: "compiled", or "in Python" and why

    def __repr__(self) -> str:
        best = self.bounds.best
        share = f", {self.makespan / best:.3g} times the bound" if best > 0 else ""
        note = f", asked {self.asked}" if self.asked not in ("", "compiled") else ""
        return (
            f"<Schedule of {len(self.dag)} tasks by {self.policy or 'nobody'} on "
            f"{self.machine.workers} workers: {self.makespan:.4g} s{share}{note}>"
        )

    @property
    def makespan(self) -> float:
        """Seconds from 0 to the end of the last task."""
        return float(self.end.max(initial=0.0))

    @cached_property
    def bounds(self) -> Bounds:
        """Return the lower bounds of all schedules."""
        return bounds(self.dag, self.machine)

    @property
    def busy(self) -> Array:
        """Seconds that each worker ran tasks."""
        return np.bincount(
            self.worker, weights=self.end - self.start, minlength=self.machine.workers
        )

    @property
    def idle(self) -> float:
        """The share of the workers' time in which they ran nothing."""
        whole = self.makespan * self.machine.workers
        return 1 - float(self.busy.sum()) / whole if whole > 0 else 0.0

    @cached_property
    def order(self) -> Array:
        """The tasks in the order that they start; of those that start at once, the topological."""
        place = np.empty(len(self.dag), np.int64)
        place[self.dag.order] = np.arange(len(self.dag))
        return np.lexsort((place, self.start)).astype(np.int64)

    @cached_property
    def peak_memory(self) -> float:
        """The most bytes that results take at once: each from its task's start until the last task
        that reads it has ended.
        """
        dag = self.dag
        last = self.end.copy()
        read = dag.hazard == 0
        np.maximum.at(last, dag.source[read], self.end[dag.target[read]])
        times = np.concatenate((self.start, last))
        changes = np.concatenate((dag.nbytes, -dag.nbytes))
        by_time = np.lexsort((changes, times))
        return float(np.cumsum(changes[by_time]).max(initial=0.0))

    def verify(self) -> Checked:
        """Check that no worker runs two tasks at once, that no task starts before what it waits for
        has ended and come over the link, and that each takes what it costs.  ScheduleError names
        the first that does not.
        """
        dag, machine = self.dag, self.machine
        slack = ROUNDING * max(1.0, self.makespan)
        comes = self.end[dag.source]
        comes = comes + dag.size * machine.near[self.worker[dag.source], self.worker[dag.target]]
        early = np.flatnonzero(self.start[dag.target] < comes - slack)
        if len(early):
            k = int(early[0])
            raise ScheduleError(
                f"{len(early)} of {len(dag.source)} edges are broken: task {dag.target[k]} starts "
                f"at {self.start[dag.target[k]]:.6g} s, and what it reads of task {dag.source[k]} "
                f"is there at {comes[k]:.6g} s"
            )
        takes = dag.cost / machine.speeds[self.worker]
        wrong = np.flatnonzero(np.abs(self.end - self.start - takes) > slack)
        if len(wrong):
            k = int(wrong[0])
            raise ScheduleError(
                f"task {k} takes {self.end[k] - self.start[k]:.6g} s on worker {self.worker[k]}, "
                f"where it costs {takes[k]:.6g} s"
            )
        unreleased = np.flatnonzero(self.start < dag.release - slack)
        if len(unreleased):
            raise ScheduleError(f"task {unreleased[0]} starts before it is released")
        by_worker = np.lexsort((self.end, self.start, self.worker))
        a, b = by_worker[:-1], by_worker[1:]
        both = (self.worker[a] == self.worker[b]) & (self.start[b] < self.end[a] - slack)
        if both.any():
            k = int(np.flatnonzero(both)[0])
            raise ScheduleError(f"tasks {a[k]} and {b[k]} overlap on worker {self.worker[a[k]]}")
        return Checked(len(dag), len(dag.source))

    @cached_property
    def profile(self) -> Profile:
        """The simulated run as a Profile: every screen, page and `diff` works on it.  A lane is a
        worker; of a recorded run, instructions have the operands and lines that they had.
        """
        return Profile(run_of(self.dag, self.machine.workers, self.start, self.end, self.worker))


def simulate(dag: Dag, machine: Machine | int = 1, policy: object = "fifo") -> Schedule:
    """Run a graph of work by a policy.

    machine   a Machine, or a number of workers
    policy    a name ("heft", "random:7"), a class or an object of `lab.Policy`
    ScheduleError: the policy leaves tasks that nobody runs, or picks one that is not ready.

    >>> d = flow.lab.synthetic("cholesky", n=4)
    >>> s = flow.lab.simulate(d, 2, "critical_path")
    >>> s.verify().tasks == len(d)
    True
    """
    if not isinstance(dag, Dag):
        raise ArgumentError(f"simulate: expected a Dag, got {type(dag).__name__}")
    machine = Machine(machine) if isinstance(machine, (int, np.integer)) else machine
    rule = policy_of(policy)
    assignment = rule.plan(dag, machine)
    if assignment is not None:
        schedule = Schedule(dag, machine, *assignment, policy=rule.name)
        plain = machine.wake == 0 and machine.handover == 0 and machine.cores >= machine.workers
        plain = plain and not machine.shared
        return schedule if plain else execution(schedule)
    if rule.stepped:
        return _simulate_policy(dag, machine, rule)
    return _listed(dag, machine, rule)


def execution(planned: Schedule) -> Schedule:
    """A static schedule as a machine runs it: each worker takes its tasks in the planned order, as
    soon as they can start, with the machine's wake-up, hand-over and cores.
    """
    dag, machine = planned.dag, planned.machine
    start, end, worker = np.zeros(len(dag)), np.zeros(len(dag)), planned.worker.copy()
    call(
        loops.execute, planned.order, dag.cost, dag.into, dag.source, dag.size, dag.release,
        machine.speeds, machine.flat, machine.cores, machine.python(dag), machine.wake,
        machine.patience, machine.handover, np.zeros(machine.workers),
        np.zeros(machine.workers + 1),
        np.zeros(machine.workers + 1, np.int64), start, end, worker,
    )  # fmt: skip
    return Schedule(dag, machine, start, end, worker, planned.policy)


def _speed_rank(machine: Machine) -> Array:
    rank = np.empty(machine.workers, np.int64)
    rank[np.argsort(-machine.speeds, kind="stable")] = np.arange(machine.workers)
    return rank


def _listed(dag: Dag, machine: Machine, policy: Policy) -> Schedule:
    n, workers = len(dag), machine.workers
    kind, sort, kinds = machine.kinds(dag)
    key = policy.key(dag, machine)
    if key is None:
        raise ArgumentError(f"policy {policy.name} has neither key, nor plan, nor ready and pick")
    key = np.ascontiguousarray(key, np.float64)
    if key.shape != (n,):
        raise ArgumentError(f"policy {policy.name}: {key.shape} keys for {n} tasks")
    base = np.concatenate(([0], np.cumsum(np.bincount(kind, minlength=kinds))[:-1]))
    spare = np.concatenate(([0], np.cumsum(np.bincount(sort, minlength=kinds))[:-1]))
    start, end, worker = np.zeros(n), np.zeros(n), np.full(n, -1, np.int64)
    ran = call(
        loops.list_schedule, policy.mode, key, dag.cost, kind, dag.into, dag.source, dag.size,
        dag.out, dag.follower, dag.release, dag.waits.copy(), machine.speeds, _speed_rank(machine),
        sort, machine.flat, machine.cores, machine.python(dag), machine.wake,
        machine.patience, machine.handover, base.astype(np.int64),
        np.zeros(kinds, np.int64), np.zeros(kinds, np.int64), np.empty(n), np.empty(n, np.int64),
        spare.astype(np.int64), np.zeros(kinds, np.int64), np.empty(workers),
        np.empty(workers, np.int64), np.full(workers, -1.0), np.empty(workers + 1),
        np.empty(workers + 1, np.int64), np.empty(n), np.empty(n, np.int64), start, end, worker,
    )  # fmt: skip
    assert ran == n, (ran, n)
    return Schedule(dag, machine, start, end, worker, policy.name)


def _simulate_policy(dag: Dag, machine: Machine, policy: Policy) -> Schedule:
    """Ask a policy that has `ready` and `pick`, compiled where it can be."""
    if len(dag) < WORTH:
        schedule = _stepped(dag, machine, policy)
        schedule.asked = f"in Python: of fewer than {WORTH} tasks"
        return schedule
    policy.by = -1
    policy.begin(dag, machine)
    native = compiled(policy, len(dag))
    if native.why:
        schedule = _stepped(dag, machine, policy)
        schedule.asked = f"in Python: {native.why}"
        return schedule
    return _compiled(dag, machine, policy, native)


def _compiled(dag: Dag, machine: Machine, policy: Policy, native: Native) -> Schedule:
    """Simulate by a policy that has begun, and was compiled."""
    n, workers = len(dag), machine.workers
    kind, sort, _ = machine.kinds(dag)
    order = np.argsort(-machine.speeds, kind="stable").astype(np.int64)
    start, end, worker = np.zeros(n), np.zeros(n), np.full(n, -1, np.int64)
    problem, ends = np.zeros(3, np.int64), int(hasattr(policy, "ended"))
    ran = call(
        policy_state.simulate, native.address, native.state.ctypes.data, native.state, ends,
        dag.cost, kind, dag.into, dag.source, dag.size, dag.out, dag.follower, dag.release,
        dag.waits.copy(),
        machine.speeds, order, sort, machine.flat, machine.cores, machine.python(dag),
        machine.wake, machine.patience, machine.handover, np.zeros(workers, np.int64),
        np.zeros(n, np.int64),
        np.zeros(workers, np.int64), np.zeros(workers), np.zeros(workers + 1),
        np.zeros(workers + 1, np.int64), np.zeros(n),
        np.zeros(n, np.int64), start, end, worker, problem,
    )  # fmt: skip
    wrong, task, where = problem.tolist()
    if wrong == policy_state.RAISED:  # the same once more, in Python, says what is raised and where
        return _stepped(dag, machine, policy)
    if wrong == policy_state.UNREADY:
        raise ScheduleError(f"policy {policy.name} picks task {task}, which is not ready")
    if wrong == policy_state.OTHER_KIND:
        raise ScheduleError(_of_another_stream(policy, dag, task, where))
    if ran < n:
        raise ScheduleError(_too_few(policy, ran, n))
    schedule = Schedule(dag, machine, start, end, worker, policy.name)
    schedule.asked = "compiled"
    return schedule


def _of_another_stream(policy: Policy, dag: Dag, task: int, worker: int) -> str:
    return f"policy {policy.name} gives worker {worker} a task of stream {dag.stream[task]}"


def _too_few(policy: Policy, ran: int, tasks: int) -> str:
    return f"policy {policy.name} runs {ran} of {tasks} tasks: it picks none while some are ready"


def _stepped(dag: Dag, machine: Machine, policy: Policy) -> Schedule:
    """Simulate in Python, asking a policy: the twin of `policy_state.simulate`."""
    n = len(dag)
    kind, sort, _ = machine.kinds(dag)
    waits, out, follower = dag.waits.tolist(), dag.out.tolist(), dag.follower.tolist()
    start, end, worker = np.zeros(n), np.zeros(n), np.full(n, -1, np.int64)
    near, is_ready = machine.flat, np.zeros(n, bool)
    free = sorted(range(machine.workers), key=_speed_rank(machine).tolist().__getitem__)
    turn = {w: i for i, w in enumerate(free)}
    since = [-1.0] * machine.workers
    running: list[tuple[float, int, int]] = []
    late: list[tuple[float, int]] = []
    started, dispatcher, now = 0, 0.0, 0.0
    if (until := machine.python(dag)) > 0:
        running.append((until, -1, -1))
    ended = getattr(policy, "ended", None)
    policy.by = -1
    policy.begin(dag, machine)

    def let_go(task: int) -> None:
        if dag.release[task] > now:
            heapq.heappush(late, (float(dag.release[task]), task))
        else:
            is_ready[task] = True
            policy.ready(task, now)

    for task in range(n):
        if waits[task] == 0:
            let_go(task)
    while True:
        for w in list(free):
            if len(running) >= machine.cores:
                break
            task = int(policy.pick(w, now))
            if task < 0:
                continue
            if task >= n or not is_ready[task]:
                raise ScheduleError(f"policy {policy.name} picks task {task}, which is not ready")
            if kind[task] != sort[w]:
                raise ScheduleError(_of_another_stream(policy, dag, task, w))
            is_ready[task] = False
            begin = max(now, loops.arrival(
                task, w, dag.into, dag.source, dag.size, near, machine.workers, dag.release, end,
                worker,
            ))  # fmt: skip
            if machine.handover > 0:
                dispatcher = max(dispatcher, now) + machine.handover
                begin = max(begin, dispatcher)
            if machine.wake > 0 and since[w] + machine.patience < now:
                begin = max(begin, now + machine.wake)
            start[task], worker[task] = begin, w
            end[task] = begin + dag.cost[task] / machine.speeds[w]
            heapq.heappush(running, (float(end[task]), w, task))
            free.remove(w)
            started += 1
        if not running and not late:
            break
        now = min([e[0] for e in running[:1]] + [e[0] for e in late[:1]])
        while running and running[0][0] <= now:
            _, w, task = heapq.heappop(running)
            if w < 0:
                continue
            since[w] = now
            free.append(w)
            policy.by = w
            if ended is not None:
                ended(task, now)
            for k in range(out[task], out[task + 1]):
                waits[follower[k]] -= 1
                if waits[follower[k]] == 0:
                    let_go(follower[k])
        free.sort(key=turn.__getitem__)
        while late and late[0][0] <= now:
            task = heapq.heappop(late)[1]
            is_ready[task] = True
            policy.ready(task, now)
    if started < n:
        raise ScheduleError(_too_few(policy, started, n))
    return Schedule(dag, machine, start, end, worker, policy.name)


def optimal(dag: Dag, machine: Machine | int = 1) -> Schedule:
    """The best schedule there is, by trying every order and worker: for graphs of a few tasks.
    ArgumentError: more than 12.

    >>> flow.lab.optimal(flow.lab.Dag([1.0, 2.0, 3.0]), 2).makespan
    3.0
    """
    machine = Machine(machine) if isinstance(machine, (int, np.integer)) else machine
    n = len(dag)
    if n > MOST_TASKS:
        raise ArgumentError(f"optimal: {n} tasks; at most {MOST_TASKS}, there are too many orders")
    kind, sort, _ = machine.kinds(dag)
    into, source = dag.into.tolist(), dag.source.tolist()
    tail = dag.upward() / machine.speeds.max()
    first = simulate(dag, machine, "heft") if n else None
    best: list[Any] = [first.makespan if first else 0.0, first]
    start, end, worker = [0.0] * n, [0.0] * n, [-1] * n
    free = [0.0] * machine.workers

    def extend(placed: int, bound: float) -> None:
        if placed == n:
            if max(end) < best[0]:
                arrays = np.array(start), np.array(end), np.array(worker, np.int64)
                best[:] = [max(end), Schedule(dag, machine, *arrays, policy="optimal")]
            return
        for t in range(n):
            if worker[t] >= 0:
                continue
            edges = range(into[t], into[t + 1])
            if any(worker[source[k]] < 0 for k in edges):
                continue
            idle_seen = set()
            for w in range(machine.workers):
                if sort[w] != kind[t]:
                    continue
                alike = (free[w], float(machine.speeds[w]))
                if free[w] == 0.0 and alike in idle_seen and _uniform(machine):
                    continue  # another worker that did nothing yet
                idle_seen.add(alike)
                begin = max(free[w], float(dag.release[t]))
                for k in edges:
                    s = source[k]
                    begin = max(begin, end[s] + dag.size[k] * machine.near[worker[s], w])
                if begin + tail[t] >= best[0]:
                    continue
                before = free[w]
                start[t], end[t], worker[t] = begin, begin + dag.cost[t] / machine.speeds[w], w
                free[w] = end[t]
                extend(placed + 1, bound)
                free[w], worker[t], end[t] = before, -1, 0.0

    extend(0, 0.0)
    answer = best[1] if best[1] is not None else simulate(dag, machine)
    answer.policy = "optimal"
    schedule: Schedule = answer
    return schedule


def _uniform(machine: Machine) -> bool:
    away = machine.near[~np.eye(machine.workers, dtype=bool)]
    return len(away) == 0 or bool((away == away[0]).all())
