"""Comparisons of a prediction with its measurement, and of many schedules."""

from __future__ import annotations

import csv
import io
import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flowvm.errors import ArgumentError
from flowvm.files.writer import writing
from flowvm.lab.graphs import Dag
from flowvm.lab.machines import Machine
from flowvm.lab.policies import policy_of
from flowvm.lab.simulation import Schedule, execution, simulate
from flowvm.lab.sources import SECOND
from flowvm.lab.synthetic import launches as repeated
from flowvm.meta.arrays import Array
from flowvm.profiler.front.profiles import Profile


class Cause(NamedTuple):
    """A part of what lies between prediction and measurement, in seconds."""

    name: str
    seconds: float


class Comparison:
    """A predicted and a measured makespan, and what explains the difference; `causes` sum to it.

    cost model   tasks took other times than the graph said
    order        other tasks came first, or on other workers
    python       the program issued them when they could have run
    wake-up      the machine's wake-up and hand-over
    the rest     cores taken by others, and what nothing above says

    >>> with flow.profiler.profile() as p:
    ...     x = flow.ones(1000) + 1
    ...     flow.vm.sync()
    >>> c = flow.lab.compare(flow.lab.simulate(flow.lab.Dag.of(p), 1), p)
    >>> abs(c.predicted + sum(cause.seconds for cause in c.causes) - c.measured) < 1e-9
    True
    """

    def __init__(self, predicted: float, measured: float, causes: list[Cause]) -> None:
        self.predicted, self.measured, self.causes = predicted, measured, causes

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted / self.measured - 1 if self.measured > 0 else 0.0

    def __repr__(self) -> str:
        lines = [f"predicted   {self.predicted * 1e3:10.3f} ms"]
        lines += [f"  {c.name:10s}{c.seconds * 1e3:+10.3f} ms" for c in self.causes]
        lines.append(f"measured    {self.measured * 1e3:10.3f} ms  ({self.error:+.1%} predicted)")
        return "\n".join(lines)


def compare(schedule: Schedule, profile: Profile) -> Comparison:
    """Say where a predicted schedule and a recorded run of the same tasks part: step by step what
    was measured takes the place of what was assumed.

    ArgumentError: the run has other tasks than the schedule.

    >>> with flow.profiler.profile() as p:
    ...     x = (flow.ones(1000) + 1) * 2
    ...     flow.vm.sync()
    >>> c = flow.lab.compare(flow.lab.simulate(flow.lab.Dag.of(p), 1), p)
    >>> [cause.name for cause in c.causes]
    ['cost model', 'order', 'python', 'wake-up', 'the rest']
    """
    dag = Dag.of(profile, issued=True)
    assumed = schedule.dag
    if len(dag) != len(assumed) or [dag.names[k] for k in dag.op] != [
        assumed.names[k] for k in assumed.op
    ]:
        raise ArgumentError(
            f"compare: the schedule has {len(assumed)} tasks and the run {len(dag)}, or other ones"
        )
    run = profile.run
    machine = Machine(schedule.machine.workers, link=None)
    now = execution(Schedule(assumed.with_cost(dag.cost), machine, schedule.start, schedule.end,
                            schedule.worker))  # fmt: skip
    steps = [schedule.makespan, now.makespan]
    started = (run.time("started")[dag.rows] - run.begun) / SECOND
    known, lane = np.unique(dag.stream, return_inverse=True)
    lanes = Machine(max(1, len(known)), cores=max(1, len(known)))
    as_run = Schedule(dag.with_release(0.0), lanes, started, started + dag.cost, lane)
    steps.append(execution(as_run).makespan)
    as_run = Schedule(dag, lanes, started, started + dag.cost, lane)
    steps.append(execution(as_run).makespan)
    original = schedule.machine
    slow = Machine(
        lanes.workers, wake=original.wake, handover=original.handover, patience=original.patience
    )
    as_run = Schedule(dag, slow, started, started + dag.cost, lane)
    steps.append(execution(as_run).makespan)
    measured = float((started + dag.cost).max(initial=0.0))
    steps.append(measured)
    names = ("cost model", "order", "python", "wake-up", "the rest")
    causes = [Cause(n, b - a) for n, a, b in zip(names, steps, steps[1:], strict=False)]
    return Comparison(schedule.makespan, measured, causes)


