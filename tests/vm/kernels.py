"""Kernels whose order shows, kernels that wait, and kernels that fail.

All work on int64 tensors, where arithmetic is exact and wraps, so results compare bit for bit.
Scripts that tests run in a process of their own import this module too.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from flowvm.compiler import jit
from flowvm.eager.declaration import Invocation, Kernel, Signature
from flowvm.eager.interpreter import Operator
from flowvm.eager.tensor import Tensor
from flowvm.eager.values import adopt_array
from flowvm.meta.dtype import int64
from flowvm.meta.meta import TensorMeta
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.lang import fetch_add, load_acquire, sched_yield, store_release, words_at
from flowvm.vm.machine.words import ARG

SIGNATURE = "int32(int64, int64, int64, int64)"
SIZE = 48  # elements of most tensors here
HEADER = 8  # words of the argument block before the operands' addresses
USER_STATUS = 9000  # nobody has declared a meaning for it


def mix_kernel(args: int, layout: int, lo: int, hi: int) -> int:
    """out[i] = 3 x[i] - y[n-1-i] + k"""
    a, n = words_at(args, 16), words_at(layout, 1)[0]
    out, x, y, k = words_at(a[8], n), words_at(a[9], n), words_at(a[10], n), a[11]
    for i in range(lo, hi):
        out[i] = 3 * x[i] - y[n - 1 - i] + k
    return 0


def update_kernel(args: int, layout: int, lo: int, hi: int) -> int:
    """x[i] = 5 x[i] + y[i] + k, in place: no two of them commute."""
    a, n = words_at(args, 16), words_at(layout, 1)[0]
    x, y, k = words_at(a[8], n), words_at(a[9], n), a[10]
    for i in range(lo, hi):
        x[i] = 5 * x[i] + y[i] + k
    return 0


def scan_kernel(args: int, layout: int, lo: int, hi: int) -> int:
    """x[i] = 3 x[i-1] + x[i] + y[i] + k, from the range's second element on: the range shows."""
    a, n = words_at(args, 16), words_at(layout, 1)[0]
    x, y, k = words_at(a[8], n), words_at(a[9], n), a[10]
    for i in range(lo + 1, hi):
        x[i] = 3 * x[i - 1] + x[i] + y[i] + k
    return 0


def odd_kernel(args: int, layout: int, lo: int, hi: int) -> int:
    """The odd elements of x; how many there are is known only after a first look."""
    a, n = words_at(args, 16), words_at(layout, 1)[0]
    x = words_at(a[9], n)
    count = 0
    if lo < 0:
        for i in range(n):
            count += x[i] & 1
    else:
        out = words_at(a[8], n)
        for i in range(n):
            if x[i] & 1:
                out[count] = x[i]
                count += 1
    a[0] = count
    return 0


def wait_kernel(args: int, layout: int, lo: int, hi: int) -> int:
    """x[0] += y[0], but not before the gate at address k is open."""
    a = words_at(args, 16)
    gate = words_at(a[10], 2)
    fetch_add(gate, 1, 1)  # whoever looks knows that it waits
    while load_acquire(gate, 0) == 0:
        sched_yield()
    words_at(a[8], 1)[0] += words_at(a[9], 1)[0]
    return 0


def open_kernel(args: int, layout: int, lo: int, hi: int) -> int:
    """x[0] += y[0], and the gate at address k opens."""
    a = words_at(args, 16)
    words_at(a[8], 1)[0] += words_at(a[9], 1)[0]
    store_release(words_at(a[10], 1), 0, 1)
    return 0


def meet_kernel(args: int, layout: int, lo: int, hi: int) -> int:
    """Every unit waits until y[0] of them have come: they are on as many threads."""
    a = words_at(args, 16)
    x = words_at(a[8], 1)
    fetch_add(x, 0, 1)
    while load_acquire(x, 0) < words_at(a[9], 1)[0]:
        sched_yield()
    return 0


def fail_kernel(args: int, layout: int, lo: int, hi: int) -> int:
    """Returns its scalar as the status, with details 7, 8, 9."""
    a = words_at(args, 16)
    a[0], a[1], a[2] = 7, 8, 9
    return a[10]


def count_kernel(args: int, layout: int, lo: int, hi: int) -> int:
    """counts[u] += 1 for every unit u, counts[n] += 1 for the call; status k at unit layout[1]."""
    a, shape = words_at(args, 16), words_at(layout, 2)
    n, bad = shape[0], shape[1]
    counts = words_at(a[8], n + 1)
    fetch_add(counts, n, 1)
    for u in range(lo, hi):
        fetch_add(counts, u, 1)
        if u == bad:
            a[0] = u
            return a[9]
    return 0


