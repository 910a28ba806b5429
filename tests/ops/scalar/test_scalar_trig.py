"""Trigonometry, powers, remainders and the gamma functions: errors in units in the last place, and
special values exactly.

Arguments are drawn from all exponents and from where a function is hard: multiples of pi/2, 1, the
ends of the range, zeros.  References are NumPy and SciPy in float64 for float32, mpmath for
float64.
"""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import scipy.special

import flowvm as flow
from flowvm.ops.declare.elementwise import elementwise
from flowvm.ops.scalar import functions as scalar

OPS = {
    name: getattr(flow, name, None) or elementwise(name, f"{name}({args})", types="float")
    for args, names in (
        ("x", "sin cos tan asin acos atan asinh acosh atanh cbrt lgamma digamma"),
        ("x, y", "atan2 hypot pow fmod remainder floor_divide nextafter"),
    )
    for name in names.split()
}
OPS["trigamma"] = lambda x: flow.polygamma(1, x)

COUNT = 400


def compute(name, *arrays):
    return OPS[name](*(flow.tensor(a) for a in arrays)).numpy()


# --- arguments --------------------------------------------------------------------------------


def exponents(rng, dtype, low=None, high=None):
    """Numbers of both signs from all exponents between `low` and `high`, subnormals included."""
    info = np.finfo(dtype)
    low, high = low or float(info.smallest_subnormal), high or float(info.max) / 2
    powers = rng.uniform(math.log2(low), math.log2(high), COUNT)
    return (np.exp2(powers) * rng.choice([-1, 1], COUNT)).astype(dtype)


def angles(rng, dtype):
    turns = np.concatenate([np.arange(1, COUNT), rng.integers(1, 2**40, COUNT)]) * (math.pi / 2)
    # the float64 that is nearest to a multiple of pi/2
    nearest = np.array([6381956970095103.0 * 2.0**797, 1e22, 2.0**120, 3.4e38])
    nearest = nearest[nearest < np.finfo(dtype).max]
    parts = (rng.uniform(-10, 10, COUNT), exponents(rng, dtype, 1e-3, 1e7), turns, nearest)
    return np.concatenate([exponents(rng, dtype), *(p.astype(dtype) for p in parts)])


def unit(rng, dtype):
    near_one = 1 - np.exp2(-rng.uniform(1, 23, COUNT))
    parts = (rng.uniform(-1, 1, COUNT), near_one, -near_one, 0.5 + rng.uniform(-0.01, 0.01, COUNT))
    return np.concatenate([exponents(rng, dtype, high=1.0), *(p.astype(dtype) for p in parts)])


def everywhere(rng, dtype):
    return np.concatenate([exponents(rng, dtype), rng.uniform(-10, 10, COUNT).astype(dtype)])


def above_one(rng, dtype):
    near_one = 1 + np.exp2(-rng.uniform(1, 23, COUNT))
    return np.concatenate([near_one.astype(dtype), np.abs(exponents(rng, dtype, 1.0))])


def positive(rng, dtype):
    big = 1e35 if dtype == "float32" else 1e300
    small = 4e-39 if dtype == "float32" else 1e-307  # where 1 / x is finite
    near = [c + exponents(rng, dtype, 1e-6, 0.4) for c in (1, 2)]
    parts = [np.abs(exponents(rng, dtype, small, big)), rng.uniform(0.01, 12, 2 * COUNT), *near]
    return np.concatenate(parts).astype(dtype)


# --- errors -----------------------------------------------------------------------------------


def errors(actual, expected, dtype):
    """Return errors in units in the last place of `expected`.

    `expected` is a list of mpmath numbers or an array of float64.
    """
    info = np.finfo(dtype)
    units = []
    for g, w in zip(actual.astype(np.float64), expected, strict=True):
        if not mpmath.isfinite(w) or abs(w) > float(info.max):
            units.append(0.0 if g == float(w) or (g != g and w != w) or np.isinf(g) else np.inf)
            continue
        exponent = mpmath.frexp(w)[1] - info.nmant - 1 if w else -2000
        least = round(math.log2(float(info.smallest_subnormal)))
        units.append(float(abs(mpmath.mpf(float(g)) - w) / mpmath.mpf(2) ** max(exponent, least)))
    return np.array(units)


