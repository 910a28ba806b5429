"""Looking values up: in sorted boundaries, in sets, in tables (`embedding`), and counting them in
bins.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flowvm.dtype import bool_, float64, int32, int64, promote_types
from flowvm.errors import ArgumentError, DTypeError, ShapeError
from flowvm.interpreter import set_grad_enabled
from flowvm.meta import TensorMeta
from flowvm.ops.gathering import NONE, positions_of, spread, take_slices
from flowvm.ops.recording import Recorded, filled_of, need_tensor, record
from flowvm.ops.registry import GRAIN, Launch, Sample, View, op, samples
from flowvm.ops.views import reshape, unsqueeze
from flowvm.tensor import Tensor, alias, method

__all__ = ["bucketize", "embedding", "histc", "isin", "one_hot", "searchsorted"]

Array = Any


# --- sorted boundaries --------------------------------------------------------------------------


def _place_of(row: Array, value: Any, right: bool) -> int:
    """How many of the sorted `row` come before `value` (`right`: or are equal); NaN is larger than
    any number.
    """
    lo, hi = 0, len(row)
    while lo < hi:
        middle = (lo + hi) // 2
        v = row[middle]
        below = not (v > value) if right else (v < value or (value != value and v == v))
        if below and not (v != v and value == value):
            lo = middle + 1
        else:
            hi = middle
    return lo


def _search_body(out: Array, boundaries: Array, x: Array, right: bool, lo: int, hi: int) -> None:
    rows, m = boundaries.shape[0], x.shape[1]
    for i in range(lo, hi):
        r, j = i // m, i % m
        out[r, j] = _place_of(boundaries[r if rows > 1 else 0], x[r, j], right)


@op("boundaries, x -> out", name="searchsorted")
def _search(boundaries: TensorMeta, x: TensorMeta, right: bool) -> Launch:
    n = boundaries.shape[-1]
    rows = math.prod(boundaries.shape[:-1]) if boundaries.ndim > 1 else 1
    m = x.shape[-1] if boundaries.ndim > 1 else x.numel
    views = (View(int64, (rows, m)), View(boundaries.dtype, (rows, n)), View(x.dtype, (rows, m)))
    return Launch((x.dense(int64),), _search_body, views, (right,), rows * m, GRAIN // 8)


def _alike(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Both, outside the graph, in the dtype that they promote to."""
    dtype = promote_types(a._meta.dtype, b._meta.dtype)
    return a.detach().to(dtype), b.detach().to(dtype)


def _tensor_like(value: Any, other: Tensor) -> Tensor:
    """A number as a 0-d tensor whose dtype `other`'s can be compared with."""
    if isinstance(value, Tensor):
        return value
    category = 2 if isinstance(value, float) else 0 if isinstance(value, bool) else 1
    dtype = other._meta.dtype
    if category > dtype.category:
        dtype = float64 if category == 2 else int64
    return filled_of(TensorMeta.of((), dtype, other._meta.device), value)


