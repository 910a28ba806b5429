"""What flowvm's own operators can be called with, operands and attributes together, where a call
comes from a file: the rules of the operators whose kernels rely on more than one value at a time.

A rule asks what the public functions check or reckon before they issue the operator: by the same
functions where these are apart, else by the relation that they keep.  `flowvm.graph.logical.
attributes` asks first whether each attribute is of the right kind, and holds for all operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flowvm.meta.device import cpu
from flowvm.meta.dtype import int32, int64
from flowvm.meta.meta import TensorMeta
from flowvm.ops.fourier.transforms import LARGEST, _factors
from flowvm.ops.planes.cpu.pool_kernels import Windows
from flowvm.ops.planes.cpu.resize_kernels import CUBIC, EXACT, LINEAR, NEAREST, Sizes
from flowvm.ops.planes.parts.conv_ops import How
from flowvm.ops.planes.pooling import windows_along
from flowvm.ops.sequences.parts import attention_ops, scans

Metas = Sequence[TensorMeta]
Values = dict[str, Any]
CallRule = Callable[[Metas, Values], bool]
MOST = 1 << 31  # of a size of a window, a step, a gap
TAPS = {NEAREST: 1, EXACT: 1, LINEAR: 2, CUBIC: 4}


def _computes(*metas: TensorMeta) -> bool:
    """Whether all are of one dtype of floats that the device's kernels compute with."""
    dtype = metas[0].dtype
    reduced = dtype.reduced and (dtype.minifloat or metas[0].device is cpu)
    return dtype.is_floating_point and not reduced and all(m.dtype is dtype for m in metas)


def _within(values: Sequence[int], low: int, high: int = MOST - 1) -> bool:
    return all(low <= v <= high for v in values)


# --- convolution ----------------------------------------------------------------------------------


def _convolves(whole: Sequence[int], weight: Sequence[int], out: Sequence[int], how: How) -> bool:
    """Whether a convolution from shape `whole` to `out`, or the transposed one back, is one that
    the public functions give: of each dimension what is left over behind the last window is less
    than a stride, or an output padding, or "same" has padded once more behind.
    """
    n, missing = len(whole) - 2, 5 - len(whole)
    if not 1 <= n <= 3 or len(weight) != n + 2 or len(out) != n + 2:
        return False
    stride, padding, dilation, groups = how
    if not (_within(stride, 1) and _within(padding, 0) and _within(dilation, 1)):
        return False
    filled = stride[:missing], padding[:missing], dilation[:missing]
    if filled != ((1,) * missing, (0,) * missing, (1,) * missing):
        return False
    if groups < 1 or whole[1] != weight[1] * groups or weight[0] % groups:
        return False
    if whole[0] != out[0] or out[1] != weight[0] or not _within(weight[2:], 1):
        return False
    each = zip(whole[2:], out[2:], weight[2:], *(v[missing:] for v in how[:3]), strict=True)
    for size, count, kernel, s, p, d in each:
        reach = d * (kernel - 1)
        left = size + 2 * p - reach - 1 - (count - 1) * s
        same = left == -1 and s == 1 and p == reach // 2 and reach % 2 == 1
        if not (0 <= left < max(s, d) or same):
            return False
    return True


def _biased(metas: Metas, channels: int) -> bool:
    return all(tuple(bias.shape) == (channels,) for bias in metas[2:]) and _computes(*metas)


def _conv(metas: Metas, values: Values) -> bool:
    x, weight = metas[0].shape, metas[1].shape
    if len(x) < 3 or len(weight) != len(x):
        return False
    out = (x[0], weight[0], *values["size"])
    return _convolves(x, weight, out, values["how"]) and _biased(metas, weight[0])


def _conv_input(metas: Metas, values: Values) -> bool:
    whole = values["shape"]
    if len(whole) < 3:
        return False
    fits = _convolves(whole, metas[1].shape, metas[0].shape, values["how"])
    return fits and _biased(metas, whole[1])


