"""`torch.profiler` for programs that call it so: the same `with`, schedule and tables, over
`flow.profiler`, whose own views say more.
"""

from __future__ import annotations

import contextlib
import enum
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from flowvm.errors import ArgumentError, ModeError
from flowvm.profiler.export import chrome
from flowvm.profiler.front import profiling
from flowvm.profiler.run.spans import span


class ProfilerActivity(enum.Enum):
    """What may be recorded; flowvm records the instructions of all devices."""

    CPU = 0
    XPU = 1
    CUDA = 2
    MTIA = 3
    HPU = 4
    PrivateUse1 = 5


class ProfilerAction(enum.Enum):
    """What a schedule says of a step."""

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3


def supported_activities() -> set[ProfilerActivity]:
    """Both kinds of devices there are."""
    return {ProfilerActivity.CPU, ProfilerActivity.CUDA}


def schedule(
    *,
    wait: int,
    warmup: int,
    active: int,
    repeat: int = 0,
    skip_first: int = 0,
    skip_first_wait: int = 0,
) -> Callable[[int], ProfilerAction]:
    """What to do at each step: `skip_first` steps nothing, then in turn `wait` nothing, `warmup`
    nothing that is kept, `active` recorded; `repeat` times, 0 for ever.
    """
    if min(wait, warmup, repeat, skip_first) < 0 or active <= 0:
        raise ArgumentError(
            f"schedule: wait, warmup, repeat and skip_first are 0 or more and active is above 0, "
            f"got {wait}, {warmup}, {repeat}, {skip_first} and {active}"
        )
    length = wait + warmup + active

    def action(step: int) -> ProfilerAction:
        step -= skip_first
        if skip_first_wait:
            step += wait
        if step < 0 or (repeat and step // length >= repeat):
            return ProfilerAction.NONE
        place = step % length
        if place < wait:
            return ProfilerAction.NONE
        if place < wait + warmup:
            return ProfilerAction.WARMUP
        last = place == length - 1
        return ProfilerAction.RECORD_AND_SAVE if last else ProfilerAction.RECORD

    return action


class record_function(contextlib.ContextDecorator):  # noqa: N801 - PyTorch's name
    """Names what is issued inside, as `flow.profiler.span` does; of a function, each call."""

    def __init__(self, name: str, args: str | None = None) -> None:
        self.name = name
        self._spans: list[Any] = []

    def __enter__(self) -> record_function:
        here = span(self.name)
        here.__enter__()
        self._spans.append(here)
        return self

    def __exit__(self, *error: Any) -> None:
        self._spans.pop().__exit__(*error)


def tensorboard_trace_handler(
    dir_name: str, worker_name: str | None = None, use_gzip: bool = False
) -> Callable[[Any], None]:
    """A handler that writes each trace to a file of its own in a folder, in Chrome's format."""

    def handler(profiled: profile) -> None:
        folder = Path(dir_name)
        folder.mkdir(parents=True, exist_ok=True)
        name = worker_name or f"{os.uname().nodename}_{os.getpid()}"
        ending = "pt.trace.json.gz" if use_gzip else "pt.trace.json"
        profiled.export_chrome_trace(str(folder / f"{name}.{time.time_ns()}.{ending}"))

    return handler


@dataclass(frozen=True)
class Event:
    """The calls of one operator; times are microseconds."""

    key: str
    count: int
    cpu_time_total: float
    flops: int

    @property
    def self_cpu_time_total(self) -> float:
        """The same: operators do not nest."""
        return self.cpu_time_total

    @property
    def cpu_time(self) -> float:
        """Of one call."""
        return self.cpu_time_total / max(1, self.count)


class Averages(list[Event]):
    """What `key_averages()` gives: an Event for each operator."""

    def __init__(self, profiled: profiling.Profile) -> None:
        rows = profiled.table("op")
        super().__init__(Event(r.name, r.count, r.run / 1000, r.flops) for r in rows)
        self._profile = profiled

    def table(self, sort_by: str | None = None, row_limit: int = 100, **kwargs: Any) -> str:
        """The summary of `flow.profiler`: by time, or by "count" if `sort_by` says so."""
        by = "count" if sort_by == "count" else "run" if sort_by else "path"
        return str(self._profile.summary(sort=by))

    def total_average(self) -> Event:
        """All of them together."""
        whole = sum(e.cpu_time_total for e in self)
        return Event("Total", sum(e.count for e in self), whole, sum(e.flops for e in self))


class emit_nvtx:  # noqa: N801 - PyTorch's name
    """ModeError from `with`: there are no ranges of NVTX; `flow.profiler` records CUDA devices."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> NoReturn:
        raise ModeError("emit_nvtx: there are no ranges of NVTX; use flow.profiler.profile()")

    def __exit__(self, *error: object) -> None:
        """Never reached."""


EventList = Averages
FunctionEvent = Event


class profile:  # noqa: N801 - PyTorch's name
    """`with torch.profiler.profile(...) as prof:`, with `prof.step()` behind each step.

    schedule         what to do at each step, see `schedule`; without one all is recorded
    on_trace_ready   called with this behind each recorded cycle, or at the end

    The others are taken: flowvm records shapes, memory and lines as they are.  `prof.flow` is the
    `flow.profiler.Profile` of what was recorded last.
    """

    def __init__(
        self,
        *,
        activities: Iterable[ProfilerActivity] | None = None,
        schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[[Any], None] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        **others: Any,
    ) -> None:
        self.schedule, self.on_trace_ready = schedule, on_trace_ready
        self.step_num = 0
        self.flow: profiling.Profile | None = None
        self._now: profiling.profile | None = None

    def _action(self) -> ProfilerAction:
        return ProfilerAction.RECORD if self.schedule is None else self.schedule(self.step_num)

    def _begin(self) -> None:
        if self._now is None and self._action().value >= ProfilerAction.RECORD.value:
            self._now = profiling.profile()
            self._now.__enter__()

    def _end(self, *error: Any) -> None:
        if self._now is not None:
            self._now.__exit__(*(error or (None, None, None)))
            self.flow, self._now = self._now, None
            if self.on_trace_ready is not None:
                self.on_trace_ready(self)

    def start(self) -> None:
        """Begin."""
        self._begin()

    def stop(self) -> None:
        """End; waits until all that was issued has run."""
        self._end()

    def step(self) -> None:
        """A step is over, and the next one begins."""
        over = self.schedule is not None and self._action() is ProfilerAction.RECORD_AND_SAVE
        self.step_num += 1
        if over:
            self._end()
        self._begin()

    def __enter__(self) -> profile:
        self.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._end(*error)

    def _found(self, what: str) -> profiling.Profile:
        if self.flow is None:
            raise ArgumentError(f"{what}: nothing was recorded, or it has not ended yet")
        return self.flow

    def key_averages(self, *args: Any, **kwargs: Any) -> Averages:
        """An Event for each operator, and `table()` of them.  ArgumentError before the end."""
        return Averages(self._found("key_averages"))

    def events(self) -> Averages:
        """The same."""
        return self.key_averages()

    def export_chrome_trace(self, path: str) -> None:
        """Write the instructions in the format of Perfetto and Chrome."""
        chrome.write(self._found("export_chrome_trace"), Path(path), "gating")

    def add_metadata(self, key: str, value: str) -> None:
        """Taken: traces have no place for it."""

    def add_metadata_json(self, key: str, value: str) -> None:
        """Taken: traces have no place for it."""


def kineto_available() -> bool:
    """False: flowvm has a recorder of its own."""
    return False
