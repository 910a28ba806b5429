"""The report of a failed instruction: a row of ERR, whose mark is written last."""

import numpy as np
import pytest

from flowvm.vm.machine.words import ARG, CTL, ERR
from flowvm.vm.workers import error_report


@pytest.fixture
def m():
    return np.zeros(max(ERR.AT + ERR.LENGTH * ERR.WORDS, ARG.AT + 4 * ARG.WORDS), np.int64)


def row(m, number):
    at = ERR.AT + number % ERR.LENGTH * ERR.WORDS
    return m[at : at + ERR.WORDS]


def test_rows_have_the_details_of_their_stream(m):
    m[ARG.AT + 2 * ARG.WORDS : ARG.AT + 2 * ARG.WORDS + ARG.N_DETAILS] = range(11, 17)
    error_report.report(m, 2, 40, 900, 7, -1)
    own = row(m, 0)
    assert own[ERR.DETAILS : ERR.DETAILS + ARG.N_DETAILS].tolist() == list(range(11, 17))
    assert [own[k] for k in (ERR.SEQ, ERR.STATUS, ERR.ENTRY, ERR.TASK, ERR.MARK)] == [
        40, 7, 900, -1, 1,
    ]  # fmt: skip
    assert m[CTL.ERROR_COUNT] == 1


def test_rows_are_used_again(m):
    for number in range(ERR.LENGTH + 2):
        error_report.report(m, 0, 1000 + number, 0, 1, 0)
    assert m[CTL.ERROR_COUNT] == ERR.LENGTH + 2
    assert row(m, 1)[ERR.SEQ] == 1000 + ERR.LENGTH + 1
    assert row(m, 1)[ERR.MARK] == ERR.LENGTH + 2
    assert row(m, 2)[ERR.SEQ] == 1002


def test_nothing_is_poisoned_by_it_so_far(m):
    m[ERR.AT + 5 % ERR.LENGTH * ERR.WORDS + ERR.POISONED] = 9
    error_report.report(m, 0, 5, 0, 1, 0)
    assert m[ERR.AT + 5 % ERR.LENGTH * ERR.WORDS + ERR.POISONED] == 0
