"""What to do next, as the summary says it: a table of causes and rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from flowvm.profiler.analysis.paths import Floor, Segment
from flowvm.profiler.analysis.tables import Row
from flowvm.profiler.grammar import percent
from flowvm.profiler.run.roof import Roofline
from flowvm.profiler.run.run import Run

LOW = 0.25  # of the roofline: below, an operator with much of the path is worth a word
FALSE = 1.2  # of the roofline's products: above, it was measured while the machine was busy


class Summed(Protocol):
    """A profile (`flowvm.profiler.front.profiling`), as far as its summary goes."""

    run: Run

    @property
    def bound(self) -> dict[str, float]:
        """Shares of the wall time by cause."""

    @property
    def recording(self) -> float | None:
        """The share that recording took."""

    @property
    def observed(self) -> list[Segment]:
        """The path that sums to the wall time."""

    @property
    def floor(self) -> Floor:
        """The longest path through the data dependences."""

    def table(self, by: str = ...) -> list[Row]:
        """Its rows by operator, line, module or stream."""

    def __len__(self) -> int: ...


def roof_share(roof: Roofline | None, row: Row) -> float:
    """The row's share of the roofline; 0 where that is not known."""
    known = roof is not None and not row.devices  # it is of the host
    return roof.share(row.nbytes, row.flops, row.run) if known and roof is not None else 0.0


@dataclass(frozen=True)
class Facts:
    """What advice follows from: `share` is that of the largest cause."""

    p: Summed
    by: str
    share: float
    rows: list[Row]
    roof: Roofline | None

    @property
    def heavy(self) -> Row | None:
        """The row with most of the path, if that is an operator."""
        row = max(self.rows, key=lambda r: r.path, default=None)
        known = row is not None and row.path and row.name in self.p.run.names
        return row if known else None

    def issued(self, row: Row) -> bool:
        """Whether instructions of the row's name ran, and not in a graph's plan alone."""
        return self.p.run.names.index(row.name) in self.p.run.op


def _uncompiled(f: Facts) -> str:
    return UNCOMPILED if f.p.run.info.get("uncompiled") else ""


def _often_read(f: Facts) -> str:
    times: dict[str, int] = {}
    for s in f.p.observed:
        if s.cause in ("sync", "credit") and s.instruction >= 0:
            line = f.p.run.lines[f.p.run.line[s.instruction]] if s.cause == "sync" else ""
            times[line] = times.get(line, 0) + 1
    line, count = max(times.items(), key=lambda item: (item[1], item[0]), default=("", 0))
    return f"{line} waited for a value {count}x on the path: read it less often" if line else ""


def _heaviest(f: Facts) -> str:
    row = f.heavy
    if row is None:
        return ""
    ask = f"p.what_if({row.name!r})" if f.issued(row) else "p.plan()"
    return f"{row.name} is {percent(row.path / f.p.run.wall)}: {ask}"


def _far_from_roof(f: Facts) -> str:
    row = f.heavy
    reached = roof_share(f.roof, row) if row is not None else 0.0
    if row is None or not 0 < reached < LOW:
        return ""
    why = f", p.why({row.name!r})" if f.issued(row) else ""
    return (
        f"{row.name} reaches {percent(reached)} of the roofline: larger or contiguous operands{why}"
    )


def _past_the_roof(f: Facts) -> str:
    most = np.inf if f.roof is None else FALSE * f.roof.gigaflops
    past = any(not r.devices and r.flops / max(1, r.run) > most for r in f.rows)
    return "more than the roofline was reached: flow.profiler.roofline(again=True)" if past else ""


def _next_view(f: Facts) -> str:
    if not f.rows:
        return ""
    return 'p.summary("line")' if f.by == "op" else "p.timeline()"


UNCOMPILED = (
    "the VM was being compiled, once for this machine: run, dep, queue and sched are of Python, "
    "so record again"
)

# the largest cause, "" for any, and what is said of it: a text, or what finds one or "".  In order.
ADVICE: tuple[tuple[str, str | Callable[[Facts], str]], ...] = (
    ("", _uncompiled),
    ("host", "Python is {share} of the path: flow.compile or nn.Graph replays without it"),
    ("sched", "the VM waited for a core {share} of the path: larger ops, or nn.Graph"),
    ("gil", "Python was kept from running {share} of the path: other Python threads ran, or no "
            "core was free"),
    ("jit", "kernels were compiled: run it once before, or `python -m flowvm warmup`"),
    ("", _often_read),
    ("run", _heaviest),
    ("run", _far_from_roof),
    ("", _past_the_roof),
    ("", _next_view),
)  # fmt: skip


def advice(f: Facts, largest: str) -> Iterator[str]:
    """What to do next where `largest` is the largest cause."""
    for cause, rule in ADVICE:
        if cause in ("", largest):
            text = rule.format(share=percent(f.share)) if isinstance(rule, str) else rule(f)
            if text:
                yield text
