"""Failures of instructions kept until somebody sees them: copies, tracebacks, notes, reports."""

import gc
import sys
import traceback
import weakref

import pytest

from flowvm.errors import InvalidValueError
from flowvm.vm.engine import failures
from flowvm.vm.engine.failures import Errors, Failure, Failures


class MineError(Exception):
    """An error that is made with two arguments, which it does not keep."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")
        self.first = first


def raised(error):
    try:
        raise error
    except BaseException as caught:
        return caught


def test_another_exception_is_equal():
    cause = ValueError("cause")
    error = raised(MineError(1, 2))
    error.add_note("a note")
    error.__cause__, error.extra = cause, [3]
    again = failures._another(error)
    assert again is not error
    assert (str(again), again.first, again.extra) == ("1 and 2", 1, [3])
    assert again.__notes__ == ["a note"]
    assert again.__notes__ is not error.__notes__
    assert again.__cause__ is cause
    assert again.__traceback__ is None


def test_waiters_get_one_object_as_long_as_one_holds_it():
    failure = Failure(3, "add", MineError(1, 2), None, 0)
    first = failure.waiters_exception()
    assert failure.waiters_exception() is first
    assert failure.exception is not first
    gone = weakref.ref(first)
    del first
    gc.collect()
    assert gone() is None
    assert str(failure.waiters_exception()) == "1 and 2"


def test_tracebacks_keep_lines_and_no_locals():
    def inner():
        big = bytearray(8)
        held.append(weakref.ref(Local(big)))
        raise ValueError("x")

    class Local:
        def __init__(self, what):
            self.what = what

    held = []
    error = raised_by(inner)
    before = [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(error.__traceback__)]
    failures._forget_frames(error)
    after = [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(error.__traceback__)]
    assert after == before
    gc.collect()
    assert held[0]() is None
    tb = error.__traceback__
    while tb is not None:
        assert not tb.tb_frame.f_locals
        tb = tb.tb_next


def raised_by(function):
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError


def test_causes_that_are_a_circle_end():
    one, other = raised(ValueError("a")), raised(ValueError("b"))
    one.__cause__, other.__cause__ = other, one
    failures._forget_frames(one)
    assert one.__cause__ is other


class VM:
    """As much of an engine as the log asks for."""

    entry_info = ()


@pytest.fixture
def log(monkeypatch):
    one = Failures(VM())
    monkeypatch.setattr(one, "new", lambda: False)
    monkeypatch.setattr(failures, "note_of", lambda vm, failure: f"note of #{failure.seq}")
    return one


def add(log, seq, **facts):
    log.by_seq[seq] = Failure(seq, f"op{seq}", InvalidValueError(f"bad {seq}"), None, 0, **facts)


def test_the_first_that_nobody_saw_is_raised_with_the_others(log):
    for seq in (3, 5, 7):
        add(log, seq)
    log.by_seq[3].seen = True
    told = []
    log.told_of = told.append
    with pytest.raises(InvalidValueError, match="bad 5") as error:
        log.raise_unseen()
    assert error.value.__notes__[0] == "note of #5"
    assert error.value.__notes__[1].startswith("flowvm: and #7 op7: InvalidValueError")
    assert told == [{6, 8}]
    log.raise_unseen()  # all are seen now


def test_notes_are_anew_and_once(log, monkeypatch):
    add(log, 3)
    first = log.exception(3)
    monkeypatch.setattr(failures, "note_of", lambda vm, failure: "a longer note")
    again = log.exception(3)
    assert again is first
    assert again.__notes__ == ["a longer note"]


def test_a_restore_that_fails_is_a_note(log):
    def fail(causes):
        raise MemoryError("none left")

    add(log, 3)
    log.told_of = fail
    error = log.to_raise(3)
    assert any("nothing was restored: MemoryError" in note for note in error.__notes__)


def test_captured_ones_are_no_failures(log):
    add(log, 3, captured=True, seen=True)
    add(log, 4)
    told = []
    log.told_of = told.append
    assert [f.seq for f in log.all()] == [4]
    assert str(log.to_raise(3)) == "bad 3"
    assert told == []  # until its missing value was needed
    assert len(log.all()) == 2


def test_what_is_forgotten_is_said(log):
    assert "failed too long ago to be remembered" in str(log.exception(99))
    assert log.last() is None
    assert repr(log.all()) == "no errors"
    add(log, 3)
    assert repr(Errors(log.by_seq.values())).startswith("#3 op3  ")
    assert "seen by nobody so far" in repr(log.by_seq[3])
    assert str(log.last()) == "bad 3"


def test_unseen_failures_are_printed_at_exit(log, capsys, monkeypatch):
    ended = []
    monkeypatch.setattr("flowvm.vm.engine.exit_code.fail", lambda: ended.append(1))
    log.report_unseen()
    assert ended == []
    for seq in range(7):
        add(log, seq)
    log.by_seq[0].seen = True
    log.report_unseen()
    err = capsys.readouterr().err
    assert err.count("failed and nobody looked at its result: InvalidValueError") == 5
    assert "flowvm: and 1 more failed instructions" in err
    assert ended == [1]
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    log.report_unseen()
    assert ended == [1]  # a prompt goes on
    log.after_fork_in_child()
    capsys.readouterr()
    log.report_unseen()
    assert capsys.readouterr().err == ""


def test_errors_are_awaited_for_a_time(log):
    add(log, 3)
    assert log.awaited(3, 0.0) is log.by_seq[3]
    assert log.awaited(4, 0.0) is None
