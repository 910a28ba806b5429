"""Policies: who runs next, and where.

A policy is one of three kinds.

    keyed     `key(dag, machine)` gives each task a number; a free worker takes the ready task with
              the least.  Compiled: a simulation takes a microsecond a task.
    static    `plan(dag, machine)` gives every task a start, an end and a worker, before anything
              runs.  Compiled.
    stepped   `ready(task, now)` hears of each task that waits for nothing any more, `pick(worker,
              now)` answers which of them a free worker takes, or -1 for none.  Compiled where it
              can be (`flowvm.lab.native_policy`), else asked in Python.

What is shipped has the name it has in the literature, and `paper` says where.  Where a `policy` is
asked for, a name, a class or an object does.
"""

from __future__ import annotations

import heapq
import importlib
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from flowvm.errors import ArgumentError, ConfigError
from flowvm.lab import loops
from flowvm.lab.graphs import Dag
from flowvm.lab.machines import Machine
from flowvm.lab.native import call
from flowvm.meta.arrays import Array

_CLOSE, _LEAST = 1e-5, 1e-8  # how far off a task of the critical path may be: rounding
_DRAWS = 1 << 31  # numbers that `work_stealing` draws from


class Assignment(NamedTuple):
    """A static schedule: for each task its start, its end and its worker."""

    start: Array
    end: Array
    worker: Array


class Policy:
    """Policy that chooses the next task.  Subclasses have `key`, or `plan`, or `ready` and `pick`.

    >>> class Longest(flow.lab.Policy):
    ...     def key(self, dag, machine):
    ...         return -dag.cost
    >>> d = flow.lab.Dag([1.0, 2.0, 3.0])
    >>> flow.lab.simulate(d, flow.lab.Machine(2), Longest()).makespan
    3.0
    """

    paper: ClassVar[str] = ""
    mode: ClassVar[int] = loops.KEYED  # of keyed ones: by `key`, or by when tasks became ready
    is_compiled: ClassVar[bool] = True  # of stepped ones: False: asked in Python, for a debugger

    def key(self, dag: Dag, machine: Machine) -> Array | None:
        """A number for each task, the least first; None: this policy is not of that kind."""
        return None

    def plan(self, dag: Dag, machine: Machine) -> Assignment | None:
        """A whole schedule; None: this policy is not of that kind."""
        return None

    def begin(self, dag: Dag, machine: Machine) -> None:
        """A simulation begins: what `ready` and `pick` look at."""
        self.dag, self.machine = dag, machine
        self.number, self.heap = 0, list[tuple[float, int]]()
        self.keys = self.key(dag, machine) if self.mode == loops.KEYED else None

    def ready(self, task: int, now: float) -> None:
        """A task waits for nothing any more.  `self.by` is the worker whose task ended last, -1 at
        the beginning.
        """
        self.number += 1
        if self.mode == loops.KEYED:
            key = 0.0 if self.keys is None else float(self.keys[task])
        else:
            key = float(self.number if self.mode == loops.ARRIVAL else -self.number)
        heapq.heappush(self.heap, (key, task))

    def pick(self, worker: int, now: float) -> int:
        """A worker is free: the task that it takes, or -1 for none."""
        return heapq.heappop(self.heap)[1] if self.heap else -1

    by = -1

    @property
    def stepped(self) -> bool:
        """Return True if the subclass has its own `ready` or `pick`."""
        kind = type(self)
        return kind.ready is not Policy.ready or kind.pick is not Policy.pick

    @property
    def name(self) -> str:
        """Return the name in tables."""
        return type(self).__name__

    def __repr__(self) -> str:
        arguments = ", ".join(f"{k}={v!r}" for k, v in sorted(vars(self).items())
                          if isinstance(v, (int, float, str)) and k in self.shown)  # fmt: skip
        return f"{self.name}({arguments})"

    shown: ClassVar[tuple[str, ...]] = ()


# --- keyed ------------------------------------------------------------------------------------


class _Unkeyed(Policy):
    """Policies by the order of arrival alone, which need no keys."""

    def key(self, dag: Dag, machine: Machine) -> Array | None:
        return np.zeros(len(dag))


class fifo(_Unkeyed):  # noqa: N801 - names of the literature, as `policy="fifo"` has them
    """First come, first served: what the VM does.

    >>> d = flow.lab.synthetic("lu", n=3)
    >>> flow.lab.simulate(d, 2, "fifo").verify().tasks
    14
    """

    paper = "first come, first served"
    mode = loops.ARRIVAL


