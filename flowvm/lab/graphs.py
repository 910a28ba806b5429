"""Graphs of work as columns: what each task costs, and which waits for which.

A `Dag` is a value of arrays: a million tasks are a hundred megabytes, and everything that is asked
of it is a loop over columns.  Costs are seconds on a worker of speed 1, sizes are bytes, or any
other units that agree with those of the `Machine`.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.errors import ArgumentError, ConfigError
from flowvm.lab import formats, loops
from flowvm.lab.machines import Bounds, Machine, bounds
from flowvm.lab.native import call
from flowvm.lab.sources import costs, of_nodes, of_run, of_trace
from flowvm.meta.arrays import Array
from flowvm.profiler.front.profiles import Profile
from flowvm.profiler.run.run import Run
from flowvm.vm.watch.trace import Trace

if TYPE_CHECKING:
    from types import ModuleType


class Dag:
    """Tasks and the edges between them.

    cost      seconds that each task takes on a worker of speed 1
    edges     (source, target) or (source, target, size) a row, or a pair or triple of arrays
    op        a name for each task, or one for all
    stream    the kind of worker that each task wants, by number; see `Machine`'s `streams`
    nbytes    what each task's result takes, from its start until the last that waits for it ends
    release   when each task may start at the earliest
    actor     the chain that each task is of, by number, if a worker runs those of a chain without a
              break, as it does an actor of a Plan (see `lab.launches`); by default each is its own
    ArgumentError: a cost below 0, an edge to a task that is not there, a circle.

    >>> d = flow.lab.Dag([1.0, 2.0, 3.0], [(0, 1), (0, 2)])
    >>> d.work, d.span
    (6.0, 4.0)
    """

    def __init__(
        self,
        cost: object,
        edges: object = (),
        *,
        op: str | Sequence[str] = "task",
        stream: object = 0,
        nbytes: object = 0.0,
        release: object = 0.0,
        hazard: object = 0,
        actor: object = None,
    ) -> None:
        self.cost = np.array(cost, np.float64, ndmin=1)
        n = len(self.cost)
        if self.cost.ndim != 1 or not np.isfinite(self.cost).all() or (self.cost < 0).any():
            raise ArgumentError("Dag: costs are a list of finite numbers, none below 0")
        source, target, size = _edges(edges)
        for name, ends in (("source", source), ("target", target)):
            if len(ends) and not (0 <= ends.min() and ends.max() < n):
                raise ArgumentError(
                    f"Dag: the {name} of an edge is task {ends.min()} to {ends.max()}, and there "
                    f"are tasks 0 to {n - 1}"
                )
        if not np.isfinite(size).all() or (size < 0).any():
            raise ArgumentError("Dag: sizes of edges are finite numbers, none below 0")
        by_target = np.lexsort((source, target))
        self.source, self.target = source[by_target], target[by_target]
        self.size = size[by_target]
        self.hazard = _column(hazard, len(source), np.int8, "hazard")[by_target]
        self.names, self.op = _names(op, n)
        self.stream = _column(stream, n, np.int64, "stream")
        self.nbytes = _column(nbytes, n, np.float64, "nbytes")
        self.release = _column(release, n, np.float64, "release")
        actor = np.arange(n) if actor is None else actor
        self.actor = _column(actor, n, np.int64, "actor")
        self.run: Run | None = None  # the recorded run that it is of, and
        self.rows = np.zeros(0, np.int64)  # of each task, its instruction's place in there
        self.order  # noqa: B018 - a circle is an error here

    # --- where it comes from ------------------------------------------------------------------

    @staticmethod
    def of(what: Any, *, issued: bool = False, cost: object = 1.0) -> Dag:
        """The graph of what was recorded, or of what will be replayed.

        what     a Profile or its Run: a task for each instruction that computes, as long as it
                 ran; the Trace of `flow.vm.trace`; or a Plan of a graph, a task for each of its
                 tasks, which cost `cost` (one number, an array, or a Profile of level 2 in which
                 the Plan was replayed)
        issued   of a run: no task may start before Python had issued it
        ArgumentError: it is none of these.

        >>> with flow.profiler.profile() as p:
        ...     x = (flow.ones(2) + 1) * 2
        ...     flow.vm.sync()
        >>> d = flow.lab.Dag.of(p)
        >>> [d.names[k] for k in d.op], d.source.tolist(), d.target.tolist()
        (['fill', 'add', 'mul'], [0, 1], [1, 2])
        """
        if isinstance(what, Profile):
            what = what.run
        if isinstance(what, Run):
            return _of_run(what, issued)
        if isinstance(what, Trace):
            return Dag(**of_trace(what))
        if hasattr(what, "tasks") and hasattr(getattr(what, "graph", None), "nodes"):
            if isinstance(cost, Profile):
                cost = costs(what.graph, cost)
            chains = [[k] * chain.count for k, chain in enumerate(what.actors or what.branches)]
            actor = [k for chain in chains for k in chain] or 0  # on one stream: one actor
            return Dag(**of_nodes(what.graph.nodes, cost), actor=actor)
        raise ArgumentError(
            f"Dag.of: expected a Profile, a Run, a Trace or a Plan, got {type(what).__name__}"
        )

    @staticmethod
    def load(path: str | Path, *, issued: bool = False) -> Dag:
        """The graph of a file: a .flowtrace (which `Profile.save` or `flowvm run -o` wrote),
        WfFormat (.json), the Standard Task Graph Set's (.stg), .graphml.

        issued   of a run: no task may start before Python had issued it

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     flow.lab.synthetic("lu", n=3).save(folder + "/lu.json")
        ...     flow.lab.Dag.load(folder + "/lu.json")
        <Dag of 14 tasks, 21 edges, 3 ops>
        """
        if Path(path).suffix in formats.READERS:
            cost, edges, op = formats.read(path)
            return Dag(cost, edges, op=op)
        return _of_run(Run.load(path), issued)

    def save(self, path: str | Path) -> None:
        """Write the graph: WfFormat (.json), .stg (no sizes, no names), .graphml, .dot."""
        formats.write(self, path)

    @staticmethod
    def from_networkx(graph: Any) -> Dag:
        """The graph of a networkx.DiGraph: node attribute `cost` (1 where there is none), edge
        attribute `size` (0); names are the nodes'.
        """
        place = {node: k for k, node in enumerate(graph.nodes)}
        return Dag(
            [float(values.get("cost", 1.0)) for _, values in graph.nodes(data=True)],
            [(place[a], place[b], float(values.get("size", 0.0)))
             for a, b, values in graph.edges(data=True)],
            op=[str(values.get("op", node)) for node, values in graph.nodes(data=True)],
        )  # fmt: skip

    def to_networkx(self) -> Any:
        """A networkx.DiGraph with node attributes `cost` and `op`, edge attribute `size`.
        ConfigError where networkx is not installed.
        """
        graph = _package("networkx", "to_networkx").DiGraph()
        for k, cost in enumerate(self.cost.tolist()):
            graph.add_node(k, cost=cost, op=self.names[int(self.op[k])])
        for s, t, size in zip(self.source.tolist(), self.target.tolist(), self.size.tolist(),
                              strict=True):  # fmt: skip
            graph.add_edge(s, t, size=size)
        return graph

    def to_columns(self) -> dict[str, Array]:
        """Return the columns of the tasks, as arrays by name."""
        return {
            "op": np.array(self.names, object)[self.op], "cost": self.cost, "stream": self.stream,
            "nbytes": self.nbytes, "release": self.release, "level": self.level,
            "upward": self.upward(),
        }  # fmt: skip

    def to_pandas(self) -> Any:
        """Return the columns as a DataFrame of pandas.  ConfigError if pandas is not installed."""
        return _package("pandas", "to_pandas").DataFrame(self.to_columns())

    def with_cost(self, cost: object) -> Dag:
        """Return the graph with other costs.  ArgumentError: not one for each task, or below 0."""
        return self._changed(cost=_column(cost, len(self), np.float64, "cost"))

    def with_release(self, release: object) -> Dag:
        """Return the graph with other times at which tasks may start."""
        return self._changed(release=_column(release, len(self), np.float64, "release"))

    def acts(self) -> Dag:
        """Return the graph of the chains that workers run without a break, each one task: `actor`.

        >>> d = flow.lab.Dag([1.0, 2.0, 3.0], [(0, 1), (1, 2)], actor=[0, 0, 1])
        >>> d.acts().cost.tolist()
        [3.0, 3.0]
        """
        _, first, chain = np.unique(self.actor, return_index=True, return_inverse=True)
        n = len(first)
        source, target = chain[self.source], chain[self.target]
        between = source != target
        pairs, place = np.unique(source[between] * n + target[between], return_inverse=True)
        size = np.bincount(place, self.size[between], minlength=len(pairs))
        release = np.zeros(n)
        np.maximum.at(release, chain, self.release)
        return Dag(
            np.bincount(chain, self.cost, minlength=n),
            (pairs // max(1, n), pairs % max(1, n), size),
            op=[self.names[k] for k in self.op[first]],
            stream=self.stream[first],
            nbytes=np.bincount(chain, self.nbytes, minlength=n),
            release=release,
        )

    def _changed(self, **columns: Array) -> Dag:
        dag = Dag.__new__(Dag)
        vars(dag).update(self.__getstate__() | columns)
        if (dag.cost < 0).any() or not np.isfinite(dag.cost).all():
            raise ArgumentError("Dag: costs are finite numbers, none below 0")
        return dag

    # --- what it is ---------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.cost)

    def __repr__(self) -> str:
        return f"<Dag of {len(self)} tasks, {len(self.source)} edges, {len(self.names)} ops>"

    @cached_property
    def into(self) -> Array:
        """Edges [into[t], into[t + 1]) end at task t: they are sorted so."""
        return np.searchsorted(self.target, np.arange(len(self) + 1)).astype(np.int64)

    @cached_property
    def edge(self) -> Array:
        """The edges by their source."""
        return np.argsort(self.source, kind="stable").astype(np.int64)

    @cached_property
    def out(self) -> Array:
        """Places [out[t], out[t + 1]) of `edge` begin at task t."""
        counts = np.bincount(self.source, minlength=len(self))
        return np.concatenate(([0], np.cumsum(counts))).astype(np.int64)

    @cached_property
    def follower(self) -> Array:
        """The targets by their source."""
        return np.ascontiguousarray(self.target[self.edge])

    @cached_property
    def waits(self) -> Array:
        """Return the number of edges that end at each task."""
        return np.diff(self.into)

    def sorted_by(self, key: Array) -> Array:
        """A topological order, the least (key, number) of what is ready first."""
        n = len(self)
        order = np.zeros(n, np.int64)
        keys, items = np.empty(n), np.empty(n, np.int64)
        waits, key = self.waits.copy(), np.ascontiguousarray(key, np.float64)
        came = call(loops.by_key, self.out, self.follower, waits, key, keys, items, order)
        if came != n:
            some = np.flatnonzero(waits > 0)[:5].tolist()
            raise ArgumentError(f"Dag: tasks wait for each other in a circle, among them {some}")
        return order

    @cached_property
    def order(self) -> Array:
        """A topological order, by the tasks' numbers as far as edges let it be."""
        if (self.source < self.target).all():
            return np.arange(len(self))
        return self.sorted_by(np.zeros(len(self)))

    @cached_property
    def level(self) -> Array:
        """The most edges on a path to each task."""
        level = np.zeros(len(self), np.int64)
        call(loops.levels, self.order, self.into, self.source, level)
        return level

    def levels(self) -> list[Array]:
        """The tasks by level: all of one may run side by side.

        >>> [tasks.tolist() for tasks in flow.lab.Dag([1, 1, 1], [(0, 1), (0, 2)]).levels()]
        [[0], [1, 2]]
        """
        by_level = np.argsort(self.level, kind="stable")
        return np.split(by_level, np.cumsum(np.bincount(self.level))[:-1]) if len(self) else []

    def bounds(self, machine: Machine | int) -> Bounds:
        """Return what no schedule on a Machine, or on so many workers, can beat: `lab.Bounds`, each
        with whose proof it is.

        >>> flow.lab.Dag([1.0, 2.0, 3.0], [(0, 1), (0, 2)]).bounds(2).best
        4.0
        """
        return bounds(self, machine)

    def upward(self, cost: Array | None = None, comm: Array | None = None) -> Array:
        """The longest way from each task to an end: its own cost, costs and edges behind it."""
        rank = np.zeros(len(self))
        cost = self.cost if cost is None else cost
        comm = np.zeros(len(self.source)) if comm is None else comm
        call(loops.upward, self.order, self.out, self.follower, self.edge, cost, comm, rank)
        return rank

    @property
    def work(self) -> float:
        """Return the cost of all tasks together."""
        return float(self.cost.sum())

    @cached_property
    def span(self) -> float:
        """Return the cost of the longest path: no schedule on any number of workers is shorter."""
        return float(self.upward().max(initial=0.0))

    @cached_property
    def width(self) -> int:
        """The most tasks that run at once where there are as many workers as that takes, each task
        as soon as it can.
        """
        finish = np.zeros(len(self))
        call(loops.downward, self.order, self.into, self.source, self.cost,
             np.zeros(len(self.source)), 0, finish)  # fmt: skip
        times = np.concatenate((finish, finish + self.cost))
        changes = np.repeat([1.0, -1.0], len(self))
        order = np.lexsort((changes, times)).astype(np.int64)
        level = np.cumsum(changes[order])
        return int(level.max(initial=0))

    def __getstate__(self) -> dict[str, object]:
        fields = ("cost", "source", "target", "size", "hazard", "names", "op", "stream", "nbytes",
                "release", "actor", "run", "rows")  # fmt: skip
        return {name: getattr(self, name) for name in fields}


