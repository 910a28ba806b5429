"""Conjugates and angles of complex numbers, and numbers made of sizes and angles.

A conjugate is computed at once:
no tensor here is "to be conjugated when it is read", so `is_conj` is always False and
`resolve_conj` gives its argument.

Gradients are PyTorch's: that of a complex tensor is the derivative by its real part plus i times
that by its imaginary part.  Only the CPU has complex tensors.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.tensor import Tensor, method
from flowvm.errors import DTypeError, ShapeError
from flowvm.ops.declare.composite import need_tensor
from flowvm.ops.declare.elementwise import Elementwise, elementwise
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.pointwise.trigonometry import cos, sin
from flowvm.ops.shapes.complex_parts import complex, two_parts, view_as_real
from flowvm.ops.shapes.fill import zeros_like
from flowvm.ops.shapes.views import transpose

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node


# public: flow

# --- sizes and angles ---------------------------------------------------------------------------


@with_out
def polar(abs: Tensor, angle: Tensor) -> Tensor:
    """The complex numbers of these sizes and angles: abs * (cos(angle) + i sin(angle)).

    >>> flow.polar(flow.tensor([2.0]), flow.tensor([0.0]))
    tensor([2.+0.j])
    """
    size, turn = need_tensor("polar", "abs", abs), need_tensor("polar", "angle", angle)
    if size._meta.dtype is not turn._meta.dtype:
        raise DTypeError(
            f"polar takes two tensors of one dtype, got {size.dtype.name} and {turn.dtype.name}"
        )
    whole: Tensor = complex(size * cos.call(turn), size * sin.call(turn))
    return whole


# --- conjugates -----------------------------------------------------------------------------------


_conj: Elementwise = elementwise(
    "conj", "x", complex="cconj(x)", complex_grad=lambda c, g: (g.conj(),), grad=lambda c, g: (g,)
)


@method()
def conj(input: Tensor) -> Tensor:
    """The numbers with their imaginary parts negated; a real tensor itself.

    >>> flow.conj(flow.tensor([1 + 2j]))
    tensor([1.-2.j])
    """
    x = need_tensor("conj", "input", input)
    if not x._meta.dtype.is_complex:
        return x
    conjugated: Tensor = _conj.call(x)
    return conjugated


@method()
@with_out
def conj_physical(input: Tensor) -> Tensor:
    """As `conj`, which computes at once here.

    >>> flow.conj_physical(flow.tensor([1 + 2j]))
    tensor([1.-2.j])
    """
    return conj(input)


# not public
@method()
def conj_physical_(x: Tensor) -> Tensor:
    """In-place `conj`."""
    return _conj.into(x, x) if x._meta.dtype.is_complex else x


@method()
def adjoint(input: Tensor) -> Tensor:
    """The conjugate of the transpose of the last two dimensions; for 0-d and 1-d ShapeError.

    >>> flow.adjoint(flow.tensor([[1 + 2j, 3 + 0j]]))
    tensor([[1.-2.j],
            [3.-0.j]])
    """
    x = need_tensor("adjoint", "input", input)
    if x._meta.ndim < 2:
        raise ShapeError(f"adjoint needs at least 2 dimensions, got shape {tuple(x.shape)}")
    return conj(transpose(x, -2, -1))


def _hermitian(x: Tensor) -> Tensor:
    """The conjugate transpose of a matrix.

    >>> flow.tensor([[1 + 2j, 3 + 0j]]).H
    tensor([[1.-2.j],
            [3.-0.j]])
    """
    if x._meta.ndim not in (0, 2):
        raise ShapeError(f"H is for matrices, got shape {tuple(x.shape)}; use mH")
    return adjoint(x) if x._meta.ndim else conj(x)


# --- angles ---------------------------------------------------------------------------------------


def _angle_grad(c: Node, g: Tensor) -> tuple[Tensor]:
    """A step across x turns it by its length over |x|."""
    (x,) = c.saved
    parts: Tensor = view_as_real(x)
    square: Any = (parts * parts).sum(-1)
    zero = square == 0
    scale: Any = (g / square.masked_fill(zero, 1)).masked_fill(zero, 0)
    return (complex(-x.imag * scale, x.real * scale),)


angle = elementwise(
    "angle",
    f"x if x != x else ({math.pi!r} if x < 0 else 0)",
    types="float",
    saves="x",
    grad=lambda c, g: (zeros_like(g),),
    complex="cangle(x)",
    real=True,
    complex_grad=_angle_grad,
    doc="""The angle in radians, from -pi to pi; of real numbers 0, or pi below 0.

    >>> flow.angle(flow.tensor([1.0, -1.0])), flow.angle(flow.tensor([2j]))
    (tensor([0.0000, 3.1416]), tensor([1.5708]))
    """,
)


setattr(Tensor, "angle", angle.call)  # noqa: B010 - mypy wants it declared
for _name, _view in (("H", _hermitian), ("mH", adjoint)):
    setattr(Tensor, _name, property(_view, doc=_view.__doc__))


# --- samples --------------------------------------------------------------------------------------


def _matrices(rng: np.random.Generator) -> list[Sample]:
    return [Sample((rng.standard_normal((2, 3)),)), Sample((rng.standard_normal((2, 1, 3)),))]


for _f in (conj, conj_physical):
    samples(_f, _matrices, np.conj)
samples(angle, _matrices, np.angle, grad2=False)
samples(adjoint, _matrices, lambda x: np.conj(np.swapaxes(x, -1, -2)))
samples(polar, two_parts, lambda x, y: x * np.exp(1j * y), floats=("float64", "float32"))
