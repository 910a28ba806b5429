"""Records: each instruction is one, written into the ring by the thread that issues it.

A record is published by its last store.  Between taking a sequence number and that store nothing
may raise, or the ring would have a hole that stops the VM: `for seq in counter: break` has no point
at which CPython looks at signals, and `flowvm.vm.callers.interrupt` puts off a Ctrl-C that lands in
one of the functions listed there.

What lies above is called by `hot`, as native calls do it: `after`, `release_dead`, `settle`.
"""

from __future__ import annotations

import collections
import itertools
import struct
import sys
import threading
import time
from collections.abc import Sequence
from types import CodeType
from typing import Any

from flowvm.config import config
from flowvm.errors import InvalidValueError, VMError
from flowvm.vm.callers.hot import FRAMES, hot
from flowvm.vm.callers.interrupt import protected, waiting
from flowvm.vm.callers.lines import apart as line_apart
from flowvm.vm.callers.lines import user_frame
from flowvm.vm.callers.publish_check import assert_none, begun
from flowvm.vm.engine import cancel
from flowvm.vm.engine.entries import Entries
from flowvm.vm.engine.failures import Failures
from flowvm.vm.engine.natives import SLICE_US
from flowvm.vm.machine.words import CTL, KIND, RING
from flowvm.vm.watch.flight import Recorded
from flowvm.vm.watch.narrate import Narrator

CHECK_EVERY = 256  # records between two looks at the limit, the errors and the memory in flight

# exceptions of packing a record; in a debug build an assertion, too
STRUCT_ERRORS = (struct.error, OverflowError, TypeError) + (VMError,) * config.debug_calls
_RECORDS = [struct.Struct(f"{n}q") for n in range(RING.WORDS + 1)]


def no_word(bad: Exception) -> Exception:
    """Return the error for a number, among a call's arguments, that fits in no word of a record."""
    if isinstance(bad, VMError):
        return bad
    return InvalidValueError(f"a number of this call does not fit into 64 bits ({bad})")


def _mark(seq: int) -> int:
    return seq + 1 if RING.ORDERED_STORES else 0


def _deeper(frames: int) -> None:
    """Raise RecursionError if Python has no room for `frames` more frames."""
    if frames:
        _deeper(frames - 1)


