"""Pooling in three dimensions: first the planes, then along the depth.

The maximum of maxima is the maximum, and the first of equal ones stays the first; an average is the
average of the planes' averages, since the part of a window that counts is a box.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError
from flowvm.meta.dtype import int64
from flowvm.ops.declare.halves import in_float32
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.places.gather import gather
from flowvm.ops.planes.cpu.pool_kernels import Windows
from flowvm.ops.planes.parts import integers
from flowvm.ops.planes.parts.pool_ops import _average, _max
from flowvm.ops.planes.pooling import (
    Sizes,
    adaptive_reference,
    adaptive_sizes,
    adaptive_windows,
    plane_windows,
    reference,
    window_sizes,
)

# public: flow, F


def _parts(sizes: Sizes) -> tuple[Windows, Windows]:
    """Windows of the planes, and of the depths of all their places."""
    planes = plane_windows(tuple(values[1:] for values in sizes))
    (space, size, *ways), places = sizes, planes.oh * planes.ow
    lone = [(values[0], other) for values, other in zip(ways, (1, 1, 0, 1), strict=True)]
    return planes, plane_windows(((space[0], places), (size[0], places), *lone))


def _adaptive_parts(space: Sequence[int], size: Sequence[int]) -> tuple[Windows, Windows]:
    places = math.prod(size[1:])
    planes = adaptive_windows(space[1:], size[1:])
    return planes, adaptive_windows((space[0], places), (size[0], places))


def _deep(x: Tensor) -> Tensor:
    """(..., D, H, W) as (..., D, H * W)."""
    shape = tuple(x._meta.shape)
    out: Tensor = x.reshape((*shape[:-2], shape[-2] * shape[-1]))
    return out


def _largest(input: Tensor, parts: tuple[Windows, Windows], return_indices: bool) -> Any:
    planes, depths = parts
    flat, where = _max(input, planes, 2)
    out, level = _max(_deep(flat), depths, 2)
    shape = (*input._meta.shape[:-3], depths.oh, planes.oh, planes.ow)
    out = out.reshape(shape)
    if not return_indices:
        return out
    lead = tuple(input._meta.shape[:-3])
    level = level.reshape((*lead, -1))
    inside = gather(where.reshape((*lead, -1)), -1, level)
    places = max(1, planes.oh * planes.ow)
    indices = inside + level.div(places, rounding_mode="floor") * (planes.h * planes.w)
    return out, indices.reshape(shape)


def _mean(input: Tensor, parts: tuple[Windows, Windows], padded: bool, divisor: int) -> Tensor:
    planes, depths = parts
    flat = _average(input, planes, 2, padded, 1 if divisor else 0)
    out = _average(_deep(flat), depths, 2, padded, divisor)
    shape = (*input._meta.shape[:-3], depths.oh, planes.oh, planes.ow)
    deep: Tensor = out.reshape(shape)
    return deep


def max_pool3d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The maximum of each window of (N, C, D, H, W) or (C, D, H, W); `stride` None is the kernel's
    size.

    The padding never wins.  With `return_indices`, also where in (D, H, W), flattened, each maximum
    is.

    >>> F.max_pool3d(flow.arange(8.0).view(1, 1, 2, 2, 2), 2).item()
    7.0
    """
    sizes = window_sizes("max_pool3d", 3, input, kernel_size, stride, padding, dilation, ceil_mode)
    return _largest(input, _parts(sizes), return_indices)


@with_out
@in_float32
def avg_pool3d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The average of each window of (N, C, D, H, W) or (C, D, H, W); `count_include_pad` counts the
    zeros of the padding.

    `divisor_override` divides the sums instead of the number of elements.

    >>> F.avg_pool3d(flow.arange(8.0).view(1, 1, 2, 2, 2), 2).item()
    3.5
    """
    if divisor_override == 0:
        raise ArgumentError("avg_pool3d: divisor_override must not be 0")
    sizes = window_sizes("avg_pool3d", 3, input, kernel_size, stride, padding, 1, ceil_mode)
    if input._meta.dtype is int64:
        return integers.averaged(input, sizes, bool(count_include_pad), divisor_override or 0)
    return _mean(input, _parts(sizes), bool(count_include_pad), divisor_override or 0)


def adaptive_max_pool3d(
    input: Tensor, output_size: int | Sequence[int | None] | None, return_indices: bool = False
) -> Any:
    """The maximum of each of `output_size` (None: as many as the input) windows that cover (N, C,
    D, H, W) evenly.

    >>> F.adaptive_max_pool3d(flow.arange(8.0).view(1, 1, 2, 2, 2), 1).item()
    7.0
    """
    sizes = adaptive_sizes("adaptive_max_pool3d", 3, input, output_size)
    return _largest(input, _adaptive_parts(*sizes), return_indices)


@in_float32
def adaptive_avg_pool3d(input: Tensor, output_size: int | Sequence[int | None] | None) -> Tensor:
    """The average of each of `output_size` (None: as many as the input) windows that cover (N, C,
    D, H, W) evenly.

    >>> F.adaptive_avg_pool3d(flow.ones(1, 2, 4, 4, 4), 1).flatten()
    tensor([1., 1.])
    """
    sizes = adaptive_sizes("adaptive_avg_pool3d", 3, input, output_size)
    return _mean(input, _adaptive_parts(*sizes), True, 0)


# --- samples ------------------------------------------------------------------------------------


def _register() -> None:
    def distinct(rng: np.random.Generator, *shape: int) -> object:
        return rng.permutation(math.prod(shape)).reshape(shape) * 0.37

    samples(
        max_pool3d,
        lambda rng: [
            Sample((distinct(rng, 1, 2, 2, 3, 4), 2)),
            Sample((distinct(rng, 1, 4, 3, 3), (3, 2, 2), (2, 1, 1), (1, 0, 1))),
        ],
        lambda x, k, s=None, p=(0, 0, 0): reference(
            np.nanmax, x, k if isinstance(k, tuple) else (k,) * 3, s or (k,) * 3, p
        ),
        errors=((lambda flow: flow.max_pool3d(flow.ones(1, 3, 3), 2), RuntimeError),),
    )
    samples(
        avg_pool3d,
        lambda rng: [
            Sample((rng.standard_normal((1, 2, 3, 2, 4)), 2)),
            Sample((rng.standard_normal((1, 4, 3, 2)), (3, 2, 2), (2, 1, 1), 1, False, False)),
        ],
        lambda x, k, s=None, p=0, _=False, __=True: reference(
            np.nanmean, x, k if isinstance(k, tuple) else (k,) * 3, s or (k,) * 3, (p,) * 3
        ),
        errors=(
            (
                lambda flow: flow.avg_pool3d(flow.ones(1, 2, 2, 2), 2, divisor_override=0),
                ValueError,
            ),
        ),
    )
    for function, fold in ((adaptive_avg_pool3d, np.mean), (adaptive_max_pool3d, np.max)):
        samples(
            function,
            lambda rng: [Sample((distinct(rng, 1, 2, 3, 5, 4), (2, 3, 4)))],
            lambda x, size, fold=fold: adaptive_reference(fold, x, size),
        )


_register()
