"""Machines: workers, how fast they are, what lies between them; and what no schedule can beat.

Task i on worker w takes cost[i] / speeds[w].  What an edge of size s carries from worker v to w
takes s / link[v, w], and nothing on one worker.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from flowvm.config import config
from flowvm.errors import ArgumentError
from flowvm.lab import loops
from flowvm.lab.native import call
from flowvm.loading.lazy import lazy
from flowvm.meta.arrays import Array

if TYPE_CHECKING:
    from flowvm.lab import measurement
else:
    measurement = lazy("flowvm.lab.measurement")

_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_UNITS |= {unit + "i": 1024.0**k for k, unit in enumerate("KMGT", 1)}


def amount(value: Any, what: str) -> float:
    """A number of bytes, such as 8e9, "8GB/s" or "1GiB".  ArgumentError: it is none above 0."""
    if isinstance(value, str):
        text = value.strip().removesuffix("/s").removesuffix("B").strip()
        digits = text.rstrip("KMGTi")
        try:
            value = float(digits) * _UNITS[text[len(digits) :].strip()]
        except (ValueError, KeyError):
            raise ArgumentError(f'Machine: {what} is a number or "8GB/s", got {value!r}') from None
    number = float(value)
    if not number > 0:
        raise ArgumentError(f"Machine: {what} is above 0, got {value!r}")
    return number


class Work(Protocol):
    """Columns of a graph of work that machines and bounds look at: a `flowvm.lab.graphs.Dag`."""

    cost: Array
    stream: Array
    release: Array
    source: Array
    size: Array

    def __len__(self) -> int: ...
    @property
    def order(self) -> Array: ...
    @property
    def into(self) -> Array: ...
    @property
    def waits(self) -> Array: ...
    @property
    def work(self) -> float: ...
    @property
    def span(self) -> float: ...


class Bounds(NamedTuple):
    """Lower bounds of every schedule's length, in seconds; `best` is the largest.  Their proofs:

    span            the longest path, on the fastest worker: R. L. Graham, "Bounds on
                    multiprocessing timing anomalies", 1969
    work            all work over all workers (of each kind): the same
    communication   what a task reads comes over the fastest link, or is computed where it runs,
                    one after the other: C. Papadimitriou and M. Yannakakis, "Towards an
                    architecture-independent analysis of parallel algorithms", 1990

    >>> flow.lab.bounds(flow.lab.synthetic("chain", n=3), 2)
    Bounds(span=3.0, work=1.5, communication=0.0)
    """

    span: float
    work: float
    communication: float

    @property
    def best(self) -> float:
        """The largest of them."""
        return max(self.span, self.work, self.communication)


class Machine:
    """Workers that a graph of work is scheduled on.

    workers    how many
    speeds     of each, by default 1
    link       bytes a second between two workers, a number, "8GB/s", or a matrix; None: no edge
               takes time
    streams    what kind of task each worker takes (numbers of streams, as the Dag has them), or how
               many workers each has: {0: 3, 1: 1}; None: any takes any
    cores      tasks that can run at once, by default as many as there are workers
    wake       seconds until a worker begins that had nothing to do for more than `patience`
    patience   seconds that a worker polls for work before it sleeps
    handover   seconds that the scheduler takes for each task, one after the other
    memory     bytes that there are, for policies that look; None: no bound
    shared     Python has one of the cores until the last task is released (see `Dag`'s `release`,
               and `issued=` of `Dag.of`)

    >>> m = flow.lab.Machine(2, link="8GB/s")
    >>> m.workers, float(m.near[0, 1])  # seconds a byte
    (2, 1.25e-10)
    """

    def __init__(
        self,
        workers: int | None = None,
        speeds: Sequence[float] | None = None,
        link: object = None,
        streams: Sequence[int] | Mapping[int, int] | None = None,
        cores: int | None = None,
        wake: float = 0.0,
        handover: float = 0.0,
        memory: object = None,
        shared: bool = False,
        patience: float = 0.0,
    ) -> None:
        if isinstance(streams, Mapping):
            streams = [kind for kind, count in streams.items() for _ in range(count)]
        counts = [len(part) for part in (speeds, streams) if part is not None]
        workers = workers if workers is not None else (counts[0] if counts else 1)
        if isinstance(workers, bool) or not isinstance(workers, (int, np.integer)) or workers < 1:
            raise ArgumentError(f"Machine: workers is a number from 1 up, got {workers!r}")
        if any(count != workers for count in counts):
            raise ArgumentError(f"Machine: {workers} workers, and speeds or streams for {counts}")
        self.workers = int(workers)
        self.speeds = np.ones(workers) if speeds is None else np.array(speeds, np.float64)
        if not (self.speeds > 0).all() or not np.isfinite(self.speeds).all():
            raise ArgumentError(f"Machine: speeds are above 0, got {speeds!r}")
        self.near = _near(link, self.workers)
        self.streams = None if streams is None else np.array(streams, np.int64)
        self.cores = self.workers if cores is None else int(cores)
        if self.cores < 1 or wake < 0 or handover < 0 or patience < 0:
            raise ArgumentError(
                f"Machine: cores is from 1 up, wake, handover and patience from 0, got {cores!r}, "
                f"{wake!r}, {handover!r}, {patience!r}"
            )
        self.wake, self.handover, self.shared = float(wake), float(handover), bool(shared)
        self.patience = float(patience)
        self.memory = None if memory is None else amount(memory, "memory")

    @staticmethod
    def here(workers: int | None = None) -> Machine:
        """This machine, measured once a process and number of cores that it may use: how long a
        worker polls, and one that sleeps takes to begin; what lies between two tasks of which one
        waits for the other, under a policy if there are several workers; how fast memory is copied;
        and the cores there are, one of which Python has while it issues.

        >>> flow.lab.Machine.here().wake > 0
        True
        """
        cores = len(os.sched_getaffinity(0))
        known = measurement.measurement(cores)
        workers = config.workers if workers is None else workers
        return Machine(
            workers, link=known.bandwidth, cores=cores, wake=known.wake, patience=known.patience,
            handover=known.choice if workers > 1 else known.handover, shared=True,
        )  # fmt: skip

    def __repr__(self) -> str:
        parts = [f"{self.workers} workers"]
        if (self.speeds != 1).any():
            parts.append(f"speeds {self.speeds.tolist()}")
        if self.near.any():
            parts.append(f"link {1 / self.near[self.near > 0].min():.3g}/s")
        parts += [f"{self.cores} cores"] * (self.cores < self.workers)
        parts += ["one shared with Python"] * self.shared
        parts += [f"wake {self.wake * 1e6:.3g} us"] * (self.wake > 0)
        parts += [f"patience {self.patience * 1e6:.3g} us"] * (self.patience > 0)
        parts += [f"handover {self.handover * 1e6:.3g} us"] * (self.handover > 0)
        return f"<Machine of {', '.join(parts)}>"

    def with_workers(self, workers: int) -> Machine:
        """Return a machine of this kind with another number of workers.  ArgumentError: its workers
        differ.
        """
        if (self.speeds != 1).any() or self.streams is not None:
            raise ArgumentError("Machine.with_workers: its workers differ; make another Machine")
        machine = Machine(workers, wake=self.wake, handover=self.handover, memory=self.memory,
                          shared=self.shared, patience=self.patience)  # fmt: skip
        if self.near.any():
            machine.near = _near(1 / self.near[self.near > 0].min(), workers)
        elif self.workers == 1:
            machine.near = np.zeros((workers, workers))
        if self.cores < self.workers:
            machine.cores = min(self.cores, workers)
        return machine

    def python(self, dag: Work) -> float:
        """The time until which Python has one of the cores; 0: it has none."""
        return float(dag.release.max(initial=0.0)) if self.shared else 0.0

    @property
    def flat(self) -> Array:
        """1 / link, a row a worker; empty where no edge takes time."""
        return np.ascontiguousarray(self.near.reshape(-1)) if self.near.any() else np.zeros(0)

    def kinds(self, dag: Work) -> tuple[Array, Array, int]:
        """The kind of each task and of each worker, counted from 0, and how many kinds there are.
        ArgumentError: a task whose kind no worker takes.
        """
        if self.streams is None:
            return np.zeros(len(dag), np.int64), np.zeros(self.workers, np.int64), 1
        known, sort = np.unique(self.streams, return_inverse=True)
        kind = np.searchsorted(known, dag.stream)
        wrong = (kind >= len(known)) | (known[np.minimum(kind, len(known) - 1)] != dag.stream)
        if wrong.any():
            raise ArgumentError(
                f"Machine: no worker takes tasks of stream {dag.stream[wrong][0]}; workers are for "
                f"{known.tolist()}"
            )
        return kind.astype(np.int64), sort.astype(np.int64), len(known)

    def mean_cost(self, dag: Work) -> Array:
        """Return the mean time of each task over the workers."""
        mean: Array = dag.cost * np.mean(1 / self.speeds)
        return mean

    def mean_comm(self, dag: Work) -> Array:
        """Return the mean time of each edge over all pairs of workers; a worker and itself are a
        pair.
        """
        pairs = np.triu_indices(self.workers)
        mean: Array = dag.size * np.mean(self.near[pairs])
        return mean


def bounds(dag: Work, machine: Machine | int) -> Bounds:
    """Return the lower bounds of all schedules of the graph on this machine, or with this number of
    workers.

    >>> d = flow.lab.Dag([1.0, 2.0, 3.0], [(0, 1), (0, 2)])
    >>> flow.lab.bounds(d, flow.lab.Machine(2)).best
    4.0
    """
    machine = Machine(machine) if isinstance(machine, (int, np.integer)) else machine
    kind, sort, kinds = machine.kinds(dag)
    fast = float(machine.speeds.max())
    work = 0.0
    for c in range(kinds):
        speeds = np.sort(machine.speeds[sort == c])[::-1][: machine.cores]
        work = max(work, float(dag.cost[kind == c].sum()) / float(speeds.sum()))
    speeds = np.sort(machine.speeds)[::-1][: machine.cores]
    work = max(work, dag.work / float(speeds.sum()))
    communication = 0.0
    if machine.near.any():
        away = machine.near[~np.eye(machine.workers, dtype=bool)]
        least = np.zeros(len(dag))
        n = int(dag.waits.max(initial=0)) + 1
        call(loops.earliest, dag.order, dag.into, dag.source, dag.cost / fast,
             dag.size * away.min(), np.zeros(n), np.zeros(n, np.int64), least)  # fmt: skip
        communication = float((least + dag.cost / fast).max(initial=0.0))
    return Bounds(dag.span / fast, work, communication)


def _near(link: Any, workers: int) -> Array:
    if link is None:
        return np.zeros((workers, workers))
    if np.ndim(link) == 2:
        matrix = np.array(link, np.float64)
        if matrix.shape != (workers, workers):
            raise ArgumentError(f"Machine: link is {workers} x {workers}, got {matrix.shape}")
        np.fill_diagonal(matrix, np.inf)
        if not (matrix > 0).all():
            raise ArgumentError("Machine: links are above 0")
        near = 1 / matrix
    else:
        near = np.full((workers, workers), 1 / amount(link, "link"))
    np.fill_diagonal(near, 0.0)
    return near
