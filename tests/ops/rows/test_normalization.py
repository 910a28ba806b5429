"""Norms of rows, groups, batches and samples, against formulas in float64; running statistics."""

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import ArgumentError, ShapeError
from flowvm.ops.rows import normalization

EPS = 1e-5


def by_hand(x, axes, eps=EPS, centered=True):
    middle = x.mean(axes, keepdims=True) if centered else 0
    return (x - middle) / np.sqrt(((x - middle) ** 2).mean(axes, keepdims=True) + eps)


@pytest.fixture
def x(rng):
    return rng.standard_normal((4, 6, 5))


def close(ours, expected):
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-9, atol=1e-12)


def test_layers(x, rng):
    w, b = rng.standard_normal((2, 6, 5))
    out = normalization.layer_norm(*map(flow.tensor, (x,)), (6, 5), flow.tensor(w), flow.tensor(b))
    close(out, by_hand(x, (1, 2)) * w + b)
    close(normalization.layer_norm(flow.tensor(x), 5, eps=0.5), by_hand(x, (2,), 0.5))
    with pytest.raises(ShapeError, match=r"\(4,\)"):
        normalization.layer_norm(flow.tensor(x), (4,))


def test_roots_of_mean_squares(x, rng):
    w = rng.standard_normal(5)
    out = normalization.rms_norm(flow.tensor(x), (5,), flow.tensor(w))
    close(out, by_hand(x, (2,), np.finfo(np.float64).eps, centered=False) * w)
    half = normalization.rms_norm(flow.tensor(x).half(), 5)
    assert half.dtype is flow.float16
    np.testing.assert_allclose(half.float().numpy(), by_hand(x, (2,), 1e-7, False), atol=5e-3)


def test_complex_roots_of_mean_squares(rng):
    z = rng.standard_normal((3, 4)) + 1j * rng.standard_normal((3, 4))
    out = normalization.rms_norm(flow.tensor(z), (4,), eps=0.5)
    np.testing.assert_allclose(
        out.numpy(), z / np.sqrt((z * z).mean(1, keepdims=True) + 0.5), rtol=1e-9
    )
    with pytest.raises(ShapeError, match="is not the end of shape"):
        normalization.rms_norm(flow.tensor(z), (3,))


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_groups(x, groups, rng):
    w, b = rng.standard_normal((2, 6))
    flat = by_hand(x.reshape(4, groups, -1), (2,)).reshape(x.shape)
    out = normalization.group_norm(flow.tensor(x), groups, flow.tensor(w), flow.tensor(b))
    close(out, flat * w[:, None] + b[:, None])


def test_batches_move_running_statistics(x, rng):
    mean, var = rng.standard_normal(6), rng.uniform(1, 2, 6)
    ours = flow.tensor(mean), flow.tensor(var)
    out = normalization.batch_norm(flow.tensor(x), *ours, training=True, momentum=0.25)
    close(out, by_hand(x, (0, 2)))
    close(ours[0], 0.75 * mean + 0.25 * x.mean((0, 2)))
    close(ours[1], 0.75 * var + 0.25 * x.var((0, 2), ddof=1))
    out = normalization.batch_norm(flow.tensor(x), *map(flow.tensor, (mean, var)))
    close(out, (x - mean[:, None]) / np.sqrt(var[:, None] + EPS))


def test_batches_without_elements_move_nothing():
    mean, var = flow.ones(3), flow.ones(3)
    out = normalization.batch_norm(flow.zeros(0, 3), mean, var, training=True)
    assert out.shape == (0, 3)
    assert (mean.tolist(), var.tolist()) == ([1, 1, 1], [1, 1, 1])


def test_batches_need_statistics_or_a_positive_eps():
    x = flow.ones(2, 3)
    with pytest.raises(ArgumentError, match="running_mean and running_var are needed"):
        normalization.batch_norm(x, flow.ones(3), None)
    with pytest.raises(ArgumentError, match="eps must be positive in training, got 0"):
        normalization.batch_norm(x, None, None, training=True, eps=0)
    with pytest.raises(ArgumentError, match="instance_norm: running_mean"):
        normalization.instance_norm(flow.ones(2, 3, 4), use_input_stats=False)


def test_running_statistics_that_need_gradients(rng):
    x = flow.tensor(rng.standard_normal((5, 2)))
    mean = flow.tensor(rng.standard_normal(2), requires_grad=True)
    var = flow.tensor(rng.uniform(1, 2, 2), requires_grad=True)
    assert flow.autograd.gradcheck(lambda m, v: normalization.batch_norm(x, m, v), (mean, var))


def test_instances(x, rng):
    close(normalization.instance_norm(flow.tensor(x)), by_hand(x, (2,)))
    mean, var = flow.zeros(6).double(), flow.ones(6).double()
    normalization.instance_norm(flow.tensor(x), mean, var, momentum=0.5)
    close(mean, 0.5 * x.mean(2).mean(0))
    close(var, 0.5 + 0.5 * x.var(2, ddof=1).mean(0))


@pytest.mark.parametrize("p", [1.0, 2.0, np.inf])
def test_division_by_a_norm(x, p):
    norm = np.linalg.norm(x, p, 1, keepdims=True)
    close(normalization.normalize(flow.tensor(x), p), x / norm)
    zeros = normalization.normalize(flow.zeros(2, 3), p, eps=0.5)
    assert zeros.tolist() == [[0, 0, 0]] * 2
    close(normalization.normalize(flow.tensor(x), p, eps=1e3), x / 1e3)