class Records:
    """The writer of one engine's records."""

    def __init__(self, vm: Recorded, entries: Entries, failures: Failures) -> None:
        self.vm = vm
        self.words = vm.words
        self.failures = failures
        self.narrator = Narrator(vm)
        # [number, operands outside the record] of LaunchPlans, until they are released
        self.outline: collections.deque[list[Any]] = collections.deque()
        # an instruction that does nothing, where a record could not be written
        self.hole = entries.new(KIND.TOUCH, (), scalars=1, info=None)
        hot.update(
            {
                "ring": self.words[RING.AT : RING.AT + RING.SLOTS * RING.WORDS].cast("B"),
                "control": self.words[: CTL.WORDS],
                "counter": itertools.count(),
                "limit": 0 if config.debug >= 2 else CHECK_EVERY,
                "codes": [None] * FRAMES,
                "lasts": [0] * FRAMES,
                "publish_mark": self.publish_mark,
                "make_room": self.make_room,
                "no_word": no_word,
                "struct_errors": STRUCT_ERRORS,
                "fill_hole": self.fill_hole,
                "any_error": BaseException,
                "getframe": sys._getframe,
                "hole": self.hole,
                "write_hole": _RECORDS[3].pack_into,
            }
        )

    def issue(
        self,
        entry: int,
        operands: Sequence[int],
        scalars: Sequence[int] = (),
        until: float | None = None,
        traced: bool = False,
    ) -> int:
        """Issue one instruction, the slow and general way: `operands` as words, `scalars` as int64.

        `traced`: the trace recorder of this thread was told of it.

        When the VM is full the thread waits for room, but not past the moment `until` of the
        monotonic clock.  The instruction's sequence number.
        """
        seq = self.issue_unsettled(entry, operands, scalars, until, traced)
        if hot["lent"][0]:
            hot["settle"](seq)
        return seq

    def issue_unsettled(
        self,
        entry: int,
        operands: Sequence[int],
        scalars: Sequence[int],
        until: float | None,
        traced: bool,
    ) -> int:
        """Issue one instruction, also one that accesses lent memory."""
        if hot["dead"]:
            hot["release_dead"]()
        if not traced and hot.get("departed") and (trace := hot["trace_recorder"]()) is not None:
            trace.refuse()  # no step stands for this
        code, last = user_frame(2)
        return self.publish(entry, operands, scalars, code, last, until)

    @protected
    def publish(
        self,
        entry: int,
        operands: Sequence[int],
        scalars: Sequence[int],
        code: CodeType | None,
        last: int,
        until: float | None = None,
    ) -> int:
        """Write and publish a record.  Return its sequence number.  All its words are ints."""
        seq = self.write(entry, operands, scalars, code, last)
        self.wake(seq, until)
        return seq

    @protected
    def write(
        self,
        entry: int,
        operands: Sequence[int],
        scalars: Sequence[int],
        code: CodeType | None,
        last: int,
        batch: list[int] | None = None,
        leftover: Sequence[int] = (),
    ) -> int:
        """Publish a record now.  Return its sequence number.

        `batch` becomes `leftover` just before the store.  An exception behind the store must not
        find released ids in it: a lost id leaks memory, and an id freed twice frees another's.
        """
        if config.debug_calls:
            assert_none(self.words, "something was issued")
        count = len(operands) + len(scalars) + 2
        pack = _RECORDS[count].pack_into
        values = (*scalars[::-1], *operands[::-1], entry)
        ring, codes, lasts = hot["ring"], hot["codes"], hot["lasts"]
        back = (RING.WORDS - count) * 8
        counter = hot["counter"]
        _deeper(3)  # or a RecursionError comes here, and not where neither a record can be written
        seq = -1  # nor the hole that it leaves be filled
        try:
            for seq in counter:  # noqa: B007 - not next(): see the module
                break
            if config.debug_calls:
                begun[threading.get_ident()] = seq
            codes[seq & (FRAMES - 1)] = code
            lasts[seq & (FRAMES - 1)] = last
            record: tuple[Any, ...] = (
                ring,
                ((seq & RING.SLOT_MASK) << 8) + back,
                *values,
                _mark(seq),
            )
            if batch is not None:
                batch[:] = leftover
            pack(*record)
            if not RING.ORDERED_STORES:
                self.publish_mark(seq)
        except STRUCT_ERRORS as bad:
            self.fill_hole(seq)
            raise no_word(bad) from None
        except BaseException:
            self.fill_hole(seq)
            raise
        return seq

    def wake(self, seq: int, until: float | None = None) -> None:
        """Wake the scheduler behind a record if it sleeps, and make room for the next records."""
        if self.words[CTL.SCHEDULER_SLEEPS]:
            hot["after"]()
        if seq >= hot["limit"] and until is None:
            hot["make_room"](seq)  # the recorder's, at level 3
        elif seq >= hot["limit"]:
            self.make_room(seq, until)

    def fill_hole(self, seq: int) -> None:
        """Publish an instruction that does nothing in the place of a record that was not written.

        That is one with a scalar that no int64 holds, or in whose place an exception came; one that
        came behind the record finds it published, and nothing is done.  -1: no number was taken.
        """
        place = RING.AT + (seq & RING.SLOT_MASK) * RING.WORDS
        if seq < 0 or self.words[place + RING.MARK] == seq + 1:
            return
        back = (RING.WORDS - 3) * 8
        _RECORDS[3].pack_into(
            hot["ring"], ((seq & RING.SLOT_MASK) << 8) + back, 0, self.hole, _mark(seq)
        )
        if not RING.ORDERED_STORES:
            self.publish_mark(seq)

    def publish_mark(self, seq: int) -> None:
        """Publish a record whose words are all written, on machines where stores may pass each
        other.
        """
        self.vm.loops.function("publish_mark")(self.vm.base, seq)

    @waiting
    def make_room(self, seq: int, until: float | None = None) -> None:
        """Wait until the VM has room, and read its news; called by an issuing thread past
        `limit`.
        """
        flight, level = self.vm.flight, self.words[CTL.LEVEL]
        if config.debug >= 2:
            place = seq & (FRAMES - 1)
            self.narrator.tell(seq, *line_apart(hot["codes"][place], hot["lasts"][place])[:2])
        flight.note(seq)
        self.failures.collect()
        limit = self.words[CTL.LIMIT]
        if seq >= limit:
            begun = time.monotonic_ns()
            # as `finish` of the machine lowers the limit
            full = 2 * self.words[CTL.IN_FLIGHT_BYTES] > self.words[CTL.BYTES_HIGH]
            function = self.vm.loops.function  # another one once it is compiled
            while seq >= (limit := function("wait_room")(self.vm.base, seq, SLICE_US)):
                if until is not None and time.monotonic() > until:
                    return
                cancel.name_wait(self.vm, begun / 1e9)
                if not self.vm.threads.running:  # another thread has changed the engine meanwhile
                    hot["after"]()
            flight.waited("memory" if full else "credit", begun, seq)
        self._look_behind(min(limit, seq + min(CHECK_EVERY, flight.every)), level)

    def _look_behind(self, limit: int, level: int) -> None:
        """Let records below `limit` be issued without a look, if each one's line or stack is not
        wanted, and while the recorder's level is `level`.  Who changes what is wanted sets `limit`
        to 0, perhaps before it is set here.
        """
        hot["limit"] = limit
        hot["make_room"] = self.vm.flight.keep or self.make_room
        if config.debug >= 2 or level >= 3 or self.words[CTL.LEVEL] != level:
            hot["limit"] = 0  # not a number: a call's releases come behind it, and before its look

    def change_debug(self, level: int) -> None:
        """Set up printing for a debug level.  From level 2 on every record comes by `make_room`,
        which prints its line.
        """
        self.narrator = Narrator(self.vm)
        if level >= 2:
            hot["limit"] = self.vm.flight.due[0] = 0

    def after_fork_in_child(self) -> None:
        """Forget in a forked child which of the parent's instructions accessed what."""
        self.narrator = Narrator(self.vm)
