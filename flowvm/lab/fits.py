"""Cost models of operators, fitted to runs: a line in bytes and operations for each, with error
bars.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from flowvm.errors import ArgumentError
from flowvm.lab.graphs import Dag
from flowvm.lab.sources import SECOND, WORK
from flowvm.meta.arrays import Array
from flowvm.profiler.run.run import Run

FEATURES = ("op", "bytes", "flops")


class Estimate(NamedTuple):
    """Seconds, and how far off they may be (one standard deviation)."""

    seconds: float
    error: float


class Line(NamedTuple):
    """Line of one operator: seconds = coefficients . (1, bytes, flops).  `spread` is the relative
    distance of measured times, `covariance` belongs to the coefficients.
    """

    coefficients: Array
    covariance: Array
    spread: float
    samples: int


class Cost:
    """A cost model: what each operator takes, by what it was given.

    >>> with flow.profiler.profile() as p:
    ...     for n in (100, 1000, 10000):
    ...         x = flow.ones(n) + 1
    ...     flow.vm.sync()
    >>> cost = flow.lab.Cost.fit(p)
    >>> cost("add", nbytes=8e6).seconds > cost("add", nbytes=8).seconds
    True
    """

    def __init__(self, lines: dict[str, Line], by: tuple[str, ...]) -> None:
        self.lines, self.by = lines, by

    @staticmethod
    def fit(profiles: Any, by: Iterable[str] = FEATURES) -> Cost:
        """Fit a line for each operator to what recorded runs took.

        profiles   a Profile, or several
        by         what a line is in: "bytes", "flops", or both; "op" is always
        No coefficient is below 0.  Relative errors count, so small calls weigh what large ones do.
        ArgumentError: nothing that computes was recorded, or no such feature.
        """
        by = tuple(by)
        if wrong := set(by) - set(FEATURES):
            raise ArgumentError(f"Cost.fit: by is of {', '.join(FEATURES)}, got {sorted(wrong)}")
        several = profiles if isinstance(profiles, (list, tuple)) else [profiles]
        names: list[str] = []
        rows: list[Array] = []
        for profile in several:
            run: Any = profile if isinstance(profile, Run) else profile.run
            took = run.time("ended") - run.time("started")
            work = np.isin(run.kind, WORK) & (run.time("started") > 0) & (took > 0)
            names += [run.names[k] for k in run.op[work]]
            rows.append(np.column_stack((took, run.nbytes, run.flops))[work])
        if not names:
            raise ArgumentError("Cost.fit: these runs have no instruction that computed something")
        table, op = np.concatenate(rows).astype(np.float64), np.array(names, object)
        lines = {}
        for name in sorted(set(names)):
            mine = table[op == name]
            x = np.column_stack((
                np.ones(len(mine)), mine[:, 1] * ("bytes" in by), mine[:, 2] * ("flops" in by),
            ))  # fmt: skip
            lines[name] = _line(x, mine[:, 0] / SECOND)
        return Cost(lines, by)

    def __call__(self, op: str, nbytes: float = 0.0, flops: float = 0.0) -> Estimate:
        """Return the seconds of one call.  ArgumentError: the operator was in no run."""
        line = self.lines.get(op)
        if line is None:
            raise ArgumentError(
                f"Cost: {op!r} was in no run; there are {', '.join(sorted(self.lines))}"
            )
        x = np.array([1.0, nbytes, flops])
        seconds = float(x @ line.coefficients)
        return Estimate(
            seconds, float(np.sqrt(max(0.0, x @ line.covariance @ x))) + line.spread * seconds
        )

    def of(self, dag: Dag) -> Dag:
        """Return the graph with the costs of this model.  ArgumentError: the graph is not of a run,
        which has the bytes and operations of each task.
        """
        if dag.run is None:
            raise ArgumentError("Cost.of: a graph of a run, which says bytes and flops, is wanted")
        run, rows = dag.run, dag.rows
        costs = [
            self(run.names[op], nbytes, flops).seconds
            for op, nbytes, flops in zip(
                run.op[rows].tolist(), run.nbytes[rows].tolist(), run.flops[rows].tolist(),
                strict=True,
            )
        ]  # fmt: skip
        return dag.with_cost(costs)

    def __repr__(self) -> str:
        width = max(map(len, self.lines))
        lines = [f"{'op':{width}s}  {'calls':>6s}  {'us':>9s}  {'GB/s':>8s}  {'GFLOP/s':>8s}  off"]
        for name, line in self.lines.items():
            c = line.coefficients
            rates = [f"{1e-9 / v:8.3g}" if v > 0 else f"{'-':>8s}" for v in c[1:]]
            cells = [f"{name:{width}s}", f"{line.samples:6d}", f"{c[0] * 1e6:9.3g}", *rates]
            lines.append("  ".join([*cells, f"{line.spread:.0%}"]))
        return "\n".join(lines)


def _line(x: Array, y: Array) -> Line:
    """Least squares of relative errors with no coefficient below 0: the best of all subsets of
    columns whose own least squares has none.
    """
    weighted, ones = x / y[:, None], np.ones(len(y))
    best: tuple[float, tuple[int, ...], Array] | None = None
    present = [k for k in range(x.shape[1]) if np.ptp(x[:, k]) > 0 or (k == 0)]
    for count in range(1, len(present) + 1):
        for columns in itertools.combinations(present, count):
            some = weighted[:, columns]
            scale = np.linalg.norm(some, axis=0)
            if not (scale > 0).all():
                continue
            solved, _, rank, _ = np.linalg.lstsq(some / scale, ones, rcond=None)
            if rank < count or (solved < 0).any():
                continue
            off = float(((some / scale) @ solved - ones) @ ((some / scale) @ solved - ones))
            if best is None or off < best[0] * (1 - 1e-9):
                best = off, columns, solved / scale
    assert best is not None, "a constant alone always fits"
    off, columns, solved = best
    spread = float(np.sqrt(off / max(1, len(y) - len(columns))))
    coefficients, covariance = np.zeros(x.shape[1]), np.zeros((x.shape[1], x.shape[1]))
    coefficients[list(columns)] = solved
    some = weighted[:, columns]
    covariance[np.ix_(columns, columns)] = np.linalg.pinv(some.T @ some) * spread**2
    return Line(coefficients, covariance, spread, len(y))
