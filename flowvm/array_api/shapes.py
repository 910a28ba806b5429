"""Arrays reshaped, joined, repeated and reordered."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flowvm import ops
from flowvm.array_api.dtypes import result_type
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, OutOfRangeError, ShapeError
from flowvm.loading.listing import listing

__all__ = [
    "broadcast_arrays", "broadcast_to", "concat", "expand_dims", "flip", "moveaxis", "permute_dims",
    "repeat", "reshape", "roll", "squeeze", "stack", "tile", "unstack",
]  # fmt: skip
__dir__ = listing(globals())

Axes = int | Sequence[int]


def _promoted_arrays(arrays: Sequence[Tensor]) -> list[Tensor]:
    dtype = result_type(*arrays)
    return [x.to(dtype) for x in arrays]


def axes_of(name: str, x: Tensor, axis: Axes | None) -> tuple[int, ...]:
    """Return `axis` as indices of dimensions of `x`, all for None; ShapeError for others."""
    n = x.ndim
    if axis is None:
        return tuple(range(n))
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    for one in axes:
        if not -n <= one < n:
            raise ShapeError(f"{name}: axis {one} of an array with {n} dimensions")
    places = tuple(one % n for one in axes)
    if len(set(places)) < len(places):
        raise ShapeError(f"{name}: an axis occurs twice in {axes}")
    return places


def broadcast_arrays(*arrays: Tensor) -> list[Tensor]:
    """Return the arrays broadcast to their common shape."""
    return list(ops.broadcast_tensors(*arrays)) if arrays else []


def broadcast_to(x: Tensor, /, shape: Sequence[int]) -> Tensor:
    """`x` in a shape that it broadcasts to; ShapeError if it does not."""
    return ops.broadcast_to(x, tuple(shape))


def concat(arrays: Sequence[Tensor], /, *, axis: int | None = 0) -> Tensor:
    """The arrays one behind the other; with axis=None their elements, in one dimension."""
    met = _promoted_arrays(arrays)
    if axis is None:
        return ops.cat([x.reshape((-1,)) for x in met], 0)
    for x in met:  # PyTorch passes over empty arrays of one dimension
        if x.ndim != met[0].ndim:
            shapes = [tuple(one.shape) for one in met]
            raise ShapeError(f"concat: arrays with as many dimensions each, got shapes {shapes}")
    return ops.cat(met, axis)


def stack(arrays: Sequence[Tensor], /, *, axis: int = 0) -> Tensor:
    """Arrays of one shape along a new dimension."""
    return ops.stack(_promoted_arrays(arrays), axis)


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """Return the parts of `x` along a dimension, without it."""
    return tuple(ops.unbind(x, axis))


def expand_dims(x: Tensor, /, axis: int = 0) -> Tensor:
    """`x` with a new dimension of size 1 in front of `axis`; OutOfRangeError (an IndexError) where
    there is no such.
    """
    if not -x.ndim - 1 <= axis <= x.ndim:
        raise OutOfRangeError(f"expand_dims: axis {axis} of an array with {x.ndim} dimensions")
    return ops.unsqueeze(x, axis)


def squeeze(x: Tensor, /, axis: Axes) -> Tensor:
    """Return `x` without these dimensions; ShapeError for a dimension that is not of size 1."""
    places = axes_of("squeeze", x, axis)
    for place in places:
        if x.shape[place] != 1:
            raise ShapeError(f"squeeze: dimension {place} of shape {tuple(x.shape)} is not 1")
    return ops.reshape(x, [n for d, n in enumerate(x.shape) if d not in places])


def flip(x: Tensor, /, *, axis: Axes | None = None) -> Tensor:
    """Return the elements in reverse order along these dimensions, or all."""
    return ops.flip(x, axes_of("flip", x, axis))


def moveaxis(x: Tensor, source: Axes, destination: Axes, /) -> Tensor:
    """`x` with dimensions in other places."""
    return ops.movedim(x, source, destination)


def permute_dims(x: Tensor, /, axes: Sequence[int]) -> Tensor:
    """`x` with its dimensions in that order."""
    return ops.permute(x, tuple(axes))


def repeat(x: Tensor, repeats: int | Tensor, /, *, axis: int | None = None) -> Tensor:
    """Each element (along `axis`; of all in one dimension for None) so many times in a row."""
    if isinstance(repeats, Tensor) and repeats.ndim == 0:
        repeats = int(repeats)
    return ops.repeat_interleave(x, repeats, axis)


def reshape(x: Tensor, /, shape: Sequence[int], *, copy: object = None) -> Tensor:
    """Return `x` in another shape with as many elements; one size may be -1.  The result is a view
    if possible (None), a copy (True), or a view or an ArgumentError (False).
    """
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    if -1 in shape and math.prod(n for n in shape if n != -1) == 0:
        raise ShapeError(f"reshape: the size for -1 in {shape} is ambiguous: x has no elements")
    if copy:
        return ops.reshape(ops.clone(x), shape)
    if copy is None:
        return ops.reshape(x, shape)
    try:
        reshaped: Tensor = x.view(shape)
    except ShapeError as error:
        raise ArgumentError(f"reshape: copy=False, but {error}") from None
    return reshaped


def roll(x: Tensor, /, shift: Axes, *, axis: Axes | None = None) -> Tensor:
    """Return the elements moved on by `shift` along `axis`; the last ones move to the beginning.
    With None, all elements form one dimension.
    """
    if axis is not None and isinstance(shift, int) and not isinstance(axis, int):
        shift = [shift] * len(axis)
    return ops.roll(x, shift, axis)


def tile(x: Tensor, repetitions: Sequence[int], /) -> Tensor:
    """`x`, so many times along each dimension; the shorter of both has ones in front."""
    return ops.tile(x, tuple(repetitions))
