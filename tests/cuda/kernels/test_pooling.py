"""Pooling, `unfold`, `fold` on CUDA against the CPU, which tests/ops compares with PyTorch."""

import numpy as np
import pytest
from on_device import answer, close, compiles, kernels, launch, like_cpu
from simulated import status

import flowvm as flow
from flowvm.errors import Status
from flowvm.ops.planes import patches, pooling
from flowvm.ops.planes.parts.pool_ops import (
    _average,
    _average_back,
    _max,
    _pool_gather,
    _pool_scatter,
)

DTYPES = ("float64", "float32", "int64", "int32", "int16", "int8", "uint8", "bool")
# shape, kernel, stride, padding, dilation, ceil_mode; or shape, output_size
FIXED = {
    "lines": ((2, 3, 7), 3, None, 0, 1, False),
    "ceiling": ((2, 3, 7), 3, 2, 1, 1, True),
    "planes": ((2, 3, 7, 6), (3, 2), (2, 1), (1, 1), 1, False),
    "dilated": ((1, 2, 9, 8), (3, 2), (1, 3), (1, 1), (2, 2), True),
    "gaps": ((1, 2, 9, 8), 2, 3, 0, 1, False),
    "more than threads": ((1, 3, 20, 21), 3, 2, 1, 1, False),
    "empty": ((0, 2, 5, 7), 2, None, 0, 1, False),
}
ADAPTIVE = {
    "fewer": ((1, 2, 5, 7), (3, 4)),
    "more": ((1, 2, 5, 7), (7, 9)),
    "one": ((2, 2, 7), (1,)),
}


def windows_of(name):
    """The shape of the input, how many dimensions are pooled, and the windows."""
    if name in FIXED:
        shape, *rest = FIXED[name]
        n = len(shape) - 2
        return shape, n, pooling._windows(name, n, flow.zeros(shape), *rest)
    shape, size = ADAPTIVE[name]
    return shape, len(size), pooling._adaptive(name, len(size), flow.zeros(shape), size)


def values(rng, shape, dtype):
    """Many that are equal, and for floats NaN and infinities."""
    if np.dtype(dtype).kind != "f":
        return rng.integers(0, 5, shape).astype(dtype)
    x = rng.integers(-3, 4, shape).astype(dtype)
    return np.where(
        rng.random(shape) < 0.1, rng.choice([np.nan, np.inf, -np.inf], shape), x
    ).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*FIXED, *ADAPTIVE])
def test_largest(rng, name, dtype):
    shape, n, windows = windows_of(name)
    like_cpu(_max, [values(rng, shape, dtype)], (windows, n), exact=True)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", [*FIXED, *ADAPTIVE])
def test_gradients_of_the_largest(rng, name, dtype):
    shape, n, windows = windows_of(name)
    x = rng.standard_normal(shape).astype(dtype)
    out, where = like_cpu(_max, [x], (windows, n))
    g = rng.standard_normal(out.shape).astype(dtype)
    like_cpu(_pool_scatter, [g, where], (shape[-n:], windows), exact=True)
    like_cpu(_pool_gather, [x, where], (windows, n), exact=True)


@pytest.mark.parametrize("place", [-1, 35])
def test_a_place_outside_of_its_plane_is_reported(rng, place):
    shape, n, windows = windows_of("fewer")
    x = rng.standard_normal(shape)
    where = np.zeros((1, 2, 3, 4), np.int64)
    where[0, 1, 2, 3] = place
    (out,), details = answer(_pool_gather, [x, where], (windows, n))
    assert (status(details), *details[:2]) == (int(Status.INDEX_OUT_OF_RANGE), place, 35)
    assert (out.ravel()[:12] == x[0, 0, 0, 0]).all()


