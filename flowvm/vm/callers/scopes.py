"""The owner of an instruction: the user's line, for backward the forward call's line, and the
module.

From level 2 on a call of a module notes, as it ends, its path, its thread, and the numbers of the
next instructions at its beginning and its end.  Issuing knows nothing of it.  The module of an
instruction is the innermost call around it, among finished and running ones.

Calls that are native (`flowvm.eager.native.module`) note it in NOTES, all others in `calls`, and
of these `running`, which `flowvm.nn.module_calls` knows, says which still run.

Instructions do not say which thread issued them.  If modules run in several threads at once,
instructions issued meanwhile belong to none.  Instructions of a thread without modules, issued
while another thread runs one, count as that module's.
"""

from __future__ import annotations

import collections
import ctypes
import sys
from collections.abc import Callable
from threading import get_ident
from typing import Any, TypedDict

import numpy as np

from flowvm.guards.collection import Uncollected
from flowvm.meta.arrays import Array
from flowvm.vm.callers.lines import NO_ORIGIN, UNKNOWN, Backward, apart, behind
from flowvm.vm.machine.record import Record, field, record
from flowvm.vm.machine.words import REC

CALLS = 1 << 16  # that are remembered
NESTED = 1 << 10  # native ones that may run at once, in all threads; others are not native
NEVER = (1 << 63) - 1  # where a call ends that still runs
NEAR = 4  # instructions of flowvm's own that may come behind the last one of a call
Place = tuple[Any, int]  # code object and offset; None and 0 where that is not known any more


@record(words=6, by="who has the GIL")
class OPEN(Record):
    """A running native call."""

    TICKET = field("which one this is, of all that began; 0: nobody has these words")
    FIRST = field("the number of the instruction that came next when it began")
    THREAD = field("whose, as `threading.get_ident` says")
    PATH = field("the number of its path")
    MODULE = field("the address of the module")
    NEXT = field("the address of the next OPEN that nobody has, or 0")


@record(words=4, by="who has the GIL")
class OVER(Record):
    """A finished native call: the fields of OPEN, and the next instruction at its end."""

    FIRST = field("the first instruction")
    LAST = field("the first one behind it")
    THREAD = field("whose")
    PATH = field("the number of its path")


@record(by="who has the GIL")
class NOTES(Record):
    """The calls of modules that are native."""

    COUNT = field("how many are over")
    BEGUN = field("how many began")
    FREE = field("the address of an OPEN that nobody has, or 0")
    KNOWN = field("dict from addresses of modules to numbers of paths", by="who makes it")
    ADD = field("gives the number of a module's path", by="who makes it")
    PLAIN = field("what calls modules that have hooks", by="who makes it")
    RUNNING = field("those that run", words=NESTED * 6)
    OVER = field("those that are over, the last CALLS of them", words=CALLS * 4)
    WORDS = 6 + NESTED * 6 + CALLS * 4


class Places(TypedDict):
    """The places of some instructions.  `codes` and `lasts` have the user's place that issued
    each.  `forward` has the forward call's place of backward instructions, by index.  `module` has
    indices into `modules`, whose first name is "".
    """

    codes: list[object]
    lasts: list[int]
    forward: dict[int, Place]
    module: Array
    modules: list[str]


Call = tuple[int, int, int, str]  # instructions [first, last), thread, path


