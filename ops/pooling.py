"""Pooling: the maximum or the average of windows, of fixed size or dividing the input evenly
(adaptive).

Inputs are planes (all leading dimensions together) of height and width; one dimension has height 1.
 Max pooling notes where each maximum is; its gradient adds to these places, and that one's gradient
 reads from them.  Average pooling is linear: it and
its gradient are each other's gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowvm.dtype import int64
from flowvm.errors import ArgumentError, DTypeError, ShapeError
from flowvm.meta import TensorMeta
from flowvm.ops.conv import _numbers
from flowvm.ops.registry import GRAIN, Launch, Sample, View, op, samples
from flowvm.ops.rows import sum_of
from flowvm.tensor import Tensor

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "avg_pool1d",
    "avg_pool2d",
    "max_pool1d",
    "max_pool2d",
]

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


# --- functions -----------------------------------------------------------------------------------


def _two(values: Sequence[int], filling: int) -> tuple[int, int]:
    return (filling, values[0]) if len(values) == 1 else (values[0], values[1])


def _check(name: str, n: int, input: Tensor) -> tuple[int, ...]:
    """The sizes of a plane."""
    if input._meta.ndim not in (n + 1, n + 2):
        raise ShapeError(
            f"{name}: input has {n + 2} dimensions (or {n + 1} without a batch), got shape "
            f"{tuple(input.shape)}"
        )
    return tuple(input._meta.shape[-n:])


def _windows(
    name: str, n: int, input: Tensor, kernel_size: Any, stride: Any, padding: Any, dilation: Any,
    ceil_mode: bool,
) -> _Windows:  # fmt: skip
    space = _check(name, n, input)
    kernel = _numbers(name, "kernel_size", kernel_size, n, 1)
    given = stride is not None and stride != ()
    steps = _numbers(name, "stride", stride, n, 1) if given else kernel
    pads = _numbers(name, "padding", padding, n, 0)
    gaps = _numbers(name, "dilation", dilation, n, 1)
    size = []
    for i, k, s, p, d in zip(space, kernel, steps, pads, gaps, strict=True):
        if 2 * p > (k - 1) * d + 1:
            raise ArgumentError(
                f"{name}: padding is at most half of the kernel, got padding {p} for kernel_size "
                f"{k}"
            )
        room = i + 2 * p - d * (k - 1) - 1
        count = (-(-room // s) if ceil_mode else room // s) + 1
        if ceil_mode and (count - 1) * s >= i + p:
            count -= 1  # a window must not start in the padding behind
        if room < 0 or count < 1:
            raise ShapeError(
                f"{name}: the kernel {kernel} is larger than the padded input of shape "
                f"{tuple(input.shape)}"
            )
        size.append(count)
    return _Windows(
        *_two(space, 1), *_two(size, 1), *_two(kernel, 1), *_two(steps, 1), *_two(pads, 0),
        *_two(gaps, 1),
    )  # fmt: skip


def _adaptive(name: str, n: int, input: Tensor, output_size: Any) -> _Windows:
    space = _check(name, n, input)
    if isinstance(output_size, int) or output_size is None:
        output_size = (output_size,) * n
    if len(output_size) != n:
        raise ArgumentError(f"{name}: output_size is an int or {n} of them, got {output_size!r}")
    size = tuple(i if o is None else o for i, o in zip(space, output_size, strict=True))
    if min(size) < 0 or (min(space) == 0 and max(size) > 0):
        raise ShapeError(
            f"{name}: output_size {size} cannot be had of input of shape {tuple(input.shape)}"
        )
    return _Windows(*_two(space, 1), *_two(size, 1), 0, 0, 1, 1, 0, 0, 1, 1)


def _pooled(input: Tensor, windows: _Windows, n: int, return_indices: bool) -> Any:
    out, indices = _max(input, windows, n)
    return (out, indices) if return_indices else out


def max_pool1d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The maximum of each window of (N, C, L) or (C, L); `stride` None is the kernel's size.

    The padding never wins.  With `return_indices`, also where in L each maximum is.
    """
    windows = _windows("max_pool1d", 1, input, kernel_size, stride, padding, dilation, ceil_mode)
    return _pooled(input, windows, 1, return_indices)


def max_pool2d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The maximum of each window of (N, C, H, W) or (C, H, W); `stride` None is the kernel's size.

    The padding never wins.  With `return_indices`, also where in the plane, row after row, each
    maximum is.
    """
    windows = _windows("max_pool2d", 2, input, kernel_size, stride, padding, dilation, ceil_mode)
    return _pooled(input, windows, 2, return_indices)


def adaptive_max_pool1d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """The maximum of each of `output_size` windows that cover (N, C, L) evenly."""
    return _pooled(
        input, _adaptive("adaptive_max_pool1d", 1, input, output_size), 1, return_indices
    )


def adaptive_max_pool2d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """The maximum of each of `output_size` (None: as many as the input) windows that cover (N, C,
    H, W) evenly.
    """
    return _pooled(
        input, _adaptive("adaptive_max_pool2d", 2, input, output_size), 2, return_indices
    )


def avg_pool1d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The average of each window of (N, C, L) or (C, L); `count_include_pad` counts the zeros of
    the padding.
    """
    windows = _windows("avg_pool1d", 1, input, kernel_size, stride, padding, 1, ceil_mode)
    out: Tensor = _average(input, windows, 1, bool(count_include_pad), 0)
    return out


