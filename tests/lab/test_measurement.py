"""This machine as numbers: what a run of naps and calls comes to, and each once a process."""

import math
from types import SimpleNamespace

import pytest

from flowvm.lab import measurement
from flowvm.lab.measurement import Measurement


@pytest.fixture
def short(monkeypatch):
    """Fewer and shorter naps and copies: the numbers are rougher."""
    fewer = {"NAPS": 2, "NAP": 0.0, "CALLS": 16, "COPIED": 1 << 12, "COPIES": 2}
    for name, value in fewer.items():
        monkeypatch.setattr(measurement, name, value)
    measurement.measurement.cache_clear()
    yield
    measurement.measurement.cache_clear()


def test_numbers_of_a_machine_are_positive_and_kept(short):
    numbers = measurement.measurement(2)
    assert isinstance(numbers, Measurement)
    assert numbers._fields == ("wake", "patience", "handover", "choice", "bandwidth")
    assert all(math.isfinite(value) for value in numbers)
    assert numbers.patience > 0
    assert numbers.bandwidth > 0
    assert measurement.measurement(2) is numbers


def test_copies_are_timed_by_the_fastest(monkeypatch):
    monkeypatch.setattr(measurement, "COPIED", 1 << 12)
    clock = iter([0.0, 4.0, 10.0, 11.0, 20.0, 22.0, 30.0, 38.0, 40.0, 48.0])
    time = SimpleNamespace(perf_counter=lambda: next(clock))
    monkeypatch.setattr(measurement, "time", time)
    assert measurement._bandwidth() == 1 << 12