def _package(name: str, wanted_by: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"{wanted_by} needs {name}, which is not installed: pip install {name}; "
            "d.to_columns() has NumPy arrays"
        ) from error


def _column(values: Any, n: int, dtype: Any, name: str) -> Array:
    column = np.asarray(values, dtype)
    if column.ndim == 0:
        return np.full(n, column, dtype)
    if column.shape != (n,):
        raise ArgumentError(f"Dag: {name} has {column.shape} values, and there are {n}")
    return np.ascontiguousarray(column)


def _names(op: str | Sequence[str], n: int) -> tuple[list[str], Array]:
    if isinstance(op, str):
        return [op], np.zeros(n, np.int64)
    if len(op) != n:
        raise ArgumentError(f"Dag: op has {len(op)} names, and there are {n} tasks")
    table: dict[str, int] = {}
    numbers = np.array([table.setdefault(str(o), len(table)) for o in op], np.int64)
    return list(table), numbers


def _edges(edges: Any) -> tuple[Array, Array, Array]:
    if isinstance(edges, tuple) and edges and all(isinstance(part, np.ndarray) for part in edges):
        source, target = (np.asarray(part, np.int64) for part in edges[:2])
        size = np.asarray(edges[2], np.float64) if len(edges) > 2 else np.zeros(len(source))
        return source, target, size
    rows = [tuple(edge) for edge in edges]
    if any(len(row) not in (2, 3) for row in rows):
        raise ArgumentError("Dag: an edge is (source, target) or (source, target, size)")
    source = np.array([row[0] for row in rows], np.int64)
    target = np.array([row[1] for row in rows], np.int64)
    return source, target, np.array([row[2] if len(row) > 2 else 0.0 for row in rows], np.float64)


def _of_run(run: Run, issued: bool) -> Dag:
    columns, rows = of_run(run, issued)
    dag = Dag(**columns)
    dag.run, dag.rows = run, rows
    return dag
