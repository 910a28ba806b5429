"""Incomplete gamma functions and the zeta function, at all sizes of their arguments."""

import math

import numpy as np
import pytest

import flowvm as flow

mpmath = pytest.importorskip("mpmath")

INF, NAN = math.inf, math.nan
SMALL = (1e-45, 1e-20, 1e-3, 3.9e-3, 4.1e-3, 0.1, 0.5, 1.0, 1.1, 1.2, 5.0, 50.0, 310.0, 5000.0)


def lower(a, x):
    return mpmath.gammainc(a, 0, x, regularized=True)


def upper(a, x):
    return mpmath.gammainc(a, x, mpmath.inf, regularized=True)


def of(function, a, x):
    columns = (flow.tensor(v, dtype=flow.float64) for v in (a, x))
    return function(*columns).numpy()


@pytest.mark.parametrize(
    ("function", "exact"),
    [(flow.special.gammainc, lower), (flow.special.gammaincc, upper)],
    ids=["lower", "upper"],
)
def test_gammainc(function, exact):
    a, x = (m.ravel().tolist() for m in np.meshgrid(SMALL, SMALL))
    with mpmath.workdps(50):
        want = np.array([float(exact(p, q)) for p, q in zip(a, x, strict=True)])
    np.testing.assert_allclose(of(function, a, x), want, rtol=1e-11, atol=1e-290)


@pytest.mark.parametrize("a", [1.01e4, 1e5])
def test_gammainc_of_large_numbers(a):
    special = pytest.importorskip("scipy.special")
    x = a + np.array([-30, -10, -5, -0.5, -1e-3, 0, 1e-3, 0.5, 5, 10, 30]) * math.sqrt(a)
    for ours, theirs in (
        (flow.special.gammainc, special.gammainc),
        (flow.special.gammaincc, special.gammaincc),
    ):
        actual = of(ours, np.full_like(x, a), x)
        np.testing.assert_allclose(actual, theirs(a, x), rtol=1e-9, atol=1e-290)


def test_gammainc_is_normal_in_the_end():
    """SciPy 1.18 is 9 times off here."""
    a, deviations = 1e12, np.array([-10.0, -5.0, -1.0])
    actual = of(flow.special.gammainc, np.full(3, a), a + deviations * 1e6)
    normal = [0.5 * math.erfc(-d / math.sqrt(2)) for d in deviations]
    np.testing.assert_allclose(actual, normal, rtol=1e-3)


@pytest.mark.parametrize(
    ("a", "x", "value"),
    [(1e20, 1e20, 0.5), (3e38, 3e38, 0.5), (1e30, 1e31, 1.0), (1e31, 1e30, 0.0), (INF, 1.0, 0.0)],
)
def test_gammainc_of_huge_numbers(a, x, value):
    assert of(flow.special.gammainc, [a], [x])[0] == pytest.approx(value, abs=1e-9)
    assert of(flow.special.gammaincc, [a], [x])[0] == pytest.approx(1 - value, abs=1e-9)


@pytest.mark.parametrize(
    ("s", "q", "value"),
    [
        (INF, 0.5, INF), (INF, 1.0, 1.0), (INF, 1.5, 0.0), (INF, -0.5, INF), (1e20, 1.0, 1.0),
        (1e20, -3.5, INF), (1200.0, 1.0, 1.0), (2.0, INF, 0.0), (NAN, INF, NAN), (1.0, 2.0, INF),
    ],
)  # fmt: skip
def test_zeta_of_huge_numbers(s, q, value):
    actual = of(flow.special.zeta, [s], [q])[0]
    assert actual == value or (math.isnan(actual) and math.isnan(value))


@pytest.mark.parametrize("p", [5e-324, 1e-310, 2.3e-308, 1e-300, 1e-20, 0.3])
def test_quantiles_of_tiny_probabilities(p):
    x = flow.special.ndtri(flow.tensor(p, dtype=flow.float64)).item()
    with mpmath.workdps(40):
        want = mpmath.findroot(lambda t: mpmath.log(mpmath.ncdf(t)) - mpmath.log(mpmath.mpf(p)), x)
    assert abs(x / float(want) - 1) < 1e-15
