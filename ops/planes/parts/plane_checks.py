"""Rules for calls of ops on planes, operands and sizes together: their `takes=`.

A rule asks what the public functions check or reckon before they issue the op, by the same
functions where these are apart, else by the relation that they keep.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flowvm.meta.dtype import int64
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.kinds import Metas, Values, computes, within
from flowvm.ops.planes.cpu.pool_kernels import Windows
from flowvm.ops.planes.cpu.resize_kernels import CUBIC, EXACT, LINEAR, NEAREST, Sizes

MOST = 1 << 31  # of a size of a window, a step, a gap
TAPS = {NEAREST: 1, EXACT: 1, LINEAR: 2, CUBIC: 4}


def windows_along(size: int, kernel: int, step: int, pad: int, gap: int, ceil_mode: bool) -> int:
    """Return the number of windows of a dimension, less than 1 if the kernel is larger."""
    room = size + 2 * pad - gap * (kernel - 1) - 1
    if room < 0:
        return 0
    count = (-(-room // step) if ceil_mode else room // step) + 1
    if ceil_mode and (count - 1) * step >= size + pad:
        count -= 1  # a window must not start in the padding behind
    return count


# --- convolution ----------------------------------------------------------------------------------


def _convolves(whole: Sequence[int], weight: Sequence[int], out: Sequence[int], how: Any) -> bool:
    """Return True if the public functions give such a convolution from shape `whole` to `out`, or
    the transposed one back: in each dimension the rest behind the last window is less than a
    stride, or an output padding, or "same" has padded once more behind.
    """
    n, missing = len(whole) - 2, 5 - len(whole)
    if not 1 <= n <= 3 or len(weight) != n + 2 or len(out) != n + 2:
        return False
    stride, padding, dilation, groups = how
    if not (within(stride, 1) and within(padding, 0) and within(dilation, 1)):
        return False
    filled = stride[:missing], padding[:missing], dilation[:missing]
    if filled != ((1,) * missing, (0,) * missing, (1,) * missing):
        return False
    if groups < 1 or whole[1] != weight[1] * groups or weight[0] % groups:
        return False
    if whole[0] != out[0] or out[1] != weight[0] or not within(weight[2:], 1):
        return False
    each = zip(whole[2:], out[2:], weight[2:], *(v[missing:] for v in how[:3]), strict=True)
    for size, count, kernel, s, p, d in each:
        reach = d * (kernel - 1)
        surplus = size + 2 * p - reach - 1 - (count - 1) * s
        same = surplus == -1 and s == 1 and p == reach // 2 and reach % 2 == 1
        if not (0 <= surplus < max(s, d) or same):
            return False
    return True


def _biased(metas: Metas, channels: int) -> bool:
    return all(tuple(bias.shape) == (channels,) for bias in metas[2:]) and computes(*metas)


def conv(metas: Metas, values: Values) -> bool:
    """Tell whether x and weight convolve to planes of `size`."""
    x, weight = metas[0].shape, metas[1].shape
    if len(x) < 3 or len(weight) != len(x):
        return False
    out = (x[0], weight[0], *values["size"])
    return _convolves(x, weight, out, values["how"]) and _biased(metas, weight[0])


def conv_input(metas: Metas, values: Values) -> bool:
    """Tell whether a gradient goes back to an input of `shape`."""
    whole = values["shape"]
    if len(whole) < 3:
        return False
    fits = _convolves(whole, metas[1].shape, metas[0].shape, values["how"])
    return fits and _biased(metas, whole[1])


def conv_weight(metas: Metas, values: Values) -> bool:
    """Tell whether a gradient goes back to a weight of `shape`."""
    g, x = metas
    return computes(g, x) and _convolves(x.shape, values["shape"], g.shape, values["how"])


# --- windows --------------------------------------------------------------------------------------


def _axes(t: Windows) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(size, windows, kernel, stride, padding, dilation) of each dimension of a plane."""
    return t[0::2], t[1::2]


def _pools(t: Windows, n: int, space: Sequence[int], out: Sequence[int]) -> bool:
    """Return True if a pooling function finds these windows for planes of `space` and `out`.

    Planes are the last `n` dimensions.
    """
    if n not in (1, 2) or len(space) != n or len(out) != n:
        return False
    axes = _axes(t)
    if [a[0] for a in axes] != [1, *space][-2:] or [a[1] for a in axes] != [1, *out][-2:]:
        return False
    if t.kh == t.kw == 0:
        sizes = all(0 <= a[1] < MOST and (a[0] > 0 or a[1] == 0) for a in axes)
        return sizes and all(a[3:] == (1, 0, 1) for a in axes)
    return all(_pools_along(*a) for a in axes) and (n == 2 or axes[0] == (1, 1, 1, 1, 0, 1))


