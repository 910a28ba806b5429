"""OneFlow's ways: what `take` changes, `leave` puts back as it was."""

import copy

import numpy as np
import pytest

import flowvm as flow
from flowvm.compat import oneflow
from flowvm.errors import ArgumentTypeError


@pytest.fixture
def taken():
    oneflow.take()
    yield
    oneflow.leave()


def values():
    """Return the present values of the places."""
    return [vars(p)[k] if isinstance(k, str) else p[k] for p, k, _ in oneflow._changes()]


def test_what_is_taken_is_put_back():
    before = values()
    oneflow.take()
    try:
        during = values()
        oneflow.take()  # again: what was there before stays known
        assert all(a is b for a, b in zip(values(), during, strict=True))
        assert not any(a is b for a, b in zip(during, before, strict=True))
    finally:
        oneflow.leave()
    assert all(a is b for a, b in zip(values(), before, strict=True))
    oneflow.leave()  # nothing is left to put back
    assert all(a is b for a, b in zip(values(), before, strict=True))


def test_parts_are_read_and_called(taken):
    x = flow.tensor([1 + 2j, -3j])
    assert x.real.tolist() == x.real().tolist() == [1, 0]
    assert type(x.imag()) is flow.Tensor
    x.imag = flow.tensor([5.0, 6.0])  # the setter stays
    assert x.tolist() == [1 + 5j, 6j]


def test_copies_of_results_are_leaves(taken):
    w = flow.ones(2, requires_grad=True)
    y = w * 3
    both = copy.deepcopy([y, y, w])
    assert both[0] is both[1]
    assert both[0].is_leaf
    assert not both[0].requires_grad
    assert both[0].tolist() == [3, 3]
    assert both[2] is not w
    assert both[2].requires_grad


def test_copies_from_arrays(taken):
    x = flow.zeros(2)
    assert x.copy_(np.array([1, 2])) is x
    assert x.tolist() == [1, 2]
    with pytest.raises(ArgumentTypeError, match="src must be a Tensor"):
        x.copy_([1, 2])
