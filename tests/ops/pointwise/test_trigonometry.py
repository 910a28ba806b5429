"""Angles, hyperbolic and special functions against NumPy and SciPy, at edges, and their slopes."""

import math

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import ArgumentError
from flowvm.ops.pointwise import trigonometry
from flowvm.ops.pointwise.parts.unary import special

NAN, INF = math.nan, math.inf
EDGES = np.array([-INF, -2.0, -1.0, -0.0, 0.0, 0.5, 1.0, 30.0, INF, NAN])
NUMPY = {
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh,
    "acosh": np.arccosh, "atanh": np.arctanh, "deg2rad": np.deg2rad, "rad2deg": np.rad2deg,
    "sigmoid": special("expit"), "erf": special("erf"), "erfc": special("erfc"),
    "erfinv": special("erfinv"),
}  # fmt: skip


@pytest.mark.parametrize("name", NUMPY)
def test_values_at_edges(name):
    with np.errstate(all="ignore"):
        expected = NUMPY[name](EDGES)
    ours = getattr(trigonometry, name)(flow.tensor(EDGES)).numpy()
    np.testing.assert_allclose(ours, expected, rtol=1e-13, atol=1e-15)
    if name != "erfinv":  # SciPy's loses the sign of -0
        assert (np.signbit(ours) == np.signbit(expected))[~np.isnan(expected)].all()


@pytest.mark.parametrize("name", ["lgamma", "digamma"])
def test_gammas(name):
    x = np.array([0.5, 1.0, 2.0, 7.25, 1e-3, -0.5, -1.5, 100.0])
    expected = special({"lgamma": "gammaln", "digamma": "psi"}[name])(x)
    ours = getattr(trigonometry, name)(flow.tensor(x)).numpy()
    np.testing.assert_allclose(ours, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("n", [0, 1, 2, 4])
def test_derivatives_of_digamma(n):
    import scipy.special

    x = np.array([0.5, 1.0, 3.25, 20.0])
    ours = trigonometry.polygamma(n, flow.tensor(x))
    np.testing.assert_allclose(ours.numpy(), scipy.special.polygamma(n, x), rtol=1e-10)
    y = flow.tensor(x)
    assert y.polygamma_(n) is y
    np.testing.assert_allclose(y.numpy(), ours.numpy())
    with pytest.raises(ArgumentError, match="n is a non-negative int, got -1"):
        trigonometry.polygamma(-1, flow.ones(1))


def test_slopes_are_finite_differences():
    x = np.array([0.3, -0.6])
    for name in ("sin", "tan", "asin", "acos", "atan", "sinh", "tanh", "asinh", "atanh", "sigmoid",
                 "erf", "erfc", "erfinv"):  # fmt: skip
        t = flow.tensor(x, requires_grad=True)
        getattr(trigonometry, name)(t).sum().backward()
        with np.errstate(all="ignore"):
            slope = (NUMPY[name](x + 1e-6) - NUMPY[name](x - 1e-6)) / 2e-6
        np.testing.assert_allclose(t.grad.numpy(), slope, rtol=1e-6, err_msg=name)


def test_other_names_are_methods_of_the_same():
    for name, op in trigonometry.ALIASES.items():
        assert getattr(trigonometry, name) is op
        assert callable(getattr(flow.Tensor, name))
    x = flow.tensor([0.25])
    for op in trigonometry.METHODS:
        np.testing.assert_array_equal(getattr(x, op.name)().numpy(), op(x).numpy())