REFERENCES = {
    # name: its arguments, NumPy's function, mpmath's, the largest errors in float32 and float64
    "sin": (angles, np.sin, mpmath.sin, 1.7, 2.2),
    "cos": (angles, np.cos, mpmath.cos, 1.7, 2.2),
    "tan": (angles, np.tan, mpmath.tan, 3.4, 4.0),
    "asin": (unit, np.arcsin, mpmath.asin, 2.2, 2.3),
    "acos": (unit, np.arccos, mpmath.acos, 1.2, 1.3),
    "atan": (everywhere, np.arctan, mpmath.atan, 2.2, 1.7),
    "asinh": (everywhere, np.arcsinh, mpmath.asinh, 1.9, 1.7),
    "acosh": (above_one, np.arccosh, mpmath.acosh, 2.2, 2.2),
    "atanh": (unit, np.arctanh, mpmath.atanh, 2.1, 1.8),
    "cbrt": (everywhere, np.cbrt, lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x)), 0.6, 0.6),
    "lgamma": (positive, scipy.special.gammaln, mpmath.loggamma, 0.7, 5.5),
    "digamma": (positive, scipy.special.psi, mpmath.digamma, 0.7, 7.0),
    "trigamma": (positive, lambda x: scipy.special.polygamma(1, x), lambda x: mpmath.psi(1, x),
                 0.7, 4.0),
}  # fmt: skip


def report(name, dtype, arguments, actual, expected, bound):
    units = errors(actual, expected, dtype)
    i = int(np.argmax(units))
    at = tuple(float(a[i]) for a in arguments)
    assert units[i] <= bound, f"{name}{at} in {dtype}: {actual[i]!r}, {units[i]:.2f} units off"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", REFERENCES)
def test_errors(name, dtype, seed):
    arguments, reference, exact, *bounds = REFERENCES[name]
    x = arguments(np.random.default_rng(seed), dtype)
    with mpmath.workprec(1200 if arguments is angles else 120), np.errstate(all="ignore"):
        if dtype == "float32":
            expected = reference(x.astype(np.float64))
        else:
            expected = [exact(mpmath.mpf(float(v))) for v in x]
        report(name, dtype, (x,), compute(name, x), expected, bounds[dtype == "float64"])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_errors_of_pairs(dtype, seed):
    rng = np.random.default_rng(seed)
    x, y = everywhere(rng, dtype), everywhere(rng, dtype)
    y[::2] = (x * rng.uniform(0.1, 1, len(x)))[::2]
    for name, exact, bound in (("atan2", mpmath.atan2, 2.5), ("hypot", mpmath.hypot, 1.3)):
        with mpmath.workprec(120):
            pairs = zip(map(float, x), map(float, y), strict=True)
            expected = [exact(mpmath.mpf(a), mpmath.mpf(b)) for a, b in pairs]
            report(name, dtype, (x, y), compute(name, x, y), expected, bound)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_errors_of_pow(dtype, seed):
    """Results from underflow to overflow, for bases of all exponents and next to 1."""
    rng = np.random.default_rng(seed)
    near_one = 1 + exponents(rng, dtype, float(np.finfo(dtype).eps), 0.4)
    x = np.concatenate([np.abs(exponents(rng, dtype)), near_one, rng.uniform(0.6, 1.5, COUNT)])
    x = x.astype(dtype)
    x = x[x != 1]
    high = math.log(float(np.finfo(dtype).max))
    with np.errstate(all="ignore"):
        y = (rng.uniform(-high * 1.05, high, len(x)) / np.log(x.astype(np.float64))).astype(dtype)
    keep = np.isfinite(y)
    x, y = x[keep], y[keep]
    with mpmath.workprec(200):
        pairs = zip(map(float, x), map(float, y), strict=True)
        expected = [mpmath.power(mpmath.mpf(a), mpmath.mpf(b)) for a, b in pairs]
        report("pow", dtype, (x, y), compute("pow", x, y), expected, 1.5)


