"""A rank's row of the board: texts of exchanges, and where two ranks went different ways."""

import numpy as np

from flowvm.ranks.rows import step_text, unlike
from flowvm.ranks.words import PLACE, ROW, STEP


def row(*hashes, texts=()):
    """A row of exchanges with these running hashes."""
    words = np.zeros(ROW.WORDS, np.int64)
    for seq, digest in enumerate(hashes, 1):
        at = ROW.STEPS + seq % ROW.RING * STEP.WORDS
        words[at + STEP.SEQ], words[at + STEP.HASH] = seq, digest
        text = (texts[seq - 1] if texts else "").encode().ljust(8 * STEP.TEXT_WORDS, b"\0")
        words[at + STEP.TEXT : at + STEP.TEXT + STEP.TEXT_WORDS] = np.frombuffer(text, np.int64)
        words[ROW.SEQ] = seq
    return words


def test_texts_have_a_ranks_own_line():
    own = row(1, 2, texts=["barrier()", f"all_reduce(f32[3]){PLACE}a.py:3"])
    assert step_text(own, 1) == "barrier()"
    assert step_text(own, 2) == "all_reduce(f32[3]) a.py:3"
    assert step_text(own, 3) == "number 3"
    long = row(*range(1, ROW.RING + 2), texts=["é"] * (ROW.RING + 1))
    assert step_text(long, 1) == "number 1"  # overwritten
    assert step_text(long, ROW.RING + 1) == "é"


def test_rows_that_agree_have_no_difference():
    assert unlike(row(), row()) == 0
    assert unlike(row(5, 6), row()) == 0
    assert unlike(row(5, 6), row(5, 6)) == 0
    assert unlike(row(5, 6, 7), row(5, 6)) == 0  # one is further


def test_the_first_difference_is_found():
    assert unlike(row(5, 6, 7, 8), row(5, 9, 10, 11)) == 2
    assert unlike(row(1), row(2, 3)) == 1
    one, other = list(range(200)), list(range(200))
    other[150:] = range(1000, 1050)
    assert unlike(row(*one), row(*other)) == 151
    other[:] = range(1000, 1200)  # since long ago: the oldest that both rows have
    assert unlike(row(*one), row(*other)) == 200 - ROW.RING + 1
