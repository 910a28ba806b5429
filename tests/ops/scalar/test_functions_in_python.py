"""Scalar functions as plain Python, against math and SciPy."""

import cmath
import math

import numpy as np
import pytest
from scipy import special as scipy_special

from flowvm.ops.scalar import (
    area,
    bessel,
    bessel_tables,
    complex_numbers,
    division,
    log,
    special,
    whole,
)


@pytest.mark.parametrize("name", ["i0", "i1", "i0e", "i1e", "k0", "k1", "k0e", "k1e", "j0", "j1"])
@pytest.mark.parametrize("x", [0.25, 1.75, 7.5, 31.0])
def test_bessel_functions_are_scipys(name, x):
    ours = getattr(bessel, f"_{name}")(x)
    assert ours == pytest.approx(getattr(scipy_special, name)(x), rel=1e-13)


def test_bessel_tables_begin_with_what_no_double_can_see():
    tables = [v for k, v in vars(bessel_tables).items() if k.isupper() and isinstance(v, tuple)]
    assert tables
    for coefficients in tables:
        assert abs(coefficients[0]) < 1e-14 * max(map(abs, coefficients))


@pytest.mark.parametrize("x", [3 + 4j, -0.5 + 0.25j, 1e-3 - 2j])
def test_complex_numbers_are_cmaths(x):
    y = 0.75 - 1.25j
    assert complex_numbers.cdiv(x, y) == pytest.approx(x / y, rel=1e-15)
    assert complex_numbers.crecip(x) == pytest.approx(1 / x, rel=1e-15)
    assert complex_numbers.cabs(x) == pytest.approx(abs(x), rel=1e-15)
    assert complex_numbers.cangle(x) == pytest.approx(cmath.phase(x), rel=1e-15)
    assert complex_numbers.cexp(x) == pytest.approx(cmath.exp(x), rel=1e-14)
    assert complex_numbers.clog(x) == pytest.approx(cmath.log(x), rel=1e-14)
    assert complex_numbers.csqrt(x) == pytest.approx(cmath.sqrt(x), rel=1e-14)


def test_complex_division_by_a_large_number_does_not_overflow():
    assert complex_numbers.cdiv(1e300 + 1e300j, 1e300 + 1e300j) == 1


@pytest.mark.parametrize("x", [-7, 7, 0, 2**40 + 1, -(2**40)])
@pytest.mark.parametrize("y", [3, -3, 1, -1, 2**33])
def test_division_of_ints_has_pythons_signs(x, y):
    assert division._remainder_int(x, y) == x % y
    assert division._floor_divide_int(x, y) == x // y
    assert division._fmod_int(x, y) == math.fmod(x, y)


def test_division_of_ints_by_zero_is_an_error():
    for function in (division._remainder_int, division._floor_divide_int, division._fmod_narrow):
        with pytest.raises(ZeroDivisionError):
            function(1, 0)


@pytest.mark.parametrize("x", [1.0, 1.0 + 1e-9, 0.3, 2.0, 1e300, 3e-300])
def test_log_of_a_finite_number_is_maths(x):
    assert float(log.log_finite64(np.float64(x))) == pytest.approx(math.log(x), rel=1e-15)


@pytest.mark.parametrize(("s", "q"), [(2.0, 1.0), (3.5, 0.5), (20.0, 7.25)])
def test_special_zeta_is_scipys(s, q):
    assert special._zeta(s, q) == pytest.approx(scipy_special.zeta(s, q), rel=1e-14)


@pytest.mark.parametrize(("x", "y"), [(12, 18), (-12, 18), (0, 5), (7, 13)])
def test_whole_numbers_have_their_common_divisor(x, y):
    assert whole._gcd(x, y) == math.gcd(x, y)
    assert whole._lcm(x, y) == math.lcm(x, y)
    assert whole._gcd_uint(abs(x), y) == math.gcd(x, y)


@pytest.mark.parametrize(("k", "function"), [(0, math.asinh), (1, math.acosh), (2, math.atanh)])
def test_area_functions_are_maths(k, function):
    x = np.float64(0.5 if function is not math.acosh else 2.5)
    ours = area._area_functions(np.float64)[k]
    assert float(ours(x)) == pytest.approx(function(x), rel=1e-15)
