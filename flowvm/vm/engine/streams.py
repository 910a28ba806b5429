"""The VM's streams: queues of instructions, each with a worker.  Their numbers are never given back
(`flowvm.vm.engine.numbers` passes them on).
"""

from __future__ import annotations

import math
import time
from typing import Any

from flowvm.errors import VMError
from flowvm.vm.callers.hot import CALL_STREAM, FIRST_USER_STREAM, HOST_STREAM
from flowvm.vm.engine.loops import Loops
from flowvm.vm.engine.threads import Threads
from flowvm.vm.machine.words import CTL, STR
from flowvm.vm.watch.flight import Recorded
from flowvm.vm.workers.allocator import trim

LAUNCH_STREAM = "plans"  # the name of a stream that nothing but launches is issued on


class Streams:
    """The streams of one engine.  The first two always exist."""

    def __init__(self, vm: Recorded, threads: Threads, loops: Loops) -> None:
        self.vm = vm
        self.words = vm.words
        self.threads = threads
        self.loops = loops
        self.user_names: list[str] = []
        self.keep: list[Any] = []  # memory of devices that workers may touch as long as they live
        self.words[CTL.USED_STREAMS] = FIRST_USER_STREAM
        for stream in (CALL_STREAM, HOST_STREAM):
            self._give_arena(stream)
        threads.on_start.append(self._start_workers)

    @property
    def count(self) -> int:
        """The number of streams made so far; their numbers are below it."""
        return FIRST_USER_STREAM + len(self.user_names)

    def name(self, stream: int) -> str:
        """Return the name of a stream: "cpu", "host", or the name that its user gave."""
        user = stream - FIRST_USER_STREAM
        return self.user_names[user] if user >= 0 else ("cpu", "host")[stream]

    def new(self, name: str, priority: int = 0) -> int:
        """Add a compute stream with its own worker.  Return its number.

        Policies read `priority`.  Above 0 it is also the nice value of the worker's thread.
        """
        with self.vm.lock:
            stream = self._add(name)
            self.words[STR.AT + stream * STR.WORDS + STR.PRIORITY] = priority
            if self.threads.running:
                self._start_worker(stream)
            return stream

    def new_device(self, name: str, block: Any, memory: int, counters: Any) -> int:
        """Add a stream of a device, whose worker hands instructions to it.  Return its number.

        `block`: its words (`DEV` of `flowvm.vm.machine.device_words`), `counters`: those that the
        memory of its device is counted in, CTL.WORDS of them; int64 arrays, both kept.  `memory`:
        what its allocator gives, STR.DEVICE_MEMORY or STR.PINNED_MEMORY.
        """
        with self.vm.lock:
            stream = self._add(name)
            self.keep += [block, counters]
            at = STR.AT + stream * STR.WORDS
            self.words[at + STR.BLOCK], self.words[at + STR.MEMORY] = block.ctypes.data, memory
            self.words[at + STR.COUNTERS] = counters.ctypes.data
            self.words[CTL.DEVICES] |= 1 << stream
            if self.threads.running:
                self._start_worker(stream)
            return stream

    def of_launches(self) -> int:
        """Return the number of the stream of LaunchPlans whose actors are on several streams."""
        with self.vm.lock:
            if LAUNCH_STREAM not in self.user_names:
                self.new(LAUNCH_STREAM)
            return FIRST_USER_STREAM + self.user_names.index(LAUNCH_STREAM)

    def _add(self, name: str) -> int:
        stream = self.count
        if stream >= STR.LENGTH:
            raise VMError(
                f"Stream: all {STR.LENGTH} of the VM are in use; keep Stream objects and use them "
                "again, or drop some"
            )
        self.user_names.append(name)
        self._give_arena(stream)
        self.words[CTL.USED_STREAMS] = stream + 1
        return stream

    def _give_arena(self, stream: int) -> None:
        at = STR.AT + stream * STR.WORDS
        self.words[at + STR.ARENA] = self.threads.arena(f"stream {stream}")

    def _start_workers(self) -> None:
        for i in range(len(self.user_names)):
            self._start_worker(FIRST_USER_STREAM + i)

    def _start_worker(self, stream: int) -> None:
        self.threads.start_worker(stream, self.name(stream))

    def trim(self, patience: float = math.inf) -> None:
        """Let every stream's worker give its cached memory back, and wait for that, at most
        `patience` seconds.  A worker that is busy for longer does it later.
        """
        streams = [CALL_STREAM, *range(FIRST_USER_STREAM, self.count)]
        with self.vm.lock:
            if not self.threads.running:
                for stream in () if self.threads.stopped else streams:
                    self.loops.in_python(trim, self.vm.m, stream)
                return
            self.words[CTL.TRIM] += 1
            request = self.words[CTL.TRIM]
        answers = [STR.AT + stream * STR.WORDS + STR.TRIMMED for stream in streams]
        until = time.monotonic() + patience
        while min(self.words[at] for at in answers) < request and time.monotonic() < until:
            self.loops.function("nap")(self.vm.base, 1000)
