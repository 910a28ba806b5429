"""Translations of convolution, pooling, resizing and patches.

Adaptive pooling and resizing are products with constant matrices, an axis each, which have the
weights that flowvm's kernels use: so every ratio of sizes has the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.meta.dtype import float64, int64
from flowvm.onnx.call import Call
from flowvm.onnx.expressions import Untranslated
from flowvm.onnx.rows import Values
from flowvm.ops.planes.cpu.resize_kernels import write_axis


def _behind(size: int, out: int, kernel: int, stride: int, dilation: int, front: int) -> int:
    """Return the padding behind an axis.  It is the padding in front if that gives all windows, for
    any size.  Otherwise it is the least that the last window needs.
    """
    reach = dilation * (kernel - 1) + 1
    if (size + 2 * front - reach) // stride + 1 == out:
        return front
    return max(0, (out - 1) * stride + reach - size - front)


def conv(c: Call) -> Values:
    """Translate a convolution of one to three dimensions, with groups."""
    how, size = c.attrs["how"], c.attrs["size"]
    n = len(size)
    kernel = c.metas[1].shape[2:]
    stride, front, dilation = (list(v[-n:]) for v in (how.stride, how.padding, how.dilation))
    behind = [
        _behind(*one)
        for one in zip(c.metas[0].shape[2:], size, kernel, stride, dilation, front, strict=True)
    ]
    output = c.w.op(
        "Conv", *[c.x(k) for k in range(c.count)], kernel_shape=list(kernel), strides=stride,
        pads=[*front, *behind], dilations=dilation, group=how.groups,
    )  # fmt: skip
    return [output]


def transposed(c: Call) -> Values:
    """Translate a transposed convolution; the rest of the given size is padded behind."""
    how, size = c.attrs["how"], c.attrs["shape"][2:]
    n = len(size)
    kernel = c.metas[1].shape[2:]
    stride, front, dilation = (list(v[-n:]) for v in (how.stride, how.padding, how.dilation))
    over = [
        (i - 1) * s + d * (k - 1) + 1 - p - o
        for i, s, d, k, p, o in zip(
            c.metas[0].shape[2:], stride, dilation, kernel, front, size, strict=True
        )
    ]
    output = c.w.op(
        "ConvTranspose", *[c.x(k) for k in range(c.count)], kernel_shape=list(kernel),
        strides=stride, pads=[*front, *[max(0, o) for o in over]], dilations=dilation,
        output_padding=[max(0, -o) for o in over], group=how.groups,
    )  # fmt: skip
    return [output]


# --- pooling --------------------------------------------------------------------------------------


def _axes(c: Call) -> list[tuple[int, int, int, int, int, int]]:
    """(size, out, kernel, stride, padding, dilation) of each axis; kernel 0: adaptive."""
    t, n = c.attrs["windows"], c.attrs["n"]
    both = [(t.h, t.oh, t.kh, t.sh, t.ph, t.dh), (t.w, t.ow, t.kw, t.sw, t.pw, t.dw)]
    return both[-n:]


def _pool(c: Call, kind: str, count: int, **more: object) -> list[str]:
    """A pooling node on planes with one channel, if the input's dimensions are others."""
    axes, shape = _axes(c), c.metas[0].shape
    n = len(axes)
    plain = len(shape) == n + 2
    x = c.x() if plain else c.w.reshape(c.x(), (-1, 1, *shape[-n:]))
    front = [p for *_, p, _ in axes]
    behind = [_behind(i, o, k, s, d, p) for i, o, k, s, p, d in axes]
    if kind == "MaxPool":
        more["dilations"] = [d for *_, d in axes]
    values = c.w.ops(
        kind, count, x, kernel_shape=[k for _, _, k, *_ in axes],
        strides=[s for _, _, _, s, *_ in axes], pads=[*front, *behind], **more,
    )  # fmt: skip
    return values if plain else [c.w.reshape(v, c.out.shape) for v in values]


def _window(size: int, out: int, place: int) -> tuple[int, int]:
    """The elements that adaptive pooling takes for one place."""
    return place * size // out, -(-(place + 1) * size // out)


def max_pool(c: Call) -> Values:
    """Maxima of windows, and their places in the plane."""
    axes = _axes(c)
    if axes[0][2]:
        values, *places = _pool(c, "MaxPool", 1 + c.wants(1))
        if not places:
            return [values, None]
        plane = math.prod(size for size, *_ in axes)
        return [values, c.w.op("Mod", places[0], c.number(plane, int64))]
    if c.wants(1):
        raise Untranslated("the places of adaptive maxima")
    value = c.x()
    for k, (size, out, *_) in enumerate(axes):
        dim = c.metas[0].ndim - len(axes) + k
        parts = []
        for place in range(out):
            start, end = _window(size, out, place)
            cut = c.w.op("Slice", value, c.w.ints(start), c.w.ints(end), c.w.ints(dim))
            parts.append(c.w.op("ReduceMax", cut, c.w.ints(dim), keepdims=1))
        value = c.w.op("Concat", *parts, axis=dim)
    return [value, None]


def avg_pool(c: Call) -> Values:
    """Averages of windows, which may count the padding, or divide by a number of their own."""
    axes, padded, fixed = _axes(c), c.attrs["padded"], c.attrs["divisor"]
    if not axes[0][2]:
        if all(out == 1 for _, out, *_ in axes):
            dims = range(c.metas[0].ndim - len(axes), c.metas[0].ndim)
            return [c.w.op("ReduceMean", c.x(), c.w.ints(*dims), keepdims=1)]
        return [_along(c, [_averages(size, out) for size, out, *_ in axes])]
    counts = np.ones(())
    for size, out, kernel, stride, front, _ in axes:
        first = np.arange(out) * stride - front
        low = np.maximum(first, -front if padded else 0)
        high = np.minimum(first + kernel, size + front if padded else size)
        counts = np.multiply.outer(counts, high - low)
    if fixed:
        counts = np.full_like(counts, fixed)
    whole = math.prod(kernel for _, _, kernel, *_ in axes)
    if c.metas[0].dtype is float64:  # ONNX Runtime has no AveragePool of these
        value = _along(c, [_shares(*axis[:5]) for axis in axes])
    else:
        value = _pool(c, "AveragePool", 1, count_include_pad=1)[0]
    if (counts == whole).all():
        return [value]
    return [c.w.op("Mul", value, c.number(whole / counts))]


