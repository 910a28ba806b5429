"""CPython's record of a thread's work is found, and no look at it can fault."""

from __future__ import annotations

import sys
import threading

import pytest

from flowvm.errors import VMError
from flowvm.private import frames
from tests.vm.live import Background

needs_layout = pytest.mark.skipif(
    bool(frames.why_not()) and sys.version_info >= (3, 12), reason=frames.why_not()
)


@needs_layout
def test_it_is_found_here():
    assert frames.why_not() == ""
    assert frames.layout() is frames.layout()


@needs_layout
@pytest.mark.parametrize("depth", [0, 5, 40])
def test_a_thread_that_waits_is_seen_as_it_is(depth):
    """Through C, generators and comprehensions, too."""
    reached, leave, state = threading.Event(), threading.Event(), []

    def wait(n):
        if n:
            return next(map(wait, (n - 1,)))
        state.append(frames.thread_state())
        reached.set()
        return leave.wait()

    def generated():
        yield wait(depth)

    def run():
        return next(generated())

    thread = Background(run)
    try:
        assert reached.wait(60)
        chain = []
        while not chain or chain[0][0] != id(threading.Condition.wait.__code__):
            chain = frames.walk(frames.layout(), state[0], most=1000)  # it may be on its way there
        places, frame = [], sys._current_frames()[thread.ident]
        while frame is not None:
            places.append((id(frame.f_code), frame.f_lasti))
            frame = frame.f_back
        codes = {code for code, _ in places}
        assert [pair for pair in chain if pair[0] in codes] == places
        assert len(places) > depth
    finally:
        leave.set()
        thread.result()


def test_memory_that_is_not_there_is_no_error():
    assert frames.words_of(8, 4) == ()
    assert frames.words_of(-8, 4) == ()
    assert frames.words_of((1 << 46) + 8, 1) == ()


@needs_layout
@pytest.mark.parametrize("wrong", [{"current": 0}, {"before": 0}, {"shift": 10**6}, {"code": 8}])
def test_places_that_are_others_are_not_taken(wrong):
    """A later CPython may have other things at these places."""
    layout = frames.layout()._replace(**wrong)
    assert frames._differs(layout)("x") != ""


def test_what_is_not_found_says_what(monkeypatch):
    monkeypatch.setattr(frames, "words_of", lambda address, count: (0,) * count)
    with pytest.raises(VMError, match="does not find a frame and its code"):
        frames.layout.__wrapped__()
