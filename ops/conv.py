"""Convolutions: windows of the input become columns of a matrix, block by block; BLAS does the
rest.

Every convolution is done in three dimensions of space; missing ones have size 1.  Three ops, each
made of the others' gradients:

    _conv         out    = weight @ columns(input)            in blocks of output positions
    _conv_input   input  = sum of weight' @ g into windows    and conv_transpose
    _conv_weight  weight = sum over samples of g @ columns(input)'

A unit has its own part of the scratch memory and does several blocks one after the other.  Which,
depends on shapes alone. Units never write the same element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from flowvm.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from flowvm.meta import TensorMeta
from flowvm.ops.blas import blas, gemm
from flowvm.ops.linalg import ROUTINES
from flowvm.ops.registry import Launch, Sample, View, op, samples
from flowvm.tensor import Tensor

__all__ = [
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
]

Array = Any
Triple = tuple[int, int, int]
COLUMNS = 1 << 16  # elements of the matrix of columns at a time: what stays in a core's cache
UNITS = 16  # parts that the work is cut into at most: each has scratch of its own


class _Shape(NamedTuple):
    """A convolution, in the order in which kernels take it."""

    samples: int
    channels: int
    d: int
    h: int
    w: int
    outputs: int
    kd: int
    kh: int
    kw: int
    od: int
    oh: int
    ow: int
    sd: int
    sh: int
    sw: int
    pd: int
    ph: int
    pw: int
    dd: int
    dh: int
    dw: int
    groups: int

    @property
    def rows(self) -> int:
        """Rows of the matrix of columns: the elements of a window."""
        return self.channels // self.groups * self.kd * self.kh * self.kw

    @property
    def places(self) -> int:
        """Output positions of a sample."""
        return self.od * self.oh * self.ow

    @property
    def direct(self) -> bool:
        """Whether the input is its own matrix of columns."""
        return (
            self.kd == self.kh == self.kw == self.sd == self.sh == self.sw == 1
            and self.pd == self.ph == self.pw == 0
            and (self.d, self.h, self.w) == (self.od, self.oh, self.ow)
        )

    def width(self, rows: int) -> int:
        """Columns of a block, for so many rows."""
        return max(1, min(self.places, max(16, COLUMNS // max(1, rows))))


def _segment(z0: int, count: int, start: int, step: int, size: int) -> tuple[int, int]:
    """The part [first, last) of `count` outputs from z0 on whose input z * step + start is inside
    [0, size).
    """
    at = z0 * step + start
    first = 0 if at >= 0 else min(count, (step - 1 - at) // step)
    last = min(count, (size - 1 - at) // step + 1) if at < size else 0
    return first, max(first, last)


def _gather(
    columns: Array, x: Array, x_at: int, channels: int, g: tuple[int, ...], p0: int, p1: int
) -> None:
    """Windows at output positions [p0, p1) of `channels` channels from x_at on, one a column."""
    _, _, d, h, w, _, kd, kh, kw, _, oh, ow, sd, sh, sw, pd, ph, pw, dd, dh, dw, _ = g
    width = p1 - p0
    for tap in range(channels * kd * kh * kw):
        e, b, a, c = tap % kw, tap // kw % kh, tap // (kw * kh) % kd, tap // (kw * kh * kd)
        line = columns[tap * width : (tap + 1) * width]
        shift = e * dw - pw
        whole_first, whole_last = _segment(0, ow, shift, sw, w)
        p, z0, y, z = p0, p0 % ow, p0 // ow % oh, p0 // (ow * oh)
        while p < p1:
            n = min(ow - z0, p1 - p)
            into = line[p - p0 : p - p0 + n]
            i, j = z * sd - pd + a * dd, y * sh - ph + b * dh
            first, last = whole_first, whole_last
            if n < ow:
                first, last = _segment(z0, n, shift, sw, w)
            if i < 0 or i >= d or j < 0 or j >= h:
                first, last = 0, 0
            for k in range(first):
                into[k] = 0
            start = x_at + ((c * d + i) * h + j) * w + (z0 + first) * sw + shift
            middle = into[first:last]
            if sw == 1:
                source = x[start : start + last - first]
                for k in range(len(middle)):
                    middle[k] = source[k]
            else:
                for k in range(len(middle)):
                    middle[k] = x[start + k * sw]
            for k in range(last, n):
                into[k] = 0
            p, z0, y = p + n, 0, y + 1
            if y == oh:
                y, z = 0, z + 1


def _scatter(
    columns: Array, x: Array, x_at: int, channels: int, g: tuple[int, ...], p0: int, p1: int
) -> None:
    """The reverse: add every column to its window."""
    _, _, d, h, w, _, kd, kh, kw, _, oh, ow, sd, sh, sw, pd, ph, pw, dd, dh, dw, _ = g
    width = p1 - p0
    for tap in range(channels * kd * kh * kw):
        e, b, a, c = tap % kw, tap // kw % kh, tap // (kw * kh) % kd, tap // (kw * kh * kd)
        line = columns[tap * width : (tap + 1) * width]
        shift = e * dw - pw
        whole_first, whole_last = _segment(0, ow, shift, sw, w)
        p, z0, y, z = p0, p0 % ow, p0 // ow % oh, p0 // (ow * oh)
        while p < p1:
            n = min(ow - z0, p1 - p)
            i, j = z * sd - pd + a * dd, y * sh - ph + b * dh
            if i >= 0 and i < d and j >= 0 and j < h:
                first, last = whole_first, whole_last
                if n < ow:
                    first, last = _segment(z0, n, shift, sw, w)
                start = x_at + ((c * d + i) * h + j) * w + (z0 + first) * sw + shift
                middle = line[p - p0 + first : p - p0 + last]
                if sw == 1:
                    target = x[start : start + last - first]
                    for k in range(len(middle)):
                        target[k] += middle[k]
                else:
                    for k in range(len(middle)):
                        x[start + k * sw] += middle[k]
            p, z0, y = p + n, 0, y + 1
            if y == oh:
                y, z = 0, z + 1


def _forward(
    out: Array, x: Array, weight: Array, bias: Array, biased: bool, g: tuple[int, ...],
    address: int, direct: bool, width: int, units: int, scratch: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """A task is a block of output positions of one group in one sample."""
    samples, channels, outputs, groups = g[0], g[1], g[5], g[21]
    each, made = channels // groups, outputs // groups
    space, places = g[2] * g[3] * g[4], g[9] * g[10] * g[11]
    rows = each * g[6] * g[7] * g[8]
    blocks = (places + width - 1) // width
    tasks = samples * groups * blocks
    one = out.dtype.type(1)
    beta = out.dtype.type(biased)
    for unit in range(lo, hi):
        own = scratch.view(out.dtype)
        if not direct:
            own = own[unit * rows * width : (unit + 1) * rows * width]
        for task in range(unit * tasks // units, (unit + 1) * tasks // units):
            block, group, n = task % blocks, task // blocks % groups, task // (blocks * groups)
            p0 = block * width
            p1 = min(p0 + width, places)
            x_at = (n * channels + group * each) * space
            at = (n * outputs + group * made) * places + p0
            if biased:
                for o in range(made):
                    line = out[at + o * places : at + o * places + p1 - p0]
                    b = bias[group * made + o]
                    for k in range(len(line)):
                        line[k] = b
            if direct:
                gemm(
                    address, 0, 0, made, p1 - p0, rows, one, weight, group * made * rows, rows,
                    x, x_at + p0, places, beta, out, at, places,
                )  # fmt: skip
            else:
                _gather(own, x, x_at, each, g, p0, p1)
                gemm(
                    address, 0, 0, made, p1 - p0, rows, one, weight, group * made * rows, rows,
                    own, 0, p1 - p0, beta, out, at, places,
                )  # fmt: skip


def _conv_body(
    out: Array, x: Array, weight: Array,
    samples: int, channels: int, d: int, h: int, w: int, outputs: int, kd: int, kh: int, kw: int,
    od: int, oh: int, ow: int, sd: int, sh: int, sw: int, pd: int, ph: int, pw: int,
    dd: int, dh: int, dw: int, groups: int, address: int, direct: bool, width: int, units: int,
    scratch: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    g = (
        samples, channels, d, h, w, outputs, kd, kh, kw, od, oh, ow, sd, sh, sw, pd, ph, pw, dd,
        dh, dw, groups,
    )  # fmt: skip
    _forward(out, x, weight, weight, False, g, address, direct, width, units, scratch, lo, hi)


def _conv_bias_body(
    out: Array, x: Array, weight: Array, bias: Array,
    samples: int, channels: int, d: int, h: int, w: int, outputs: int, kd: int, kh: int, kw: int,
    od: int, oh: int, ow: int, sd: int, sh: int, sw: int, pd: int, ph: int, pw: int,
    dd: int, dh: int, dw: int, groups: int, address: int, direct: bool, width: int, units: int,
    scratch: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    g = (
        samples, channels, d, h, w, outputs, kd, kh, kw, od, oh, ow, sd, sh, sw, pd, ph, pw, dd,
        dh, dw, groups,
    )  # fmt: skip
    _forward(out, x, weight, bias, True, g, address, direct, width, units, scratch, lo, hi)


def _input_body(
    out: Array, grad: Array, weight: Array,
    samples: int, channels: int, d: int, h: int, w: int, outputs: int, kd: int, kh: int, kw: int,
    od: int, oh: int, ow: int, sd: int, sh: int, sw: int, pd: int, ph: int, pw: int,
    dd: int, dh: int, dw: int, groups: int, address: int, direct: bool, width: int, units: int,
    scratch: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """A task is one group in one sample: its windows overlap, so that their sums belong to one
    unit.
    """
    g = (
        samples, channels, d, h, w, outputs, kd, kh, kw, od, oh, ow, sd, sh, sw, pd, ph, pw, dd,
        dh, dw, groups,
    )  # fmt: skip
    each, made, space, places = channels // groups, outputs // groups, d * h * w, od * oh * ow
    rows = each * kd * kh * kw
    tasks = samples * groups
    one, zero = out.dtype.type(1), out.dtype.type(0)
    for unit in range(lo, hi):
        own = scratch.view(out.dtype)
        if not direct:
            own = own[unit * rows * width : (unit + 1) * rows * width]
        for task in range(unit * tasks // units, (unit + 1) * tasks // units):
            at, g_at = task * each * space, task * made * places
            weight_at = task % groups * made * rows
            if direct:
                gemm(
                    address, 1, 0, each, places, made, one, weight, weight_at, rows, grad, g_at,
                    places,
                    zero, out, at, places,
                )  # fmt: skip
                continue
            whole = out[at : at + each * space]
            for k in range(len(whole)):
                whole[k] = 0
            for p0 in range(0, places, width):
                p1 = min(p0 + width, places)
                gemm(
                    address, 1, 0, rows, p1 - p0, made, one, weight, weight_at, rows,
                    grad, g_at + p0, places, zero, own, 0, p1 - p0,
                )  # fmt: skip
                _scatter(own, out, at, each, g, p0, p1)


def _weight_body(
    out: Array, grad: Array, x: Array,
    samples: int, channels: int, d: int, h: int, w: int, outputs: int, kd: int, kh: int, kw: int,
    od: int, oh: int, ow: int, sd: int, sh: int, sw: int, pd: int, ph: int, pw: int,
    dd: int, dh: int, dw: int, groups: int, address: int, direct: bool, width: int,
    c_parts: int, o_parts: int, scratch: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """A unit is some of a group's input channels with some of its output channels, over all
    samples.
    """
    g = (
        samples, channels, d, h, w, outputs, kd, kh, kw, od, oh, ow, sd, sh, sw, pd, ph, pw, dd,
        dh, dw, groups,
    )  # fmt: skip
    each, made, space, places = channels // groups, outputs // groups, d * h * w, od * oh * ow
    taps = kd * kh * kw
    widest = (each + c_parts - 1) // c_parts * taps * width
    one = out.dtype.type(1)
    for unit in range(lo, hi):
        own = scratch.view(out.dtype)
        if not direct:
            own = own[unit * widest : (unit + 1) * widest]
        o_part, c_part = unit % o_parts, unit // o_parts % c_parts
        group = unit // (o_parts * c_parts)
        c0, c1 = c_part * each // c_parts, (c_part + 1) * each // c_parts
        o0, o1 = o_part * made // o_parts, (o_part + 1) * made // o_parts
        rows = (c1 - c0) * taps
        at = ((group * made + o0) * each + c0) * taps
        beta = out.dtype.type(0)
        if samples * places == 0:
            for o in range(o1 - o0):
                for k in range(rows):
                    out[at + o * each * taps + k] = 0
        for n in range(samples):
            x_at = (n * channels + group * each + c0) * space
            g_at = (n * outputs + group * made + o0) * places
            for p0 in range(0, places, width):
                p1 = min(p0 + width, places)
                if direct:
                    gemm(
                        address, 0, 1, o1 - o0, rows, p1 - p0, one, grad, g_at + p0, places,
                        x, x_at + p0, places, beta, out, at, each * taps,
                    )  # fmt: skip
                else:
                    _gather(own, x, x_at, c1 - c0, g, p0, p1)
                    gemm(
                        address, 0, 1, o1 - o0, rows, p1 - p0, one, grad, g_at + p0, places,
                        own, 0, p1 - p0, beta, out, at, each * taps,
                    )  # fmt: skip
                beta = one


# --- ops -----------------------------------------------------------------------------------------


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


# --- functions
# -------------------------------------------------------------------------------------


def _numbers(name: str, what: str, value: Any, n: int, least: int) -> tuple[int, ...]:
    """`value`, one int or `n` of them, as a tuple; ArgumentError below `least`."""
    numbers = (value,) * n if isinstance(value, int) else tuple(value)
    if len(numbers) == 1:
        numbers = numbers * n
    if len(numbers) != n or not all(isinstance(v, int) for v in numbers):
        raise ArgumentTypeError(f"{name}: {what} is an int or {n} of them, got {value!r}")
    if min(numbers) < least:
        raise ArgumentError(f"{name}: {what} must be at least {least}, got {value!r}")
    return numbers


def _check(
    name: str,
    n: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    groups: int,
    transposed: bool,
) -> Tensor:
    """`input` with a batch dimension, when everything fits."""
    x, w = input._meta, weight._meta
    if w.ndim != n + 2 or x.ndim not in (n + 1, n + 2):
        raise ShapeError(
            f"{name}: input has {n + 2} dimensions (or {n + 1} without a batch) and weight "
            f"{n + 2}, got shapes "
            f"{tuple(x.shape)} and {tuple(w.shape)}"
        )
    if x.dtype is not w.dtype or not x.dtype.is_floating_point:
        raise DTypeError(
            f"{name}: input and weight must have one floating point dtype, got {x.dtype.name} "
            f"and {w.dtype.name}"
        )
    channels = x.shape[-n - 1]
    wanted = w.shape[0] if transposed else w.shape[1] * groups
    outputs = w.shape[1] * groups if transposed else w.shape[0]
    if groups < 1 or channels != wanted or outputs % groups or channels % groups:
        raise ShapeError(
            f"{name}: weight of shape {tuple(w.shape)} with groups={groups} is for {wanted} "
            f"input channels, input of "
            f"shape {tuple(x.shape)} has {channels}"
        )
    if bias is not None and (
        tuple(bias._meta.shape) != (outputs,) or bias._meta.dtype is not x.dtype
    ):
        raise ShapeError(
            f"{name}: bias is {x.dtype.name} with one number for each of {outputs} output "
            f"channels, got "
            f"{bias._meta.dtype.name} of shape {tuple(bias.shape)}"
        )
    return input if x.ndim == n + 2 else input.unsqueeze(0)


def _padded(
    name: str, padding: Any, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Padding in front of and behind each dimension; "same" may need more behind."""
    n = len(kernel)
    if not isinstance(padding, str):
        pads = _numbers(name, "padding", padding, n, 0)
        return pads, pads
    if padding == "valid":
        return (0,) * n, (0,) * n
    if padding != "same":
        raise ArgumentError(f'{name}: padding is a number, "same" or "valid", got {padding!r}')
    if any(s != 1 for s in stride):
        raise ArgumentError(f'{name}: padding="same" is for stride 1, got {tuple(stride)}')
    total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    return tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)


