"""Pooling: the maximum or the average of windows, of fixed size or dividing the input evenly."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.native.trace_cache import steady
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ShapeError
from flowvm.meta.dtype import int64
from flowvm.ops.declare.composite import need_tensor, whole
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.planes.conv import _numbers
from flowvm.ops.planes.cpu.pool_kernels import Windows
from flowvm.ops.planes.parts import integers
from flowvm.ops.planes.parts.plane_checks import windows_along
from flowvm.ops.planes.parts.pool_ops import _average, _max
from flowvm.ops.rows.reduce import mean

if TYPE_CHECKING:
    from flowvm.meta.arrays import Array


def _two(values: Sequence[int], filling: int) -> tuple[int, int]:
    return (filling, values[0]) if len(values) == 1 else (values[0], values[1])


def _check(name: str, n: int, input: Tensor) -> tuple[int, ...]:
    """The sizes of a plane."""
    need_tensor(name, "input", input)
    if input._meta.ndim not in (n + 1, n + 2):
        raise ShapeError(
            f"{name}: input has {n + 2} dimensions (or {n + 1} without a batch), got shape "
            f"{tuple(input.shape)}"
        )
    return tuple(input._meta.shape[-n:])


Sizes = tuple[Sequence[int], ...]


def window_sizes(
    name: str, n: int, input: Tensor, kernel_size: Any, stride: Any, padding: Any, dilation: Any,
    ceil_mode: bool,
) -> Sizes:  # fmt: skip
    """Return the sizes of input, output, kernel, stride, padding and dilation, if they fit."""
    space = _check(name, n, input)
    if 0 in input._meta.shape[-n - 1 :]:
        raise ShapeError(
            f"{name}: only the batch may have no elements, got input of shape {tuple(input.shape)}"
        )
    kernel = _numbers(name, "kernel_size", kernel_size, n, 1)
    has_stride = stride is not None and not (isinstance(stride, tuple) and stride == ())
    steps = _numbers(name, "stride", stride, n, 1) if has_stride else kernel
    pads = _numbers(name, "padding", padding, n, 0)
    gaps = _numbers(name, "dilation", dilation, n, 1)
    size = []
    for i, k, s, p, d in zip(space, kernel, steps, pads, gaps, strict=True):
        if 2 * p > (k - 1) * d + 1:
            raise ArgumentError(
                f"{name}: padding is at most half of the kernel, got padding {p} for kernel_size "
                f"{k}"
            )
        count = windows_along(i, k, s, p, d, ceil_mode)
        if count < 1:
            raise ShapeError(
                f"{name}: the kernel {kernel} is larger than the padded input of shape "
                f"{tuple(input.shape)}"
            )
        size.append(count)
    return space, size, kernel, steps, pads, gaps


def plane_windows(sizes: Sizes) -> Windows:
    """Windows of planes, or of lines, of these sizes."""
    space, size, kernel, steps, pads, gaps = sizes
    return Windows(
        *_two(space, 1), *_two(size, 1), *_two(kernel, 1), *_two(steps, 1), *_two(pads, 0),
        *_two(gaps, 1),
    )  # fmt: skip


def _windows(name: str, n: int, input: Tensor, *numbers: Any) -> Windows:
    return plane_windows(window_sizes(name, n, input, *numbers))


def adaptive_sizes(name: str, n: int, input: Tensor, output_size: object) -> Sizes:
    """Return the sizes of input and output, if they fit."""
    space = _check(name, n, input)
    if not isinstance(output_size, (tuple, list)):
        output_size = (output_size,) * n
    output_size = [o if o is None else whole(name, "output_size", o) for o in output_size]
    if len(output_size) != n:
        raise ArgumentError(f"{name}: output_size is an int or {n} of them, got {output_size!r}")
    size = tuple(i if o is None else o for i, o in zip(space, output_size, strict=True))
    if min(size) < 0 or (min(space) == 0 and max(size) > 0):
        raise ShapeError(
            f"{name}: output_size {size} cannot be had of input of shape {tuple(input.shape)}"
        )
    return space, size


def adaptive_windows(space: Sequence[int], size: Sequence[int]) -> Windows:
    """Windows that cover planes, or lines, evenly."""
    return Windows(*_two(space, 1), *_two(size, 1), 0, 0, 1, 1, 0, 0, 1, 1)


def _adaptive(
    name: str, n: int, input: Tensor, output_size: int | Sequence[int | None] | None
) -> Windows:
    return adaptive_windows(*adaptive_sizes(name, n, input, output_size))


def _averaged_evenly(name: str, n: int, input: Tensor, output_size: Any) -> Tensor:
    space, size = adaptive_sizes(name, n, input, output_size)
    if max(size) == 1 == min(size) and input._meta.dtype.is_floating_point:
        return mean(input, tuple(range(-n, 0)), True)  # its gradient moves nothing
    out: Tensor = _average(input, adaptive_windows(space, size), n, True, 0)
    return out


def _pooled(input: Tensor, windows: Windows, n: int, return_indices: bool) -> Any:
    out, indices = _max(input, windows, n)
    return (out, indices) if return_indices else out


# public: flow, F
@steady
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

    >>> flow.max_pool1d(flow.tensor([[[1.0, 3.0, 2.0, 0.0]]]), 2)
    tensor([[[3., 2.]]])
    """
    windows = _windows("max_pool1d", 1, input, kernel_size, stride, padding, dilation, ceil_mode)
    return _pooled(input, windows, 1, return_indices)


