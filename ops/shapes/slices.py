"""Views of some of the elements: slices, diagonals, and the basic half of indexing.

Each is a geometry, (meta, attributes) -> (meta, offset), that shows no element twice.  The same
geometry makes its gradient: zeros of the whole shape, and the gradient copied through the view.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.native.trace_cache import steady
from flowvm.eager.tensor import Tensor, alias, method
from flowvm.errors import DTypeError, OutOfRangeError, ShapeError
from flowvm.guards.lru_cache import lru_cached
from flowvm.meta.batched_meta import made_for
from flowvm.meta.dtype import bool_
from flowvm.meta.meta import Size, TensorMeta
from flowvm.ops.declare.composite import Recorded, filled_of, need_tensor, record, whole, wrap_dim
from flowvm.ops.declare.core import copy_, view_of
from flowvm.ops.declare.registry import samples
from flowvm.ops.shapes.views import _xs

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node


# public: flow

Geometry = Callable[..., tuple[TensorMeta, int]]


def _strided_view(name: str, geometry: Geometry) -> Callable[..., Tensor]:
    """The view function of a geometry that shows no element twice."""
    cached = lru_cached("views")(geometry)

    def backward(c: Node, g: Tensor) -> tuple[Tensor]:
        return (embed(g, c.metas[0], *c.attrs),)

    def embed(g: Tensor, whole: TensorMeta, *attrs: object) -> Tensor:
        out = filled_of(made_for(whole.with_shape(whole.shape), g._meta), 0, g._meta.dtype)
        meta, offset = cached(out._meta, *attrs)
        copy_(alias(out, meta, offset * meta.dtype.itemsize), g.detach())
        return record(embedded, (g,), out, attrs)

    def view(x: Tensor, *attrs: object) -> Tensor:
        meta, offset = cached(x._meta, *attrs)
        return view_of(x, name, meta, offset, backward, attrs)

    embedded = Recorded(f"{name}_backward", lambda c, g: (view(g, *c.attrs),), ("g",))
    return view


def _select_geometry(meta: TensorMeta, dim: int, index: int) -> tuple[TensorMeta, int]:
    if meta.ndim == 0:
        raise OutOfRangeError("a 0-d tensor cannot be indexed; use .item() for its value")
    at = wrap_dim("select", dim, meta.ndim)
    size, step = meta.shape[at], meta.stride[at]
    if not -size <= index < size:
        raise OutOfRangeError(f"index {index} is out of bounds for dimension {at} with size {size}")
    shape = Size(meta.shape[:at] + meta.shape[at + 1 :])
    stride = meta.stride[:at] + meta.stride[at + 1 :]
    offset = (index + size if index < 0 else index) * step
    return TensorMeta.of(shape, meta.dtype, meta.device, stride), offset


def _slice_geometry(
    meta: TensorMeta, at: int, start: int, length: int, step: int
) -> tuple[TensorMeta, int]:
    shape, stride = list(meta.shape), list(meta.stride)
    offset = start * stride[at] if length else 0
    shape[at], stride[at] = length, stride[at] * step
    return TensorMeta.of(Size(shape), meta.dtype, meta.device, tuple(stride)), offset


_select = _strided_view("select", _select_geometry)
_slice = _strided_view("slice", _slice_geometry)


@method()
@steady
def select(input: Tensor, dim: int, index: int) -> Tensor:
    """A view of the elements with `index` in dimension `dim`, which it no longer has.

    >>> flow.select(flow.tensor([[1, 2], [3, 4]]), 1, 0)
    tensor([1, 3])
    """
    x = need_tensor("select", "input", input)
    if type(dim) is not int or type(index) is not int:
        dim, index = whole("select", "a dimension", dim), whole("select", "an index", index)
    return _select(x, dim, index)


@method()
@steady
def narrow(input: Tensor, dim: int, start: int, length: int) -> Tensor:
    """A view of `length` elements of dimension `dim` from `start` on.

    >>> flow.narrow(flow.arange(5), 0, 1, 3)
    tensor([1, 2, 3])
    """
    x = need_tensor("narrow", "input", input)
    if x._meta.ndim == 0:
        raise ShapeError("narrow: a 0-d tensor has no dimension to narrow")
    at = wrap_dim("narrow", dim, x._meta.ndim)
    size = x._meta.shape[at]
    if type(start) is not int or type(length) is not int:
        if getattr(getattr(start, "_meta", None), "dtype", None) is bool_:
            raise DTypeError("narrow: start is an integer, or a 0-d tensor of one, got bool")
        start, length = whole("narrow", "start", start), whole("narrow", "length", length)
    first = start + size if start < 0 else start
    if not 0 <= first <= size:
        raise OutOfRangeError(f"narrow: start {start} is outside dimension {dim} of size {size}")
    if length < 0 or first + length > size:
        raise ShapeError(
            f"narrow: start {start} and length {length} go beyond dimension {dim} of size {size}"
        )
    return _slice(x, at, first, length, 1)


def _diagonal_geometry(
    meta: TensorMeta, offset: int, dim1: int, dim2: int
) -> tuple[TensorMeta, int]:
    a, b = wrap_dim("diagonal", dim1, meta.ndim), wrap_dim("diagonal", dim2, meta.ndim)
    if a == b:
        raise ShapeError(
            f"diagonal: dim1 and dim2 are both dimension {a} of shape {tuple(meta.shape)}"
        )
    rows, columns = meta.shape[a], meta.shape[b]
    length = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    start = offset * meta.stride[b] if offset >= 0 else -offset * meta.stride[a]
    keep = [i for i in range(meta.ndim) if i not in (a, b)]
    shape = Size([*(meta.shape[i] for i in keep), length])
    stride = (*(meta.stride[i] for i in keep), meta.stride[a] + meta.stride[b])
    return TensorMeta.of(shape, meta.dtype, meta.device, stride), start if length else 0


_diagonal = _strided_view("diagonal", _diagonal_geometry)


@method()
@steady
def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A view of the diagonals of `dim1` and `dim2`, as the last dimension; `offset` > 0 is above
    the main one.

    >>> flow.diagonal(flow.tensor([[1, 2], [3, 4]]))
    tensor([1, 4])
    """
    x = need_tensor("diagonal", "input", input)
    offset, dim1, dim2 = (whole("diagonal", "an offset or dim", n) for n in (offset, dim1, dim2))
    return _diagonal(x, offset, dim1, dim2)


