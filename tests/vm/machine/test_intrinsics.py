"""Primitives compiled by Numba, and from words, are what they are in Python."""

from __future__ import annotations

import ctypes
import random

import numpy as np
import pytest

from flowvm.compiler import jit, native
from flowvm.vm.machine import lang
from flowvm.vm.machine.lang import (
    address_in,
    advise_huge,
    aligned_alloc,
    call_address,
    call_kernel,
    clock,
    compare_exchange,
    copy_bytes,
    fetch_add,
    free,
    futex_wait,
    futex_wake,
    load_acquire,
    load_word,
    sched_yield,
    store_release,
    store_word,
    ticks,
    ticks_after,
    words_at,
)

WORDS = 8


def of_words(base: int, k: int, value: int) -> int:
    """Change words, and return a number of all that came out."""
    m = words_at(base, WORDS)
    before = fetch_add(m, k, value)
    store_release(m, k + 1, before + 3)
    known = load_acquire(m, k + 1)
    won = compare_exchange(m, k + 2, value, known)
    lost = compare_exchange(m, k + 2, known + 1, 7)
    total = before + 10 * known
    if won:
        total += 1000
    if lost:
        total += 5000
    return total + (address_in(m, k) - base) * 100_000


def of_addresses(base: int, k: int, value: int) -> int:
    """Change words at addresses, in a loop, as the system's memory functions do."""
    store_word(base + 8 * k, value)
    copy_bytes(base + 8 * (k + 1), base, 8 * (k + 1))
    total = 0
    for _ in range(value & 3):
        block = aligned_alloc(64, 4096)
        total += (block & 63) + advise_huge(base, 0)
        store_word(block, value)
        total += load_word(block)
        free(block)
    return total + load_word(base + 8 * (k + 1))


def of_sleep(base: int, k: int, value: int) -> int:
    """Sleep on a word that has another value, wake nobody, many times, and look at clocks."""
    m = words_at(base, WORDS)
    woken = 0
    begun, first = clock(), ticks()
    for _ in range(3 + k):
        futex_wait(m, k, load_acquire(m, k) + 1, 1_500_000)
        woken += futex_wake(m, k, 4)
        sched_yield()
    backward = 0
    if ticks_after() < first or clock() < begun:
        backward = 1
    return woken + 10 * backward + (load_word(base) & 0)


def of_calls(base: int, k: int, value: int) -> int:
    """Call a C function of four arguments, and one by a row of them."""
    function = load_word(base)
    return call_kernel(function, value, k, -1, 5, 0) * 1000 + call_address(function, base + 8)


def summed(a: int, b: int, lo: int, hi: int) -> int:
    """Return a number of all arguments."""
    return a + 2 * b + 4 * lo + 8 * hi


FUNCTIONS = {function.__name__: function for function in (of_words, of_addresses, of_sleep)}
SIGNATURE = "int64(int64, int64, int64)"


def called(function, how, monkeypatch):
    """The function compiled in a way, or itself."""
    if how == "python":
        return function
    monkeypatch.setitem(globals(), "WORDS_ONLY", how == "words")
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    return kind(jit.native(function, SIGNATURE))


@pytest.mark.parametrize("how", ["numba", "words"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_compiled_primitives(name, how, seed, monkeypatch):
    function, rng = FUNCTIONS[name], random.Random(seed)
    native_function = called(function, how, monkeypatch)
    for _ in range(20):
        values = [rng.randrange(-5, 1000) for _ in range(WORDS)]
        k, value = rng.randrange(4), rng.choice([values[3], rng.randrange(1000)])
        rows = [np.array(values, np.int64) for _ in range(2)]
        results = [
            one(row.ctypes.data, k, value)
            for one, row in zip((function, native_function), rows, strict=True)
        ]
        assert results[0] == results[1]
        assert rows[0].tolist() == rows[1].tolist()


@pytest.mark.parametrize("how", ["python", "numba", "words"])
def test_compiled_calls(how, monkeypatch):
    address = jit.native(summed, "int32(int64, int64, int64, int64)")
    row = np.array([address, 1, 2, 3, 4, *[0] * 16], np.int64)
    result = called(of_calls, how, monkeypatch)(row.ctypes.data, 7, 100)
    assert result == (100 + 14 - 4 + 40) * 1000 + 1 + 4 + 12 + 32


def test_all_primitives_are_called_here():
    """A new primitive needs a line in one of the functions above."""
    primitives = {name for name, value in vars(lang).items() if type(value) is native.Intrinsic}
    used = {n for f in (*FUNCTIONS.values(), of_calls) for n in f.__code__.co_names}
    assert len(primitives) > 15
    assert primitives <= used
