"""`torch.profiler` and `torch.autograd.profiler`, over `flow.profiler`.

A program's `profile`, `schedule` and `record_function` work as they are called.  The records are
flowvm's: instructions, their times, and their waits.  `profile.run` is the whole Profile of the
last recording, with all its screens.  Arguments about shapes, stacks and modules are accepted and
ignored: they are always recorded.  Names beyond PyTorch's are names of `flow.profiler`.
"""

from __future__ import annotations

import enum
import functools
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import flowvm.profiler as own
from flowvm.errors import ArgumentError, ArgumentTypeError, ModeError

SORTED: dict[
    str, Callable[[FunctionEventAvg], float]
] = {  # PyTorch's names of the columns by which a table is sorted
    "count": lambda event: event.count,
    "cpu_time": lambda event: event.cpu_time,
    "cpu_memory_usage": lambda event: event.cpu_memory_usage,
}


class ProfilerActivity(enum.Enum):
    """The kinds of recorded activity.  All kinds are always recorded."""

    CPU = 0
    CUDA = 1
    XPU = 2
    MTIA = 3


class ProfilerAction(enum.Enum):
    """The action at a step of a schedule."""

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3


def supported_activities() -> set[ProfilerActivity]:
    """Return the activities that can be recorded."""
    return {ProfilerActivity.CPU, ProfilerActivity.CUDA}


def schedule(
    *, wait: int, warmup: int, active: int, repeat: int = 0, skip_first: int = 0,
    skip_first_wait: int = 0,
) -> Callable[[int], ProfilerAction]:  # fmt: skip
    """Return a function from a step to its action.  The first `skip_first` steps do nothing.  Then
    come rounds: `wait` steps of nothing, `warmup` of warming up, `active` of recording.  There are
    `repeat` rounds, or rounds without end if it is 0.  With `skip_first_wait` the first round does
    not wait.
    """
    if min(wait, warmup, repeat, skip_first) < 0 or active < 1:
        raise ArgumentError(
            f"schedule: wait, warmup, repeat and skip_first are not negative and active is "
            f"positive, got {wait}, {warmup}, {repeat}, {skip_first}, {active}"
        )
    turn = wait + warmup + active

    def action(step: int) -> ProfilerAction:
        step -= skip_first
        if step >= 0 and skip_first_wait:
            step += wait
        if step < 0 or (repeat and step // turn >= repeat):
            return ProfilerAction.NONE
        at = step % turn
        if at < wait:
            return ProfilerAction.NONE
        if at < wait + warmup:
            return ProfilerAction.WARMUP
        last = at == turn - 1
        return ProfilerAction.RECORD_AND_SAVE if last else ProfilerAction.RECORD

    return action


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
    def self_cpu_time_total(self) -> float:
        """The value of cpu_time_total: instructions have no children."""
        return self.cpu_time_total


class EventList(list[FunctionEventAvg]):
    """Operators, and a table of them."""

    def table(
        self, sort_by: str | None = None, row_limit: int = 100, max_src_column_width: int = 75,
        max_name_column_width: int = 55, header: str | None = None,
        top_level_events_only: Any = False, time_unit: str | None = None,
    ) -> str:  # fmt: skip
        """The operators as text, the first by `sort_by`, such as "cpu_time_total", on top."""
        word = (sort_by or "").removeprefix("self_").replace("cuda", "cpu").replace("device", "cpu")
        by = SORTED.get(word, lambda event: event.cpu_time_total)
        rows = sorted(self, key=by, reverse=True)[:row_limit]
        total = sum(event.cpu_time_total for event in self) or 1.0
        wide = max([4, *(len(e.key[:max_name_column_width]) for e in rows)])
        lines = [header] if header else []
        lines.append(
            f"{'Name':{wide}}  {'CPU %':>7}  {'CPU total':>12}  {'CPU mean':>12}  # of Calls"
        )
        for e in rows:
            share = f"{100 * e.cpu_time_total / total:.2f}%"
            times = f"{e.cpu_time_total:>10.3f}us  {e.cpu_time:>10.3f}us"
            name = e.key[:max_name_column_width]
            lines.append(f"{name:{wide}}  {share:>7}  {times}  {e.count:>10}")
        return "\n".join([*lines, f"Self CPU time total: {total:.3f}us", ""])

    def total_average(self) -> FunctionEventAvg:
        """Return the sum of all operators."""
        return FunctionEventAvg(
            "Total", sum(e.count for e in self), sum(e.cpu_time_total for e in self),
            sum(e.cpu_memory_usage for e in self), sum(e.flops for e in self),
        )  # fmt: skip


class profile:  # noqa: N801 - PyTorch's name
    """Records while its block runs, or as a schedule says at each `step()`.

    activities       taken: all there is is recorded
    schedule         step -> ProfilerAction, such as `schedule(wait=1, warmup=1, active=2)`
    on_trace_ready   called with this object whenever a recording is complete
    """

    def __init__(
        self, activities: Iterable[ProfilerActivity] | bool | None = None, *,
        schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[..., Any] | None = None, record_shapes: bool = False,
        profile_memory: bool = False, with_stack: bool = False, with_flops: bool = False,
        with_modules: bool = False, enabled: bool = True, **options: Any,
    ) -> None:  # fmt: skip
        self.enabled = activities if isinstance(activities, bool) else enabled
        self._schedule = schedule
        self.on_trace_ready = on_trace_ready
        self.step_num = 0
        self.run: own.Profile | None = None
        self._open: Any = None
        self._step: Any = None

    def __enter__(self) -> profile:
        if self.enabled:
            self.start()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.enabled:
            self.stop()

    def _action(self) -> ProfilerAction:
        return self._schedule(self.step_num) if self._schedule else ProfilerAction.RECORD

    def _follow(self) -> None:
        """Begin a recording if the schedule wants the coming step recorded."""
        wanted = self._action() in (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)
        if wanted and self._open is None:
            self._open = own.profile()
            self._open.__enter__()
        if self._schedule is not None:
            self._step = own.span(f"ProfilerStep#{self.step_num}")
            self._step.__enter__()

    def _end(self) -> None:
        """End the open recording."""
        recording, self._open = self._open, None
        if recording is not None:
            recording.__exit__(None, None, None)
            self.run = recording
            if self.on_trace_ready is not None:
                self.on_trace_ready(self)

    def _end_step(self) -> None:
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)

    def start(self) -> None:
        """Begin the schedule."""
        self._follow()

    def step(self) -> None:
        """Go to the next step of the schedule."""
        before = self._action()
        self._end_step()
        self.step_num += 1
        going_on = self._action() is not ProfilerAction.NONE
        if before is ProfilerAction.RECORD_AND_SAVE or not (going_on or self._open is None):
            self._end()
        self._follow()

    def stop(self) -> None:
        """End with the steps recorded so far."""
        self._end_step()
        self._end()

    def _recorded(self) -> own.Profile:
        if self.run is None:
            raise ArgumentError("torch.profiler.profile: nothing has been recorded yet")
        return self.run

    def key_averages(self, *args: Any, **kwargs: Any) -> EventList:
        """The operators of the last recording, each with all its calls."""
        return EventList(
            FunctionEventAvg(row.name, row.count, row.run / 1000, row.nbytes, row.flops)
            for row in self._recorded().table("op")
            if row.name != "release"
        )

    def events(self) -> EventList:
        """Return `key_averages()`: instructions are many, so they are added up by operator."""
        return self.key_averages()

    def table(self, *args: Any, **kwargs: Any) -> str:
        """The table of `key_averages()`."""
        return self.key_averages().table(*args, **kwargs)

    def total_average(self) -> FunctionEventAvg:
        """Return the sum of all operators."""
        return self.key_averages().total_average()

    def export_chrome_trace(self, path: str) -> None:
        """Write the last recording for Perfetto: the path ends in .json or .json.gz."""
        self._recorded().export(path)