# --- basic indexing -----------------------------------------------------------------------------

# A basic index is one item for each dimension: an int, (start, length, step), or None for a new
# dimension.


def _basic_geometry(meta: TensorMeta, items: tuple[Any, ...]) -> tuple[TensorMeta, int]:
    shape, stride, offset, d = [], [], 0, 0
    for item in items:
        if item is None:
            shape.append(1)
            stride.append(meta.shape[d] * meta.stride[d] if d < meta.ndim else 1)
        elif type(item) is tuple:
            start, length, step = item
            shape.append(length)
            stride.append(meta.stride[d] * step)
            offset += start * meta.stride[d]
            d += 1
        else:
            offset += item * meta.stride[d]
            d += 1
    out = TensorMeta.of(Size(shape), meta.dtype, meta.device, tuple(stride))
    return out, offset if out.numel else 0


basic_view = _strided_view("getitem", _basic_geometry)  # not public


samples(
    select,
    lambda rng: _xs(rng, ((2, 3, 4), 1, 2), ((2, 3), -1, -1), ((3,), 0, 0)),
    lambda x, dim, index: np.take(x, index, dim),
    errors=(
        (lambda flow: flow.select(flow.ones(2, 3), 1, 3), IndexError),
        (lambda flow: flow.select(flow.ones(()), 0, 0), IndexError),
    ),
)
samples(
    narrow,
    lambda rng: _xs(rng, ((2, 5), 1, 1, 3), ((4,), 0, -2, 2), ((4, 2), -1, 0, 0)),
    lambda x, dim, start, length: np.take(x, range(start, start + length), dim),
    errors=(
        (lambda flow: flow.narrow(flow.ones(3), 0, 1, 3), RuntimeError),
        (lambda flow: flow.narrow(flow.ones(3), 0, 4, 0), IndexError),
        (lambda flow: flow.narrow(flow.ones(3), 0, 0, -1), RuntimeError),
    ),
)
samples(
    diagonal,
    lambda rng: _xs(
        rng,
        ((3, 4),),
        ((3, 4), 1),
        ((4, 3), -2),
        ((2, 3, 3), 0, 1, 2),
        ((2, 3, 2), 1, -1, 0),
        ((3, 3), 5),
    ),
    np.diagonal,
    errors=(
        (lambda flow: flow.diagonal(flow.ones(2, 2), 0, 1, 1), RuntimeError),
        (lambda flow: flow.diagonal(flow.ones(2)), IndexError),
    ),
)
