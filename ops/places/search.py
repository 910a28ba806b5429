"""Looking values up: in sorted boundaries, in sets, in tables (`embedding`), and counting them in
bins.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flowvm.eager.keywords import spelled
from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentError, DTypeError, InvalidValueError, ShapeError, declare_status
from flowvm.launch import GRAIN, Launch, View
from flowvm.meta.arrays import Array
from flowvm.meta.dtype import bool_, float64, int32, int64, promote_types
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.composite import filled_of, need_tensor, whole
from flowvm.ops.declare.kinds import Count
from flowvm.ops.declare.letters import unsplit
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.registry import Sample, op, samples
from flowvm.ops.places.gather import gather
from flowvm.ops.places.sort import sort
from flowvm.ops.shapes.views import reshape

# public: flow

NO_RANGE = declare_status(
    67, InvalidValueError, "histc: the range of the bins is infinite; give a finite min and max"
)
TOGETHER = 256  # searches that go on at the same time


# --- sorted boundaries --------------------------------------------------------------------------


def _find(places: Array, row: Array, values: Array, right: bool) -> None:
    """Count the elements of the sorted `row` before each value (`right`: or equal to it).

    NaN is larger than any number.

    All searches take the same steps, one step of all after another: there is nothing to predict,
    and no search waits for the memory that another one asks for.
    """
    places[:] = 0
    left = len(row)
    while left > 0:
        half = (left + 1) // 2
        last = np.uint64(half - 1)
        if right:
            for i in range(len(places)):
                at, value = places[i], values[i]
                v = row[np.uint64(at) + last]
                after = np.int64(v > value) | (np.int64(v != v) & np.int64(value == value))
                places[i] = at + half * (1 - after)
        else:
            for i in range(len(places)):
                at, value = places[i], values[i]
                v = row[np.uint64(at) + last]
                before = np.int64(v < value) | (np.int64(value != value) & np.int64(v == v))
                places[i] = at + half * before
        left -= half


def _search_body(out: Array, boundaries: Array, x: Array, right: bool, lo: int, hi: int) -> None:
    rows, m = boundaries.shape[0], x.shape[1]
    at = lo
    while at < hi:
        r, start = at // m, at % m
        end = min(m, start + min(hi - at, TOGETHER))
        _find(out[r, start:end], boundaries[r if rows > 1 else 0], x[r, start:end], right)
        at += end - start


@op("boundaries, x -> out", name="searchsorted", cuda="search:searchsorted", letters=unsplit)
def _search(boundaries: TensorMeta, x: TensorMeta, right: bool) -> Launch:
    n = boundaries.shape[-1]
    rows = math.prod(boundaries.shape[:-1]) if boundaries.ndim > 1 else 1
    m = x.shape[-1] if boundaries.ndim > 1 else x.numel
    views = (View(int64, (rows, m)), View(boundaries.dtype, (rows, n)), View(x.dtype, (rows, m)))
    return Launch((x.dense(int64),), _search_body, views, (right,), rows * m, GRAIN // 8)


def _alike(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return both operands, outside the graph, in the dtype that they promote to."""
    dtype = promote_types(a._meta.dtype, b._meta.dtype)
    return a.detach().to(dtype), b.detach().to(dtype)


def _tensor_like(value: Tensor | float, other: Tensor) -> Tensor:
    """A number as a 0-d tensor whose dtype `other`'s can be compared with."""
    if isinstance(value, Tensor):
        return value
    category = 2 if isinstance(value, float) else 0 if isinstance(value, bool) else 1
    dtype = other._meta.dtype
    if category > dtype.category:
        dtype = float64 if category == 2 else int64
    return filled_of(TensorMeta.of((), dtype, other._meta.device), value)


