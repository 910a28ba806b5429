"""Element-wise functions: of one array, or of two whose dtypes meet in one."""

from __future__ import annotations

from collections.abc import Callable

from flowvm import ops
from flowvm.array_api.dtypes import paired
from flowvm.eager.tensor import Tensor
from flowvm.loading.listing import listing, own_names

__dir__ = listing(globals())


def _of_one(
    name: str, doc: str, function: Callable[..., object] | None = None
) -> Callable[[Tensor], object]:
    inner = function or getattr(ops, name)

    def call(x: Tensor, /) -> object:
        return inner(x)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = doc
    return call


def _of_two(
    name: str, doc: str, function: Callable[..., object] | None = None
) -> Callable[[Tensor | complex, Tensor | complex], object]:
    inner = function or getattr(ops, name)

    def call(x1: Tensor | complex, x2: Tensor | complex, /) -> object:
        return inner(*paired(name, x1, x2))

    call.__name__ = call.__qualname__ = name
    call.__doc__ = doc
    return call


def _imag(x: Tensor) -> Tensor:
    return ops.imag(x) if x.dtype.is_complex else ops.zeros_like(x)


def _sign(x: Tensor) -> object:
    """Return the sign.  PyTorch's sign of NaN is 0, the standard's NaN."""
    if x.dtype.is_complex:
        return ops.where(ops.eq(x, 0), 0, ops.sgn(x))  # and no -0
    return ops.where(ops.isnan(x), x, ops.sign(x)) if x.dtype.inexact else ops.sign(x)


def _round(x: Tensor) -> Tensor:
    """To the nearest, halves to even; of complex numbers each part."""
    return ops.complex(ops.round(x.real), ops.round(x.imag)) if x.dtype.is_complex else ops.round(x)


def _floor_divide(x1: Tensor, x2: Tensor) -> object:
    """Return the floor of the quotient.  PyTorch gives NaN for an infinity by a number, and -1 for
    a negative number by inf.
    """
    quotient: Tensor = ops.floor_divide(x1, x2)
    if not x1.dtype.inexact:
        return quotient
    return ops.where(ops.isinf(x1) | ops.isinf(x2), ops.floor(x1 / x2), quotient)


def _remainder(x1: Tensor, x2: Tensor) -> object:
    """Return the remainder.  PyTorch's remainder has the sign of x1 where it is 0."""
    rest: Tensor = ops.remainder(x1, x2)
    return ops.where(ops.eq(rest, 0), ops.copysign(rest, x2), rest) if x1.dtype.inexact else rest


abs = _of_one("abs", "The absolute value; of complex numbers their magnitude, a float.")
acos = _of_one("acos", "The inverse of cos, between 0 and pi.")
acosh = _of_one("acosh", "The inverse of cosh, at least 0.")
asin = _of_one("asin", "The inverse of sin, between -pi/2 and pi/2.")
asinh = _of_one("asinh", "The inverse of sinh.")
atan = _of_one("atan", "The inverse of tan, between -pi/2 and pi/2.")
atanh = _of_one("atanh", "The inverse of tanh.")
bitwise_invert = _of_one("bitwise_invert", "Each bit turned.", ops.bitwise_not)
ceil = _of_one("ceil", "The smallest whole number that is not less.")
conj = _of_one("conj", "The complex conjugate.", ops.conj_physical)
cos = _of_one("cos", "The cosine, of radians.")
cosh = _of_one("cosh", "The hyperbolic cosine.")
exp = _of_one("exp", "e to that power.")
expm1 = _of_one("expm1", "exp(x) - 1, exact near 0.")
floor = _of_one("floor", "The largest whole number that is not greater.")
imag = _of_one("imag", "The imaginary part; 0 of real numbers.", _imag)
isfinite = _of_one("isfinite", "Whether it is neither infinite nor NaN.")
isinf = _of_one("isinf", "Whether it is infinite.")
isnan = _of_one("isnan", "Whether it is NaN.")
log = _of_one("log", "The natural logarithm.")
log10 = _of_one("log10", "The logarithm of base 10.")
log1p = _of_one("log1p", "log(1 + x), exact near 0.")
log2 = _of_one("log2", "The logarithm of base 2.")
logical_not = _of_one("logical_not", "Whether it is 0 or False.")
negative = _of_one("negative", "-x.")
positive = _of_one("positive", "x.")
real = _of_one("real", "The real part.")
reciprocal = _of_one("reciprocal", "1 / x.")
round = _of_one("round", "The nearest whole number, of two the even one.", _round)
sign = _of_one("sign", "-1, 0 or 1, NaN of NaN; of complex numbers x / abs(x).", _sign)
signbit = _of_one("signbit", "Whether the sign is a minus, also that of 0 and NaN.")
sin = _of_one("sin", "The sine, of radians.")
sinh = _of_one("sinh", "The hyperbolic sine.")
sqrt = _of_one("sqrt", "The square root.")
square = _of_one("square", "x * x.")
tan = _of_one("tan", "The tangent, of radians.")
tanh = _of_one("tanh", "The hyperbolic tangent.")
trunc = _of_one("trunc", "The nearest whole number on the side of 0.")

