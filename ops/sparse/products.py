"""Ops with kernels on sparse matrices by rows: bounds, columns and values.

`row_product` is the product with a dense matrix, `row_samples` some elements of the product of two
dense ones; each is a gradient of the other.  `grouped` and `row_numbers` go from rows to bounds and
back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from flowvm.eager.tensor import Tensor
from flowvm.errors import DTypeError, ShapeError
from flowvm.launch import GRAIN, Launch, View
from flowvm.meta.dtype import float32, float64, int64
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.kinds import Count
from flowvm.ops.declare.letters import unsplit
from flowvm.ops.declare.registry import Sample, op, samples
from flowvm.ops.places.gather import index_select
from flowvm.ops.sparse.cpu import row_kernels

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node
    from flowvm.meta.arrays import Array


# --- rows -----------------------------------------------------------------------------------------


def _check_index(name: str, what: str, meta: TensorMeta) -> None:
    if meta.ndim != 1 or meta.dtype is not int64:
        raise ShapeError(f"{name}: {what} is a line of int64, got {meta!r}")


@op("row -> bounds, order", name="sparse_grouped", letters=unsplit)
def grouped(row: TensorMeta, rows: Count) -> Launch:
    """Return the bounds (rows + 1) of each row's entries, and the order that puts them there."""
    _check_index("sparse_grouped", "row", row)
    bounds = row.with_shape((rows + 1,))
    return Launch((bounds, row.dense()), row_kernels.group)


