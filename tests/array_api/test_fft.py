"""Transforms and creation of the array API, by keyword alone, beside NumPy's."""

import numpy as np
import pytest

import flowvm as flow
from flowvm import fft as public_fft
from flowvm import linalg as public_linalg
from flowvm.array_api import creation, fft
from flowvm.errors import ArgumentError, MissingNameError
from flowvm.ops.fourier import transforms

X = np.random.default_rng(0).standard_normal((3, 6))


@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
@pytest.mark.parametrize("how", [{}, {"n": 4}, {"axis": 0}, {"norm": "ortho"}])
def test_transforms_along_one_axis(name, how):
    ours = getattr(fft, name)(flow.tensor(X), **how).numpy()
    np.testing.assert_allclose(ours, getattr(np.fft, name)(X, **how), atol=1e-12)
    with pytest.raises(TypeError):
        getattr(fft, name)(flow.tensor(X), 4)
    assert getattr(fft, name).__name__ == name


@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn"])
@pytest.mark.parametrize("how", [{}, {"s": (2, 4), "axes": (0, 1)}, {"axes": (1, 0)}])
def test_transforms_along_several_axes(name, how):
    ours = getattr(fft, name)(flow.tensor(X), **how).numpy()
    np.testing.assert_allclose(ours, getattr(np.fft, name)(X, **how), atol=1e-12)


@pytest.mark.parametrize("n", [1, 4, 5])
def test_frequencies(n):
    for name in ("fftfreq", "rfftfreq"):
        ours = getattr(fft, name)(n, d=0.5, dtype=flow.float64).numpy()
        np.testing.assert_allclose(ours, getattr(np.fft, name)(n, 0.5))
    x = flow.tensor(X)
    for name in ("fftshift", "ifftshift"):
        for axes in (None, 0, (0, 1)):
            ours = getattr(fft, name)(x, axes=axes).numpy()
            np.testing.assert_array_equal(ours, getattr(np.fft, name)(X, axes))


def test_public_modules_have_the_functions_of_their_rooms():
    assert public_fft.rfft is transforms.rfft
    assert set(public_fft.__all__) <= set(dir(public_fft))
    assert public_linalg.svd(flow.eye(2))[1].tolist() == [1, 1]
    assert {"svd", "LinAlgError", "matmul"} <= set(public_linalg.__all__)
    with pytest.raises(MissingNameError, match="no_such"):
        _ = public_linalg.no_such


def test_ranges_lead_up_or_are_empty():
    for args in ((5,), (2, 7), (7, 2, -2), (0.0, 1.0, 0.25), (5, 2), (2, 5, -1), (1.5, 0)):
        np.testing.assert_array_equal(creation.arange(*args).numpy(), np.arange(*args))
    assert creation.arange(5, 2).dtype is flow.int64
    assert creation.arange(5.0, 2).dtype is flow.float32


@pytest.mark.parametrize("k", [-9, -2, 0, 1, 9])
def test_diagonals(k):
    for sizes in ((3,), (2, 4), (4, 2), (0, 3)):
        np.testing.assert_array_equal(creation.eye(*sizes, k=k).numpy(), np.eye(*sizes, k=k))
    m = X[:, :3]
    for name in ("tril", "triu"):
        ours = getattr(creation, name)(flow.tensor(m), k=k).numpy()
        np.testing.assert_array_equal(ours, getattr(np, name)(m, k))
    assert creation.eye(2, dtype=flow.int64).dtype is flow.int64


@pytest.mark.parametrize("endpoint", [True, False])
@pytest.mark.parametrize("num", [0, 1, 5])
def test_even_spaces(endpoint, num):
    for ends in ((0, 1), (3.0, -1.0), (0, 1 + 2j)):
        ours = creation.linspace(*ends, num, endpoint=endpoint).numpy()
        np.testing.assert_allclose(
            ours, np.linspace(*ends, num, endpoint=endpoint), rtol=1e-6, atol=1e-6
        )
    narrow = creation.linspace(0, 1j, 3, dtype=flow.complex128)
    assert narrow.dtype is flow.complex128


@pytest.mark.parametrize("indexing", ["xy", "ij"])
def test_grids(indexing):
    arrays = [np.arange(3.0), np.arange(2.0), np.arange(4.0)]
    for count in (0, 1, 2, 3):
        ours = creation.meshgrid(*map(flow.tensor, arrays[:count]), indexing=indexing)
        theirs = np.meshgrid(*arrays[:count], indexing=indexing)
        assert len(ours) == count
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(a.numpy(), b)


def test_arrays_of_one_number():
    for shape in (3, (2, 3), (), [2]):
        wanted = (shape,) if isinstance(shape, int) else tuple(shape)
        assert creation.empty(shape).shape == wanted
        assert creation.zeros(shape).numpy().sum() == 0
        np.testing.assert_array_equal(creation.full(shape, 7).numpy(), np.full(wanted, 7))
        np.testing.assert_array_equal(creation.ones(shape).numpy(), np.ones(wanted))
    assert creation.full(2, True).dtype is flow.bool
    x = flow.zeros(2, dtype=flow.int32)
    for name, args in (
        ("zeros_like", ()),
        ("ones_like", ()),
        ("full_like", (3,)),
        ("empty_like", ()),
    ):
        out = getattr(creation, name)(x, *args)
        assert (out.dtype, out.shape) == (flow.int32, (2,))
        assert getattr(creation, name)(x, *args, dtype=flow.float64).dtype is flow.float64


def test_memory_is_shared_copied_or_refused():
    array = np.zeros(2)
    assert creation.asarray(array, copy=False).data_ptr() == array.ctypes.data
    assert creation.asarray(array, copy=True).data_ptr() != array.ctypes.data
    for obj in (3, [1, 2], True, 1j):
        with pytest.raises(ArgumentError, match="no memory to share; copy=None"):
            creation.asarray(obj, copy=False)
    assert creation.asarray([[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]]
    shared = creation.from_dlpack(array)
    array[0] = 5
    assert shared.tolist() == [5, 0]
    assert creation.from_dlpack(array, device="cpu").tolist() == [5, 0]
    assert creation.from_dlpack(array, copy=True).data_ptr() != array.ctypes.data
