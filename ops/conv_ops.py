"""Three ops that are each other's gradients, of which all convolutions are made.

_conv         out    = weight @ columns(input)            in blocks of output positions
_conv_input   input  = sum of weight' @ g into windows    and conv_transpose
_conv_weight  weight = sum over samples of g @ columns(input)'
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from flowvm.meta import TensorMeta
from flowvm.ops.blas import blas
from flowvm.ops.conv_kernels import (
    UNITS,
    Triple,
    _conv_bias_body,
    _conv_body,
    _input_body,
    _Shape,
    _weight_body,
)
from flowvm.ops.product_kernels import ROUTINES
from flowvm.ops.registry import Launch, View, op
from flowvm.tensor import Tensor


class _How(NamedTuple):
    """stride, padding in front and dilation in each dimension of space, and groups: the attribute
    of the ops.
    """

    stride: Triple
    padding: Triple
    dilation: Triple
    groups: int


def _three(space: Sequence[int]) -> Triple:
    filled = (1, 1, 1, *space)[-3:]
    return filled[0], filled[1], filled[2]


def _shape(input: Sequence[int], weight: Sequence[int], out: Sequence[int], how: _How) -> _Shape:
    return _Shape(
        input[0], input[1], *_three(input[2:]), weight[0], *_three(weight[2:]), *_three(out),
        *how.stride, *how.padding, *how.dilation, how.groups,
    )  # fmt: skip


def _flat(*metas: TensorMeta) -> tuple[View, ...]:
    return tuple(View(m.dtype, (m.numel,)) for m in metas)


def _conv_launch(
    body: Any,
    input: TensorMeta,
    weight: TensorMeta,
    *bias: TensorMeta,
    how: _How,
    size: tuple[int, ...],
) -> Launch:
    s = _shape(input.shape, weight.shape, size, how)
    out = input.with_shape((s.samples, s.outputs, *size))
    width = s.width(1 if s.direct else s.rows)
    tasks = s.samples * s.groups * -(-s.places // width)
    units = min(tasks, UNITS)
    consts = (*s, blas(ROUTINES[input.dtype.name]), s.direct, width, units)
    scratch = 0 if s.direct else units * s.rows * width * input.dtype.itemsize
    views = _flat(out, input, weight, *bias)
    return Launch((out,), body, views, consts, units, 1, max(8, scratch))


def _conv_grad(c: Any, g: Tensor) -> tuple[Any, ...]:
    x, weight = c.saved
    how, _ = c.attrs
    return (
        _conv_input(g, weight, how, tuple(c.metas[0].shape)) if c.needs[0] else None,
        _conv_weight(g, x, how, tuple(c.metas[1].shape)) if c.needs[1] else None,
    )


def _conv_bias_grad(c: Any, g: Tensor) -> tuple[Any, ...]:
    dims = [d for d in range(g.ndim) if d != 1]
    return (*_conv_grad(c, g), g.sum(dims) if c.needs[2] else None)


@op("input, weight -> out", name="conv", saves="input, weight", grad=_conv_grad)
def _conv(input: TensorMeta, weight: TensorMeta, how: _How, size: tuple[int, ...]) -> Launch:
    return _conv_launch(_conv_body, input, weight, how=how, size=size)


@op("input, weight, bias -> out", name="conv", saves="input, weight", grad=_conv_bias_grad)
def _conv_bias(
    input: TensorMeta, weight: TensorMeta, bias: TensorMeta, how: _How, size: tuple[int, ...]
) -> Launch:
    return _conv_launch(_conv_bias_body, input, weight, bias, how=how, size=size)


def _conv_input_grad(c: Any, v: Tensor) -> tuple[Any, ...]:
    g, weight = c.saved
    how, _ = c.attrs
    size = tuple(c.metas[0].shape[2:])
    return (
        _conv(v, weight, how, size) if c.needs[0] else None,
        _conv_weight(g, v, how, tuple(c.metas[1].shape)) if c.needs[1] else None,
    )


@op("g, weight -> out", name="conv_input", saves="g, weight", grad=_conv_input_grad)
def _conv_input(g: TensorMeta, weight: TensorMeta, how: _How, shape: tuple[int, ...]) -> Launch:
    """The gradient of a convolution's input, which has `shape`."""
    s = _shape(shape, weight.shape, g.shape[2:], how)
    out = g.with_shape(shape)
    width = s.width(s.rows)
    units = min(s.samples * s.groups, UNITS)
    consts = (*s, blas(ROUTINES[g.dtype.name]), s.direct, width, units)
    scratch = 0 if s.direct else units * s.rows * width * g.dtype.itemsize
    views = _flat(out, g, weight)
    return Launch((out,), _input_body, views, consts, units, 1, max(8, scratch))


def _conv_weight_grad(c: Any, v: Tensor) -> tuple[Any, ...]:
    g, x = c.saved
    how, _ = c.attrs
    return (
        _conv(x, v, how, tuple(c.metas[0].shape[2:])) if c.needs[0] else None,
        _conv_input(g, v, how, tuple(c.metas[1].shape)) if c.needs[1] else None,
    )


@op("g, input -> out", name="conv_weight", saves="g, input", grad=_conv_weight_grad)
def _conv_weight(g: TensorMeta, input: TensorMeta, how: _How, shape: tuple[int, ...]) -> Launch:
    """The gradient of a convolution's weight, which has `shape`."""
    s = _shape(input.shape, shape, g.shape[2:], how)
    out = g.with_shape(shape)
    each, made = s.channels // s.groups, s.outputs // s.groups
    c_parts = max(1, min(each, -(-8 // s.groups)))
    o_parts = max(1, min(made // 8, 4)) if c_parts * s.groups < 4 else 1
    rows = -(-each // c_parts) * (s.rows // max(1, each))
    width, units = s.width(rows), s.groups * c_parts * o_parts
    consts = (*s, blas(ROUTINES[g.dtype.name]), s.direct, width, c_parts, o_parts)
    scratch = 0 if s.direct else units * rows * width * g.dtype.itemsize
    views = _flat(out, g, input)
    return Launch((out,), _weight_body, views, consts, units, 1, max(8, scratch))