@pytest.mark.parametrize(("padded", "divisor"), [(True, 0), (False, 0), (True, 5)])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", [n for n in (*FIXED, *ADAPTIVE) if n != "dilated"])
def test_average(rng, name, dtype, padded, divisor):
    shape, n, windows = windows_of(name)
    x = rng.standard_normal(shape).astype(dtype)
    (out,) = like_cpu(_average, [x], (windows, n, padded, divisor))
    g = rng.standard_normal(out.shape).astype(dtype)
    like_cpu(_average_back, [g], (shape, windows, n, padded, divisor))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("size", [(1, 1), (2, 1), (1, 2)])
def test_averages_of_many(rng, dtype, size):
    x = rng.standard_normal((1, 2, 17, 33)).astype(dtype)
    windows = pooling._adaptive("mean", 2, flow.zeros(x.shape), size)
    assert kernels(launch(_average, [x], (windows, 2, True, 0))) == ["_average_warps"]
    like_cpu(_average, [x], (windows, 2, True, 0))


def test_averages_of_many_at_borders(rng):
    x = rng.standard_normal((1, 2, 13, 13)).astype("float64")
    windows = pooling._windows("mean", 2, flow.zeros(x.shape), (13, 12), 4, 6, 1, False)
    for padded, divisor in ((True, 0), (False, 0), (False, 7)):
        like_cpu(_average, [x], (windows, 2, padded, divisor))


def test_float16_is_summed_in_float32(rng):
    x = rng.standard_normal((1, 1, 60, 70)).astype("float16")
    windows = pooling._adaptive("mean", 2, flow.zeros(x.shape), 1)
    (out,), details = answer(_average, [x], (windows, 2, True, 0))
    assert status(details) == 0
    close(out, x.astype("float64").mean((2, 3), keepdims=True), 1e-3)
    (out, where), _ = answer(_max, [x], (windows, 2))
    assert out.item() == x.max()
    assert where.item() == x.argmax()


# shape, kernel, dilation, padding, stride
PATCHES = [
    ((2, 2, 4, 5), 3, 1, 0, 1),
    ((2, 5, 7), (2, 3), (2, 1), (1, 2), (2, 3)),
    ((1, 1, 4, 4), 2, 1, 0, 2),
    ((1, 2, 9, 8), (3, 2), (1, 2), (2, 1), (3, 1)),
    ((0, 2, 3, 3), 2, 1, 0, 1),
]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8", "int64", "bool"])
@pytest.mark.parametrize("case", PATCHES)
def test_patches(rng, case, dtype):
    shape, *rest = case
    taps = patches._taps("unfold", shape[-2:], *rest)
    x = rng.integers(0, 100, shape).astype(dtype)
    (columns,) = like_cpu(patches._unfold, [x], (taps,), exact=True)
    if dtype not in ("bool", "float16"):
        g = rng.integers(0, 100, columns.shape).astype(dtype)
        like_cpu(patches._fold, [g], (taps,), exact=True)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8", "int64", "bool"])
def test_the_kernels_compile(ptx_of, dtype):
    _, n, windows = windows_of("planes")
    x = np.zeros((2, 3, 7, 6), dtype)
    out = np.zeros((2, 3, windows.oh, windows.ow), dtype)
    taps = patches._taps("unfold", (7, 6), 2, 1, 0, 1)
    large = windows._replace(h=30, w=30, kh=20, kw=20, oh=7, ow=13)
    plans = [launch(_max, [x], (windows, n)), launch(patches._unfold, [x], (taps,))]
    if x.dtype.kind == "f":
        places = np.zeros(out.shape, np.int64)
        plans += [
            launch(_pool_scatter, [out, places], ((7, 6), windows)),
            launch(_pool_gather, [x, places], (windows, n)),
            launch(_average, [x], (windows, n, True, 0)),
            launch(_average, [np.zeros((2, 3, 30, 30), dtype)], (large, n, True, 0)),
            launch(_average_back, [out], (x.shape, windows, n, True, 0)),
            launch(patches._fold, [np.zeros((2, 12, 30), dtype)], (taps,)),
        ]
    compiles(ptx_of, plans, dtype)
