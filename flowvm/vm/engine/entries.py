"""The table of entries, ENT: what all calls of a kind have in common, under a number.

An entry lives as long as the word of it that its maker has (`EntryWord`).  Behind that its memory
is kept until all instructions issued by then are done, and its name until NAMES others went; then
its number is another's.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flowvm.errors import VMError
from flowvm.vm.callers.interrupt import protected
from flowvm.vm.machine.words import CTL, ENT, OPERAND, VEW
from flowvm.vm.watch.flight import Recorded
from flowvm.vm.watch.pending import issued
from flowvm.vm.workers import zones

WORDS_ONLY = True
TOUCH_MAX = 24  # operands of an instruction that computes nothing
NAMES = 1 << 13  # names of entries dropped last that are remembered

dead_entries: collections.deque[int] = collections.deque()  # numbers without users


def no_op(args: int, layout: int, lo: int, hi: int) -> int:
    """Do nothing: the kernel of instructions whose work is done in Python."""
    return 0


class EntryWord(int):
    """An entry's number and stream as the word of a record.  When this object goes, so does the
    entry.
    """

    @protected
    def __del__(self, _dead: Any = dead_entries.append, _mask: int = ENT.MASK) -> None:
        _dead(self & _mask)


class Entries:
    """The entries of one engine.  Its lock guards them all."""

    def __init__(self, vm: Recorded) -> None:
        self.vm = vm
        self.words = vm.words
        # by number: what the entry is of, and the arrays whose addresses its words have
        self.info: list[Any] = []
        self.on_full: list[Callable[[], None]] = []  # each empties a cache of entries
        self.reused = 0
        # (instructions issued by then, number) of entries that are in no cache any more: ones that
        # may be in flight, and ones whose number may be another's
        self._resting: collections.deque[tuple[int, int]] = collections.deque()
        self.nameless: collections.deque[tuple[int, int]] = collections.deque()

    def new(
        self,
        kind: int,
        access: Sequence[int],
        *,
        kernel: int = 0,
        layout: Any = None,
        sizes: Sequence[int] = (),
        units: int = 1,
        grain: int = 1,
        scratch: int = 0,
        phases: Sequence[tuple[int, int]] = (),
        scalars: int = 0,
        outline: bool = False,
        prepare: bool = False,
        brief: bool = False,
        stream: int = 0,
        info: object,
    ) -> EntryWord:
        """Write an entry into ENT: all that calls of a kind have in common.  Return the word for
        records, made of the entry's number and `stream`.  The entry lives as long as this word
        object.

        `access` has an `Access` (with ALLOCATE) an operand; `sizes` the bytes to allocate for each
        (for mut2 outputs: the bytes of a row).  `layout` is an int64 array, kept alive with the
        entry.  `phases` are the (units, grain) of the phases after the first.  `brief`: it ends
        within some microseconds, so that a waiting thread may run it.
        """
        with self.vm.lock:
            number = self._number()
            at = ENT.AT + number * ENT.WORDS
            words = [0] * ENT.WORDS
            words[ENT.KIND], words[ENT.KERNEL] = int(kind), kernel
            words[ENT.LAYOUT] = 0 if layout is None else layout.ctypes.data
            words[ENT.COUNT], words[ENT.SCALARS] = len(access), scalars
            words[ENT.UNITS], words[ENT.GRAIN] = units, max(1, grain)
            words[ENT.SCRATCH], words[ENT.OUTLINE] = scratch, int(outline)
            if outline:
                words[ENT.BYTES] = sum(sizes)
            words[ENT.PREPARE], words[ENT.BRIEF] = int(prepare), int(brief)
            more = np.array(phases, np.int64)
            words[ENT.PHASES], words[ENT.MORE] = more.ctypes.data, len(phases)
            if not outline:
                for k, a in enumerate(access):
                    word = ENT.ACCESS + k // OPERAND.ACCESSES_PER_WORD
                    words[word] |= int(a) << (k % OPERAND.ACCESSES_PER_WORD * OPERAND.ACCESS_BITS)
                for k, size in enumerate(sizes):
                    words[ENT.SIZES + k] = size
                words[ENT.BYTES] = sum(
                    s for s, a in zip(sizes, access, strict=False) if a & OPERAND.ALLOCATE
                )
            self.vm.m[at : at + ENT.WORDS] = words
            views = None
            if zones.CHECKED:
                writes = [a & 3 != OPERAND.CONST and not a & OPERAND.ALLOCATE for a in access]
                views = zones.views_of(info, writes)
                self.words[VEW.AT + number] = 0 if views is None else views.ctypes.data
            self.info[number] = (info, (layout, more, views))
            return EntryWord(number | stream << ENT.BITS)

    def _number(self) -> int:
        """Return a number for a new entry: the number of one dropped long ago, or the next one.

        A dropped entry keeps its memory until all instructions issued by then are done.  It keeps
        its name, for the recorder, until NAMES others were dropped.  Then its number is used again.
        """
        self.let_go()
        if len(self.nameless) <= NAMES and len(self.info) < ENT.LENGTH:
            self.info.append((None, ()))
            return len(self.info) - 1
        if not self.nameless:  # all numbers are taken: drop the caches' entries
            self.vm.waits.wait_idle()
            self.forget()
            self.vm.waits.wait_idle()
            self.let_go()
        if not self.nameless:
            raise VMError(f"more than {ENT.LENGTH} kinds of calls and graphs are in use")
        seq, number = self.nameless.popleft()
        self.vm.flight.forget(seq)
        self.reused += 1
        return number

    def let_go(self) -> None:
        """Free the memory of dropped entries that no instruction in flight can need."""
        while dead_entries:
            self._resting.append((issued(), dead_entries.popleft()))
        head = self.words[CTL.HEAD]
        while self._resting and self._resting[0][0] <= head:
            seq, number = self._resting.popleft()
            self.info[number] = (self.info[number][0], ())
            self.nameless.append((seq, number))

    def forget(self) -> None:
        """Empty all caches of entries, so that coming calls are described anew."""
        for forget in self.on_full:
            forget()
