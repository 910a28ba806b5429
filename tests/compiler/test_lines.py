"""Replacements of Numba's handling of arrays and ranges mean the same as in Python."""

import ctypes

import numpy as np
import pytest

from flowvm.compiler import jit
from flowvm.compiler.native import lower


def compiled(function, *kinds):
    """`function` of int64 numbers and arrays "float32[]", as Python calls it; -1 if it raised."""
    from numba import types

    words = {"i8": types.int64, "i4": types.int32, "u8": types.uint64}
    arrays = {"f": types.Array(types.float32, 1, "C"), "b": types.Array(types.uint8, 1, "C")}
    known = {**words, **arrays}
    lowered = lower(function, tuple(known[k] for k in kinds), types.int64)
    address = jit.load(lambda: jit.c_function(lowered), function.__qualname__, kinds)
    count = {k: 1 if k in words else 7 for k in kinds}
    every = [
        ctypes.c_int32 if k == "i4" else ctypes.c_int64 for k in kinds for _ in range(count[k])
    ]
    call = ctypes.CFUNCTYPE(ctypes.c_int64, *every)(address)

    def run(*values):
        passed = []
        for value in values:
            if isinstance(value, np.ndarray):
                passed += [0, 0, value.size, value.itemsize, value.ctypes.data, value.size]
                passed += [value.itemsize]
            else:
                passed.append(value)
        return call(*passed)

    return run


def element(x, i):
    return int(x[i])


def stored(x, i, value):
    x[i] = value
    return int(x[i])


def between(x, i, j):
    y = x[i:j]
    total = len(y) * 1000 + y.size
    for k in range(len(y)):
        total += int(y[k]) * (k + 1)
    return total


def behind(x, i):
    y = x[i:]
    return len(y) * 1000 + (int(y[0]) if len(y) > 0 else 0)


def before(x, i):
    y = x[:i]
    return len(y) * 1000 + (int(y[-1]) if len(y) > 0 else 0)


def view_of(x):
    y = x.view(np.int32)
    return len(y) * 100000 + y.itemsize * 10000 + int(y[len(y) - 1])


def narrowed(x):
    y = x.view(np.int16)
    return len(y) * 100000 + y.strides[0] * 10000 + int(y[1])


def test_an_index_counts_from_the_end_where_it_is_negative():
    x = np.arange(10, 17, dtype=np.float32)
    read, write = compiled(element, "f", "i8"), compiled(stored, "f", "i8", "i8")
    for i in range(-7, 7):
        assert read(x, i) == x[i]
        assert write(x, i, 5) == 5
        assert x[i] == 5
        x[i] = i
    assert compiled(element, "f", "u8")(x, 6) == 6
    assert compiled(element, "f", "i4")(x, -1) == 6


@pytest.mark.parametrize("size", [0, 1, 6])
def test_slices_end_where_the_array_does(size):
    x = np.arange(10, 10 + size, dtype=np.float32)
    some, rest, first = (
        compiled(between, "f", "i8", "i8"), compiled(behind, "f", "i8"), compiled(before, "f", "i8")
    )  # fmt: skip
    most = (1 << 63) - 1
    for i in (-most - 1, -9, -6, -2, -1, 0, 1, 5, 6, 9, most):
        assert rest(x, i) == behind(x, i)
        assert first(x, i) == before(x, i)
        for j in (-most - 1, -7, -3, 0, 2, 6, 8, most):
            assert some(x, i, j) == between(x, i, j), (i, j)


def test_a_view_has_the_bytes_and_its_own_length_or_raises():
    x = np.arange(24, dtype=np.uint8)
    assert compiled(view_of, "b")(x) == view_of(x)
    assert compiled(view_of, "b")(x[:0]) != -1
    assert compiled(view_of, "b")(x[:10]) == -1  # NumPy: a ValueError
    reals = np.arange(6, dtype=np.float32)
    assert compiled(view_of, "f")(reals) == view_of(reals)
    assert compiled(narrowed, "f")(reals) == narrowed(reals)


def ranges(step):
    def counted(start, stop):
        total = 0
        for i in range(start, stop, step):
            total = (total * 31 + i % 1000 + 1) % 1000003
        return total

    return counted


@pytest.mark.parametrize("step", [1, 2, 7, -1, -3])
@pytest.mark.parametrize("kind", ["i8", "i4"])
def test_ranges_of_a_written_step(step, kind):
    python = ranges(step)
    run = compiled(python, kind, kind)
    last = (1 << (31 if kind == "i4" else 63)) - 1
    ends = [(0, 0), (0, 9), (9, 0), (-4, 4), (4, -4), (3, 4), (last - 9, last), (-last, -last + 9)]
    for start, stop in ends:
        assert run(start, stop) == python(start, stop), (start, stop)


def of_one(n):
    total = 0
    for i in range(n):
        for j in range(i, n):
            total += i * j
    return total + len(range(0, n, 3))


def test_ranges_from_zero_and_the_length_of_one():
    for n in (-3, 0, 1, 8):
        assert compiled(of_one, "i8")(n) == of_one(n)


def test_numba_has_its_own_ways_back():
    from flowvm.compiler.native import _frontend

    for owner, name, _ in _frontend().ways:
        assert name not in vars(owner)