@pytest.mark.parametrize("name", ["lgamma", "digamma"])
def test_errors_of_reflected_arguments(name, seed):
    """Below 0, where zeros and poles alternate: relative to the larger of 1 and the value."""
    x = -np.random.default_rng(seed).uniform(0, 9, 500)
    exact = REFERENCES[name][2]
    with mpmath.workprec(120):
        expected = np.array([float(mpmath.re(exact(mpmath.mpf(float(v))))) for v in x])
    scale = np.maximum(1, np.abs(expected))
    assert np.max(np.abs(compute(name, x) - expected) / scale) < 2e-15
    narrow = x.astype(np.float32)
    reference = REFERENCES[name][1](narrow.astype(np.float64))
    scale = np.maximum(1, np.abs(reference))
    assert np.max(np.abs(compute(name, narrow) - reference) / scale) < 1e-7


# --- special values ---------------------------------------------------------------------------

INF, NAN = math.inf, math.nan
SPECIAL = {
    # name: (argument, result) pairs
    "sin": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN), (5e-324, 5e-324)],
    "cos": [(0.0, 1.0), (-0.0, 1.0), (INF, NAN), (-INF, NAN), (5e-324, 1.0)],
    "tan": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN), (5e-324, 5e-324)],
    "asin": [
        (0.0, 0.0),
        (-0.0, -0.0),
        (1.0, math.pi / 2),
        (-1.0, -math.pi / 2),
        (1.5, NAN),
        (INF, NAN),
    ],
    "acos": [(1.0, 0.0), (0.0, math.pi / 2), (-1.0, math.pi), (1.5, NAN), (-1.5, NAN), (INF, NAN)],
    "atan": [
        (0.0, 0.0),
        (-0.0, -0.0),
        (INF, math.pi / 2),
        (-INF, -math.pi / 2),
        (1.0, math.pi / 4),
    ],
    "asinh": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF)],
    "acosh": [(1.0, 0.0), (0.5, NAN), (-2.0, NAN), (-INF, NAN), (INF, INF)],
    "atanh": [
        (0.0, 0.0),
        (-0.0, -0.0),
        (1.0, INF),
        (-1.0, -INF),
        (1.5, NAN),
        (-INF, NAN),
        (INF, NAN),
    ],
    "cbrt": [(0.0, 0.0), (-0.0, -0.0), (27.0, 3.0), (-8.0, -2.0), (INF, INF), (-INF, -INF)],
    "lgamma": [
        (0.0, INF),
        (-0.0, INF),
        (1.0, 0.0),
        (2.0, 0.0),
        (-3.0, INF),
        (INF, INF),
        (-INF, INF),
    ],
    "digamma": [(0.0, -INF), (-0.0, INF), (-3.0, NAN), (INF, INF), (-INF, NAN)],
    "trigamma": [(0.0, INF), (-1.0, INF), (INF, 0.0)],
}