add = _of_two("add", "x1 + x2.")
atan2 = _of_two("atan2", "The angle of the point (x2, x1), between -pi and pi.")
bitwise_and = _of_two("bitwise_and", "The bits that both have.")
bitwise_left_shift = _of_two("bitwise_left_shift", "The bits of x1, x2 places to the left.")
bitwise_or = _of_two("bitwise_or", "The bits that either has.")
bitwise_right_shift = _of_two("bitwise_right_shift", "The bits of x1, x2 places to the right.")
bitwise_xor = _of_two("bitwise_xor", "The bits that one of both has.")
copysign = _of_two("copysign", "The magnitude of x1 with the sign of x2.")
divide = _of_two("divide", "x1 / x2.")
equal = _of_two("equal", "Whether both are equal.", ops.eq)
floor_divide = _of_two(
    "floor_divide", "The largest whole number not greater than x1 / x2.", _floor_divide
)
greater = _of_two("greater", "x1 > x2.", ops.gt)
greater_equal = _of_two("greater_equal", "x1 >= x2.", ops.ge)
hypot = _of_two("hypot", "sqrt(x1 ** 2 + x2 ** 2), without overflow on the way.")
less = _of_two("less", "x1 < x2.", ops.lt)
less_equal = _of_two("less_equal", "x1 <= x2.", ops.le)
logaddexp = _of_two("logaddexp", "log(exp(x1) + exp(x2)), without overflow on the way.")
logical_and = _of_two("logical_and", "Whether both are true, as all but 0 is.")
logical_or = _of_two("logical_or", "Whether one or both are true, as all but 0 is.")
logical_xor = _of_two("logical_xor", "Whether one of both is true, as all but 0 is.")
maximum = _of_two("maximum", "The greater one; NaN where one is.")
minimum = _of_two("minimum", "The smaller one; NaN where one is.")
multiply = _of_two("multiply", "x1 * x2.")
nextafter = _of_two("nextafter", "The float next to x1 in the direction of x2.")
not_equal = _of_two("not_equal", "Whether both differ.", ops.ne)
pow = _of_two("pow", "x1 ** x2.")
remainder = _of_two("remainder", "x1 - floor(x1 / x2) * x2, of the sign of x2.", _remainder)
subtract = _of_two("subtract", "x1 - x2.")


def clip(
    x: Tensor, /, min: Tensor | complex | None = None, max: Tensor | complex | None = None
) -> Tensor:
    """Return `x` limited to [`min`, `max`], which are arrays or numbers, in the dtype of `x`.
    Where min > max it is max.
    """
    bounds = [b.to(x.dtype) if isinstance(b, Tensor) else b for b in (min, max)]
    low, high = (
        ops.full((), b, dtype=x.dtype, device=x.device)
        if b is not None and not isinstance(b, Tensor)
        else b
        for b in bounds
    )
    if low is None and high is None:
        return ops.clone(x)
    result: Tensor = ops.clamp(x, low, high)
    return result


__all__ = own_names(globals())
