"""The larger and the smaller of two tensors, and clamping."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flowvm.eager.native.trace_cache import steady
from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentError
from flowvm.ops.declare.composite import need_tensor
from flowvm.ops.declare.elementwise import Elementwise, elementwise
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.pointwise.compare import logical_and, logical_or, where
from flowvm.ops.pointwise.parts.unary import attach, back, in_place

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node


# public: flow

# --- extremes ---------------------------------------------------------------------------------

# the part of a gradient z that the larger (smaller) of x and y gets; half of it at a tie, and all
# of it where one is NaN
_to_larger: Elementwise = elementwise(
    "maximum_backward",
    "z * 0 if x < y else (z / 2 if x == y else z)",
    args="x, y, z",
    saves="x, y",
    grad=lambda c, g: back(c, None, None, lambda: _to_larger.call(*c.saved, g)),
)
_to_smaller: Elementwise = elementwise(
    "minimum_backward",
    "z * 0 if x > y else (z / 2 if x == y else z)",
    args="x, y, z",
    saves="x, y",
    grad=lambda c, g: back(c, None, None, lambda: _to_smaller.call(*c.saved, g)),
)


def _maximum_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
    x, y = c.saved
    return back(c, lambda: _to_larger.call(x, y, g), lambda: _to_larger.call(y, x, g))


def _minimum_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
    x, y = c.saved
    return back(c, lambda: _to_smaller.call(x, y, g), lambda: _to_smaller.call(y, x, g))


maximum = elementwise(
    "maximum",
    "maximum(x, y)",
    saves="x, y",
    grad=_maximum_grad,
    doc="""The larger of x and y; NaN if one is. At a tie each gets half of the gradient.

    >>> flow.maximum(flow.tensor([1, 5]), flow.tensor([3, 2]))
    tensor([3, 5])
    """,
)
minimum = elementwise(
    "minimum",
    "minimum(x, y)",
    saves="x, y",
    grad=_minimum_grad,
    doc="""The smaller of x and y; NaN if one is. At a tie each gets half of the gradient.

    >>> flow.minimum(flow.tensor([1, 5]), flow.tensor([3, 2]))
    tensor([1, 2])
    """,
)


def _fmax_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
    x, y = c.saved
    first = (x >= y) | (y != y)
    return back(c, lambda: where(first, g, 0), lambda: where(first, 0, g))


def _fmin_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
    x, y = c.saved
    first = (x <= y) | (y != y)
    return back(c, lambda: where(first, g, 0), lambda: where(first, 0, g))


fmax = elementwise(
    "fmax",
    "y if x != x else (x if y != y else maximum(x, y))",
    saves="x, y",
    grad=_fmax_grad,
    doc="""The larger of x and y; the other one where one is NaN.

    >>> flow.fmax(flow.tensor([1.0, flow.nan]), flow.tensor([3.0, 2.0]))
    tensor([3., 2.])
    """,
)
fmin = elementwise(
    "fmin",
    "y if x != x else (x if y != y else minimum(x, y))",
    saves="x, y",
    grad=_fmin_grad,
    doc="""The smaller of x and y; the other one where one is NaN.

    >>> flow.fmin(flow.tensor([1.0, flow.nan]), flow.tensor([3.0, 2.0]))
    tensor([1., 2.])
    """,
)


def _clamp_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
    x, low, high = c.saved
    return back(
        c,
        lambda: where(logical_and(x >= low, x <= high), g, 0),
        lambda: where(logical_and(x < low, _less(low, high)), g, 0),
        lambda: where(logical_or(x > high, _less(high, low)), g, 0),
    )


def _less(a: Tensor, b: Tensor) -> Tensor:
    """a < b, where both may be numbers."""
    return a < b


_clamp = elementwise(
    "clamp",
    "minimum(maximum(x, low), high)",
    args="x, low, high",
    names="input, min, max",
    types="number",
    saves="x, low, high",
    grad=_clamp_grad,
)
_clamp_min = elementwise(
    "clamp_min",
    "maximum(x, y)",
    names="input, min",
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
    names="input, max",
    saves="x, y",
    grad=lambda c, g: back(
        c,
        lambda: where(c.saved[0] <= c.saved[1], g, 0),
        lambda: where(c.saved[0] > c.saved[1], g, 0),
    ),
)


@steady
def clamp(
    input: Tensor, min: object = None, max: object = None, *, out: Tensor | None = None
) -> Tensor:
    """`input` limited to at least `min` and at most `max`: numbers, tensors that broadcast, or None
    for no limit.

    Where `min` is above `max` the result is `max`.

    >>> flow.clamp(flow.tensor([-2, 0, 5]), 0, 3)
    tensor([0, 0, 3])
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


def clamp_min(input: Tensor, min: object, *, out: Tensor | None = None) -> Tensor:
    """`input` limited to at least `min`.

    >>> flow.clamp_min(flow.tensor([-2, 0, 5]), 0)
    tensor([0, 0, 5])
    """
    clamped: Tensor = _clamp_min(need_tensor("clamp_min", "input", input), min, out=out)
    return clamped


def clamp_max(input: Tensor, max: object, *, out: Tensor | None = None) -> Tensor:
    """`input` limited to at most `max`.

    >>> flow.clamp_max(flow.tensor([-2, 0, 5]), 3)
    tensor([-2,  0,  3])
    """
    clamped: Tensor = _clamp_max(need_tensor("clamp_max", "input", input), max, out=out)
    return clamped


clip = clamp  # public: flow


# not public
@method()
@steady
def clamp_(x: Tensor, min: object = None, max: object = None) -> Tensor:
    """In-place `clamp`.

    >>> flow.tensor([-2, 0, 5]).clamp_(0, 3)
    tensor([0, 0, 3])
    """
    return clamp(x, min, max) if min is None and max is None else _clamp_into(x, min, max)


def _clamp_into(x: Tensor, low: object, high: object) -> Tensor:
    if low is None:
        return _clamp_max.into(x, x, high)
    return _clamp_min.into(x, x, low) if high is None else _clamp.into(x, x, low, high)


for _f in (maximum, minimum, fmax, fmin):
    attach(_f, _f.name)
for _g in (clamp, clamp_min, clamp_max):
    method()(_g)
Tensor.clip = clamp  # type: ignore[assignment, method-assign]
Tensor.clip_ = clamp_  # type: ignore[assignment, method-assign]
Tensor.clamp_min_ = in_place(_clamp_min, "clamp_min_")  # type: ignore[assignment, method-assign]
Tensor.clamp_max_ = in_place(_clamp_max, "clamp_max_")  # type: ignore[assignment, method-assign]


# --- samples ----------------------------------------------------------------------------------


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