def _pools_along(size: int, count: int, kernel: int, s: int, p: int, d: int) -> bool:
    if (
        size < 1
        or count < 1
        or not (within((kernel, s, d), 1) and 0 <= 2 * p <= d * (kernel - 1) + 1)
    ):
        return False
    return count in (windows_along(size, kernel, s, p, d, ceil) for ceil in (False, True))


def max_pool(metas: Metas, values: Values) -> bool:
    """Tell whether the windows are those of a pooling function."""
    t, n = values["windows"], values["n"]
    return _pools(t, n, metas[0].shape[-n:], (t.oh, t.ow)[-n:])


def max_pool_backward(metas: Metas, values: Values) -> bool:
    """Tell whether the windows lead back to planes of `size`."""
    (g, indices), size = metas, values["size"]
    fits = isinstance(size, tuple) and g.shape == indices.shape and indices.dtype is int64
    return fits and _pools(values["windows"], len(size), size, g.shape[-len(size) :])


def max_pool_gather(metas: Metas, values: Values) -> bool:
    """Tell whether the indices are of such windows."""
    (x, indices), n = metas, values["n"]
    fits = indices.dtype is int64 and x.shape[:-n] == indices.shape[:-n]
    return fits and _pools(values["windows"], n, x.shape[-n:], indices.shape[-n:])


def _averages(metas: Metas, values: Values) -> bool:
    t = values["windows"]
    return computes(*metas) and type(values["divisor"]) is int and t.dh == t.dw == 1


def avg_pool(metas: Metas, values: Values) -> bool:
    """Tell whether the windows are averaged by a pooling function."""
    if not metas[0].dtype.is_floating_point:
        return True  # the op itself says that it is for floats
    return _averages(metas, values) and max_pool(metas, values)


def avg_pool_backward(metas: Metas, values: Values) -> bool:
    """Tell whether the windows lead back to `shape`."""
    (g,), shape, n = metas, values["shape"], values["n"]
    fits = _averages(metas, values) and g.shape[:-n] == tuple(shape[:-n])
    return fits and _pools(values["windows"], n, shape[-n:], g.shape[-n:])


def _patches(t: Windows) -> bool:
    return all(
        0 <= size < MOST and within((kernel, s, d), 1) and 0 <= p < MOST
        and count >= 1 and count == windows_along(size, kernel, s, p, d, False)
        for size, count, kernel, s, p, d in _axes(t)
    )  # fmt: skip


def unfold(metas: Metas, values: Values) -> bool:
    """Tell whether x has planes for these windows."""
    t, (x,) = values["t"], metas
    return x.ndim in (3, 4) and tuple(x.shape[-2:]) == (t.h, t.w) and _patches(t)


def fold(metas: Metas, values: Values) -> bool:
    """Tell whether x has columns of these windows."""
    t, (x,) = values["t"], metas
    fits = x.ndim in (2, 3) and _patches(t) and not x.dtype.is_bool
    return fits and x.shape[-2] % (t.kh * t.kw) == 0 and x.shape[-1] == t.oh * t.ow


def _resizes(t: Sizes, x: TensorMeta, n: int, space: Sequence[int], out: Sequence[int]) -> bool:
    """Return True if `interpolate` uses `t` to resize planes of `space` to `out`.

    Planes are the last `n` dimensions of tensors like x.
    """
    weighs = t.kind in (LINEAR, CUBIC)
    if not 1 <= n <= 3 or t.kind not in TAPS or t.corners not in (0, int(weighs)):
        return False
    lead = (1,) * (3 - n)
    sizes, steps, taps = t[:6], t[6:9], t[9:12]
    if sizes != (*lead, *space, *lead, *out) or not within(sizes, 1):
        return False
    if taps != (*lead, *(TAPS[t.kind],) * n) or steps[: 3 - n] != lead:
        return False
    each = zip(space, out, steps[3 - n :], strict=True)
    return t.single == (x.dtype.name != "float64") and all(_is_step(*a, t.corners) for a in each)


