"""Functions of many elements: along `axis`, one or several dimensions, or all for None."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from flowvm import ops
from flowvm.array_api.shapes import Axes, axes_of
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError
from flowvm.loading.listing import listing, own_names
from flowvm.meta.dtype import DType, bool_, int64, uint64

__dir__ = listing(globals())


def _over(
    name: str, function: Callable[..., Any], x: Tensor, axis: Axes | None, keepdims: bool
) -> Tensor:
    """`function`, which takes several dimensions; where `axis` is (), each element by itself.

    PyTorch's functions reduce all dimensions for ().
    """
    places = axes_of(name, x, axis)
    if places:
        result: Tensor = function(x, places, keepdims)
    else:
        result = function(x.unsqueeze(0), (0,), False)
    return result


def _counts(dtype: DType) -> bool:
    """Return True if sums of this dtype are int64: for signed integers and booleans."""
    return dtype.is_signed or dtype.is_bool


def _whole(x: Tensor, dtype: DType | None) -> Tensor:
    """`x` in the dtype that sums and products have: that, or 64 bits of whole numbers."""
    if dtype is None:
        dtype = x.dtype if x.dtype.inexact else int64 if _counts(x.dtype) else uint64
    whole: Tensor = x.to(dtype)
    return whole


def sum(
    x: Tensor, /, *, axis: Axes | None = None, dtype: DType | None = None, keepdims: Any = False
) -> Tensor:
    """The sum, in `dtype`; without one, of whole numbers in 64 bits."""
    x = _whole(x, dtype)
    return _over("sum", partial(ops.sum, dtype=x.dtype), x, axis, keepdims)


def prod(
    x: Tensor, /, *, axis: Axes | None = None, dtype: DType | None = None, keepdims: bool = False
) -> Tensor:
    """The product, in `dtype`; without one, of whole numbers in 64 bits."""
    x = _whole(x, dtype)
    for place in sorted(axes_of("prod", x, axis), reverse=True):
        x = ops.prod(x, place, keepdims, dtype=x.dtype)
    return x


def max(x: Tensor, /, *, axis: Axes | None = None, keepdims: Any = False) -> Tensor:
    """Return the greatest element; NaN if there is one."""
    return _over("max", ops.amax, x, axis, keepdims)


def min(x: Tensor, /, *, axis: Axes | None = None, keepdims: Any = False) -> Tensor:
    """Return the smallest element; NaN if there is one."""
    return _over("min", ops.amin, x, axis, keepdims)


def mean(x: Tensor, /, *, axis: Axes | None = None, keepdims: Any = False) -> Tensor:
    """The mean, of floats or complex numbers; NaN of none."""
    return _over("mean", ops.mean, x, axis, keepdims)


def var(
    x: Tensor, /, *, axis: Axes | None = None, correction: float = 0.0, keepdims: Any = False
) -> Tensor:
    """The variance: squares of distances from the mean, summed, over n - correction."""
    over = partial(ops.var, correction=correction)
    return _over("var", lambda x, d, keep: over(x, d, None, keep), x, axis, keepdims)


def std(
    x: Tensor, /, *, axis: Axes | None = None, correction: float = 0.0, keepdims: Any = False
) -> Tensor:
    """The square root of the variance."""
    over = partial(ops.std, correction=correction)
    return _over("std", lambda x, d, keep: over(x, d, None, keep), x, axis, keepdims)


def all(x: Tensor, /, *, axis: Axes | None = None, keepdims: Any = False) -> Tensor:
    """Return True if all elements are true; every number but 0 is."""
    return _over("all", ops.all, x.to(bool_), axis, keepdims)


def any(x: Tensor, /, *, axis: Axes | None = None, keepdims: Any = False) -> Tensor:
    """Return True if any element is true; every number but 0 is."""
    return _over("any", ops.any, x.to(bool_), axis, keepdims)


def _one_axis(name: str, x: Tensor, axis: int | None) -> int:
    if axis is None and x.ndim != 1:
        raise ArgumentError(f"{name} needs axis=, but for an array of one dimension")
    return axes_of(name, x, -1 if axis is None else axis)[0]


def cumulative_sum(
    x: Tensor,
    /,
    *,
    axis: int | None = None,
    dtype: DType | None = None,
    include_initial: object = False,
) -> Tensor:
    """Sums of the first, of the first two, ...; with include_initial a 0 in front."""
    place = _one_axis("cumulative_sum", x, axis)
    x = _whole(x, dtype)
    sums = ops.cumsum(x, place, dtype=x.dtype)
    return _begun(sums, place, 0) if include_initial else sums


def cumulative_prod(
    x: Tensor,
    /,
    *,
    axis: int | None = None,
    dtype: DType | None = None,
    include_initial: object = False,
) -> Tensor:
    """Products of the first, of the first two, ...; with include_initial a 1 in front."""
    place = _one_axis("cumulative_prod", x, axis)
    x = _whole(x, dtype)
    products = ops.cumprod(x, place, dtype=x.dtype)
    return _begun(products, place, 1) if include_initial else products


def _begun(x: Tensor, place: int, first: int) -> Tensor:
    shape = [1 if d == place else n for d, n in enumerate(x.shape)]
    return ops.cat([ops.full(shape, first, dtype=x.dtype, device=x.device), x], place)


def diff(
    x: Tensor,
    /,
    *,
    axis: int = -1,
    n: int = 1,
    prepend: Tensor | None = None,
    append: Tensor | None = None,
) -> Tensor:
    """Return differences of neighbours, taken n times, of `prepend`, x and `append` joined."""
    ends = [None if end is None else end.to(x.dtype) for end in (prepend, append)]
    return ops.diff(x, n, axis, *ends)


__all__ = own_names(globals())