# public: flow, F
@steady
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

    >>> F.max_pool2d(flow.arange(16.0).view(1, 1, 4, 4), 2)
    tensor([[[[ 5.,  7.],
              [13., 15.]]]])
    """
    windows = _windows("max_pool2d", 2, input, kernel_size, stride, padding, dilation, ceil_mode)
    return _pooled(input, windows, 2, return_indices)


# public: flow, F
@steady
def adaptive_max_pool1d(
    input: Tensor, output_size: int | Sequence[int | None] | None, return_indices: bool = False
) -> Any:
    """The maximum of each of `output_size` windows that cover (N, C, L) evenly.

    >>> flow.adaptive_max_pool1d(flow.tensor([[[1.0, 3.0, 5.0, 7.0]]]), 2)
    tensor([[[3., 7.]]])
    """
    return _pooled(
        input, _adaptive("adaptive_max_pool1d", 1, input, output_size), 1, return_indices
    )


# public: flow, F
@steady
def adaptive_max_pool2d(
    input: Tensor, output_size: int | Sequence[int | None] | None, return_indices: bool = False
) -> Any:
    """The maximum of each of `output_size` (None: as many as the input) windows that cover (N, C,
    H, W) evenly.

    >>> F.adaptive_max_pool2d(flow.arange(16.0).view(1, 1, 4, 4), 2)
    tensor([[[[ 5.,  7.],
              [13., 15.]]]])
    """
    return _pooled(
        input, _adaptive("adaptive_max_pool2d", 2, input, output_size), 2, return_indices
    )


def _averaged(input: Tensor, sizes: Sizes, padded: bool, divisor: int) -> Tensor:
    if input._meta.dtype is int64:
        return integers.averaged(input, sizes, bool(padded), divisor)
    out: Tensor = _average(input, plane_windows(sizes), len(sizes[0]), bool(padded), divisor)
    return out


# public: flow, F
@steady
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

    >>> flow.avg_pool1d(flow.tensor([[[1.0, 3.0, 5.0, 7.0]]]), 2)
    tensor([[[2., 6.]]])
    """
    sizes = window_sizes("avg_pool1d", 1, input, kernel_size, stride, padding, 1, ceil_mode)
    return _averaged(input, sizes, count_include_pad, 0)


