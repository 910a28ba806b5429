"""Powers, and filling with a value."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowvm.eager.autocast import widened
from flowvm.eager.live import Live
from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentError, ShapeError
from flowvm.ops.declare.elementwise import Elementwise, elementwise
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.pointwise.arithmetic import pairs, reversed_operator
from flowvm.ops.pointwise.compare import eq, ge, logical_and, where
from flowvm.ops.pointwise.math import _square, log, reciprocal, rsqrt, sqrt
from flowvm.ops.pointwise.parts.unary import back
from flowvm.ops.shapes.fill import full, number_for, zeros_like
from flowvm.vm.callers.hot import hot


def _pow_grad(c: Any, g: Tensor) -> tuple[object, ...]:
    x, y, out = c.saved

    def base() -> Tensor:
        if not isinstance(y, Tensor):
            return zeros_like(g) if y == 0 else g * (pow(x, y - 1) * y)
        slope = pow(x, y - 1) * y
        gradient: Tensor = g * where(eq.call(y, 0), zeros_like(slope), slope)
        return gradient

    def exponent() -> Tensor:
        base = x if isinstance(x, Tensor) else full((), x, dtype=out.dtype, device=out.device)
        slope = out * log.call(base)
        size = y.real if isinstance(y, Tensor) else y
        certain = logical_and.call(
            eq.call(base, 0), ge.call(size, 0)
        )  # powers of 0 are 0 whatever y
        gradient: Tensor = g * where(certain, zeros_like(slope), slope)
        return gradient

    return back(c, base, exponent)


_pow = elementwise(
    "pow",
    "pow(x, y)",
    saves="x, y, out",
    grad=_pow_grad,
    complex="cpow(x, y)",
    several=True,
    amp="full",
)
_cube = elementwise(
    "cube",
    "x * x * x",
    types="number",
    saves="x",
    grad=lambda c, g: (g * (c.saved[0] * c.saved[0] * 3),),
    complex=True,
    several=True,
)


# public: flow
def pow(input: object, exponent: object, *, out: Tensor | None = None) -> Tensor:
    """`input` to the power of `exponent`, broadcast and promoted; either may be a number.

    Integers to a negative integer number raise ArgumentError, as in PyTorch.

    >>> flow.pow(flow.tensor([1, 2, 3]), 2), flow.pow(2, flow.tensor([1, 2, 3]))
    (tensor([1, 4, 9]), tensor([2, 4, 8]))
    """
    if hot["autocast"]:
        input, exponent = widened(input, exponent)
    if isinstance(exponent, (int, float)) and isinstance(input, Tensor):
        cheaper = _cheaper(input, exponent)
        if cheaper is not None:
            short: Tensor = cheaper(input, out=out)
            return short
        if exponent < 0 and isinstance(exponent, int) and not input.dtype.inexact:
            raise ArgumentError(
                f"pow: integers to a negative integer power ({exponent}) are not integers; "
                f"make one of them a float"
            )
    power: Tensor = _pow(input, exponent, out=out)
    return power


# the powers that are cheaper another way; for 2 also those of integers
_CHEAPER: dict[float, Elementwise] = {2: _square, 3: _cube, 0.5: sqrt, -0.5: rsqrt, -1: reciprocal}


def _cheaper(x: Tensor, exponent: Any) -> Elementwise | None:
    dtype = x._meta.dtype
    if dtype.inexact and isinstance(exponent, Live):  # it is asked which one it is, and stays live
        value: object = exponent
        return next((op for number, op in _CHEAPER.items() if value == number), None)
    if dtype.inexact:
        return _CHEAPER.get(exponent)
    whole = isinstance(exponent, int) and not dtype.is_bool
    return _square if whole and exponent == 2 else None


@method()
def pow_(x: Tensor, exponent: object) -> Tensor:
    """In-place `pow`.

    >>> flow.tensor([1, 2, 3]).pow_(2)
    tensor([1, 4, 9])
    """
    cheaper = _cheaper(x, exponent) if isinstance(exponent, (int, float)) else None
    return _pow.into(x, x, exponent) if cheaper is None else cheaper.into(x, x)


Tensor.pow = pow  # type: ignore[assignment, method-assign]
Tensor.__pow__ = pow  # type: ignore[method-assign]
Tensor.__rpow__ = reversed_operator(pow, "__rpow__")  # type: ignore[method-assign]
Tensor.__ipow__ = pow_  # type: ignore[assignment, method-assign]


# --- filling ----------------------------------------------------------------------------------


def filling(name: str, x: Tensor, value: object) -> object:
    """Return the number, or the 0-d tensor of x's dtype, that fills a tensor like `x`."""
    if isinstance(value, Tensor):
        if value._meta.ndim:
            raise ShapeError(
                f"{name}: value must be a number or 0-d, got shape {tuple(value.shape)}"
            )
        return value if x._meta.dtype is value._meta.dtype else value.to(x._meta.dtype)
    return number_for(value, x._meta.dtype)


@method()
def fill_(x: Tensor, value: object) -> Tensor:
    """Fill `x` with the number `value` (a 0-d tensor will do); ArgumentError if an integer dtype
    cannot hold it.

    >>> flow.zeros(2).fill_(7)
    tensor([7., 7.])
    """
    return _fill.into(x, x, filling("fill_", x, value))


@method()
def zero_(x: Tensor) -> Tensor:
    """Fill `x` with 0.

    >>> flow.ones(2).zero_()
    tensor([0., 0.])
    """
    return fill_(x, 0)


_fill = elementwise(
    "fill_",
    "y",
    args="x, y",
    grad=lambda c, g: back(c, lambda: zeros_like(g), lambda: g),
    complex=True,
    minifloats=True,
)


# --- samples ----------------------------------------------------------------------------------

samples(
    pow,
    lambda rng: [
        *pairs(0.5, 2, -2, 2)(rng),
        *(Sample((rng.uniform(0.5, 2, 3), p)) for p in (2, 3, 0.5, -0.5, -1, 1)),
    ],
    np.power,
    errors=((lambda flow: flow.tensor([2]) ** -1, ValueError),),
)
samples(
    pow, lambda rng: [Sample((rng.uniform(-1, 1, 3), 0))], np.power, name="pow zero", grad2=False
)
