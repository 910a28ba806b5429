"""The division of tasks into stages, and of layers by tensor parallelism, from reads and writes.

Stages are runs of forward tasks that take about as long, each task's backward with it.  A backward
task that reads a parameter belongs to the parameter's stage.  Another one belongs to the stage of
the forward tasks that read the same activations.  It is in no later stage than the gradient that it
reads.

Layers are cut in turn, as by hand.  A product whose input is whole is cut by outputs: each rank has
a part of them.  A product whose input is in parts is cut by inputs: an all-reduce adds up its
summands.  In backward it is the other way round, and summands that are added to each other are
added up once.  Tasks in between work on their part: functions by element, attention by heads.
Embeddings, norms and biases are whole on each rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowvm.errors import ArgumentError
from tools.scale.recording import Task, Work

PRODUCTS = ("matmul", "linear", "conv")  # in the names of what can be cut


@dataclass(frozen=True)
class Part:
    """A task on a rank: the stage; whether tensor-parallel ranks divide it; the bytes of their
    all-reduce behind it, 0 for none.
    """

    task: Task
    number: int
    stage: int
    divided: bool
    summed: int


@dataclass(frozen=True)
class Split:
    """A Work in stages.

    `homes` has the stage of each place.  `cut` has the places of which each tensor-parallel rank
    has a part.  `crossing[k]` has the places that forward sends from stage k on.
    """

    parts: tuple[Part, ...]
    homes: tuple[int, ...]
    cut: frozenset[int]
    crossing: tuple[tuple[int, ...], ...]


def split(work: Work, stages: int, tensor: bool) -> Split:
    """Cut the work.  ArgumentError: it has fewer forward tasks than there are to be stages."""
    of_task = _stages(work, stages)
    homes = [-1] * len(work.places)
    for task, stage in zip(work.tasks, of_task, strict=True):
        for k in (*task.reads, *task.writes):
            homes[k] = stage if homes[k] < 0 else homes[k]
    _adopt(work, homes)
    nothing = [False] * len(of_task), [0] * len(of_task), set[int]()
    divided, summed, cut = _cut(work) if tensor else nothing
    parts = tuple(
        Part(task, k, of_task[k], divided[k], summed[k]) for k, task in enumerate(work.tasks)
    )
    crossing: list[list[int]] = [[] for _ in range(stages - 1)]
    forward = [(n, task) for n, task in enumerate(work.tasks) if task.phase == "forward"]
    for k, place in enumerate(work.places):
        writers = [of_task[n] for n, task in forward if k in task.writes]
        uses = [of_task[n] for n, task in forward if k in task.reads]
        if writers and uses and place.role not in ("parameter", "constant"):
            for stage in range(min(writers), max(uses)):
                crossing[stage].append(k)
    return Split(parts, tuple(homes), frozenset(cut), tuple(map(tuple, crossing)))


def _adopt(work: Work, homes: list[int]) -> None:
    """An optimizer's state lives with its parameter: the one written in front of it by the same
    task.
    """
    for task in work.tasks:
        if task.phase == "optimizer":
            home = 0
            for k in task.writes:
                if work.places[k].role == "parameter":
                    home = homes[k]
                elif work.places[k].role == "state":
                    homes[k] = home


def _stages(work: Work, stages: int) -> list[int]:
    forward = [k for k, task in enumerate(work.tasks) if task.phase == "forward"]
    if not 1 <= stages <= len(forward):
        raise ArgumentError(
            f"{work.name} has {len(forward)} forward tasks: 1 to so many stages, got {stages}"
        )
    stage_of = _by_stages(work, forward, stages, [work.tasks[k].seconds for k in forward])
    if stages > 1:  # once more, with what each forward task's backward takes
        weights = {k: work.tasks[k].seconds for k in forward}
        alone = _by_stages(work, forward, len(forward), [1.0] * len(forward))
        for k, task in enumerate(work.tasks):
            if task.phase == "backward":
                weights[forward[alone[k]]] += task.seconds
        stage_of = _by_stages(work, forward, stages, list(weights.values()))
    return stage_of


def _by_stages(
    work: Work, forward: Sequence[int], stages: int, weights: Sequence[float]
) -> list[int]:
    """The stage of each task when forward is cut by weight; every stage has a task."""
    stage_of = [0] * len(work.tasks)
    for place, stage in zip(forward, _cuts(weights, stages), strict=True):
        stage_of[place] = stage
    readers: dict[int, list[int]] = {}
    for k in forward:
        for place in work.tasks[k].reads:
            readers.setdefault(place, []).append(stage_of[k])
    flows: dict[int, int] = {}  # of gradients: the stage that they come from
    for k, task in enumerate(work.tasks):
        if task.phase == "backward":
            stage_of[k] = _backward(work, task, readers, flows, stages - 1)
            flows.update(dict.fromkeys(task.writes, stage_of[k]))
    return stage_of


def _cuts(weights: Sequence[float], stages: int) -> list[int]:
    """Numbers 0 to stages - 1 that do not fall, in runs of about the same weight."""
    weight_left, rest, now, own = sum(weights), stages, 0, 0.0
    cuts: list[int] = []
    for k, weight in enumerate(weights):
        most = len(weights) - k  # tasks that are left
        enough = own > 0 and own + weight / 2 >= weight_left / rest
        if now < stages - 1 and cuts and cuts[-1] == now and (enough or most < rest):
            weight_left, rest, now, own = weight_left - own, rest - 1, now + 1, 0.0
        cuts.append(now)
        own += weight
    return cuts


def _backward(
    work: Work, task: Task, readers: dict[int, list[int]], flows: dict[int, int], last: int
) -> int:
    """The stage of a backward task."""
    limit = min((flows[k] for k in task.reads if k in flows), default=last)
    own = [
        max(readers[k]) for k in task.reads if k in readers and work.places[k].role == "parameter"
    ]
    if own:
        return min(limit, *own)
    shared = [s for k in task.reads for s in readers.get(k, ()) if s <= limit]
    return max(shared, default=limit)


def _cut(work: Work) -> tuple[list[bool], list[int], set[int]]:
    """Return each task's division, and the bytes summed behind it; and the places in parts."""
    divided, summed = [False] * len(work.tasks), [0] * len(work.tasks)
    cut: set[int] = set()
    by_inputs: dict[int, bool] = {}  # of weights
    summands: dict[int, int] = {}  # places of backward: the task behind which they are added up
    for number, task in enumerate(work.tasks):
        if task.phase == "optimizer":
            continue
        weights = [k for k in task.reads if _is_weight(work, task, k, by_inputs)]
        inputs = [k for k in task.reads if k not in weights]
        in_parts = any(k in cut for k in inputs)
        if not weights:
            divided[number] = in_parts
            if in_parts and "cross_entropy" in task.op and task.phase == "forward":
                summed[number] = sum(work.places[k].nbytes for k in task.writes)
            elif in_parts:
                cut.update(task.writes)
            continue
        divided[number] = True
        for k in weights:
            by_inputs.setdefault(k, in_parts)
        cut.update(weights)
        if by_inputs[weights[0]] is (task.phase == "forward"):
            summed[number] = sum(work.places[k].nbytes for k in task.writes)
            if task.phase == "backward":
                for k in inputs:
                    if k in summands and _only(work, k, summands[k], number):
                        summed[summands.pop(k)] = 0
                summands.update(dict.fromkeys(task.writes, number))
        else:
            cut.update(task.writes)
    for task in work.tasks:
        if task.phase == "optimizer":
            held = False
            for k in task.writes:
                if work.places[k].role == "parameter":
                    held = k in cut
                elif work.places[k].role == "state" and held:
                    cut.add(k)
    return divided, summed, cut


def _only(work: Work, k: int, task: int, number: int) -> bool:
    """Return True if only one task reads another's result, which then is one of its summands."""
    behind = [n for n in range(task + 1, len(work.tasks)) if k in work.tasks[n].reads]
    return behind[:1] == [number] and (len(behind) == 1 or k in work.tasks[number].writes)


def _is_weight(work: Work, task: Task, k: int, known: dict[int, bool]) -> bool:
    """Return True if a task multiplies by this parameter, which can be cut."""
    place = work.places[k]
    if place.role != "parameter" or place.dims < 2 or not any(p in task.op for p in PRODUCTS):
        return False
    return task.phase == "forward" or k in known
