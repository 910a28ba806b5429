"""`torch.utils.benchmark`: how long a statement takes, and tables that compare several.

A timing waits for the VM before its clock starts and before it stops, so kernels are in it that the
statement has issued.

Long because what is measured and the tables of it are one public surface.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
import timeit
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import numpy as np

from flowvm.errors import ArgumentError
from flowvm.guards.regions import reverting
from flowvm.loading.listing import listing, own_names
from flowvm.streams import get_num_threads, set_num_threads
from flowvm.vm import sync

__dir__ = listing(globals())
UNITS: Final = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))
LEAST_RUN: Final = 1e-4  # seconds that a timing takes at least, for its clock to be exact


def timer() -> float:
    """Return the time in seconds when all that was issued is done.

    >>> flow.utils.benchmark.timer() <= flow.utils.benchmark.timer()
    True
    """
    sync()
    return time.perf_counter()


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """A statement to be timed, and what tables say of it.

    >>> flow.utils.benchmark.TaskSpec("x + y", "pass", label="sums").title
    'sums'
    """

    stmt: str
    setup: str
    global_setup: str = ""
    label: str | None = None
    sub_label: str | None = None
    description: str | None = None
    env: str | None = None
    num_threads: int = 1

    @property
    def title(self) -> str:
        """The label, or the statement, and the sub-label."""
        named = self.label or self.stmt
        return named if self.sub_label is None else f"{named}: {self.sub_label}"

    def setup_str(self) -> str:
        """The setup, for people."""
        return "" if self.setup in ("", "pass") else f"setup: {self.setup.strip()}"


@dataclasses.dataclass(repr=False)
class Measurement:
    """The times of a statement: `raw_times` seconds for `number_per_run` runs each.

    >>> m = flow.utils.benchmark.Measurement(
    ...     2, [2.0, 4.0, 6.0], flow.utils.benchmark.TaskSpec("f()", "pass"))
    >>> m.median, m.mean, m.times
    (2.0, 2.0, [1.0, 2.0, 3.0])
    """

    number_per_run: int
    raw_times: list[float]
    task_spec: TaskSpec
    metadata: dict[object, object] | None = None

    @property
    def times(self) -> list[float]:
        """Seconds of one run, by timing."""
        return [t / self.number_per_run for t in self.raw_times]

    @property
    def median(self) -> float:
        """The median of `times`; ArgumentError where there are none."""
        return statistics.median(self._some())

    @property
    def mean(self) -> float:
        """The mean of `times`; ArgumentError where there are none."""
        return statistics.fmean(self._some())

    @property
    def iqr(self) -> float:
        """The distance of the quartiles of `times`."""
        low, high = np.quantile(self._some(), (0.25, 0.75))
        return float(high - low)

    @property
    def meets_confidence(self) -> bool:
        """True where the quartiles are near the median: a tenth of it."""
        return self.iqr / self.median < 0.1

    @property
    def significant_figures(self) -> int:
        """Digits of the median that the spread of times leaves meaning."""
        times = self._some()
        spread = max(self.iqr / 1.35 / math.sqrt(len(times)) * 3.0, 1e-30)  # of a normal's median
        digits = math.ceil(math.log10(max(self.median, 1e-30) / spread)) if self.median else 1
        return max(1, min(digits, 5))

    @property
    def has_warnings(self) -> bool:
        """True where the times differ much."""
        return not self.meets_confidence

    @property
    def title(self) -> str:
        """The title of the statement."""
        return self.task_spec.title

    @property
    def num_threads(self) -> int:
        """Threads that kernels had."""
        return self.task_spec.num_threads

    @property
    def env(self) -> str:
        """The name of the surroundings; "Unspecified env" without one."""
        return self.task_spec.env or "Unspecified env"

    @property
    def as_row_name(self) -> str:
        """The name of its row in a table."""
        return self.task_spec.sub_label or self.task_spec.stmt or "[Unknown]"

    def _some(self) -> list[float]:
        if not self.raw_times:
            raise ArgumentError(f"Measurement of {self.title!r} has no times")
        return self.times

    def __repr__(self) -> str:
        unit, scale = unit_of(self.median)
        shown = [
            f"<{type(self).__module__}.{type(self).__name__}>",
            self.title,
            *filter(None, [self.task_spec.setup_str()]),
            f"  {'Median: ' if len(self.times) > 1 else ''}{self.median / scale:.2f} {unit}",
        ]
        if len(self.times) > 2:
            low, high = np.quantile(self.times, (0.25, 0.75)) / scale
            shown.append(f"  IQR:    {self.iqr / scale:.2f} {unit} ({low:.2f} to {high:.2f})")
        runs = f"{self.number_per_run} run{'s' * (self.number_per_run > 1)} per measurement"
        count = len(self.times)
        threads = f"{self.num_threads} thread{'s' * (self.num_threads > 1)}"
        shown.append(f"  {count} measurement{'s' * (count > 1)}, {runs}, {threads}")
        return "\n".join(shown)

    @staticmethod
    def merge(measurements: Iterable[Measurement]) -> list[Measurement]:
        """Measurements of one statement made one, by the statement."""
        groups: dict[TaskSpec, list[Measurement]] = {}
        for m in measurements:
            groups.setdefault(m.task_spec, []).append(m)
        return [
            Measurement(
                1, [t for m in group for t in m.times], spec, None
            ) if len(group) > 1 else group[0]
            for spec, group in groups.items()
        ]  # fmt: skip


def unit_of(seconds: float) -> tuple[str, float]:
    """The largest unit in which a time is at least 1, and its seconds.

    >>> flow.utils.benchmark.unit_of(0.0025)
    ('ms', 0.001)
    """
    return next((unit for unit in UNITS if seconds >= unit[1]), UNITS[-1])


class Timer:
    """Times a statement: Python's text, whose names are those of `globals` and of `setup`.

    label, sub_label, description   the table, the row and the column of a `Compare`
    num_threads                     threads that kernels have meanwhile
    env                             what differs between programs whose results are compared

    >>> t = flow.utils.benchmark.Timer("x + x", globals={"x": flow.ones(4)}, label="sum")
    >>> t.timeit(10).number_per_run
    10
    """

    def __init__(
        self,
        stmt: str = "pass",
        setup: str = "pass",
        global_setup: str = "",
        timer: Callable[[], float] = timer,
        globals: dict[str, Any] | None = None,
        label: str | None = None,
        sub_label: str | None = None,
        description: str | None = None,
        env: str | None = None,
        num_threads: int = 1,
        language: str = "python",
    ) -> None:
        if str(language).lower() not in ("python", "py", "language.python"):
            raise ArgumentError(f"Timer: statements are Python's, got language {language!r}")
        if global_setup:
            raise ArgumentError("Timer: global_setup is of C++ statements; use setup")
        self._task_spec = TaskSpec(stmt, setup, "", label, sub_label, description, env, num_threads)
        self._timer = timeit.Timer(stmt, setup, timer, globals)

    def timeit(self, number: int = 1_000_000) -> Measurement:
        """One timing of so many runs, behind a hundredth as many that are not counted."""
        with self._threads():
            self._timer.timeit(max(int(number // 100), 2))
            return self._measured(number, [self._timer.timeit(number)])

    def repeat(self, repeat: int = -1, number: int = -1) -> Measurement:
        """Take `repeat` timings of `number` runs each; -1 means 5 timings, and as many runs as take
        a while.
        """
        with self._threads():
            number = self._number() if number < 0 else number
            times = [self._timer.timeit(number) for _ in range(5 if repeat < 0 else repeat)]
            return self._measured(number, times)

    def autorange(self, callback: Any = None) -> Measurement:
        """One timing of as many runs as take a fifth of a second."""
        with self._threads():
            number, seconds = self._timer.autorange(callback)
            return self._measured(number, [seconds])

    def blocked_autorange(self, callback: Any = None, min_run_time: float = 0.2) -> Measurement:
        """Timings one behind the other for `min_run_time` seconds, of as many runs each as the
        clock needs.
        """
        with self._threads():
            number, times = self._number(), []
            begun = time.perf_counter()
            while time.perf_counter() - begun < min_run_time:
                times.append(self._timer.timeit(number))
                if callback is not None:
                    callback(number, times[-1])
            return self._measured(number, times)

    def adaptive_autorange(
        self,
        threshold: float = 0.1,
        *,
        min_run_time: float = 0.01,
        max_run_time: float = 10.0,
        callback: Any = None,
    ) -> Measurement:
        """Timings until the distance of the quartiles is `threshold` of the median, within these
        times.
        """
        with self._threads():
            number, times = self._number(), []
            begun = time.perf_counter()
            while (passed := time.perf_counter() - begun) < max_run_time:
                times.append(self._timer.timeit(number))
                if callback is not None:
                    callback(number, times[-1])
                measurement = self._measured(number, times)
                if (
                    passed >= min_run_time
                    and len(times) > 2
                    and measurement.iqr < threshold * measurement.median
                ):
                    break
            return self._measured(number, times)

    def _number(self) -> int:
        """Runs that take LEAST_RUN seconds, after what a first one compiles."""
        number = 1
        self._timer.timeit(2)
        while self._timer.timeit(number) < LEAST_RUN:
            number *= 10
        return number

    def _measured(self, number: int, times: list[float]) -> Measurement:
        return Measurement(number, list(times), self._task_spec)

    def _threads(self) -> reverting:
        """Return a region in which kernels have this timer's number of threads."""
        own = self._task_spec.num_threads
        return reverting(partial(set_num_threads, get_num_threads()), partial(set_num_threads, own))


