"""softmax, the norms and losses against class indices on CUDA, against NumPy in float64 and against
the CPU's ops, which tests/ops compares with references.
"""

import importlib

import numpy as np
import pytest
from played import on_cpu, play
from recipes import compile_op
from simulated import status

from flowvm.cuda.compiler import compilation
from flowvm.errors import Status
from flowvm.ops.rows.cpu.norm_launch import groups_of
from flowvm.ops.rows.cuda import fold_kernels
from flowvm.ops.rows.parts import class_loss_ops, norm_ops

softmax_ops = importlib.import_module("flowvm.ops.rows.softmax")  # flowvm.ops has the function
FLOATS = ("float32", "float64")


def agrees(op, arrays, attrs, scalars=(), tolerance=None):
    """Check that CUDA gives the CPU's result, but for rounding; return the outputs."""
    expected, changed = on_cpu(op, arrays, attrs, scalars)
    copies = [a.copy() for a in arrays]
    actual, details = play(op, copies, attrs, scalars)
    assert status(details) == 0
    close = tolerance or (2e-4 if arrays[0].dtype == np.float32 else 1e-9)
    for a, b in zip([*actual, *copies], [*expected, *changed], strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(a, b, rtol=close, atol=close)
    return actual


# --- softmax --------------------------------------------------------------------------------------

SHAPES = [
    ((3, 1), 1), ((4, 31), 1), ((4, 32), 1), ((4, 33), 1), ((2, 100), 1), ((1, 2100), 1),
    ((5, 3, 2), 1), ((100, 33), 0), ((1500, 3), 0), ((2, 40, 35), 1), ((), 0),
]  # fmt: skip


def softmax(x, dim):
    x = np.atleast_1d(x.astype(np.float64))
    e = np.exp(x - x.max(dim, keepdims=True))
    return e / e.sum(dim, keepdims=True)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("shape", "dim"), SHAPES)
def test_softmax_and_its_gradient(rng, shape, dim, dtype):
    x, g = (np.array(rng.standard_normal(shape) * 4, dtype) for _ in range(2))
    p, close = softmax(x, dim), 2e-6 if dtype == "float32" else 1e-13
    (y,), _ = play(softmax_ops._softmax, [x], (dim,))
    (z,), _ = play(softmax_ops._log_softmax, [x], (dim,))
    np.testing.assert_allclose(y.reshape(p.shape), p, rtol=close, atol=close)
    np.testing.assert_allclose(z.reshape(p.shape), np.log(p), rtol=close, atol=10 * close)
    wide = g.reshape(p.shape).astype(np.float64)
    (dy,), _ = play(softmax_ops._softmax_backward, [g, y], (dim,))
    (dz,), _ = play(softmax_ops._log_softmax_backward, [g, z], (dim,))
    expected = p * (wide - (wide * p).sum(dim, keepdims=True))
    np.testing.assert_allclose(dy.reshape(p.shape), expected, rtol=close, atol=10 * close)
    expected = wide - p * wide.sum(dim, keepdims=True)
    np.testing.assert_allclose(dz.reshape(p.shape), expected, rtol=close, atol=50 * close)


@pytest.mark.parametrize("n", [4, 100, 2100])
@pytest.mark.parametrize("side", [False, True])
def test_softmax_of_what_is_not_finite(rng, n, side):
    x = rng.standard_normal((5, n)).astype(np.float32)
    x[0, 1] = -np.inf
    x[1] = -np.inf
    x[2, n - 1] = np.nan
    x[3, 2] = np.inf
    x[4] = np.float32(3e38) * np.sign(x[4])
    x[4, 0] = np.float32(3e38)
    with np.errstate(all="ignore"):
        expected = softmax(x, 1)
    inputs, dim = (np.ascontiguousarray(x.T), 0) if side else (x, 1)
    (y,), _ = play(softmax_ops._softmax, [inputs], (dim,))
    np.testing.assert_allclose(y.T if side else y, expected, rtol=1e-5, atol=1e-7)
    assert np.isnan(expected[1:4]).all()


def test_softmax_of_nothing():
    for shape in ((0, 3), (2, 0)):
        (y,), _ = play(softmax_ops._softmax, [np.zeros(shape)], (1,))
        assert y.shape == shape