def _shares(size: int, out: int, kernel: int, stride: int, front: int) -> Array:
    """Return what each element of an axis gives to each window, the padding's share left out."""
    weights = np.zeros((out, size))
    for place in range(out):
        start = place * stride - front
        weights[place, max(start, 0) : max(start + kernel, 0)] = 1 / kernel
    return weights


def _averages(size: int, out: int) -> Array:
    weights = np.zeros((out, size))
    for place in range(out):
        start, end = _window(size, out, place)
        weights[place, start:end] = 1 / (end - start)
    return weights


def _along(c: Call, matrices: Sequence[Array]) -> str:
    """The last axes, each through its matrix (out, in)."""
    w, value, n = c.w, c.x(), c.metas[0].ndim
    for k, matrix in enumerate(matrices):
        dim = n - len(matrices) + k
        if matrix.shape[0] == matrix.shape[1] and (matrix == np.eye(len(matrix))).all():
            continue
        if dim == n - 1:
            value = w.op("MatMul", value, c.number(matrix.T))
        elif dim == n - 2:
            value = w.op("MatMul", c.number(matrix), value)
        else:
            order = [*range(n)]
            order[dim], order[-1] = order[-1], order[dim]
            turned = w.op("MatMul", w.transpose(value, order), c.number(matrix.T))
            value = w.transpose(turned, order)
    return value


# --- resizing, patches ----------------------------------------------------------------------------


def _tables(c: Call) -> list[tuple[int, Array, Array]]:
    """(size, places, weights) of each axis, as the kernels write them."""
    t, n = c.attrs["t"], c.attrs["n"]
    axes = [
        (t.d, t.od, t.step_d, t.taps_d), (t.h, t.oh, t.step_h, t.taps_h),
        (t.w, t.ow, t.step_w, t.taps_w),
    ]  # fmt: skip
    tables = []
    for size, out, step, taps in axes[-n:]:
        places, weights = np.zeros(out * taps, np.int32), np.zeros(out * taps)
        write_axis(places, weights, (size, out), step, taps, t)
        tables.append((size, places.reshape(taps, out).T, weights.reshape(taps, out).T))
    return tables


def nearest(c: Call) -> Values:
    """Each place takes one of the input's."""
    value, n = c.x(), c.attrs["n"]
    for k, (_, places, _) in enumerate(_tables(c)):
        dim = c.metas[0].ndim - n + k
        value = c.w.op("Gather", value, c.w.ints(*places[:, 0].tolist()), axis=dim)
    return [value]


def resize(c: Call) -> Values:
    """Linear and cubic."""
    matrices = []
    for size, places, weights in _tables(c):
        matrix = np.zeros((len(places), size))
        for tap in range(places.shape[1]):
            np.add.at(matrix, (np.arange(len(places)), places[:, tap]), weights[:, tap])
        matrices.append(matrix)
    return [_along(c, matrices)]


def fold(c: Call) -> Values:
    """Columns as patches of images, added where they overlap."""
    t, w, shape = c.attrs["t"], c.w, c.metas[0].shape
    columns = w.reshape(c.x(), (math.prod(shape[:-2]), *shape[-2:]))
    image = w.op(
        "Col2Im", columns, w.ints(t.h, t.w), w.ints(t.kh, t.kw), dilations=[t.dh, t.dw],
        pads=[t.ph, t.pw, t.ph, t.pw], strides=[t.sh, t.sw],
    )  # fmt: skip
    return [w.reshape(image, c.out.shape)]


def unfold(c: Call) -> Values:
    """Patches of images as columns."""
    t, w, shape = c.attrs["t"], c.w, c.metas[0].shape
    high, wide = t.h + 2 * t.ph, t.w + 2 * t.pw
    x = c.x()
    if t.ph or t.pw:
        sides = [*(0,) * (len(shape) - 2), t.ph, t.pw]
        x = w.op("Pad", x, w.ints(*sides, *sides))
    rows = np.arange(t.kh)[:, None] * t.dh + np.arange(t.oh) * t.sh  # (kh, oh)
    columns = np.arange(t.kw)[:, None] * t.dw + np.arange(t.ow) * t.sw
    places = rows[:, None, :, None] * wide + columns[None, :, None, :]
    flat = w.reshape(x, (*shape[:-2], high * wide))
    gathered = w.op("Gather", flat, w.ints(*places.reshape(-1).tolist()), axis=len(shape) - 2)
    return [w.reshape(gathered, c.out.shape)]


def roi_align(c: Call) -> Values:
    """Regions of planes; ONNX has their images and their corners apart."""
    (height, width), regions = c.attrs["size"], c.attrs["regions"]
    images = c.w.cast(c.w.reshape(c.cut(c.x(1), 1, 0, 1), [-1]), int64)
    return [
        c.w.op(
            "RoiAlign", c.x(), c.cut(c.x(1), 1, 1, 5), images, output_height=height,
            output_width=width, sampling_ratio=regions.ratio, spatial_scale=regions.scale,
            coordinate_transformation_mode="half_pixel" if regions.aligned else "output_half_pixel",
        )
    ]  # fmt: skip
