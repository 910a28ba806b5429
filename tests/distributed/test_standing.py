"""The reading of other ranks' rows on the board by a rank that waits, without other ranks; and
reductions by the board, whose ranks are threads.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from flowvm.ops.collectives.cpu.nearby import HOWS, Terms, one
from flowvm.ops.collectives.parts.board import begin, different, text_words
from flowvm.ranks.watcher import ALERTED, DIFFERENT
from flowvm.ranks.words import ALERT, PART, ROW

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


def reduced(
    given: list[list[np.ndarray]], how: str, signs: list[int], raised: int = 0
) -> list[list[int]]:
    """Let a thread for each rank reduce its arrays in their places, one behind the other.

    Return what each has left in its details, none where all went well.
    """
    board = rows(len(given))
    alert = np.zeros(ALERT.WORDS, np.int64)
    alert[ALERT.RAISED] = raised

    def rank(own: int) -> list[int]:
        others = [row.ctypes.data for row in board if row is not board[own]]
        program, details = np.array([*others, *SAID]), np.zeros(8, np.int64)
        scratch, order = np.zeros(PART.BYTES + 8, np.uint8), np.zeros(1, np.int64)
        for x in given[own]:
            terms = Terms(board[own].ctypes.data, alert.ctypes.data, signs[own], len(others), own,
                          HOWS.index(how), x.nbytes)  # fmt: skip
            if one(x, order, program, terms, scratch, 0, 1, details):
                return details.tolist()[:2]
        assert board[own][ROW.DONE] == board[own][ROW.SEQ] == len(given[own])
        return []

    with ThreadPoolExecutor(len(given)) as pool:
        return [*pool.map(rank, range(len(given)))]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_ranks_of_a_host_reduce_by_the_board(how, dtype):
    rng = np.random.default_rng(3)  # the seed of all numbers
    whole = rng.integers(-3, 4, (5, 3, 8)).astype(dtype)  # reductions, ranks, numbers
    given = [[*whole[:, own].copy()] for own in range(3)]
    assert reduced(given, how, [7, 7, 7]) == [[], [], []]
    function = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[how]
    for own in given:
        np.testing.assert_array_equal(own, function.reduce(whole, axis=1))


@pytest.mark.parametrize("how", HOWS)
def test_nan_of_any_rank_is_the_result(how):
    given = [[np.array([np.nan if own == k else 1.0 for k in range(3)])] for own in range(3)]
    assert reduced(given, how, [7, 7, 7]) == [[], [], []]
    assert all(np.isnan(x).all() for (x,) in given)


def test_a_reduction_by_the_board_ends_where_ranks_differ_or_an_alert_is_raised():
    given = [[np.ones(2)], [np.ones(2)]]
    assert reduced(given, "sum", [7, 8]) == [[DIFFERENT, 0], [DIFFERENT, 0]]
    assert reduced(given, "sum", [7, 7], raised=1) == [[ALERTED, 0], [ALERTED, 0]]