class lifo(_Unkeyed):  # noqa: N801
    """The task that became ready last runs first: its operands are in the caches still.

    >>> d = flow.lab.synthetic("lu", n=3)
    >>> flow.lab.simulate(d, 2, "lifo").verify().tasks
    14
    """

    paper = "R. Blumofe and C. Leiserson, Scheduling multithreaded computations, 1999 (depth first)"
    mode = loops.LATEST


class random(Policy):  # noqa: N801
    """Any ready task, by a seed.

    >>> d = flow.lab.synthetic("lu", n=3)
    >>> flow.lab.simulate(d, 2, "random").verify().tasks
    14
    """

    paper = "-"
    shown = ("seed",)

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def key(self, dag: Dag, machine: Machine) -> Array | None:
        return np.random.default_rng(self.seed).random(len(dag))


class priority(Policy):  # noqa: N801
    """By a number a task, the highest first: `key` is an array, or a function of the Dag.

    >>> d = flow.lab.synthetic("lu", n=3)
    >>> flow.lab.simulate(d, 2, flow.lab.priority(lambda dag: dag.cost)).verify().tasks
    14
    """

    paper = "-"

    def __init__(self, key: object) -> None:
        self.of = key

    def key(self, dag: Dag, machine: Machine) -> Array | None:
        values = self.of(dag) if callable(self.of) else self.of
        column = np.asarray(values, np.float64)
        if column.shape != (len(dag),):
            raise ArgumentError(f"priority: {column.shape} numbers for {len(dag)} tasks")
        return -column


class critical_path(Policy):  # noqa: N801
    """Highest level first: the task with the longest way to an end, without communication.

    >>> d = flow.lab.synthetic("lu", n=3)
    >>> flow.lab.simulate(d, 2, "critical_path").verify().tasks
    14
    """

    paper = "T. Adam, K. Chandy and J. Dickson, A comparison of list schedules, 1974 (HLFET)"

    def key(self, dag: Dag, machine: Machine) -> Array | None:
        return -dag.upward()


class adversarial(Policy):  # noqa: N801
    """The task with the shortest way to an end first: what keeps the critical path waiting.

    >>> d = flow.lab.synthetic("lu", n=3)
    >>> flow.lab.simulate(d, 2, "adversarial").verify().tasks
    14
    """

    paper = "the opposite of HLFET"

    def key(self, dag: Dag, machine: Machine) -> Array | None:
        return dag.upward()


class pct(Policy):  # noqa: N801
    """Random priorities of chains, and `k` - 1 moments at which one falls behind all: an order that
    needs `k` constraints is met with a probability that has a bound.

    >>> d = flow.lab.synthetic("lu", n=3)
    >>> flow.lab.simulate(d, 2, "pct").verify().tasks
    14
    """

    paper = (
        "S. Burckhardt et al., A randomized scheduler with probabilistic guarantees of finding "
        "bugs, 2010; of partial orders B. Ozkan et al., 2018"
    )
    shown = ("k", "seed")

    def __init__(self, k: int = 3, seed: int = 0) -> None:
        if k < 1:
            raise ArgumentError(f"pct: k is from 1 up, got {k!r}")
        self.k, self.seed = k, seed

    def key(self, dag: Dag, machine: Machine) -> Array | None:
        rng = np.random.default_rng(self.seed)
        n = len(dag)
        chain = _chains(dag)
        of_chain = rng.permutation(int(chain.max(initial=-1)) + 1).astype(np.float64)
        keys = of_chain[chain]
        for j, task in enumerate(rng.permutation(n)[: self.k - 1]):
            keys[task] = n + j
        return keys


def _chains(dag: Dag) -> Array:
    """The chain of each task: that of the first it waits for whose chain nobody went on with."""
    chain, open_end = np.full(len(dag), -1, np.int64), np.ones(len(dag), bool)
    count = 0
    into, source = dag.into.tolist(), dag.source.tolist()
    for t in dag.order.tolist():
        for s in source[into[t] : into[t + 1]]:
            if open_end[s]:
                open_end[s], chain[t] = False, chain[s]
                break
        else:
            chain[t], count = count, count + 1
    return chain


# --- static -----------------------------------------------------------------------------------