class Scopes:
    """The calls of modules of one engine."""

    def __init__(self) -> None:
        # each call is behind its inner calls
        self.calls: collections.deque[Call] = collections.deque(maxlen=CALLS)
        self.running: Callable[[], list[Call]] = list
        self.notes: Any = None  # NOTES, once calls are native
        self.names: dict[int, str] = {}  # the paths that it has the numbers of

    def take_notes(self) -> Any:
        """Return NOTES for native calls, a ctypes array."""
        if self.notes is None:
            self.notes = (ctypes.c_int64 * NOTES.WORDS)()
            self._free_all_but(())
        return self.notes

    def _free_all_but(self, persistent: tuple[int, ...]) -> None:
        """Free the OPENs, except for the ones that begin at these words."""
        words, following = self.notes, 0
        for at in range(NOTES.RUNNING, NOTES.OVER, OPEN.WORDS):
            if at not in persistent:
                words[at + OPEN.TICKET], words[at + OPEN.NEXT] = 0, following
                following = ctypes.addressof(words) + 8 * at
        words[NOTES.FREE] = following

    def after_fork_in_child(self) -> None:
        """Keep only the running calls of this thread, in a forked child."""
        if self.notes is not None:
            rows = enumerate(self._open())
            mine = [k for k, row in rows if row[OPEN.TICKET] and row[OPEN.THREAD] == get_ident()]
            self._free_all_but(tuple(NOTES.RUNNING + k * OPEN.WORDS for k in mine))

    def _open(self) -> Array:
        """Return a copy of the OPENs at one moment."""
        at = ctypes.addressof(self.notes) + 8 * NOTES.RUNNING
        rows = np.frombuffer(ctypes.string_at(at, 8 * NESTED * OPEN.WORDS), np.int64)
        return rows.reshape(NESTED, OPEN.WORDS)

    def outermost(self) -> Any:
        """The module of this thread's native call that began first, or None."""
        if self.notes is None:
            return None
        mine = [
            r for r in self._open().tolist() if r[OPEN.TICKET] and r[OPEN.THREAD] == get_ident()
        ]
        if not mine:
            return None
        return ctypes.cast(min(mine)[OPEN.MODULE], ctypes.py_object).value

    def native(self, oldest: int) -> list[Call]:
        """Return the native calls that issued instructions `oldest` or later, each behind its inner
        calls.
        """
        if self.notes is None:
            return []
        # one copy, beside which no other thread runs: a call is over or runs
        whole = np.frombuffer(ctypes.string_at(self.notes, ctypes.sizeof(self.notes)), np.int64)
        rows = whole[NOTES.OVER :].reshape(CALLS, OVER.WORDS)
        count = int(whole[NOTES.COUNT])
        rows = np.roll(rows, -count, axis=0) if count > CALLS else rows[:count]
        rows = rows[rows[:, OVER.LAST] > oldest]
        now = whole[NOTES.RUNNING : NOTES.OVER].reshape(NESTED, OPEN.WORDS)
        with Uncollected():
            alive = list(sys._current_frames())
        now = now[(now[:, OPEN.TICKET] > 0) & np.isin(now[:, OPEN.THREAD], alive)]
        now = now[np.argsort(-now[:, OPEN.TICKET])]
        notes = [(first, last, t, self.names[n]) for first, last, t, n in rows.tolist()]
        columns = now[:, [OPEN.FIRST, OPEN.THREAD, OPEN.PATH]].tolist()
        return notes + [(first, NEVER, t, self.names[n]) for first, t, n in columns]

    def paths_of(self, seqs: Array, origins: Array) -> tuple[Array, list[str]]:
        """Return the number of each instruction's module in a list of paths, whose first is "".

        An instruction of a gradient belongs to the module of the forward call.
        """
        at = np.where(origins >= 0, origins, seqs)
        at = np.where(origins == UNKNOWN, -1, at)
        at = np.where(origins < UNKNOWN, behind(origins), at)
        numbers: dict[str, int] = {"": 0}
        threads: dict[int, list[tuple[int, int, int]]] = {}
        running = self.running()  # first: a call that ends meanwhile is seen twice, and not never
        oldest = int(at[at >= 0].min(initial=NEVER))
        for first, last, thread, path in [*self.native(oldest), *self.calls, *running]:
            number = numbers.setdefault(path, len(numbers))
            threads.setdefault(thread, []).append((first, last, number))
        paths, known = np.zeros(len(at), np.int64), np.zeros(len(at), np.int64)
        for calls in threads.values():
            first, number_of = np.array(_changes(calls), np.int64).T
            mine = number_of[np.searchsorted(first, at, side="right") - 1]
            paths += mine
            known += mine > 0
        return np.where(known == 1, paths, 0), list(numbers)

    def places(self, codes: list[object], lasts: list[int], seqs: Array, oldest: int) -> Places:
        """Return the places of instructions whose codes and offsets are in two rings, from `oldest`
        on.
        """
        at = (seqs & REC.MASK).tolist()
        own_codes, own_lasts = [codes[p] for p in at], [lasts[p] for p in at]
        origins = np.full(len(at), NO_ORIGIN)
        forward: dict[int, Place] = {}
        calls: dict[int, Place] = {}  # by origin: a gradient is several instructions
        for i, code in enumerate(own_codes):
            if code.__class__ is Backward:
                own_codes[i], own_lasts[i], origin = apart(code, own_lasts[i])
                if origin not in calls:
                    calls[origin] = call_of(codes, lasts, origin, oldest)
                origins[i], forward[i] = origin, calls[origin]
        module, modules = self.paths_of(seqs, origins)
        return Places(
            codes=own_codes, lasts=own_lasts, forward=forward, module=module, modules=modules
        )


def _changes(calls: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """Return pairs: an instruction, and the module's number that holds from it on.  `calls` are one
    thread's, each behind its inner calls.
    """
    calls.reverse()
    calls.sort(key=lambda call: (call[0], -call[1]))  # outer calls come first, also of no length
    changes, around = [(-1, 0)], [(NEVER, 0)]
    for first, last, number in calls:
        while around[-1][0] <= first:
            end, _ = around.pop()
            changes.append((end, around[-1][1]))
        changes.append((first, number))
        around.append((last, number))
    while len(around) > 1:
        end, _ = around.pop()
        changes.append((end, around[-1][1]))
    return changes


def call_of(codes: list[object], lasts: list[int], seq: int, oldest: int) -> Place:
    """The user's call that issued `seq`; of a gradient that is differentiated, the first one."""
    for k in range(seq, max(seq - NEAR, oldest - 1), -1):
        code, last, origin = apart(codes[k & REC.MASK], lasts[k & REC.MASK])
        if origin >= 0:
            return call_of(codes, lasts, origin, oldest)
        if code is not None:
            return code, last
    return None, 0
