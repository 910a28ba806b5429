"""The Python side of a Plan's CUDA graph: its memory, its words, and its state.

`flowvm.vm.workers.device_graph` captures and launches it.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.graph.logical.nodes import Buffer, BufferKind, OpNode
from flowvm.graph.plan.parts import PlanParts, RegstDesc
from flowvm.launch import View
from flowvm.loading.lazy import lazy
from flowvm.meta.dtype import int64, uint8
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.composite import empty_of
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.device_words import BRANCH, DEV, GRAPH, LINES, REPORTER
from flowvm.vm.machine.words import CTL
from flowvm.vm.watch.pending import issued
from flowvm.vm.workers.device_graph import NEVER_ALIKE, TOO_LARGE

if TYPE_CHECKING:
    from flowvm.cuda import launch
    from flowvm.cuda.driver import runtime, streams
    from flowvm.cuda.driver.runtime import Runtime
    from flowvm.ops.declare.cuda import live_numbers, lowering
else:
    launch = lazy("flowvm.cuda.launch")
    runtime = lazy("flowvm.cuda.driver.runtime")
    streams = lazy("flowvm.cuda.driver.streams")
    lowering = lazy("flowvm.ops.declare.cuda.lowering")
    live_numbers = lazy("flowvm.ops.declare.cuda.live_numbers")

Words = np.ndarray[Any, np.dtype[np.int64]]
LINE_BYTES = 8 * LINES.WORDS
MOST_COPIED = 64 << 20  # bytes of inputs and outputs: as much as is copied in some 50 us
_WHY = {
    NEVER_ALIKE: "its variables' addresses differ at each launch",
    TOO_LARGE: f"its inputs and outputs are more than {MOST_COPIED >> 20} MiB, which each launch "
    "would copy",
}
# what a CPU's passes would join
_APART = (
    "kernels of their own: products and convolutions (cuBLAS's); losses, sums and rows too long "
    "for registers; updates of optimizers that have no CUDA kernel",
)


class ChunkEnd:
    """The layout of a device chunk behind its temporaries.

    It has a line for each task that may report, then the numbers that a launch brings.
    """

    def __init__(self, plan: PlanParts) -> None:
        self.begin = plan.memory.nbytes
        self.lines_at = _rounded(self.begin)
        self.reporters = [task.number for task in plan.tasks if task.reports]
        self.numbers_at = self.lines_at + LINE_BYTES * len(self.reporters)

    def line_of(self, task: int) -> int:
        """Return the offset of a task's line; a task without one never uses the answer."""
        place = self.reporters.index(task) if task in self.reporters else 0
        return self.lines_at + LINE_BYTES * place

    def number_at(self, place: int) -> int:
        """Return the offset of a launch's number."""
        return self.numbers_at + 8 * place

    def nbytes(self, numbers: int) -> int:
        """Bytes that the chunk is longer by."""
        return self.number_at(live_numbers.put_capacity(numbers)) - self.begin


