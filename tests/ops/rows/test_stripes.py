"""Functions of runs and stripes, run as Python: all schedules give one result."""

import numpy as np
import pytest

from flowvm.ops.rows.cpu.row_code import result_of, short_results_of
from flowvm.ops.rows.cpu.stripes import (
    begin_of,
    moments_by_four,
    stripe_result,
    stripe_sweep,
    sums_by_four,
)
from flowvm.ops.rows.parts.class_loss_rules import ENTROPY_BACKWARD, WEIGHTED_ENTROPY_BACKWARD
from flowvm.ops.rows.parts.norm_programs import PLANE, PLANE_BACKWARD, PLANE_SLOPES
from flowvm.ops.rows.parts.norm_rules import base_and_slope, weight_gradient

WIDTH, INNER, AT = 3, 5, 2


def stripe(x, n):
    """The stripe's elements: n lines of WIDTH."""
    return np.stack([x[AT + j * INNER : AT + j * INNER + WIDTH] for j in range(n)])


@pytest.fixture
def operands(rng):
    return rng.standard_normal((2, AT + 9 * INNER)), rng.standard_normal(WIDTH)


@pytest.mark.parametrize("n", [1, 3, 4, 7, 8])
def test_sums_by_four_are_those_of_a_sweep(operands, n):
    (g, x), middle = operands
    four, single = np.full((2, 2, WIDTH), np.nan)
    sums_by_four(PLANE_SLOPES)(*four, middle, g, x, AT, n, INNER)
    stripe_sweep(PLANE_SLOPES, 0)[0](*single, middle, g, x, AT, n, INNER)
    np.testing.assert_allclose(four, single, rtol=1e-13)
    gs, xs = stripe(g, n), stripe(x, n)
    np.testing.assert_allclose(four, [gs.sum(0), (gs * (xs - middle)).sum(0)], rtol=1e-13)


@pytest.mark.parametrize("n", [1, 3, 4, 7, 8])
def test_moments_by_four(operands, n):
    (x, _), _ = operands
    x += 1e8
    means, squares = np.full((2, WIDTH), np.nan)
    moments_by_four(means, squares, x, AT, n, INNER)
    xs = stripe(x, n)
    np.testing.assert_allclose(means, xs.mean(0), rtol=1e-15)
    np.testing.assert_allclose(squares, ((xs - xs.mean(0)) ** 2).sum(0), rtol=1e-6, atol=1e-12)


def test_a_norm_and_its_gradient_of_a_stripe(operands):
    """The programs of planes, with numbers of columns, against the formulas of a norm."""
    (g, x), weight = operands
    n, eps, bias = 9, 0.25, np.arange(WIDTH) * 1.0
    gs, xs = stripe(g, n), stripe(x, n)
    mean, var = xs.mean(0), xs.var(0)
    rstd = 1 / np.sqrt(var + eps)
    factor, out = np.empty(WIDTH), np.zeros_like(x)
    begin_of(PLANE, "factor")(factor, var, weight, eps)
    stripe_result(PLANE)[0](out, x, mean, bias, factor, AT, n, INNER)
    np.testing.assert_allclose(stripe(out, n), (xs - mean) * rstd * weight + bias, rtol=1e-12)
    h, d = gs * weight, xs - mean
    rules = [
        base_and_slope(a, b, v, 1 / n, eps)
        for a, b, v in zip(h.sum(0), (h * d).sum(0), var, strict=True)
    ]
    base, slope = np.array(rules).T
    lift = np.empty(WIDTH)
    begin_of(PLANE_BACKWARD, "lift")(lift, var, eps)
    stripe_result(PLANE_BACKWARD)[0](out, g, x, mean, base, slope, lift, factor, AT, n, INNER)
    want = rstd * (h - h.mean(0) - d * rstd**2 * (h * d).mean(0))
    np.testing.assert_allclose(stripe(out, n), want, rtol=1e-10, atol=1e-12)
    actual = weight_gradient((gs * d).sum(0)[0], var[0], eps)
    np.testing.assert_allclose(actual, (gs * d * rstd).sum(0)[0], rtol=1e-12)


@pytest.mark.parametrize("p", [ENTROPY_BACKWARD, WEIGHTED_ENTROPY_BACKWARD])
def test_the_logits_of_a_loss_as_rows_short_rows_and_a_stripe(rng, p):
    n, first = 4, 1
    x, numbers = rng.standard_normal((WIDTH + first, n)), rng.standard_normal((4, WIDTH))
    weights = [rng.standard_normal(n)] * len(p.weights)
    want = np.zeros_like(x)
    top, level, factor, off = numbers
    for k in range(WIDTH):
        part = np.exp(x[first + k] - top[k] - level[k]) * factor[k]
        want[first + k] = part - off[k] * (weights[0] if weights else 1)
    rows, short, side = np.zeros((3, x.size))
    for k in range(WIDTH):
        run = slice((first + k) * n, (first + k + 1) * n)
        result_of(p)(rows[run], x.ravel()[run], *weights, *numbers[:, k])
    short_results_of(p)(short, x.ravel(), *weights, *numbers, first, n)
    lines = np.ascontiguousarray(x.T).ravel()
    stripe_result(p)[0](side, lines, *weights, *numbers, first, n, WIDTH + first)
    for actual in (rows.reshape(x.shape), short.reshape(x.shape), side.reshape(x.T.shape).T):
        np.testing.assert_allclose(actual, want, rtol=1e-12, atol=1e-14)
