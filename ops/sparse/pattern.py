"""Places of a sparse tensor's values, in each layout, and what follows from them.

A Pattern is shared by all tensors with values at the same places: what `x * 2` or `x.detach()`
gives.  What is worked out from it once, such as a matrix's rows in order, is kept with it and used
again; nothing is kept while a graph is captured, where a tensor has no values yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from flowvm.eager.modes import current_recorder
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ShapeError
from flowvm.meta.dtype import int64
from flowvm.meta.formats import Layout, sparse_bsc, sparse_bsr, sparse_coo, sparse_csc, sparse_csr
from flowvm.meta.meta import TensorMeta, as_shape, dense_stride
from flowvm.ops.declare.composite import empty_of
from flowvm.ops.places.gather import index_select
from flowvm.ops.shapes.join import cat, stack
from flowvm.ops.shapes.ranges import arange
from flowvm.ops.shapes.views import reshape
from flowvm.ops.sparse.products import grouped, row_numbers, turned

Kept = TypeVar("Kept")


class Compressed(NamedTuple):
    """The words of a layout with bounds: which dimension has bounds, whether entries are blocks."""

    axis: int
    blocks: bool
    bounds: str
    plain: str

    @property
    def bounds_of(self) -> str:
        """The name of the argument and method for the bounds."""
        return f"{self.bounds}_indices"

    @property
    def plain_of(self) -> str:
        """The name of the argument and method for the other indices."""
        return f"{self.plain}_indices"


COMPRESSED: dict[Layout, Compressed] = {
    sparse_csr: Compressed(0, False, "crow", "col"),
    sparse_csc: Compressed(1, False, "ccol", "row"),
    sparse_bsr: Compressed(0, True, "crow", "col"),
    sparse_bsc: Compressed(1, True, "ccol", "row"),
}


class Rows(NamedTuple):
    """A matrix by rows: bounds, columns, and which value each entry is (None: the same)."""

    bounds: Tensor
    col: Tensor
    order: Tensor | None


class Pattern:
    """The layout, the index tensors, the shape of all dimensions, and the size of blocks.

    `batch` has the sizes of the dimensions in front of matrices with bounds, () for coordinates.
    """

    __slots__ = ("_cache", "batch", "block", "coalesced", "layout", "parts", "shape")

    def __init__(
        self,
        layout: Layout,
        parts: Sequence[Tensor],
        shape: Sequence[int],
        coalesced: bool = True,
        block: tuple[int, int] | None = None,
    ) -> None:
        self.layout, self.parts, self.shape = layout, tuple(parts), as_shape(shape)
        self.coalesced, self.block = coalesced, block
        self.batch = () if layout is sparse_coo else tuple(self.parts[0].shape[:-1])
        self._cache: dict[str, Any] = {}

    @property
    def is_coo(self) -> bool:
        """True for the layout of coordinates."""
        return self.layout is sparse_coo

    @property
    def sparse_dim(self) -> int:
        """The number of dimensions that the indices are of, those of a batch among them."""
        return self.parts[0].shape[0] if self.is_coo else self.parts[0].ndim + 1

    @property
    def sparse_shape(self) -> tuple[int, ...]:
        """The sizes of these dimensions."""
        return tuple(self.shape[: self.sparse_dim])

    @property
    def dense_shape(self) -> tuple[int, ...]:
        """The sizes of the others, which each value has."""
        return tuple(self.shape[self.sparse_dim :])

    @property
    def entries(self) -> int:
        """The number of values (of blocks), of each matrix of a batch."""
        return int(self.parts[-1].shape[-1])

    def like(self, dense_shape: Sequence[int]) -> Pattern:
        """Return a pattern with these places and values of another shape."""
        if tuple(dense_shape) == self.dense_shape:
            return self
        shape = (*self.sparse_shape, *dense_shape)
        pattern = Pattern(self.layout, self.parts, shape, self.coalesced, self.block)
        pattern._cache = self._cache
        return pattern

    def keep(self, name: str, make: Callable[[], Kept]) -> Kept:
        """Return what `make` gives, kept from then on under a name."""
        value: Kept | None = self._cache.get(name)
        if value is None:
            value = make()
            if current_recorder() is None:
                self._cache[name] = value
        return value

    def knows(self, name: str) -> bool:
        """Return True if something of this name is kept."""
        return name in self._cache

    # --- other forms ----------------------------------------------------------------------------

    def coordinates(self) -> Tensor:
        """Return the indices of each entry (sparse dimensions, entries), in the values' order."""
        if self.is_coo:
            return self.parts[0]
        return self.keep("coordinates", self._coordinates)

    def _coordinates(self) -> Tensor:
        words = COMPRESSED[self.layout]
        bounds, plain = self.joined()
        lines = row_numbers(bounds, plain.shape[0])
        number = None
        if self.batch:
            number = self.numbers(plain)
            lines = lines - number * (self.parts[0].shape[-1] - 1)
        pair = [lines, plain] if words.axis == 0 else [plain, lines]
        if self.block is not None:
            inner = arange(math.prod(self.block), device=plain.device)
            places = (inner // self.block[1], inner % self.block[1])
            pair = [
                reshape(i.unsqueeze(1) * size + at, (-1,))
                for i, size, at in zip(pair, self.block, places, strict=True)
            ]
            if number is not None:
                number = reshape(number.unsqueeze(1).expand(-1, inner.shape[0]), (-1,))
        front = [] if number is None else list(places_of(number, self.batch))
        out: Tensor = stack([*front, *pair])
        return out

    def numbers(self, plain: Tensor) -> Tensor:
        """Return the number of the batch's matrix that each of all entries belongs to."""
        return arange(plain.shape[0], device=plain.device) // max(self.entries, 1)

    def joined(self) -> tuple[Tensor, Tensor]:
        """Return bounds and plain indices as int64, those of a batch one behind the other."""
        if not self.batch:
            return self.longs()
        return self.keep("joined", self._joined)

    def _joined(self) -> tuple[Tensor, Tensor]:
        bounds, plain = self.longs()
        count, lines = math.prod(self.batch), bounds.shape[-1] - 1
        first = arange(count + 1, device=plain.device) * self.entries
        front = reshape(bounds[..., :-1], (count, lines)) + first[:-1].unsqueeze(1)
        return cat([reshape(front, (-1,)), first[-1:]]), reshape(plain, (-1,))

    def longs(self) -> tuple[Tensor, Tensor]:
        """Return bounds and plain indices as int64."""
        bounds, plain = self.parts
        if bounds.dtype is int64:
            return bounds, plain
        return self.keep("longs", lambda: (bounds.to(int64), plain.to(int64)))

    def linear(self) -> Tensor:
        """Return the place of each entry in the dense tensor of the sparse dimensions."""
        return self.keep("linear", lambda: linear_of(self.coordinates(), self.sparse_shape))

    def rows(self) -> Rows:
        """Return the matrix by rows; of more than two dimensions, the matrix with all in front of
        the last two as blocks on its diagonal.
        """
        return self.keep("rows", self._rows)

    def _rows(self) -> Rows:
        if self.layout is sparse_csr:
            bounds, col = self.joined()
            return Rows(
                bounds, col + self.numbers(col) * self.sparse_shape[-1] if self.batch else col, None
            )
        places, shape = self.coordinates(), self.sparse_shape
        if len(shape) < 2:
            raise ShapeError(f"a product needs a matrix, got sparse dimensions {shape}")
        row, col = places[-2], places[-1]
        if len(shape) > 2:
            first = linear_of(places[:-2], shape[:-2])
            row, col = first * shape[-2] + row, first * shape[-1] + col
        bounds, order = grouped(row.contiguous(), math.prod(shape[:-1]))
        if self.is_coo and self.coalesced:
            return Rows(bounds, col.contiguous(), None)
        return Rows(bounds, index_select(col, 0, order), order)

    @property
    def columns(self) -> int:
        """Columns of the matrix of `rows`."""
        shape = self.sparse_shape
        return math.prod(shape[:-2]) * shape[-1]

    def turned(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the transposed matrix of `rows`, as `turned` of `products` has it."""
        rows = self.rows()
        return self.keep("turned", lambda: turned(rows.bounds, rows.col, self.columns))


def linear_of(places: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the place in C order of indices (dimensions, entries) in a shape."""
    if len(shape) == 1:
        return places[0].contiguous()
    if not shape:
        empty = TensorMeta.of((places.shape[1],), int64, places.device)
        return empty_of(empty).zero_()
    total: Any = None
    for d, step in enumerate(dense_stride(shape)):
        term = places[d] * step if step != 1 else places[d]
        total = term if total is None else total + term
    return total  # type: ignore[no-any-return]


def places_of(linear: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the indices (dimensions, entries) of places in C order."""
    if len(shape) == 1:
        return linear.unsqueeze(0)
    lines = []
    for size, step in zip(shape, dense_stride(shape), strict=True):
        lines.append(linear // step % size if size else linear)
    out: Tensor = stack(lines)
    return out


def check_block(name: str, blocksize: object, shape: Sequence[int]) -> tuple[int, int]:
    """Return the size of blocks, which divide a matrix; an error where they do not."""
    if not isinstance(blocksize, (tuple, list)) or len(blocksize) != 2:
        raise ArgumentError(f"{name}: blocksize is a pair of ints, got {blocksize!r}")
    block = int(blocksize[0]), int(blocksize[1])
    if min(block) < 1 or shape[0] % block[0] or shape[1] % block[1]:
        raise ShapeError(
            f"{name}: a matrix of shape {tuple(shape[:2])} is not divided by blocks of {block}"
        )
    return block