# public: flow, F
@with_out
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

    >>> F.avg_pool2d(flow.arange(16.0).view(1, 1, 4, 4), 2)
    tensor([[[[ 2.5000,  4.5000],
              [10.5000, 12.5000]]]])
    """
    if divisor_override == 0:
        raise ArgumentError("avg_pool2d: divisor_override must not be 0")
    sizes = window_sizes("avg_pool2d", 2, input, kernel_size, stride, padding, 1, ceil_mode)
    return _averaged(input, sizes, count_include_pad, divisor_override or 0)


# public: flow, F
@steady
def adaptive_avg_pool1d(input: Tensor, output_size: int | Sequence[int | None] | None) -> Tensor:
    """The average of each of `output_size` windows that cover (N, C, L) evenly.

    >>> flow.adaptive_avg_pool1d(flow.tensor([[[1.0, 3.0, 5.0, 7.0]]]), 2)
    tensor([[[2., 6.]]])
    """
    return _averaged_evenly("adaptive_avg_pool1d", 1, input, output_size)


# public: flow, F
@steady
def adaptive_avg_pool2d(input: Tensor, output_size: int | Sequence[int | None] | None) -> Tensor:
    """The average of each of `output_size` (None: as many as the input) windows that cover (N, C,
    H, W) evenly.

    >>> F.adaptive_avg_pool2d(flow.arange(16.0).view(1, 1, 4, 4), (2, None)).shape
    flow.Size([1, 1, 2, 4])
    """
    return _averaged_evenly("adaptive_avg_pool2d", 2, input, output_size)


# --- samples
# ---------------------------------------------------------------------------------------


def reference(
    fold: Callable[..., Any],
    x: Array,
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


def adaptive_reference(fold: Callable[..., Any], x: Array, size: Sequence[int]) -> Any:
    for axis, o in zip(range(x.ndim - len(size), x.ndim), size, strict=True):
        n = x.shape[axis]
        parts = [
            fold(x.take(range(i * n // o, -(-(i + 1) * n // o)), axis), axis=axis, keepdims=True)
            for i in range(o)
        ]
        x = np.concatenate(parts, axis)
    return x


def _register() -> None:
    def distinct(rng: np.random.Generator, *shape: int) -> Array:
        return rng.permutation(math.prod(shape)).reshape(shape) * 0.37

    samples(
        max_pool1d,
        lambda rng: [Sample((distinct(rng, 2, 3, 5), 2)), Sample((distinct(rng, 2, 6), 3, 2, 1))],
        lambda x, k, s=None, p=0: reference(np.nanmax, x, (k,), (s or k,), (p,)),
        errors=((lambda flow: flow.max_pool1d(flow.ones(1, 1, 3), 5), RuntimeError),),
    )
    samples(
        max_pool2d,
        lambda rng: [
            Sample((distinct(rng, 2, 1, 4, 5), 2)),
            Sample((distinct(rng, 1, 5, 4), (3, 2), (2, 1), (1, 0))),
        ],
        lambda x, k, s=None, p=(0, 0): reference(
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
        lambda x, k, s=None, p=0, _=False, __=True: reference(np.nanmean, x, (k,), (s or k,), (p,)),
    )
    samples(
        avg_pool2d,
        lambda rng: [
            Sample((rng.standard_normal((2, 1, 4, 5)), 2)),
            Sample((rng.standard_normal((1, 5, 4)), (3, 2), (2, 1), (1, 0), False, False)),
        ],
        lambda x, k, s=None, p=(0, 0), _=False, __=True: reference(
            np.nanmean, x, k if isinstance(k, tuple) else (k, k), s or (k, k), p
        ),
    )

    def adaptive(function: Callable[..., object], fold: Callable[..., object], n: int) -> None:
        shape, size = (2, 1, 5, 4)[-n - 2 :], (3, 2)[:n]
        samples(
            function,
            lambda rng: [Sample((distinct(rng, *shape), size))],
            lambda x, size: adaptive_reference(fold, x, size),
        )

    for function, fold, n in (
        (adaptive_avg_pool1d, np.mean, 1),
        (adaptive_avg_pool2d, np.mean, 2),
        (adaptive_max_pool1d, np.max, 1),
        (adaptive_max_pool2d, np.max, 2),
    ):
        adaptive(function, fold, n)


_register()
