"""Patches of an image as columns of a matrix, and such columns added up to an image again.

`unfold` moves elements about (as bits, any dtype), row by row of the result; `fold` gathers: every
row of the image adds up the pieces of columns that lie in it, in the order of the kernel's taps, so
no two workers write one place.  Each is the other's gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowvm.eager.tensor import Tensor
from flowvm.errors import DTypeError, ShapeError
from flowvm.launch import GRAIN, Launch, View, bits
from flowvm.meta.arrays import Array
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.composite import need_tensor
from flowvm.ops.declare.letters import unsplit
from flowvm.ops.declare.registry import Sample, op, samples
from flowvm.ops.planes.conv import _numbers
from flowvm.ops.planes.cpu.conv_rows import take_row
from flowvm.ops.planes.cpu.conv_strips import fill_with
from flowvm.ops.planes.cpu.pool_kernels import Windows
from flowvm.ops.planes.parts import plane_checks
from flowvm.ops.planes.parts.plane_checks import windows_along
from flowvm.ops.shapes.complex_parts import by_parts

# --- kernels ------------------------------------------------------------------------------------


def _unfold_body(out: Array, x: Array, t: Windows, lo: int, hi: int) -> None:
    h, w, oh, ow, kh, kw, sw = t.h, t.w, t.oh, t.ow, t.kh, t.kw, t.sw
    for unit in range(lo, hi):  # a tap of a plane: one row of the matrix
        plane, tap = unit // (kh * kw), unit % (kh * kw)
        top, edge = tap // kw * t.dh - t.ph, tap % kw * t.dw - t.pw
        first = min(ow, (max(0, -edge) + sw - 1) // sw)
        last = max(first, min(ow, (w - 1 - edge) // sw + 1))
        for y in range(oh):
            at, row = (unit * oh + y) * ow, y * t.sh + top
            if row < 0 or row >= h:
                out[at : at + ow] = 0
                continue
            out[at : at + first] = 0
            source = (plane * h + row) * w + edge + first * sw
            take_row(out, at + first, x, source, last - first, sw)
            out[at + last : at + ow] = 0


def _fold_body(out: Array, x: Array, t: Windows, lo: int, hi: int) -> None:
    h, w, oh, ow, kh, kw, sh, sw = t.h, t.w, t.oh, t.ow, t.kh, t.kw, t.sh, t.sw
    unit = lo
    while unit < hi:  # the rows of one plane, one tap after another
        plane, begin = unit // h, unit % h
        end = min(h, begin + hi - unit)
        fill_with(out[unit * w : (unit + end - begin) * w], out.dtype.type(0))
        for tap in range(kh * kw):
            top, edge = tap // kw * t.dh - t.ph, tap % kw * t.dw - t.pw
            first = min(ow, (max(0, -edge) + sw - 1) // sw)
            last = max(first, min(ow, (w - 1 - edge) // sw + 1))
            count = last - first
            y0 = (max(0, begin - top) + sh - 1) // sh
            y1 = min(oh, (end - 1 - top) // sh + 1) if count > 0 else 0
            for y in range(y0, y1):
                at = ((plane * kh * kw + tap) * oh + y) * ow + first
                start = (plane * h + y * sh + top) * w + edge + first * sw
                piece, to = x[at : at + count], out[start : start + (count - 1) * sw + 1]
                if sw == 1:
                    for k in range(count):
                        to[k] += piece[k]
                else:
                    for k in range(count):
                        to[k * sw] += piece[k]
        unit += end - begin


# --- ops ----------------------------------------------------------------------------------------


def _lead(shape: Sequence[int], behind: int) -> tuple[int, ...]:
    return tuple(shape[: len(shape) - behind])


@op(
    "x -> out", name="unfold", half="native", grad=lambda c, g: (_fold(g, *c.attrs),),
    cuda="patches:unfold", letters=unsplit, takes=plane_checks.unfold,
)  # fmt: skip
def _unfold(x: TensorMeta, t: Windows) -> Launch:
    channels, taps, count = x.shape[-3], t.kh * t.kw, t.oh * t.ow
    out = x.with_shape((*_lead(x.shape, 3), channels * taps, count))
    units = math.prod(x.shape[:-2]) * taps
    views = (bits(out, (out.numel,)), bits(x, (x.numel,)))
    return Launch((out,), _unfold_body, views, (t,), units, max(1, GRAIN // max(1, count)))


@op(
    "x -> out", name="fold", half="cuda", grad=lambda c, g: (_unfold(g, *c.attrs),),
    cuda="patches:fold", letters=unsplit, takes=plane_checks.fold,
)  # fmt: skip
def _fold(x: TensorMeta, t: Windows) -> Launch:
    channels = x.shape[-2] // (t.kh * t.kw)
    out = x.with_shape((*_lead(x.shape, 2), channels, t.h, t.w))
    units = math.prod(out.shape[:-1])
    views = (View(out.dtype, (out.numel,)), View(x.dtype, (x.numel,)))
    work = max(1, t.kh * t.kw * t.w // max(1, t.sh * t.sw))
    return Launch((out,), _fold_body, views, (t,), units, max(1, GRAIN // work))


def _taps(
    name: str,
    space: tuple[int, int],
    kernel_size: int | Sequence[int],
    dilation: int | Sequence[int],
    padding: int | Sequence[int],
    stride: int | Sequence[int],
) -> Windows:
    kernel = _numbers(name, "kernel_size", kernel_size, 2, 1)
    gaps = _numbers(name, "dilation", dilation, 2, 1)
    pads = _numbers(name, "padding", padding, 2, 0)
    steps = _numbers(name, "stride", stride, 2, 1)
    size = []
    for i, k, s, p, d in zip(space, kernel, steps, pads, gaps, strict=True):
        count = windows_along(i, k, s, p, d, False)
        if count < 1:
            raise ShapeError(
                f"{name}: the kernel {kernel} with dilation {gaps} is larger than the image "
                f"{space} with padding {pads}"
            )
        size.append(count)
    return Windows(*space, size[0], size[1], *kernel, *steps, *pads, *gaps)


# public: flow, F
def unfold(
    input: Tensor,
    kernel_size: int | Sequence[int],
    dilation: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    stride: int | Sequence[int] = 1,
) -> Tensor:
    """The patches of (N, C, H, W) or (C, H, W) as columns: (N, C * kernel height * kernel width,
    patches), zeros where a patch reaches into the padding.

    `Tensor.unfold` is another function: a view of the windows of one dimension.

    >>> F.unfold(flow.ones(1, 3, 4, 4), 2).shape
    flow.Size([1, 12, 9])
    """
    meta = need_tensor("unfold", "input", input)._meta
    if meta.ndim not in (3, 4):
        raise ShapeError(
            f"unfold: input has 4 dimensions (or 3 without a batch), got shape {tuple(meta.shape)}"
        )
    if meta.dtype.is_complex:
        return by_parts(  # type: ignore[no-any-return]
            lambda part: unfold(part, kernel_size, dilation, padding, stride), input
        )
    space = (meta.shape[-2], meta.shape[-1])
    out: Tensor = _unfold(input, _taps("unfold", space, kernel_size, dilation, padding, stride))
    return out


# public: flow, F
def fold(
    input: Tensor,
    output_size: int | Sequence[int],
    kernel_size: int | Sequence[int],
    dilation: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    stride: int | Sequence[int] = 1,
) -> Tensor:
    """Add columns of patches, as `unfold` makes them, to images of `output_size`.

    The result is (N, C, H, W), or (C, H, W) for a matrix; elements in the padding are dropped.

    >>> columns = F.unfold(flow.ones(1, 1, 3, 3), 2)
    >>> F.fold(columns, (3, 3), 2)  # in how many patches each pixel is
    tensor([[[[1., 2., 1.],
              [2., 4., 2.],
              [1., 2., 1.]]]])
    """
    meta = need_tensor("fold", "input", input)._meta
    if meta.ndim not in (2, 3):
        raise ShapeError(
            f"fold: input has 3 dimensions (or 2 without a batch), got shape {tuple(meta.shape)}"
        )
    if meta.dtype.name == "bool":
        raise DTypeError("fold: adds up numbers, got bool")
    if meta.dtype.is_complex:
        return by_parts(  # type: ignore[no-any-return]
            lambda part: fold(part, output_size, kernel_size, dilation, padding, stride), input
        )
    h, w = _numbers("fold", "output_size", output_size, 2, 1)
    t = _taps("fold", (h, w), kernel_size, dilation, padding, stride)
    if meta.shape[-2] % (t.kh * t.kw) or meta.shape[-1] != t.oh * t.ow:
        raise ShapeError(
            f"fold: images of {h} x {w} have {t.oh * t.ow} patches of {t.kh * t.kw} elements a "
            f"channel, got shape {tuple(meta.shape)}"
        )
    out: Tensor = _fold(input, t)
    return out


# --- samples ------------------------------------------------------------------------------------


def _places(t: Windows) -> Any:
    """Return the rows and columns of each tap (rows) of each patch (columns) in the padded
    plane.
    """
    b, e = np.arange(t.kh) * t.dh, np.arange(t.kw) * t.dw
    y, x = np.arange(t.oh) * t.sh, np.arange(t.ow) * t.sw
    rows, columns = b[:, None] + y, e[:, None] + x
    shape = (t.kh, t.kw, t.oh, t.ow)
    rows = np.broadcast_to(rows[:, None, :, None], shape).reshape(t.kh * t.kw, -1)
    return rows, np.broadcast_to(columns[None, :, None, :], shape).reshape(t.kh * t.kw, -1)


def _unfold_reference(
    x: Array,
    kernel: int | Sequence[int],
    dilation: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    stride: int | Sequence[int] = 1,
) -> Array:
    t = _taps("unfold", x.shape[-2:], kernel, dilation, padding, stride)
    pads = [(0, 0)] * (x.ndim - 2) + [(t.ph, t.ph), (t.pw, t.pw)]
    windows = np.pad(x, pads)[(..., *_places(t))]
    return windows.reshape(*x.shape[:-3], x.shape[-3] * t.kh * t.kw, t.oh * t.ow)


def _fold_reference(
    x: Array,
    size: tuple[int, int],
    kernel: int | Sequence[int],
    dilation: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    stride: int | Sequence[int] = 1,
) -> Array:
    t = _taps("fold", size, kernel, dilation, padding, stride)
    channels = x.shape[-2] // (t.kh * t.kw)
    columns = x.reshape(*x.shape[:-2], channels, t.kh * t.kw, t.oh * t.ow)
    out = np.zeros((*columns.shape[:-2], t.h + 2 * t.ph, t.w + 2 * t.pw), x.dtype)
    np.add.at(out, (..., *_places(t)), columns)
    return out[..., t.ph : t.ph + t.h, t.pw : t.pw + t.w]


samples(
    unfold,
    lambda rng: [
        Sample((rng.standard_normal((2, 2, 4, 5)), 3)),
        Sample((rng.standard_normal((2, 5, 7)), (2, 3), (2, 1), (1, 2), (2, 3))),
        Sample((rng.standard_normal((1, 1, 4, 4)), 2), {"stride": 2}),
        Sample((rng.standard_normal((0, 2, 3, 3)), 2)),
        Sample((rng.integers(0, 9, (1, 2, 3, 4)), (1, 2), 1, 1)),
    ],
    _unfold_reference,
    errors=(
        (lambda flow: flow.unfold(flow.ones(3, 3), 2), RuntimeError),
        (lambda flow: flow.unfold(flow.ones(1, 3, 3), 4), RuntimeError),
        (lambda flow: flow.unfold(flow.ones(1, 3, 3), 0), ValueError),
    ),
)
samples(
    fold,
    lambda rng: [
        Sample((rng.standard_normal((2, 18, 6)), (4, 5), 3)),
        Sample((rng.standard_normal((12, 9)), (5, 7), (2, 3), (2, 1), (1, 2), (2, 3))),
        Sample((rng.standard_normal((1, 4, 4)), (4, 4), 2), {"stride": 2}),
        Sample((rng.standard_normal((0, 8, 4)), (3, 3), 2)),
    ],
    _fold_reference,
    errors=(
        (lambda flow: flow.fold(flow.ones(3), (2, 2), 2), RuntimeError),
        (lambda flow: flow.fold(flow.ones(1, 5, 4), (3, 3), 2), RuntimeError),
        (lambda flow: flow.fold(flow.ones(1, 4, 3), (3, 3), 2), RuntimeError),
    ),
)