def _empty(dag: Dag) -> tuple[Array, Array, Array]:
    return np.zeros(len(dag)), np.zeros(len(dag)), np.zeros(len(dag), np.int64)


def insertion(
    dag: Dag,
    machine: Machine,
    order: Array,
    pinned: Array | None = None,
    bias: Array | None = None,
    append: bool = False,
) -> Assignment:
    """Place tasks in a topological order, each where it ends first, in gaps too unless `append`."""
    kind, sort, _ = machine.kinds(dag)
    start, end, worker = _empty(dag)
    none = np.full(machine.workers, -1, np.int64)
    pinned = np.full(len(dag), -1, np.int64) if pinned is None else pinned
    call(
        loops.insertion, order, pinned, np.zeros(0) if bias is None else bias, dag.cost, kind, sort,
        dag.into, dag.source, dag.size, dag.release, machine.speeds, machine.flat, int(append),
        none.copy(), np.full(len(dag), -1, np.int64), none.copy(), start, end, worker,
    )  # fmt: skip
    return Assignment(start, end, worker)


class heft(Policy):  # noqa: N801
    """Heterogeneous earliest finish time: by upward rank, each task where it ends first, gaps used.

    Communication is averaged over all pairs of workers, a worker and itself being a pair, as SAGA
    has it.

    >>> d = flow.lab.synthetic("lu", n=3)
    >>> flow.lab.simulate(d, 2, "heft").verify().tasks
    14
    """

    paper = "H. Topcuoglu, S. Hariri and M. Wu, 2002, doi:10.1109/71.993206"

    def plan(self, dag: Dag, machine: Machine) -> Assignment | None:
        rank = dag.upward(machine.mean_cost(dag), machine.mean_comm(dag))
        place = np.empty(len(dag), np.int64)
        place[dag.order] = np.arange(len(dag))
        # ranks fall along edges, and where they do not (a task that costs nothing) places rise
        return insertion(dag, machine, np.lexsort((place, -rank)).astype(np.int64))


class cpop(Policy):  # noqa: N801
    """Critical path on a processor: tasks of the longest path share the worker that is best for it.

    by      "saga": a task's downward rank has its own cost in the place of its first predecessor's,
            and several starts or ends have a task of no cost in front or behind, as SAGA has it;
            "paper": as Topcuoglu and others wrote it

    >>> d = flow.lab.synthetic("lu", n=3)
    >>> flow.lab.simulate(d, 2, "cpop").verify().tasks
    14
    """

    paper = "H. Topcuoglu, S. Hariri and M. Wu, 2002, doi:10.1109/71.993206"
    shown = ("by_whom",)

    def __init__(self, by: str = "saga") -> None:
        if by not in ("saga", "paper"):
            raise ArgumentError(f'cpop: by is "saga" or "paper", got {by!r}')
        self.by_whom = by

    def plan(self, dag: Dag, machine: Machine) -> Assignment | None:
        saga = self.by_whom == "saga"
        comm = machine.mean_comm(dag)
        mean = machine.mean_cost(dag)
        up = dag.upward(mean, comm)
        down = np.zeros(len(dag))
        cost = dag.cost / machine.speeds.mean() if saga else mean
        call(loops.downward, dag.order, dag.into, dag.source, cost, comm, int(saga), down)
        entry = dag.waits == 0
        several = saga and int(entry.sum()) > 1
        if several:  # behind a task that costs nothing, each start has its own cost in its rank
            down = _behind_one_start(dag, cost, comm, entry)
        longest = (up if several else up + down)[entry].max(initial=0.0)
        on_path = np.abs(up + down - longest) <= _LEAST + _CLOSE * abs(longest)
        best = int(
            np.argmin([float((dag.cost[on_path] / speed).sum()) for speed in machine.speeds])
        )
        pinned = np.where(on_path, best, -1).astype(np.int64)
        return insertion(dag, machine, dag.sorted_by(-(up + down)), pinned)


def _behind_one_start(dag: Dag, cost: Array, comm: Array, entry: Array) -> Array:
    """SAGA's downward ranks where all starts wait for a task that costs nothing."""
    n, starts = len(dag), np.flatnonzero(entry)
    whole = Dag(
        np.append(cost, 0.0),
        (np.append(dag.source, np.full(len(starts), n)), np.append(dag.target, starts),
         np.append(comm, np.zeros(len(starts)))),
    )  # fmt: skip
    down = np.zeros(n + 1)
    call(loops.downward, whole.order, whole.into, whole.source, whole.cost, whole.size, 1, down)
    return down[:n]


