"""Exponentials, logarithms, the error function and their kin: errors in units in the last place
against mpmath, and special values exactly.

Arguments are drawn from all exponents, from the ranges where a function is interesting and from
where it is hard: zeros, the ends of the range, where one formula takes over from another.
"""

import math

import mpmath
import numpy as np
import pytest

import flowvm as flow
from flowvm.compiler.native import lower
from flowvm.ops.declare.elementwise import elementwise
from flowvm.ops.scalar import functions as scalar

COUNT = 250
INF, NAN = math.inf, math.nan
ARGUMENTS = {"logaddexp": "x, y"}


def _sigmoid(x):
    return 1 / (1 + mpmath.exp(-x))


def _softplus(x):
    return mpmath.log1p(mpmath.exp(-abs(x))) + max(x, 0)


def _erfc(x):
    return mpmath.erfc(x) if abs(x) < 100 else 1 - mpmath.sign(x)


def _erfinv(y):
    """Return erfinv by Newton's method near 1, where mpmath's has few digits."""
    rest = 1 - abs(y)
    if rest > 0.01:
        return mpmath.erfinv(y)
    z = mpmath.sqrt(-mpmath.log(rest)) * 0.93
    for _ in range(60):
        step = (mpmath.erfc(z) - rest) * mpmath.sqrt(mpmath.pi) / 2 * mpmath.exp(z * z)
        step = step / (1 + z * step) if abs(z * step) < 0.5 else step / 2
        z += step
        if abs(step) < mpmath.mpf(10) ** -25:
            break
    return mpmath.sign(y) * z


# name: the exact function, its domain, where it is hard, bounds in float32 and float64
FUNCTIONS = {
    "exp": (mpmath.exp, (-INF, INF), (0, 88.72, -87.34, -103.9, 709.78, -708.4, -745.1), 1, 1),
    "exp2": (lambda x: mpmath.mpf(2) ** x, (-INF, INF), (0, 127.9, -126, -149, 1023.9, -1074), 1,
             1.5),
    "expm1": (mpmath.expm1, (-INF, INF), (0, 0.3466, -0.3466, 88.72, -17.3, 709.78, -37), 1.8, 2.5),
    "log": (mpmath.log, (0, INF), (1, 0.7071, 1.4142), 1.7, 1),
    "log2": (lambda x: mpmath.log(x) / mpmath.log(2), (0, INF), (1, 0.7071, 1.4142, 2), 1.8, 1.2),
    "log10": (mpmath.log10, (0, INF), (1, 0.7071, 1.4142, 10), 2.8, 1.7),
    "log1p": (mpmath.log1p, (-1, INF), (0, -1, -0.2929, 0.4142), 2.2, 1.6),
    "sinh": (mpmath.sinh, (-INF, INF), (0, 0.3466, 1.04, 89.4, 710.4), 3, 3.6),
    "cosh": (mpmath.cosh, (-INF, INF), (0, 0.3466, 1.04, 89.4, 710.4), 2.8, 2.6),
    "tanh": (mpmath.tanh, (-INF, INF), (0, 0.1733, 9.01, 19.06), 3.3, 3),
    "sigmoid": (_sigmoid, (-INF, INF), (0, 17, 37, -87.3, -103, -708, -745), 2.6, 2.6),
    "softplus": (_softplus, (-INF, INF), (0, -87.3, -103, -708, -745), 2.2, 2.4),
    "tanh_softplus": (lambda x: mpmath.tanh(_softplus(x)), (-INF, INF), (0, -87.3, -708), 3.4, 3.5),
    "erf": (mpmath.erf, (-INF, INF), (0, 1, 2, 3.9, 5.9), 2.4, 2.2),
    "erfc": (_erfc, (-INF, INF), (0, 0.5, 9.2, 10, 26.5, 27.2), 3.4, 4),
    "erfinv": (_erfinv, (-1, 1), (0, 0.9925, 0.995, 1, -1), 3.9, 3.7),
    "rsqrt": (lambda x: 1 / mpmath.sqrt(x), (0, INF), (1,), 1.6, 1.6),
}  # fmt: skip
OPS = {
    name: elementwise(name, f"{name}({ARGUMENTS.get(name, 'x')})", types="float",
                      args=ARGUMENTS.get(name, "x"))
    for name in (*FUNCTIONS, "logaddexp", "normal_cdf")
}  # fmt: skip