@op("bounds -> row", name="sparse_row_numbers", letters=unsplit)
def row_numbers(bounds: TensorMeta, entries: Count) -> Launch:
    """Return the row of each of so many entries (entries,)."""
    _check_index("sparse_row_numbers", "bounds", bounds)
    rows = bounds.numel - 1
    if rows < 0:
        raise ShapeError("sparse_row_numbers: bounds are one more than rows, got none")
    grain = max(1, GRAIN * rows // max(1, entries + rows))
    row = bounds.with_shape((entries,))
    return Launch((row,), row_kernels.number_rows, units=rows, grain=grain)


# --- products -------------------------------------------------------------------------------------


def _grain(rows: int, entries: int, width: int) -> int:
    return max(1, GRAIN * rows // max(1, entries * width + rows))


def _product(
    values: TensorMeta, bounds: TensorMeta, col: TensorMeta, x: TensorMeta, *turned: TensorMeta
) -> Launch:
    for what, meta in (("bounds", bounds), ("col", col)):
        _check_index("sparse_product", what, meta)
    if x.ndim != 2 or values.shape != col.shape or bounds.numel < 1:
        raise ShapeError(
            f"sparse_product: a matrix with values {values!r}, columns {col!r} and bounds "
            f"{bounds!r} does not fit {x!r} as a factor"
        )
    if values.dtype is not x.dtype or values.dtype.is_bool:
        raise DTypeError(
            f"sparse_product: both factors have one dtype, other than bool; got "
            f"{values.dtype.name} and {x.dtype.name}"
        )
    rows, width = bounds.numel - 1, x.shape[1]
    out = x.with_shape((rows, width))
    flat = View(x.dtype, (rows * width,)), View(x.dtype, (x.numel,))
    views = (flat[0], *map(View.of, (values, bounds, col)), flat[1], *map(View.of, turned))
    body = BODIES[x.dtype in (float32, float64) and x.device.type != "cuda", bool(turned)]
    shape = row_kernels.Shape(x.shape[0], width)
    grain = _grain(rows, col.numel, width)
    return Launch((out,), body, views, (shape,), units=rows, grain=grain)


# whether vectors are written for the dtype and device, and whether operands are kept -> body
BODIES: dict[tuple[bool, bool], Callable[..., object]] = {
    (True, False): row_kernels.multiply,
    (True, True): row_kernels.multiply_kept,
    (False, False): row_kernels.multiply_plainly,
    (False, True): row_kernels.multiply_plainly_kept,
}


def _product_grad(c: Node, g: Tensor) -> tuple[object, ...]:
    values, bounds, col, x, *theirs = c.saved
    to_values = to_x = None
    if c.needs[0]:
        to_values = row_samples(bounds, col, g, x.conj() if x.is_complex() else x)
    if c.needs[3]:
        their_bounds, row, order = theirs or turned(bounds, col, x.shape[0])
        turned_values = index_select(values, 0, order)
        if values.is_complex():
            turned_values = turned_values.conj().resolve_conj()
        to_x = row_product(turned_values, their_bounds, row, g)
    return (to_values, None, None, to_x, *[None] * len(theirs))


@op(
    "values, bounds, col, x -> out", name="sparse_product", saves="values, bounds, col, x",
    grad=_product_grad, letters=unsplit, complex=True, amp="widest",
)  # fmt: skip
def row_product(values: TensorMeta, bounds: TensorMeta, col: TensorMeta, x: TensorMeta) -> Launch:
    """Return the product of a sparse matrix by rows with a dense one: (rows, n)."""
    return _product(values, bounds, col, x)


@op(
    "values, bounds, col, x, their_bounds, row, order -> out", name="sparse_product_kept",
    saves="values, bounds, col, x, their_bounds, row, order", grad=_product_grad, letters=unsplit,
    complex=True, amp="widest",
)  # fmt: skip
def row_product_kept(
    values: TensorMeta, bounds: TensorMeta, col: TensorMeta, x: TensorMeta,
    their_bounds: TensorMeta, row: TensorMeta, order: TensorMeta,
) -> Launch:  # fmt: skip
    """`row_product`, given what `turned` says of the matrix: its gradient uses that."""
    return _product(values, bounds, col, x, their_bounds, row, order)


def turned(bounds: Tensor, col: Tensor, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the transposed matrix's bounds and columns, and which entry each of its entries is."""
    their_bounds, order = grouped(col, columns)
    row = row_numbers(bounds, col.shape[0])
    return their_bounds, index_select(row, 0, order), order


def _samples_grad(c: Node, g: Tensor) -> tuple[object, ...]:
    bounds, col, a, b = c.saved
    if a.is_complex():
        a, b = a.conj().resolve_conj(), b.conj().resolve_conj()
    to_a = row_product(g, bounds, col, b) if c.needs[2] else None
    to_b = None
    if c.needs[3]:
        their_bounds, row, order = turned(bounds, col, b.shape[0])
        to_b = row_product(index_select(g, 0, order), their_bounds, row, a)
    return None, None, to_a, to_b


@op(
    "bounds, col, a, b -> out", name="sparse_samples", saves="bounds, col, a, b",
    grad=_samples_grad, letters=unsplit, complex=True, amp="widest",
)  # fmt: skip
def row_samples(bounds: TensorMeta, col: TensorMeta, a: TensorMeta, b: TensorMeta) -> Launch:
    """Return the elements of a @ b.T at the places of a sparse matrix: a line of its entries."""
    for what, meta in (("bounds", bounds), ("col", col)):
        _check_index("sparse_samples", what, meta)
    rows = bounds.numel - 1
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or a.shape[0] != rows:
        raise ShapeError(
            f"sparse_samples: {rows} rows of {a!r} are to be multiplied with rows of {b!r}"
        )
    if a.dtype is not b.dtype or a.dtype.is_bool:
        raise DTypeError(
            f"sparse_samples: both factors have one dtype, other than bool; got {a.dtype.name} "
            f"and {b.dtype.name}"
        )
    out = a.with_shape(col.shape)
    grain = _grain(rows, col.numel, a.shape[1])
    return Launch((out,), row_kernels.sample, units=rows, grain=grain, reassociate=True)


# --- samples --------------------------------------------------------------------------------------

_BOUNDS, _COL = np.array([0, 2, 2, 5, 6]), np.array([0, 4, 1, 1, 3, 2])


def _dense(values: Array, bounds: Array, col: Array, columns: int) -> Array:
    matrix = np.zeros((len(bounds) - 1, columns), values.dtype)
    rows = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    np.add.at(matrix, (rows, col), values)
    return matrix


samples(
    row_product,
    lambda rng: [
        Sample((rng.standard_normal(6), _BOUNDS, _COL, rng.standard_normal((5, n)))) for n in (1, 3)
    ],
    lambda values, bounds, col, x: _dense(values, bounds, col, len(x)) @ x,
    name="sparse_product",
)
samples(
    row_samples,
    lambda rng: [Sample((_BOUNDS, _COL, rng.standard_normal((4, 3)), rng.standard_normal((5, 3))))],
    lambda bounds, col, a, b: (a @ b.T)[np.repeat(np.arange(4), np.diff(bounds)), col],
    name="sparse_samples",
)


def _bounds_of(row: Tensor) -> Tensor:
    """Return the bounds of four rows' entries."""
    bounds: Tensor = grouped(row, 4)[0]
    return bounds


def _row_of(bounds: Tensor) -> Tensor:
    """Return the row of each of six entries."""
    row: Tensor = row_numbers(bounds, 6)
    return row


samples(
    _bounds_of,
    lambda rng: [Sample((rng.integers(0, 4, 9),))],
    lambda row: np.concatenate([[0], np.cumsum(np.bincount(row, minlength=4))]),
    name="sparse_grouped",
    grad=False,
)
samples(
    _row_of,
    lambda rng: [Sample((_BOUNDS,))],
    lambda bounds: np.repeat(np.arange(4), np.diff(bounds)),
    name="sparse_row_numbers",
    grad=False,
)
