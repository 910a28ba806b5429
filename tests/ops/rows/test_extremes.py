"""Extremes and where they are: ties, NaN, 0-d and empty tensors, and who gets the gradient."""

import math

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import ArgumentTypeError
from flowvm.ops.rows import extremes

NAN = math.nan


@pytest.mark.parametrize("name", ["max", "min"])
def test_the_first_of_equals_wins(name):
    x = flow.tensor([[2.0, 5.0, 5.0], [1.0, 1.0, 3.0]])
    values, indices = getattr(extremes, name)(x, 1)
    numpy = x.numpy()
    by, place = (np.max, np.argmax) if name == "max" else (np.min, np.argmin)
    np.testing.assert_array_equal(values.numpy(), by(numpy, 1))
    np.testing.assert_array_equal(indices.numpy(), place(numpy, 1))


@pytest.mark.parametrize("name", ["max", "min", "median"])
def test_nan_beats_every_number(name):
    x = flow.tensor([3.0, NAN, 1.0, NAN])
    values, index = getattr(extremes, name)(x, 0)
    assert math.isnan(values.item())
    assert index.item() == 1
    assert math.isnan(getattr(extremes, name)(x).item())


def test_a_second_tensor_is_compared():
    a, b = flow.tensor([1.0, 5.0]), flow.tensor([3.0, 2.0])
    assert extremes.max(a, b).tolist() == extremes.max(a, other=b).tolist() == [3, 5]
    assert extremes.min(a, b).tolist() == [1, 2]
    for wrong in ({"dim": 0, "other": b}, {"other": b, "keepdim": True}):
        with pytest.raises(ArgumentTypeError, match="not both"):
            extremes.max(a, **wrong)
    with pytest.raises(ArgumentTypeError, match="unknown argument 'axes'"):
        extremes.min(a, axes=0)


def test_numbers_have_themselves_as_extremes():
    x = flow.tensor(3.0, requires_grad=True)
    values, index = extremes.max(x, 0)
    assert (values.item(), index.item(), values.shape) == (3, 0, ())
    values.backward()
    assert x.grad.item() == 1
    assert extremes.argmin(x).item() == extremes.argmax(x, -1).item() == 0
    assert [t.item() for t in extremes.median(x, 0)] == [3, 0]


def test_places_count_through_a_flat_tensor():
    x = flow.tensor([[1, 9, 3], [9, 0, 0]])
    assert extremes.argmax(x).item() == 1
    assert extremes.argmin(x).item() == 4
    assert extremes.argmax(x.t()).item() == 1  # its own order, not that of memory
    assert extremes.argmax(x, keepdim=True).tolist() == [[1]]
    assert extremes.argmin(x, 0, keepdim=True).tolist() == [[0, 1, 1]]


def test_empty_tensors():
    values, indices = extremes.max(flow.zeros(0, 3), 1)
    assert (values.shape, indices.shape, indices.dtype) == ((0,), (0,), flow.int64)
    values, _ = extremes.min(flow.zeros(0, 3), 1, keepdim=True)
    assert values.shape == (0, 1)
    for name in ("max", "min"):
        with pytest.raises(IndexError):
            getattr(extremes, name)(flow.zeros(2, 0), 1)
    with pytest.raises(IndexError):
        extremes.argmax(flow.zeros(0))
    assert math.isnan(extremes.median(flow.zeros(0)).item())


@pytest.mark.parametrize("name", ["max", "min", "median"])
def test_gradients_of_ties(name):
    """With an index it goes there; without one equals share it."""
    x = flow.tensor([2.0, 2.0, 2.0, 2.0], requires_grad=True)
    getattr(extremes, name)(x, 0)[0].backward()
    assert sorted(x.grad.tolist()) == [0, 0, 0, 1]
    x.grad = None
    getattr(extremes, name)(x).backward()
    assert x.grad.tolist() == [0.25] * 4


def test_the_lower_of_two_medians(rng):
    x = rng.permutation(24).reshape(4, 6).astype(np.float32)
    values, indices = extremes.median(flow.tensor(x), 1)
    np.testing.assert_array_equal(values.numpy(), np.sort(x, 1)[:, 2])
    np.testing.assert_array_equal(
        np.take_along_axis(x, indices.numpy()[:, None], 1)[:, 0], values.numpy()
    )
    assert extremes.median(flow.tensor([4, 1, 3, 2])).item() == 2


@pytest.mark.parametrize("dtype", [flow.bool, flow.uint8, flow.int64, flow.float16])
def test_values_keep_their_dtype(dtype):
    x = flow.tensor([[0, 1], [1, 1]]).to(dtype)
    values, indices = extremes.max(x, 1)
    assert values.dtype is dtype
    assert (values.tolist(), indices.tolist()) == ([1, 1], [1, 0])
    low, high = extremes.aminmax(x, dim=0, keepdim=True)
    assert (low.tolist(), high.tolist()) == ([[0, 1]], [[1, 1]])