class peft(Policy):  # noqa: N801
    """Predict earliest finish time: HEFT that looks ahead, by a table of optimistic costs.

    >>> d = flow.lab.synthetic("lu", n=3)
    >>> flow.lab.simulate(d, 2, "peft").verify().tasks
    14
    """

    paper = "H. Arabnejad and J. Barbosa, 2014, doi:10.1109/TPDS.2013.57"

    def plan(self, dag: Dag, machine: Machine) -> Assignment | None:
        workers = machine.workers
        table = np.zeros(len(dag) * workers)
        away = machine.near[~np.eye(workers, dtype=bool)]
        comm = dag.size * (float(away.mean()) if len(away) else 0.0)
        call(loops.costs_to_go, dag.order, dag.out, dag.follower, dag.edge, dag.cost, comm,
             machine.speeds, table)  # fmt: skip
        rank = table.reshape(-1, workers).mean(axis=1)
        return insertion(dag, machine, dag.sorted_by(-rank), bias=table)


class _Batch(Policy):
    """Policies that choose, of all ready tasks, the one with the best value on its best worker."""

    rule: ClassVar[int]

    def plan(self, dag: Dag, machine: Machine) -> Assignment | None:
        return self.by_ties(dag, machine, np.zeros(len(dag)))

    def by_ties(self, dag: Dag, machine: Machine, level: Array) -> Assignment:
        """The schedule in which of equal pairs that of the highest `level` counts."""
        kind, sort, _ = machine.kinds(dag)
        start, end, worker = _empty(dag)
        n = len(dag)
        call(
            loops.batch, self.rule, level, dag.cost, kind, sort, dag.into, dag.source,
            dag.size, dag.out, dag.follower, dag.release, dag.waits.copy(), machine.speeds,
            machine.flat, np.zeros(n * machine.workers), np.zeros(n + 1, np.int64),
            np.zeros(n + 1, np.int64), np.zeros(machine.workers), start, end, worker,
        )  # fmt: skip
        return Assignment(start, end, worker)


class minmin(_Batch):  # noqa: N801
    """Choose the ready task that can end first, on the worker where it does.

    >>> d = flow.lab.synthetic("lu", n=3)
    >>> flow.lab.simulate(d, 2, "minmin").verify().tasks
    14
    """

    paper = "O. Ibarra and C. Kim, 1977; T. Braun et al., 2001, doi:10.1006/jpdc.2000.1714"
    rule = loops.MIN_MIN


class maxmin(_Batch):  # noqa: N801
    """Choose the ready task that ends last on its best worker, on that worker.

    >>> d = flow.lab.synthetic("lu", n=3)
    >>> flow.lab.simulate(d, 2, "maxmin").verify().tasks
    14
    """

    paper = minmin.paper
    rule = loops.MAX_MIN


class sufferage(_Batch):  # noqa: N801
    """Choose the ready task that would lose most on its second best worker.

    >>> d = flow.lab.synthetic("lu", n=3)
    >>> flow.lab.simulate(d, 2, "sufferage").verify().tasks
    14
    """

    paper = "M. Maheswaran et al., 1999, doi:10.1006/jpdc.1999.1581"
    rule = loops.SUFFERAGE


class etf(_Batch):  # noqa: N801
    """Earliest task first: of all ready tasks and workers the pair that can start first.

    Of equal ones that of the highest level counts, or that of the longest task, whichever makes the
    shorter schedule.

    >>> d = flow.lab.synthetic("lu", n=3)
    >>> flow.lab.simulate(d, 2, "etf").verify().tasks
    14
    """

    paper = "J. Hwang, Y. Chow, F. Anger and C. Lee, 1989, doi:10.1137/0218016"
    rule = loops.ETF

    def plan(self, dag: Dag, machine: Machine) -> Assignment | None:
        levels = dag.upward(machine.mean_cost(dag), machine.mean_comm(dag)), dag.cost
        return _shortest([self.by_ties(dag, machine, level) for level in levels])


def _shortest(plans: list[Assignment]) -> Assignment:
    return min(plans, key=lambda plan: float(plan.end.max(initial=0.0)))


def _orders(dag: Dag, machine: Machine) -> list[Array]:
    """Topological orders: by number, by level, by upward rank."""
    rank = dag.upward(machine.mean_cost(dag), machine.mean_comm(dag))
    by_level = np.argsort(dag.level, kind="stable").astype(np.int64)
    return [dag.order, by_level, dag.sorted_by(-rank)]