def searchsorted(
    sorted_sequence: Tensor,
    input: Tensor | float,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """Where each value would go in the sorted last dimension of `sorted_sequence`, keeping it
    sorted.

    The sequence is 1-d, or has the leading dimensions of `input`.  `side` "left" (the default) is
    the first such place, "right" (or `right=True`) the last.  `sorter` is the argsort of a sequence
    that is not sorted.
    """
    sequence = need_tensor("searchsorted", "sorted_sequence", sorted_sequence)
    if side not in (None, "left", "right") or (side == "left" and right):
        raise ArgumentError(
            f"searchsorted: side is 'left' or 'right' and agrees with right, got {side!r}"
        )
    if sequence._meta.ndim == 0:
        raise ShapeError("searchsorted: sorted_sequence must have a dimension, got a 0-d tensor")
    if sorter is not None:
        from flowvm.ops.gathering import gather

        sequence = gather(sequence, -1, sorter)
    values = _tensor_like(input, sequence)
    shape = values._meta.shape
    if sequence._meta.ndim > 1 and shape[:-1] != sequence._meta.shape[:-1]:
        raise ShapeError(
            "searchsorted: the dimensions before the last must agree, got "
            f"{tuple(sequence.shape)} and {tuple(shape)}"
        )
    found: Tensor = _search(*_alike(sequence, values), bool(right or side == "right"))
    return found.to(int32) if out_int32 else found


def bucketize(
    input: Tensor | float, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    """The bucket between 1-d sorted `boundaries` that each value falls into: 0 before the first.

    A value equal to a boundary belongs to the bucket that ends there, with `right` to the one that
    begins there.
    """
    if need_tensor("bucketize", "boundaries", boundaries)._meta.ndim != 1:
        raise ShapeError(f"bucketize: boundaries must be 1-d, got shape {tuple(boundaries.shape)}")
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


def _isin_body(out: Array, x: Array, tests: Array, invert: bool, lo: int, hi: int) -> None:
    n = len(tests)
    for i in range(lo, hi):
        at = _place_of(tests, x[i], False)
        out[i] = (at < n and tests[at] == x[i]) != invert


@op("x, tests -> out", name="isin")
def _isin(x: TensorMeta, tests: TensorMeta, invert: bool) -> Launch:
    views = (View(bool_, (x.numel,)), View(x.dtype, (x.numel,)), View(tests.dtype, (tests.numel,)))
    return Launch((x.dense(bool_),), _isin_body, views, (invert,), x.numel, GRAIN // 8)


def isin(
    elements: Tensor | float,
    test_elements: Tensor | float,
    *,
    assume_unique: bool = False,
    invert: bool = False,
) -> Tensor:
    """Whether each element is among `test_elements` (`invert`: is not); one of the two may be a
    number.
    """
    if not isinstance(elements, Tensor) and not isinstance(test_elements, Tensor):
        need_tensor("isin", "elements", elements)
    like = elements if isinstance(elements, Tensor) else test_elements
    assert isinstance(like, Tensor)
    x, tests = _alike(_tensor_like(elements, like), _tensor_like(test_elements, like))
    from flowvm.ops.sorting import sort

    flat = reshape(tests, (tests.numel(),))
    out: Tensor = _isin(x, sort(flat).values, bool(invert))
    return out


# --- bins ---------------------------------------------------------------------------------------


def _histc_body(out: Array, x: Array, low: float, high: float, lo: int, hi: int) -> None:
    bins = len(out)
    for k in range(bins):
        out[k] = 0
    if low == high and len(x):
        low = high = float(x[0])
        for i in range(len(x)):
            low, high = min(low, float(x[i])), max(high, float(x[i]))
    if low == high:
        low, high = low - 1.0, high + 1.0
    for i in range(len(x)):
        v = float(x[i])
        if low <= v <= high:
            out[min(bins - 1, int((v - low) / (high - low) * bins))] += 1


@op("x -> out", name="histc")
def _histc(x: TensorMeta, bins: int, low: float, high: float) -> Launch:
    out = x.with_shape((bins,))
    views = (View(x.dtype, (bins,)), View(x.dtype, (x.numel,)))
    return Launch((out,), _histc_body, views, (low, high))


@method()
def histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """How many elements fall into each of `bins` equal intervals from `min` to `max`, in the
    input's dtype.

    Elements outside are left out.  With `min` equal to `max` the data's own range is taken.
    """
    meta = need_tensor("histc", "input", input)._meta
    if not meta.dtype.is_floating_point:
        raise DTypeError(f"histc: input must be floating point, got {meta.dtype.name}")
    if bins <= 0:
        raise ArgumentError(f"histc: bins must be positive, got {bins}")
    if max < min or not (math.isfinite(min) and math.isfinite(max)):
        raise ArgumentError(
            f"histc: max must not be less than min, both finite, got {min} and {max}"
        )
    out: Tensor = _histc(input.detach(), int(bins), float(min), float(max))
    return out


# --- tables -------------------------------------------------------------------------------------


def _one_hot_body(out: Array, index: Array, lo: int, hi: int, details: Array) -> int:
    n = out.shape[1]
    for i in range(lo, hi):
        j = index[i]
        if j < 0 or j >= n:
            details[0], details[1], details[2] = j, n, -1
            return 1  # Status.INDEX_OUT_OF_RANGE
        for k in range(n):
            out[i, k] = 0
        out[i, j] = 1
    return 0


@op("index -> out", name="one_hot")
def _one_hot(index: TensorMeta, classes: int) -> Launch:
    m = index.numel
    out = index.with_shape((*index.shape, classes))
    views = (View(int64, (m, classes)), View(int64, (m,)))
    return Launch((out,), _one_hot_body, views, (), m, max(1, GRAIN // max(classes, 1)))


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """A new last dimension of size `num_classes` with 1 at the index and 0 elsewhere; int64.

    -1 takes the largest index plus one, which waits for the tensor.
    """
    meta = need_tensor("one_hot", "tensor", tensor)._meta
    if meta.dtype is not int64:
        raise DTypeError(f"one_hot: tensor must hold int64 indices, got {meta.dtype.name}")
    if num_classes == -1:
        if meta.numel == 0:
            raise ArgumentError(
                "one_hot: num_classes cannot be worked out from a tensor without elements"
            )
        num_classes = int(np.max(tensor.numpy())) + 1
        if num_classes < 1:
            raise ArgumentError("one_hot: class indices cannot be negative")
    if num_classes < 1:
        raise ArgumentError(f"one_hot: num_classes must be positive, got {num_classes}")
    out: Tensor = _one_hot(tensor, int(num_classes))
    return out


def _scaled_grad(c: Any, g: Tensor) -> tuple[Tensor]:
    (index,) = c.saved
    (rows,) = c.attrs
    ones = filled_of(index._meta, 1, g._meta.dtype)
    often = spread(ones, index, (rows,), 0, 0, 0)
    return (g / unsqueeze(take_slices(often, index, 0, 0, 0, NONE, NONE), -1),)


_scaled_op = Recorded("embedding_scale", _scaled_grad, ("x",))


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """The rows of `weight` (2-d) that the integers in `input` name: shape (*input.shape,
    weight.shape[1]).

    padding_idx          this row gets no gradient
    max_norm             rows that are looked up and have a larger `norm_type` norm are scaled down
                         to it, in place
    scale_grad_by_freq   divide a row's gradient by how often it was looked up
    sparse               accepted; gradients are always dense

    OutOfRangeError when the result is read, for an index outside.
    """
    index = positions_of("embedding", "input", input)
    meta = need_tensor("embedding", "weight", weight)._meta
    if meta.ndim != 2:
        raise ShapeError(f"embedding: weight must be 2-d, got shape {tuple(meta.shape)}")
    rows = meta.shape[0]
    skip = NONE
    if padding_idx is not None:
        if not -rows <= padding_idx < rows:
            raise ArgumentError(
                f"embedding: padding_idx {padding_idx} is outside the {rows} rows of weight"
            )
        skip = padding_idx % rows
    if max_norm is not None:
        _renormalize(weight, index, max_norm, norm_type)
    out: Tensor = take_slices(weight, index, 0, 0, 0, NONE, skip)
    if scale_grad_by_freq:
        return record(_scaled_op, (out,), alias(out, out._meta), (rows,), (index,))
    return out


def _renormalize(weight: Tensor, index: Tensor, most: float, order: float) -> None:
    from flowvm.ops.counting import unique
    from flowvm.ops.scattering import index_copy_

    before = set_grad_enabled(False)
    try:
        used = unique(index)
        picked = take_slices(weight.detach(), used, 0, 0, 0, NONE, NONE)
        norms = (picked.abs() ** order).sum(-1, keepdim=True) ** (1.0 / order)
        scale = (most / (norms + 1e-7)).masked_fill(norms <= most, 1.0)
        index_copy_(weight, 0, used, picked * scale)
    finally:
        set_grad_enabled(before)


# --- samples ------------------------------------------------------------------------------------


def _numpy_search(
    sequence: Any, x: Any, right: bool = False, side: str | None = None, sorter: Any = None
) -> Any:
    way = "right" if right or side == "right" else "left"
    if sorter is not None:
        sequence = np.take_along_axis(sequence, sorter, -1)
    if sequence.ndim == 1:
        return np.searchsorted(sequence, x, way)
    return np.stack([np.searchsorted(s, v, way) for s, v in zip(sequence, x, strict=True)])


samples(
    searchsorted,
    lambda rng: [
        Sample(
            (np.sort(rng.integers(0, 5, 6)).astype(np.float64), rng.integers(0, 5, (2, 3)) / 1.0)
        ),
        Sample(
            (np.sort(rng.integers(0, 5, (2, 4)), -1), rng.integers(0, 5, (2, 3))), {"right": True}
        ),
        Sample((np.array([1, 1, 3]), 1), {"side": "right"}),
        Sample((np.array([3, 1, 2]), np.array([2, 5])), {"sorter": np.array([1, 2, 0])}),
        Sample((np.zeros(0), np.array([1.0]))),
    ],
    _numpy_search,
    grad=False,
    errors=(
        (lambda flow: flow.searchsorted(flow.ones(2), 1.0, side="up"), ValueError),
        (lambda flow: flow.searchsorted(flow.ones(2, 3), flow.ones(3, 2)), RuntimeError),
    ),
)
samples(
    bucketize,
    lambda rng: [
        Sample((rng.standard_normal((2, 3)), np.array([-1.0, 0.0, 1.0]))),
        Sample((np.array([1, 2, 3]), np.array([1, 3])), {"right": True}),
        Sample((2, np.array([1, 3]))),
    ],
    lambda x, boundaries, right=False: np.searchsorted(boundaries, x, "right" if right else "left"),
    grad=False,
    errors=((lambda flow: flow.bucketize(flow.ones(2), flow.ones(2, 2)), RuntimeError),),
)
samples(
    isin,
    lambda rng: [
        Sample((rng.integers(0, 5, (2, 3)), np.array([1, 4]))),
        Sample((np.array([1.0, 2.0]), np.array([[2.0, 3.0]])), {"invert": True}),
        Sample((np.array([1, 2]), 2)),
        Sample((2, np.array([1, 2]))),
        Sample((np.array([1, 2]), np.zeros(0, np.int64))),
    ],
    np.isin,
    grad=False,
    errors=((lambda flow: flow.isin(1, 2), TypeError),),
)
samples(
    histc,
    lambda rng: [
        Sample((rng.uniform(0, 4, (3, 4)), 5, 0, 4)),
        Sample((np.array([1.0, 2.0, 2.5, 4.0]), 3)),
        Sample((np.zeros(0), 2, 0, 1)),
    ],
    lambda x, bins=100, low=0, high=0: np.histogram(x, bins, (low, high) if high > low else None)[
        0
    ].astype(x.dtype),
    grad=False,
    floats=("float64", "float32"),
    errors=(
        (lambda flow: flow.histc(flow.ones(2), 0), ValueError),
        (lambda flow: flow.histc(flow.ones(2), 2, 1, 0), ValueError),
        (lambda flow: flow.histc(flow.tensor([1])), RuntimeError),
    ),
)
samples(
    one_hot,
    lambda rng: [
        Sample((rng.integers(0, 4, (2, 3)), 4)),
        Sample((np.array([0, 2]),)),
        Sample((np.array(1), 3)),
    ],
    lambda x, n=-1: np.eye(n if n > 0 else x.max() + 1, dtype=np.int64)[x],
    grad=False,
    errors=(
        (lambda flow: flow.one_hot(flow.tensor([3]), 2).numpy(), IndexError),
        (lambda flow: flow.one_hot(flow.ones(2)), RuntimeError),
        (lambda flow: flow.one_hot(flow.tensor([0]), 0), ValueError),
    ),
)
samples(
    embedding,
    lambda rng: [
        Sample((rng.integers(0, 4, (2, 3)), rng.standard_normal((4, 2)))),
        Sample((np.array(1), rng.standard_normal((2, 3)))),
        Sample((np.zeros((0,), np.int64), rng.standard_normal((2, 3)))),
    ],
    lambda index, weight: weight[index],
    errors=(
        (lambda flow: flow.embedding(flow.tensor([2]), flow.ones(2, 2)).numpy(), IndexError),
        (lambda flow: flow.embedding(flow.tensor([-1]), flow.ones(2, 2)).numpy(), IndexError),
        (lambda flow: flow.embedding(flow.ones(2), flow.ones(2, 2)), RuntimeError),
        (lambda flow: flow.embedding(flow.tensor([0]), flow.ones(2)), RuntimeError),
        (lambda flow: flow.embedding(flow.tensor([0]), flow.ones(2, 2), 5), ValueError),
    ),
)
