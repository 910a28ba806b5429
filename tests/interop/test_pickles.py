"""Pickles and copies of tensors: shared storages, attributes, places in the graph, damage."""

import copy
import pickle

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import ArgumentError, ArgumentTypeError, AutogradError
from flowvm.interop import pickles
from flowvm.meta.meta import TensorMeta


def again(value, protocol=pickle.HIGHEST_PROTOCOL):
    return pickle.loads(pickle.dumps(value, protocol))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_values_come_back(rng, protocol):
    for array in (rng.standard_normal((2, 3)), np.zeros((0, 2)), np.array(5), np.array([True])):
        x = flow.tensor(array)
        y = again(x, protocol)
        np.testing.assert_array_equal(y.numpy(), array)
        assert y.dtype is x.dtype
    t = flow.arange(6.0).reshape(2, 3).t()
    assert again(t, protocol).stride() == t.stride()


def test_tensors_of_one_pickle_share_their_storage():
    x = flow.arange(6.0)
    both = again({"whole": x, "part": x[2:4], "bytes": x.view(flow.int32)[:2]})
    both["part"].fill_(9)
    assert both["whole"].tolist() == [0, 1, 9, 9, 4, 5]
    both["bytes"].zero_()
    assert both["whole"].tolist()[0] == 0
    assert x.tolist() == [0, 1, 2, 3, 4, 5]
    alone = again(x[2:4]), again(x)
    alone[0].fill_(7)
    assert alone[1].tolist() == x.tolist()


def test_a_storage_is_in_a_pickle_once():
    x = flow.zeros(4096)
    assert len(pickle.dumps([x, x[1:], x[2:]])) < 4 * 4096 + 2000


def test_leaves_stay_leaves_and_results_lose_their_graph():
    w = flow.ones(2, requires_grad=True)
    assert again(w).requires_grad
    assert again(w).grad is None
    assert not again(w * 2).requires_grad
    p = flow.nn.Parameter(flow.ones(2))
    p.tag = {"mine": 1}
    q = again(p)
    assert type(q) is flow.nn.Parameter
    assert q.tag == {"mine": 1}


def test_tensors_without_values_have_their_meta():
    x = flow.empty(3, 4, device="meta").t()
    y = again(x)
    assert (y.shape, y.stride(), y.device) == (x.shape, x.stride(), x.device)


def test_buffers_out_of_the_pickle_are_copied_where_they_must_not_be_written():
    x = flow.arange(4.0)
    buffers = []
    data = pickle.dumps(x, 5, buffer_callback=buffers.append)
    frozen = [bytes(b) for b in buffers]
    y = pickle.loads(data, buffers=frozen)
    y.add_(1)
    assert y.tolist() == [1, 2, 3, 4]


def test_places_outside_of_a_storage_are_damage():
    base = flow.zeros(16, dtype=flow.uint8)
    meta = TensorMeta.of((4,), flow.float32)
    assert pickles._rebuild_on(base, flow.Tensor, meta, 0, False, {}).tolist() == [0, 0, 0, 0]
    for offset in (4, -4, 1 << 40):
        with pytest.raises(ArgumentError, match="of a storage of 16: it is damaged"):
            pickles._rebuild_on(base, flow.Tensor, meta, offset, False, {})


def test_copies_are_on_the_same_memory():
    x = flow.ones(2, requires_grad=True)
    y = copy.copy(x)
    assert y is not x
    assert y.requires_grad
    assert y.is_leaf
    with flow.no_grad():
        y.fill_(3)
    assert x.tolist() == [3, 3]
    result = copy.copy(x * 2)
    result.sum().backward()
    assert x.grad.tolist() == [2, 2]


def test_deep_copies_share_where_the_originals_do():
    x = flow.arange(6.0)
    whole, part, same = copy.deepcopy([x, x[1:3], x])
    assert same is whole
    part.fill_(9)
    assert whole.tolist() == [0, 9, 9, 3, 4, 5]
    assert x.tolist() == [0, 1, 2, 3, 4, 5]
    part = copy.deepcopy(x.reshape(2, 3).t())
    assert part.stride() == (1, 3)


def test_deep_copies_have_their_gradient_and_attributes():
    w = flow.ones(2, requires_grad=True)
    (w * 3).sum().backward()
    w.mine = [w]
    copied = copy.deepcopy(w)
    assert copied.grad.tolist() == [3, 3]
    assert copied.grad is not w.grad
    assert copied.mine[0] is copied
    with pytest.raises(AutogradError, match="graph leaves"):
        copy.deepcopy(w * 2)


def test_global_tensors_are_not_pickled():
    x = flow.ones(2, placement=flow.placement("cpu", [0]), sbp=flow.sbp.broadcast)
    with pytest.raises(ArgumentTypeError, match=r"other processes hold parts of it; use flow.save"):
        pickle.dumps(x)
    assert copy.deepcopy(x).numpy().tolist() == [1, 1]
