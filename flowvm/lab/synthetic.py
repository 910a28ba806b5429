"""Graphs of work that papers schedule: random ones by a seed, and those of known algorithms.

The dense factorizations have the costs of their blocks (a product takes twice what a triangular
solve does, and so on), the networks those of their layers; all are scaled to a mean cost of 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from flowvm.errors import ArgumentError
from flowvm.lab.graphs import Dag
from flowvm.meta.arrays import Array

Tasks = list[tuple[str, float]]
Edges = list[tuple[int, int]]
COSTS = ("algorithm", "one", "uniform", "lognormal", "exponential")


def _chain(n: int, rng: object) -> tuple[Tasks, Edges]:
    return [("step", 1.0)] * n, [(k, k + 1) for k in range(n - 1)]


def _forkjoin(n: int, rng: object) -> tuple[Tasks, Edges]:
    """A start, n tasks side by side, an end."""
    tasks = [("fork", 1.0), *[("part", 1.0)] * n, ("join", 1.0)]
    return tasks, [e for k in range(1, n + 1) for e in ((0, k), (k, n + 1))]


def _erdos(n: int, rng: Any) -> tuple[Tasks, Edges]:
    """Each pair has an edge, from the lower to the higher number, with a chance of 4 / n."""
    edges: Edges = []
    for t in range(1, n):
        count = rng.binomial(t, min(1.0, 4 / n))
        edges += [(int(s), t) for s in np.sort(rng.choice(t, count, replace=False))]
    return [("task", 1.0)] * n, edges


def _layered(n: int, rng: Any) -> tuple[Tasks, Edges]:
    """About sqrt(n) layers of about as many tasks, each after one to three of the layer above."""
    layers: list[list[int]] = []
    edges: Edges = []
    most = max(1, int(np.sqrt(n)))
    count = 0
    while count < n:
        width = min(n - count, int(rng.integers(1, 2 * most)))
        layer = list(range(count, count + width))
        for t in layer if layers else ():
            above = layers[-1]
            some = rng.choice(len(above), min(len(above), int(rng.integers(1, 4))), replace=False)
            edges += [(above[int(k)], t) for k in np.sort(some)]
        layers.append(layer)
        count += width
    return [("task", 1.0)] * n, edges


class _Blocks:
    """Tasks on the blocks of a matrix, whose edges follow from which blocks they touch."""

    def __init__(self) -> None:
        self.tasks: Tasks = []
        self.edges: Edges = []
        self.last: dict[object, int] = {}

    def add(
        self, op: str, cost: float, writes: tuple[int, int] | str, reads: tuple[object, ...] = ()
    ) -> None:
        t = len(self.tasks)
        self.tasks.append((op, cost))
        front = {self.last[b] for b in (writes, *reads) if b in self.last}
        self.edges += [(s, t) for s in sorted(front)]
        self.last[writes] = t


def _cholesky(n: int, rng: object) -> tuple[Tasks, Edges]:
    """Return the tasks that factorize n x n blocks: potrf, trsm, syrk, gemm."""
    blocks = _Blocks()
    for k in range(n):
        blocks.add("potrf", 1 / 3, (k, k))
        for i in range(k + 1, n):
            blocks.add("trsm", 1.0, (i, k), ((k, k),))
        for i in range(k + 1, n):
            blocks.add("syrk", 1.0, (i, i), ((i, k),))
            for j in range(k + 1, i):
                blocks.add("gemm", 2.0, (i, j), ((i, k), (j, k)))
    return blocks.tasks, blocks.edges


def _lu(n: int, rng: object) -> tuple[Tasks, Edges]:
    """Return the tasks that factorize n x n blocks without pivots: getrf, trsm, gemm."""
    blocks = _Blocks()
    for k in range(n):
        blocks.add("getrf", 2 / 3, (k, k))
        for i in range(k + 1, n):
            blocks.add("trsm", 1.0, (i, k), ((k, k),))
            blocks.add("trsm", 1.0, (k, i), ((k, k),))
        for i in range(k + 1, n):
            for j in range(k + 1, n):
                blocks.add("gemm", 2.0, (i, j), ((i, k), (k, j)))
    return blocks.tasks, blocks.edges


def _fft(n: int, rng: object) -> tuple[Tasks, Edges]:
    """Return the tasks of a transform of n points, a power of two: log2(n) rows of butterflies
    behind a row of loads.
    """
    rows = n.bit_length() - 1
    if n != 1 << rows:
        raise ArgumentError(f'synthetic: n of "fft" is a power of two, got {n}')
    tasks = [("load", 1.0)] * n + [("butterfly", 1.0)] * (n * rows)
    edges = [
        (row * n + k, (row + 1) * n + j)
        for row in range(rows)
        for j in range(n)
        for k in sorted({j, j ^ (1 << row)})
    ]
    return tasks, edges


def _stencil(n: int, rng: object) -> tuple[Tasks, Edges]:
    """n steps of n points, each after itself and its neighbours."""
    edges = [
        ((step - 1) * n + k, step * n + j)
        for step in range(1, n)
        for j in range(n)
        for k in range(max(0, j - 1), min(n, j + 2))
    ]
    return [("point", 1.0)] * (n * n), edges


def _transformer(n: int, rng: object) -> tuple[Tasks, Edges]:
    """A training step of n blocks with 4 heads: forward, backward, an update for each weight."""
    blocks = _Blocks()
    heads = range(4)
    blocks.add("embed", 1.0, "x0", ("w.embed",))
    for b in range(n):
        x, y = f"x{b}", f"x{b + 1}"
        blocks.add("norm", 0.2, f"n{b}", (x,))
        for h in heads:
            for name in "qkv":
                blocks.add("project", 1.0, f"{name}{b}.{h}", (f"n{b}",))
            blocks.add("scores", 1.0, f"s{b}.{h}", (f"q{b}.{h}", f"k{b}.{h}"))
            blocks.add("softmax", 0.3, f"p{b}.{h}", (f"s{b}.{h}",))
            blocks.add("mix", 1.0, f"o{b}.{h}", (f"p{b}.{h}", f"v{b}.{h}"))
        blocks.add("join", 2.0, f"a{b}", tuple(f"o{b}.{h}" for h in heads))
        blocks.add("add", 0.1, f"r{b}", (x, f"a{b}"))
        blocks.add("norm", 0.2, f"m{b}", (f"r{b}",))
        blocks.add("widen", 4.0, f"f{b}", (f"m{b}",))
        blocks.add("gelu", 0.4, f"g{b}", (f"f{b}",))
        blocks.add("narrow", 4.0, f"h{b}", (f"g{b}",))
        blocks.add("add", 0.1, y, (f"r{b}", f"h{b}"))
    blocks.add("loss", 1.0, f"d{n}", (f"x{n}",))
    for b in reversed(range(n)):
        d = f"d{b + 1}"
        blocks.add("narrow'", 4.0, f"dg{b}", (d,))
        blocks.add("narrow'w", 4.0, f"dw2{b}", (d, f"g{b}"))
        blocks.add("gelu'", 0.4, f"df{b}", (f"dg{b}", f"f{b}"))
        blocks.add("widen'", 4.0, f"dm{b}", (f"df{b}",))
        blocks.add("widen'w", 4.0, f"dw1{b}", (f"df{b}", f"m{b}"))
        blocks.add("norm'", 0.3, f"dr{b}", (f"dm{b}", d))
        for h in heads:
            blocks.add("mix'", 2.0, f"dp{b}.{h}", (f"dr{b}", f"p{b}.{h}", f"v{b}.{h}"))
            blocks.add("softmax'", 0.3, f"ds{b}.{h}", (f"dp{b}.{h}",))
            blocks.add("scores'", 2.0, f"dq{b}.{h}", (f"ds{b}.{h}", f"q{b}.{h}", f"k{b}.{h}"))
            blocks.add("project'w", 3.0, f"dwa{b}.{h}", (f"dq{b}.{h}", f"n{b}"))
        blocks.add("project'", 3.0, f"dn{b}", tuple(f"dq{b}.{h}" for h in heads))
        blocks.add("norm'", 0.3, f"d{b}", (f"dn{b}", f"dr{b}"))
        weights = [f"dw1{b}", f"dw2{b}", *(f"dwa{b}.{h}" for h in heads)]
        for name in weights:
            blocks.add("update", 0.3, f"w.{name}", (name,))
    blocks.add("update", 0.3, "w.embed", ("d0",))
    return blocks.tasks, blocks.edges


def _pipeline(n: int, rng: object) -> tuple[Tasks, Edges]:
    """n batches through 4 stages, forward and back; a stage does one thing at a time."""
    blocks, stages = _Blocks(), range(4)
    for batch in range(n):
        for s in stages:
            blocks.add("forward", 1.0, f"x{batch}.{s + 1}", (f"x{batch}.{s}",))
        blocks.add("loss", 0.2, f"d{batch}.4", (f"x{batch}.4",))
        for s in reversed(stages):
            blocks.add("backward", 2.0, f"d{batch}.{s}", (f"d{batch}.{s + 1}", f"x{batch}.{s}"))
    for s in stages:
        blocks.add("update", 0.5, f"w{s}", tuple(f"d{batch}.{s}" for batch in range(n)))
    return blocks.tasks, blocks.edges


KINDS: dict[str, Callable[[int, object], tuple[Tasks, Edges]]] = {
    "chain": _chain, "cholesky": _cholesky, "erdos": _erdos, "fft": _fft, "forkjoin": _forkjoin,
    "layered": _layered, "lu": _lu, "pipeline": _pipeline, "stencil": _stencil,
    "transformer": _transformer,
}  # fmt: skip


def synthetic(
    kind: str, n: int = 8, seed: int = 0, cost: str | float = "algorithm", ccr: float = 0.0
) -> Dag:
    """A graph of work by its kind.

    kind   "layered", "erdos", "chain", "forkjoin": about n tasks.  "cholesky", "lu": n x n blocks.
           "fft": n points.  "stencil": n steps of n points.  "transformer": n blocks, a training
           step.  "pipeline": n batches through 4 stages
    seed   of what is random: edges of the first two kinds, costs and sizes
    cost   "algorithm" (its own), a number for all, or "uniform", "lognormal", "exponential" of
           mean 1
    ccr    communication over computation: how long an edge takes over a link of 1, on average, for
           each second of a task
    ArgumentError: no such kind, or cost.

    >>> flow.lab.synthetic("cholesky", n=3)
    <Dag of 10 tasks, 12 edges, 4 ops>
    """
    if kind not in KINDS:
        raise ArgumentError(f"synthetic: no kind {kind!r}; there are {', '.join(KINDS)}")
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
        raise ArgumentError(f"synthetic: n is a number from 1 up, got {n!r}")
    rng = np.random.default_rng(seed)
    tasks, edges = KINDS[kind](int(n), rng)
    costs = _costs(np.array([c for _, c in tasks]), cost, rng)
    ends = np.array(edges, np.int64).reshape(-1, 2)
    size = np.zeros(len(ends))
    if ccr > 0 and len(ends):
        size = rng.uniform(0.5, 1.5, len(ends)) * ccr * costs.mean()
    return Dag(
        costs,
        (np.ascontiguousarray(ends[:, 0]), np.ascontiguousarray(ends[:, 1]), size),
        op=[name for name, _ in tasks],
        nbytes=costs,
    )


def _costs(own: Array, cost: str | float, rng: Any) -> Array:
    n = len(own)
    if not isinstance(cost, str):
        return np.full(n, float(cost))
    if cost not in COSTS:
        raise ArgumentError(f"synthetic: cost is a number or one of {', '.join(COSTS)}")
    drawn: dict[str, Callable[[], Array]] = {
        "algorithm": lambda: own / own.mean(),
        "one": lambda: np.ones(n),
        "uniform": lambda: rng.uniform(0.0, 2.0, n),
        "lognormal": lambda: rng.lognormal(-0.5, 1.0, n),
        "exponential": lambda: rng.exponential(1.0, n),
    }
    return drawn[cost]()


def kinds() -> Iterator[str]:
    """The kinds of graphs there are."""
    return iter(KINDS)


def launches(dag: Dag, count: int, regst_num: int = 2) -> Dag:
    """Launches of a Plan behind each other: its graph so many times.  A launch begins when the one
    `regst_num` before is over (so many may be in flight).  A task is what an actor does for one
    launch, without a break (`Dag.acts`), and waits for what the actor does for the launch before.
    `sweep` turns the number of registers so.

    >>> d = flow.lab.Dag([1.0, 1.0], [(0, 1)], stream=[0, 1])
    >>> m = flow.lab.Machine(streams={0: 1, 1: 1})
    >>> [flow.lab.simulate(flow.lab.launches(d, 8, r), m).makespan for r in (1, 2)]
    [16.0, 9.0]
    """
    if count < 1 or regst_num < 1:
        raise ArgumentError(f"launches: from 1 up, got {count} launches, {regst_num} registers")
    dag = dag.acts()
    n, first = len(dag), np.arange(count) * len(dag)
    parts = [(dag.source, dag.target, first, 0)]
    tasks = np.arange(n)
    if count > 1:
        parts.append((tasks, tasks, first[1:], -1))
    if count > regst_num:
        ends = np.setdiff1d(tasks, dag.source)
        begins = np.setdiff1d(tasks, dag.target)
        both = np.repeat(ends, len(begins)), np.tile(begins, len(ends))
        parts.append((*both, first[regst_num:], -regst_num))
    source = np.concatenate([(a + (at + back * n)[:, None]).ravel() for a, _, at, back in parts])
    target = np.concatenate([(b + at[:, None]).ravel() for _, b, at, _ in parts])
    size = np.concatenate([np.tile(dag.size, count), np.zeros(len(source) - count * len(dag.size))])
    return Dag(
        np.tile(dag.cost, count),
        (source, target, size),
        op=[dag.names[k] for k in np.tile(dag.op, count)],
        stream=np.tile(dag.stream, count),
        nbytes=np.tile(dag.nbytes, count),
    )
