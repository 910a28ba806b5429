"""Running sums, products and extremes on CUDA, against NumPy in float64 and the CPU's ops."""

import numpy as np
import pytest
from played import on_cpu, play, same
from recipes import compile_op

from flowvm.cuda.compiler import compilation
from flowvm.ops.rows.cuda import scan_kernels
from flowvm.ops.rows.scan import _cummax, _cummin, _cumprod, _cumsum, _logcumsumexp

SHAPES = [
    ((1,), 0), ((31,), 0), ((32,), 0), ((33,), 0), ((3, 100), 1), ((2, 128), 1), ((2, 129), 1),
    ((1, 2500), 1), ((3, 4, 5), 1), ((300, 3), 0), ((2, 31, 40), 1), ((0, 3), 0), ((2, 0), 1),
]  # fmt: skip


def values(rng, shape, dtype):
    x = rng.standard_normal(shape) * 2
    return (np.abs(x) if dtype == "uint8" else x).astype(dtype)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32", "uint8", "bool"])
@pytest.mark.parametrize(("shape", "dim"), SHAPES)
@pytest.mark.product(4)
def test_running_sums(rng, shape, dim, dtype, reverse):
    x = values(rng, shape, dtype)
    (out,), _ = play(_cumsum, [x], (dim, reverse))
    wide = x.astype(np.float64 if out.dtype.kind == "f" else np.int64)
    turned = np.flip(wide, dim) if reverse else wide
    expected = np.cumsum(turned, dim)
    expected = np.flip(expected, dim) if reverse else expected
    if out.dtype.kind == "f":
        close = 1e-12 if dtype == "float64" else 1e-6
        np.testing.assert_allclose(out, expected, rtol=close, atol=close)
    else:
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64"])
@pytest.mark.parametrize(("shape", "dim"), SHAPES)
def test_running_products(rng, shape, dim, dtype):
    x = rng.integers(-1, 2, shape) if dtype == "int64" else rng.uniform(0.9, 1.1, shape)
    (out,), _ = play(_cumprod, [x.astype(dtype)], (dim,))
    wide = x.astype(dtype).astype(np.float64)
    np.testing.assert_allclose(out, np.cumprod(wide, dim), rtol=1e-6)


@pytest.mark.parametrize("op", [_cummax, _cummin])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
@pytest.mark.parametrize(("shape", "dim"), SHAPES)
def test_running_extremes_and_places(rng, shape, dim, dtype, op):
    x = rng.integers(0, 2 if dtype == "bool" else 9, shape).astype(dtype)  # with many equals
    if dtype == "float32" and x.size > 30:
        x.reshape(-1)[[7, 20]] = np.nan, np.inf
        x.reshape(-1)[-3] = np.nan
    expected, _ = on_cpu(op, [x], (dim,))
    actual, _ = play(op, [x], (dim,))
    for a, b in zip(actual, expected, strict=True):
        same(a, b)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("shape", "dim"), SHAPES)
def test_logcumsumexp(rng, shape, dim, dtype):
    x = (rng.standard_normal(shape) * 20).astype(dtype)
    wide = np.logaddexp.accumulate(x.astype(np.float64), dim) if x.size else x
    (out,), _ = play(_logcumsumexp, [x], (dim,))
    np.testing.assert_allclose(out, wide, rtol=2e-6 if dtype == "float32" else 1e-12, atol=1e-9)


def test_logcumsumexp_of_what_is_not_finite():
    inf, nan = np.inf, np.nan
    for x in ([-inf, -inf, 1, -inf], [1, inf, 2, inf], [-inf, nan, 1, inf], [inf, -inf, nan, 0]):
        row = np.tile(np.array(x), 20)
        (expected,), _ = on_cpu(_logcumsumexp, [row], (0,))
        (out,), _ = play(_logcumsumexp, [row], (0,))
        np.testing.assert_allclose(out, expected)


def test_teams_of_several_warps(rng, monkeypatch):
    monkeypatch.setattr(scan_kernels, "threads", lambda n: 64)
    for n in (1100, 4100):  # in one segment, in several
        x = rng.standard_normal((1, n))
        (out,), _ = play(_cumsum, [x], (1, False))
        np.testing.assert_allclose(out, np.cumsum(x, 1), rtol=1e-9, atol=1e-9)


def test_a_result_does_not_depend_on_the_order_of_threads(rng):
    for shape, dim in (((1, 2500), 1), ((300, 3), 0), ((3, 100), 1)):
        x = rng.standard_normal(shape).astype(np.float32)
        results = [play(_cumsum, [x], (dim, False), order=o)[0][0] for o in ("", "reversed")]
        same(*results)


@pytest.mark.parametrize(("shape", "dim"), [((5,), 0), ((1 << 20,), 0), ((1 << 16, 3), 0)])
def test_the_kernels_compile(ptx_of, shape, dim, monkeypatch):
    monkeypatch.setattr(compilation, "simulated", lambda: False)
    path = "flowvm.ops.rows.scan:"
    for dtype in ("float32", "int64"):
        x = [(shape, dtype)]
        compile_op(ptx_of, path + "_cumsum", x, (dim, True))
        compile_op(ptx_of, path + "_cummax", x, (dim,))
    compile_op(ptx_of, path + "_logcumsumexp", [(shape, "float32")], (dim,))
