"""A CUDA driver that records its calls: FLOWVM_CUDA_DRIVER=recorder.

Memory, copies, streams and events are the simulator's (and its options hold here, too); kernels
and matrix products are read, checked and noted, and not run.  So it needs no Numba-CUDA.

    recorder = Recorder()
    ...                                      # what is tested
    recorder.launches()                      # each with its grid, its arguments and its stream
    recorder.ordered(first, second)          # whether streams and events order these two
    recorder.fail("cuMemAlloc_v2", 3, 2)     # the third call from now answers OUT_OF_MEMORY

With the option `ptx` functions come from modules, as on a GPU: the arguments of a launch are then
its words.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flowvm.cuda.simulator.blas import Gemm
from flowvm.cuda.simulator.kernels import Launch
from flowvm.cuda.simulator.simulator import Simulator

# calls that put something into a stream -> the place of the stream among the arguments
_ENQUEUES = {
    "cuMemcpyHtoDAsync_v2": 3, "cuMemcpyDtoHAsync_v2": 3, "cuMemcpyDtoDAsync_v2": 3,
    "cuMemcpyAsync": 3, "cuMemcpyPeerAsync": 5, "cuMemsetD8Async": 3, "cuLaunchKernel": 8,
    "cuGraphLaunch": 1, "cuEventRecord": 1, "cuStreamWaitEvent": 0,
    "ncclAllReduce": 6, "ncclReduce": 7, "ncclBroadcast": 6, "ncclReduceScatter": 6,
    "ncclAllGather": 5, "ncclSend": 5, "ncclRecv": 5,
}  # fmt: skip


@dataclass(eq=False)
class Call:
    """One call of a function of the driver.  `number` counts them."""

    number: int
    name: str
    arguments: tuple[Any, ...]
    stream: int | None  # that it put something into
    before: tuple[int, ...] = ()  # numbers of calls whose work is done when this call's work begins
    result: int = 0
    launch: Launch | None = None
    gemm: Gemm | None = None


class Recorder(Simulator):
    """The simulator's devices, with a list of calls.  Any thread may call."""

    name = "recorder"
    runs_kernels = False

    def __init__(self, ptx: bool = False, **options: Any) -> None:
        self.ptx = ptx
        self.calls: list[Call] = []
        self.failures: dict[tuple[str, int], int] = {}
        self.counts: collections.Counter[str] = collections.Counter()
        self._last: dict[int, int] = {}  # stream -> its last call
        self._recorded: dict[int, int] = {}  # event -> the call that recorded it
        self._known: set[int] = set()  # calls that the host has seen to be done
        super().__init__(**options)

    @classmethod
    def _option(cls, key: str, value: str, option: str) -> int | bool:
        return option == "ptx" or super()._option(key, value, option)

    def fail(self, name: str, nth: int, result: int) -> None:
        """Let the `nth` call of `name` from now (1 is the next) answer `result` and do nothing."""
        self.failures[name, self.counts[name] + nth] = result

    def launches(self, name: str = "") -> list[Call]:
        """Return the launches so far of kernels whose name contains `name`."""
        return [c for c in self.calls if c.launch and name in c.launch.function.name]

    def named(self, *names: str) -> list[Call]:
        """Return the calls of these functions."""
        return [c for c in self.calls if c.name in names]

    def ordered(self, first: Call, second: Call) -> bool:
        """Return True if the work of `first` is always done before the work of `second` begins.
        Streams' order, events or waits of the host ensure it, whatever the GPU does.
        """
        visited, todo = set(), [second.number]
        while todo:
            for number in self.calls[todo.pop()].before:
                if number == first.number:
                    return True
                if number not in visited:
                    visited.add(number)
                    todo.append(number)
        return False

    def called(self, name: str, method: Callable[..., int | None], args: tuple[object, ...]) -> int:
        call = Call(len(self.calls), name, args, self._stream_of(name, args))
        self.calls.append(call)
        self.counts[name] += 1
        injected = self.failures.pop((name, self.counts[name]), None)
        if injected is not None:
            call.result = self.refuse(injected, "a failure that was asked for")
        else:
            call.result = super().called(name, method, args)
            if call.result == 0:
                self._order(call)
        return call.result

    def _stream_of(self, name: str, args: tuple[Any, ...]) -> int | None:
        if name == "cublasGemmStridedBatchedEx":
            return self.handles.get(args[0])
        place = _ENQUEUES.get(name)
        return None if place is None else int(args[place])

    def _order(self, call: Call) -> None:
        """Record the work done before a call's work begins, and the work that the call shows to be
        done.
        """
        if call.name in ("cuStreamSynchronize", "cuStreamQuery"):
            self._learn(self._last.get(call.arguments[0]))
        elif call.name in ("cuEventSynchronize", "cuEventQuery"):
            self._learn(self._recorded.get(call.arguments[0]))
        if call.stream is None:
            return
        before = set(self._known)
        if call.stream in self._last:
            before.add(self._last[call.stream])
        if call.name == "cuStreamWaitEvent" and call.arguments[1] in self._recorded:
            before.add(self._recorded[call.arguments[1]])
        call.before = tuple(sorted(before))
        self._last[call.stream] = call.number
        if call.name == "cuEventRecord":
            self._recorded[call.arguments[0]] = call.number

    def _learn(self, number: int | None) -> None:
        """Note that the host knows a call's work to be done, and all the work before it."""
        if number is not None:
            self._known -= set(self.calls[number].before)
            self._known.add(number)

    def launch(self, launch: Launch, stream: int) -> None:
        self.calls[-1].launch = launch
        launch.check(self.memory)
        self.do(stream, launch.function.name, lambda: launch.check(self.memory))

    def gemm(self, gemm: Gemm, stream: int, device: int) -> None:
        self.calls[-1].gemm = gemm
        gemm.check(self.memory, device)
        self.do(stream, "gemm", lambda: gemm.check(self.memory, device))
