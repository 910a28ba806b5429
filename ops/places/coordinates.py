"""OneFlow's ops at positions with several coordinates: `gather_nd`, `scatter_nd`,
`tensor_scatter_nd_update`; slices a tuple a dimension; rows picked within rows; `in_top_k`.

Indexing says all of this, too, and does it here.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from flowvm.meta.meta import as_shape
from flowvm.ops.declare.composite import need_tensor, whole
from flowvm.ops.places.gather import gather, positions_of
from flowvm.ops.places.indexing import getitem, index_put, setitem
from flowvm.ops.places.scatter import same_dtype
from flowvm.ops.pointwise.compare import isfinite, lt
from flowvm.ops.shapes.fill import zeros

# public: flow


def _coordinates(name: str, index: object, shape: Sequence[int]) -> tuple[Tensor, ...]:
    """The columns of `index`, (..., k), each the positions in one of the first k dimensions."""
    rows: Tensor = positions_of(name, "index", index)
    if not rows.ndim or not 1 <= rows.shape[-1] <= len(shape):
        raise ShapeError(
            f"{name}: the last dimension of index has 1 to {len(shape)} coordinates of shape "
            f"{tuple(shape)}, got index of shape {tuple(rows.shape)}"
        )
    return tuple(rows.unbind(-1))


def gather_nd(input: Tensor, index: Tensor) -> Tensor:
    """The slices of `input` at the positions `index`, (..., k): a row of it has the coordinates in
    the first k dimensions.  The result is (..., *input.shape[k:]), of input's dtype.

    ShapeError where k is not from 1 to the number of dimensions, DTypeError where `index` has no
    integers, OutOfRangeError for a coordinate out of range; negative ones count from the end.

    >>> x = flow.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    >>> flow.gather_nd(x, flow.tensor([[0, 2], [2, 1]]))
    tensor([3, 8])
    >>> flow.gather_nd(x, flow.tensor([[0], [2]]))
    tensor([[1, 2, 3],
            [7, 8, 9]])
    """
    x = need_tensor("gather_nd", "input", input)
    return getitem(x, _coordinates("gather_nd", index, x.shape))


def scatter_nd(index: Tensor, update: Tensor, shape: Sequence[int]) -> Tensor:
    """Add slices of `update` to zeros of `shape`, at the positions `index`.

    `index` is (..., k) and `update` (..., *shape[k:]).  Slices for one position add up.  Errors are
    the same as for `gather_nd`, and ShapeError where `update` has another shape.

    >>> flow.scatter_nd(flow.tensor([[1], [3], [1]]), flow.tensor([5.0, 6.0, 7.0]), [4])
    tensor([ 0., 12.,  0.,  6.])
    """
    new = need_tensor("scatter_nd", "update", update)
    out = zeros(as_shape(shape), dtype=new.dtype, device=new.device)
    return _put("scatter_nd", out, index, new, True)


def tensor_scatter_nd_update(tensor: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """A copy of `tensor` with the slices of `updates`, (..., *tensor.shape[k:]), at the positions
    `indices`, (..., k).  Of several for one position the last stays.

    Errors are those of `gather_nd`; ShapeError and DTypeError where `updates` does not fit.

    >>> x = flow.arange(4)
    >>> flow.tensor_scatter_nd_update(x, flow.tensor([[1], [3]]), flow.tensor([10, 30]))
    tensor([ 0, 10,  2, 30])
    """
    x = need_tensor("tensor_scatter_nd_update", "tensor", tensor)
    new = need_tensor("tensor_scatter_nd_update", "updates", updates)
    same_dtype("tensor_scatter_nd_update", x, new, "updates")
    return _put("tensor_scatter_nd_update", x, indices, new, False)


def _put(name: str, x: Tensor, index: Tensor, update: Tensor, add: bool) -> Tensor:
    at = _coordinates(name, index, x.shape)
    shape = (*at[0].shape, *x.shape[len(at) :])
    if tuple(update.shape) != shape:
        raise ShapeError(f"{name}: updates have shape {tuple(update.shape)}, expected {shape}")
    return index_put(x, at, update, add)


def batch_gather(input: Tensor, indices: Tensor) -> Tensor:
    """Slices picked within each batch: `indices`, (*batch, m), has positions in the dimension of
    `input`, (*batch, n, ...), behind the batch; the result is (*batch, m, ...).

    ShapeError where the batches differ, DTypeError where `indices` has no integers.

    >>> x = flow.tensor([[1, 2, 3], [4, 5, 6]])
    >>> flow.batch_gather(x, flow.tensor([[2, 0], [1, 1]]))
    tensor([[3, 1],
            [5, 5]])
    """
    x: Tensor = need_tensor("batch_gather", "input", input)
    at: Tensor = positions_of("batch_gather", "indices", indices)
    batch = at.ndim - 1
    if batch < 0 or x.ndim < at.ndim or x.shape[:batch] != at.shape[:batch]:
        raise ShapeError(
            f"batch_gather: indices are (*batch, m) and input (*batch, n, ...), got indices of "
            f"shape {tuple(at.shape)} and input of shape {tuple(x.shape)}"
        )
    rest = x.shape[at.ndim :]
    wide = at.reshape((*at.shape, *(1,) * len(rest))).expand((*at.shape, *rest))
    return gather(x, batch, wide)


def in_top_k(targets: Tensor, predictions: Tensor, k: int) -> Tensor:
    """Test whether fewer than `k` predictions of a row are greater than its target's prediction.

    `targets` are classes, (n,), and `predictions` (n, classes); the result is bool, (n,).  It is
    False for rows with an infinity or NaN.

    ShapeError; DTypeError where targets are no integers; OutOfRangeError for a class that is not
    there.

    >>> scores = flow.tensor([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2]])
    >>> flow.in_top_k(flow.tensor([2, 2]), scores, 2)
    tensor([ True, False])
    """
    x: Tensor = need_tensor("in_top_k", "predictions", predictions)
    at: Tensor = positions_of("in_top_k", "targets", targets)
    if x.ndim != 2 or at.ndim != 1 or x.shape[0] != at.shape[0]:
        raise ShapeError(
            f"in_top_k: targets are (n,) and predictions (n, classes), got {tuple(at.shape)} and "
            f"{tuple(x.shape)}"
        )
    if x.dtype.is_complex:
        raise DTypeError(f"in_top_k: {x.dtype.name} numbers have no order")
    scores = x.detach()
    own = gather(scores, 1, at.unsqueeze(1))
    greater = (scores > own).sum(1)
    hits: Tensor = lt(greater, whole("in_top_k", "k", k)) & isfinite(scores).all(1)
    return hits


def _slices(
    name: str, x: Tensor, slices: Sequence[Sequence[int | None]]
) -> tuple[builtins.slice, ...]:
    if not isinstance(slices, (list, tuple)):
        kind = type(slices).__name__
        raise ArgumentTypeError(f"{name}: slice_tup_list has (start, stop, step)s, got {kind}")
    if len(slices) > x.ndim:
        raise ArgumentError(f"{name}: {len(slices)} slices for {x.ndim} dimensions")
    for one in slices:
        if not isinstance(one, (list, tuple)) or len(one) != 3:
            raise ArgumentError(f"{name}: a slice is (start, stop, step), got {one!r}")
    return tuple(builtins.slice(*one) for one in slices)


def slice(input: Tensor, slice_tup_list: Sequence[Sequence[int | None]]) -> Tensor:
    """A view of `input`: each dimension from start to stop by step, as Python's slices say it.

    slice_tup_list   (start, stop, step) a dimension, None as in Python; missing ones are whole

    ArgumentError for more slices than dimensions, and for what is none.

    >>> flow.slice(flow.arange(10).view(2, 5), [(None, None, None), (1, 5, 2)])
    tensor([[1, 3],
            [6, 8]])
    """
    x = need_tensor("slice", "input", input)
    return getitem(x, _slices("slice", x, slice_tup_list))


def slice_update(
    input: Tensor, update: Tensor, slice_tup_list: Sequence[Sequence[int | None]]
) -> Tensor:
    """`input`, with `update` written into that slice of it, in input's dtype.

    Errors are those of `slice`, and ShapeError where `update` does not fit.

    >>> flow.slice_update(flow.ones(5), flow.tensor([2.0, 3.0, 4.0]), [(1, 4, 1)])
    tensor([1., 2., 3., 4., 1.])
    """
    x = need_tensor("slice_update", "input", input)
    new: Tensor = need_tensor("slice_update", "update", update)
    setitem(x, _slices("slice_update", x, slice_tup_list), new.to(x.dtype))
    return x
