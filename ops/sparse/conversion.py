"""Sparse tensors made of indices and values, of dense tensors, of other layouts; and made dense."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, OutOfRangeError, ShapeError
from flowvm.guards.regions import Mode
from flowvm.loading.lazy import lazy
from flowvm.meta.device import as_device
from flowvm.meta.dtype import as_dtype, int32, int64
from flowvm.meta.formats import (
    Layout,
    sparse_bsc,
    sparse_bsr,
    sparse_coo,
    sparse_csc,
    sparse_csr,
    strided,
)
from flowvm.meta.meta import TensorMeta, as_shape
from flowvm.ops.declare.composite import filled_of
from flowvm.ops.places.counts import nonzero
from flowvm.ops.places.gather import index_select
from flowvm.ops.places.scatter import index_add
from flowvm.ops.places.unique import unique
from flowvm.ops.shapes.create import tensor
from flowvm.ops.shapes.join import cat, stack
from flowvm.ops.shapes.ranges import arange
from flowvm.ops.shapes.views import reshape
from flowvm.ops.sparse.pattern import COMPRESSED, Pattern, check_block, linear_of, places_of
from flowvm.ops.sparse.products import grouped
from flowvm.ops.sparse.tensor import SparseTensor, sparse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowvm.meta.device import DeviceLike
    from flowvm.meta.dtype import DTypeLike
    from flowvm.ops.sparse.pattern import Compressed


sparse_arrays = lazy("scipy.sparse")

# whether indices that are tensors are looked at, on this thread
checks: Mode[bool] = Mode(False)


def _checked(check: bool | None) -> bool:
    return checks.now() if check is None else check


# --- of indices and values ------------------------------------------------------------------------


def _part(
    name: str, what: str, value: object, device: DeviceLike | None, index: bool = True
) -> tuple[Tensor, bool]:
    """Return an argument as a tensor, and whether it came from Python, so that looking at it costs
    nothing.
    """
    python = not isinstance(value, Tensor)
    if isinstance(value, SparseTensor):
        raise ArgumentTypeError(f"{name}: {what} are a dense tensor, got a sparse one")
    part: Any = value
    if python:
        empty = isinstance(value, (list, tuple)) and not np.asarray(value).size
        part = tensor(value, dtype=int64 if index and empty else None)
    if index and part.dtype.inexact:
        part = part.to(int64)
    if device is not None:
        part = part.to(as_device(device))
    return part, python


def _values(values: Tensor, dtype: DTypeLike | None, requires_grad: bool, is_ours: bool) -> Tensor:
    """Return values as a sparse tensor has them: a leaf of the user's stays its own."""
    if dtype is not None:
        values = values.to(as_dtype(dtype))
    if requires_grad:
        return values.detach().requires_grad_()
    if not is_ours and values.is_leaf and values.requires_grad:
        return values.view_as(values)
    return values