# --- sweeps -----------------------------------------------------------------------------------

HEAD = ("dag", "machine", "policy", "seed", "makespan", "bound", "idle", "peak_memory")


class Sweep:
    """Schedules of every graph on every machine by every policy: `rows`, with HEAD's columns.

    >>> s = flow.lab.sweep(flow.lab.synthetic("chain", n=3), 1, ["fifo"])
    >>> s.column("makespan"), float(s.ratios()["fifo"][0])
    ([3.0], 1.0)
    """

    def __init__(self, rows: list[tuple[Any, ...]]) -> None:
        self.rows = rows

    def column(self, name: str) -> list[object]:
        """One of HEAD's columns."""
        k = HEAD.index(name)
        return [row[k] for row in self.rows]

    def ratios(self) -> dict[str, Array]:
        """By policy, the makespans over the bounds."""
        by_policy: dict[str, list[float]] = {}
        for row in self.rows:
            if row[5] > 0:
                by_policy.setdefault(row[2], []).append(row[4] / row[5])
        return {name: np.array(values) for name, values in by_policy.items()}

    def table(self) -> str:
        """A line a policy: how many, and its makespans over the bounds, median, p95, worst."""
        lines = [f"{'policy':24s}  {'runs':>5s}  {'median':>7s}  {'p95':>7s}  {'worst':>7s}"]
        by_median = sorted(self.ratios().items(), key=lambda item: float(np.median(item[1])))
        for name, values in by_median:
            lines.append(
                f"{name:24s}  {len(values):5d}  {np.median(values):7.3f}  "
                f"{np.percentile(values, 95):7.3f}  {values.max():7.3f}"
            )
        return "\n".join(lines)

    def __repr__(self) -> str:
        return self.table()

    def csv(self, path: str | Path) -> None:
        """Write the rows; `sweep(path=)` goes on from such a file."""
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(HEAD)
        writer.writerows(self.rows)
        with writing(path, "Sweep.csv") as file:
            file.write(text.getvalue().encode())

    def svg(self, path: str | Path) -> None:
        """Write box plots of makespans over bounds: quartiles, median, and from 5 to 95 percent."""
        with writing(path, "Sweep.svg") as file:
            file.write(_boxes(self.ratios()).encode())


def sweep(
    dags: object,
    machines: object = 1,
    policies: Iterable[object] = ("fifo",),
    seeds: Sequence[int] = (0,),
    path: str | Path | None = None,
    progress: bool = True,
    regst_num: Sequence[int] = (),
    launches: int = 16,
) -> Sweep:
    """Simulate every graph on every machine by every policy, in all cores.

    dags       a Dag, several, or a table of them by name; a function of a seed gives a graph for
               each of `seeds`
    machines   a Machine or a number of workers, or several
    policies   names, classes or objects; a name that takes a seed gets each of `seeds`
    path       a .csv that is written, and from which what is there already is taken: a sweep that
               was cut short goes on
    progress   a bar, on a terminal
    regst_num  graphs are of Plans, launched `launches` times with each of these numbers of
               registers (`graph.config.regst_num`); the number stands behind a graph's name

    >>> s = flow.lab.sweep(flow.lab.synthetic("lu", n=4), [1, 2], ["fifo", "heft"])
    >>> len(s.rows), min(s.column("makespan")) > 0
    (4, True)
    >>> d = flow.lab.Dag([1.0, 1.0], [(0, 1)], stream=[0, 1])
    >>> m = flow.lab.Machine(streams={0: 1, 1: 1})
    >>> flow.lab.sweep(d, m, ["fifo"], regst_num=(1, 2)).column("makespan")
    [32.0, 17.0]
    """
    named = _by_name(dags, "dag")
    if regst_num:
        named = {
            f"{name} x{number}": _launched(dag, launches, number)
            for name, dag in named.items()
            for number in regst_num
        }
    on = _by_name(machines, "machine")
    known: dict[tuple[object, ...], tuple[object, ...]] = {}
    if path is not None and Path(path).exists():
        with open(path, newline="") as file:
            for row in itertools.islice(csv.reader(file), 1, None):
                values = tuple(float(v) for v in row[4:])
                known[tuple(row[:4])] = (row[0], row[1], row[2], int(row[3]), *values)
    jobs = []
    for (d, dag), (m, machine), policy, seed in itertools.product(
        named.items(), on.items(), policies, seeds
    ):
        seeded = isinstance(policy, str) and ":" not in policy and policy in SEEDED
        if seed != seeds[0] and not (seeded or callable(dag)):
            continue
        rule = policy_of(f"{policy}:{seed}" if seeded else policy)
        label = policy if isinstance(policy, str) else rule.name
        jobs.append(((d, m, label, seed), dag, machine, rule))

    def one(job: Any) -> tuple[object, ...]:
        key, dag, machine, policy = job
        if (row := known.get(tuple(map(str, key)))) is not None:
            return row
        schedule = simulate(dag(key[3]) if callable(dag) else dag, machine, policy)
        return (*key, schedule.makespan, schedule.bounds.best, schedule.idle, schedule.peak_memory)

    rows = []
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for row in _shown(pool.map(one, jobs), len(jobs), progress):
            rows.append(row)
            if path is not None and len(rows) % 256 == 0:
                Sweep(rows).csv(path)
    whole = Sweep(rows)
    if path is not None:
        whole.csv(path)
    return whole


