"""Copies of transposed tensors on CUDA go by tiles in shared memory."""

import numpy as np
import pytest
from simulated import run

from flowvm.meta.dtype import dtype_named
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.core import _cast
from flowvm.ops.declare.cuda.lowering import launch_of


def copied(view, order=""):
    """The copy of an array in C order, and the names of the kernels that made it."""
    kind = dtype_named("bool" if view.dtype == np.bool_ else view.dtype.name)
    strides = tuple(s // view.itemsize for s in view.strides)
    launch = launch_of(_cast, (TensorMeta.of(view.shape, kind, stride=strides),), (kind,))
    out = np.full(view.shape, 7, view.dtype)
    run(launch, [out, view], order=order)
    return out, [step.kernel.__name__ for step in launch.steps]


@pytest.mark.parametrize("order", ["", "reversed"])
@pytest.mark.parametrize("shape", [(16, 16), (31, 33), (32, 64), (70, 17)])
def test_matrices(shape, order, rng):
    x = rng.standard_normal(shape)
    out, kernels = copied(x.T, order)
    np.testing.assert_array_equal(out, x.T)
    assert kernels == ["transpose"]


@pytest.mark.parametrize("dtype", ["float16", "bool", "int64", "int8"])
def test_dtypes(dtype, rng):
    x = rng.integers(0, 2, (20, 40)).astype(dtype)
    out, kernels = copied(x.T)
    np.testing.assert_array_equal(out, x.T)
    assert kernels == ["transpose"]


def test_batches_and_what_is_no_transpose(rng):
    x = rng.standard_normal((17, 20, 24))
    for axes, kernel in (
        ((0, 2, 1), "transpose"), ((2, 0, 1), "transpose"), ((2, 1, 0), "transpose"),
        ((1, 0, 2), "elementwise"),
    ):  # fmt: skip
        out, kernels = copied(x.transpose(axes))
        np.testing.assert_array_equal(out, x.transpose(axes))
        assert kernels == [kernel], axes
    thin = rng.standard_normal((40, 5))
    out, kernels = copied(thin.T)
    np.testing.assert_array_equal(out, thin.T)
    assert kernels == ["elementwise"]


def test_it_compiles(ptx_of):
    meta = TensorMeta.of((40, 50), dtype_named("float16"), stride=(1, 40))
    for text in ptx_of.launch(launch_of(_cast, (meta,), (meta.dtype,))):
        assert "st.shared" in text
        assert "bar.sync" in text
