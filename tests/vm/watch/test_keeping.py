"""Instructions taken out of the ring while a program runs are those the ring would have had."""

from __future__ import annotations

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import ArgumentError
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import CTL
from flowvm.vm.watch.archive import Keeping, joined


def chain(x, count):
    y = x
    for k in range(count):
        y = y + 1 if k % 3 else y.relu()
    return y.sum().item()


def test_pieces_are_the_whole():
    flight, x = engine.flight, flow.rand(8)
    with flow.profiler.profile():
        first = int(engine.words[CTL.RECEIVED])
        keeping = Keeping(flight, first, 1 << 20)
        for _ in range(3):
            with flow.profiler.span("piece"):
                chain(x, 60)
            flow.vm.sync()
            keeping.take(int(engine.words[CTL.HEAD]))
        chain(x, 10)
        flow.vm.sync()
        found, whole = keeping.whole(), flight.look(first)
    assert len(keeping.parts) == 3
    n = len(whole.seq)
    for name in ("seq", "entry", "stream", "status", "offsets", "storage", "access", "bare"):
        a, b = getattr(found, name), getattr(whole, name)
        assert np.array_equal(a[: len(b)], b), name
        assert len(a) - len(b) in (0, 1), name  # what was issued in between
    assert np.abs(found.times[:n] - whole.times).max() < 1_000_000  # clocks were compared anew
    assert found.lasts[:n] == whole.lasts
    assert found.codes[:n] == whole.codes
    assert [found.modules[m] for m in found.module[:n]] == [whole.modules[m] for m in whole.module]
    assert [m.name for m in found.marks if m.first >= first] == ["piece"] * 3


def test_no_more_is_kept_than_was_asked_for():
    x = flow.rand(8)
    with flow.profiler.profile():
        keeping = Keeping(engine.flight, int(engine.words[CTL.RECEIVED]), 50)
        for _ in range(4):
            chain(x, 40)
            flow.vm.sync()
            keeping.take(int(engine.words[CTL.HEAD]))
        found = keeping.whole()
    assert keeping.lost == found.overwritten > 0
    assert np.array_equal(np.diff(found.seq), np.ones(len(found.seq) - 1))


def test_of_an_entry_that_has_another_meaning_nothing_is_told(monkeypatch):
    x = flow.rand(8)
    with flow.profiler.profile():
        keeping = Keeping(engine.flight, int(engine.words[CTL.RECEIVED]), 1 << 20)
        chain(x, 20)
        flow.vm.sync()
        keeping.take(int(engine.words[CTL.HEAD]))
        chain(x, 5)
        flow.vm.sync()
        monkeypatch.setattr(engine.flight, "first", keeping.next)
        found = keeping.whole()
    assert found.seq[0] >= keeping.next
    assert found.overwritten == len(keeping.parts[0].seq)


def test_one_is_itself():
    flow.vm.sync()
    seen = engine.flight.look(max(0, int(engine.words[CTL.RECEIVED]) - 20))
    assert np.array_equal(joined([seen]).times, seen.times)
    assert joined([seen]).modules[: len(seen.modules)] == seen.modules


def test_how_many_is_checked():
    with pytest.raises(ArgumentError, match="record=0"):
        flow.profiler.profile(record=0)