def _conv_weight(metas: Metas, values: Values) -> bool:
    g, x = metas
    return _computes(g, x) and _convolves(x.shape, values["shape"], g.shape, values["how"])


# --- windows --------------------------------------------------------------------------------------


def _axes(t: Windows) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(size, windows, kernel, stride, padding, dilation) of each dimension of a plane."""
    return t[0::2], t[1::2]


def _pools(t: Windows, n: int, space: Sequence[int], out: Sequence[int]) -> bool:
    """Whether windows are those that a pooling function finds for planes of `space` and `out`, the
    last `n` dimensions.
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
        or not (_within((kernel, s, d), 1) and 0 <= 2 * p <= d * (kernel - 1) + 1)
    ):
        return False
    return count in (windows_along(size, kernel, s, p, d, ceil) for ceil in (False, True))


def _max_pool(metas: Metas, values: Values) -> bool:
    t, n = values["windows"], values["n"]
    return _pools(t, n, metas[0].shape[-n:], (t.oh, t.ow)[-n:])


def _max_pool_backward(metas: Metas, values: Values) -> bool:
    (g, indices), size = metas, values["size"]
    fits = isinstance(size, tuple) and g.shape == indices.shape and indices.dtype is int64
    return fits and _pools(values["windows"], len(size), size, g.shape[-len(size) :])


def _max_pool_gather(metas: Metas, values: Values) -> bool:
    (x, indices), n = metas, values["n"]
    fits = indices.dtype is int64 and x.shape[:-n] == indices.shape[:-n]
    return fits and _pools(values["windows"], n, x.shape[-n:], indices.shape[-n:])


def _avg_pool(metas: Metas, values: Values) -> bool:
    return _computes(*metas) and type(values["divisor"]) is int and _max_pool(metas, values)


def _avg_pool_backward(metas: Metas, values: Values) -> bool:
    (g,), shape, n = metas, values["shape"], values["n"]
    fits = _computes(g) and type(values["divisor"]) is int and g.shape[:-n] == tuple(shape[:-n])
    return fits and _pools(values["windows"], n, shape[-n:], g.shape[-n:])


def _patches(t: Windows) -> bool:
    return all(
        0 <= size < MOST and _within((kernel, s, d), 1) and 0 <= p < MOST
        and count >= 1 and count == windows_along(size, kernel, s, p, d, False)
        for size, count, kernel, s, p, d in _axes(t)
    )  # fmt: skip


def _unfold(metas: Metas, values: Values) -> bool:
    t, (x,) = values["t"], metas
    return x.ndim in (3, 4) and tuple(x.shape[-2:]) == (t.h, t.w) and _patches(t)


def _fold(metas: Metas, values: Values) -> bool:
    t, (x,) = values["t"], metas
    fits = x.ndim in (2, 3) and _patches(t) and not x.dtype.is_bool
    return fits and x.shape[-2] % (t.kh * t.kw) == 0 and x.shape[-1] == t.oh * t.ow


def _resizes(t: Sizes, n: int, space: Sequence[int], out: Sequence[int]) -> bool:
    """Whether `interpolate` resizes planes of `space` to `out`, the last `n` dimensions, so."""
    if not 1 <= n <= 3 or t.kind not in TAPS or t.corners not in (0, 1) or t.single not in (0, 1):
        return False
    missing, taps = 3 - n, TAPS[t.kind]
    if t[:3] != ((1,) * missing + tuple(space)) or t[3:6] != ((1,) * missing + tuple(out)):
        return False
    if t[9:12] != ((1,) * missing + (taps,) * n) or not _within(t[:6], 1):
        return False
    return all(
        0 <= step and step * (count + 1) < MOST for step, count in zip(t[6:9], t[3:6], strict=True)
    )


def _interpolate(metas: Metas, values: Values) -> bool:
    (x,), t, n = metas, values["t"], values["n"]
    known = t.kind in (NEAREST, EXACT) or _computes(x)
    return known and _resizes(t, n, x.shape[-n:], (t.od, t.oh, t.ow)[-n:])


