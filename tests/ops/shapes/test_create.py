"""Making tensors: their dtype, their shared memory, and refused calls."""

from contextlib import nullcontext

import numpy as np
import pytest

import flowvm as flow


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        (1, flow.int64),
        (1.5, flow.float32),
        (True, flow.bool),
        ([1, 2.0], flow.float32),
        ([True, 2], flow.int64),
        ([], flow.float32),
        (np.float64(1), flow.float64),
        (np.int16(1), flow.int16),
        (np.zeros(2, np.float64), flow.float64),
        ([np.float32(1)], flow.float32),
        (range(3), flow.int64),
    ],
)
def test_tensor_infers_the_dtype(data, dtype):
    tensor = flow.tensor(data)
    assert tensor.dtype is dtype
    np.testing.assert_array_equal(tensor.numpy(), np.array(data, dtype.numpy))


def test_tensor_follows_the_default_dtype():
    flow.set_default_dtype(flow.float64)
    try:
        assert flow.tensor([1.0]).dtype is flow.float64
        assert flow.zeros(2).dtype is flow.float64
        assert flow.arange(0.0, 1.0, 0.5).dtype is flow.float64
    finally:
        flow.set_default_dtype(flow.float32)


def test_tensor_copies():
    array = np.arange(3.0)
    tensor = flow.tensor(array)
    array[0] = 9
    assert tensor.tolist() == [0, 1, 2]
    again = flow.tensor(tensor)
    again += 1
    assert tensor.tolist() == [0, 1, 2]


def test_tensor_takes_tensors_in_lists():
    assert flow.tensor([flow.tensor(1), flow.tensor(2)]).tolist() == [1, 2]


@pytest.mark.parametrize("dtype", [flow.uint8, flow.int16, flow.float16, flow.float64, flow.bool])
@pytest.mark.parametrize("value", [0, 1, 3])
def test_full_of_every_dtype(dtype, value):
    np.testing.assert_array_equal(
        flow.full((2, 3), value, dtype=dtype).numpy(), np.full((2, 3), value, dtype.numpy)
    )


def test_full_takes_its_dtype_from_the_value():
    assert flow.full((1,), 2).dtype is flow.int64
    assert flow.full((1,), True).dtype is flow.bool
    assert flow.full((1,), 2.0).dtype is flow.float32


def test_shapes_as_ints_or_tuple():
    assert flow.zeros(2, 3).shape == flow.zeros((2, 3)).shape == (2, 3)
    assert flow.ones(()).shape == ()
    assert flow.empty(0, 4).shape == (0, 4)


# --- sharing with NumPy -----------------------------------------------------------------------


def test_from_numpy_shares_memory_both_ways():
    array = np.arange(4.0)
    tensor = flow.from_numpy(array)
    tensor += 1
    np.testing.assert_array_equal(array, [1, 2, 3, 4])
    array[0] = 7
    assert (tensor * 2).tolist() == [14, 4, 6, 8]
    assert array.flags.writeable


@pytest.mark.parametrize(
    "array",
    [
        np.arange(4.0)[::-1],
        np.broadcast_to(np.arange(3.0), (2, 3)),
        np.arange(4.0).astype(">f8"),
        np.zeros((2, 0)),
    ],
    ids=["negative stride", "overlapping", "byte order", "empty"],
)
def test_from_numpy_copies_what_it_cannot_share(array):
    before = array.copy()
    with pytest.warns(UserWarning, match="copy of it") if array.size else nullcontext():
        tensor = flow.from_numpy(array)
    tensor += 1
    np.testing.assert_array_equal(tensor.numpy(), before + 1)
    np.testing.assert_array_equal(array, before)


def test_from_numpy_shares_transposed_arrays():
    array = np.arange(6.0).reshape(2, 3).T
    tensor = flow.from_numpy(array)
    tensor *= 2
    np.testing.assert_array_equal(tensor.numpy(), array)
    assert array[2, 1] == 10


