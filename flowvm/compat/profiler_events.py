"""Events of `torch.profiler`: calls of operators, and sums over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from flowvm.errors import ArgumentError

SORTED: dict[
    str, Callable[[FunctionEventAvg], float]
] = {  # PyTorch's words for what a table is sorted by
    "count": lambda event: event.count,
    "cpu_time": lambda event: event.cpu_time,
    "cpu_time_total": lambda event: event.cpu_time_total,
    "cpu_memory_usage": lambda event: event.cpu_memory_usage,
    "flops": lambda event: event.flops,
}
DEVICES = ("cuda", "xpu", "device")  # sorted by, they are the CPU


@dataclass(frozen=True)
class FunctionEventAvg:
    """All calls of an operator.  Times are microseconds, as in PyTorch."""

    key: str
    count: int
    cpu_time_total: float
    cpu_memory_usage: int
    flops: int

    @property
    def cpu_time(self) -> float:
        """The mean time of a call."""
        return self.cpu_time_total / max(1, self.count)

    @property
    def name(self) -> str:
        """Return `key`."""
        return self.key

    @property
    def self_cpu_time_total(self) -> float:
        """Return `cpu_time_total`: instructions have no children."""
        return self.cpu_time_total


@dataclass(frozen=True)
class Interval:
    """Microseconds from the start of the recording."""

    start: float
    end: float

    def elapsed_us(self) -> float:
        """Return the length in microseconds."""
        return self.end - self.start


@dataclass(frozen=True)
class FunctionEvent:
    """One call of an operator.  `stack` are lines of the user's, the innermost first: that which
    issued it, and with `with_stack` all around; `input_shapes` are there with `record_shapes`.
    """

    id: int
    name: str
    time_range: Interval
    input_shapes: list[list[int]]
    stack: list[str]
    cpu_memory_usage: int
    flops: int
    thread: str  # the stream
    count: int = 1

    @property
    def key(self) -> str:
        """Return `name`."""
        return self.name

    @property
    def cpu_time(self) -> float:
        """Return the microseconds of the call."""
        return self.time_range.elapsed_us()

    @property
    def cpu_time_total(self) -> float:
        """Return `cpu_time`: an event is one call."""
        return self.cpu_time

    @property
    def self_cpu_time_total(self) -> float:
        """Return `cpu_time`: instructions have no children."""
        return self.cpu_time


Event = TypeVar("Event", FunctionEvent, FunctionEventAvg)


class EventList(list[Event], Generic[Event]):
    """Operators or calls of them, and a table of them."""

    def table(
        self, sort_by: str | None = None, row_limit: int = 100, max_src_column_width: int = 75,
        max_name_column_width: int = 55, header: str | None = None,
        top_level_events_only: object = False, time_unit: str | None = None,
    ) -> str:  # fmt: skip
        """The operators as text, the first by `sort_by`, such as "cpu_time_total", on top; all of
        them with a negative `row_limit`.  ArgumentError for another word than PyTorch's.
        """
        word = (sort_by or "cpu_time_total").removeprefix("self_")
        for device in DEVICES:
            word = word.replace(device, "cpu")
        if word not in SORTED:
            raise ArgumentError(f"table: sort_by={sort_by!r}: it is one of {', '.join(SORTED)}")
        rows: list[Any] = sorted(self, key=SORTED[word], reverse=True)
        rows = rows[:row_limit] if row_limit >= 0 else rows
        total = sum(event.cpu_time_total for event in self)
        wide = max([4, *(len(e.key[:max_name_column_width]) for e in rows)])
        lines: list[str] = [header] if header else []
        lines.append(
            f"{'Name':{wide}}  {'CPU %':>7}  {'CPU total':>12}  {'CPU mean':>12}  # of Calls"
        )
        for e in rows:
            share = f"{100 * e.cpu_time_total / (total or 1.0):.2f}%"
            times = f"{e.cpu_time_total:>10.3f}us  {e.cpu_time:>10.3f}us"
            name = e.key[:max_name_column_width]
            lines.append(f"{name:{wide}}  {share:>7}  {times}  {e.count:>10}")
        return "\n".join([*lines, f"Self CPU time total: {total:.3f}us", ""])

    def key_averages(self, *args: object, **kwargs: object) -> EventList[FunctionEventAvg]:
        """The operators, each with all its calls."""
        averages: dict[str, list[Event]] = {}
        for event in self:
            averages.setdefault(event.key, []).append(event)
        return EventList(
            FunctionEventAvg(
                key, sum(e.count for e in own), sum(e.cpu_time_total for e in own),
                sum(e.cpu_memory_usage for e in own), sum(e.flops for e in own),
            )
            for key, own in averages.items()
        )  # fmt: skip

    def total_average(self) -> FunctionEventAvg:
        """All of them as one."""
        return FunctionEventAvg(
            "Total", sum(e.count for e in self), sum(e.cpu_time_total for e in self),
            sum(e.cpu_memory_usage for e in self), sum(e.flops for e in self),
        )  # fmt: skip
