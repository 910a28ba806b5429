"""The ops of pooling: the maximum or the average of windows, of fixed size or adaptive, which are
those that divide the input evenly.

Inputs are planes (all leading dimensions together) of height and width; one dimension has height 1.
 Max pooling notes where each maximum is; its gradient adds to these places, and that one's gradient
 reads from them.  Average pooling is linear: it and
its gradient are each other's gradients.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from flowvm.dtype import int64
from flowvm.errors import DTypeError
from flowvm.meta import TensorMeta
from flowvm.ops.registry import GRAIN, Launch, View, op
from flowvm.ops.rows import sum_of

Array = Any


class _Windows(NamedTuple):
    """Sizes of input, output, kernel, stride, padding and dilation; a kernel of 0 means adaptive
    windows.
    """

    h: int
    w: int
    oh: int
    ow: int
    kh: int
    kw: int
    sh: int
    sw: int
    ph: int
    pw: int
    dh: int
    dw: int


def _bounds(i: int, size: int, out: int, k: int, s: int, p: int) -> tuple[int, int]:
    """Window i as [start, end), which may reach into the padding."""
    if k == 0:
        return i * size // out, ((i + 1) * size + out - 1) // out
    return i * s - p, min(i * s - p + k, size + p)


def _max_body(
    out: Array, index: Array, x: Array, h: int, w: int, oh: int, ow: int, kh: int, kw: int,
    sh: int, sw: int, ph: int, pw: int, dh: int, dw: int, lo: int, hi: int,
) -> None:  # fmt: skip
    tall, wide = (kh - 1) * dh + 1 if kh else 0, (kw - 1) * dw + 1 if kw else 0
    for plane in range(lo, hi):
        xs = x[plane * h * w : (plane + 1) * h * w]
        for i in range(oh):
            top, bottom = _bounds(i, h, oh, tall, sh, ph)
            while top < 0:
                top += dh
            for j in range(ow):
                left, right = _bounds(j, w, ow, wide, sw, pw)
                while left < 0:
                    left += dw
                at = top * w + left
                best = xs[at]
                for y in range(top, min(bottom, h), dh):
                    for z in range(left, min(right, w), dw):
                        v = xs[y * w + z]
                        if v > best or v != v:
                            best, at = v, y * w + z
                out[(plane * oh + i) * ow + j] = best
                index[(plane * oh + i) * ow + j] = at


def _scatter_body(
    out: Array, g: Array, index: Array, size: int, places: int, lo: int, hi: int
) -> None:
    for plane in range(lo, hi):
        whole = out[plane * size : (plane + 1) * size]
        for k in range(size):
            whole[k] = 0
        for k in range(plane * places, (plane + 1) * places):
            whole[index[k]] += g[k]


def _gather_body(
    out: Array, x: Array, index: Array, size: int, places: int, lo: int, hi: int
) -> None:
    for plane in range(lo, hi):
        for k in range(plane * places, (plane + 1) * places):
            out[k] = x[plane * size + index[k]]


def _average_body(
    out: Array, x: Array, h: int, w: int, oh: int, ow: int, kh: int, kw: int, sh: int, sw: int,
    ph: int, pw: int, dh: int, dw: int, padded: bool, divisor: int, lo: int, hi: int,
) -> None:  # fmt: skip
    real = out.dtype.type
    for plane in range(lo, hi):
        xs = x[plane * h * w : (plane + 1) * h * w]
        for i in range(oh):
            top, bottom = _bounds(i, h, oh, kh, sh, ph)
            for j in range(ow):
                left, right = _bounds(j, w, ow, kw, sw, pw)
                count = (bottom - top) * (right - left)
                y0, y1, z0, z1 = max(top, 0), min(bottom, h), max(left, 0), min(right, w)
                if not padded:
                    count = (y1 - y0) * (z1 - z0)
                if divisor != 0:
                    count = divisor
                total = real(0)
                if z1 - z0 == w:
                    total = sum_of(xs[y0 * w : y1 * w])
                else:
                    for y in range(y0, y1):
                        for z in range(z0, z1):
                            total += xs[y * w + z]
                out[(plane * oh + i) * ow + j] = total / real(count)


def _average_back_body(
    out: Array, g: Array, h: int, w: int, oh: int, ow: int, kh: int, kw: int, sh: int, sw: int,
    ph: int, pw: int, dh: int, dw: int, padded: bool, divisor: int, lo: int, hi: int,
) -> None:  # fmt: skip
    real = out.dtype.type
    for plane in range(lo, hi):
        whole = out[plane * h * w : (plane + 1) * h * w]
        for k in range(h * w):
            whole[k] = 0
        for i in range(oh):
            top, bottom = _bounds(i, h, oh, kh, sh, ph)
            for j in range(ow):
                left, right = _bounds(j, w, ow, kw, sw, pw)
                count = (bottom - top) * (right - left)
                y0, y1, z0, z1 = max(top, 0), min(bottom, h), max(left, 0), min(right, w)
                if not padded:
                    count = (y1 - y0) * (z1 - z0)
                if divisor != 0:
                    count = divisor
                part = g[(plane * oh + i) * ow + j] / real(count)
                for y in range(y0, y1):
                    for z in range(z0, z1):
                        whole[y * w + z] += part


# --- ops -----------------------------------------------------------------------------------------


def _flat(*metas: TensorMeta) -> tuple[View, ...]:
    return tuple(View(m.dtype, (m.numel,)) for m in metas)


def _planes(meta: TensorMeta, n: int) -> tuple[int, int]:
    """How many planes of n dimensions, and their elements."""
    space = math.prod(meta.shape[-n:])
    return math.prod(meta.shape[:-n]), space


def _grain(space: int) -> int:
    return max(1, GRAIN // max(1, space))


@op(
    "input -> out, indices",
    name="max_pool",
    saves="indices",
    grad=lambda c, g, _: (
        _pool_scatter(g, c.saved[0], tuple(c.metas[0].shape[-c.attrs[1] :]))
        if g is not None
        else None,
    ),
)
def _max(input: TensorMeta, windows: _Windows, n: int) -> Launch:
    planes, space = _planes(input, n)
    size = (windows.oh, windows.ow)[-n:]
    out = input.with_shape((*input.shape[:-n], *size))
    indices = input.with_shape(out.shape, int64)
    views = _flat(out, indices, input)
    return Launch((out, indices), _max_body, views, tuple(windows), planes, _grain(space))


@op(
    "g, indices -> out",
    name="max_pool_backward",
    saves="indices",
    grad=lambda c, v: (_pool_gather(v, c.saved[0], len(c.attrs[0])), None),
)
def _pool_scatter(g: TensorMeta, indices: TensorMeta, size: tuple[int, ...]) -> Launch:
    """g added to the places that the indices name, in planes of `size`."""
    n = len(size)
    planes, places = _planes(g, n)
    out = g.with_shape((*g.shape[:-n], *size))
    space = math.prod(size)
    views = _flat(out, g, indices)
    return Launch((out,), _scatter_body, views, (space, places), planes, _grain(space))


@op(
    "input, indices -> out",
    name="max_pool_gather",
    saves="indices",
    grad=lambda c, g: (_pool_scatter(g, c.saved[0], tuple(c.metas[0].shape[-c.attrs[0] :])), None),
)
def _pool_gather(input: TensorMeta, indices: TensorMeta, n: int) -> Launch:
    planes, space = _planes(input, n)
    out = input.with_shape(indices.shape)
    places = math.prod(indices.shape[-n:])
    views = _flat(out, input, indices)
    return Launch((out,), _gather_body, views, (space, places), planes, _grain(space))


@op(
    "input -> out",
    name="avg_pool",
    grad=lambda c, g: (_average_back(g, tuple(c.metas[0].shape), *c.attrs),),
)
def _average(input: TensorMeta, windows: _Windows, n: int, padded: bool, divisor: int) -> Launch:
    if not input.dtype.is_floating_point:
        raise DTypeError(f"avg_pool needs a floating point input, got {input.dtype.name}")
    planes, space = _planes(input, n)
    size = (windows.oh, windows.ow)[-n:]
    out = input.with_shape((*input.shape[:-n], *size))
    consts = (*windows, padded, divisor)
    return Launch((out,), _average_body, _flat(out, input), consts, planes, _grain(space))


@op(
    "g -> out",
    name="avg_pool_backward",
    grad=lambda c, v: (_average(v, *c.attrs[1:]),),
)
def _average_back(
    g: TensorMeta, shape: tuple[int, ...], windows: _Windows, n: int, padded: bool, divisor: int
) -> Launch:
    out = g.with_shape(shape)
    planes, space = _planes(out, n)
    consts = (*windows, padded, divisor)
    return Launch((out,), _average_back_body, _flat(out, g), consts, planes, _grain(space))
