"""Functions of two and three tensors beyond arithmetic: angles, logarithms, interpolation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from flowvm.eager.keywords import formerly
from flowvm.eager.native.trace_cache import steady
from flowvm.eager.tensor import Tensor, method
from flowvm.errors import DTypeError
from flowvm.meta.dtype import finfo
from flowvm.ops.declare.composite import need_tensor
from flowvm.ops.declare.elementwise import elementwise
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.pointwise.arithmetic import pairs
from flowvm.ops.pointwise.compare import isfinite, where
from flowvm.ops.pointwise.parts.unary import attach, back, into
from flowvm.ops.pointwise.trigonometry import sigmoid
from flowvm.ops.shapes.complex_parts import by_parts
from flowvm.ops.shapes.fill import ones_like, zeros_like

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node


# --- angles and lengths -----------------------------------------------------------------------


def _atan2_grad(c: Node, g: Tensor) -> tuple[object, ...]:
    y, x = c.saved
    square = x * x + y * y
    scaled = where(square == 0, 0, g / square)  # at the centre PyTorch's, which is none
    return back(c, lambda: scaled * x, lambda: -scaled * y)


# public: flow
atan2 = elementwise(
    "atan2",
    "atan2(x, y)",
    types="float",
    saves="x, y",
    grad=_atan2_grad,
    doc="""The angle, from -pi to pi, of the point with ordinate x and abscissa y.

    >>> flow.arctan2(flow.tensor([0.0, 1.0, 0.0]), flow.tensor([1.0, 0.0, -1.0]))
    tensor([0.0000, 1.5708, 3.1416])
    """,
    amp="widest",
)
arctan2 = atan2  # public: flow


def _hypot_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
    x, y, out = c.saved
    return back(c, lambda: g * (x / out), lambda: g * (y / out))


# public: flow
hypot = elementwise(
    "hypot",
    "hypot(x, y)",
    types="float",
    saves="x, y, out",
    grad=_hypot_grad,
    doc="""sqrt(x * x + y * y) without overflow.

    >>> flow.hypot(flow.tensor(3.0), flow.tensor(4.0))
    tensor(5.)
    """,
)

# --- logarithms, signs ------------------------------------------------------------------------


def _logaddexp_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
    x, y = c.saved
    return back(c, lambda: g * sigmoid.call(x - y), lambda: g * sigmoid.call(y - x))


# public: flow
logaddexp = elementwise(
    "logaddexp",
    "logaddexp(x, y)",
    types="float",
    saves="x, y",
    grad=_logaddexp_grad,
    complex="clogaddexp(x, y)",
    doc="""log(exp(x) + exp(y)) without overflow.

    >>> flow.logaddexp(flow.tensor(1000.0), flow.tensor(0.0))
    tensor(1000.)
    """,
)


def _xlogy_grad(c: Node, g: Tensor) -> tuple[object, ...]:
    x, y = c.saved

    def by_x() -> Tensor:
        slope: Tensor = where((x == 0) & (y <= 0), 0, g * xlogy.call(ones_like(x), y))
        return slope

    return back(c, by_x, lambda: g * x / y)


# public: flow, special
xlogy = elementwise(
    "xlogy",
    "x * log(y) if x != 0 else (y if y != y else x * 0)",
    types="float",
    saves="x, y",
    grad=_xlogy_grad,
    doc="""x * log(y), and 0 where x is 0 and y is not NaN.

    >>> flow.xlogy(flow.tensor([0.0, 2.0]), flow.tensor([0.0, 1.0]))
    tensor([0., 0.])
    """,
)

_same_sign = elementwise(
    "copysign_backward",
    "(x if x != x else sign(x)) * copysign(1, y)",
    types="float",
    grad=lambda c, g: (None, None),
)
# public: flow
copysign = elementwise(
    "copysign",
    "copysign(x, y)",
    types="float",
    saves="x, y",
    grad=lambda c, g: back(c, lambda: g * _same_sign.call(*c.saved), lambda: zeros_like(g)),
    doc="""The magnitude of x with the sign of y.

    >>> flow.copysign(flow.tensor([1.0, -2.0]), flow.tensor([-0.0, 3.0]))
    tensor([-1.,  2.])
    """,
)
# public: flow
heaviside = elementwise(
    "heaviside",
    "y if x == 0 else x > 0",
    names="input, values",
    doc="""0 where x is negative, 1 where positive, y where
    0.

    >>> flow.heaviside(flow.tensor([-2.0, 0.0, 3.0]), flow.tensor(0.5))
    tensor([0.0000, 0.5000, 1.0000])
    """,
)

# --- three tensors ----------------------------------------------------------------------------


def _lerp_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
    start, end, weight = c.saved
    return back(c, lambda: g * (1 - weight), lambda: g * weight, lambda: g * (end - start))


# public: flow
lerp = elementwise(
    "lerp",
    "x + z * (y - x) if abs(z) < 0.5 else y - (y - x) * (1 - z)",
    names="input, end, weight",
    types="number",
    saves="x, y, z",
    grad=_lerp_grad,
    complex="x + z * (y - x)",
    doc="""start + weight * (end - start).

    >>> flow.lerp(flow.tensor([0.0, 10.0]), flow.tensor([4.0, 20.0]), 0.25)
    tensor([ 1.0000, 12.5000])
    """,
)


def _addcmul_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
    value, y, z = c.saved
    return back(c, lambda: g, None, lambda: g * (z * value), lambda: g * (y * value))


_addcmul = elementwise(
    "addcmul",
    "x + value * y * z",
    args="x, value, y, z",
    types="number",
    saves="value, y, z",
    grad=_addcmul_grad,
    several=True,
    complex=True,
    amp="widest",
)


def _addcdiv_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
    value, y, z = c.saved
    return back(c, lambda: g, None, lambda: g * (value / z), lambda: -g * (value * y / z / z))


_addcdiv = elementwise(
    "addcdiv",
    "x + value * (y / z)",
    args="x, value, y, z",
    types="number",
    saves="value, y, z",
    grad=_addcdiv_grad,
    several=True,
    complex="x + value * cdiv(y, z)",
    amp="widest",
)


# public: flow
@steady
@formerly("input value tensor1 tensor2")
def addcmul(
    input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1, out: Tensor | None = None
) -> Tensor:
    """`input + value * tensor1 * tensor2`.

    >>> flow.addcmul(flow.tensor([1, 1]), flow.tensor([2, 3]), flow.tensor([4, 5]), value=10)
    tensor([ 81, 151])
    """
    total: Tensor = _addcmul(input, value, tensor1, tensor2, out=out)
    return total


# public: flow
@steady
@formerly("input value tensor1 tensor2")
def addcdiv(
    input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1, out: Tensor | None = None
) -> Tensor:
    """`input + value * tensor1 / tensor2`.  DTypeError unless tensor1 or tensor2 is a float tensor.

    >>> flow.addcdiv(flow.ones(2), flow.tensor([4.0, 6.0]), flow.tensor([2.0, 2.0]), value=0.5)
    tensor([2.0000, 2.5000])
    """
    for name, t in (("input", input), ("tensor1", tensor1), ("tensor2", tensor2)):
        need_tensor("addcdiv", name, t)
    if not any(t._meta.dtype.inexact for t in (tensor1, tensor2)):
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


# public: flow
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

    >>> flow.nan_to_num(flow.tensor([flow.nan, flow.inf, 1.0]), nan=0.0, posinf=9.0)
    tensor([0., 9., 1.])
    """
    dtype = need_tensor("nan_to_num", "input", input)._meta.dtype
    if dtype.is_complex:
        whole: Tensor = by_parts(lambda part: nan_to_num(part, nan, posinf, neginf), input)
        return into(out, whole)
    if not dtype.is_floating_point:
        same: Tensor = input.clone() if out is None else out.copy_(input)
        return same
    largest = finfo(dtype).max
    numbers = (
        float(nan or 0.0),
        largest if posinf is None else float(posinf),
        -largest if neginf is None else float(neginf),
    )
    finite: Tensor = _replaced(input, *numbers, math.inf, out=out)
    return finite


@method()
def nan_to_num_(
    x: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """In-place `nan_to_num`.

    >>> flow.tensor([flow.nan, 1.0]).nan_to_num_()
    tensor([0., 1.])
    """
    return nan_to_num(x, nan, posinf, neginf, out=x)


@method()
@steady
@formerly("x value tensor1 tensor2")
def addcmul_(x: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """In-place `addcmul`."""
    return _addcmul.into(x, x, value, tensor1, tensor2)


@method()
@steady
@formerly("x value tensor1 tensor2")
def addcdiv_(x: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """In-place `addcdiv`."""
    return _addcdiv.into(x, x, value, tensor1, tensor2)


for _f in (atan2, hypot, logaddexp, xlogy, copysign, heaviside, lerp):
    attach(_f, _f.name)
attach(atan2, "arctan2")
for _g in (addcmul, addcdiv, nan_to_num):
    method()(_g)


# --- samples ----------------------------------------------------------------------------------


def _three(rng: np.random.Generator) -> list[Sample]:
    x, y, z = (rng.uniform(0.5, 2.0, (3, 4)) for _ in range(3))
    return [Sample((x, y, z)), Sample((x, y[:1], z[:, :1])), Sample((x[0, 0, ...], y[0], z))]


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
