"""Memory that several processes have."""

import gc
import os
import pickle

import numpy as np
import pytest

import flowvm as flow
from flowvm import multiprocessing as mp
from flowvm import nn


def adds(t, by):
    t.add_(by)
    flow.vm.sync()


def trains(model, queue):
    """One step of another process on shared parameters; its first tensor goes on from here."""
    with flow.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    flow.vm.sync()
    queue.put((model.weight, model.weight.is_shared(), type(model.weight) is nn.Parameter))
    queue.get()  # until it was taken


def test_a_tensor_moves_with_its_values():
    x = flow.arange(6.0).reshape(2, 3).t()
    assert not x.is_shared()
    assert x.share_memory_() is x
    assert x.is_shared()
    assert x[1:].is_shared()
    np.testing.assert_array_equal(x.numpy(), np.arange(6.0).reshape(2, 3).T)
    for empty in (flow.ones(()), flow.ones(0, 2), flow.ones(3, dtype=flow.bfloat16)):
        assert empty.share_memory_().is_shared()
        assert not empty.clone().is_shared()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_another_process_writes_to_it(method):
    x, own = flow.zeros(4).share_memory_(), flow.zeros(4)
    context = mp.get_context(method)
    for t, by in ((x, 2.0), (x[1:3], 1.0), (own, 1.0)):
        process = context.Process(target=adds, args=(t, by))
        process.start()
        process.join()
        assert process.exitcode == 0
    assert x.tolist() == [2.0, 3.0, 3.0, 2.0]
    assert own.tolist() == [0.0] * 4


def test_a_model_is_shared_and_sent_on():
    model = nn.Linear(2, 1).share_memory()
    before = [p.detach().numpy().copy() for p in model.parameters()]
    context = mp.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=trains, args=(model, queue))
    process.start()
    weight, shared, whole = queue.get()
    assert shared
    assert whole
    assert weight.is_shared()
    weight.detach().add_(1)  # the same memory, by way of the other process
    flow.vm.sync()
    queue.put(None)
    process.join()
    np.testing.assert_array_equal(model.weight.detach().numpy(), 2 * before[0] + 1)
    np.testing.assert_array_equal(model.bias.detach().numpy(), 2 * before[1])


def test_what_is_not_sent_by_multiprocessing_goes_by_value():
    x = flow.ones(2).share_memory_()
    again = pickle.loads(pickle.dumps(x))
    assert not again.is_shared()
    x.add_(1)
    assert again.tolist() == [1.0, 1.0]


def test_files_are_closed_when_the_last_tensor_goes():
    flow.vm.sync()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    held = [flow.ones(3).share_memory_() for _ in range(5)]
    assert len(os.listdir("/proc/self/fd")) >= before + 5
    del held
    for _ in range(40):  # releases come in batches
        flow.ones(1).numpy()
    gc.collect()
    flow.vm.empty_cache()
    assert len(os.listdir("/proc/self/fd")) < before + 5


def test_what_cannot_be_shared():
    y = flow.ones(2, requires_grad=True) * 2
    with pytest.raises(RuntimeError, match="only leaves"):
        y.share_memory_()