def test_rows_of_several_warps(rng, monkeypatch):
    for module in (fold_kernels,):
        monkeypatch.setattr(module, "threads", lambda n: 64, raising=False)
    x = rng.standard_normal((2, 1100))
    (y,), _ = play(softmax_ops._softmax, [x], (1,))
    np.testing.assert_allclose(y, softmax(x, 1), rtol=1e-12)
    agrees(norm_ops._plain, [x], ("layer", 1100, 1e-5, True))


# --- norms ----------------------------------------------------------------------------------------

NORMS = [
    ("layer", 1, (3, 1)), ("layer", 4, (3, 4)), ("layer", 33, (40, 33)), ("layer", 100, (2, 100)),
    ("layer", (3, 4), (2, 3, 4)), ("layer", 1300, (2, 1300)), ("layer", 3, (900, 3)),
    ("group", 2, (3, 4)), ("group", 2, (2, 4, 3)), ("group", 2, (2, 4, 31, 30)),
    ("instance", 0, (2, 3, 5)), ("instance", 0, (2, 1, 33)),
    ("batch", 0, (4, 3)), ("batch", 0, (1000, 3)), ("batch", 0, (2, 3, 5)), ("batch", 0, (1, 2, 3)),
    ("batch", 0, (2, 2, 31, 32)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("kind", "size", "shape"), NORMS)
def test_norms_and_their_gradients(rng, kind, size, shape, dtype):
    x, g = ((rng.standard_normal(shape) + 2).astype(dtype) for _ in range(2))
    shape_of_weight = size if kind == "layer" else shape[1]
    weight, bias = (rng.standard_normal(shape_of_weight).astype(dtype) for _ in range(2))
    for center in (True, False) if kind == "layer" else (True,):
        attrs = kind, size, 1e-5, center
        _, stats = agrees(norm_ops._plain, [x], attrs)
        agrees(norm_ops._affine, [x, weight, bias], attrs)
        if kind == "layer":
            agrees(norm_ops._weighted, [x, weight], attrs)
        close = 2e-3 if dtype == "float32" else 1e-8  # of sums of many
        agrees(norm_ops._back, [g, x, stats], attrs, tolerance=close)
        agrees(norm_ops._full_back, [g, x, stats, weight], attrs, tolerance=close)


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 5), (2, 2, 31, 32)])
def test_batch_norm_with_running_and_with_given_statistics(rng, shape):
    x, g = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    weight, bias, mean = (rng.standard_normal(shape[1]).astype(np.float32) for _ in range(3))
    var = rng.uniform(1, 2, shape[1]).astype(np.float32)
    agrees(norm_ops._tracking, [x, weight, bias, mean, var], (1e-5,), (0.3,))
    agrees(norm_ops._fixed, [x, weight, bias, mean, var], (1e-5,))
    agrees(norm_ops._fixed_back, [g, x, np.stack([mean, var]), weight], (1e-5,))


def test_norms_of_nothing():
    x, weight = np.zeros((0, 4)), np.ones(4)
    agrees(norm_ops._affine, [x, weight, weight], ("layer", 4, 1e-5, True))
    stats = np.zeros((2, 0))
    _, dw, db = agrees(norm_ops._full_back, [x, x, stats, weight], ("layer", 4, 1e-5, True))
    assert dw.tolist() == db.tolist() == [0] * 4


def test_a_norm_far_from_zero_keeps_its_digits(rng):
    x = (rng.standard_normal((3, 300)) + 3e4).astype(np.float32)
    (_, stats), _ = play(norm_ops._plain, [x], ("layer", 300, 1e-5, True))
    np.testing.assert_allclose(stats[1], x.astype(np.float64).var(1), rtol=1e-4)


# --- losses ---------------------------------------------------------------------------------------

LOSSES = [(4,), (3, 1), (3, 5), (2, 3, 4), (5, 33), (2, 40, 33), (1, 2100), (0, 3), (40, 3)]


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("shape", LOSSES)
def test_losses_and_their_gradients(rng, shape, reduction):
    x = rng.standard_normal(shape) * 3
    n = shape[min(1, len(shape) - 1)]
    target = np.array(rng.integers(0, n, () if len(shape) == 1 else (shape[0], *shape[2:])))
    if target.size > 2:
        target.reshape(-1)[1] = -100
    for weights in ([], [rng.uniform(0.5, 2, n)]):
        entropy, back, nll, nll_back = _ops(bool(weights))
        for smoothing in (0.0, 0.1):
            attrs = reduction, -100, smoothing
            loss, notes = agrees(entropy, [x, target, *weights], attrs)
            g = np.array(rng.standard_normal(loss.shape))
            agrees(back, [g, x, target, notes, *weights], attrs)
        loss, notes = agrees(nll, [x, target, *weights], (reduction, -100))
        g = np.array(rng.standard_normal(loss.shape))
        agrees(nll_back, [g, target, notes, *weights], (shape, reduction, -100))


