"""Convolution whose windows read where data says: `deform_conv2d`.

What the windows read becomes columns, and a product of matrices does the rest.  The gradients by
input, offset and mask are instructions of their own (`deform_kernels`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.autocast import widened
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, AutogradError, DTypeError, ShapeError
from flowvm.launch import GRAIN, Launch, View
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.composite import filled_of, need_tensor
from flowvm.ops.declare.kinds import Count
from flowvm.ops.declare.letters import unsplit
from flowvm.ops.declare.registry import Sample, op, samples
from flowvm.ops.planes.conv import _numbers
from flowvm.ops.planes.cpu.deform_kernels import (
    ARENA,
    CHANNELS,
    columns_back_body,
    columns_body,
    places_back_body,
)
from flowvm.ops.planes.cpu.pool_kernels import Windows
from flowvm.ops.planes.parts import plane_checks
from flowvm.ops.planes.parts.plane_checks import windows_along
from flowvm.ops.products.matmul import matmul
from flowvm.vm.callers.hot import hot

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node
    from flowvm.meta.arrays import Array


# --- ops ----------------------------------------------------------------------------------------


def _views(shape: Sequence[int], offset: TensorMeta, t: Windows) -> tuple[View, View, View, View]:
    """x of that shape, its columns, offset and mask as the kernels see them."""
    dtype, taps, windows = offset.dtype, t.kh * t.kw, t.oh * t.ow
    n, channels = shape[:2]
    groups = offset.shape[1] // (2 * taps)
    return (
        View(dtype, (n, channels, t.h * t.w)), View(dtype, (n, channels, taps, windows)),
        View(dtype, (n, groups, taps, 2, windows)), View(dtype, (n, groups, taps, windows)),
    )  # fmt: skip


def _columns_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
    x, offset, mask = c.saved
    (windows,) = c.attrs
    by_x = by_offset = by_mask = None
    if c.needs[0]:
        by_x = _columns_back(g, offset, mask, x.shape[1], windows)
    if c.needs[1] or c.needs[2]:
        by_offset, by_mask = _places_back(g, x, offset, mask, windows)
    return by_x, by_offset, by_mask


@op(
    "x, offset, mask -> out",
    name="deform_columns",
    saves="x, offset, mask",
    grad=_columns_grad,
    letters=unsplit,
    takes=plane_checks.deform_columns,
)
def _columns(x: TensorMeta, offset: TensorMeta, mask: TensorMeta, windows: Windows) -> Launch:
    """Gather the elements that the windows read: (N, channels * taps, windows)."""
    t = windows
    image, columns, places, factors = _views(x.shape, offset, t)
    n, channels, taps, count = columns.shape
    work = 8 * channels // factors.shape[1] * count
    return Launch(
        (x.with_shape((n, channels * taps, count)),), columns_body,
        (columns, image, places, factors), (t,), n * factors.shape[1] * taps,
        max(1, GRAIN // max(1, work)), arena=ARENA,
    )  # fmt: skip


def _columns_back_grad(c: Node, v: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients of `_columns_back` by v, the gradient by the gradient by x."""
    g, offset, mask = c.saved
    windows = c.attrs[1]
    by_g = by_offset = by_mask = None
    if c.needs[0]:
        by_g = _columns(v, offset, mask, windows)
    if c.needs[1] or c.needs[2]:
        by_offset, by_mask = _places_back(g, v, offset, mask, windows)
    return by_g, by_offset, by_mask


def _no_grad(c: Node, *gradients: Tensor) -> None:
    raise AutogradError("deform_conv2d: its gradients by offset and mask have no derivative")