def test_from_numpy_copies_a_read_only_array():
    array = np.arange(3.0)
    array.flags.writeable = False
    with pytest.warns(UserWarning, match="read-only"):
        tensor = flow.from_numpy(array)
    tensor += 1
    assert tensor.tolist() == [1, 2, 3]
    assert array.tolist() == [0, 1, 2]


def test_as_tensor_returns_the_tensor_itself():
    tensor = flow.ones(2)
    assert flow.as_tensor(tensor) is tensor


# --- ranges -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args", [(5,), (2, 9), (2, 9, 2), (9, 2, -3), (0, 1, 0.1), (5, 5), (1.0, 4.0)]
)
def test_arange(args):
    np.testing.assert_allclose(flow.arange(*args).numpy(), np.arange(*args), rtol=1e-6)


def test_arange_dtypes():
    assert flow.arange(3).dtype is flow.int64
    assert flow.arange(3.0).dtype is flow.float32
    assert flow.arange(3, dtype=flow.float16).tolist() == [0, 1, 2]
    assert flow.arange(3, dtype=flow.uint8).dtype is flow.uint8


def test_linspace_ends_exactly():
    values = flow.linspace(0.1, 0.7, 7, dtype=flow.float64).numpy()
    assert values[0] == 0.1
    assert values[-1] == 0.7


def test_requires_grad_makes_a_leaf():
    tensor = flow.zeros(2, requires_grad=True)
    assert tensor.requires_grad
    assert tensor.is_leaf


def test_a_large_fill_is_whole():
    tensor = flow.full((3_000_001,), 7, dtype=flow.uint8).numpy()
    assert tensor.min() == tensor.max() == 7


def test_eye_and_indices():
    np.testing.assert_array_equal(flow.eye(3, 2).numpy(), np.eye(3, 2))
    np.testing.assert_array_equal(flow.tril_indices(3, 4, 1).numpy(), np.tril_indices(3, 1, 4))
    np.testing.assert_array_equal(flow.triu_indices(3, 4, -1).numpy(), np.triu_indices(3, -1, 4))


def test_asarray_and_the_graph_of_what_it_is_given():
    leaf = flow.ones(2, requires_grad=True)
    inner = leaf * 2
    assert flow.asarray(leaf) is leaf
    assert flow.asarray(inner, dtype=flow.float64).grad_fn is not None
    assert flow.asarray(inner, copy=True).grad_fn is not None
    outside = flow.asarray(inner, requires_grad=False)
    assert not outside.requires_grad
    assert outside.data_ptr() == inner.data_ptr()
    own = flow.asarray(inner, requires_grad=True)
    assert own.is_leaf
    assert own.requires_grad
    assert inner.grad_fn is not None
    assert flow.asarray(np.ones(2), requires_grad=True).requires_grad


def test_ramps_of_complex_numbers_keep_fractions():
    one = flow.linspace(4.3, -3, 1, dtype=flow.complex128)
    assert one.tolist() == [4.3]
    ramp = flow.linspace(1j, 2, 3)
    assert ramp.dtype is flow.complex64
    assert ramp.tolist() == [1j, 1 + 0.5j, 2]
    powers = flow.logspace(0.5, 1j, 2, dtype=flow.complex128)
    np.testing.assert_allclose(powers.numpy(), [10**0.5, 10**1j])
    with pytest.raises(TypeError, match="cannot be float32"):
        flow.linspace(1j, 2, 3, dtype=flow.float32)


def test_memory_that_numpy_knows_nothing_of(recwarn):
    torch = pytest.importorskip("torch")
    theirs = torch.arange(3.0)
    array = theirs.numpy()
    x = flow.from_numpy(array)
    x.add_(1)
    assert theirs.tolist() == [1.0, 2.0, 3.0]
    theirs.mul_(2)
    assert (x + 1).tolist() == [3.0, 5.0, 7.0]
    del x
    array[0] = 5.0
    assert not recwarn.list
