"""Search and order of elements: by index and by value."""

from __future__ import annotations

from typing import NamedTuple

from flowvm import ops
from flowvm.array_api.dtypes import paired
from flowvm.array_api.shapes import Axes, axes_of
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ShapeError
from flowvm.loading.listing import listing
from flowvm.meta.dtype import int64

__all__ = [
    "argmax", "argmin", "argsort", "count_nonzero", "nonzero", "searchsorted", "sort", "take",
    "take_along_axis", "unique_all", "unique_counts", "unique_inverse", "unique_values", "where",
]  # fmt: skip
__dir__ = listing(globals())


def argmax(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The place of the first greatest element along `axis`, or among all; int64."""
    return ops.argmax(x, axis, keepdims)


def argmin(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The place of the first smallest element along `axis`, or among all; int64."""
    return ops.argmin(x, axis, keepdims)


def count_nonzero(x: Tensor, /, *, axis: Axes | None = None, keepdims: bool = False) -> Tensor:
    """Return the number of elements that are not 0; int64."""
    places = axes_of("count_nonzero", x, axis)
    mask: Tensor = ops.ne(x, 0).to(int64)
    return ops.sum(mask, places, keepdims) if places else mask


def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """Return the indices of elements that are not 0, an array for each dimension.  ShapeError for a
    0-d array.
    """
    if x.ndim == 0:
        raise ShapeError("nonzero: an array of at least one dimension, got one of none")
    return tuple(ops.unbind(ops.nonzero(x), 1))


def searchsorted(
    x1: Tensor, x2: Tensor, /, *, side: str = "left", sorter: Tensor | None = None
) -> Tensor:
    """Return the indices at which elements of x2 keep x1 sorted; `sorter` puts x1 in order.  Equal
    elements are inserted before ("left") or behind ("right").
    """
    first, second = paired("searchsorted", x1, x2)
    return ops.searchsorted(first, second, side=side, sorter=sorter)


def where(condition: Tensor, x1: Tensor | complex, x2: Tensor | complex, /) -> Tensor:
    """Elements of x1 where `condition`, elsewhere of x2, all broadcast."""
    result: Tensor = ops.where(condition, *paired("where", x1, x2))
    return result


def take(x: Tensor, indices: Tensor, /, *, axis: int | None = None) -> Tensor:
    """The elements at `indices`, of one dimension, along `axis`, which need not be said of an array
    of one.
    """
    if axis is None and x.ndim != 1:
        raise ArgumentError("take needs axis=, but for an array of one dimension")
    place = 0 if axis is None else axis
    from_end = ops.where(indices < 0, indices + x.shape[place], indices)  # PyTorch takes none such
    return ops.index_select(x, place, from_end)


def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """The elements along `axis` at `indices`, which broadcasts with `x` elsewhere."""
    return ops.take_along_dim(x, indices.to(int64), axis)


def sort(
    x: Tensor, /, *, axis: int = -1, descending: object = False, stable: object = True
) -> Tensor:
    """The elements along `axis` in order; equal ones stay as they were."""
    return ops.sort(x, axis, descending, stable).values


def argsort(
    x: Tensor, /, *, axis: int = -1, descending: object = False, stable: object = True
) -> Tensor:
    """The places of the elements along `axis` in order; equal ones stay as they were; int64."""
    return ops.argsort(x, axis, descending, stable)


class unique_all_result(NamedTuple):  # noqa: N801 - the standard's name
    """The result of `unique_all`."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class unique_counts_result(NamedTuple):  # noqa: N801 - the standard's name
    """The result of `unique_counts`."""

    values: Tensor
    counts: Tensor


class unique_inverse_result(NamedTuple):  # noqa: N801 - the standard's name
    """The result of `unique_inverse`."""

    values: Tensor
    inverse_indices: Tensor


def _unique(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the different elements, for each place the number of its element, and counts.  Complex
    elements are pairs, in the pairs' order.
    """
    if not x.dtype.is_complex:
        values, inverse, counts = ops.unique(x, return_inverse=True, return_counts=True)
        return values, inverse, counts
    pairs = ops.view_as_real(x.reshape((-1,))) + 0.0  # -0 is 0
    values, inverse, counts = ops.unique(pairs, return_inverse=True, return_counts=True, dim=0)
    return ops.view_as_complex(values), inverse.reshape(x.shape), counts


def unique_all(x: Tensor, /) -> unique_all_result:
    """Return the different elements, the first index of each, for each place the number of its
    element, and counts.  NaNs differ from each other.
    """
    values, inverse, counts = _unique(x)
    flat = inverse.reshape((-1,))
    places = ops.arange(flat.numel(), device=x.device)
    first = ops.full((values.numel(),), flat.numel(), dtype=int64, device=x.device)
    first = first.scatter_reduce(0, flat, places, "amin")
    return unique_all_result(values, first, inverse, counts)


def unique_counts(x: Tensor, /) -> unique_counts_result:
    """Return the different elements, and the count of each.  NaNs differ from each other."""
    values, _, counts = _unique(x)
    return unique_counts_result(values, counts)


def unique_inverse(x: Tensor, /) -> unique_inverse_result:
    """The different elements, and for each place the number of its element."""
    values, inverse, _ = _unique(x)
    return unique_inverse_result(values, inverse)


def unique_values(x: Tensor, /) -> Tensor:
    """The different elements.  NaNs differ from each other."""
    return _unique(x)[0]
