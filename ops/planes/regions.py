"""Regions of images, averaged over an equal number of bins each: `roi_align`.

One instruction forward and one backward (`region_kernels`).  Which image a region is of is data:
what lies outside is found by the kernel.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from flowvm.eager.autocast import widened
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, DTypeError, InvalidValueError, ShapeError, declare_status
from flowvm.launch import ARENA_BYTES, GRAIN, Launch
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.composite import need_tensor, whole
from flowvm.ops.declare.letters import unsplit
from flowvm.ops.declare.registry import Sample, op, samples
from flowvm.ops.planes.cpu.region_kernels import (
    NO_REGION,
    Regions,
    align_back_body,
    align_body,
    arena_bytes,
)
from flowvm.ops.planes.parts import plane_checks
from flowvm.ops.shapes.ranges import number_of
from flowvm.vm.callers.hot import hot

if TYPE_CHECKING:
    from flowvm.meta.arrays import Array


BLOCK = 8  # channels for which backward makes a region's weights once
MOST = 1 << 31  # points of a bin along a dimension
declare_status(
    NO_REGION,
    InvalidValueError,
    "roi_align: number {1} of region {0} is not finite, or farther than 2**31 elements away",
)


def _arena(size: tuple[int, ...], bins: tuple[int, ...], itemsize: int) -> int:
    """The bytes that a thread needs, or an error where that are more than it has."""
    bytes_ = arena_bytes((size[0], size[1]), (bins[0], bins[1]), itemsize)
    if bytes_ > ARENA_BYTES:
        raise ShapeError(
            f"roi_align: planes of {size[0]} x {size[1]} in {bins[0]} x {bins[1]} bins are too "
            f"large: height, twice the width and 4 to 6 for each bin may be "
            f"{ARENA_BYTES // itemsize} together; cut the planes"
        )
    return bytes_


@op(
    "x, rois -> out",
    name="roi_align",
    saves="rois",
    grad=lambda c, g: (_back(g, c.saved[0], c.metas[0].shape, *c.attrs[1:]), None),
    letters=unsplit,
    takes=plane_checks.roi_align,
)
def _align(x: TensorMeta, rois: TensorMeta, size: tuple[int, int], regions: Regions) -> Launch:
    channels, (h, w), n = x.shape[1], x.shape[2:], rois.shape[0]
    out = x.with_shape((n, channels, *size))
    arena = _arena((h, w), size, x.dtype.itemsize)
    work = math.prod(size) * 8 + h * w // 4  # guessed: where regions lie is data
    return Launch(
        (out,), align_body, consts=(regions,), units=n * channels,
        grain=max(1, GRAIN // max(1, work)), arena=arena,
    )  # fmt: skip


@op(
    "g, rois -> out",
    name="roi_align_backward",
    saves="rois",
    grad=lambda c, v: (
        _align(v, c.saved[0], tuple(c.metas[0].shape[2:]), c.attrs[1]), None
    ), letters=unsplit, takes=plane_checks.roi_align_backward,
)  # fmt: skip
def _back(g: TensorMeta, rois: TensorMeta, shape: tuple[int, ...], regions: Regions) -> Launch:
    n, channels, h, w = shape
    size = (g.shape[2], g.shape[3])
    arena = _arena((h, w), size, g.dtype.itemsize)
    return Launch(
        (g.with_shape(tuple(shape)),), align_back_body, consts=(regions, BLOCK),
        units=n * -(-channels // BLOCK), arena=arena,
    )  # fmt: skip


# public: flow (late)
def roi_align(
    x: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_h: int,
    pooled_w: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    """Regions of images, each averaged over pooled_h by pooled_w bins (He et al., Mask R-CNN,
    2017): (K, C, pooled_h, pooled_w).

    x               (N, C, H, W), floats
    rois            (K, 5), of the same dtype: the number of an image, cut to an integer, and left,
                    top, right and bottom of a region of it
    spatial_scale   elements of x for a unit of the regions
    sampling_ratio  a bin is the mean of so many points in each dimension, which lie evenly and are
                    read between the four elements around; 0 or less: as many as the bin is long,
                    rounded up
    aligned         coordinates are those of elements' corners; False: of their middles, and a
                    region is at least one element long

    A point farther than an element outside of the image counts as 0.  Gradients are those by x.
    OutOfRangeError when the result is read, for an image that there is not; InvalidValueError for
    coordinates that are not finite, or beyond 2**31.

    >>> x = flow.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    >>> rois = flow.tensor([[0.0, 0.0, 0.0, 2.0, 2.0]])  # all of it
    >>> flow.roi_align(x, rois, 1.0, 1, 2, 2, True)
    tensor([[[[2.1250, 2.8750]]]])
    """
    if hot["autocast"]:
        x, rois = widened(x, rois)
    image = need_tensor("roi_align", "x", x)._meta
    region = need_tensor("roi_align", "rois", rois)._meta
    if image.ndim != 4 or region.ndim != 2 or region.shape[1] != 5:
        raise ShapeError(
            f"roi_align: x is (N, C, H, W) and rois are (K, 5), got {tuple(image.shape)} and "
            f"{tuple(region.shape)}"
        )
    if 0 in image.shape[2:]:
        raise ShapeError(f"roi_align: x of shape {tuple(image.shape)} has no elements to read")
    if not image.dtype.is_floating_point or region.dtype is not image.dtype:
        raise DTypeError(
            f"roi_align: x and rois have one floating point dtype, got {image.dtype.name} and "
            f"{region.dtype.name}"
        )
    size = (whole("roi_align", "pooled_h", pooled_h), whole("roi_align", "pooled_w", pooled_w))
    if min(size) < 1:
        raise ArgumentError(f"roi_align: pooled_h and pooled_w are at least 1, got {size}")
    scale = float(number_of("roi_align: spatial_scale", spatial_scale))
    if not math.isfinite(scale):
        raise ArgumentError(f"roi_align: spatial_scale is finite, got {scale}")
    ratio = max(0, whole("roi_align", "sampling_ratio", sampling_ratio))
    if ratio >= MOST:
        raise ArgumentError(f"roi_align: sampling_ratio is below {MOST}, got {ratio}")
    out: Tensor = _align(x, rois, size, Regions(scale, ratio, int(bool(aligned))))
    return out


# --- samples ------------------------------------------------------------------------------------


def _between(plane: Array, y: float, x: float) -> float:
    h, w = plane.shape[-2:]
    if not (-1 <= y <= h and -1 <= x <= w):
        return 0.0
    y, x = min(max(y, 0.0), h - 1), min(max(x, 0.0), w - 1)
    total = 0.0
    for j in {int(y), min(int(y) + 1, h - 1)}:
        for i in {int(x), min(int(x) + 1, w - 1)}:
            total = total + (1 - abs(y - j)) * (1 - abs(x - i)) * plane[..., j, i]
    return total


def _reference(
    x: Array, rois: Array, scale: float, ph: int, pw: int, ratio: int, aligned: bool
) -> Array:
    """Bin by bin and point by point."""
    out = np.zeros((len(rois), x.shape[1], ph, pw))
    for (r, i, j), _ in np.ndenumerate(out[:, 0]):
        left, top, right, bottom = rois[r, 1:] * scale - (0.5 if aligned else 0.0)
        width, height = right - left, bottom - top
        if not aligned:
            width, height = max(width, 1.0), max(height, 1.0)
        down, along = height / ph, width / pw
        ny, nx = (ratio, ratio) if ratio > 0 else (math.ceil(down), math.ceil(along))
        for a, b in np.ndindex(max(ny, 0), max(nx, 0)):
            y, at = top + (i + (a + 0.5) / ny) * down, left + (j + (b + 0.5) / nx) * along
            out[r, :, i, j] += _between(x[int(rois[r, 0])], y, at) / (ny * nx)
    return out


def _regions(rng: np.random.Generator, n: int, images: int, size: float) -> Array:
    """Return random regions in eighths of a unit: exact in every dtype, some partly outside."""
    low = rng.integers(-16, int(size * 8), (n, 2)) / 8 + 1 / 16
    ends = low + rng.integers(1, int(size * 8), (n, 2)) / 8
    return np.concatenate([rng.integers(0, images, (n, 1)), low, ends], 1)


samples(
    roi_align,
    lambda rng: [
        Sample((rng.standard_normal((2, 3, 7, 6)), _regions(rng, 5, 2, 6), 1.0, 2, 3, 2, True)),
        Sample((rng.standard_normal((1, 2, 5, 9)), _regions(rng, 4, 1, 12), 0.5, 3, 2, -1, False)),
        Sample((rng.standard_normal((2, 1, 8, 8)), _regions(rng, 4, 2, 8), 1.5, 2, 2, 0, True)),
        Sample((rng.standard_normal((1, 2, 3, 3)), np.zeros((0, 5)), 1.0, 2, 2, 1, True)),
    ],
    _reference,
    grad=False,  # by x alone, not by rois: tests/ops/planes/test_regions.py
    errors=(
        (lambda flow: flow.roi_align(flow.ones(1, 2, 3), flow.ones(1, 5), 1.0, 2, 2, 1, True),
         RuntimeError),
        (lambda flow: flow.roi_align(flow.ones(1, 1, 2, 2), flow.ones(1, 4), 1.0, 2, 2, 1, True),
         RuntimeError),
        (lambda flow: flow.roi_align(flow.ones(1, 1, 2, 2), flow.ones(1, 5), 1.0, 0, 2, 1, True),
         ValueError),
        (lambda flow: flow.roi_align(flow.ones(1, 1, 2, 2), flow.ones(1, 5).double(), 1.0, 1, 2, 1,
                                     True), TypeError),
        (lambda flow: flow.roi_align(flow.ones(1, 1, 2, 2), flow.ones(1, 5), 1.0, 1, 2, 1,
                                     True).numpy(), IndexError),
    ),
)  # fmt: skip