def _weighs(metas: Metas, values: Values) -> bool:
    return values["t"].kind in (LINEAR, CUBIC) and _interpolate(metas, values)


def _takes(metas: Metas, values: Values) -> bool:
    return values["t"].kind in (NEAREST, EXACT) and _interpolate(metas, values)


def _interpolate_backward(metas: Metas, values: Values) -> bool:
    (g,), t, n = metas, values["t"], values["n"]
    return _computes(g) and _resizes(t, n, (t.d, t.h, t.w)[-n:], g.shape[-n:])


# --- sequences ------------------------------------------------------------------------------------


def _attends(q: TensorMeta, k: TensorMeta, v: TensorMeta, mask: TensorMeta | None) -> bool:
    """Whether these are what `fused` makes of what it is given."""
    given = (q, k, v) if mask is None else (q, k, v, mask)
    if any(m.ndim != 4 or (m.stride[-1] != 1 and not m.contiguous) for m in given):
        return False
    if not (q.shape[:2] == k.shape[:2] == v.shape[:2] and q.shape[3] == k.shape[3]):
        return False
    if mask is not None:
        around = zip(mask.shape, (*q.shape[:3], k.shape[2]), strict=True)
        if mask.shape[3] != k.shape[2] or any(have not in (1, want) for have, want in around):
            return False
    return k.shape[2] == v.shape[2] and _computes(*given) and attention_ops.fits(q, k, v)


def _attention(metas: Metas, values: Values) -> bool:
    return _attends(*metas[:3], metas[3] if len(metas) > 3 else None)


def _attention_backward(metas: Metas, values: Values) -> bool:
    q, k, v, out, levels, g = metas[:6]
    whole = (*q.shape[:3], v.shape[-1])
    fits = tuple(out.shape) == tuple(g.shape) == whole and levels.shape == q.shape[:3]
    same = all(m.dtype is q.dtype and m.contiguous for m in (out, levels, g))
    return fits and same and _attends(q, k, v, metas[6] if len(metas) > 6 else None)


def _steps(sizes: Sequence[int]) -> bool:
    """Whether so many samples take part in each step: none comes back that has left."""
    return list(sizes) == sorted(sizes, reverse=True) and _within(sizes, 0)


def _recurrent(metas: Metas, values: Values) -> bool:
    x, weight, bias, state = metas
    ranks = x.ndim, weight.ndim, bias.ndim, state.ndim
    fits = ranks == (2, 2, 1, 2) and _computes(*metas) and _steps(values["sizes"])
    return fits and scans.fits(x.dtype.itemsize, weight.shape[0])  # its infer asks for the rest


def _recurrent_backward(metas: Metas, values: Values) -> bool:
    weight, state, out, notes, g, dlast = metas
    if any(m.ndim != 2 for m in metas) or not _computes(*metas) or not _steps(values["sizes"]):
        return False
    (gates, size), cell, sizes = weight.shape, values["cell"], values["sizes"]
    width, rows = 2 * size if cell == "lstm" else size, sum(sizes)
    samples = max(sizes, default=0)
    shapes = [tuple(m.shape) for m in (state, out, notes, g, dlast)]
    wanted = [
        (samples, width), (rows, size), (rows, scans.KEPT[cell] * size), (rows, size),
        (samples, width),
    ]  # fmt: skip
    fits = gates == scans.GATES[cell] * size and scans.fits(g.dtype.itemsize, gates)
    return fits and shapes == wanted


def _ctc(metas: Metas, values: Values) -> bool:
    x, targets, steps, counts = metas[:4]
    ints = all(m.dtype is int64 for m in (targets, steps, counts))
    if x.ndim != 3 or not ints or not _computes(x):
        return False
    n, labels = x.shape[1], values["labels"]
    fits = tuple(steps.shape) == tuple(counts.shape) == (n,) and 0 <= labels.blank < x.shape[2]
    ways = labels.joined in (0, 1) and labels.zero_infinity in (0, 1)
    rows = targets.ndim == (1 if labels.joined else 2) and (labels.joined or targets.shape[0] == n)
    return fits and ways and bool(rows)


