"""The clocks of issuing threads: how often they are read, from level 2 on."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from flowvm.vm.machine.words import ARRAY, CTL
from flowvm.vm.watch.flight import EVERY, EXACT_EVERY, Flight, every
from flowvm.vm.watch.offcpu import LEAST


@pytest.fixture
def flight(monkeypatch: pytest.MonkeyPatch) -> Flight:
    """One of a VM that no thread runs, whose clock is `flight.now`."""
    words = np.zeros(ARRAY.WORDS, np.int64)
    flight = Flight(SimpleNamespace(words=words, m=words, running=False))
    words[CTL.LEVEL] = 2
    clock = SimpleNamespace(now=0)
    monkeypatch.setattr(flight.offcpu, "look", lambda: clock.now)
    monkeypatch.setattr(flight, "now", clock, raising=False)
    return flight


def noted(flight: Flight, each: int, instructions: int) -> list[int]:
    """Instructions between looks, where one takes `each` ns."""
    steps, seq = [], 0
    while seq < instructions:
        steps.append(flight.every)
        seq += steps[-1]
        flight.now.now += steps[-1] * each
        flight.note(seq)
    return steps


def test_small_ops_are_looked_at_less_often(flight: Flight) -> None:
    assert noted(flight, 10_000, 400)[-1] == EXACT_EVERY == every(2)
    steps = noted(flight, 400, 5000)
    assert steps[-1] == EVERY
    assert 2 * LEAST <= EVERY * 400 <= 4 * LEAST
    assert noted(flight, 20, 5000)[-1] == EVERY
    assert noted(flight, 10_000, 5000)[-1] == EXACT_EVERY  # and more often again


def test_other_levels_look_as_often_as_ever(flight: Flight) -> None:
    noted(flight, 20, 5000)
    for level in (0, 1):
        flight.vm.words[CTL.LEVEL] = level
        assert flight.every == every(level)