def same(a, b):
    """Equal with equal signs, or both NaN."""
    return np.where(np.isnan(b), np.isnan(a), (a == b) & (np.signbit(a) == np.signbit(b)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SPECIAL)
def test_special_values(name, dtype):
    with np.errstate(all="ignore"):
        x, expected = np.array([*SPECIAL[name], (NAN, NAN)]).astype(dtype).T
    actual = compute(name, x)
    assert same(actual, expected).all(), f"{name}{x} in {dtype}:\n{actual}\n{expected}"


GRID = [
    0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, -3.0, 1 / 3, -1 / 3, 1e30, -1e30, 1e-30,
    5e-324, -5e-324, 16777217.0, 9007199254740991.0, -9007199254740993.0, INF, -INF, NAN,
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["pow", "atan2", "hypot", "fmod", "nextafter"])
def test_special_pairs(name, dtype):
    """All pairs of special values, as C has them."""
    reference = {"pow": np.power, "atan2": np.arctan2}.get(name) or getattr(np, name)
    x, y = (a.ravel() for a in np.meshgrid(np.array(GRID).astype(dtype), np.array(GRID, dtype)))
    with np.errstate(all="ignore"):
        expected = reference(x, y)
        actual = compute(name, x, y)
        close = np.abs(actual - expected) <= 2 * np.spacing(np.abs(expected))
        good = same(actual, expected) | (close & (np.signbit(actual) == np.signbit(expected)))
    assert good.all(), [(x[i], y[i], actual[i], expected[i]) for i in np.flatnonzero(~good)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_divisions_are_exact(dtype, seed):
    """Quotients of all sizes, beyond the mantissa too, and remainders of 0."""
    rng = np.random.default_rng(seed)
    x, y = (np.exp2(rng.uniform(-40, 40, 4000)).astype(dtype) for _ in range(2))
    x[:1000] = (y * np.rint(x))[:1000]
    x[1000:1500], y[1500:2000] = (exponents(rng, dtype)[:1].repeat(500) for _ in range(2))
    x *= rng.choice([-1, 1], len(x)).astype(dtype)
    y *= rng.choice([-1, 1], len(y)).astype(dtype)
    assert np.array_equal(compute("fmod", x, y), np.fmod(x, y))
    with np.errstate(all="ignore"):
        rest = np.fmod(x, y)
        expected = np.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)
    assert np.array_equal(compute("remainder", x, y), expected)
    small = np.abs(x / y) < 1e6
    whole = [
        math.floor(Fraction(float(a)) / Fraction(float(b)))
        for a, b in zip(x[small], y[small], strict=True)
    ]
    assert np.array_equal(compute("floor_divide", x[small], y[small]), np.array(whole, dtype))


# --- forms ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_rare_case_changes_no_other_element(dtype, seed):
    """Vectors and single elements take different ways where one element is rare."""
    x = np.random.default_rng(seed).uniform(-20, 20, 3000).astype(dtype)
    usual = compute("sin", x)
    y = x.copy()
    y[[5, 1700]] = 1e22, 2.0**100
    mixed = compute("sin", y)
    assert np.array_equal(np.delete(mixed, [5, 1700]), np.delete(usual, [5, 1700]))
    t = flow.tensor(y)
    t.sin_()
    assert np.array_equal(t.numpy(), mixed)
    assert np.array_equal(flow.tensor(y)[::3].sin().numpy(), mixed[::3])
    for value in (0.5, 1e22):  # one element a row
        single = flow.tensor(np.array(value, dtype)).expand(200)
        assert np.array_equal(single.sin().numpy(), compute("sin", np.full(200, value, dtype)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_python_keeps_the_sign_of_zero(dtype):
    values = [scalar.functions()["sin"](dtype(zero)) for zero in (0.0, -0.0)]
    assert np.array_equal(np.signbit(values), [False, True])
    assert not np.any(values)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "name", [n for n in OPS if n not in ("trigamma", "lgamma", "digamma", "pow")]
)
def test_python_does_what_the_kernel_does(name, dtype, seed):
    rng = np.random.default_rng(seed)
    pair = scalar.functions()[name].implementations["float64"].__code__.co_argcount == 2
    x = rng.uniform(0.1, 0.9, (1 + pair, 20)).astype(dtype)
    x = 1 + x if name == "acosh" else x
    with np.errstate(all="ignore"):
        plain = np.array([scalar.functions()[name](*column) for column in x.T], dtype)
    # sums of products are rounded once by a kernel and twice by Python
    exact = name in ("fmod", "remainder", "floor_divide", "nextafter")
    np.testing.assert_array_max_ulp(compute(name, *x), plain, 0 if exact else 2)