def _launched(dag: Dag, count: int, number: int) -> object:
    if callable(dag):
        return lambda seed: repeated(dag(seed), count, number)
    return repeated(dag, count, number)


SEEDED = ("random", "work_stealing", "pct")


def _shown(rows: Any, count: int, progress: bool) -> Any:
    if not progress or count < 64:
        return rows
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(rows, "sweep", total=count, console=console) if console.is_terminal else rows


def _by_name(values: object, what: str) -> dict[str, Any]:
    if isinstance(values, Mapping):
        return {str(name): value for name, value in values.items()}
    several = list(values) if isinstance(values, (list, tuple, range)) else [values]
    if what == "machine":
        machines = [Machine(m) if isinstance(m, int) else m for m in several]
        labels = [repr(m) for m in machines]
        return {
            label if labels.count(label) == 1 else f"{label} {k}": m
            for k, (label, m) in enumerate(zip(labels, machines, strict=True))
        }
    wrong = [d for d in several if not (isinstance(d, Dag) or callable(d))]
    if wrong:
        raise ArgumentError(f"sweep: expected a Dag or a function of a seed, got {wrong[0]!r}")
    return {f"dag {k}" if len(several) > 1 else "dag": d for k, d in enumerate(several)}


def _boxes(ratios: dict[str, Array]) -> str:
    """An SVG: a row a policy, left is better."""
    row, margin, width = 26, 150, 560
    most = max([float(np.percentile(v, 95)) for v in ratios.values()] + [1.01])
    scale: Callable[[float], float] = lambda v: margin + (v - 1) / (most - 1) * width  # noqa: E731
    ordered = sorted(ratios.items(), key=lambda item: float(np.median(item[1])))
    height = row * len(ordered) + 40
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{margin + width + 40}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="100%" height="100%" fill="white"/>',  # noqa: F541
    ]
    for k, (name, values) in enumerate(ordered):
        y = 10 + row * k
        a, b, c, d, e = (scale(float(np.percentile(values, q))) for q in (5, 25, 50, 75, 95))
        lines += [
            f'<text x="{margin - 8}" y="{y + 14}" text-anchor="end">{name}</text>',
            f'<line x1="{a:.1f}" x2="{e:.1f}" y1="{y + 10}" y2="{y + 10}" stroke="#667"/>',
            f'<rect x="{b:.1f}" y="{y + 3}" width="{max(1.0, d - b):.1f}" height="14" '
            'fill="#9bd" stroke="#246"/>',
            f'<line x1="{c:.1f}" x2="{c:.1f}" y1="{y + 2}" y2="{y + 18}" stroke="#024" '
            'stroke-width="2"/>',
        ]
    for value in np.linspace(1, most, 5):
        lines.append(
            f'<text x="{scale(float(value)):.1f}" y="{height - 12}" text-anchor="middle" '
            f'fill="#444">{value:.2f}</text>'
        )
    return "\n".join([*lines, "</svg>"]) + "\n"
