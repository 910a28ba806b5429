"""Instructions taken out of the ring while a program runs are those the ring would have had."""

from __future__ import annotations

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import ArgumentError
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import CTL
from flowvm.vm.watch import archive
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
        snapshot, whole = keeping.whole(), flight.look(first)
    assert len(keeping.parts) == 3
    n = len(whole.seq)
    for name in ("seq", "entry", "stream", "status", "offsets", "storage", "access", "bare"):
        a, b = getattr(snapshot, name), getattr(whole, name)
        assert np.array_equal(a[: len(b)], b), name
        assert len(a) - len(b) in (0, 1), name  # what was issued in between
    assert np.abs(snapshot.times[:n] - whole.times).max() < 1_000_000  # clocks were compared anew
    assert snapshot.lasts[:n] == whole.lasts
    assert snapshot.codes[:n] == whole.codes
    assert [snapshot.modules[m] for m in snapshot.module[:n]] == [
        whole.modules[m] for m in whole.module
    ]
    assert [m.name for m in snapshot.marks if m.first >= first] == ["piece"] * 3


def test_no_more_is_kept_than_was_asked_for():
    x = flow.rand(8)
    with flow.profiler.profile():
        keeping = Keeping(engine.flight, int(engine.words[CTL.RECEIVED]), 50)
        for _ in range(4):
            chain(x, 40)
            flow.vm.sync()
            keeping.take(int(engine.words[CTL.HEAD]))
        snapshot = keeping.whole()
    assert keeping.lost == snapshot.overwritten > 0
    assert np.array_equal(np.diff(snapshot.seq), np.ones(len(snapshot.seq) - 1))


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
        snapshot = keeping.whole()
    assert snapshot.seq[0] >= keeping.next
    assert snapshot.overwritten == len(keeping.parts[0].seq)


def test_one_is_itself():
    flow.vm.sync()
    snapshot = engine.flight.look(max(0, int(engine.words[CTL.RECEIVED]) - 20))
    assert np.array_equal(joined([snapshot]).times, snapshot.times)
    assert joined([snapshot]).modules[: len(snapshot.modules)] == snapshot.modules


def test_what_lies_in_a_file_is_the_same(tmp_path, monkeypatch):
    x = flow.rand(8)
    monkeypatch.setattr(archive, "OFTEN", 16)
    path = tmp_path / "run.flowtrace"
    with flow.profiler.profile(file=path) as p:
        keeping = engine.flight.keeping
        for _ in range(4):
            chain(x, 60)
        assert len(keeping.parts) > 2
        assert isinstance(keeping.parts[0].times, np.memmap)
    assert list(tmp_path.iterdir()) == [path]
    saved = flow.profiler.load(path)
    assert len(saved) == len(p) >= 240
    assert p.run.info["overwritten"] == 0
    assert saved.run.names == p.run.names
    assert np.array_equal(saved.run.times, p.run.times)
    assert p.verify().instructions == saved.verify().instructions


def test_a_block_that_is_left_by_an_error_is_written(tmp_path):
    def fails():
        with flow.profiler.profile(file=tmp_path / "run.csv"):
            flow.rand(8).sum().item()
            raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        fails()
    assert "rand" in (tmp_path / "run.csv").read_text()


def test_how_many_is_checked(tmp_path):
    for bad in (0, "many", 1.5):
        with pytest.raises(ArgumentError, match=f"record={bad!r}"):
            flow.profiler.profile(record=bad)
    with pytest.raises(ArgumentError, match="ending says the format"):
        flow.profiler.profile(file=tmp_path / "run.txt")
    with pytest.raises(ArgumentError, match="no such folder"):
        flow.profiler.profile(file=tmp_path / "none" / "run.html")


def test_bytes_are_instructions():
    with flow.config(record="1M"):
        assert flow.config.record == 4096
    with flow.config(record=70_000):
        assert flow.config.record == 70_000
