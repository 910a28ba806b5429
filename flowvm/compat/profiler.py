"""`torch.profiler` and `torch.autograd.profiler`, over `flow.profiler`.

A program's `profile`, `schedule` and `record_function` work as they are called; what is recorded is
flowvm's: instructions, when they ran, for whom they waited.  `profile.run` is the whole Profile of
the last recording, with all its screens.  `with_stack` records every call's stack, `record_shapes`
what its operands were like; modules and operations are always recorded.  Names that are not
PyTorch's are those of `flow.profiler`.
"""

from __future__ import annotations

import enum
import functools
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

import flowvm.profiler as own
from flowvm.compat.profiler_events import EventList, FunctionEvent, FunctionEventAvg, Interval
from flowvm.errors import ArgumentError, ArgumentTypeError, ModeError
from flowvm.files.writer import put
from flowvm.profiler.run.shapes import shapes_of
from flowvm.vm.machine.words import KIND


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


class profile:  # noqa: N801 - PyTorch's name
    """Records while its block runs, or as a schedule says at each `step()`.

    activities       taken: all there is is recorded
    schedule         step -> ProfilerAction, such as `schedule(wait=1, warmup=1, active=2)`
    on_trace_ready   called with this object whenever a recording is complete
    """

    def __init__(
        self, activities: Iterable[ProfilerActivity] | bool | None = None, *,
        schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[..., object] | None = None, record_shapes: bool = False,
        profile_memory: bool = False, with_stack: bool = False, with_flops: bool = False,
        with_modules: bool = False, enabled: bool = True, **options: object,
    ) -> None:  # fmt: skip
        self.enabled = activities if isinstance(activities, bool) else enabled
        self._schedule = schedule
        self._shapes, self._level = record_shapes, 3 if with_stack else 2
        self._known_shapes: dict[int, list[list[int]]] = {}
        self.on_trace_ready = on_trace_ready
        self.step_num = 0
        self.run: own.Profile | None = None
        self._open: Any = None
        self._step: Any = None

    def __enter__(self) -> profile:
        if self.enabled:
            self.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.enabled:
            self.stop()

    def _action(self) -> ProfilerAction:
        return self._schedule(self.step_num) if self._schedule else ProfilerAction.RECORD

    def _follow(self) -> None:
        """Begin a recording if the schedule wants the coming step recorded."""
        is_recording = self._action() in (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)
        if is_recording and self._open is None:
            self._open = own.profile(self._level)
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
            self._known_shapes = shapes_of(recording.run) if self._shapes else {}
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

    def key_averages(self, *args: object, **kwargs: object) -> EventList[FunctionEventAvg]:
        """The operators of the last recording, each with all its calls."""
        return EventList(
            FunctionEventAvg(row.name, row.count, row.run / 1000, row.nbytes, row.flops)
            for row in self._recorded().table("op")
            if row.name != "release"
        )

    def events(self) -> EventList[FunctionEvent]:
        """The calls of the last recording, in the order that they were issued."""
        p = self._recorded()
        run = p.run
        stacks = {stack[0]: [run.lines[line] for line in stack[1:]] for stack in run.stacks}
        begun, over = ((run.time(name) - run.begun) / 1000 for name in ("started", "ended"))
        return EventList(
            FunctionEvent(
                seq, run.names[run.op[i]], Interval(float(begun[i]), float(over[i])),
                self._known_shapes.get(seq, []),
                stacks.get(i, [run.lines[run.line[i]]] if run.line[i] >= 0 else []),
                int(run.nbytes[i]), int(run.flops[i]), run.streams[run.stream[i]],
            )
            for i, seq in enumerate(run.seq.tolist())
            if run.kind[i] != KIND.RELEASE and over[i] >= begun[i] >= 0
        )  # fmt: skip

    def export_stacks(self, path: str, metric: str = "self_cpu_time_total") -> None:
        """Write what was spent below each stack, for flame graphs: a line of its lines, the
        outermost first, and microseconds.  ModeError without `with_stack`, ArgumentError: another
        metric.
        """
        if metric not in ("self_cpu_time_total", "self_cuda_time_total"):
            raise ArgumentError(f"export_stacks: metric={metric!r} must be 'self_cpu_time_total'")
        if self._level < 3:
            raise ModeError("export_stacks: say profile(with_stack=True)")
        spent: dict[str, float] = {}
        for event in self.events():
            lines = [line.replace(";", ",").replace(" ", "_") for line in event.stack[::-1]]
            key = ";".join([*lines, event.name])
            spent[key] = spent.get(key, 0.0) + event.self_cpu_time_total
        rows = [f"{stack} {round(time)}" for stack, time in spent.items() if round(time)]
        put(Path(path), "\n".join([*rows, ""]), "export_stacks")

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
        inside = own.span(self.name)
        inside.__enter__()
        self._open.append(inside)
        return self

    def __exit__(self, *error: object) -> None:
        self._open.pop().__exit__(*error)

    def __call__(self, function: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(function)
        def named(*args: object, **kwargs: object) -> Any:
            with record_function(self.name):
                return function(*args, **kwargs)

        return named


def tensorboard_trace_handler(
    dir_name: str, worker_name: str | None = None, use_gzip: bool = False
) -> Callable[[profile], None]:
    """An `on_trace_ready` that writes each recording into a folder, for Perfetto."""
    count = itertools.count()

    def write(profiler: profile) -> None:
        folder = Path(dir_name)
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{worker_name or 'flowvm'}.{next(count)}.pt.trace.json"
        profiler.export_chrome_trace(str(folder / (name + ".gz" * use_gzip)))

    return write


class emit_nvtx:  # noqa: N801 - PyTorch's name
    """ModeError from `with`: there are no ranges of NVTX; `flow.profiler` records CUDA devices."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Accept any arguments."""

    def __enter__(self) -> NoReturn:
        raise ModeError("emit_nvtx: there are no ranges of NVTX; use flow.profiler.profile()")

    def __exit__(self, *error: object) -> None:
        """Never reached."""


def kineto_available() -> bool:
    """Return False: PyTorch's own recorder is not here."""
    return False


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(own, name)
