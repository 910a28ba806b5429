"""A `Work`: the tasks of a Plan, their times in one replay, their reads and writes.

It is plain numbers and texts, so that it goes through JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import flowvm as flow
from flowvm.errors import ArgumentError
from flowvm.graph.logical.nodes import BufferKind
from flowvm.graph.plan.plan import Plan
from flowvm.vm.machine.words import KIND


@dataclass(frozen=True)
class Task:
    """`reads` and `writes` are numbers of buffers; `scratch` bytes that it alone uses."""

    op: str
    phase: str
    seconds: float
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    scratch: int = 0


@dataclass(frozen=True)
class Place:
    """A buffer in tasks [first, last]; `dims` are the dimensions of the tensor in it.

    `role` is parameter, state (of an optimizer), constant (another variable), input, gradient (from
    backward to the optimizer), activation (from forward to backward), output (of the launch) or
    other.
    """

    name: str
    role: str
    nbytes: int
    dims: int
    first: int
    last: int


@dataclass(frozen=True)
class Work:
    """A training step on one rank.  `rest` is seconds of the launch in which no task ran."""

    name: str
    tasks: tuple[Task, ...]
    places: tuple[Place, ...]
    rest: float

    @property
    def seconds(self) -> float:
        """The seconds of the whole step."""
        return sum(task.seconds for task in self.tasks) + self.rest

    def nbytes(self, role: str) -> int:
        """Bytes of all places of a role."""
        return sum(place.nbytes for place in self.places if place.role == role)

    def to_json(self) -> dict[str, Any]:
        """Values that JSON has."""
        return asdict(self)

    @staticmethod
    def from_json(saved: dict[str, Any]) -> Work:
        """Return the Work from which `to_json` made `saved`."""
        tasks = tuple(
            Task(**{**t, "reads": tuple(t["reads"]), "writes": tuple(t["writes"])})
            for t in saved["tasks"]
        )
        places = tuple(Place(**p) for p in saved["places"])
        return Work(saved["name"], tasks, places, saved["rest"])


def record(step: Callable[..., Any], *inputs: Any, launches: int = 20, least: bool = False) -> Work:
    """The Work of an `nn.Graph` that trains: `step(*inputs)` is called some times, and of the
    replays that were recorded the one of the median time is taken, or of the least.

    ArgumentError: it is no graph on one stream of the CPU, or does not train.
    """
    if not isinstance(step, flow.nn.Graph):
        raise ArgumentError(f"a training step is an nn.Graph, got {type(step).__name__}")
    if launches < 1:
        raise ArgumentError(f"launches are 1 or more, got {launches}")
    for _ in range(3):
        step(*inputs)
    flow.vm.sync()
    plan = step.plan
    if len(step.plans) > 1:
        raise ArgumentError(f"{plan.name} was compiled in {len(step.plans)} parts; one is played")
    if plan.actors or plan.stream:
        raise ArgumentError(f"{plan.name} is on several streams or a device; one rank's is on one")
    run, tasks, lasted = replays(step, inputs, launches)
    middle = int(np.argsort(lasted, kind="stable")[0 if least else len(tasks) // 2])
    own = run.tasks.launch == tasks[middle]
    spent = run.tasks.times[own, 1] - run.tasks.times[own, 0]
    seconds = np.bincount(run.tasks.number[own], spent, len(plan.tasks)) * 1e-9
    return of_plan(plan, seconds.tolist(), float(lasted[middle]))


def replays(step: Any, inputs: Sequence[Any], launches: int) -> tuple[Any, Any, Any]:
    """Replay a graph `launches` times, one at a time.

    The graph was called before.  Return the profile's run, the launches in it, and the seconds of
    each.
    """
    with flow.profiler.profile() as p:
        for _ in range(launches):
            step(*inputs)
            flow.vm.sync()
    run = p.run
    mine = (run.kind == KIND.LAUNCH) & (run.op == run.names.index(step.plan.name))
    places = np.flatnonzero(mine & (run.status == 0))
    return run, places, (run.time("ended") - run.time("started"))[places] * 1e-9


def of_plan(plan: Plan, seconds: list[float], whole: float) -> Work:
    """The Work of a Plan whose tasks take so long, and a launch as a whole."""
    spots: dict[Any, int] = {}  # buffers that share a block are one place
    numbers = {
        buffer: spots.setdefault(r.block or buffer, len(spots))
        for buffer, r in plan.registers.items()
    }
    tasks = tuple(
        Task(
            task.node.operator.name,
            task.node.phase,
            spent,
            tuple(dict.fromkeys(numbers[o.buffer] for o in task.node.inputs)),
            tuple(dict.fromkeys(numbers[o.buffer] for o in task.node.written())),
            0 if task.scratch is None else task.scratch.size,
        )
        for task, spent in zip(plan.tasks, seconds, strict=True)
    )
    places: list[Place] = []
    for buffer, k in numbers.items():
        if k < len(places):
            continue
        register = plan.registers[buffer]
        nbytes, first, last = buffer.nbytes, 0, len(tasks) - 1
        if register.block is not None:
            nbytes, first, last = register.block.size, register.block.first, register.block.last
        shapes = [
            len(o.meta.shape)
            for task in plan.tasks
            for _, o in task.node.accesses()
            if o.buffer is buffer
        ]
        role = _role(k, buffer.kind, register.block is None, tasks)
        places.append(Place(buffer.name, role, nbytes, max(shapes, default=0), first, last))
    if not any(place.role == "gradient" for place in places):
        raise ArgumentError(f"{plan.name} does not train: no optimizer reads what backward made")
    return Work(plan.name, tasks, tuple(places), max(0.0, whole - sum(seconds)))


def _role(k: int, kind: BufferKind, stays: bool, tasks: Sequence[Task]) -> str:
    """Return the purpose of a place; `stays` if it exists beside the launch."""
    reading = {task.phase for task in tasks if k in task.reads}
    writing = {task.phase for task in tasks if k in task.writes}
    if kind is BufferKind.INPUT:
        return "input"
    if "backward" in writing and "optimizer" in reading:
        return "gradient"
    if kind is BufferKind.VARIABLE:
        if "optimizer" not in writing:
            return "constant"
        return "parameter" if "forward" in reading else "state"
    if stays:
        return "output"
    return "activation" if "forward" in writing and "backward" in reading else "other"
