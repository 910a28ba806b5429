"""The Python side of a Plan's CUDA graph: its memory, its words, and what became of it.

`flowvm.vm.device_graph` captures and launches it.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.dtype import uint8
from flowvm.meta import TensorMeta
from flowvm.ops.recording import empty_of
from flowvm.vm import layout as w
from flowvm.vm.device_graph import NEVER_ALIKE, TOO_LARGE
from flowvm.vm.engine import engine
from flowvm.vm.peek import issued

if TYPE_CHECKING:
    from flowvm.graph.plan import Plan, RegstDesc

__all__ = ["DeviceGraph"]

Words = np.ndarray[Any, np.dtype[np.int64]]
MOST_COPIED = 64 << 20  # bytes of inputs and outputs: as much as is copied in some 50 us
_WHY = {
    NEVER_ALIKE: "its variables' addresses or its numbers differ at each launch",
    TOO_LARGE: f"its inputs and outputs are more than {MOST_COPIED >> 20} MiB, which each launch "
    "would copy",
}


class DeviceGraph:
    """Of one Plan: `words` (G_...) are its worker's, `memory` is the graph's own."""

    def __init__(self, plan: Plan, operands: Sequence[RegstDesc], scalars: int) -> None:
        made, inputs = len(plan.made), len(plan.graph.inputs)
        sizes = [r.buffer.nbytes for r in operands[: made + inputs]]
        words = np.zeros(w.G_LISTS + 3 * len(operands) + 1 + scalars, np.int64)
        words[w.G_OPERANDS], words[w.G_MADE] = len(operands), made
        words[w.G_INPUTS], words[w.G_SCALARS] = inputs, scalars
        words[w.G_STREAM] = plan.stream
        words[w.G_REPORTS] = int(any(_reports(t.invocation.layout) for t in plan.tasks))
        at = w.LINE_WORDS * 8
        lists = words[w.G_LISTS : w.G_LISTS + 2 * len(operands)].reshape(-1, 2)
        lists[:, 0] = -1
        for k, size in enumerate(sizes):
            lists[k] = at, size
            at += _rounded(size)
        words[w.G_CHUNK] = at
        self.words: Words = words
        self.memory: Any = None
        if sum(sizes) <= MOST_COPIED:
            device = next(iter(plan.graph.devices()))
            meta = TensorMeta.of((at + _rounded(plan.memory.nbytes) + 64,), uint8, device)
            self.memory = empty_of(meta)
            words[w.G_STORAGE] = self.memory._ref
            self.driver = _driver(device.index or 0)
            _destroy_unused()
            weakref.finalize(self, _drop, words, self.memory, self.driver).atexit = False

    @property
    def text(self) -> str:
        """How launches are made, and why."""
        mode, launches = int(self.words[w.G_MODE]), int(self.words[w.G_LAUNCHES])
        if mode == w.G_READY:
            return f"a CUDA graph, launched {launches - 1} times"
        if mode == w.G_SETTLING:
            return "a CUDA graph is captured by the second launch"
        code = int(self.words[w.G_CODE])
        why = _WHY.get(code) or f"capturing it failed with error {code}"
        return f"task by task, no CUDA graph: {why}"


def _rounded(size: int) -> int:
    return (size + 255) // 256 * 256


def _driver(index: int) -> Any:
    from flowvm.cuda.runtime import runtime

    return runtime(index)


# of Plans that are gone: (number that later instructions have, words, memory, device); launches of
# theirs that are still queued use them, and no operand of a launch says so
_dropped: list[tuple[int, Words, Any, Any]] = []


def _drop(words: Words, memory: Any, device: Any) -> None:
    """The Plan is gone."""
    _dropped.append((issued(), words, memory, device))
    _destroy_unused()


def _destroy_unused() -> None:
    """Let go of what no launch in flight can use any more."""
    while _dropped and _dropped[0][0] <= engine.control[w.HEAD]:
        _, words, _, device = _dropped.pop(0)
        if words[w.G_EXEC]:
            device.enter()
            device.driver.functions["cuGraphExecDestroy"](int(words[w.G_EXEC]))


def _reports(steps: Words) -> bool:
    """Whether an instruction may find bad data: its kernels are given its line."""
    at = 1
    for _ in range(int(steps[0])):
        first = at + w.STEP_FIRST + int(steps[at + w.STEP_WORDS])
        patches = steps[first : first + 3 * int(steps[at + w.STEP_PATCHES])]
        if (patches[1::3] & ((1 << w.SOURCE_SHIFT) - 1) == w.SOURCE_LINE).any():
            return True
        at += int(steps[at + w.STEP_LENGTH])
    return False