class mct(Policy):  # noqa: N801
    """Minimum completion time: one task after the other on the worker where it ends first.

    The order is an arbitrary one; here the best of three (by number, by level, by rank).

    >>> d = flow.lab.synthetic("lu", n=3)
    >>> flow.lab.simulate(d, 2, "mct").verify().tasks
    14
    """

    paper = minmin.paper

    def plan(self, dag: Dag, machine: Machine) -> Assignment | None:
        orders = _orders(dag, machine)
        return _shortest([insertion(dag, machine, order, append=True) for order in orders])


class olb(Policy):  # noqa: N801
    """Opportunistic load balancing: one task after the other on the worker that is free first.

    The order is an arbitrary one; here the best of three, as in `mct`.

    >>> d = flow.lab.synthetic("lu", n=3)
    >>> flow.lab.simulate(d, 2, "olb").verify().tasks
    14
    """

    paper = minmin.paper

    def plan(self, dag: Dag, machine: Machine) -> Assignment | None:
        return _shortest([self.in_order(dag, machine, order) for order in _orders(dag, machine)])

    def in_order(self, dag: Dag, machine: Machine, order: Array) -> Assignment:
        """The schedule of one order."""
        kind, sort, _ = machine.kinds(dag)
        start, end, worker = _empty(dag)
        call(
            loops.next_available, order, dag.cost, kind, sort, dag.into, dag.source, dag.size,
            dag.release, machine.speeds, machine.flat, np.zeros(machine.workers), start, end,
            worker,
        )  # fmt: skip
        return Assignment(start, end, worker)


# --- stepped ----------------------------------------------------------------------------------


class work_stealing(Policy):  # noqa: N801
    """Each worker has what its tasks made ready, the newest first; one that has nothing takes the
    oldest of another, by a seed.

    >>> d = flow.lab.synthetic("lu", n=3)
    >>> flow.lab.simulate(d, 2, "work_stealing").verify().tasks
    14
    """

    paper = "R. Blumofe and C. Leiserson, Scheduling multithreaded computations, 1999"
    shown = ("seed",)

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def begin(self, dag: Dag, machine: Machine) -> None:
        super().begin(dag, machine)
        self.draw = int(np.random.default_rng(self.seed).integers(_DRAWS))
        self.deques: list[deque[int]] = [deque() for _ in range(machine.workers)]

    def ready(self, task: int, now: float) -> None:
        self.deques[max(self.by, 0)].append(task)

    def pick(self, worker: int, now: float) -> int:
        if self.deques[worker]:
            return self.deques[worker].pop()
        victims = 0
        for k in range(len(self.deques)):
            victims += 1 if self.deques[k] else 0
        self.draw = (self.draw * 1103515245 + 12345) % _DRAWS
        chosen = self.draw * victims // _DRAWS
        for k in range(len(self.deques)):
            if self.deques[k]:
                if chosen == 0:
                    return self.deques[k].popleft()
                chosen -= 1
        return -1


class memory_aware(Policy):  # noqa: N801
    """By the critical path, but no task begins whose result would bring what lives past `nbytes`,
    unless nothing else runs.

    >>> d = flow.lab.synthetic("lu", n=3)
    >>> flow.lab.simulate(d, 2, flow.lab.memory_aware(8.0)).verify().tasks
    14
    """

    paper = "L. Marchal, B. Simon and F. Vivien, Limiting the memory footprint, 2019"
    shown = ("nbytes",)

    def __init__(self, nbytes: float | None = None) -> None:
        self.nbytes = nbytes

    def begin(self, dag: Dag, machine: Machine) -> None:
        super().begin(dag, machine)
        self.most = self.nbytes if self.nbytes is not None else (machine.memory or np.inf)
        self.rank = dag.upward()
        self.waiting_users = np.diff(dag.out)  # who still waits for a result
        self.live, self.running = 0.0, 0
        self.passed = list[tuple[float, int]]()  # what there is no room for

    def ready(self, task: int, now: float) -> None:
        heapq.heappush(self.heap, (-float(self.rank[task]), task))

    def ended(self, task: int, now: float) -> None:
        """A task is over: its operands may be what nobody waits for any more."""
        self.running -= 1
        for edge in range(self.dag.into[task], self.dag.into[task + 1]):
            source = self.dag.source[edge]
            self.waiting_users[source] -= 1
            if self.waiting_users[source] == 0:
                self.live -= float(self.dag.nbytes[source])
        if self.waiting_users[task] == 0:
            self.live -= float(self.dag.nbytes[task])

    def pick(self, worker: int, now: float) -> int:
        pick = -1
        while self.heap and pick < 0:
            rank, task = heapq.heappop(self.heap)
            if self.live + self.dag.nbytes[task] <= self.most:
                pick = task
            else:
                self.passed.append((rank, task))
        if pick < 0 and self.passed and self.running == 0:
            pick = min(self.passed, key=lambda item: self.dag.nbytes[item[1]])[1]
        while self.passed:
            rank, task = self.passed.pop()
            if task != pick:
                heapq.heappush(self.heap, (rank, task))
        if pick >= 0:
            self.live += float(self.dag.nbytes[pick])
            self.running += 1
        return pick