def _three_of(values: Sequence[int], filling: int) -> Triple:
    filled = ((filling,) * 3 + tuple(values))[-3:]
    return filled[0], filled[1], filled[2]


def _convolve(
    name: str, n: int, input: Tensor, weight: Tensor, bias: Tensor | None,
    stride: Any, padding: Any, dilation: Any, groups: int,
) -> Tensor:  # fmt: skip
    x = _check(name, n, input, weight, bias, groups, False)
    stride = _numbers(name, "stride", stride, n, 1)
    dilation = _numbers(name, "dilation", dilation, n, 1)
    kernel = weight._meta.shape[2:]
    front, behind = _padded(name, padding, kernel, stride, dilation)
    size = []
    for i, k, s, d, a, b in zip(
        x._meta.shape[2:], kernel, stride, dilation, front, behind, strict=True
    ):
        room = i + a + b - d * (k - 1) - 1
        if room < 0:
            raise ShapeError(
                f"{name}: the kernel {tuple(kernel)} with dilation {dilation} is larger than the "
                f"padded input of "
                f"shape {tuple(input.shape)}"
            )
        size.append(room // s + 1)
    how = _How(_three_of(stride, 1), _three_of(front, 0), _three_of(dilation, 1), groups)
    if bias is None:
        out: Tensor = _conv(x, weight, how, tuple(size))
    else:
        out = _conv_bias(x, weight, bias, how, tuple(size))
    return out if x is input else out.squeeze(0)


def _convolve_back(
    name: str, n: int, input: Tensor, weight: Tensor, bias: Tensor | None,
    stride: Any, padding: Any, output_padding: Any, groups: int, dilation: Any,
) -> Tensor:  # fmt: skip
    x = _check(name, n, input, weight, bias, groups, True)
    stride = _numbers(name, "stride", stride, n, 1)
    padding = _numbers(name, "padding", padding, n, 0)
    dilation = _numbers(name, "dilation", dilation, n, 1)
    extra = _numbers(name, "output_padding", output_padding, n, 0)
    size = []
    kernel = weight._meta.shape[2:]
    for i, k, s, p, d, e in zip(
        x._meta.shape[2:], kernel, stride, padding, dilation, extra, strict=True
    ):
        if e >= max(s, d):
            raise ArgumentError(
                f"{name}: output_padding must be smaller than stride or dilation, got {e} with "
                f"stride {s} and "
                f"dilation {d}"
            )
        length = (i - 1) * s - 2 * p + d * (k - 1) + e + 1
        if length < 1:
            raise ShapeError(
                f"{name}: the output would have size {length}, for input of shape "
                f"{tuple(input.shape)}"
            )
        size.append(length)
    how = _How(_three_of(stride, 1), _three_of(padding, 0), _three_of(dilation, 1), groups)
    channels = weight._meta.shape[1] * groups
    out: Tensor = _conv_input(x, weight, how, (x._meta.shape[0], channels, *size))
    if bias is not None:
        out = out + bias.reshape((-1,) + (1,) * n)
    return out if x is input else out.squeeze(0)


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """Slide weight (O, C / groups, k) over input (N, C, L), or (C, L): (N, O, L').

    `padding` is a number of zeros at both ends, "same" for an output as long as the input, or
    "valid" for none.
    """
    return _convolve("conv1d", 1, input, weight, bias, stride, padding, dilation, groups)


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """Slide weight (O, C / groups, kh, kw) over images (N, C, H, W), or (C, H, W): (N, O, H', W').

    Numbers that are given once hold for both directions.  `padding` is a number of zeros at all
    edges, "same" for an output as large as the input, or "valid" for none.
    """
    return _convolve("conv2d", 2, input, weight, bias, stride, padding, dilation, groups)


def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """conv2d with one more dimension: weight (O, C / groups, kd, kh, kw), input (N, C, D, H, W)."""
    return _convolve("conv3d", 3, input, weight, bias, stride, padding, dilation, groups)


def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> Tensor:
    """The gradient of conv1d by its input, as a layer: (N, C, L) to (N, O, L').

    weight is (C, O / groups, k).
    """
    return _convolve_back(
        "conv_transpose1d", 1, input, weight, bias, stride, padding, output_padding, groups,
        dilation,
    )  # fmt: skip


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> Tensor:
    """The gradient of conv2d by its input, as a layer: weight (C, O / groups, kh, kw), (N, C, H, W)
    to (N, O, H', W').
    """
    return _convolve_back(
        "conv_transpose2d", 2, input, weight, bias, stride, padding, output_padding, groups,
        dilation,
    )  # fmt: skip


def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> Tensor:
    """The gradient of conv3d by its input, as a layer: weight (C, O / groups, kd, kh, kw)."""
    return _convolve_back(
        "conv_transpose3d", 3, input, weight, bias, stride, padding, output_padding, groups,
        dilation,
    )  # fmt: skip


# --- samples
# -----------------------------------------------------------------------------------------


def _conv_reference(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """A convolution by its definition, one output position at a time."""
    n = weight.ndim - 2
    batched = x.ndim == n + 2
    x = x if batched else x[None]
    kernel = weight.shape[2:]
    stride, dilation = (v if isinstance(v, tuple) else (v,) * n for v in (stride, dilation))
    front, behind = _padded("conv", padding, kernel, stride, dilation)
    x = np.pad(x, [(0, 0), (0, 0), *zip(front, behind, strict=True)])
    size = [
        (i - d * (k - 1) - 1) // s + 1
        for i, k, s, d in zip(x.shape[2:], kernel, stride, dilation, strict=True)
    ]
    out = np.zeros((x.shape[0], weight.shape[0], *size))
    each, made = weight.shape[1], weight.shape[0] // groups
    for place in np.ndindex(*size):
        window = tuple(
            slice(p * s, p * s + d * (k - 1) + 1, d)
            for p, s, d, k in zip(place, stride, dilation, kernel, strict=True)
        )
        for g in range(groups):
            part = x[(slice(None), slice(g * each, (g + 1) * each), *window)]
            taps = weight[g * made : (g + 1) * made]
            axes = tuple(range(1, n + 2))
            out[(slice(None), slice(g * made, (g + 1) * made), *place)] = np.tensordot(
                part, taps, (axes, axes)
            )
    if bias is not None:
        out += bias.reshape((-1,) + (1,) * n)
    return out if batched else out[0]


def _transposed_reference(
    x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1, dilation: Any = 1,
) -> Any:  # fmt: skip
    """Every input element adds its kernel to the output."""
    n = weight.ndim - 2
    stride, padding, extra, dilation = (
        v if isinstance(v, tuple) else (v,) * n for v in (stride, padding, output_padding, dilation)
    )
    kernel = weight.shape[2:]
    full = [
        (i - 1) * s + d * (k - 1) + 1 + e + p
        for i, s, d, k, e, p in zip(
            x.shape[2:], stride, dilation, kernel, extra, padding, strict=True
        )
    ]
    each, made = weight.shape[0] // groups, weight.shape[1]
    out = np.zeros((x.shape[0], made * groups, *full))
    for place in np.ndindex(*x.shape[2:]):
        window = tuple(
            slice(p * s, p * s + d * (k - 1) + 1, d)
            for p, s, d, k in zip(place, stride, dilation, kernel, strict=True)
        )
        for g in range(groups):
            part = x[(slice(None), slice(g * each, (g + 1) * each), *place)]
            added = np.tensordot(part, weight[g * each : (g + 1) * each], ((1,), (0,)))
            out[(slice(None), slice(g * made, (g + 1) * made), *window)] += added
    sizes = [
        (i - 1) * s - 2 * p + d * (k - 1) + e + 1
        for i, s, p, d, k, e in zip(
            x.shape[2:], stride, padding, dilation, kernel, extra, strict=True
        )
    ]
    crop = tuple(slice(p, p + size) for p, size in zip(padding, sizes, strict=True))
    out = out[(slice(None), slice(None), *crop)]
    return out if bias is None else out + bias.reshape((-1,) + (1,) * n)


def _register() -> None:
    def shapes(*cases: tuple[Any, ...]) -> Any:
        def generate(rng: np.random.Generator) -> list[Sample]:
            x = rng.standard_normal
            return [
                Sample((x(a), x(b), None if c is None else x(c)), dict(o)) for a, b, c, o in cases
            ]

        return generate

    samples(
        conv1d,
        shapes(
            ((2, 2, 5), (3, 2, 3), 3, {}),
            ((2, 5), (2, 2, 2), 2, {"padding": "same"}),
            ((1, 4, 6), (4, 2, 2), None, {"stride": 2, "padding": 1, "dilation": 2, "groups": 2}),
            ((0, 2, 5), (3, 2, 3), 3, {}),
        ),
        _conv_reference,
        errors=(
            (lambda flow: flow.conv1d(flow.ones(1, 2, 5), flow.ones(1, 3, 2)), RuntimeError),
            (lambda flow: flow.conv1d(flow.ones(1, 2, 2), flow.ones(1, 2, 3)), RuntimeError),
            (
                lambda flow: flow.conv1d(flow.ones(1, 2, 5), flow.ones(1, 2, 3), stride=0),
                ValueError,
            ),
            (
                lambda flow: flow.conv1d(flow.ones(1, 2, 5), flow.ones(1, 2, 3), None, 2, "same"),
                ValueError,
            ),
        ),
    )
    samples(
        conv2d,
        shapes(
            ((2, 2, 3, 3), (2, 2, 2, 2), 2, {"padding": 1}),
            ((1, 2, 3, 2), (2, 2, 1, 1), 2, {}),
            ((1, 2, 4, 3), (2, 1, 3, 2), None, {"stride": (2, 1), "padding": (1, 0), "groups": 2}),
        ),
        _conv_reference,
    )
    samples(
        conv3d,
        shapes(((1, 1, 2, 3, 2), (2, 1, 2, 2, 2), 2, {"padding": (0, 1, 0)})),
        _conv_reference,
    )
    samples(
        conv_transpose1d,
        shapes(
            ((2, 2, 3), (2, 3, 3), 3, {"stride": 2, "padding": 1, "output_padding": 1}),
            ((1, 2, 3), (2, 1, 2), None, {"groups": 2, "dilation": 2}),
        ),
        _transposed_reference,
        errors=(
            (
                lambda flow: flow.conv_transpose1d(
                    flow.ones(1, 2, 3), flow.ones(2, 1, 2), output_padding=1
                ),
                ValueError,
            ),
        ),
    )
    samples(
        conv_transpose2d,
        shapes(((1, 2, 2, 3), (2, 1, 2, 2), 1, {"stride": (1, 2)})),
        _transposed_reference,
    )
    samples(
        conv_transpose3d, shapes(((1, 1, 2, 2, 1), (1, 2, 1, 2, 2), 2, {})), _transposed_reference
    )


_register()
