"""What to do next, as the summary says it: a table of causes and rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from flowvm.profiler.analysis.hosting import Spent
from flowvm.profiler.analysis.paths import Floor, Segment
from flowvm.profiler.analysis.tables import Row
from flowvm.profiler.grammar import ms, percent
from flowvm.profiler.run.roof import Roofline
from flowvm.profiler.run.run import Run
from flowvm.profiler.views.verdict import Part

LOW = 0.25  # of the roofline: below, an operator with much of the path is worth a word
FALSE = 1.2  # of the roofline's products: above, it was measured while the machine was busy


class Summed(Protocol):
    """A profile (`flowvm.profiler.front.profiling`), as far as its summary goes."""

    run: Run

    @property
    def bound(self) -> dict[str, float]:
        """Shares of the wall time by cause."""

    @property
    def busy(self) -> dict[str, float]:
        """The share of the wall time in which each stream ran something."""

    @property
    def host(self) -> list[Spent]:
        """What the host's part of the path went to."""

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
    """What advice follows from: `parts` is what the path consists of, most first."""

    p: Summed
    by: str
    parts: list[Part]
    rows: list[Row]
    roof: Roofline | None

    @property
    def first(self) -> Part:
        """What had most of the path."""
        return self.parts[0]

    def without(self, nanoseconds: float) -> str:
        """How long the run would take without so much of the host's time, and what that gains: no
        less than the busiest stream ran, for streams go on meanwhile.
        """
        wall = self.p.run.wall
        left = max(wall - nanoseconds, self.ran)
        return f"{ms(wall)} → {ms(left)} ms"

    @property
    def ran(self) -> float:
        """How long the busiest stream ran."""
        return max(self.p.busy.values(), default=0.0) * self.p.run.wall

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
    if not line:
        return ""
    gain = f.without(f.p.bound.get("sync", 0.0) * f.p.run.wall) if f.first.cause == "sync" else ""
    read = f"read it less often, at best {gain}" if gain else "read it less often"
    return f"{line} waited for a value {count}x on the path: {read}"


def _heaviest(f: Facts) -> str:
    row = f.heavy
    if row is None:
        return ""
    ask = f"p.what_if({row.name!r})" if f.issued(row) else "p.plan()"
    line = f" at {row.hottest}" if row.hottest else ""
    return f"{row.name}{line} is {percent(row.path / f.p.run.wall)}: {ask}"


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


def _unseen(f: Facts) -> str:
    """A graph would help if flowvm's own part of it were large, which is not known."""
    more = "profile(level=2) says"
    if f.p.run.info.get("level", 1) >= 2:
        more = "it was too short to be seen; a longer run says"
    return (
        f"Python is {percent(f.first.share)} of the path: {more} whether that is your own code, a "
        f"sleep, or flowvm issuing op by op, which flow.compile and nn.Graph do away with"
    )


def _by_graph(f: Facts) -> str:
    """A graph replays without Python what flowvm's own would issue op by op."""
    part = f.first
    gain = f.without(part.share * f.p.run.wall)
    return (
        f"issuing ops one by one is {percent(part.share)} of the path: flow.compile or nn.Graph "
        f"replays them without Python, at best {gain}"
    )


def _your_own(f: Facts) -> str:
    part = f.first
    at = f"{part.where} " if part.where else ""
    return (
        f"{at}is your own Python: without it {f.without(part.there)}; a graph would not help: "
        f"compute it with tensors, once, or in another process"
    )


def _asleep(f: Facts) -> str:
    part = f.first
    at = f"{part.where} " if part.where else "your thread "
    return (
        f"{at}sleeps or waits for something outside flowvm: without it {f.without(part.there)}; "
        f"a graph would not help"
    )


def _loading(f: Facts) -> str:
    part = f.first
    return (
        f"{part.where} waits for its next batch: more num_workers, or less work a sample; with "
        f"batches that are there in time {f.without(part.share * f.p.run.wall)}"
    )


def _captured(f: Facts) -> str:
    part = f.first
    return (
        f"{part.where} captured a graph: the same shapes again are replayed; graph.explain() says "
        f"why it was captured anew; without it {f.without(part.share * f.p.run.wall)}"
    )


def _imported(f: Facts) -> str:
    part = f.first
    at = f"{part.where} imports modules" if part.where else "importing modules"
    return (
        f"{at}, {percent(part.share)} of the path, once a process: import them before what is to "
        f"be measured; without it {f.without(part.share * f.p.run.wall)}"
    )


def _kept(f: Facts) -> str:
    part = f.first
    gain = f.without(part.share * f.p.run.wall)
    return (
        f"Python was kept from running {percent(part.share)} of the path: other Python threads "
        f"ran, or no core was free; without that {gain}"
    )


def _full(f: Facts) -> str:
    return (
        "issuing waited for room: what is in flight reached run_ahead_bytes or run_ahead "
        "(flow.config); p.memory() says who has the memory"
    )


# what had most of the path, "" for any, and what is said of it: a text, or what finds one or "".
ADVICE: tuple[tuple[str, str | Callable[[Facts], str]], ...] = (
    ("", _uncompiled),
    ("python", _your_own),
    ("asleep", _asleep),
    ("loader", _loading),
    ("capture", _captured),
    ("import", _imported),
    ("flowvm", _by_graph),
    ("host", _unseen),
    ("sched", "the VM waited for a core {share} of the path: larger ops, or nn.Graph"),
    ("gil", _kept),
    ("credit", _full),
    ("jit", "kernels were compiled: run it once before, or `python -m flowvm warmup`"),
    ("", _often_read),
    ("run", _heaviest),
    ("run", _far_from_roof),
    ("", _past_the_roof),
    ("", _next_view),
)  # fmt: skip


def advice(f: Facts) -> Iterator[str]:
    """What to do next, of what had most of the path."""
    for cause, rule in ADVICE:
        if cause in ("", f.first.cause):
            text = rule.format(share=percent(f.first.share)) if isinstance(rule, str) else rule(f)
            if text:
                yield text