def _is_step(size: int, count: int, step: float, corners: int) -> bool:
    """Return True if a dimension may have such a step.

    It is the ratio of the sizes, or of the sizes before they were rounded to integers.
    """
    if corners:
        return math.isclose(step, (size - 1) / (count - 1) if count > 1 else 0.0, rel_tol=1e-6)
    return size / (count + 1) * (1 - 1e-6) <= step <= size / count * (1 + 1e-6)


def _interpolate(metas: Metas, values: Values) -> bool:
    (x,), t, n = metas, values["t"], values["n"]
    known = t.kind in (NEAREST, EXACT) or computes(x)
    return known and _resizes(t, x, n, x.shape[-n:], (t.od, t.oh, t.ow)[-n:])


def weighs(metas: Metas, values: Values) -> bool:
    """Tell whether planes are resized so by weights."""
    return values["t"].kind in (LINEAR, CUBIC) and _interpolate(metas, values)


def takes(metas: Metas, values: Values) -> bool:
    """Tell whether planes are resized so by taking the nearest."""
    return values["t"].kind in (NEAREST, EXACT) and _interpolate(metas, values)


def interpolate_backward(metas: Metas, values: Values) -> bool:
    """Tell whether g is the gradient of planes resized so."""
    (g,), t, n = metas, values["t"], values["n"]
    return computes(g) and _resizes(t, g, n, (t.d, t.h, t.w)[-n:], g.shape[-n:])


# --- regions --------------------------------------------------------------------------------------


def _aligns(whole: Sequence[int], metas: Metas, values: Values, bins: Sequence[int]) -> bool:
    """Return True if regions of planes of shape `whole` may be averaged over these bins."""
    first, rois = metas
    regions = values["regions"]
    fits = len(whole) == 4 and within(whole[2:], 1) and len(bins) == 2 and within(bins, 1)
    ways = type(regions.scale) is float and within((regions.ratio,), 0)
    listed = rois.ndim == 2 and rois.shape[1] == 5
    return fits and ways and listed and regions.aligned in (0, 1) and computes(first, rois)


def roi_align(metas: Metas, values: Values) -> bool:
    """Tell whether x has planes, and rois are regions."""
    return type(values["size"]) is tuple and _aligns(metas[0].shape, metas, values, values["size"])


def roi_align_backward(metas: Metas, values: Values) -> bool:
    """Tell whether g is the gradient of regions of `shape`."""
    (g, rois), shape = metas, values["shape"]
    if g.ndim != 4 or rois.ndim != 2 or not _aligns(shape, metas, values, g.shape[2:]):
        return False
    return tuple(g.shape[:2]) == (rois.shape[0], shape[1])


def _deforms(shape: Sequence[int], offset: TensorMeta, mask: TensorMeta, t: Windows) -> bool:
    """Return True if windows of planes of that shape may read where the offset says."""
    if len(shape) != 4 or tuple(shape[2:]) != (t.h, t.w) or not within(shape[2:], 1):
        return False
    if not _patches(t) or mask.ndim != 4 or not computes(offset, mask):
        return False
    n, channels, taps = shape[0], shape[1], t.kh * t.kw
    groups = mask.shape[1] // taps
    if groups < 1 or channels < 1 or channels % groups:
        return False
    whole = tuple(mask.shape) == (n, groups * taps, t.oh, t.ow)
    return whole and tuple(offset.shape) == (n, 2 * groups * taps, t.oh, t.ow)


def _are_columns(g: TensorMeta, shape: Sequence[int], t: Windows) -> bool:
    return tuple(g.shape) == (shape[0], shape[1] * t.kh * t.kw, t.oh * t.ow)


def deform_columns(metas: Metas, values: Values) -> bool:
    """Tell whether offset and mask are of these windows."""
    x, offset, mask = metas
    return computes(*metas) and _deforms(x.shape, offset, mask, values["windows"])


def deform_columns_backward(metas: Metas, values: Values) -> bool:
    """Tell whether g is the gradient of such columns."""
    (g, offset, mask), t = metas, values["windows"]
    if g.ndim != 3 or not computes(*metas):
        return False
    shape = (g.shape[0], values["n"], t.h, t.w)
    return _deforms(shape, offset, mask, t) and _are_columns(g, shape, t)


def deform_places_backward(metas: Metas, values: Values) -> bool:
    """Tell whether g is the gradient of such columns of x."""
    (g, x, offset, mask), t = metas, values["windows"]
    fits = computes(*metas) and _deforms(x.shape, offset, mask, t)
    return fits and _are_columns(g, x.shape, t)
