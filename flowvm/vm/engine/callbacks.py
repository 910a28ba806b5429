"""Callbacks: Python functions that run as instructions of the host stream."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from flowvm.compiler import jit
from flowvm.errors import VMError
from flowvm.vm.callers.hot import HOST_STREAM
from flowvm.vm.callers.interrupt import protected
from flowvm.vm.engine.entries import TOUCH_MAX, Entries, no_op
from flowvm.vm.engine.failures import Failures
from flowvm.vm.engine.natives import SLICE_US
from flowvm.vm.engine.records import Records
from flowvm.vm.engine.threads import Threads
from flowvm.vm.machine.words import ARG, CTL, ENT, KIND, RING
from flowvm.vm.watch.flight import Recorded


class Callbacks:
    """The callbacks of one engine, and the thread that runs them."""

    def __init__(
        self, vm: Recorded, entries: Entries, records: Records, threads: Threads, failures: Failures
    ) -> None:
        self.vm = vm
        self.words = vm.words
        self.entries = entries
        self.records = records
        self.failures = failures
        self.functions: dict[int, Callable[..., None]] = {}  # by token, until they run
        self._tokens = itertools.count(1)
        self._entries: dict[tuple[int, ...], int] = {}  # by the accesses to the operands
        entries.on_full.append(self._entries.clear)
        threads.on_start.append(lambda: threads.begin("flowvm-host", self.serve))

    def issue(
        self, function: Callable[..., None], operands: Sequence[int], access: Sequence[int]
    ) -> None:
        """AccessBlobByCallback: run `function(*addresses)` on the host stream.

        It runs when the operands may be accessed as `access` says.
        """
        if len(operands) > TOUCH_MAX:
            raise VMError(f"a callback accesses at most {TOUCH_MAX} tensors, not {len(operands)}")
        key = tuple(access)
        entry = self._entries.get(key)
        if entry is None:
            kernel = jit.native(no_op, "int32(int64, int64, int64, int64)")
            default = self.entries.new(
                KIND.CALLBACK, key, kernel=kernel, scalars=1, info="callback"
            )
            entry = self._entries.setdefault(key, default)
        token = next(self._tokens)
        self.functions[token] = function
        self.records.issue(entry | HOST_STREAM << ENT.BITS, operands, (token,))

    def serve(self) -> None:
        """Run callbacks until the threads stop."""
        while not self.words[CTL.STOP]:
            slot = self.vm.loops.function("host_next")(self.vm.base, HOST_STREAM, SLICE_US)
            if slot >= 0:
                self.run(slot)
                self.vm.loops.function("host_finish")(self.vm.base, HOST_STREAM)

    @protected
    def run(self, slot: int) -> None:
        """Run the callback of a slot of the ring, if its instruction is one and has not failed."""
        record = RING.AT + slot * RING.WORDS
        seq = int(self.words[record + RING.MARK]) - 1
        entry = ENT.AT + (int(self.words[record + RING.ENTRY]) & ENT.MASK) * ENT.WORDS
        count = int(self.words[entry + ENT.COUNT])
        function = self.functions.pop(int(self.words[record + RING.OPERANDS - count]))
        if self.vm.loops.function("host_begin")(self.vm.base, HOST_STREAM, slot) != 0:
            return
        at = ARG.AT + HOST_STREAM * ARG.WORDS + ARG.HEADER
        try:
            function(*self.vm.m[at : at + count].tolist())
        except BaseException as error:  # any exception belongs to the reader of the result
            self.failures.raised[seq] = error
            self.vm.loops.function("host_fail")(self.vm.base, HOST_STREAM, slot, 6)
        self.vm.loops.function("host_end")(self.vm.base, slot)
        del function