def compute(name, *arrays):
    return OPS[name](*(flow.tensor(a) for a in arrays)).numpy()


def arguments(rng, dtype, domain, hard):
    info = np.finfo(dtype)
    powers = rng.uniform(math.log2(float(info.smallest_subnormal)), math.log2(info.max), COUNT)
    parts = [np.exp2(powers) * rng.choice([-1, 1], COUNT)]
    parts += [rng.uniform(-r, r, COUNT) for r in (1, 10, 110, 800)]
    parts += [c + rng.choice([-1, 1], COUNT) * np.exp2(-rng.uniform(1, 40, COUNT)) for c in hard]
    with np.errstate(over="ignore"):
        x = np.concatenate(parts).astype(dtype)
    return x[(x > domain[0]) & (x < domain[1]) & np.isfinite(x)]


def units(actual, exact, dtype):
    """The error of `actual` in units in the last place of `exact`."""
    info = np.finfo(dtype)
    if abs(exact) >= float(info.max):
        return 0.0 if abs(actual) >= info.max else INF
    least = round(math.log2(float(info.smallest_subnormal)))
    exponent = mpmath.frexp(exact)[1] - info.nmant - 1 if exact else least
    return float(abs(mpmath.mpf(float(actual)) - exact) / mpmath.mpf(2) ** max(exponent, least))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors(name, dtype, seed):
    exact, domain, hard, *bounds = FUNCTIONS[name]
    x = arguments(np.random.default_rng(seed), dtype, domain, hard)
    actual = compute(name, x)
    with mpmath.workprec(160):
        error = [
            units(g, exact(mpmath.mpf(float(v))), dtype) for g, v in zip(actual, x, strict=True)
        ]
    i = int(np.argmax(error))
    bound = bounds[dtype == "float64"]
    assert error[i] <= bound, f"{name}({x[i]!r}) gave {actual[i]!r}, {error[i]:.2f} units off"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_absolute_errors(dtype, seed):
    """Functions that are not good to an ulp: sums near 0, and gelu's distribution in float32."""
    rng = np.random.default_rng(seed)
    x, y = rng.uniform(-30, 30, (2, COUNT)).astype(dtype)
    eps = float(np.finfo(dtype).eps)
    with mpmath.workprec(160):
        sums = [mpmath.log(mpmath.exp(mpmath.mpf(float(a))) + mpmath.exp(mpmath.mpf(float(b))))
                for a, b in zip(x, y, strict=True)]  # fmt: skip
        below = [mpmath.ncdf(mpmath.mpf(float(v))) for v in x / 3]
    for actual, expected in (
        (compute("logaddexp", x, y), sums),
        (compute("normal_cdf", x / 3), below),
    ):
        for g, w in zip(actual.astype(np.float64), expected, strict=True):
            assert abs(g - w) <= max(2 * eps * abs(w), 1.3 * eps), (g, w)


