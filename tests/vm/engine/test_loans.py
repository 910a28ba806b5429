"""Lent memory: who has it is counted, and arrays that nobody else has are lent no more."""

import gc
import threading
from types import SimpleNamespace

import numpy as np
import pytest

import flowvm as flow
from flowvm.vm.callers.hot import hot
from flowvm.vm.engine import loans
from flowvm.vm.engine.engine import engine
from flowvm.vm.engine.loans import Lending
from flowvm.vm.machine.words import OPERAND


@pytest.fixture
def lending(monkeypatch):
    """Lending of an engine of its own; the process's tables stay as they are."""
    before = {name: hot[name] for name in ("lent", "settle", "lent_at", "Loan")}
    yield Lending(SimpleNamespace(lock=threading.RLock()))
    hot.update(before)


def test_loans_are_counted_in_all_and_by_storage(lending):
    lending.begin(3)
    lending.begin(3)
    lending.begin(5)
    assert (lending.words[0], lending.words[3], lending.words[5]) == (3, 2, 1)
    assert lending.holds(3 | 8 << OPERAND.STORAGE_BITS)
    assert not lending.holds(4)
    lending.forget([3, 4])
    assert (lending.words[0], lending.words[3], lending.words[5]) == (1, 0, 1)


def test_adopted_arrays_end_with_their_last_other_owner(lending):
    array = np.zeros(4)
    lending.engine.kept = array  # the VM has it with the storage
    lending.adopt(7, array)
    assert not lending._is_alone(7)
    assert lending.holds(7)
    del array
    assert lending._is_alone(7)
    assert (lending.words[0], lending.words[7]) == (0, 0)
    assert not lending._is_alone(7)  # there is no loan any more


def test_views_of_arrays_have_the_memory(lending):
    array = np.zeros((4, 3))
    part = array[1:]
    lending.engine.kept = array
    lending.adopt(7, array)
    del array
    assert not lending._is_alone(7)
    del part
    assert lending._is_alone(7)


def test_memory_that_is_no_arrays_own_stays_lent(lending):
    buffer = bytearray(32)
    array = np.frombuffer(buffer, np.int64)
    lending.adopt(7, array)
    del array
    assert not lending._is_alone(7)
    lending.adopt(8, object())
    assert not lending._is_alone(8)
    assert not loans._owns(np.frombuffer(buffer, np.int64))
    assert loans._owns(np.zeros(3))


def test_tensors_lend_their_memory_to_arrays():
    x = flow.ones(4)
    storage = x.storage().id
    array = x.numpy()
    assert engine.lending.holds(storage)
    x.add_(1)
    assert array.tolist() == [2, 2, 2, 2]  # the call was done when it returned
    array[0] = 7
    assert (x + 1).tolist() == [8, 3, 3, 3]
    del array
    gc.collect()
    assert not engine.lending.holds(storage)


def test_arrays_lend_their_memory_to_tensors():
    array = np.ones(3, np.float32)
    x = flow.from_numpy(array)
    x.mul_(3)
    assert array.tolist() == [3, 3, 3]
    array[1] = 5
    assert x.tolist() == [3, 5, 3]