def _ops(weighted):
    prefix = "_weighted" if weighted else ""
    names = "_entropy", "_entropy_backward", "_nll", "_nll_backward"
    return [getattr(class_loss_ops, prefix + name) for name in names]


def test_cross_entropy_against_numpy(rng):
    x, target = rng.standard_normal((6, 50)).astype(np.float32), rng.integers(0, 50, 6)
    (loss, _), _ = play(class_loss_ops._entropy, [x, target], ("mean", -100, 0.0))
    expected = -np.log(softmax(x, 1))[np.arange(6), target].mean()
    np.testing.assert_allclose(loss, expected, rtol=1e-6)


@pytest.mark.parametrize("bad", [-1, 4, 1 << 40])
@pytest.mark.parametrize("op", ["_entropy", "_nll"])
def test_a_target_that_names_no_class_fails(bad, op):
    attrs = ("mean", -100, 0.0) if op == "_entropy" else ("mean", -100)
    x, target = np.zeros((3, 4), np.float32), np.array([0, bad, 1])
    _, details = play(getattr(class_loss_ops, op), [x, target], attrs)
    assert details.tolist()[:3] == [bad, 4, 1]
    assert status(details) == Status.INDEX_OUT_OF_RANGE


# --- compiled -------------------------------------------------------------------------------------


@pytest.fixture
def as_large_as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(compilation, "simulated", lambda: False)


@pytest.mark.usefixtures("as_large_as_on_a_gpu")
@pytest.mark.parametrize("shape", [((50, 40), 1), ((50, 40), 0), ((3, 1 << 20), 1)])
def test_the_kernels_of_softmax_compile(ptx_of, shape):
    x = shape[0], "float32"
    for name in ("softmax", "log_softmax"):
        compile_op(ptx_of, f"flowvm.ops.rows.softmax:_{name}", [x], shape[1:])
        compile_op(ptx_of, f"flowvm.ops.rows.softmax:_{name}_backward", [x, x], shape[1:])


@pytest.mark.usefixtures("as_large_as_on_a_gpu")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("kind", "size", "shape"),
    [("layer", 8, (8, 8)), ("group", 2, (2, 4, 3)), ("batch", 0, (4, 3)), ("batch", 0, (9, 3, 50))],
)
def test_the_kernels_of_norms_compile(ptx_of, kind, size, shape, dtype):
    from flowvm.meta.dtype import dtype_named
    from flowvm.meta.meta import TensorMeta

    x, weight = (shape, dtype), ((shape[1],), dtype)
    groups = groups_of(TensorMeta.of(shape, dtype_named(dtype)), kind, size)
    stats, attrs = ((2, groups), dtype), (kind, size, 1e-5, True)
    path = "flowvm.ops.rows.parts.norm_ops:"
    compile_op(ptx_of, path + "_affine", [x, weight, weight], attrs)
    compile_op(ptx_of, path + "_full_back", [x, x, stats, weight], attrs)
    if kind == "batch":
        compile_op(ptx_of, path + "_tracking", [x, *[weight] * 4], (1e-5,))
        compile_op(ptx_of, path + "_fixed", [x, *[weight] * 4], (1e-5,))


@pytest.mark.usefixtures("as_large_as_on_a_gpu")
@pytest.mark.parametrize("shape", [(6, 5), (2, 5, 3)])
def test_the_kernels_of_losses_compile(ptx_of, shape):
    rows, dtype, path = (shape[0], *shape[2:]), "float32", "flowvm.ops.rows.parts.class_loss_ops:_"
    x, target, weight = (shape, dtype), (rows, "int64"), ((5,), dtype)
    notes, one = ((2 * int(np.prod(rows)) + 1,), dtype), ((1,), dtype)
    attrs = "mean", -100, 0.1
    compile_op(ptx_of, path + "weighted_entropy", [x, target, weight], attrs)
    inputs = [((), dtype), x, target, notes, weight]
    compile_op(ptx_of, path + "weighted_entropy_backward", inputs, attrs)
    compile_op(ptx_of, path + "nll", [x, target], ("none", -100))
    inputs = [(rows, dtype), target, one]
    compile_op(ptx_of, path + "nll_backward", inputs, (shape, "none", -100))