# public: flow (late)
def sparse_coo_tensor(
    indices: Any,
    values: object = None,
    size: Any = None,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
    is_coalesced: bool | None = None,
) -> SparseTensor:
    """Return a sparse tensor of coordinates.

    indices            integers (sparse dimensions, nnz)
    values             (nnz, ...), or one number for all; those at one place are added
    size               the shape; by default as large as the indices need, which waits for them
    check_invariants   look at indices that are a tensor, too; those of a list are always checked,
                       and all are where they are used
    is_coalesced       each place occurs once, and they are in order

    Gradients flow to `values`.  OutOfRangeError for an index outside of `size`.

    >>> flow.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], (2, 2)).to_dense()
    tensor([[0., 1.],
            [2., 0.]])
    """
    name = "sparse_coo_tensor"
    if values is None:  # of a size alone: nothing is stored
        shape = as_shape(indices if size is None else size)
        empty = TensorMeta.of((len(shape), 0), int64, as_device(device or "cpu"))
        held = tensor([], dtype=dtype).to(empty.device)
        values, indices, size = held, filled_of(empty), shape
    values, grad_option = _part(name, "values", values, device, index=False)
    if device is None:
        device = values.device
    places, python = _part(name, "indices", indices, device)
    if places.ndim == 1 and places.shape[0] == 0:
        places = reshape(places, (0 if size is None else len(size), 0))
    if values.ndim == 0:
        values = values.expand(places.shape[-1]) if places.ndim == 2 else values
    if places.ndim != 2 or values.ndim < 1 or places.shape[1] != values.shape[0]:
        raise ShapeError(
            f"{name}: indices have shape (sparse dimensions, nnz) and values (nnz, ...), got "
            f"{tuple(places.shape)} and {tuple(values.shape)}"
        )
    places = places.to(int64)
    count, dense = places.shape[0], tuple(values.shape[1:])
    if size is None:
        if not places.shape[1]:
            raise ArgumentError(f"{name}: without values, the size cannot be worked out; give it")
        shape = as_shape((*[int(n) + 1 for n in places.amax(1).tolist()], *dense))
        python = True
    else:
        shape = as_shape(size)
    if len(shape) != count + len(dense) or tuple(shape[count:]) != dense:
        raise ShapeError(
            f"{name}: size {tuple(shape)} has other dimensions than the {count} of the indices "
            f"and {dense} of each value"
        )
    if (python or _checked(check_invariants)) and places.shape[1] and places.device.type != "meta":
        _check_places(name, places, shape)
    held = _values(values, dtype, requires_grad, grad_option)
    return sparse(Pattern(sparse_coo, (places,), shape, bool(is_coalesced)), held)


def _check_places(name: str, places: Tensor, shape: Sequence[int]) -> None:
    numbers = places.numpy()
    for d, line in enumerate(numbers):
        low, high = int(line.min()), int(line.max())
        if low < 0:
            raise OutOfRangeError(f"{name}: found negative index {low} for dim {d}")
        if high >= shape[d]:
            raise OutOfRangeError(
                f"{name}: size is inconsistent with indices: for dim {d}, size is {shape[d]} but "
                f"found index {high}"
            )


