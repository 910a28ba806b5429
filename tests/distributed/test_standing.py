"""The reading of other ranks' rows on the board by a rank that waits, without other ranks."""

import numpy as np

from flowvm.ops.collectives.parts.board import begin, different, text_words
from flowvm.ranks.words import ROW

SAID = np.array(text_words(b"all_reduce(f32[3], sum)"))


def rows(count: int) -> list[np.ndarray]:
    return [np.zeros(ROW.WORDS, np.int64) for _ in range(count)]


def begun(row: np.ndarray, sign: int) -> int:
    return begin(row.ctypes.data, sign, SAID.ctypes.data)


def test_who_does_something_else():
    own, second, third = rows(3)
    others = np.array([second.ctypes.data, third.ctypes.data, 0])  # the last is of another host
    at = others.ctypes.data
    seq = begun(own, 7)
    begun(second, 7)
    begun(third, 7)
    assert different(own.ctypes.data, at, 3, seq) == 0
    begun(second, 7)  # is further
    seq = begun(own, 8)
    assert different(own.ctypes.data, at, 3, seq) == 1
