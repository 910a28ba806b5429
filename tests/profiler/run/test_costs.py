"""The cost of recording: measured on the user's own code, and left as it was found."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import ArgumentError
from flowvm.profiler import profile
from flowvm.profiler.run import costs
from flowvm.profiler.run.costs import LEVELS, Overhead, Recording
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import CTL
from tests.profiler.synthetic import synthetic


def test_levels_take_turns_and_the_level_is_put_back():
    x, results = flow.ones(8, 8), []

    def step():
        results.append(engine.flight.level)
        (x + x).numpy()

    before = engine.flight.level
    costs = flow.profiler.overhead(step, rounds=4)
    assert engine.flight.level == before
    assert results[1:5] == [0, 1, 2, 3]
    assert sorted(results[1:]) == sorted(LEVELS * 4)
    assert costs.longer[0] == 0
    assert 1 <= costs.instructions < 10
    assert min(costs.nanoseconds) > 0


def test_the_level_is_put_back_after_an_error():
    before = engine.flight.level
    calls = []

    def fails():
        calls.append(0)
        if len(calls) == 3:
            raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        flow.profiler.overhead(fails)
    assert engine.flight.level == before


def test_the_screen():
    overhead = Overhead(20, 100, (1e6, 1.02e6, 1.1e6, 2e6), (0.0, 0.02, 0.1, 1.0))
    assert overhead.each == pytest.approx((0, 200, 1000, 10000))
    assert overhead.screen(80).plain() == "\n".join(
        [
            " recorder  level 1 +2.0% · level 2 +10.0% · 20 rounds of 100 instructions",
            " level    ms   longer  ns an instruction  records",
            "     0  1.00                           0  nothing",
            "     1  1.02    +2.0%                200  times, operands, lines",
            "     2  1.10   +10.0%               1000  exact times, tasks",
            "     3  2.00  +100.0%              10000  Python stacks",
        ]
    )
    json.dumps(overhead.to_dict())


def test_what_recording_an_instruction_costs_is_measured_once_and_beside_the_vm():
    costs.recording.cache_clear()
    issued, noted = engine.words[CTL.RECEIVED], len(engine.flight.anchors)
    overhead = flow.profiler.overhead()
    assert overhead is flow.profiler.overhead()
    assert (engine.words[CTL.RECEIVED], len(engine.flight.anchors)) == (issued, noted)
    assert overhead.each[0] == overhead.task[0] == 0
    assert overhead.each[2] == overhead.native[2] + overhead.python[2]
    assert all(
        0 < ns < 100_000 for ns in overhead.each[1:]
    )  # a tenth of a microsecond, if not busy
    assert overhead.python[3] > overhead.python[1]  # stacks
    assert 0 <= overhead.task[2] < 10_000


def test_every_summary_says_what_recording_cost(tmp_path):
    x = flow.ones(8, 8)
    with profile() as p:
        for _ in range(50):
            x = x + 1.0
    each = flow.profiler.overhead().each[2]
    assert p.recording == pytest.approx(len(p) * each / p.run.wall)
    for width in (80, 100, 160):
        assert "recorder overhead " in p.summary().screen(width).plain().splitlines()[0]
    assert p.to_dict()["recording"] == p.recording
    p.save(tmp_path / "run.flowtrace")
    assert flow.profiler.load(tmp_path / "run.flowtrace").recording == p.recording


def test_tasks_of_replays_cost_too(seed, monkeypatch):
    cost = Recording((0.0, 10.0, 20.0, 30.0), (0.0, 1.0, 2.0, 3.0), (0.0, 0.0, 5.0, 5.0))
    monkeypatch.setattr(costs, "recording", lambda: cost)
    with engine.flight.at_least(2):
        assert costs.recorded_ns() == (cost.each[engine.flight.level], 5.0)
    run = synthetic(seed, 100)
    run.info["recording"], run.tasks.launch = [22.0, 5.0], np.zeros(10, np.int32)
    assert flow.profiler.Profile(run).recording == pytest.approx((100 * 22 + 10 * 5) / run.wall)


def test_no_memory_to_measure_in_is_no_error(monkeypatch):
    def none(*args):
        raise MemoryError

    costs.recording.cache_clear()
    monkeypatch.setattr(costs.np, "zeros", none)
    assert costs.recorded_ns() is None


def test_while_helpers_compile_what_is_measured_nothing_is_known(monkeypatch):
    monkeypatch.setattr(costs, "recording", lambda: pytest.fail("it would be compiled here"))
    monkeypatch.setattr(engine.loops, "native", {})
    monkeypatch.setattr(engine.loops, "_take", lambda name: False)
    assert costs.recorded_ns() is None


def test_the_table_of_costs():
    cost = Recording((0.0, 10.0, 20.0, 30.0), (0.0, 1.0, 2.0, 3.0), (0.0, 0.0, 5.0, 5.0))
    assert cost.screen(80).plain() == "\n".join(
        [
            " recorder  processor time an instruction, ns",
            " level  VM  Python  both  task  records",
            "     0   0       0     0     0  nothing",
            "     1  10       1    11     0  times, operands, lines",
            "     2  20       2    22     5  exact times, tasks",
            "     3  30       3    33     5  Python stacks",
        ]
    )


def test_bad_arguments():
    with pytest.raises(ArgumentError, match="give a function and at least one round"):
        flow.profiler.overhead(3)
    with pytest.raises(ArgumentError, match="at least one round"):
        flow.profiler.overhead(print, 0)


def test_nobody_is_looked_at_when_it_was_measured() -> None:
    """No sampler of the measured recorder stays alive behind the measurement."""
    before = set(threading.enumerate())
    costs.recording.cache_clear()
    costs.recording()
    assert set(threading.enumerate()) <= before
