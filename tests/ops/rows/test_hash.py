"""`hash_tensor`: NumPy's exclusive or of the same bits."""

import numpy as np
import pytest

import flowvm as flow


@pytest.mark.parametrize("dtype", ["int64", "int8", "uint8", "bool", "float32", "float64"])
@pytest.mark.parametrize("dim", [None, 0, -1, (0, 2)])
@pytest.mark.parametrize("keepdim", [False, True])
def test_bits_of_64(dtype, dim, keepdim):
    x = flow.from_numpy(np.random.default_rng(3).standard_normal((3, 4, 5)) * 40).to(
        getattr(flow, dtype)
    )
    wide = x.numpy().astype(np.float64 if x.is_floating_point() else np.int64).view(np.uint64)
    axes = (0, 1, 2) if dim is None else dim
    expected = np.bitwise_xor.reduce(wide, axis=axes, keepdims=keepdim)
    result = flow.hash_tensor(x.transpose(0, 1).transpose(0, 1), dim, keepdim=keepdim)
    assert result.dtype is flow.uint64
    assert result.numpy().tolist() == expected.tolist()


def test_of_one_of_none_and_of_what_has_no_hash():
    assert flow.tensor(5).hash_tensor().item() == 5
    assert flow.hash_tensor(flow.ones(0, 3), 1).shape == (0,)
    with pytest.raises(flow.FlowError, match="give dim"):
        flow.hash_tensor(flow.ones(0))
    with pytest.raises(flow.FlowError, match="has no elements"):
        flow.hash_tensor(flow.ones(2, 0), 1)
    with pytest.raises(flow.FlowError, match="mode is 0, got 1"):
        flow.hash_tensor(flow.ones(2), mode=1)
    with pytest.raises(flow.FlowError, match="not defined for complex64"):
        flow.hash_tensor(flow.ones(2) * 1j)
