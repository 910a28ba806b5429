"""NumPy's names of arguments stand for PyTorch's."""

import numpy as np
import pytest

import flowvm as flow

ROWS = np.arange(6.0).reshape(2, 3)
CALLS = {
    "sum": lambda x, **k: flow.sum(x, **k),
    "method": lambda x, **k: x.mean(**k),
    "softmax": lambda x, **k: flow.softmax(x, **k),
    "cat": lambda x, **k: flow.cat([x, x], **k),
    "stack": lambda x, **k: flow.stack([x, x], **k),
    "argmax": lambda x, **k: x.argmax(**k),
    "unsqueeze": lambda x, **k: x.unsqueeze(**k),
    "norm": lambda x, **k: flow.linalg.norm(x, **k),
    "out": lambda x, **k: flow.amax(x, out=flow.empty(0, dtype=flow.float64), **k),
}


@pytest.mark.parametrize("name", CALLS)
def test_axis_is_dim(name):
    x, call = flow.tensor(ROWS), CALLS[name]
    for _ in range(4):  # by the function, and by what it comes to
        for dim in (0, 1):
            np.testing.assert_array_equal(call(x, axis=dim).numpy(), call(x, dim=dim).numpy())


def test_keepdims_is_keepdim():
    x = flow.tensor(ROWS)
    assert x.sum(axis=1, keepdims=True).shape == (2, 1)
    assert x.max(axis=0, keepdims=True).values.shape == (1, 3)


def test_one_argument_has_one_name():
    x = flow.tensor(ROWS)
    with pytest.raises(TypeError, match="axis and dim are one argument"):
        x.sum(axis=0, dim=1)
    with pytest.raises(TypeError, match="'axes'"):
        x.sum(axes=0)


@pytest.mark.parametrize(
    ("op", "args", "expected", "dtype"),
    [
        ("add", (1, 2), 3, flow.int64),
        ("sub", (1.5, 1), 0.5, flow.float32),
        ("mul", (True, 2), 2, flow.int64),
        ("mul", (np.float32(2), 3), 6.0, flow.float32),
        ("div", (7, 2), 3.5, flow.float32),
        ("floor_divide", (-7, 2), -4, flow.int64),
    ],
)
def test_numbers_alone_are_added_and_multiplied(op, args, expected, dtype):
    result = getattr(flow, op)(*args)
    assert result.item() == expected
    assert result.dtype is dtype
    assert result.shape == ()


def test_numbers_alone_are_divided_towards_zero():
    assert flow.div(-7, 2, rounding_mode="trunc").item() == -3
    assert flow.div(-7.5, 2, rounding_mode="trunc").item() == -3.0
    with pytest.raises(TypeError, match="needs a Tensor"):
        flow.maximum(1, 2)


def test_what_is_called_of_a_tensor_is_given_it():
    unbound = [
        name for name, value in vars(flow.Tensor).items()
        if callable(value) and not isinstance(value, type) and not hasattr(type(value), "__get__")
    ]  # fmt: skip
    assert not unbound
    assert flow.tensor([1.0]).igamma(flow.tensor([0.0])).tolist() == [0.0]
