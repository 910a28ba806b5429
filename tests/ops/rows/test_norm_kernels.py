"""Norms by planes and by columns, the bodies as Python, against formulas in float64."""

import numpy as np
import pytest
from python_launches import python_outputs

import flowvm as flow
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.registry import operator_of
from flowvm.ops.rows.cpu import norm_columns, norm_planes
from flowvm.ops.rows.parts import norm_ops

EPS = 1e-5
PLANES, COLUMNS = norm_planes.__name__, norm_columns.__name__
CASES = [
    ("batch", 0, (6, 3), COLUMNS),
    ("batch", 0, (4, 3, 5), COLUMNS),
    ("group", 2, (2, 4, 5), PLANES),
    ("instance", 0, (2, 3, 7), PLANES),
    ("batch", 0, (2, 2, 2500), PLANES),
]


def launch(name, attrs, *arrays):
    metas = tuple(TensorMeta.of(a.shape, flow.float64) for a in arrays)
    return operator_of(getattr(norm_ops, name)).kernel.infer(metas, attrs)


def split(x, kind, groups):
    """x with the elements that are normalized together in the last dimension, and the way back."""
    n, c = x.shape[:2]
    if kind == "batch":
        moved = np.moveaxis(x, 1, 0)
        return moved.reshape(c, -1), lambda y: np.moveaxis(y.reshape(moved.shape), 0, 1)
    rows = n * (c if kind == "instance" else groups)
    return x.reshape(rows, -1), lambda y: y.reshape(x.shape)


def channels(v, x):
    return v.reshape(-1, *(1,) * (x.ndim - 2))


@pytest.mark.parametrize(("kind", "size", "shape", "room"), CASES)
@pytest.mark.parametrize("affine", [False, True])
def test_elements_are_normalized(rng, kind, size, shape, room, affine):
    x = rng.standard_normal(shape) + 3
    w, b = rng.standard_normal((2, shape[1]))
    more = (w, b) if affine else ()
    made = launch("_affine" if affine else "_plain", (kind, size, EPS, True), x, *more)
    assert made.body.__module__ == room
    given = (x, *more, *[np.zeros(0)] * (len(made.views) - 3 - len(more)))
    rows, back = split(x, kind, size)
    expected = back(
        (rows - rows.mean(1, keepdims=True)) / np.sqrt(rows.var(1, keepdims=True) + EPS)
    )
    expected = expected * channels(w, x) + channels(b, x) if affine else expected
    for backwards in (False, True):
        out, stats = python_outputs(made, *given, backwards=backwards)
        np.testing.assert_allclose(out, expected, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(stats[0].reshape(-1), rows.mean(1), rtol=1e-12)
        np.testing.assert_allclose(stats[1].reshape(-1), rows.var(1), rtol=1e-9)


@pytest.mark.parametrize(("kind", "size", "shape", "room"), CASES)
def test_slopes_are_those_of_the_formula(rng, kind, size, shape, room):
    x, g = rng.standard_normal(shape), rng.standard_normal(shape)
    rows, back = split(x, kind, size)
    slopes, _ = split(g, kind, size)
    stats = np.stack([rows.mean(1), rows.var(1)])
    made = launch("_back", (kind, size, EPS, True), g, x, stats)
    assert made.body.__module__ == room
    given = (g, x, stats, *[np.zeros(0)] * (len(made.views) - 4))
    h = (rows - stats[0][:, None]) / np.sqrt(stats[1] + EPS)[:, None]
    inner = slopes - slopes.mean(1, keepdims=True) - h * (slopes * h).mean(1, keepdims=True)
    expected = back(inner / np.sqrt(stats[1] + EPS)[:, None])
    (dx,) = python_outputs(made, *given, backwards=True)
    np.testing.assert_allclose(dx, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("shape", [(6, 3), (2, 2, 2500)])
def test_running_statistics_move(rng, shape):
    x = rng.standard_normal(shape)
    c = shape[1]
    w, b, mean, var = np.ones(c), np.zeros(c), rng.standard_normal(c), rng.uniform(1, 2, c)
    made = launch("_tracking", (EPS,), x, w, b, mean, var)
    arrays = [x, w, b, mean.copy(), var.copy()]
    out, _ = python_outputs(made, *arrays, scalars=(0.25,))
    axes = (0, *range(2, x.ndim))
    np.testing.assert_allclose(arrays[3], 0.75 * mean + 0.25 * x.mean(axes), rtol=1e-10)
    np.testing.assert_allclose(arrays[4], 0.75 * var + 0.25 * x.var(axes, ddof=1), rtol=1e-10)
    np.testing.assert_allclose(out.mean(axes), 0, atol=1e-10)