def _compressed(
    compressed_indices: object,
    plain_indices: object,
    values: object,
    size: Sequence[int] | None = None,
    *,
    dtype: DTypeLike | None = None,
    layout: Any = None,
    device: DeviceLike | None = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
    name: str = "sparse_compressed_tensor",
) -> SparseTensor:
    """Return a tensor of bounds, indices and values; errors name the call `name`."""
    words = COMPRESSED.get(layout)
    if words is None:
        layouts = ", ".join(map(repr, COMPRESSED))
        raise ArgumentError(f"{name}: layout is one of {layouts}, got {layout!r}")
    values, grad_option = _part(name, "values", values, device, index=False)
    if device is None:
        device = values.device
    bounds, python = _part(name, words.bounds_of, compressed_indices, device)
    plain, python_too = _part(name, words.plain_of, plain_indices, device)
    batch = tuple(bounds.shape[:-1])
    front = len(batch)
    least = front + (3 if words.blocks else 1)
    if (
        bounds.ndim < 1 or plain.ndim != bounds.ndim or values.ndim < least or not bounds.shape[-1]
        or tuple(plain.shape[:-1]) != batch or tuple(values.shape[:front]) != batch
    ):  # fmt: skip
        raise ShapeError(
            f"{name}: {words.bounds_of} and {words.plain_of} are lines, or one for each matrix of "
            f"a batch, and values have {least} dimensions or more, the batch's in front; got "
            f"shapes {tuple(bounds.shape)}, {tuple(plain.shape)} and {tuple(values.shape)}"
        )
    if plain.shape[-1] != values.shape[front]:
        raise ShapeError(
            f"{name}: {plain.shape[-1]} {words.plain_of} for {values.shape[front]} values"
        )
    if bounds.dtype is not plain.dtype:
        bounds, plain = bounds.to(int64), plain.to(int64)
    if bounds.dtype not in (int32, int64):
        raise ArgumentTypeError(f"{name}: both indices are int32 or int64, got {bounds.dtype.name}")
    block = (values.shape[front + 1], values.shape[front + 2]) if words.blocks else None
    steps = block or (1, 1)
    dense = tuple(values.shape[least:])
    lines = bounds.shape[-1] - 1
    if size is None:
        across = int(plain.amax()) + 1 if plain.numel() else 0
        counts = (lines, across) if words.axis == 0 else (across, lines)
        whole = [n * s for n, s in zip(counts, steps, strict=True)]
        shape = as_shape((*batch, *whole, *dense))
    else:
        shape = as_shape(size)
    if len(shape) != front + 2 + len(dense) or (*shape[:front], *shape[front + 2 :]) != (
        *batch, *dense
    ):  # fmt: skip
        raise ShapeError(
            f"{name}: size {tuple(shape)} is not that of a matrix, or batch of matrices, with "
            f"values of shape {tuple(values.shape)}"
        )
    sides = shape[front : front + 2]
    if block is not None:
        check_block(name, block, sides)
    if sides[words.axis] != lines * steps[words.axis]:
        raise ShapeError(
            f"{name}: size {tuple(shape)} wants {sides[words.axis] // steps[words.axis] + 1} "
            f"{words.bounds_of}, got {lines + 1}"
        )
    if ((python and python_too) or _checked(check_invariants)) and plain.device.type != "meta":
        other = 1 - words.axis
        _check_bounds(name, words, bounds, plain, sides[other] // steps[other])
    held = _values(values, dtype, requires_grad, grad_option)
    return sparse(Pattern(layout, (bounds, plain), shape, True, block), held)


def _with_layout(name: str, layout: Layout, options: Mapping[str, object]) -> dict[str, Any]:
    """Return the options of a function that makes one layout; it may be said, but no other."""
    if options.get("layout") not in (None, layout):
        raise ArgumentError(f"{name}: layout is {layout!r}, got {options['layout']!r}")
    return {**options, "layout": layout}


def _check_bounds(name: str, words: Compressed, bounds: Tensor, plain: Tensor, across: int) -> None:
    edges, numbers = bounds.numpy(), plain.numpy()
    count = numbers.shape[-1]
    ends = (edges[..., 0] != 0).any() or (edges[..., -1] != count).any()
    if ends or (np.diff(edges) < 0).any():
        raise OutOfRangeError(
            f"{name}: {words.bounds_of} rise from 0 to nnz = {count}, got {edges.tolist()!s:.80}"
        )
    if numbers.size and (numbers.min() < 0 or numbers.max() >= across):
        raise OutOfRangeError(
            f"{name}: {words.plain_of} are from 0 to {across - 1}, got {numbers.min()} to "
            f"{numbers.max()}"
        )


# public: flow (late)
def sparse_compressed_tensor(
    compressed_indices: object,
    plain_indices: object,
    values: object,
    size: Sequence[int] | None = None,
    *,
    dtype: DTypeLike | None = None,
    layout: Layout | None = None,
    device: DeviceLike | None = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
) -> SparseTensor:
    """Return a sparse matrix of bounds (of rows or columns), indices and values, in a layout.

    The arguments are those of `flow.sparse_csr_tensor`.

    >>> flow.sparse_compressed_tensor([0, 1], [0], [5.0], (1, 1), layout=flow.sparse_csr).to_dense()
    tensor([[5.]])
    """
    return _compressed(
        compressed_indices, plain_indices, values, size, dtype=dtype, layout=layout, device=device,
        pin_memory=pin_memory, requires_grad=requires_grad, check_invariants=check_invariants,
    )  # fmt: skip


# public: flow (late)
def sparse_csr_tensor(
    crow_indices: object,
    col_indices: object,
    values: object,
    size: Sequence[int] | None = None,
    **options: object,
) -> SparseTensor:
    """Return a sparse matrix by rows.

    crow_indices   where each row's values begin, and where the last one's end (rows + 1)
    col_indices    the column of each value (nnz)
    values         (nnz, ...)
    size           the shape; by default as many columns as the indices need
    options        `dtype`, `device`, `requires_grad`, `check_invariants`: as of
                   `flow.sparse_coo_tensor`

    >>> flow.sparse_csr_tensor([0, 1, 2], [1, 0], [1.0, 2.0], (2, 2)).to_dense()
    tensor([[0., 1.],
            [2., 0.]])
    """
    own = _with_layout("sparse_csr_tensor", sparse_csr, options)
    return _compressed(crow_indices, col_indices, values, size, name="sparse_csr_tensor", **own)


# public: flow (late)
def sparse_csc_tensor(
    ccol_indices: object,
    row_indices: object,
    values: object,
    size: Sequence[int] | None = None,
    **options: object,
) -> SparseTensor:
    """Return a sparse matrix by columns; arguments as of `flow.sparse_csr_tensor`, turned.

    >>> flow.sparse_csc_tensor([0, 1, 2], [1, 0], [2.0, 1.0], (2, 2)).to_dense()
    tensor([[0., 1.],
            [2., 0.]])
    """
    own = _with_layout("sparse_csc_tensor", sparse_csc, options)
    return _compressed(ccol_indices, row_indices, values, size, name="sparse_csc_tensor", **own)


# public: flow (late)
def sparse_bsr_tensor(
    crow_indices: object,
    col_indices: object,
    values: object,
    size: Sequence[int] | None = None,
    **options: object,
) -> SparseTensor:
    """Return a sparse matrix of blocks by rows: `values` are (blocks, rows, columns).

    >>> flow.sparse_bsr_tensor([0, 1], [1], [[[1.0, 2.0]]], (1, 4)).to_dense()
    tensor([[0., 0., 1., 2.]])
    """
    own = _with_layout("sparse_bsr_tensor", sparse_bsr, options)
    return _compressed(crow_indices, col_indices, values, size, name="sparse_bsr_tensor", **own)


# public: flow (late)
def sparse_bsc_tensor(
    ccol_indices: object,
    row_indices: object,
    values: object,
    size: Sequence[int] | None = None,
    **options: object,
) -> SparseTensor:
    """Return a sparse matrix of blocks by columns: `values` are (blocks, rows, columns).

    >>> flow.sparse_bsc_tensor([0, 0, 1], [0], [[[1.0, 2.0]]], (1, 4)).to_dense()
    tensor([[0., 0., 1., 2.]])
    """
    own = _with_layout("sparse_bsc_tensor", sparse_bsc, options)
    return _compressed(ccol_indices, row_indices, values, size, name="sparse_bsc_tensor", **own)


def of_parts(
    layout: str, parts: Sequence[object], shape: Sequence[int], coalesced: bool
) -> SparseTensor:
    """Return the tensor of a layout's name, the parts and a shape, all of which a file says: they
    are checked.
    """
    if layout == sparse_coo.name:
        places, values = parts
        return sparse_coo_tensor(
            places, values, tuple(shape), check_invariants=True, is_coalesced=coalesced
        )
    kind = next((k for k in COMPRESSED if k.name == layout), None)
    bounds, plain, values = parts
    return _compressed(bounds, plain, values, tuple(shape), layout=kind, check_invariants=True)


# --- of dense tensors, and to them ----------------------------------------------------------------


def _count_of(shape: Sequence[int]) -> int:
    return math.prod(shape)


def from_dense(
    x: Tensor,
    layout: Layout = sparse_coo,
    blocksize: int | Sequence[int] | None = None,
    dense_dim: int | None = None,
    sparse_dim: int | None = None,
    name: str = "to_sparse",
) -> Tensor:
    """Return a dense tensor as a sparse one.  Waits for the number of elements to store."""
    if layout is strided:
        return x
    shape, ndim = x._meta.shape, x._meta.ndim
    if layout is sparse_coo:
        count = ndim if sparse_dim is None else int(sparse_dim)
        if not 0 <= count <= ndim or (count == 0 and ndim):
            raise ArgumentError(f"{name}: {count} sparse dimensions of a {ndim}-d tensor")
    else:
        count = ndim - int(dense_dim or 0)
        if count < 2 or count > ndim:
            raise ShapeError(
                f"{name}: a matrix, or a batch of matrices, is needed for {layout!r} (with "
                f"dense_dim={dense_dim}), got shape {tuple(shape)}"
            )
    places, values = _stored(x, count)
    coo = sparse(Pattern(sparse_coo, (places,), shape), values)
    return converted(coo, layout, blocksize, name, count - 2)


def _stored(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    shape = tuple(x.shape)
    sizes, dense = shape[:count], shape[count:]
    mask = x.detach() != 0
    if dense:
        mask = reshape(mask, (*sizes, -1)).any(-1)
    places = nonzero(mask).t().contiguous() if count else nonzero(reshape(mask, (1,)))[:, :0].t()
    if not count:
        return places, reshape(x, (1,))[: places.shape[1]]
    flat = reshape(x, (_count_of(sizes), *dense))
    return places, index_select(flat, 0, linear_of(places, sizes))


def to_dense(x: SparseTensor) -> Tensor:
    """Return the dense tensor; values at one place are added."""
    p = x._pattern
    values, sizes = flat_values(x), p.sparse_shape
    whole = filled_of(TensorMeta.of((_count_of(sizes), *p.dense_shape), x.dtype, x.device))
    if x.dtype.is_bool:
        added = index_add(whole.to(int64), 0, p.linear(), values.to(int64))
        return reshape(added != 0, tuple(p.shape))
    return reshape(index_add(whole, 0, p.linear(), values), tuple(p.shape))


def flat_values(x: SparseTensor) -> Tensor:
    """Return the values of all matrices, those of blocks element by element, as `coordinates` has
    their places.
    """
    p = x._pattern
    if p.block is None and not p.batch:
        return x._data
    count = math.prod(p.batch) * p.entries * math.prod(p.block or ())
    return reshape(x._data, (count, *p.dense_shape))


# --- layouts --------------------------------------------------------------------------------------


def coalesced(x: SparseTensor) -> SparseTensor:
    """Return coordinates with one value for a place, in order.  Waits for their number."""
    p = x._pattern
    if not p.is_coo:
        x._need_coo("coalesce")
    if p.coalesced:
        return x
    values, sizes = x._data, p.sparse_shape
    if not sizes or p.entries < 2:
        if p.entries > 1:
            values = values.sum(0, keepdim=True)
            p = Pattern(p.layout, (p.parts[0][:, :1],), p.shape)
        return sparse(Pattern(p.layout, p.parts, p.shape), values)

    def order() -> tuple[Tensor, Tensor]:
        keys, inverse = unique(p.linear(), return_inverse=True)
        return places_of(keys, sizes), inverse

    places, inverse = p.keep("coalesced", order)
    zeros = filled_of(TensorMeta.of((places.shape[1], *p.dense_shape), x.dtype, x.device))
    if x.dtype.is_bool:
        counts = index_add(zeros.to(int64), 0, inverse, values.to(int64))
        values = counts != 0
    else:
        values = index_add(zeros, 0, inverse, values)
    return sparse(Pattern(sparse_coo, (places,), p.shape), values)


def to_coo(x: SparseTensor) -> SparseTensor:
    """Return the tensor as coordinates, coalesced unless it was not."""
    p = x._pattern
    if p.is_coo:
        return x
    places, values = p.coordinates(), flat_values(x)
    if p.layout is not sparse_csr:
        shape = p.sparse_shape
        if p.layout is sparse_bsr or p.layout is sparse_bsc:  # by columns first, as CSC is
            _, order = grouped(places[-1].contiguous(), shape[-1])
            places, values = index_select(places, 1, order), index_select(values, 0, order)
        _, order = grouped(linear_of(places[:-1], shape[:-1]), math.prod(shape[:-1]))
        places, values = index_select(places, 1, order), index_select(values, 0, order)
    return sparse(Pattern(sparse_coo, (places,), p.shape), values)


def converted(
    x: SparseTensor,
    layout: Layout,
    blocksize: int | Sequence[int] | None = None,
    name: str = "to_sparse",
    batch: int | None = None,
) -> SparseTensor:
    """Return the tensor in another layout.

    batch   how many dimensions of coordinates are in front of matrices; by default as many as there
            are now
    """
    p = x._pattern
    words = COMPRESSED.get(layout)
    if layout is not sparse_coo and words is None:
        raise ArgumentError(f"{name}: layout is one of flow's sparse layouts, got {layout!r}")
    if p.layout is layout and (p.block is None or blocksize in (None, p.block)):
        return x
    if words is None:
        return to_coo(x)
    front = len(p.batch) if batch is None else batch
    if p.sparse_dim - front != 2:
        raise ShapeError(f"{name}: {layout!r} is of matrices, got {p.sparse_dim} sparse dimensions")
    if words.blocks:
        if blocksize is None:
            raise ArgumentError(f"{name}: {layout!r} needs blocksize=(rows, columns)")
        block = check_block(name, blocksize, p.sparse_shape[front:])
        return _blocked(coalesced(to_coo(x)), layout, block, front, name)
    x = coalesced(to_coo(x))
    places, values, shape = x._pattern.parts[0], x._data, p.sparse_shape
    lines, plain = places[front + words.axis].contiguous(), places[front + 1 - words.axis]
    plain, size = plain.contiguous(), shape[front + words.axis]
    if front:
        lines = linear_of(places[:front], shape[:front]) * size + lines
    bounds, order = grouped(lines, math.prod(shape[:front]) * size)
    if words.axis == 1:
        plain, values = index_select(plain, 0, order), index_select(values, 0, order)
    return _bounded(layout, bounds, plain, values, p.shape, front, None, name)


def _bounded(
    layout: Layout, bounds: Tensor, plain: Tensor, values: Tensor, shape: Sequence[int], front: int,
    block: tuple[int, int] | None, name: str,
) -> SparseTensor:  # fmt: skip
    """Return the tensor of the bounds of all lines: a batch has as many values in each matrix."""
    if not front:
        return sparse(Pattern(layout, (bounds, plain), shape, True, block), values)
    batch = tuple(shape[:front])
    count = math.prod(batch)
    lines, each = (bounds.shape[0] - 1) // max(count, 1), plain.shape[0] // max(count, 1)
    first = arange(count + 1, device=plain.device) * each
    if lines and plain.device.type != "meta" and bool((bounds[::lines] != first).any()):
        numbers = (bounds[::lines][1:] - bounds[::lines][:-1]).tolist()
        raise ShapeError(
            f"{name}: Expect the same number of specified elements per batch, got "
            f"{numbers!s:.80}; coordinates, to_sparse(), may have any"
        )
    ends = first[1:].unsqueeze(1)
    own = cat([reshape(bounds[:-1], (count, lines)), ends], 1) - first[:-1].unsqueeze(1)
    parts = reshape(own, (*batch, lines + 1)), reshape(plain, (*batch, each))
    held = reshape(values, (*batch, each, *values.shape[1:]))
    return sparse(Pattern(layout, parts, shape, True, block), held)


def _blocked(
    x: SparseTensor, layout: Layout, block: tuple[int, int], front: int, name: str
) -> SparseTensor:
    """Return coalesced coordinates as blocks."""
    words = COMPRESSED[layout]
    places, values, shape = x._pattern.parts[0], x._data, x._pattern.shape
    high, wide = block
    row, col = places[front], places[front + 1]
    counts = (shape[front] // high, shape[front + 1] // wide)
    pair = (row // high, col // wide)
    lines, across = pair[words.axis], pair[1 - words.axis]
    if front:
        lines = linear_of(places[:front], shape[:front]) * counts[words.axis] + lines
    total = math.prod(shape[:front]) * counts[words.axis]
    keys, inverse = unique(lines * counts[1 - words.axis] + across, return_inverse=True)
    inner = (row % high) * wide + col % wide
    blocks = keys.shape[0]
    flat = filled_of(
        TensorMeta.of((blocks * high * wide, *x._pattern.dense_shape), x.dtype, x.device)
    )
    stored = index_add(flat, 0, inverse * (high * wide) + inner, values)
    stored = reshape(stored, (blocks, high, wide, *x._pattern.dense_shape))
    line, plain = places_of(keys, (total, counts[1 - words.axis]))
    bounds, _ = grouped(line.contiguous(), total)
    return _bounded(layout, bounds, plain.contiguous(), stored, shape, front, block, name)


# --- diagonals, and SciPy -------------------------------------------------------------------------


def spdiags(
    diagonals: Tensor, offsets: Tensor, shape: tuple[int, int], layout: Any = None
) -> SparseTensor:
    """Return the matrix with rows of `diagonals` on its diagonals; see `flow.sparse.spdiags`."""
    lines = diagonals if diagonals.ndim == 2 else diagonals.unsqueeze(0)
    listed = [
        int(o) for o in (offsets.reshape(-1).tolist() if isinstance(offsets, Tensor) else [offsets])
    ]
    rows, columns = (int(n) for n in shape)
    if diagonals.ndim not in (1, 2) or len(listed) != lines.shape[0]:
        raise ShapeError(
            f"spdiags: one offset for each of {lines.shape[0]} diagonals, got {len(listed)}"
        )
    if len(set(listed)) != len(listed):
        raise ArgumentError(f"spdiags: offset tensor contains duplicate values: {listed}")
    if layout not in (None, sparse_coo, sparse_csr, *COMPRESSED):
        raise ArgumentError(f"spdiags: layout is a sparse one, got {layout!r}")
    places, values = [], []
    for k, offset in enumerate(listed):
        first = max(0, offset)
        last = min(columns, rows + offset, lines.shape[1])
        if last <= first:
            continue
        col = arange(first, last, device=lines.device)
        places.append(stack([col - offset, col]))
        values.append(lines[k, first:last])
    if not places:
        matrix = sparse_coo_tensor((rows, columns), dtype=diagonals.dtype, device=diagonals.device)
        matrix._coalesced_(True)
    else:
        joined = Pattern(sparse_coo, (cat(places, 1),), as_shape((rows, columns)), len(places) == 1)
        matrix = sparse(joined, cat(values))
    return converted(matrix, layout or sparse_coo, name="spdiags")


def from_scipy(
    matrix: Any,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
) -> SparseTensor:
    """Return a SciPy sparse matrix or array as a tensor; see `flow.sparse.from_scipy`."""
    form = getattr(matrix, "format", None)
    options: Any = {"dtype": dtype, "device": device, "requires_grad": requires_grad}
    if form in ("csr", "csc", "bsr"):
        kind = {"csr": sparse_csr, "csc": sparse_csc, "bsr": sparse_bsr}[form]
        if not matrix.has_canonical_format:
            matrix = matrix.copy()
            matrix.sum_duplicates()
        bounds, plain = (np.asarray(p, np.int64) for p in (matrix.indptr, matrix.indices))
        return _compressed(
            tensor(bounds), tensor(plain), tensor(np.array(matrix.data)), matrix.shape,
            layout=kind, name="from_scipy", **options,
        )  # fmt: skip
    if form is None or not hasattr(matrix, "tocoo"):
        raise ArgumentTypeError(
            f"from_scipy: a sparse matrix or array of SciPy is needed, got {type(matrix).__name__}"
        )
    entries = matrix.tocoo()
    places = getattr(entries, "coords", None) or (entries.row, entries.col)
    return sparse_coo_tensor(
        tensor(np.stack([np.asarray(line, np.int64) for line in places])),
        tensor(np.array(entries.data)), entries.shape, **options,
    )  # fmt: skip


def to_scipy(x: SparseTensor) -> Any:
    """Return a sparse array of SciPy; see `flow.sparse.to_scipy`."""
    p = x._pattern
    if p.batch:
        raise ShapeError(f"to_scipy: a matrix is needed, got a batch of shape {tuple(p.shape)}")
    if p.dense_shape:
        raise ShapeError(f"to_scipy: values are numbers, got shape {p.dense_shape} for each")
    values = x._data.detach().cpu()
    parts = [np.array(part.cpu().numpy()) for part in p.parts]
    numbers = np.array(values.numpy())
    if p.is_coo:
        return sparse_arrays.coo_array((numbers, tuple(parts[0])), shape=tuple(p.shape))
    kinds = {sparse_csr: "csr_array", sparse_csc: "csc_array", sparse_bsr: "bsr_array"}
    if p.layout not in kinds:
        return to_scipy(converted(x, sparse_csc))
    bounds, plain = parts
    return getattr(sparse_arrays, kinds[p.layout])((numbers, plain, bounds), shape=tuple(p.shape))