def _ctc_loss(metas: Metas, values: Values) -> bool:
    return _ctc(metas, values) and 0 <= values["longest"] < MOST


def _ctc_loss_backward(metas: Metas, values: Values) -> bool:
    g, x, loss, alpha = metas[0], metas[1], metas[5], metas[6]
    if not _ctc(metas[1:5], values) or not _computes(g, x, loss, alpha) or alpha.ndim != 3:
        return False
    t, n = x.shape[:2]
    states = alpha.shape[2]
    sizes = tuple(g.shape) == tuple(loss.shape) == (n,) and tuple(alpha.shape[:2]) == (n, t)
    return sizes and states % 2 == 1


# --- matrices -------------------------------------------------------------------------------------


def _matrices(*metas: TensorMeta) -> bool:
    """Whether these are batches of matrices, as many of each, of one dtype that LAPACK has."""
    batch = metas[0].shape[:-2]
    dtypes = metas[0].dtype.name in ("float32", "float64", "complex64", "complex128")
    return dtypes and all(
        m.ndim >= 2 and m.shape[:-2] == batch and m.dtype is metas[0].dtype for m in metas
    )


def _matrix(metas: Metas, values: Values) -> bool:
    return _matrices(*metas)


def _square(metas: Metas, values: Values) -> bool:
    return _matrices(*metas) and metas[0].shape[-1] == metas[0].shape[-2]


def _system(metas: Metas, values: Values) -> bool:
    return _square(metas, values) and metas[1].shape[-1] == metas[0].shape[-1]


def _reflectors(metas: Metas, values: Values) -> bool:
    a, tau = metas
    if not _matrices(a) or tau.dtype is not a.dtype or tau.ndim != a.ndim - 1:
        return False
    n, m = a.shape[-2:]
    return tau.shape[:-1] == a.shape[:-2] and tau.shape[-1] <= n <= m


def _least_squares(metas: Metas, values: Values) -> bool:
    return _matrices(*metas) and metas[1].shape[-1] == max(metas[0].shape[-2:])


def _permutes(metas: Metas, values: Values) -> bool:
    (pivots,) = metas
    return pivots.dtype is int32 and pivots.ndim >= 1 and pivots.shape[-1] <= values["m"]


def _transforms(metas: Metas, values: Values) -> bool:
    x, roots = metas
    if not x.dtype.is_complex or roots.dtype is not x.dtype or x.ndim < 1:
        return False
    n = x.shape[-1]
    return tuple(roots.shape) == (n,) and max(_factors(n) if n else (), default=1) <= LARGEST


CALLS: dict[str, CallRule] = {
    "conv": _conv, "conv_input": _conv_input, "conv_weight": _conv_weight, "max_pool": _max_pool,
    "max_pool_backward": _max_pool_backward, "max_pool_gather": _max_pool_gather,
    "avg_pool": _avg_pool, "avg_pool_backward": _avg_pool_backward, "unfold": _unfold,
    "fold": _fold, "interpolate": _weighs, "interpolate_nearest": _takes,
    "interpolate_backward": _interpolate_backward, "attention": _attention,
    "attention_backward": _attention_backward, "recurrent": _recurrent,
    "recurrent_backward": _recurrent_backward, "ctc_loss": _ctc_loss,
    "ctc_loss_backward": _ctc_loss_backward, "triangular_solve": _system, "solve_ex": _system,
    **dict.fromkeys(("lu_factor", "qr", "geqrf", "svd", "svdvals"), _matrix),
    **dict.fromkeys(
        ("cholesky_ex", "eigh", "eigvalsh", "real_eig", "complex_eig", "ldl_factor"), _square
    ),
    "householder_product": _reflectors, "lstsq": _least_squares, "lu_permutation": _permutes,
    "fft": _transforms,
}  # fmt: skip
