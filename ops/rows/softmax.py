"""softmax, log_softmax and softmin in the stable form; the programs are in `softmax_programs`.

The gradient is an op of its own, whose gradient is written in differentiable ops.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.keywords import spelled
from flowvm.eager.native.trace_cache import steady
from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentTypeError, DTypeError, OutOfRangeError
from flowvm.launch import Launch
from flowvm.meta.arrays import Array
from flowvm.meta.dtype import DType
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.letters import along_dim
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.registry import Sample, op, samples
from flowvm.ops.rows.cpu.row_launch import Rows, row_launch
from flowvm.ops.rows.parts.row_program import RowProgram
from flowvm.ops.rows.parts.softmax_programs import (
    LOG_SOFTMAX,
    LOG_SOFTMAX_BACKWARD,
    SOFTMAX,
    SOFTMAX_BACKWARD,
)

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node


def axis_of(name: str, dim: object, ndim: int) -> int:
    """`dim` counted from the front; a 0-d tensor counts as having one dimension."""
    if not isinstance(dim, int) or isinstance(dim, bool):
        raise ArgumentTypeError(f"{name}: dim must be an int, got {dim!r}")
    reach = max(ndim, 1)
    if not -reach <= dim < reach:
        raise OutOfRangeError(f"{name}: dim must be in [{-reach}, {reach - 1}], got {dim}")
    return dim % reach


def rows_of(name: str, meta: TensorMeta, dim: object) -> tuple[int, int, int]:
    """(outer, n, inner) of a dense tensor: the sizes before, of and behind `dim`."""
    axis = axis_of(name, dim, meta.ndim)
    shape = tuple(meta.shape) or (1,)
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def _launch(name: str, program: RowProgram, dim: int, *inputs: TensorMeta) -> Launch:
    x = inputs[-1]
    if not x.dtype.is_floating_point:
        raise DTypeError(
            f"{name} needs a floating point tensor, got {x.dtype.name}; pass dtype=flow.float32"
        )
    return row_launch(Rows(program, *rows_of(name, x, dim)), (x.dense(),), inputs)


def _softmax_backward_grad(c: Node, v: Tensor) -> tuple[object, ...]:
    g, y = c.saved
    (dim,) = c.attrs
    dg = _softmax_backward(v, y, dim) if c.needs[0] else None
    if not c.needs[1]:
        return dg, None
    return dg, v * (g - (g * y).sum(dim, keepdim=True)) - g * (v * y).sum(dim, keepdim=True)


def _log_softmax_backward_grad(c: Node, v: Tensor) -> tuple[object, ...]:
    g, y = c.saved
    (dim,) = c.attrs
    p = y.exp()
    return (
        v - (p * v).sum(dim, keepdim=True) if c.needs[0] else None,
        -(p * v * g.sum(dim, keepdim=True)) if c.needs[1] else None,
    )


@op(
    "g, y -> out",
    name="softmax_backward",
    saves="g, y",
    grad=_softmax_backward_grad,
    cuda="row_kernels:run",
    letters=along_dim((0,)),
)
def _softmax_backward(g: TensorMeta, y: TensorMeta, dim: int) -> Launch:
    return _launch("softmax", SOFTMAX_BACKWARD, dim, g, y)


@op(
    "g, y -> out",
    name="log_softmax_backward",
    saves="g, y",
    grad=_log_softmax_backward_grad,
    cuda="row_kernels:run",
    letters=along_dim((0,)),
)
def _log_softmax_backward(g: TensorMeta, y: TensorMeta, dim: int) -> Launch:
    return _launch("log_softmax", LOG_SOFTMAX_BACKWARD, dim, g, y)


@op(
    "x -> out",
    name="softmax",
    saves="out",
    grad=lambda c, g: (_softmax_backward(g, c.saved[0], c.attrs[0]),),
    cuda="row_kernels:run",
    letters=along_dim(),
    amp="full",
)
def _softmax(x: TensorMeta, dim: Any) -> Launch:
    return _launch("softmax", SOFTMAX, dim, x)


@op(
    "x -> out",
    name="log_softmax",
    saves="out",
    grad=lambda c, g: (_log_softmax_backward(g, c.saved[0], c.attrs[0]),),
    cuda="row_kernels:run",
    letters=along_dim(),
    amp="full",
)
def _log_softmax(x: TensorMeta, dim: Any) -> Launch:
    return _launch("log_softmax", LOG_SOFTMAX, dim, x)


# public: flow (late, unlisted)
@spelled(grad_input="out")
@with_out
def _softmax_backward_data(
    grad_output: Tensor, output: Tensor, dim: int, input_dtype: DType
) -> Tensor:
    """The gradient of a softmax by its input, from that by its output."""
    grad: Tensor = _softmax_backward(grad_output, output, dim).to(input_dtype)
    return grad


# public: flow (late, unlisted)
@with_out
def _log_softmax_backward_data(
    grad_output: Tensor, output: Tensor, dim: int, input_dtype: DType
) -> Tensor:
    """Return the gradient of log_softmax by its input, in `input_dtype`, from its output."""
    grad: Tensor = _log_softmax_backward(grad_output, output, dim).to(input_dtype)
    return grad


# public: flow, special
@method()
@with_out
def softmax(input: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    """exp(x) / sum(exp(x)) over `dim`: positive numbers that sum to 1.

    `dtype` converts the input first.  DTypeError for integers without it, OutOfRangeError for a
    `dim` there is not.

    >>> flow.softmax(flow.tensor([0.0, 0.0]), 0)
    tensor([0.5000, 0.5000])
    """
    out: Tensor = _softmax(input if dtype is None else input.to(dtype), dim)
    return out


# public: flow, special
@method()
@with_out
def log_softmax(input: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    """log(softmax(x)) over `dim`, computed so that neither large nor small values overflow.

    `dtype` converts the input first.  DTypeError for integers without it, OutOfRangeError for a
    `dim` there is not.

    >>> flow.log_softmax(flow.tensor([0.0, 0.0]), 0)  # -log 2
    tensor([-0.6931, -0.6931])
    """
    out: Tensor = _log_softmax(input if dtype is None else input.to(dtype), dim)
    return out


# public: flow
@steady
def softmin(input: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    """softmax(-x) over `dim`.

    >>> flow.softmin(flow.tensor([0.0, flow.inf]), 0)
    tensor([1., 0.])
    """
    return softmax(-input, dim, dtype)


def _exps(x: Array, dim: int) -> Array:
    return np.exp(x - x.max(dim, keepdims=True)) if x.size else x


def _softmax_reference(x: Array, dim: int) -> Any:
    e = _exps(np.atleast_1d(x), dim)
    return (e / e.sum(dim, keepdims=True)).reshape(np.shape(x))


def _samples(rng: np.random.Generator) -> list[Sample]:
    x = rng.standard_normal
    return [
        Sample((x((3, 4)), 1)),
        Sample((x((2, 3, 4)), -2)),
        Sample((x((4, 3)), 0)),
        Sample((np.asarray(0.5), 0)),
        Sample((x((0, 3)), 1)),
        Sample((x((2, 0)), 1)),
        Sample((x(5) * 20, -1)),
    ]


_errors = (
    (lambda flow: flow.softmax(flow.ones(2, 3), 2), IndexError),
    (lambda flow: flow.softmax(flow.ones(2, 3, dtype=flow.int64), 1), RuntimeError),
)
samples(softmax, _samples, _softmax_reference, errors=_errors)
samples(log_softmax, _samples, lambda x, dim: np.log(_softmax_reference(x, dim)))
samples(softmin, _samples, lambda x, dim: _softmax_reference(-x, dim))
