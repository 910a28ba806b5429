"""Images of another size: `interpolate`.

`_resize` and its gradient are each other's gradients, for every way that weighs elements; "area" is
adaptive pooling.  Integers can only be taken as they are, by the nearest ways, which move bits; but
images of uint8 are weighed, too (`parts/byte_resize`).
The kernels are in `resize_kernels`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.autocast import widened
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, DTypeError, ModeError, ShapeError
from flowvm.launch import GRAIN, Launch, View, bits
from flowvm.meta.dtype import uint8
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.composite import need_tensor
from flowvm.ops.declare.kinds import Count
from flowvm.ops.declare.registry import Sample, op, samples
from flowvm.ops.planes.cpu.resize_kernels import (
    CUBIC,
    EXACT,
    FEW,
    LINEAR,
    NEAREST,
    Sizes,
    back_body,
    nearest_body,
    resize_body,
)
from flowvm.ops.planes.parts import plane_checks
from flowvm.ops.planes.parts.byte_resize import resized_bytes
from flowvm.ops.planes.parts.plane_letters import planes
from flowvm.ops.planes.parts.resize_weights import sampling, smoothing
from flowvm.ops.planes.pooling import adaptive_avg_pool1d, adaptive_avg_pool2d
from flowvm.ops.products.matmul import matmul
from flowvm.ops.shapes.create import tensor
from flowvm.vm.callers.hot import hot

if TYPE_CHECKING:
    from flowvm.meta.arrays import Array

SPAN = 4096  # columns of a block: four lines of float64 are 128 KiB
LONGEST = 1 << 20  # bytes of a line of the gradient that is kept in the arena

# mode -> its kind, taps of an axis, and the numbers of axes that it is for
_MODES = {
    "nearest": (NEAREST, 1, (1, 2, 3)),
    "nearest-exact": (EXACT, 1, (1, 2, 3)),
    "linear": (LINEAR, 2, (1,)),
    "bilinear": (LINEAR, 2, (2,)),
    "trilinear": (LINEAR, 2, (3,)),
    "bicubic": (CUBIC, 4, (2,)),
    "area": (NEAREST, 1, (1, 2, 3)),
}


def _flat(*metas: TensorMeta) -> tuple[View, ...]:
    return tuple(View(m.dtype, (m.numel,)) for m in metas)


def _grain(units: int, row: int) -> int:
    return max(1, min(units, GRAIN // max(1, row)))


@op(
    "x -> out",
    name="interpolate_nearest",
    half="native",
    grad=lambda c, g: (_resize_back(g, *c.attrs),),
    cuda="resize:nearest",
    letters=planes(),
    takes=plane_checks.takes,
)
def _nearest(x: TensorMeta, t: Sizes, n: Count) -> Launch:
    out = x.with_shape((*x.shape[:-n], *(t.od, t.oh, t.ow)[-n:]))
    views = (bits(out, (out.numel,)), bits(x, (x.numel,)))
    rows = out.numel // max(1, t.ow)
    scratch = 4 * 2 * (t.od + t.oh + t.ow)
    return Launch(
        (out,), nearest_body, views, (t,), 1, 1, scratch, phases=((rows, _grain(rows, t.ow)),)
    )


@op(
    "x -> out", name="interpolate", grad=lambda c, g: (_resize_back(g, *c.attrs),),
    half="cuda", cuda="resize:resize", letters=planes(linear=True), takes=plane_checks.weighs,
)  # fmt: skip
def _resize(x: TensorMeta, t: Sizes, n: Count) -> Launch:
    out = x.with_shape((*x.shape[:-n], *(t.od, t.oh, t.ow)[-n:]))
    rows, span = out.numel // max(1, t.ow), min(t.ow, SPAN)
    units, size = rows * -(-t.ow // span), out.dtype.itemsize
    scratch = (size + 4) * (t.taps_d * t.od + t.taps_h * t.oh + t.taps_w * t.ow)
    arena = 128 + size * span * t.taps_d * t.taps_h
    phases = ((units, _grain(units, span)),)
    return Launch(
        (out,), resize_body, _flat(out, x), (t, span), 1, 1, scratch, phases=phases,
        arena=arena,
    )  # fmt: skip


def _forward(g: Tensor, t: Sizes, n: int) -> Tensor:
    out: Tensor = (_resize if t.kind in (LINEAR, CUBIC) else _nearest)(g, t, n)
    return out


@op(
    "g -> out", name="interpolate_backward", grad=lambda c, v: (_forward(v, *c.attrs),),
    half="cuda", cuda="resize:resize_back",
    letters=planes(linear=True),
    takes=plane_checks.interpolate_backward,
)  # fmt: skip
def _resize_back(g: TensorMeta, t: Sizes, n: Count) -> Launch:
    out = g.with_shape((*g.shape[:-n], *(t.d, t.h, t.w)[-n:]))
    rows, size = out.numel // max(1, t.w), out.dtype.itemsize
    lined = t.ow * size <= LONGEST
    entries = t.taps_d * t.od + t.taps_h * t.oh + t.taps_w * t.ow
    scratch = (size + 4) * (2 * entries + FEW * t.w) + 4 * (t.d + t.h + t.w + 4)
    work = g.numel // max(1, rows) + t.w
    return Launch(
        (out,), back_body, _flat(out, g), (t, int(lined)), 1, 1, scratch,
        phases=((rows, _grain(rows, work)),), arena=size * (t.ow + 1) * lined + 64,
    )  # fmt: skip


# --- arguments ----------------------------------------------------------------------------------


def _each(what: str, value: Any, n: int) -> tuple[Any, ...]:
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,) * n
    if len(values) != n:
        raise ShapeError(f"interpolate: {what} is a number or {n} of them, got {value!r}")
    return values


def _sizes(
    space: Sequence[int], size: Any, scale_factor: Any
) -> tuple[tuple[int, ...], tuple[float, ...] | None]:
    """Sizes of the result and, when these were given, the factors."""
    n = len(space)
    if (size is None) == (scale_factor is None):
        raise ArgumentError("interpolate: either size or scale_factor must be given, and not both")
    if scale_factor is None:
        sizes, factors = tuple(int(s) for s in _each("size", size, n)), None
    else:
        factors = tuple(float(f) for f in _each("scale_factor", scale_factor, n))
        sizes = tuple(math.floor(i * f) for i, f in zip(space, factors, strict=True))
    if min(sizes) < 1 or min(space) < 1:
        raise ShapeError(
            f"interpolate: sizes must be positive, got {tuple(space)} to be resized to {sizes}"
        )
    return sizes, factors


def _step(i: int, o: int, factor: float | None, corners: bool, single: bool) -> float:
    """The way in the input from one place of the result to the next, rounded as PyTorch does."""
    real = np.float32 if single else np.float64
    if corners:
        return float(real(i - 1) / real(o - 1)) if o > 1 else 0.0
    if factor is not None and factor > 0:
        return float(real(1.0 / factor))
    return float(real(i) / real(o))


def _area(input: Tensor, size: tuple[int, ...]) -> Tensor:
    if len(size) == 1:
        return adaptive_avg_pool1d(input, size)
    if len(size) == 2:
        return adaptive_avg_pool2d(input, size)
    n, c, d, h, w = input._meta.shape
    planes = adaptive_avg_pool2d(input.reshape(n, c * d, h, w), size[1:])
    columns = adaptive_avg_pool2d(planes.reshape(n, c, d, -1), (size[0], None))
    out: Tensor = columns.reshape(n, c, *size)
    return out


# public: flow, F
def interpolate(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """(N, C, L), (N, C, H, W) or (N, C, D, H, W) resized to `size`, or by `scale_factor`.

    mode                    "nearest", "nearest-exact" and "area" for all; "linear" for one
                            dimension, "bilinear" and "bicubic" for two, "trilinear" for three
    align_corners           the first and last elements keep their places, for the linear and cubic
                            modes
    recompute_scale_factor  reckon places with the ratio of the sizes, not with `scale_factor`
    antialias               where it shrinks, weigh all elements that a place stands for; for
                            "bilinear" and "bicubic"

    Images of uint8 are taken by "bilinear", "bicubic" and the nearest modes, and are rounded after
    the width's turn and after the height's, as PyTorch's are.

    >>> F.interpolate(flow.tensor([[[1.0, 2.0]]]), scale_factor=2)
    tensor([[[1., 1., 2., 2.]]])
    >>> F.interpolate(flow.tensor([[[0.0, 2.0]]]), size=3, mode="linear", align_corners=True)
    tensor([[[0., 1., 2.]]])
    """
    if hot["autocast"]:
        (input,) = widened(input)
    meta = need_tensor("interpolate", "input", input)._meta
    n = meta.ndim - 2
    if n not in (1, 2, 3):
        raise ShapeError(
            f"interpolate: input has a batch, channels and 1 to 3 dimensions more, got shape "
            f"{tuple(meta.shape)}"
        )
    if mode not in _MODES:
        raise ModeError(f"interpolate: mode is one of {tuple(_MODES)}, got {mode!r}")
    kind, taps, axes = _MODES[mode]
    if n not in axes:
        raise ModeError(f"interpolate: mode {mode!r} is not for shape {tuple(meta.shape)}")
    if align_corners is not None and kind not in (LINEAR, CUBIC):
        raise ArgumentError(f"interpolate: align_corners is not for mode {mode!r}")
    if recompute_scale_factor and size is not None:
        raise ArgumentError("interpolate: recompute_scale_factor needs scale_factor, got size")
    space = tuple(meta.shape[2:])
    target, factors = _sizes(space, size, scale_factor)
    if mode == "area":
        return _area(input, target)
    planar = mode in ("bilinear", "bicubic")
    whole = planar and meta.dtype is uint8
    if kind in (LINEAR, CUBIC) and not (meta.dtype.is_floating_point or whole):
        raise DTypeError(f"interpolate: mode {mode!r} needs floats, got {meta.dtype.name}")
    known = (None,) * n if factors is None or recompute_scale_factor else factors
    single, corners = not whole and meta.dtype.name != "float64", bool(align_corners)
    steps = [_step(i, o, f, corners, single) for i, o, f in zip(space, target, known, strict=True)]
    if antialias and not planar:
        raise ArgumentError(
            f'interpolate: antialias is for modes "bilinear" and "bicubic", got {mode!r}'
        )
    if whole or antialias:
        weigh = smoothing if antialias else sampling
        weights = [
            weigh(i, o, step, mode == "bicubic", corners)
            for i, o, step in zip(space, target, steps, strict=True)
        ]
        return resized_bytes(input, weights) if whole else _smoothed(input, weights)
    lead = (1,) * (3 - n)
    sizes = (*lead, *space, *lead, *target)
    numbers = (*(1.0,) * (3 - n), *steps, *lead, *(taps,) * n, kind, int(corners), int(single))
    t = Sizes._make((*sizes, *numbers))
    return _forward(input, t, n)


def _smoothed(x: Tensor, weights: Sequence[object]) -> Tensor:
    """Two products with matrices: along the width, then along the height."""
    meta = x._meta
    down, across = (tensor(w, dtype=meta.dtype, device=meta.device) for w in weights)
    out: Tensor = matmul(down, matmul(x, across.t()))
    return out


# public: flow, F
def upsample(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Tensor:
    """`interpolate` under its older name."""
    return interpolate(input, size, scale_factor, mode, align_corners)


# --- samples ------------------------------------------------------------------------------------


def _shares(n: int, m: int, mode: str, corners: bool, factor: float | None) -> Any:
    """The m x n matrix that resizes an axis."""
    step = n / m if factor is None else 1 / factor
    place = (np.arange(m) + 0.5) * step
    if mode == "area":
        low, high = np.arange(m) * n // m, -(-(np.arange(m) + 1) * n // m)
        inside = (np.arange(n) >= low[:, None]) & (np.arange(n) < high[:, None])
        return inside / inside.sum(1, keepdims=True)
    if mode.startswith("nearest"):
        place = place if mode == "nearest-exact" else np.arange(m) * step
        return np.eye(n)[np.minimum(place.astype(int), n - 1)]
    place = np.arange(m) * ((n - 1) / max(m - 1, 1)) if corners else place - 0.5
    taps, kernel = (range(-1, 3), _cubic) if mode == "bicubic" else (range(2), _tent)
    place = place if mode == "bicubic" else np.clip(place, 0, n - 1)
    low = np.floor(place)
    return sum(
        kernel(place - low - k)[:, None] * np.eye(n)[np.clip(low + k, 0, n - 1).astype(int)]
        for k in taps
    )


def _tent(x: Any) -> Any:
    return np.maximum(1 - np.abs(x), 0)


def _cubic(x: Any) -> Any:
    x, a = np.abs(x), -0.75
    near = (a + 2) * x**3 - (a + 3) * x**2 + 1
    far = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


def _reference(
    x: Array, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
    align_corners: Any = None, recompute_scale_factor: Any = None,
) -> Any:  # fmt: skip
    sizes, factors = _sizes(x.shape[2:], size, scale_factor)
    for axis, m in enumerate(sizes, 2):
        factor = None if factors is None or recompute_scale_factor else factors[axis - 2]
        matrix = _shares(x.shape[axis], m, mode, bool(align_corners), factor)
        resized = np.moveaxis(np.tensordot(matrix, x, (1, axis)), 0, axis)
        x = resized.astype(x.dtype)
    return x


samples(
    interpolate,
    lambda rng: [
        Sample((rng.standard_normal((2, 2, 3)), 7)),
        Sample((rng.standard_normal((1, 2, 3, 4)), (5, 3))),
        Sample((rng.standard_normal((1, 2, 4, 3)), (9, 8)), {"mode": "nearest-exact"}),
        Sample((rng.standard_normal((1, 1, 2, 3, 2)), None, 2)),
        Sample((rng.integers(0, 9, (1, 2, 3, 4)), None, (2.0, 1.5))),
        Sample((rng.standard_normal((2, 1, 5)), 8), {"mode": "linear"}),
        Sample((rng.standard_normal((2, 1, 5)), 3), {"mode": "linear", "align_corners": True}),
        Sample((rng.standard_normal((1, 2, 3, 4)), None, 2), {"mode": "bilinear"}),
        Sample((rng.standard_normal((1, 2, 5, 4)), None, (0.7, 1.6)), {"mode": "bilinear"}),
        Sample((rng.standard_normal((1, 1, 5, 4)), None, (0.7, 1.6), "bilinear", False, True)),
        Sample((rng.standard_normal((1, 1, 4, 5)), (6, 5), None, "bilinear", True)),
        Sample((rng.standard_normal((1, 2, 4, 5)), (7, 3)), {"mode": "bicubic"}),
        Sample((rng.standard_normal((1, 1, 4, 3)), (6, 1), None, "bicubic", True)),
        Sample((rng.standard_normal((1, 1, 2, 3, 4)), (3, 4, 5)), {"mode": "trilinear"}),
        Sample((rng.standard_normal((1, 1, 3, 2, 3)), 2, None, "trilinear", True)),
        Sample((rng.standard_normal((1, 2, 5)), 3), {"mode": "area"}),
        Sample((rng.standard_normal((1, 2, 5, 4)), (3, 6)), {"mode": "area"}),
        Sample((rng.standard_normal((1, 2, 3, 4, 5)), (2, 2, 3)), {"mode": "area"}),
        Sample((rng.standard_normal((0, 2, 3, 4)), 5), {"mode": "bilinear"}),
    ],
    _reference,
    errors=(
        (lambda flow: flow.interpolate(flow.ones(2, 3), 2), RuntimeError),
        (lambda flow: flow.interpolate(flow.ones(1, 1, 3)), ValueError),
        (lambda flow: flow.interpolate(flow.ones(1, 1, 3), 2, 2), ValueError),
        (lambda flow: flow.interpolate(flow.ones(1, 1, 3), 2, mode="cubic"), ValueError),
        (lambda flow: flow.interpolate(flow.ones(1, 1, 3), 2, mode="bilinear"), RuntimeError),
        (lambda flow: flow.interpolate(flow.ones(1, 1, 3), 0), RuntimeError),
        (lambda flow: flow.interpolate(flow.ones(1, 1, 3), 2, align_corners=True), ValueError),
        (
            lambda flow: flow.interpolate(flow.ones(1, 1, 3, dtype=flow.int64), 2, mode="linear"),
            RuntimeError,
        ),
    ),
)
samples(
    upsample,
    lambda rng: [
        Sample((rng.standard_normal((1, 2, 3)), 5)),
        Sample((rng.standard_normal((1, 2, 3, 4)), None, 2, "bilinear", True)),
    ],
    _reference,
)
