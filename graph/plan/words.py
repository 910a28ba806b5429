"""The words of a Plan, which `flowvm.vm.workers.launch` and `flowvm.vm.workers.actors` read.

A Plan's words are a head, the sizes of its outputs and its tasks, one behind the other; the actors
of a Plan on several streams have an array of their own, which their workers write.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowvm.eager.live import Live
from flowvm.errors import CaptureError
from flowvm.graph.memory.offsets import Block
from flowvm.graph.plan.actors import ActorDesc
from flowvm.graph.plan.device_graph import ChunkEnd, DeviceGraph
from flowvm.graph.plan.parts import PlanParts, TaskDesc
from flowvm.meta.arrays import Array
from flowvm.vm.machine.plan_words import ACTOR, LAUNCH, PLAN, RUNTIME, TASK
from flowvm.vm.machine.words import MBX
from flowvm.vm.workers.zones import CHECKED

Words = Array
NO_TURN = 1 << 62  # after which an operand that moves on and on is where it was


def bits(kind: str, value: Any) -> int:
    """A scalar as the word that a kernel gets; kind is d (a float) or q."""
    if kind == "d":
        return int(struct.unpack("q", struct.pack("d", value))[0])
    return int(value)


class PlanWords:
    """The words of `plan`, and the objects that they need.

    words       the array that an entry of the VM names
    live        numbers that each launch brings, in its order, with their kinds; one that is drawn
                for each repetition of its task is there as often, and `turns` says for which
    starts      for each task: where its words begin
    kept        what the words point to
    extra       bytes of a chunk behind its temporaries
    """

    def __init__(self, plan: PlanParts, actors: ActorWords | None) -> None:
        self.live: list[Live] = []
        self.live_kinds: list[str] = []
        self.turns: list[int] = []
        self._places: dict[object, int] = {}  # of live numbers
        self.references: list[object] = [actors]
        self.graph: DeviceGraph | None = None
        self.starts: list[int] = []
        self._begun: set[Block] = set()  # blocks of the chunk whose lives have begun
        self.extra = 0
        operands = [r for r in plan.registers.values() if r.operand >= 0]
        sizes = [max(1, r.buffer.nbytes) if r.buffer in plan.own_outputs else 0 for r in operands]
        head = [0] * PLAN.WORDS
        head[PLAN.TASKS], head[PLAN.OPERANDS] = len(plan.tasks), len(operands)
        head[PLAN.SIZES], head[PLAN.FIRST] = PLAN.WORDS, PLAN.WORDS + len(sizes)
        head[PLAN.MADE], head[PLAN.INPUTS] = len(plan.own_outputs), len(plan.graph.inputs)
        head[PLAN.ACTORS] = 0 if actors is None else actors.address
        words = [*head, *sizes]
        sections = section_lengths([task.node.repeat for task in plan.tasks])
        self._end = ChunkEnd(plan) if plan.stream else None
        for task, section in zip(plan.tasks, sections, strict=True):
            self.starts.append(len(words))
            words += self._task(task, section)
        if self._end is not None:
            self.graph = DeviceGraph(plan, operands, self._end, len(self.live))
            self.extra = self._end.nbytes(len(self.live))
            words[PLAN.GRAPH] = int(self.graph.words.ctypes.data)
            self.references += self.graph.references  # and not its memory, which goes with the Plan
        self.words: Words = np.array(words, np.int64)
        starts = [int(self.words.ctypes.data) + 8 * at for at in self.starts]
        if self.graph is not None:
            self.graph.place(starts)
        if actors is not None:
            actors.place(starts)

    def _array(self, values: Sequence[object]) -> int:
        """The address of an array that is kept."""
        array = np.array(values, np.int64)
        self.references.append(array)
        return int(array.ctypes.data)

    def _place_of(self, value: Live, kind: str, times: int) -> tuple[int, int]:
        """Return a live scalar's position among a launch's numbers, and its step per repetition."""
        place = self._places.setdefault((id(value), kind, times), len(self.live))
        if place == len(self.live):
            self.live += [value] * times
            self.live_kinds += [kind] * times
            self.turns += range(times)
        return place, int(times > 1)

    def _task(self, task: TaskDesc, section: int) -> list[int]:
        invocation, repeat = task.invocation, task.node.repeat
        self.references.append(invocation)
        operands: list[int] = []
        steps: list[tuple[int, int]] = []
        for access, operand, register in task.registers:
            source, offset = register.operand + 1, operand.offset
            if register.block is not None:
                source, offset = 0, register.block.offset + operand.offset
            written = int(access != "const")
            operands.append(source | written << TASK.SOURCE_BITS | offset << (TASK.SOURCE_BITS + 1))
            steps.append(
                (register.apart, register.copies)
                if register.copies > 1
                else (operand.step, NO_TURN)
            )
        kinds = invocation.scalar_pack[::-1] or task.node.operator.signature.scalar_kinds
        scalars: list[int] = []
        for kind, value in zip(kinds, task.node.scalars, strict=True):
            if not isinstance(value, Live):
                scalars += [-1, bits(kind, value)]
                continue
            place, moves = self._place_of(value, kind, repeat if value.drawn else 1)
            if self._end is None:
                scalars += [place, moves]
            else:  # of the address of a number, as of any operand
                operands.append(self._end.number_at(place) << (TASK.SOURCE_BITS + 1))
                steps.append((8 * moves, NO_TURN))
        if self._end is not None:
            operands.append(self._end.line_of(task.number) << (TASK.SOURCE_BITS + 1))
            steps.append((0, NO_TURN))
        head = [0] * TASK.OPERANDS
        head[TASK.KERNEL], head[TASK.LAYOUT] = invocation.kernel, int(invocation.layout.ctypes.data)
        head[TASK.UNITS], head[TASK.GRAIN] = invocation.units, max(1, invocation.grain)
        head[TASK.PHASES], head[TASK.MORE] = self._array(invocation.phases), len(invocation.phases)
        head[TASK.SCRATCH] = -1 if task.scratch is None else task.scratch.offset
        head[TASK.COUNT], head[TASK.SCALARS] = len(operands), len(scalars) // 2
        head[TASK.REPEAT], head[TASK.SECTION] = repeat, section
        head[TASK.STEPS] = self._array(steps) if any(step for step, _ in steps) else 0
        head[TASK.ZONES] = self._zones(task) if CHECKED else 0
        words = [*head, *operands, *scalars]
        words[TASK.LENGTH] = len(words)
        return words

    def _zones(self, task: TaskDesc) -> int:
        """The address of the task's blocks in the chunk, for `flowvm.vm.workers.zones`: how many,
        then for each where it is, its bytes, and whether its life begins here.
        """
        blocks = [register.block for _, _, register in task.registers] + [task.scratch]
        rows: list[int] = []
        for block in dict.fromkeys(blocks):
            if block is not None:
                rows += [block.offset, block.nbytes, int(block not in self._begun)]
                self._begun.add(block)
        return self._array([len(rows) // 3, *rows])


def section_lengths(repeats: Sequence[int]) -> list[int]:
    """For each task, how many from it on run together as often as it does."""
    lengths: list[int] = []
    for k in range(len(repeats) - 1, -1, -1):
        joined = lengths and repeats[k] == repeats[k + 1]
        lengths.append(lengths[-1] + 1 if joined else 1)
    return lengths[::-1]


class ActorWords:
    """The words of a Plan's actors: `regst_num` launches may be in flight at one time."""

    def __init__(self, actors: Sequence[ActorDesc], regst_num: int, home: int) -> None:
        if len(actors) > MBX.MESSAGES:
            raise CaptureError(
                f"a graph has at most {MBX.MESSAGES} actors, not {len(actors)}: its nodes change "
                f"streams too often; put more of them beside each other on one stream"
            )
        self.actors, self.regst_num = actors, regst_num
        first = RUNTIME.WORDS + regst_num * LAUNCH.WORDS
        ran_at = first + len(actors) * ACTOR.WORDS
        lists_at = ran_at + regst_num * len(actors)
        rows: list[int] = []
        lists: list[int] = []
        for actor in actors:
            row = [0] * ACTOR.WORDS
            row[ACTOR.STREAM], row[ACTOR.TASK], row[ACTOR.TASKS] = (
                actor.stream, actor.first, actor.count,
            )  # fmt: skip
            row[ACTOR.TIMES] = actor.times
            for at, length, values in (
                (ACTOR.IN, ACTOR.INS, actor.inputs),
                (ACTOR.CREDIT, ACTOR.CREDITS, [x for credit in actor.credits for x in credit]),
                (ACTOR.TELL, ACTOR.TELLS, actor.tells(actors)),
            ):
                row[at] = lists_at + len(lists)
                row[length] = len(values) // (2 if at == ACTOR.CREDIT else 1)
                lists += values
            rows += row
        ran = [0] * (lists_at - ran_at)
        self.words: Words = np.array([*[0] * first, *rows, *ran, *lists], np.int64)
        self.words[RUNTIME.DEPTH], self.words[RUNTIME.ACTORS] = regst_num, len(actors)
        self.words[RUNTIME.FIRST], self.words[RUNTIME.HOME] = first, home
        self.words[RUNTIME.RAN] = ran_at
        self.address = int(self.words.ctypes.data)

    def place(self, tasks: Sequence[int]) -> None:
        """Store the addresses of the tasks' words, to which the actors' words point from now on."""
        for k, actor in enumerate(self.actors):
            at = int(self.words[RUNTIME.FIRST]) + k * ACTOR.WORDS
            self.words[at + ACTOR.PLAN] = self.address
            self.words[at + ACTOR.WORDS_AT] = tasks[actor.first]

    def _of_actors(self, word: int) -> list[bool]:
        """For each actor, whether one of its words is set."""
        first = int(self.words[RUNTIME.FIRST])
        rows = range(first, first + len(self.actors) * ACTOR.WORDS, ACTOR.WORDS)
        return [bool(self.words[at + word]) for at in rows]

    @property
    def ended(self) -> list[bool]:
        """For each actor, whether Eord has come to it."""
        return self._of_actors(ACTOR.ENDED)

    @property
    def is_left(self) -> bool:
        """True if Eord has passed every actor and no worker will look at the words any more.

        An actor that ends sends a message to the actors in front of it, too, which ended long ago.
        The messages lie in mailboxes when all have ended, and a worker that takes one writes here.
        So the order of the questions counts.  An actor that has ended and is not looking sends
        nothing more; then a message outside the mailboxes is being answered or was.
        """
        return (
            all(self.ended)
            and not any(self._of_actors(ACTOR.LOOKING))
            and not any(self._of_actors(ACTOR.QUEUED))
            and not any(self._of_actors(ACTOR.LOOKING))
        )
