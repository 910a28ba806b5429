"""Rules for calls of LAPACK's ops: their `takes=`."""

from __future__ import annotations

from flowvm.meta.dtype import int32
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.kinds import Metas, Values


def _matrices(*metas: TensorMeta) -> bool:
    """Tell whether these are batches of matrices, as many of each, of one dtype that LAPACK has."""
    batch = metas[0].shape[:-2]
    dtypes = metas[0].dtype.name in ("float32", "float64", "complex64", "complex128")
    return dtypes and all(
        m.ndim >= 2 and m.shape[:-2] == batch and m.dtype is metas[0].dtype for m in metas
    )


def matrix(metas: Metas, values: Values) -> bool:
    """Tell whether the operands are batches of matrices."""
    return _matrices(*metas)


def square(metas: Metas, values: Values) -> bool:
    """Tell whether the first operand has square matrices."""
    return _matrices(*metas) and metas[0].shape[-1] == metas[0].shape[-2]


def system(metas: Metas, values: Values) -> bool:
    """Tell whether these are systems, with right sides as rows."""
    return square(metas, values) and metas[1].shape[-1] == metas[0].shape[-1]


def factored_system(metas: Metas, values: Values) -> bool:
    """Tell whether these are factored systems, with right sides as rows."""
    ld, b, pivots = metas
    exchanges = pivots.dtype is int32 and pivots.shape == ld.shape[:-1]
    return system((ld, b), values) and exchanges


def reflectors(metas: Metas, values: Values) -> bool:
    """Tell whether tau has a factor for each reflector of a."""
    a, tau = metas
    if not _matrices(a) or tau.dtype is not a.dtype or tau.ndim != a.ndim - 1:
        return False
    n, m = a.shape[-2:]
    return tau.shape[:-1] == a.shape[:-2] and tau.shape[-1] <= n <= m


def least_squares(metas: Metas, values: Values) -> bool:
    """Tell whether b has rows for the solutions, too."""
    return _matrices(*metas) and metas[1].shape[-1] == max(metas[0].shape[-2:])


def permutes(metas: Metas, values: Values) -> bool:
    """Tell whether pivots are of `m` rows at most."""
    (pivots,) = metas
    return pivots.dtype is int32 and pivots.ndim >= 1 and pivots.shape[-1] <= values["m"]
