"""Moves between two arrangements in memory, compiled and as Python, and nothing else touched."""

import ctypes

import numpy as np
import pytest

from flowvm.compiler import jit
from flowvm.ops.declare.cpu import walk
from flowvm.ops.declare.cpu.moves import move

SIDES = (1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 33, 40, 64, 70, 130)


@pytest.fixture(scope="module")
def compiled():
    words = ", ".join(["int64"] * 9)
    kind = ctypes.CFUNCTYPE(None, *([ctypes.c_int64] * 9))
    return kind(jit.native(move, f"void({words})"))


def arranged(rng, memory, rows, columns, repeats):
    """A rows x columns view of `memory`, somehow."""
    n = rows * columns
    view = (
        lambda: memory[:n].reshape(rows, columns),
        lambda: memory[:n].reshape(columns, rows).T,
        lambda: memory[: n + 3 * rows].reshape(rows, columns + 3)[:, 1:-2],
        lambda: memory[: 2 * n].reshape(rows, 2 * columns)[:, ::2],
        lambda: memory[: 4 * n].reshape(rows, 4 * columns)[:, ::4],
        lambda: memory[: 3 * n].reshape(rows, 3 * columns)[::-1, ::-3],
        lambda: memory[: n + 2 * columns].reshape(columns, rows + 2)[::-1, 1:-1].T,
        lambda: memory[:n].reshape(rows, columns)[:, ::-1],
    )[rng.integers(8)]()
    if repeats and rng.random() < 0.3:
        view = np.broadcast_to(view[:1] if rng.random() < 0.5 else view[:, :1], view.shape)
    return view


def check(function, seed, sides=SIDES):
    rng = np.random.default_rng(seed)
    size = int(rng.choice((1, 2, 4, 8, 16)))
    rows, columns = rng.choice(sides, 2).tolist()
    words = np.dtype("complex128" if size == 16 else f"u{size}")
    space = 4 * rows * columns + 64
    source = arranged(rng, rng.integers(0, 200, space).astype(words), rows, columns, True)
    memory = rng.integers(0, 200, space).astype(words)
    expected = memory.copy()
    to = arranged(rng, memory, rows, columns, False)
    at = (to.ctypes.data - memory.ctypes.data) // size
    np.lib.stride_tricks.as_strided(expected[at:], to.shape, to.strides)[...] = source
    function(size, to.ctypes.data, *to.strides, source.ctypes.data, *source.strides, rows, columns)
    text = f"{seed=} {size=} {to.shape} {to.strides} <- {source.strides}"
    np.testing.assert_array_equal(memory, expected, err_msg=text)


@pytest.mark.parametrize("block", range(10))
def test_compiled(compiled, block):
    for seed in range(block * 200, block * 200 + 200):
        check(compiled, seed)


def test_in_python():
    for seed in range(100):
        check(move, seed, SIDES[:9])


def test_what_stands_in_until_it_is_compiled(monkeypatch):
    """The stand-in moves the same bytes, and gives way to the compiled move."""
    tuned = ctypes.c_int64(0)
    monkeypatch.setattr(walk, "_tuned", tuned)
    monkeypatch.setattr(walk, "_TUNED", f"flowvm_tuned_move_{id(tuned)}")
    jit.provide(walk._TUNED, ctypes.addressof(tuned))
    kind = ctypes.CFUNCTYPE(None, *([ctypes.c_int64] * 9))
    plain = kind(jit.load(walk._plain_move, "plain move", facts=id(tuned)))
    for seed in range(600):
        check(plain, seed)
    plain(4, 0, 4, 4, 0, 4, 4, 0, 3)  # nothing to move: nothing is read
    calls = []
    noted = kind(lambda *words: calls.append(words))
    tuned.value = ctypes.cast(noted, ctypes.c_void_p).value
    plain(*range(9))
    assert calls == [tuple(range(9))]
    walk._use_tuned()
    assert tuned.value == walk.make_move()
    for seed in range(100):
        check(plain, seed)


def test_onto_itself(compiled, rng):
    for shape in ((40, 40), (3, 7), (1, 100), (100, 1)):
        x = rng.integers(0, 200, shape).astype(np.uint8)
        expected = x.copy()
        for strides in (x.strides, x.strides[::-1]):
            rows, columns = shape if strides == x.strides else shape[::-1]
            compiled(1, x.ctypes.data, *strides, x.ctypes.data, *strides, rows, columns)
        np.testing.assert_array_equal(x, expected)