TINY = {"float32": 2.0**-149, "float64": 2.0**-1074}
# name: pairs of an argument and what comes out of it exactly; "-" stands for minus the argument
SPECIAL = {
    "exp": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (1e4, INF), (-1e4, 0.0)],
    "exp2": [(0.0, 1.0), (INF, INF), (-INF, 0.0), (3.0, 8.0), (-2.0, 0.25), (1e4, INF)],
    "expm1": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -1.0), (-99.0, -1.0), (1e4, INF)],
    "log": [(0.0, -INF), (-0.0, -INF), (1.0, 0.0), (INF, INF), (-1.0, NAN), (-INF, NAN)],
    "log2": [(0.0, -INF), (1.0, 0.0), (8.0, 3.0), (0.125, -3.0), (INF, INF), (-1.0, NAN)],
    "log10": [(0.0, -INF), (1.0, 0.0), (INF, INF), (-1.0, NAN), (-INF, NAN)],
    "log1p": [(0.0, 0.0), (-0.0, -0.0), (-1.0, -INF), (INF, INF), (-2.0, NAN), (-INF, NAN)],
    "sinh": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (1e4, INF), (-1e4, -INF)],
    "cosh": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, INF), (1e4, INF), (-1e4, INF)],
    "tanh": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (30.0, 1.0), (-30.0, -1.0)],
    "sigmoid": [(0.0, 0.5), (-0.0, 0.5), (INF, 1.0), (-INF, 0.0), (1e4, 1.0), (-1e4, 0.0)],
    "softplus": [(INF, INF), (-INF, 0.0), (1e4, 1e4), (-1e4, 0.0)],
    "tanh_softplus": [(INF, 1.0), (-INF, 0.0), (1e4, 1.0), (-1e4, 0.0)],
    "erf": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (9.0, 1.0), (-9.0, -1.0)],
    "erfc": [(0.0, 1.0), (-0.0, 1.0), (INF, 0.0), (-INF, 2.0), (30.0, 0.0), (-30.0, 2.0)],
    "erfinv": [(0.0, 0.0), (-0.0, -0.0), (1.0, INF), (-1.0, -INF), (2.0, NAN), (-INF, NAN)],
    "normal_cdf": [(0.0, 0.5), (-0.0, 0.5), (INF, 1.0), (-INF, 0.0), (50.0, 1.0), (-50.0, 0.0)],
    "rsqrt": [(0.0, INF), (-0.0, -INF), (4.0, 0.5), (INF, 0.0), (-1.0, NAN), (-INF, NAN)],
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SPECIAL)
def test_special_values(name, dtype):
    pairs = [*SPECIAL[name], (NAN, NAN)]
    if name in ("expm1", "log1p", "sinh", "tanh"):  # these are the argument itself near 0
        pairs += [(TINY[dtype] * k, TINY[dtype] * k) for k in (1, -1, 5, 1001)]
    x, expected = (np.array(v, dtype) for v in zip(*pairs, strict=True))
    # in vectors and in the rest of a row, and with the NaN's payload all ones
    payload = np.frombuffer((b"\xff" * (np.dtype(dtype).itemsize - 1)) + b"\x7f", dtype)
    actual = compute(name, np.concatenate([np.tile(x, 5), payload]))
    assert np.isnan(actual[-1])
    for part in actual[:-1].reshape(5, -1):
        np.testing.assert_array_equal(part, expected)
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(part[numbers]), np.signbit(expected[numbers]))


def test_logaddexp_of_special_values():
    x = np.array([INF, INF, -INF, -INF, NAN, 0.0, 3.0])
    y = np.array([INF, -INF, -INF, 2.0, 1.0, NAN, -INF])
    np.testing.assert_array_equal(compute("logaddexp", x, y), [INF, INF, -INF, 2, NAN, NAN, 3])


def test_bounded_and_monotonous():
    """No result steps over the function's limits, and the order of neighbours survives."""
    x = np.linspace(-12, 12, 100_001, dtype=np.float32)
    for name, low, high in (("tanh", -1, 1), ("erf", -1, 1), ("sigmoid", 0, 1), ("erfc", 0, 2)):
        y = compute(name, x)
        assert y.min() >= low
        assert y.max() <= high
        steps = np.diff(y) * (-1 if name == "erfc" else 1)
        assert steps.min() >= -4 * np.finfo(np.float32).eps, name


@pytest.mark.parametrize("name", [*FUNCTIONS, "normal_cdf"])
def test_in_python(name):
    """The compiled function and the plain Python function that it is made of agree."""
    function = scalar.functions()[name]
    for dtype in (np.float32, np.float64):
        for value in (0.7, 0.03):
            plain = function(dtype(value))
            compiled = compute(name, np.array([value], dtype))[0]
            assert plain == pytest.approx(compiled, rel=8 * float(np.finfo(dtype).eps))


@pytest.mark.parametrize("name", [*FUNCTIONS, "normal_cdf"])
def test_nothing_is_called(name):
    """A call into the C library or a branch that stays would keep a loop from being vectorized."""
    from numba import types

    scope = {"f": scalar.functions()[name]}
    exec("def expression(x):\n    return f(x)", scope)
    for kind in (types.float32, types.float64):
        lowered = lower(scope["expression"], (kind,))
        functions = [f for module in lowered.modules for f in module.functions]
        called = {f.name for f in functions} - {f.name for f in functions if not f.is_declaration}
        assert all(n.startswith(("llvm.", "NRT_")) for n in called), called