@op(
    "g, offset, mask -> out", name="deform_columns_backward", saves="g, offset, mask",
    grad=_columns_back_grad, letters=unsplit, takes=plane_checks.deform_columns_backward,
)  # fmt: skip
def _columns_back(
    g: TensorMeta, offset: TensorMeta, mask: TensorMeta, n: Count, windows: Windows
) -> Launch:
    """The gradient by x, of n channels."""
    t = windows
    shape = (g.shape[0], n, t.h, t.w)
    image, columns, places, factors = _views(shape, offset, t)
    groups = factors.shape[1]
    blocks = -(-(n // groups) // CHANNELS)
    return Launch(
        (g.with_shape(shape),), columns_back_body, (image, columns, places, factors), (t,),
        g.shape[0] * groups * blocks, arena=ARENA,
    )  # fmt: skip


@op(
    "g, x, offset, mask -> moved, masked",
    name="deform_places_backward",
    grad=_no_grad,
    letters=unsplit,
    takes=plane_checks.deform_places_backward,
)
def _places_back(
    g: TensorMeta, x: TensorMeta, offset: TensorMeta, mask: TensorMeta, windows: Windows
) -> Launch:
    """The gradients by offset and mask."""
    t = windows
    image, columns, places, factors = _views(x.shape, offset, t)
    return Launch(
        (offset.dense(), mask.dense()), places_back_body,
        (places, factors, columns, image, places, factors), (t,),
        math.prod(factors.shape[:3]), arena=ARENA,
    )  # fmt: skip


# --- the function -------------------------------------------------------------------------------


# public: flow (late), F
def deform_conv2d(
    input: Tensor,
    offset: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    mask: Tensor | None = None,
) -> Tensor:
    """Convolve with taps that read at an offset from their place, between four elements.

    Elements outside of the plane are 0 (Dai et al., Deformable Convolutional Networks, 2017; with a
    mask: Zhu et al., 2019).  The result is (N, O, H', W').

    input    (N, C, H, W), floats, as all of them
    offset   (N, groups * taps * 2, H', W'), taps = kh * kw: in y and in x, of each tap of each
             group of C / groups channels, in elements
    weight   (O, C / g, kh, kw): g groups of channels are convolved apart, as in conv2d
    bias     (O)
    mask     (N, groups * taps, H', W'): factors of the elements that are read
    stride, padding, dilation  a number, or two

    All five tensors have gradients; where an offset leads to an element itself, as 0 does, the
    gradient is from the side behind it.  Gradients by offset and mask have no derivative:
    AutogradError.

    >>> x = flow.tensor([[[[1.0, 2.0, 4.0]]]])
    >>> offset = flow.zeros(1, 2, 1, 3)
    >>> offset[0, 1] = 0.5  # half an element to the right
    >>> F.deform_conv2d(x, offset, flow.ones(1, 1, 1, 1))
    tensor([[[[1.5000, 3.0000, 2.0000]]]])
    """
    arguments = {"input": input, "offset": offset, "weight": weight, "bias": bias, "mask": mask}
    tensors = {k: need_tensor("deform_conv2d", k, t) for k, t in arguments.items() if t is not None}
    if hot["autocast"]:
        tensors = dict(zip(tensors, widened(*tensors.values()), strict=True))
    metas = {k: t._meta for k, t in tensors.items()}
    for name, ndim in (("input", 4), ("offset", 4), ("weight", 4), ("bias", 1), ("mask", 4)):
        if name in metas and metas[name].ndim != ndim:
            raise ShapeError(
                f"deform_conv2d: {name} has {ndim} dimensions, got shape {tuple(metas[name].shape)}"
            )
    dtypes = {m.dtype for m in metas.values()}
    if len(dtypes) > 1 or not metas["input"].dtype.is_floating_point:
        listed = ", ".join(f"{k} {m.dtype.name}" for k, m in metas.items())
        raise DTypeError(f"deform_conv2d: all have one floating point dtype, got {listed}")
    windows = _windows(metas, stride, padding, dilation)
    (n, c), (o, part) = metas["input"].shape[:2], metas["weight"].shape[:2]
    taps, space = windows.kh * windows.kw, (windows.oh, windows.ow)
    groups = metas["offset"].shape[1] // (2 * taps)
    if "mask" not in tensors:
        like = metas["offset"].with_shape((n, groups * taps, *space))
        tensors["mask"] = filled_of(like, 1)
    columns = _columns(tensors["input"], tensors["offset"], tensors["mask"], windows)
    apart = c // part
    columns = columns.reshape((n, apart, part * taps, math.prod(space)))
    factors = tensors["weight"].reshape((apart, o // apart, part * taps))
    out: Tensor = matmul(factors, columns).reshape((n, o, *space))
    if "bias" in tensors:
        out = out + tensors["bias"].reshape((o, 1, 1))
    return out


def _windows(
    metas: dict[str, TensorMeta],
    stride: int | Sequence[int],
    padding: int | Sequence[int],
    dilation: int | Sequence[int],
) -> Windows:
    """The windows, where all shapes fit them."""
    n, c, h, w = metas["input"].shape
    o, part, kh, kw = metas["weight"].shape
    if part == 0 or c % part or o % max(1, c // part) or 0 in (c, o, kh, kw):
        raise ShapeError(
            f"deform_conv2d: weight is (O, C / g, kh, kw), C and O multiples of g, got shape "
            f"{tuple(metas['weight'].shape)} for {c} channels"
        )
    (sh, sw), (ph, pw), (dh, dw) = (
        _numbers("deform_conv2d", what, value, 2, least)
        for what, value, least in (
            ("stride", stride, 1), ("padding", padding, 0), ("dilation", dilation, 1)
        )
    )  # fmt: skip
    oh, ow = (
        windows_along(size, kernel, s, p, d, False)
        for size, kernel, s, p, d in ((h, kh, sh, ph, dh), (w, kw, sw, pw, dw))
    )
    if min(oh, ow) < 1 or 0 in (h, w):
        raise ShapeError(
            f"deform_conv2d: windows of {kh} x {kw} with dilation ({dh}, {dw}) and padding "
            f"({ph}, {pw}) do not fit planes of {h} x {w}"
        )
    moved = metas["offset"].shape
    groups = moved[1] // (2 * kh * kw)
    expected = (n, max(1, groups) * 2 * kh * kw, oh, ow)
    if tuple(moved) != expected:
        raise ShapeError(
            f"deform_conv2d: offset is (N, groups * {2 * kh * kw}, H', W'), here "
            f"{expected} or more groups, got {tuple(moved)}"
        )
    if c % groups:
        raise ArgumentError(
            f"deform_conv2d: {c} channels cannot be cut into the {groups} groups that offset has"
        )
    if "mask" in metas and tuple(metas["mask"].shape) != (n, groups * kh * kw, oh, ow):
        raise ShapeError(
            f"deform_conv2d: mask is {(n, groups * kh * kw, oh, ow)} for this offset, got "
            f"{tuple(metas['mask'].shape)}"
        )
    if "bias" in metas and tuple(metas["bias"].shape) != (o,):
        raise ShapeError(f"deform_conv2d: bias is ({o},), got {tuple(metas['bias'].shape)}")
    return Windows(h, w, oh, ow, kh, kw, sh, sw, ph, pw, dh, dw)


# --- samples ------------------------------------------------------------------------------------


def _between(plane: Array, y: float, x: float) -> float:
    h, w = plane.shape
    total, j, i = 0.0, math.floor(y), math.floor(x)
    for row in (j, j + 1):
        for column in (i, i + 1):
            if 0 <= row < h and 0 <= column < w:
                total += (1 - abs(y - row)) * (1 - abs(x - column)) * plane[row, column]
    return total


def _reference(
    x: Array, offset: Array, weight: Array, bias: Any = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, mask: Any = None,
) -> Any:  # fmt: skip
    """Window by window and tap by tap."""
    (sh, sw), (ph, pw), (dh, dw) = (
        (v, v) if isinstance(v, int) else v for v in (stride, padding, dilation)
    )
    o, part, kh, kw = weight.shape
    n, c = x.shape[:2]
    groups = offset.shape[1] // (2 * kh * kw)
    out = np.zeros((n, o, *offset.shape[2:])) + (0 if bias is None else bias[:, None, None])
    for b, u, y, z in np.ndindex(out.shape):
        for p, i, j in np.ndindex(part, kh, kw):
            channel = u // (o // (c // part)) * part + p
            tap = (channel // (c // groups) * kh + i) * kw + j
            down, along = offset[b, 2 * tap, y, z], offset[b, 2 * tap + 1, y, z]
            value = _between(
                x[b, channel], y * sh - ph + i * dh + down, z * sw - pw + j * dw + along
            )
            factor = 1.0 if mask is None else mask[b, tap, y, z]
            out[b, u, y, z] += weight[u, p, i, j] * value * factor
    return out


def _offsets(rng: np.random.Generator, *shape: int) -> Array:
    """Return random offsets in sixteenths: exact in every dtype; none whole: the gradient jumps
    there.
    """
    return rng.integers(-2, 2, shape) + rng.integers(2, 15, shape) / 16


def _samples(rng: np.random.Generator) -> list[Sample]:
    normal = rng.standard_normal
    return [
        Sample((normal((2, 2, 4, 3)), _offsets(rng, 2, 8, 3, 2), normal((3, 2, 2, 2)))),
        Sample(
            (normal((1, 4, 3, 4)), _offsets(rng, 1, 24, 2, 3), normal((2, 2, 3, 2)), normal(2)),
            {"stride": (2, 1), "padding": (1, 0), "mask": rng.random((1, 12, 2, 3))},
        ),
        Sample(
            (normal((1, 2, 5, 4)), _offsets(rng, 1, 8, 4, 4), normal((2, 1, 2, 2)), None, 1, 1),
            {"dilation": (3, 2)},
        ),
        Sample((normal((0, 1, 3, 3)), np.zeros((0, 2, 3, 3)), normal((1, 1, 1, 1)))),
    ]  # fmt: skip


samples(
    deform_conv2d,
    _samples,
    _reference,
    grad2=False,
    atol=2e-5,
    errors=(
        (lambda flow: flow.deform_conv2d(flow.ones(1, 1, 3, 3), flow.ones(1, 2, 2, 2),
                                         flow.ones(1, 1, 1, 1)), RuntimeError),
        (lambda flow: flow.deform_conv2d(flow.ones(1, 1, 3, 3), flow.ones(1, 3, 3, 3),
                                         flow.ones(1, 1, 1, 1)), RuntimeError),
        (lambda flow: flow.deform_conv2d(flow.ones(1, 3, 3, 3), flow.ones(1, 2, 3, 3),
                                         flow.ones(1, 2, 1, 1)), RuntimeError),
        (lambda flow: flow.deform_conv2d(flow.ones(1, 3, 3, 3), flow.ones(1, 4, 3, 3),
                                         flow.ones(1, 3, 1, 1)), ValueError),
        (lambda flow: flow.deform_conv2d(flow.ones(1, 1, 3, 3), flow.ones(1, 2, 3, 3),
                                         flow.ones(1, 1, 1, 1).double()), TypeError),
        (lambda flow: flow.deform_conv2d(flow.ones(1, 1, 3, 3), flow.ones(1, 2, 3, 3),
                                         flow.ones(1, 1, 1, 1), flow.ones(2)), RuntimeError),
        (lambda flow: flow.deform_conv2d(flow.ones(1, 1, 3, 3), flow.ones(1, 2, 3, 3),
                                         flow.ones(1, 1, 1, 1), mask=flow.ones(1, 2, 3, 3)),
         RuntimeError),
        (lambda flow: flow.deform_conv2d(flow.ones(1, 1, 3, 3), flow.ones(1, 2, 3, 3),
                                         flow.ones(1, 1, 1, 1), stride=0), ValueError),
        (lambda flow: flow.deform_conv2d(flow.ones(1, 1, 2, 2), flow.ones(1, 18, 1, 1),
                                         flow.ones(1, 1, 3, 3)), RuntimeError),
    ),
)  # fmt: skip
