"""Functions of two and three tensors beyond arithmetic: extremes, angles, clamping, interpolation.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flowvm.errors import ArgumentError, DTypeError
from flowvm.ops.binary import pairs
from flowvm.ops.compare import isfinite, logical_and, where
from flowvm.ops.create import zeros_like
from flowvm.ops.elementwise import Elementwise, elementwise
from flowvm.ops.math import attach, back, in_place, sigmoid
from flowvm.ops.recording import need_tensor
from flowvm.ops.registry import Sample, samples
from flowvm.tensor import Tensor, method

__all__ = [
    "addcdiv",
    "addcmul",
    "arctan2",
    "atan2",
    "clamp",
    "clamp_max",
    "clamp_min",
    "clip",
    "copysign",
    "fmax",
    "fmin",
    "heaviside",
    "hypot",
    "lerp",
    "logaddexp",
    "maximum",
    "minimum",
    "nan_to_num",
    "xlogy",
]

# --- extremes ---------------------------------------------------------------------------------

# the part of a gradient z that the larger (smaller) of x and y gets; half of it at a tie
_to_larger: Elementwise = elementwise(
    "maximum_backward",
    "z if x > y else (z / 2 if x == y else z * 0)",
    args="x, y, z",
    saves="x, y",
    grad=lambda c, g: back(c, None, None, lambda: _to_larger.call(*c.saved, g)),
)
_to_smaller: Elementwise = elementwise(
    "minimum_backward",
    "z if x < y else (z / 2 if x == y else z * 0)",
    args="x, y, z",
    saves="x, y",
    grad=lambda c, g: back(c, None, None, lambda: _to_smaller.call(*c.saved, g)),
)


def _maximum_grad(c: Any, g: Tensor) -> tuple[Any, ...]:
    x, y = c.saved
    return back(c, lambda: _to_larger.call(x, y, g), lambda: _to_larger.call(y, x, g))


def _minimum_grad(c: Any, g: Tensor) -> tuple[Any, ...]:
    x, y = c.saved
    return back(c, lambda: _to_smaller.call(x, y, g), lambda: _to_smaller.call(y, x, g))


maximum = elementwise(
    "maximum",
    "maximum(x, y)",
    saves="x, y",
    grad=_maximum_grad,
    doc="The larger of x and y; NaN if one is.  At a tie each gets half of the gradient.",
)
minimum = elementwise(
    "minimum",
    "minimum(x, y)",
    saves="x, y",
    grad=_minimum_grad,
    doc="The smaller of x and y; NaN if one is.  At a tie each gets half of the gradient.",
)


def _fmax_grad(c: Any, g: Tensor) -> tuple[Any, ...]:
    x, y = c.saved
    first = (x >= y) | (y != y)
    return back(c, lambda: where(first, g, 0), lambda: where(first, 0, g))


def _fmin_grad(c: Any, g: Tensor) -> tuple[Any, ...]:
    x, y = c.saved
    first = (x <= y) | (y != y)
    return back(c, lambda: where(first, g, 0), lambda: where(first, 0, g))


fmax = elementwise(
    "fmax",
    "y if x != x else (x if y != y else maximum(x, y))",
    saves="x, y",
    grad=_fmax_grad,
    doc="The larger of x and y; the other one where one is NaN.",
)
fmin = elementwise(
    "fmin",
    "y if x != x else (x if y != y else minimum(x, y))",
    saves="x, y",
    grad=_fmin_grad,
    doc="The smaller of x and y; the other one where one is NaN.",
)


def _clamp_grad(c: Any, g: Tensor) -> tuple[Any, ...]:
    x, low, high = c.saved
    return back(
        c,
        lambda: where(logical_and(x >= low, x <= high), g, 0),
        lambda: where(logical_and(x < low, _less(low, high, x)), g, 0),
        lambda: where(logical_and(x > high, True) | _less(high, low, x), g, 0),
    )


def _less(a: Any, b: Any, like: Tensor) -> Any:
    """a < b, where both may be numbers."""
    less: Any = a < b
    return less if isinstance(less, Tensor) else (zeros_like(like) == int(not less))


_clamp = elementwise(
    "clamp",
    "minimum(maximum(x, low), high)",
    args="x, low, high",
    types="number",
    saves="x, low, high",
    grad=_clamp_grad,
)
_clamp_min = elementwise(
    "clamp_min",
    "maximum(x, y)",
    saves="x, y",
    grad=lambda c, g: back(
        c,
        lambda: where(c.saved[0] >= c.saved[1], g, 0),
        lambda: where(c.saved[0] < c.saved[1], g, 0),
    ),
)
_clamp_max = elementwise(
    "clamp_max",
    "minimum(x, y)",
    saves="x, y",
    grad=lambda c, g: back(
        c,
        lambda: where(c.saved[0] <= c.saved[1], g, 0),
        lambda: where(c.saved[0] > c.saved[1], g, 0),
    ),
)


def clamp(input: Tensor, min: Any = None, max: Any = None, *, out: Tensor | None = None) -> Tensor:
    """`input` limited to at least `min` and at most `max`: numbers, tensors that broadcast, or None
    for no limit.

    Where `min` is above `max` the result is `max`.
    """
    need_tensor("clamp", "input", input)
    if min is not None and max is not None:
        clamped: Tensor = _clamp(input, min, max, out=out)
        return clamped
    if min is not None:
        return clamp_min(input, min, out=out)
    if max is not None:
        return clamp_max(input, max, out=out)
    raise ArgumentError("clamp needs min, max or both")


def clamp_min(input: Tensor, min: Any, *, out: Tensor | None = None) -> Tensor:
    """`input` limited to at least `min`."""
    clamped: Tensor = _clamp_min(need_tensor("clamp_min", "input", input), min, out=out)
    return clamped


def clamp_max(input: Tensor, max: Any, *, out: Tensor | None = None) -> Tensor:
    """`input` limited to at most `max`."""
    clamped: Tensor = _clamp_max(need_tensor("clamp_max", "input", input), max, out=out)
    return clamped


clip = clamp


@method()
def clamp_(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """In-place `clamp`."""
    return clamp(x, min, max) if min is None and max is None else _clamp_into(x, min, max)


def _clamp_into(x: Tensor, low: Any, high: Any) -> Tensor:
    if low is None:
        return _clamp_max.into(x, x, high)
    return _clamp_min.into(x, x, low) if high is None else _clamp.into(x, x, low, high)


# --- angles and lengths -----------------------------------------------------------------------


def _atan2_grad(c: Any, g: Tensor) -> tuple[Any, ...]:
    y, x = c.saved
    scaled = g / (x * x + y * y)
    return back(c, lambda: scaled * x, lambda: -scaled * y)


atan2 = elementwise(
    "atan2",
    "atan2(x, y)",
    types="float",
    saves="x, y",
    grad=_atan2_grad,
    doc="The angle, from -pi to pi, of the point with ordinate x and abscissa y.",
)
arctan2 = atan2


def _hypot_grad(c: Any, g: Tensor) -> tuple[Any, ...]:
    x, y, out = c.saved
    return back(c, lambda: g * (x / out), lambda: g * (y / out))


hypot = elementwise(
    "hypot",
    "hypot(x, y)",
    types="float",
    saves="x, y, out",
    grad=_hypot_grad,
    doc="sqrt(x * x + y * y) without overflow.",
)

# --- logarithms, signs ------------------------------------------------------------------------


def _logaddexp_grad(c: Any, g: Tensor) -> tuple[Any, ...]:
    x, y = c.saved
    return back(c, lambda: g * sigmoid.call(x - y), lambda: g * sigmoid.call(y - x))


logaddexp = elementwise(
    "logaddexp",
    "logaddexp(x, y)",
    types="float",
    saves="x, y",
    grad=_logaddexp_grad,
    doc="log(exp(x) + exp(y)) without overflow.",
)


def _xlogy_grad(c: Any, g: Tensor) -> tuple[Any, ...]:
    x, y = c.saved
    return back(c, lambda: g * xlogy.call(x * 0 + 1, y), lambda: g * x / y)


xlogy = elementwise(
    "xlogy",
    "x * log(y) if x != 0 else (y if y != y else x * 0)",
    types="float",
    saves="x, y",
    grad=_xlogy_grad,
    doc="x * log(y), and 0 where x is 0 and y is not NaN.",
)

_same_sign = elementwise(
    "copysign_backward", "sign(x) * copysign(1, y)", types="float", grad=lambda c, g: (None, None)
)
copysign = elementwise(
    "copysign",
    "copysign(x, y)",
    types="float",
    saves="x, y",
    grad=lambda c, g: back(c, lambda: g * _same_sign.call(*c.saved), lambda: zeros_like(g)),
    doc="The magnitude of x with the sign of y.",
)
heaviside = elementwise(
    "heaviside", "y if x == 0 else x > 0", doc="0 where x is negative, 1 where positive, y where 0."
)

# --- three tensors ----------------------------------------------------------------------------


def _lerp_grad(c: Any, g: Tensor) -> tuple[Any, ...]:
    start, end, weight = c.saved
    return back(c, lambda: g * (1 - weight), lambda: g * weight, lambda: g * (end - start))


lerp = elementwise(
    "lerp",
    "x + z * (y - x) if abs(z) < 0.5 else y - (y - x) * (1 - z)",
    types="number",
    saves="x, y, z",
    grad=_lerp_grad,
    doc="start + weight * (end - start).",
)


def _addcmul_grad(c: Any, g: Tensor) -> tuple[Any, ...]:
    value, y, z = c.saved
    return back(c, lambda: g, None, lambda: g * (z * value), lambda: g * (y * value))


_addcmul = elementwise(
    "addcmul",
    "x + value * y * z",
    args="x, value, y, z",
    types="number",
    saves="value, y, z",
    grad=_addcmul_grad,
)


def _addcdiv_grad(c: Any, g: Tensor) -> tuple[Any, ...]:
    value, y, z = c.saved
    return back(c, lambda: g, None, lambda: g * (value / z), lambda: -g * (value * y / z / z))


_addcdiv = elementwise(
    "addcdiv",
    "x + value * (y / z)",
    args="x, value, y, z",
    types="number",
    saves="value, y, z",
    grad=_addcdiv_grad,
)


def addcmul(
    input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1, out: Tensor | None = None
) -> Tensor:
    """`input + value * tensor1 * tensor2`."""
    total: Tensor = _addcmul(input, value, tensor1, tensor2, out=out)
    return total


def addcdiv(
    input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1, out: Tensor | None = None
) -> Tensor:
    """`input + value * tensor1 / tensor2`.  DTypeError unless one is a float tensor."""
    for name, t in (("input", input), ("tensor1", tensor1), ("tensor2", tensor2)):
        need_tensor("addcdiv", name, t)
    if not any(t._meta.dtype.is_floating_point for t in (input, tensor1, tensor2)):
        raise DTypeError("addcdiv: integers are not divided here; convert one argument to a float")
    total: Tensor = _addcdiv(input, value, tensor1, tensor2, out=out)
    return total


_replaced = elementwise(
    "nan_to_num",
    "nan if x != x else (posinf if x == inf else (neginf if x == -inf else x))",
    args="x, nan, posinf, neginf, inf",
    types="promote",
    saves="x",
    grad=lambda c, g: back(
        c, lambda: where(isfinite.call(c.saved[0]), g, 0), None, None, None, None
    ),
)


def nan_to_num(
    input: Tensor,
    nan: float = 0.0,
    posinf: float | None = None,
    neginf: float | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """`input` with NaN, inf and -inf replaced; None is the dtype's largest (smallest) finite
    number.
    """
    dtype = need_tensor("nan_to_num", "input", input)._meta.dtype
    if not dtype.is_floating_point:
        same: Tensor = input.clone() if out is None else out.copy_(input)
        return same
    largest = float(np.finfo(dtype.numpy).max)
    numbers = (
        float(nan or 0.0),
        largest if posinf is None else float(posinf),
        -largest if neginf is None else float(neginf),
    )
    finite: Tensor = _replaced(input, *numbers, math.inf, out=out)
    return finite


@method()
def addcmul_(x: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """In-place `addcmul`."""
    return _addcmul.into(x, x, value, tensor1, tensor2)


@method()
def addcdiv_(x: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """In-place `addcdiv`."""
    return _addcdiv.into(x, x, value, tensor1, tensor2)


for _f in (maximum, minimum, fmax, fmin, atan2, hypot, logaddexp, xlogy, copysign, heaviside, lerp):
    attach(_f, _f.name)
attach(atan2, "arctan2")
for _g in (clamp, clamp_min, clamp_max, addcmul, addcdiv, nan_to_num):
    method()(_g)
Tensor.clip = clamp  # type: ignore[attr-defined]
Tensor.clip_ = clamp_  # type: ignore[attr-defined]
Tensor.clamp_min_ = in_place(_clamp_min, "clamp_min_")  # type: ignore[attr-defined]
Tensor.clamp_max_ = in_place(_clamp_max, "clamp_max_")  # type: ignore[attr-defined]


# --- samples ----------------------------------------------------------------------------------


def _three(rng: np.random.Generator) -> list[Sample]:
    x, y, z = (rng.uniform(0.5, 2.0, (3, 4)) for _ in range(3))
    return [Sample((x, y, z)), Sample((x, y[:1], z[:, :1])), Sample((x[0, 0, ...], y[0], z))]


def _apart(rng: np.random.Generator) -> list[Sample]:
    """Pairs that differ by more than a small change."""
    x = rng.uniform(-2, 2, (3, 4))
    y = x + rng.uniform(0.2, 1, (3, 4)) * rng.choice([-1, 1], (3, 4))
    scalars = Sample((x[0, 0, ...], y[0, 0, ...]))
    return [Sample((x, y)), Sample((x[0], y)), scalars, Sample((x, 2.5))]


samples(
    maximum,
    _apart,
    np.maximum,
    errors=((lambda flow: flow.maximum(flow.ones(2), flow.ones(3)), RuntimeError),),
)
samples(minimum, _apart, np.minimum)
samples(fmax, _apart, np.fmax)
samples(fmin, _apart, np.fmin)
samples(
    clamp,
    lambda rng: [
        Sample((np.array([-2.0, -0.3, 0.4, 1.7]), -1.0, 1.0)),
        Sample((np.array([[-2.0, -0.3], [0.4, 1.7]]),), {"min": 0.0}),
        Sample((np.array(1.5),), {"max": 1}),
        Sample((np.array([-2.0, 0.4]), np.array([-1.0, 0.0]), np.array([[1.0], [0.2]]))),
    ],
    lambda x, min=None, max=None: np.clip(x, min, max),
    errors=((lambda flow: flow.clamp(flow.ones(2)), ValueError),),
)
samples(clamp_min, _apart, np.maximum)
samples(clamp_max, _apart, np.minimum)
samples(atan2, pairs(0.5, 2), np.arctan2)
samples(hypot, pairs(0.5, 2), np.hypot)
samples(logaddexp, pairs(-2, 2), np.logaddexp)
samples(xlogy, pairs(0.5, 2), lambda x, y: x * np.log(y))
samples(copysign, pairs(0.5, 2, -2, -0.5), np.copysign, grad2=False)
samples(heaviside, pairs(-2, 2), lambda x, y: np.heaviside(x, y), grad=False)
samples(
    lerp,
    lambda rng: [*_three(rng), Sample((*(rng.uniform(-1, 1, 3) for _ in range(2)), 0.25))],
    lambda x, y, z: x + z * (y - x),
)
samples(
    addcmul,
    lambda rng: [*_three(rng), Sample(_three(rng)[0].args, {"value": 0.5})],
    lambda x, y, z, value=1: x + value * y * z,
)
samples(
    addcdiv,
    lambda rng: [*_three(rng), Sample(_three(rng)[0].args, {"value": 0.5})],
    lambda x, y, z, value=1: x + value * y / z,
    errors=((lambda flow: flow.addcdiv(*[flow.arange(1, 3)] * 3), RuntimeError),),
)
samples(
    nan_to_num,
    lambda rng: [
        Sample(
            (np.array([1.0, np.nan, np.inf, -np.inf]),), {"nan": 2.0, "posinf": 3.0, "neginf": 4.0}
        )
    ],
    lambda x, **replaced: np.nan_to_num(x, **replaced),
    grad=False,
)
