"""Flame graphs: every sample and every instruction once, under the stack that it belongs to."""

from __future__ import annotations

import json
import time

import pytest

import flowvm as flow
from flowvm.errors import ArgumentError
from flowvm.profiler import Profile, profile
from tests.profiler.synthetic import synthetic


def outer(x):
    return inner(x)


def inner(x):
    until = time.thread_time_ns() + 20_000_000  # with a core, however busy the machine is
    while time.thread_time_ns() < until:
        pass
    return x + 1


def test_python_above_and_ops_below():
    x = flow.ones(256)
    outer(x)
    with profile() as p:
        y = outer(x)
        flow.vm.sync()
    stacks = dict(p.flame().stacks)
    busy = [s for s in stacks if s[-1] in ("your Python", "gil") and s[-2].startswith("inner (")]
    assert busy, stacks
    assert any(frame.startswith("outer (test_flame.py:") for frame in busy[0])
    ran = [s for s in stacks if s[-1] == "add"]
    assert ran
    assert all("inner (test_flame.py:" in stack[-2] for stack in ran)
    of_bytes = p.flame("bytes")
    assert [w for stack, w in of_bytes.stacks if stack[-1] == "add"] == [1024]
    assert "add" in str(of_bytes)
    assert y is not None


@pytest.mark.parametrize("by", ["time", "bytes"])
def test_sums_and_files(by, tmp_path):
    p = Profile(synthetic(3))
    view = p.flame(by)
    rows = dict(line.rsplit(" ", 1) for line in view.folded().splitlines())
    assert sum(map(int, rows.values())) == view.total > 0
    saved = json.loads(view.save(tmp_path / "run.json").read_text())
    (own,) = saved["profiles"]
    assert sum(own["weights"]) == own["endValue"] == view.total
    frames = saved["shared"]["frames"]
    names = [";".join(frames[k]["name"] for k in stack) for stack in own["samples"]]
    assert dict(zip(names, map(str, own["weights"]), strict=True)) == rows
    assert view.save(tmp_path / "run.folded").read_text() == view.folded()
    assert view.screen(80).plain()


def test_another_measure_is_an_error():
    with pytest.raises(ArgumentError, match="by='ops': a flame graph is by one of time, bytes"):
        Profile(synthetic(1)).flame("ops")