def avg_pool2d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The average of each window of (N, C, H, W) or (C, H, W); `count_include_pad` counts the zeros
    of the padding.

    `divisor_override` divides the sums instead of the number of elements.
    """
    if divisor_override == 0:
        raise ArgumentError("avg_pool2d: divisor_override must not be 0")
    windows = _windows("avg_pool2d", 2, input, kernel_size, stride, padding, 1, ceil_mode)
    out: Tensor = _average(input, windows, 2, bool(count_include_pad), divisor_override or 0)
    return out


def adaptive_avg_pool1d(input: Tensor, output_size: Any) -> Tensor:
    """The average of each of `output_size` windows that cover (N, C, L) evenly."""
    windows = _adaptive("adaptive_avg_pool1d", 1, input, output_size)
    out: Tensor = _average(input, windows, 1, True, 0)
    return out


def adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    """The average of each of `output_size` (None: as many as the input) windows that cover (N, C,
    H, W) evenly.
    """
    windows = _adaptive("adaptive_avg_pool2d", 2, input, output_size)
    out: Tensor = _average(input, windows, 2, True, 0)
    return out


# --- samples
# ---------------------------------------------------------------------------------------


def _reference(
    fold: Callable[..., Any],
    x: Any,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
) -> Any:
    """Windows of a padded array over its last dimensions, folded; the padding is NaN."""
    n = len(kernel)
    pads = [(0, 0)] * (x.ndim - n) + [(p, p) for p in padding]
    x = np.pad(x, pads, constant_values=np.nan)
    axes = tuple(range(x.ndim - n, x.ndim))
    views = np.lib.stride_tricks.sliding_window_view(x, tuple(kernel), axes)
    steps = (slice(None),) * (x.ndim - n) + tuple(slice(None, None, s) for s in stride)
    return fold(views[steps], axis=tuple(range(-n, 0)))


def _adaptive_reference(fold: Callable[..., Any], x: Any, size: Sequence[int]) -> Any:
    for axis, o in zip(range(x.ndim - len(size), x.ndim), size, strict=True):
        n = x.shape[axis]
        parts = [
            fold(x.take(range(i * n // o, -(-(i + 1) * n // o)), axis), axis=axis, keepdims=True)
            for i in range(o)
        ]
        x = np.concatenate(parts, axis)
    return x


def _register() -> None:
    def distinct(rng: np.random.Generator, *shape: int) -> Any:
        return rng.permutation(math.prod(shape)).reshape(shape) * 0.37

    samples(
        max_pool1d,
        lambda rng: [
            Sample((distinct(rng, 2, 3, 5), 2)),
            Sample((distinct(rng, 2, 6), 3, 2, 1)),
        ],
        lambda x, k, s=None, p=0: _reference(np.nanmax, x, (k,), (s or k,), (p,)),
        errors=((lambda flow: flow.max_pool1d(flow.ones(1, 1, 3), 5), RuntimeError),),
    )
    samples(
        max_pool2d,
        lambda rng: [
            Sample((distinct(rng, 2, 1, 4, 5), 2)),
            Sample((distinct(rng, 1, 5, 4), (3, 2), (2, 1), (1, 0))),
        ],
        lambda x, k, s=None, p=(0, 0): _reference(
            np.nanmax, x, k if isinstance(k, tuple) else (k, k), s or (k, k), p
        ),
        errors=((lambda flow: flow.max_pool2d(flow.ones(1, 3, 3), 2, 1, 2), ValueError),),
    )
    samples(
        avg_pool1d,
        lambda rng: [
            Sample((rng.standard_normal((2, 3, 5)), 2)),
            Sample((rng.standard_normal((2, 6)), 3, 2, 1, False, False)),
        ],
        lambda x, k, s=None, p=0, _=False, __=True: _reference(
            np.nanmean, x, (k,), (s or k,), (p,)
        ),
    )
    samples(
        avg_pool2d,
        lambda rng: [
            Sample((rng.standard_normal((2, 1, 4, 5)), 2)),
            Sample((rng.standard_normal((1, 5, 4)), (3, 2), (2, 1), (1, 0), False, False)),
        ],
        lambda x, k, s=None, p=(0, 0), _=False, __=True: _reference(
            np.nanmean, x, k if isinstance(k, tuple) else (k, k), s or (k, k), p
        ),
    )

    def adaptive(function: Callable[..., Any], fold: Callable[..., Any], n: int) -> None:
        shape, size = (2, 1, 5, 4)[-n - 2 :], (3, 2)[:n]
        samples(
            function,
            lambda rng: [Sample((distinct(rng, *shape), size))],
            lambda x, size: _adaptive_reference(fold, x, size),
        )

    for function, fold, n in (
        (adaptive_avg_pool1d, np.mean, 1),
        (adaptive_avg_pool2d, np.mean, 2),
        (adaptive_max_pool1d, np.max, 1),
        (adaptive_max_pool2d, np.max, 2),
    ):
        adaptive(function, fold, n)


_register()
