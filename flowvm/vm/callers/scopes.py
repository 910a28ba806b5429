"""Whose is an instruction: the user's line, of backward that of the forward call, and the module.

From level 2 on a call of a module notes, as it ends, its path, its thread, and the numbers of the
instructions that came next when it began and when it ended.  Issuing knows nothing of it: who wants
the module of an instruction looks for the innermost call around it, among those that are over and
those that still run (`running`, which `flowvm.nn.module_calls` knows).

Instructions do not say which thread issued them.  Where modules run in several threads at once,
what was issued meanwhile is nobody's; what a thread without modules issues while another runs one
counts as that module's.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, TypedDict

import numpy as np

from flowvm.vm.callers.lines import NO_ORIGIN, UNKNOWN, Backward, apart, behind
from flowvm.vm.machine.words import REC

CALLS = 1 << 16
NEVER = (1 << 63) - 1  # where a call ends that still runs
NEAR = 4  # instructions of flowvm's own that may come behind the last one of a call
Array = np.ndarray[Any, Any]
Place = tuple[Any, int]  # code object and offset; None and 0 where that is not known any more


class Places(TypedDict):
    """Of some instructions: the user's place that issued each; of those that backward issued, by
    index, that of the forward call; the number of its module in `modules`, whose first is "".
    """

    codes: list[Any]
    lasts: list[int]
    forward: dict[int, Place]
    module: Array
    modules: list[str]


Call = tuple[int, int, int, str]  # instructions [first, last), thread, path


class Scopes:
    """The calls of modules of one engine."""

    def __init__(self) -> None:
        # each behind those inside of it
        self.calls: collections.deque[Call] = collections.deque(maxlen=CALLS)
        self.running: Callable[[], list[Call]] = list

    def paths_of(self, seqs: Array, origins: Array) -> tuple[Array, list[str]]:
        """For each instruction the number of its module in a list of paths, whose first is "".

        What is a part of a gradient belongs to the module of the forward call.
        """
        at = np.where(origins >= 0, origins, seqs)
        at = np.where(origins == UNKNOWN, -1, at)
        at = np.where(origins < UNKNOWN, behind(origins), at)
        numbers: dict[str, int] = {"": 0}
        threads: dict[int, list[tuple[int, int, int]]] = {}
        running = self.running()  # first: what ends meanwhile is there twice, and not never
        for first, last, thread, path in [*self.calls, *running]:
            number = numbers.setdefault(path, len(numbers))
            threads.setdefault(thread, []).append((first, last, number))
        found, known = np.zeros(len(at), np.int64), np.zeros(len(at), np.int64)
        for calls in threads.values():
            first, number_of = np.array(_changes(calls), np.int64).T
            mine = number_of[np.searchsorted(first, at, side="right") - 1]
            found += mine
            known += mine > 0
        return np.where(known == 1, found, 0), list(numbers)

    def places(self, codes: list[Any], lasts: list[int], seqs: Array, oldest: int) -> Places:
        """Of instructions whose codes and offsets are in two rings, from `oldest` on."""
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
    """From which instruction on which number holds, of one thread's calls, each behind those inside
    of it.
    """
    calls.reverse()
    calls.sort(key=lambda call: (call[0], -call[1]))  # those around come first, also of no length
    found, around = [(-1, 0)], [(NEVER, 0)]
    for first, last, number in calls:
        while around[-1][0] <= first:
            end, _ = around.pop()
            found.append((end, around[-1][1]))
        found.append((first, number))
        around.append((last, number))
    while len(around) > 1:
        end, _ = around.pop()
        found.append((end, around[-1][1]))
    return found


def call_of(codes: list[Any], lasts: list[int], seq: int, oldest: int) -> Place:
    """The user's call that issued `seq`; of a gradient that is differentiated, the first one."""
    for k in range(seq, max(seq - NEAR, oldest - 1), -1):
        code, last, origin = apart(codes[k & REC.MASK], lasts[k & REC.MASK])
        if origin >= 0:
            return call_of(codes, lasts, origin, oldest)
        if code is not None:
            return code, last
    return None, 0