class Compare:
    """Measurements as tables: one for each label, with descriptions side by side.

    >>> bench = flow.utils.benchmark
    >>> spec = bench.TaskSpec("f(x)", "pass", label="f", sub_label="small", description="now")
    >>> print(bench.Compare([bench.Measurement(1, [0.002], spec)]))
    [----- f ------]
             |  now
    1 threads: -----
      small  |  2.00
    <BLANKLINE>
    Times are in milliseconds (ms).
    """

    def __init__(self, results: list[Measurement]) -> None:
        self._results: list[Measurement] = []
        self.extend_results(results)
        self._trim = False
        self._bold = False

    def extend_results(self, results: Iterable[Measurement]) -> None:
        """Add measurements."""
        self._results.extend(results)

    def trim_significant_figures(self) -> None:
        """Leave away digits that the spread of the times makes meaningless."""
        self._trim = True

    def colorize(self, rowwise: bool = False) -> None:
        """Mark the least time of each row (`rowwise`), or of each column, with a star: tables are
        plain text here.
        """
        self._bold = True
        self._rowwise = rowwise

    def highlight_warnings(self) -> None:
        """Do nothing more: rows whose times differ much end with a (!) anyway."""

    def print(self) -> None:
        """Print the tables."""
        print(self)

    def __str__(self) -> str:
        merged = Measurement.merge(self._results)
        labels = dict.fromkeys(m.task_spec.label or m.task_spec.stmt for m in merged)
        tables = []
        for label in labels:
            own = [m for m in merged if (m.task_spec.label or m.task_spec.stmt) == label]
            tables.append(self._table(label, own))
        return "\n\n".join(tables)

    def _table(self, label: str, results: list[Measurement]) -> str:
        unit, scale = unit_of(min(m.median for m in results))
        columns = list(dict.fromkeys(m.task_spec.description or "" for m in results))
        rows = list(dict.fromkeys((m.num_threads, m.env, m.as_row_name) for m in results))
        cells = {
            (m.num_threads, m.env, m.as_row_name, m.task_spec.description or ""): m for m in results
        }
        several = len({env for _, env, _ in rows}) > 1
        names = [f"({env}) {name}" if several else name for _, env, name in rows]
        head = max(map(len, names))
        texts = {key: self._cell(m, scale, results) for key, m in cells.items()}
        widths = [max([len(c), *(len(t) for k, t in texts.items() if k[3] == c)]) for c in columns]
        width = head + 2 + sum(w + 5 for w in widths)
        lines = [f"[{f' {label} '.center(width - 2, '-')}]"]
        titles = (f"  |  {c.center(w)}" for c, w in zip(columns, widths, strict=True))
        lines.append((" " * (head + 2) + "".join(titles)).rstrip())
        threads = None
        for (count, env, row), name in zip(rows, names, strict=True):
            if count != threads:
                threads, heading = count, f"{count} threads: "
                lines.append(heading + "-" * (width - len(heading)))
            line = "".join(
                f"  |  {texts.get((count, env, row, c), '').rjust(w)}"
                for c, w in zip(columns, widths, strict=True)
            )
            lines.append(f"  {name.ljust(head)}{line}".rstrip())
        words = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
        return "\n".join([*lines, "", f"Times are in {words[unit]} ({unit})."])

    def _cell(self, m: Measurement, scale: float, results: list[Measurement]) -> str:
        value = m.median / scale
        if self._trim:
            digits = m.significant_figures - 1 - math.floor(math.log10(max(value, 1e-12)))
            text = f"{round(value, digits):.{max(digits, 0)}f}"
        else:
            text = f"{value:.2f}"
        if self._bold:
            same = [
                o for o in results
                if (o.as_row_name == m.as_row_name if self._rowwise
                    else o.task_spec.description == m.task_spec.description)
                and o.num_threads == m.num_threads
            ]  # fmt: skip
            text += "*" if m is min(same, key=lambda o: o.median) else " "
        return f"{text} (!)" if len(m.times) > 2 and m.has_warnings else text


__all__ = own_names(globals())