class record_function:  # noqa: N801 - PyTorch's name
    """Names the instructions issued inside a with statement, or in a function that it decorates."""

    def __init__(self, name: str, args: str | None = None) -> None:
        if not isinstance(name, str):
            raise ArgumentTypeError(f"record_function: a name is a string, got {name!r}")
        self.name = name
        self._open: list[Any] = []

    def __enter__(self) -> record_function:
        inside: Any = own.span(self.name)
        inside.__enter__()
        self._open.append(inside)
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.pop().__exit__(*error)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def named(*args: Any, **kwargs: Any) -> Any:
            with record_function(self.name):
                return function(*args, **kwargs)

        return named


def tensorboard_trace_handler(
    dir_name: str, worker_name: str | None = None, use_gzip: bool = False
) -> Callable[[profile], None]:
    """An `on_trace_ready` that writes each recording into a folder, for Perfetto."""
    count = itertools.count()

    def write(done: profile) -> None:
        folder = Path(dir_name)
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{worker_name or 'flowvm'}.{next(count)}.pt.trace.json"
        done.export_chrome_trace(str(folder / (name + ".gz" * use_gzip)))

    return write


class emit_nvtx:  # noqa: N801 - PyTorch's name
    """ModeError from `with`: there are no ranges of NVTX; `flow.profiler` records CUDA devices."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Accept any arguments."""

    def __enter__(self) -> NoReturn:
        raise ModeError("emit_nvtx: there are no ranges of NVTX; use flow.profiler.profile()")

    def __exit__(self, *error: object) -> None:
        """Never reached."""


FunctionEvent = FunctionEventAvg


def kineto_available() -> bool:
    """Return False: PyTorch's own recorder is not here."""
    return False


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(own, name)
