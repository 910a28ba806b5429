"""Facts for advice: a run with its summary's rows, and the gain of a change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from flowvm.meta.arrays import Array
from flowvm.profiler.analysis.across import Tied
from flowvm.profiler.analysis.bounds import on_free_cores
from flowvm.profiler.analysis.host_time import Spent
from flowvm.profiler.analysis.moments import Moments
from flowvm.profiler.analysis.paths import Floor, Segment, WhatIf
from flowvm.profiler.analysis.tables import Memory, Row
from flowvm.profiler.analysis.waits import Lane, Order, Waits
from flowvm.profiler.grammar import ms
from flowvm.profiler.run.roof import Roofline
from flowvm.profiler.run.run import Run
from flowvm.profiler.views.memory.holders import Holdings
from flowvm.profiler.views.summary.verdict import Part


class Summed(Protocol):
    """A profile (`flowvm.profiler.front.profiles`), as far as its summary goes."""

    run: Run

    @property
    def bound(self) -> dict[str, float]:
        """Shares of the wall time by cause."""

    @property
    def busy(self) -> dict[str, float]:
        """The share of the wall time in which each stream ran something."""

    @property
    def host(self) -> list[Spent]:
        """The host's work on the path, by line."""

    @property
    def recording(self) -> float | None:
        """The share that recording took."""

    @property
    def observed(self) -> list[Segment]:
        """The path that sums to the wall time."""

    @property
    def floor(self) -> Floor:
        """The longest path through the data dependences."""

    @property
    def lanes(self) -> list[Lane]:
        """Return the state of each stream at every moment."""

    def table(self, by: str = ...) -> list[Row]:
        """Return the rows of a table by operator, line, module or stream."""

    def __len__(self) -> int: ...


class PartLike(Protocol):
    """A `Part` of a profile, as far as views and files go."""

    @property
    def name(self) -> str:
        """The rank's name; empty where there is one process."""

    @property
    def profile(self) -> ProfileLike:
        """The profile of this process alone."""

    @property
    def first(self) -> int:
        """The number of its first instruction in the whole run."""


class ProfileLike(Summed, Protocol):
    """A profile, as far as views and files go."""

    @property
    def parts(self) -> Sequence[PartLike]:
        """The processes of the run."""

    @property
    def tied(self) -> Tied | None:
        """The collectives that ranks made together."""

    @property
    def order(self) -> Order:
        """The instructions that stood in front of each instruction."""

    @property
    def waits(self) -> Waits:
        """The waits of each instruction between its issue and its start."""

    @property
    def moments(self) -> Moments:
        """The events of all instructions, in the order of time."""

    def memory_of(self, space: str = ...) -> Memory:
        """Return the bytes over time of one memory."""

    def holdings_of(self, space: str = ...) -> Holdings:
        """Return the holders of one memory, at any moment."""

    def what_if(self, op: str | Callable[[str], bool], factor: float = ...) -> WhatIf:
        """Return the floor if an operator took `factor` times as long."""

    def to_columns(self) -> dict[str, Array]:
        """Return every instruction as columns."""

    def to_edges(self) -> dict[str, Array]:
        """Return every edge as columns."""

    def save(self, path: str | Path) -> None:
        """Write the run to one file."""


def roof_share(roof: Roofline | None, row: Row) -> float:
    """The row's share of the roofline; 0 where that is not known."""
    known = roof is not None and not row.devices  # it is of the host
    return roof.share(row.nbytes, row.flops, row.run) if known and roof is not None else 0.0


class Gain(NamedTuple):
    """Nanoseconds that doing something brings at best, and how that is said."""

    time: float
    text: str


class Said(NamedTuple):
    """A piece of advice, and its gain: nothing where that cannot be known."""

    text: str
    gain: float | None = None


@dataclass(frozen=True)
class Facts:
    """Facts for advice; `parts` are the parts of the path, most first."""

    p: Summed
    by: str
    parts: list[Part]
    rows: list[Row]
    roof: Roofline | None

    def without(self, nanoseconds: float) -> Gain:
        """Return the time of the run without `nanoseconds` of the host's time, and the gain: no
        less than the busiest stream ran, for streams go on meanwhile, nor than their processor time
        takes on the cores that other processes left.
        """
        return self.to(max(self.p.run.wall - nanoseconds, self.ran, on_free_cores(self.p.run)))

    def at_line(self, part: Part) -> Gain:
        """Without what the host spent at the line that had most of a part, on a core or without;
        what it lacked a core there is of the first part with that line.
        """
        lines = self.p.run.lines
        without = sum(
            one.time for one in self.p.host
            if one.state == "core" and one.line >= 0 and lines[one.line] == part.line
        )  # fmt: skip
        first = next(other for other in self.parts if other.line == part.line)
        return self.without(part.time + (without if first is part else 0))

    def to(self, time_left: float) -> Gain:
        """If the run took so many nanoseconds."""
        wall = self.p.run.wall
        return Gain(wall - time_left, f"{ms(wall)} → {ms(time_left)} ms")

    @property
    def ran(self) -> float:
        """Return the time that the busiest stream ran."""
        return max(self.p.busy.values(), default=0.0) * self.p.run.wall

    @property
    def heavy(self) -> Row | None:
        """The row with most of the path, if that is an operator."""
        row = max(self.rows, key=lambda r: r.path, default=None)
        known = row is not None and row.path and row.name in self.p.run.names
        return row if known else None

    def issued(self, row: Row) -> bool:
        """Return True if instructions of the row's name ran, and not in a graph's plan alone."""
        return self.p.run.names.index(row.name) in self.p.run.op
