"""The rules for calls of flowvm's own operators that come from a file.

They hold for operands and attributes together, and exist for operators whose kernels rely on more
than one value at a time.  A rule repeats the checks of the public functions: by the same functions
where these are apart, else by the relation that they keep.  `flowvm.graph.logical.attributes` first
checks the kind of each attribute, for all operators.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowvm.graph.logical.plane_calls import PLANE_CALLS, CallRule, Metas, Values, computes, within
from flowvm.meta.dtype import int32, int64
from flowvm.meta.meta import TensorMeta
from flowvm.ops.fourier.transforms import LARGEST, _factors
from flowvm.ops.sequences.parts import attention_ops, scans

MOST = 1 << 31  # steps of a sequence

# --- sequences ------------------------------------------------------------------------------------


def _attends(q: TensorMeta, k: TensorMeta, v: TensorMeta, mask: TensorMeta | None) -> bool:
    """Return True if `fused` could have made these operands."""
    given = (q, k, v) if mask is None else (q, k, v, mask)
    if any(m.ndim != 4 or (m.stride[-1] != 1 and not m.contiguous) for m in given):
        return False
    if not (q.shape[:2] == k.shape[:2] == v.shape[:2] and q.shape[3] == k.shape[3]):
        return False
    if mask is not None:
        around = zip(mask.shape, (*q.shape[:3], k.shape[2]), strict=True)
        if mask.shape[3] != k.shape[2] or any(have not in (1, want) for have, want in around):
            return False
    return k.shape[2] == v.shape[2] and computes(*given) and attention_ops.fits(q, k, v)


def _attention(metas: Metas, values: Values) -> bool:
    q, k, v = metas[:3]
    return _attends(q, k, v, metas[3] if len(metas) > 3 else None)


def _attention_backward(metas: Metas, values: Values) -> bool:
    q, k, v, out, levels, g = metas[:6]
    whole = (*q.shape[:3], v.shape[-1])
    fits = tuple(out.shape) == tuple(g.shape) == whole and levels.shape == q.shape[:3]
    same = all(m.dtype is q.dtype and m.contiguous for m in (out, levels, g))
    return fits and same and _attends(q, k, v, metas[6] if len(metas) > 6 else None)


def _steps(sizes: Sequence[int]) -> bool:
    """Return True if no sample returns after it has left, by the number of samples in each step."""
    return list(sizes) == sorted(sizes, reverse=True) and within(sizes, 0)


def _recurrent(metas: Metas, values: Values) -> bool:
    x, weight, bias, state = metas
    ranks = x.ndim, weight.ndim, bias.ndim, state.ndim
    fits = ranks == (2, 2, 1, 2) and computes(*metas) and _steps(values["sizes"])
    return fits and scans.fits(x.dtype.itemsize, weight.shape[0])  # its infer asks for the rest


def _recurrent_backward(metas: Metas, values: Values) -> bool:
    weight, state, out, notes, g, dlast = metas
    if any(m.ndim != 2 for m in metas) or not computes(*metas) or not _steps(values["sizes"]):
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
    if x.ndim != 3 or not ints or not computes(x):
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
    if not _ctc(metas[1:5], values) or not computes(g, x, loss, alpha) or alpha.ndim != 3:
        return False
    t, n = x.shape[:2]
    states = alpha.shape[2]
    sizes = tuple(g.shape) == tuple(loss.shape) == (n,) and tuple(alpha.shape[:2]) == (n, t)
    return sizes and states % 2 == 1


# --- matrices -------------------------------------------------------------------------------------


def _matrices(*metas: TensorMeta) -> bool:
    """Return True if these are batches of as many matrices, in one of LAPACK's dtypes."""
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


def _factored_system(metas: Metas, values: Values) -> bool:
    ld, b, pivots = metas
    exchanges = pivots.dtype is int32 and pivots.shape == ld.shape[:-1]
    return _system((ld, b), values) and exchanges


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
    **PLANE_CALLS, "attention": _attention,
    "attention_backward": _attention_backward, "recurrent": _recurrent,
    "recurrent_backward": _recurrent_backward, "ctc_loss": _ctc_loss,
    "ctc_loss_backward": _ctc_loss_backward, "triangular_solve": _system, "solve_ex": _system,
    **dict.fromkeys(("lu_factor", "qr", "geqrf", "svd", "svdvals"), _matrix),
    **dict.fromkeys(
        ("cholesky_ex", "eigh", "eigvalsh", "real_eig", "complex_eig", "ldl_factor"), _square
    ),
    "householder_product": _reflectors, "lstsq": _least_squares, "lu_permutation": _permutes,
    "fft": _transforms, "ldl_solve": _factored_system,
}  # fmt: skip
