"""Tensors of PyTorch and back, on one memory."""

import numpy as np
import pytest

import flowvm as flow
from flowvm.utils.tensor import from_torch, to_torch

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "int64", "uint8", "bool", "bfloat16", "float16", "complex64"]
)
def test_both_ways(dtype):
    theirs = torch.arange(6).reshape(2, 3).t().to(getattr(torch, dtype))
    ours = from_torch(theirs)
    assert ours.dtype is getattr(flow, dtype)
    assert ours.shape == (3, 2)
    assert ours.stride() == theirs.stride()
    assert ours.data_ptr() == theirs.data_ptr()
    back = to_torch(ours)
    assert back.dtype == theirs.dtype
    assert torch.equal(back, theirs)


def test_values_are_shared():
    ours = flow.zeros(3)
    theirs = to_torch(ours)
    theirs += 2
    np.testing.assert_array_equal(ours.numpy(), [2, 2, 2])
    assert not from_torch(torch.ones(2, requires_grad=True) * 2).requires_grad
    assert not to_torch(flow.ones(2, requires_grad=True) * 2).requires_grad


def test_others_are_refused():
    with pytest.raises(TypeError, match=r"expected a torch.Tensor, got .*ndarray"):
        from_torch(np.ones(2))
    with pytest.raises(TypeError, match=r"expected a torch.Tensor, got flowvm"):
        from_torch(flow.ones(2))
    with pytest.raises(TypeError, match=r"expected a flow.Tensor, got ndarray"):
        to_torch(np.ones(2))