class DeviceGraph:
    """The CUDA graph of one Plan.

    `words` (GRAPH) are its worker's, `memory` is the graph's own; `references` holds the words and
    the objects to which they point.
    """

    def __init__(
        self, plan: PlanParts, operands: Sequence[RegstDesc], end: ChunkEnd, numbers: int
    ) -> None:
        outputs, inputs = len(plan.own_outputs), len(plan.graph.inputs)
        # an input that is written is used where it lies, as variables are
        written = {outputs + k for k in plan.graph.written_inputs()}
        copied = [k for k in range(outputs + inputs) if k not in written]
        sizes = {k: operands[k].buffer.nbytes for k in copied}
        head = [0] * GRAPH.LISTS
        head[GRAPH.OPERANDS], head[GRAPH.MADE], head[GRAPH.INPUTS] = len(operands), outputs, inputs
        head[GRAPH.SCALARS], head[GRAPH.STREAM] = numbers, plan.stream
        lists, at = [], 0
        for k in range(len(operands)):
            lists += [at, sizes[k]] if k in sizes else [-1, 0]
            at += _rounded(sizes.get(k, 0))
        head[GRAPH.CHUNK] = at
        words = [*head, *lists, *[0] * (1 + len(operands))]
        self.device = next(iter(plan.graph.devices()))
        self.branches = len(plan.branches)
        self.references: list[object] = []
        self._around(words, plan, end, numbers)
        self._reporters(words, plan, end)
        self._starts = self._branches(words, plan)
        self.words: Words = np.array(words, np.int64)
        self.references.append(self.words)
        self.memory: object = None
        if sum(sizes.values()) <= MOST_COPIED:
            chunk = _rounded(plan.memory.nbytes + end.nbytes(numbers))
            self.memory = empty_of(TensorMeta.of((at + chunk + 64,), uint8, self.device))
            self.words[GRAPH.STORAGE] = self.memory._ref
            driver = _driver(self.device.index or 0)
            _destroy_unused()
            weakref.finalize(self, _drop, self.words, self.memory, driver).atexit = False

    def place(self, tasks: Sequence[int]) -> None:
        """Store the addresses of the tasks' words."""
        for at, task in self._starts:
            self.words[at] = tasks[task]

    @property
    def text(self) -> str:
        """The way in which launches are made, and the reason."""
        mode, launches = int(self.words[GRAPH.MODE]), int(self.words[GRAPH.LAUNCHES])
        if mode == GRAPH.READY:
            beside = f" of {self.branches} branches" if self.words[GRAPH.LANES] else ""
            return f"a CUDA graph{beside}, launched {launches - 1} times"
        if mode == GRAPH.SETTLING and launches > 1:
            return "task by task: a CUDA graph goes by the order of the device's default stream"
        if mode == GRAPH.SETTLING:
            return "a CUDA graph is captured by the second launch"
        code = int(self.words[GRAPH.CODE])
        why = _WHY.get(code) or f"capturing it failed with error {code}"
        return f"task by task, no CUDA graph: {why}"

    @property
    def lines(self) -> list[str]:
        """The lines for `explain`: the way of launching, and the parts with their own kernels."""
        return [self.text, *_APART]

    # --- words ------------------------------------------------------------------------------------

    def _around(self, words: list[int], plan: PlanParts, end: ChunkEnd, numbers: int) -> None:
        """Add the steps before the tasks and behind them."""
        lines = len(end.reporters)
        words[GRAPH.LINES], words[GRAPH.LINES_AT], words[GRAPH.NUMBERS_AT] = (
            lines, end.lines_at, end.numbers_at,
        )  # fmt: skip
        arguments = [
            launch.Scalar(k, "i") for k in range(numbers)
        ]  # the bits of a number, whatever it is
        put = live_numbers.put_steps(launch.Operand(0, View(int64, (0,))), arguments)
        put = (*(step for task in plan.tasks for step in task.begins * task.node.repeat), *put)
        for place, steps in (
            (GRAPH.PUT, put),
            (GRAPH.COLLECT, (live_numbers.collect_step(0, lines),) if lines else ()),
        ):
            if steps:
                layout = lowering.layout_of(steps, 1, self.device, "a graph's launch")
                self.references.append(layout)
                words[place] = int(layout.ctypes.data)

    def _reporters(self, words: list[int], plan: PlanParts, end: ChunkEnd) -> None:
        """Add, for each line, its task and the launch's operands that depend on its results."""
        words[GRAPH.REPORTERS_AT] = len(words)
        reporters = [_dependents(plan, task) for task in end.reporters]
        at = len(words) + REPORTER.WORDS * len(reporters)
        for task, operands in zip(end.reporters, reporters, strict=True):
            words += [task, at, len(operands)]
            at += len(operands)
        words += [operand for operands in reporters for operand in operands]

    def _branches(self, words: list[int], plan: PlanParts) -> list[tuple[int, int]]:
        """Add the branches, on the twin of the Plan's stream and the device's lanes.

        Return the places of the words to which the address of a task is to be written.
        """
        index, of = self.device.index or 0, plan.branches
        numbers = dict.fromkeys(branch.stream for branch in of)  # the first one's is the twin
        twin = int(streams.block_of(plan.stream)[DEV.TWIN])
        others = streams.lanes(index, len(numbers) - 1)
        blocks = dict(zip(numbers, [twin, *others], strict=True))
        waits = [[k for k in b.inputs if of[k].stream != b.stream] for b in of]
        waited = sorted({k for each in waits for k in each})
        events = dict(zip(waited, streams.lane_events(index, len(waited)), strict=True))
        words[GRAPH.LANES_AT], words[GRAPH.LANES] = len(words), len(others)
        words += others
        words[GRAPH.BRANCHES_AT], words[GRAPH.BRANCHES] = len(words), len(of)
        at, starts = len(words) + len(of), []
        rows: list[int] = []
        for branch, before in zip(of, waits, strict=True):
            row = [0] * BRANCH.WORDS
            row[BRANCH.BLOCK] = blocks[branch.stream]
            row[BRANCH.FIRST], row[BRANCH.COUNT] = branch.first, branch.count
            row[BRANCH.EVENT] = events.get(branch.number, 0)
            row[BRANCH.WAITS] = len(before)
            words.append(at + len(rows))
            starts.append((at + len(rows) + BRANCH.WORDS_AT, branch.first))
            rows += [*row, *(events[k] for k in before)]
        words += rows
        return starts


def _dependents(plan: PlanParts, task: int) -> list[int]:
    """Return the operands of a launch that depend on a task's results when the launch is over.

    The launch's outputs are not among them.
    """
    nodes, tainted = plan.graph.nodes, set[Buffer]()
    section = [n.number for n in nodes if n.repeat > 1]  # these come round again
    rounds = [nodes[task:], nodes[section[0] :]] if task in section else [nodes[task:]]
    for node in [n for each in rounds for n in each]:
        if node is nodes[task] or any(o.buffer in tainted for o in _touched(node)):
            tainted |= {o.buffer for o in node.written()}
    registers = [r for b, r in plan.registers.items() if b in tainted]
    held = [r.operand for r in registers if r.buffer.kind is not BufferKind.TEMPORARY]
    return sorted(operand for operand in held if operand >= 0)


def _touched(node: OpNode) -> list[Any]:
    return [operand for _, operand in node.accesses()]


def _rounded(size: int) -> int:
    return (size + 255) // 256 * 256


def _driver(index: int) -> Runtime:
    return runtime.runtime(index)


# of Plans that are gone: (number that later instructions have, words, memory, device); launches of
# theirs that are still queued use them, and no operand of a launch says so
_dropped: list[tuple[int, Words, object, Any]] = []


def _drop(words: Words, memory: object, device: object) -> None:
    """The Plan is gone."""
    _dropped.append((issued(), words, memory, device))
    _destroy_unused()


def _destroy_unused() -> None:
    """Destroy graphs that no launch in flight can use any more."""
    while _dropped and _dropped[0][0] <= engine.words[CTL.HEAD]:
        _, words, _, device = _dropped.pop(0)
        if words[GRAPH.EXEC]:
            device.enter()
            device.driver.functions["cuGraphExecDestroy"](int(words[GRAPH.EXEC]))
