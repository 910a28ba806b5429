"""The walk that a kernel takes to reduce any dimensions of any strided tensor.

`walk_of` drops the dimensions of size 1, orders the reduced ones by memory, and merges dimensions
that lie together.  At most two kept and two reduced dimensions are left in all but odd cases.  The
cut of a walk into segments follows from its sizes alone: segments are what threads share, and a
float sum of many numbers keeps its digits.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from flowvm.meta.dtype import DType, bool_, int16, uint8
from flowvm.meta.meta import TensorMeta
from flowvm.ops.rows.parts.fold_rules import REDUCED

if TYPE_CHECKING:
    from flowvm.meta.arrays import Number

Dim = tuple[int, int]  # size, stride
ROW_SEGMENT = 1 << 16  # elements
COLUMN_SEGMENT = 1 << 17  # elements of a segment of rows, where there is more than one
TILE = 2048  # columns
GRAIN = 1 << 18  # elements of a chunk


# --- walks --------------------------------------------------------------------------------------


class Walk(NamedTuple):
    """The dimensions of a reduction, outermost first."""

    free: tuple[Dim, Dim]
    reduced: tuple[Dim, Dim]

    @property
    def results(self) -> int:
        return self.free[0][0] * self.free[1][0]

    @property
    def elements(self) -> int:
        return self.reduced[0][0] * self.reduced[1][0]

    @property
    def extent(self) -> int:
        """Return the distance from the first element to behind the last."""
        return 1 + sum((size - 1) * stride for size, stride in (*self.free, *self.reduced))

    @property
    def in_columns(self) -> bool:
        """True if the kept elements lie one after another, and the reduced ones do not."""
        return self.reduced[1][1] != 1 and self.free[1][1] == 1

    @property
    def lies_together(self) -> bool:
        """True if the results' elements are dense runs, one behind the other."""
        dims = [dim for dim in (*self.free, *self.reduced) if dim[0] != 1]
        return all(
            outer[1] == inner[0] * inner[1] for outer, inner in itertools.pairwise(dims)
        ) and (not dims or dims[-1][1] == 1)


def _merged(dims: list[Dim]) -> list[Dim]:
    merged: list[Dim] = []
    for size, stride in dims:
        if merged and merged[-1][1] == size * stride:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    return merged


@functools.lru_cache(maxsize=4096)
def walk_of(x: TensorMeta, dims: tuple[int, ...]) -> Walk | None:
    """The walk of a reduction of `x`, which is not empty, over `dims`; None if it has more
    dimensions than a kernel takes, or nothing that is reduced or kept last lies together.
    """
    results = [
        (x.shape[d], x.stride[d]) for d in range(x.ndim) if d not in dims and x.shape[d] != 1
    ]
    reduced = [(x.shape[d], x.stride[d]) for d in dims if x.shape[d] != 1]
    reduced.sort(key=lambda dim: (dim[1] != 0, -dim[1]))
    results, reduced = _merged(results), _merged(reduced)
    if len(results) > 2 or len(reduced) > 2:
        return None
    results = [(1, 0)] * (2 - len(results)) + results
    reduced = [(1, 0)] * (2 - len(reduced)) + reduced
    walk = Walk((results[0], results[1]), (reduced[0], reduced[1]))
    single = walk.extent == 1 and walk.elements == 1  # nothing is reduced
    return walk if walk.reduced[1][1] == 1 or walk.free[1][1] == 1 or single else None


def grain_of(size: int) -> int:
    """Return the number of units of `size` elements in a chunk."""
    return max(1, GRAIN // size)


class Runs(NamedTuple):
    """The division of results whose elements lie one after another.

    The elements of result m are `elements`, in rows of n that lie `row_stride` apart.  They begin
    at m // inner * outer_stride + m % inner * inner_stride.  A unit is one of the `segments` of
    `length`.  `extra` is a number of the call.
    """

    inner: int
    outer_stride: int
    inner_stride: int
    n: int
    row_stride: int
    elements: int
    length: int
    segments: int
    extra: float

    @staticmethod
    def of(walk: Walk, extra: float = 1.0) -> Runs:
        (_, outer_stride), (inner, inner_stride) = walk.free
        (_, row_stride), (n, _) = walk.reduced
        count = walk.elements
        segments = -(-count // ROW_SEGMENT)
        length = ROW_SEGMENT if segments > 1 else count
        return Runs(
            inner, outer_stride, inner_stride, n, row_stride, count, length, segments, extra
        )


class Columns(NamedTuple):
    """The division of a walk in columns: tiles of columns, and `segments` of `length` rows.

    There are `rows` rows of `width` columns for each of the outer positions, which are
    `outer_stride` apart.  Row r begins at r // n * far + r % n * near.

    Narrow rows that lie together are taken as wider ones of `parts` each.  Then the last one may be
    short, of `rest` columns, and width // parts results are made of a row.  `extra` is the call's
    number.
    """

    outer_stride: int
    n: int
    far: int
    near: int
    width: int
    rows: int
    rest: int
    parts: int
    tile: int
    length: int
    segments: int
    extra: float

    @staticmethod
    def of(walk: Walk, extra: float = 1.0) -> Columns:
        (_, outer_stride), (width, _) = walk.free
        (_, far), (n, near) = walk.reduced
        rows = walk.elements
        rest, parts = width, 1
        many = 16 * max(1, 16 // width)
        if width < 64 and rows == n and near == width and rows >= 8 * many:
            parts = many
            rest = width * ((rows - 1) % many + 1)
            n = rows = -(-rows // many)
            near = width = width * many
        tile = min(width, TILE)
        segments = -(-rows * tile // COLUMN_SEGMENT)
        length = max(8, -(-rows // segments))
        while rest < width and rows % length == 1:  # a segment begins with a whole row
            length += 1
        segments = -(-rows // length)
        return Columns(
            outer_stride, n, far, near, width, rows, rest, parts, tile, length, segments, extra
        )


# --- what kernels see -------------------------------------------------------------------------


def shape_without(shape: Sequence[int], dims: Sequence[int], keepdim: bool) -> tuple[int, ...]:
    """`shape` with `dims` reduced: gone, or 1 with `keepdim`."""
    if keepdim:
        return tuple(1 if i in dims else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in dims)


def plain(v: object) -> Any:
    """The lift that leaves an element as it is."""
    return v


@functools.cache
def _of_reduced(name: str, lift: Callable[[Number], object]) -> Callable[[Number], Number]:
    number = REDUCED[name]

    def of_bits(bits: object) -> object:
        return lift(number(bits))

    return of_bits


def kernel_input(
    dtype: DType, lift: Callable[[Number], Number] = plain
) -> tuple[DType, Callable[[Number], Number]]:
    """Return the dtype in which a kernel sees elements of `dtype`, and `lift` for this dtype."""
    if dtype.reduced:
        return int16, _of_reduced(dtype.name, lift)
    return (uint8 if dtype is bool_ else dtype), lift  # bools are 0 and 1