# --- by name ----------------------------------------------------------------------------------

POLICIES: dict[str, Callable[..., Policy]] = {
    kind.__name__: kind
    for kind in (
        fifo, lifo, random, critical_path, adversarial, pct, heft, cpop, peft, etf, minmin, maxmin,
        sufferage, mct, olb, work_stealing, memory_aware,
    )
}  # fmt: skip


def policy_of(what: object) -> Policy:
    """A policy by its name, class, or itself; "random:7" is one with a seed.  ArgumentError: there
    is none of that name, or it is none.
    """
    if isinstance(what, str):
        name, _, seed = what.partition(":")
        if name not in POLICIES:
            raise ArgumentError(f"no policy {name!r}; there are {', '.join(sorted(POLICIES))}")
        if seed and not seed.isdecimal():
            raise ArgumentError(f'"{name}:7" is {name} with the number 7, got {what!r}')
        if not seed:
            return POLICIES[name]()
        return pct(seed=int(seed)) if name == "pct" else POLICIES[name](int(seed))
    if isinstance(what, type) and issubclass(what, Policy):
        return what()
    if isinstance(what, Policy):
        return what
    raise ArgumentError(
        f"a policy is a name, a class of lab.Policy or one of its objects, got {what!r}"
    )


class saga(Policy):  # noqa: N801
    """A heuristic of SAGA as a policy: `lab.saga("HeftScheduler")`.  ConfigError: `anrg-saga` is
    not installed, or has none of that name.

    >>> try:
    ...     flow.lab.saga("HeftScheduler").scheduler
    ... except flow.errors.ConfigError:
    ...     "HeftScheduler"  # it is not installed
    'HeftScheduler'
    """

    paper = "J. Coleman et al., SAGA: scheduling algorithms gathered, 2023"
    shown = ("scheduler",)

    def __init__(self, scheduler: str) -> None:
        self.scheduler = scheduler
        try:
            self.api: Any = importlib.import_module("saga")
            self.room: object = importlib.import_module("saga.schedulers")
        except ImportError as error:
            raise ConfigError(
                "lab.saga needs SAGA, which is not installed: pip install anrg-saga (Python 3.12)"
            ) from error
        if not hasattr(self.room, scheduler):
            raise ConfigError(f"SAGA has no {scheduler!r}")

    def plan(self, dag: Dag, machine: Machine) -> Assignment | None:
        tasks = [(f"t{k:09d}", float(c)) for k, c in enumerate(dag.cost)]
        edges = [(tasks[s][0], tasks[t][0], float(size))
                 for s, t, size in zip(dag.source, dag.target, dag.size, strict=True)]  # fmt: skip
        nodes = [(f"w{k:06d}", float(v)) for k, v in enumerate(machine.speeds)]
        links = [(nodes[v][0], nodes[w][0], 1 / near if near > 0 else float("inf"))
                 for (v, w), near in np.ndenumerate(machine.near) if v <= w]  # fmt: skip
        graph = self.api.TaskGraph.create(tasks, edges)
        network = self.api.Network.create(nodes, links)
        planned = getattr(self.room, self.scheduler)().schedule(network, graph)
        start, end, worker = _empty(dag)
        for name, items in planned.items():
            for item in items:
                if item.name.startswith("t"):
                    k = int(item.name[1:])
                    start[k], end[k], worker[k] = item.start, item.end, int(name[1:])
        return Assignment(start, end, worker)
