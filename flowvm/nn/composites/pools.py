"""Pooling by norm, by windows that are drawn, and back to where maxima were."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, DTypeError, ShapeError
from flowvm.meta.dtype import int64
from flowvm.ops.declare.halves import in_float32

# public: F

Ints = int | Sequence[int]

# --- by norm ------------------------------------------------------------------------------------


def _each(value: Any, n: int) -> tuple[Any, ...]:
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return values * n if len(values) == 1 else values


def _stride_or_none(stride: object) -> Any:
    return None if isinstance(stride, (tuple, list)) and not stride else stride


def _by_norm(
    pool: Any, n: int, input: Tensor, norm_type: float, kernel_size: Ints, stride: Any,
    ceil_mode: bool,
) -> Tensor:  # fmt: skip
    sums = pool(input**norm_type, kernel_size, _stride_or_none(stride), 0, ceil_mode)
    # a sum of odd powers below 0 has no root: as in PyTorch it counts as 0
    positive = ops.sign(sums) * ops.relu(ops.abs(sums)) * math.prod(_each(kernel_size, n))
    out: Tensor = positive ** (1.0 / norm_type)
    return out


@in_float32
def lp_pool1d(
    input: Tensor,
    norm_type: float,
    kernel_size: int,
    stride: Ints | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """(sum of x ** norm_type) ** (1 / norm_type) over windows of (N, C, L) or (C, L).

    >>> F.lp_pool1d(flow.tensor([[[3.0, 4.0]]]), 2, 2)
    tensor([[[5.]]])
    """
    return _by_norm(ops.avg_pool1d, 1, input, norm_type, kernel_size, stride, ceil_mode)


@in_float32
def lp_pool2d(
    input: Tensor,
    norm_type: float,
    kernel_size: Ints,
    stride: Ints | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """lp_pool1d over windows of (N, C, H, W) or (C, H, W).

    >>> F.lp_pool2d(flow.tensor([[[[3.0, 4.0]]]]), 2, (1, 2))
    tensor([[[[5.]]]])
    """
    return _by_norm(ops.avg_pool2d, 2, input, norm_type, kernel_size, stride, ceil_mode)


@in_float32
def lp_pool3d(
    input: Tensor,
    norm_type: float,
    kernel_size: Ints,
    stride: Ints | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """lp_pool1d over windows of (N, C, D, H, W) or (C, D, H, W).

    >>> F.lp_pool3d(flow.tensor([[[[[3.0, 4.0]]]]]), 2, (1, 1, 2)).item()
    5.0
    """
    return _by_norm(ops.avg_pool3d, 3, input, norm_type, kernel_size, stride, ceil_mode)


# --- maxima and where they are ------------------------------------------------------------------


def _indexed(pool: Any, name: str, what: str) -> Any:
    def pooled(input: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        kwargs.pop("return_indices", None)
        pair: tuple[Tensor, Tensor] = pool(input, *args, **kwargs, return_indices=True)
        return pair

    pooled.__name__ = pooled.__qualname__ = name
    pooled.__doc__ = f"`{what}` with return_indices=True: (maxima, where they are)."
    return pooled


# public: flow (late, unlisted), F
max_pool1d_with_indices = _indexed(ops.max_pool1d, "max_pool1d_with_indices", "max_pool1d")
max_pool2d_with_indices = _indexed(ops.max_pool2d, "max_pool2d_with_indices", "max_pool2d")
max_pool3d_with_indices = _indexed(ops.max_pool3d, "max_pool3d_with_indices", "max_pool3d")
adaptive_max_pool1d_with_indices = _indexed(
    ops.adaptive_max_pool1d, "adaptive_max_pool1d_with_indices", "adaptive_max_pool1d"
)
adaptive_max_pool2d_with_indices = _indexed(
    ops.adaptive_max_pool2d, "adaptive_max_pool2d_with_indices", "adaptive_max_pool2d"
)
adaptive_max_pool3d_with_indices = _indexed(
    ops.adaptive_max_pool3d, "adaptive_max_pool3d_with_indices", "adaptive_max_pool3d"
)


def _unpool(
    name: str, n: int, input: Tensor, indices: Tensor, kernel_size: Any, stride: Any, padding: Any,
    output_size: Sequence[int] | None,
) -> Tensor:  # fmt: skip
    if indices.dtype is not int64:
        raise DTypeError(f"{name}: indices are int64, got {indices.dtype.name}")
    if tuple(indices.shape) != tuple(input.shape) or input.ndim not in (n + 1, n + 2):
        raise ShapeError(
            f"{name}: input of {n + 1} or {n + 2} dimensions and indices of its shape, got "
            f"{tuple(input.shape)} and {tuple(indices.shape)}"
        )
    kernel = _each(kernel_size, n)
    steps = kernel if _stride_or_none(stride) is None else _each(stride, n)
    pads = _each(padding, n)
    usual = [
        (i - 1) * s + k - 2 * p
        for (i, s), k, p in zip(
            zip(input.shape[-n:], steps, strict=True), kernel, pads, strict=True
        )
    ]
    size = usual if output_size is None else list(output_size)[-n:]
    if output_size is not None and len(output_size) not in (n, input.ndim):
        raise ArgumentError(
            f"{name}: output_size has {n} or {input.ndim} numbers, got {tuple(output_size)}"
        )
    for o, u, s in zip(size, usual, steps, strict=True):
        if not u - s < o < u + s:
            raise ArgumentError(
                f"{name}: output_size {tuple(size)} is not within the strides {tuple(steps)} of "
                f"{tuple(usual)}"
            )
    lead = tuple(input.shape[:-n])
    space = math.prod(size)
    flat = ops.zeros((*lead, space), dtype=input.dtype, device=input.device)
    places = math.prod(input.shape[-n:])
    spread = ops.scatter(flat, -1, indices.reshape((*lead, places)), input.reshape((*lead, places)))
    return ops.reshape(spread, (*lead, *size))


def max_unpool1d(
    input: Tensor, indices: Tensor, kernel_size: Ints, stride: Ints | None = None,
    padding: Ints = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """Maxima back to where `max_pool1d` with return_indices found them; 0 elsewhere.

    output_size  which of the sizes that pool to the input's; without it the smallest whole one
    OutOfRangeError when the result is read, for an index outside of it.

    >>> pooled, places = F.max_pool1d(flow.tensor([[[1.0, 3.0, 2.0, 0.0]]]), 2, return_indices=True)
    >>> F.max_unpool1d(pooled, places, 2)
    tensor([[[0., 3., 2., 0.]]])
    """
    return _unpool("max_unpool1d", 1, input, indices, kernel_size, stride, padding, output_size)


def max_unpool2d(
    input: Tensor, indices: Tensor, kernel_size: Ints, stride: Ints | None = None,
    padding: Ints = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """max_unpool1d for `max_pool2d`.

    >>> x = flow.tensor([[[[1.0, 3.0], [2.0, 0.0]]]])
    >>> pooled, places = F.max_pool2d(x, 2, return_indices=True)
    >>> F.max_unpool2d(pooled, places, 2)
    tensor([[[[0., 3.],
              [0., 0.]]]])
    """
    return _unpool("max_unpool2d", 2, input, indices, kernel_size, stride, padding, output_size)


def max_unpool3d(
    input: Tensor, indices: Tensor, kernel_size: Ints, stride: Ints | None = None,
    padding: Ints = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """max_unpool1d for `max_pool3d`.

    >>> pooled, places = F.max_pool3d(flow.arange(8.0).view(1, 1, 2, 2, 2), 2, return_indices=True)
    >>> F.max_unpool3d(pooled, places, 2).flatten()
    tensor([0., 0., 0., 0., 0., 0., 0., 7.])
    """
    return _unpool("max_unpool3d", 3, input, indices, kernel_size, stride, padding, output_size)


# --- windows that are drawn ---------------------------------------------------------------------


def _starts(sample: Tensor, size: int, out: int, kernel: int) -> Tensor:
    """Return the first index of each window, (..., out), for samples between 0 and 1 of any shape;
    the last window ends where the input ends (Graham, 2014).
    """
    last = size - kernel
    if out == 1:
        return ops.full((*sample.shape, 1), last, dtype=int64, device=sample.device)
    alpha = last / (out - 1)
    steps = ops.arange(out - 1, dtype=sample.dtype, device=sample.device)
    u = sample.unsqueeze(-1)
    first = ((steps + u) * alpha).to(int64) - (u * alpha).to(int64)
    end = ops.full((*sample.shape, 1), last, dtype=int64, device=sample.device)
    out_: Tensor = ops.cat([first, end], -1)
    return out_


def _fractional(
    name: str, n: int, input: Tensor, kernel_size: Any, output_size: Any, output_ratio: Any,
    samples: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    if (output_size is None) == (output_ratio is None):
        raise ArgumentError(f"{name}: either output_size or output_ratio is given, and not both")
    if input.ndim not in (n + 1, n + 2):
        raise ShapeError(
            f"{name}: input has {n + 1} or {n + 2} dimensions, got shape {tuple(input.shape)}"
        )
    x = input if input.ndim == n + 2 else input.unsqueeze(0)
    lead, space = tuple(x.shape[:2]), tuple(x.shape[2:])
    kernel = _each(kernel_size, n)
    if output_size is not None:
        size = _each(output_size, n)
    else:
        ratios = _each(output_ratio, n)
        if not all(0 < r < 1 for r in ratios):
            raise ArgumentError(f"{name}: output_ratio is between 0 and 1, got {output_ratio}")
        size = tuple(int(i * r) for i, r in zip(space, ratios, strict=True))
    for i, o, k in zip(space, size, kernel, strict=True):
        if o < 1 or o + k - 1 > i:
            raise ShapeError(
                f"{name}: windows of {kernel} do not fit {size} times into input of shape "
                f"{tuple(input.shape)}"
            )
    if samples is None:
        samples = ops.rand((*lead, n), dtype=input.dtype, device=input.device)
    elif samples.ndim != 3 or samples.shape[0] < lead[0] or samples.shape[1:] != (lead[1], n):
        raise ShapeError(
            f"{name}: _random_samples has shape {(*lead, n)}, got {tuple(samples.shape)}"
        )
    samples = samples[: lead[0]]
    places: Tensor | None = None
    for d in range(n):
        # as in PyTorch the width's sample comes first, but in three dimensions the depth's
        drawn = samples[..., 1 - d if n == 2 else d]
        starts = _starts(drawn, space[d], size[d], kernel[d])
        taps = ops.arange(kernel[d], dtype=int64, device=x.device)
        reached = starts.unsqueeze(-1) + taps  # (N, C, out, k)
        if places is None:
            places = reached
            continue
        grid = places.reshape((*lead, places.shape[2], 1, places.shape[3], 1)) * space[d]
        own = reached.reshape((*lead, 1, size[d], 1, kernel[d]))
        both = grid + own
        places = both.reshape((*lead, places.shape[2] * size[d], places.shape[3] * kernel[d]))
    assert places is not None
    flat = x.reshape((*lead, math.prod(space)))
    windows = ops.gather(flat.detach(), -1, places.flatten(2)).reshape(places.shape)
    best = ops.argmax(windows, -1, keepdim=True)
    indices = ops.gather(places, -1, best).squeeze(-1)
    out = ops.gather(flat, -1, indices)
    shape = (*lead, *size) if x is input else (*lead[1:], *size)
    return out.reshape(shape), indices.reshape(shape)


def fractional_max_pool2d(
    input: Tensor, kernel_size: Ints, output_size: Ints | None = None,
    output_ratio: float | Sequence[float] | None = None,
    return_indices: bool = False, _random_samples: Tensor | None = None,
) -> Any:  # fmt: skip
    """Maxima of windows of (N, C, H, W) or (C, H, W), `output_size` of them, or the input's size
    times `output_ratio`, at places that are drawn for each plane (Graham, 2014).

    _random_samples  (N, C, 2), between 0 and 1: what is drawn, the width's first

    >>> F.fractional_max_pool2d(flow.ones(1, 1, 6, 6), 2, output_size=4).shape
    flow.Size([1, 1, 4, 4])
    """
    out = _fractional(
        "fractional_max_pool2d", 2, input, kernel_size, output_size, output_ratio, _random_samples
    )
    return out if return_indices else out[0]


def fractional_max_pool3d(
    input: Tensor, kernel_size: Ints, output_size: Ints | None = None,
    output_ratio: float | Sequence[float] | None = None,
    return_indices: bool = False, _random_samples: Tensor | None = None,
) -> Any:  # fmt: skip
    """fractional_max_pool2d for (N, C, D, H, W) or (C, D, H, W).

    _random_samples  (N, C, 3), the depth's first

    >>> F.fractional_max_pool3d(flow.ones(1, 1, 6, 6, 6), 2, output_ratio=0.5).shape
    flow.Size([1, 1, 3, 3, 3])
    """
    out = _fractional(
        "fractional_max_pool3d", 3, input, kernel_size, output_size, output_ratio, _random_samples
    )
    return out if return_indices else out[0]


fractional_max_pool2d_with_indices = _indexed(
    fractional_max_pool2d, "fractional_max_pool2d_with_indices", "fractional_max_pool2d"
)
fractional_max_pool3d_with_indices = _indexed(
    fractional_max_pool3d, "fractional_max_pool3d_with_indices", "fractional_max_pool3d"
)