def phases_kernel(args: int, layout: int, lo: int, hi: int) -> int:
    """Sums of 8 go to scratch, sums of 4 of those, in phase 1, too; x[i] += their sum in phase 2.

    A range that starts before the phase in front is done shows in the result.
    """
    a, n = words_at(args, 16), words_at(layout, 1)[0]
    phase = lo >> ARG.PHASE_BITS
    first, last = lo - (phase << ARG.PHASE_BITS), hi - (phase << ARG.PHASE_BITS)
    x, eights = words_at(a[8], n), n // 8
    scratch = words_at(a[6], eights + eights // 4)
    for u in range(first, last):
        if phase == 0:
            scratch[u] = 0
            for i in range(8 * u, 8 * u + 8):
                scratch[u] += x[i]
        elif phase == 1:
            scratch[eights + u] = 0
            for i in range(4 * u, 4 * u + 4):
                scratch[eights + u] += scratch[i]
        else:
            total = a[10]
            for i in range(eights, eights + eights // 4):
                total += scratch[i]
            x[u] += total
    return 0


def arena_kernel(args: int, layout: int, lo: int, hi: int, arena: int) -> int:
    """x[u] = u, by way of the whole arena: two threads with one arena would disturb each other."""
    a = words_at(args, 16)
    x, own = words_at(a[8], words_at(layout, 1)[0]), words_at(arena, ARG.ARENA_BYTES // 8)
    for u in range(lo, hi):
        for i in range(0, len(own), 64):
            own[i] = u
        sched_yield()
        for i in range(0, len(own), 64):
            if own[i] != u:
                return USER_STATUS
        x[u] = u if arena % 64 == 0 else -1
    return 0


def _lower(kernel: Any, grain: int = 0, units: int | None = None) -> Any:
    def lower(metas: tuple[TensorMeta, ...], attrs: tuple[Any, ...]) -> Invocation:
        n = metas[0].numel
        return Invocation(
            outputs=(metas[0],),
            kernel=jit.native(kernel, SIGNATURE),
            layout=np.array([n, *attrs], np.int64),
            units=n if units is None else units,
            grain=grain or n,
        )

    return lower


def _lower_in_place(kernel: Any, grain: int = 0, units: int | None = None) -> Any:
    lower = _lower(kernel, grain, units)

    def without_outputs(metas: tuple[TensorMeta, ...], attrs: tuple[Any, ...]) -> Invocation:
        lowered = lower(metas, attrs)
        return Invocation((), lowered.kernel, lowered.layout, lowered.units, lowered.grain)

    return without_outputs


def _in_place(name: str, kernel: Any, grain: int = 0, units: int | None = None) -> Any:
    lower = _lower_in_place(kernel, grain, units)
    signature = Signature(("x", "y"), scalars=("k",), scalar_kinds="q", writes=frozenset("x"))
    return Operator(name, signature, Kernel(lower)).call


mix = Operator(
    "mix",
    Signature(("x", "y"), ("out",), scalars=("k",), scalar_kinds="q"),
    Kernel(_lower(mix_kernel)),
).call
update = _in_place("update", update_kernel)
update_in_chunks = _in_place("update_in_chunks", update_kernel, grain=7)
scan_in_chunks = _in_place("scan_in_chunks", scan_kernel, grain=100)


def _phases(metas: tuple[TensorMeta, ...], attrs: tuple[Any, ...]) -> Invocation:
    n = metas[0].numel
    return Invocation(
        (),
        jit.native(phases_kernel, SIGNATURE),
        np.array([n], np.int64),
        units=n // 8,
        grain=2,
        scratch=n // 8 * 10,
        phases=((n // 32, 1), (n, 5)),
    )


def _arena(metas: tuple[TensorMeta, ...], attrs: tuple[Any, ...]) -> Invocation:
    n = metas[0].numel
    signature = SIGNATURE.replace(")", ", int64)")
    return Invocation((), jit.native(arena_kernel, signature), np.array([n], np.int64), n, 1)


add_total_in_phases = Operator(
    "add_total_in_phases",
    Signature(("x", "y"), scalars=("k",), scalar_kinds="q", writes=frozenset("x")),
    Kernel(_phases),
).call
count_by_arena = Operator(
    "count_by_arena", Signature(("x",), writes=frozenset("x")), Kernel(_arena)
).call
meet = _in_place("meet", meet_kernel, grain=1, units=3)
# a grain of one: what waits is not brief, and never run by a thread that waits for a value
wait_for_gate = _in_place("wait_for_gate", wait_kernel, grain=1, units=1)
open_gate = _in_place("open_gate", open_kernel, units=1)
fail = _in_place("fail", fail_kernel, units=1)
odd = Operator(
    "odd",
    Signature(("x",), ("out",), unsized=frozenset({"out"})),
    Kernel(_lower(odd_kernel, units=1)),
).call


class Gate:
    """A promise that a kernel waits for: `wait_for_gate(x, y, gate.address)`.

    Inside `with Gate()` the VM has what the test issues and nothing else: what others left is
    released before, and no garbage is collected.
    """

    every: ClassVar[list[Gate]] = []

    def __init__(self) -> None:
        self.words = (ctypes.c_int64 * 2)()  # open, kernels that came to wait
        self.address = ctypes.addressof(self.words)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.words))  # a kernel may look at it for ever
        Gate.every.append(self)

    def open(self) -> None:
        self.words[0] = 1

    @property
    def is_reached(self) -> bool:
        """True if a kernel is waiting."""
        return bool(self.words[1])

    def __enter__(self) -> Gate:
        self.alone = alone()
        self.alone.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.open()
        self.alone.__exit__(None, None, None)


@contextmanager
def alone() -> Iterator[None]:
    """Nothing that others left is released inside: it goes before, and no garbage is collected."""
    gc.collect()
    engine.storages.release_dead()
    engine.waits.wait_idle()
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


_seeds = itertools.count()


def tensor(values: Any = None) -> Tensor:
    """An int64 tensor over memory of its own."""
    if values is None:
        values = np.arange(SIZE) * 7 + next(_seeds)
    return adopt_array(np.array(values, np.int64))


def empty(n: int = SIZE) -> Tensor:
    """A fresh tensor that the VM allocates: mix(x, x, 0)."""
    x = tensor(np.ones(n))
    result: Tensor = mix(x, x, 0)
    return result


META = TensorMeta.of((SIZE,), int64)