@with_out
def searchsorted(
    sorted_sequence: Tensor,
    input: Tensor | float,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """Return where to insert each value to keep the last dimension of `sorted_sequence` sorted.

    The sequence is 1-d, or has the leading dimensions of `input`.  `side` "left" (the default) is
    the first such place, "right" (or `right=True`) the last.  `sorter` is the argsort of a sequence
    that is not sorted.

    >>> flow.searchsorted(flow.tensor([1, 3, 5]), flow.tensor([0, 3, 9]))
    tensor([0, 1, 3])
    """
    sequence = need_tensor("searchsorted", "sorted_sequence", sorted_sequence)
    if side not in (None, "left", "right") or (side == "left" and right):
        raise ArgumentError(
            f"searchsorted: side is 'left' or 'right' and agrees with right, got {side!r}"
        )
    if sequence._meta.ndim == 0:
        raise ShapeError("searchsorted: sorted_sequence must have a dimension, got a 0-d tensor")
    if sorter is not None:
        sequence = gather(sequence, -1, sorter)
    values = _tensor_like(input, sequence)
    shape = values._meta.shape
    if sequence._meta.ndim > 1 and shape[:-1] != sequence._meta.shape[:-1]:
        raise ShapeError(
            "searchsorted: the dimensions before the last must agree, got "
            f"{tuple(sequence.shape)} and {tuple(shape)}"
        )
    places: Tensor = _search(*_alike(sequence, values), bool(right or side == "right"))
    return places.to(int32) if out_int32 else places


@with_out
def bucketize(
    input: Tensor | float, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    """The bucket between 1-d sorted `boundaries` that each value falls into: 0 before the first.

    A value equal to a boundary belongs to the bucket that ends there, with `right` to the one that
    begins there.

    >>> flow.bucketize(flow.tensor([0, 3, 5, 9]), flow.tensor([3, 5]))
    tensor([0, 0, 1, 2])
    """
    if need_tensor("bucketize", "boundaries", boundaries)._meta.ndim != 1:
        raise ShapeError(f"bucketize: boundaries must be 1-d, got shape {tuple(boundaries.shape)}")
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


def _isin_body(
    out: Array, x: Array, tests: Array, invert: bool, arena: Array, lo: int, hi: int
) -> None:
    n = len(tests)
    room = arena.view(np.int64)
    for start in range(lo, hi, TOGETHER):
        end = min(hi, start + TOGETHER)
        values, y, places = x[start:end], out[start:end], room[: end - start]
        _find(places, tests, values, False)
        for i in range(len(y)):
            at = places[i]
            y[i] = (at < n and tests[min(at, n - 1)] == values[i]) != invert


@op("x, tests -> out", name="isin", cuda="search:isin", letters=unsplit)
def _isin(x: TensorMeta, tests: TensorMeta, invert: bool) -> Launch:
    views = (View(bool_, (x.numel,)), View(x.dtype, (x.numel,)), View(tests.dtype, (tests.numel,)))
    consts, arena = (invert,), 8 * TOGETHER
    return Launch((x.dense(bool_),), _isin_body, views, consts, x.numel, GRAIN // 8, arena=arena)


@with_out
@spelled(element="elements", test_element="test_elements")
def isin(
    elements: Tensor | float,
    test_elements: Tensor | float,
    *,
    assume_unique: bool = False,
    invert: bool = False,
) -> Tensor:
    """Test whether each element is among `test_elements` (`invert`: is not).

    One of the two may be a number.

    >>> flow.isin(flow.tensor([1, 2, 3]), flow.tensor([3, 1]))
    tensor([ True, False,  True])
    """
    if not isinstance(elements, Tensor) and not isinstance(test_elements, Tensor):
        need_tensor("isin", "elements", elements)
    like = elements if isinstance(elements, Tensor) else test_elements
    assert isinstance(like, Tensor)
    x, tests = _alike(_tensor_like(elements, like), _tensor_like(test_elements, like))
    flat = reshape(tests, (tests.numel(),))
    out: Tensor = _isin(x, sort(flat).values, bool(invert))
    return out


# --- bins ---------------------------------------------------------------------------------------


# not public
def bounds_of(low: float, high: float, least: float, most: float) -> tuple[float, float]:
    """Return the range of the bins: as asked for, or the data's range, `least` to `most`.

    Without data, `least` is greater than `most`.
    """
    if low == high:
        low, high = (least, most) if least <= most else (0.0, 0.0)
    return (low - 1.0, high + 1.0) if low == high else (low, high)


def _histc_body(
    out: Array, x: Array, low: float, high: float, lo: int, hi: int, details: Array
) -> int:
    bins = len(out)
    for k in range(bins):
        out[k] = 0
    least, most = math.inf, -math.inf
    for i in range(len(x) if low == high else 0):
        v = float(x[i])
        if v == v:
            least, most = min(least, v), max(most, v)
    low, high = bounds_of(low, high, least, most)
    if not high - low < math.inf:
        return 67  # NO_RANGE
    for i in range(len(x)):
        v = float(x[i])
        if low <= v <= high:
            out[min(bins - 1, int((v - low) / (high - low) * bins))] += 1
    return 0


@op("x -> out", name="histc", cuda="counts:histc", letters=unsplit)
def _histc(x: TensorMeta, bins: Count, low: float, high: float) -> Launch:
    out = x.with_shape((bins,))
    views = (View(x.dtype, (bins,)), View(x.dtype, (x.numel,)))
    return Launch((out,), _histc_body, views, (low, high))


@method()
@with_out
def histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """Count the elements in `bins` equal intervals from `min` to `max`, in the input's dtype.

    Elements outside are left out, and so is NaN.  With `min` equal to `max` the data's own range is
    taken; InvalidValueError when the result is read, if that is infinite.

    >>> flow.histc(flow.tensor([1.0, 2.0, 1.0, 4.0]), bins=4, min=0, max=4)
    tensor([0., 2., 1., 1.])
    """
    meta = need_tensor("histc", "input", input)._meta
    if not meta.dtype.is_floating_point:
        raise DTypeError(f"histc: input must be floating point, got {meta.dtype.name}")
    bins = whole("histc", "bins", bins)
    if bins <= 0:
        raise ArgumentError(f"histc: bins must be positive, got {bins}")
    if max < min or not (math.isfinite(min) and math.isfinite(max)):
        raise ArgumentError(
            f"histc: max must not be less than min, both finite, got {min} and {max}"
        )
    out: Tensor = _histc(input.detach(), int(bins), float(min), float(max))
    return out


# --- samples ------------------------------------------------------------------------------------


def _numpy_search(
    sequence: Any,
    x: Array,
    right: bool = False,
    side: str | None = None,
    sorter: Array | None = None,
) -> object:
    way: Any = "right" if right or side == "right" else "left"
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
        (lambda flow: flow.histc(flow.tensor([1.0, math.inf]), 2).numpy(), ValueError),
        (lambda flow: flow.histc(flow.tensor([1])), RuntimeError),
    ),
)
