"""Sorting and selecting by order: `sort`, `argsort`, `msort`, `topk`, `kthvalue`, `mode`.

Sorting is stable; a NaN is larger than any number.  The kernels (most of them are those of
`flowvm.ops.places.cpu.order` and `nth`) give the positions with the values, and backward is
`gather`'s: the gradient goes where the value came from.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flowvm import return_types
from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentError, OutOfRangeError
from flowvm.launch import Launch, View
from flowvm.meta.arrays import Array
from flowvm.meta.dtype import bool_, int64, uint8
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.composite import need_tensor, record, whole, wrap_dim
from flowvm.ops.declare.core import laid_as
from flowvm.ops.declare.kinds import last_size
from flowvm.ops.declare.letters import unsplit
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.registry import Sample, op, operator_of, samples
from flowvm.ops.places.cpu.order import ordered_rows
from flowvm.ops.places.gather import gather_elements
from flowvm.ops.places.parts.nth import NTH_FROM, nth_of_rows
from flowvm.ops.shapes.slices import _select
from flowvm.ops.shapes.views import movedim, reshape, unsqueeze

# public: flow

HEAP = 4  # a heap finds the first k of n where n is at least this often k, times its bits
STRIDE = 256  # elements that are compared with the worst of the heap at once


# --- sorting rows -------------------------------------------------------------------------------


def _linked(x: Tensor, values: Tensor, indices: Tensor) -> Tensor:
    """Record `values` as the result of gathering at `indices` of the last dimension."""
    gathering = operator_of(gather_elements)
    dim = max(x._meta.ndim - 1, 0)
    return record(gathering, (x, indices), values, (dim,), (indices,))  # type: ignore[arg-type]


def _last(name: str, x: Tensor, dim: int) -> tuple[Tensor, int]:
    """`x` with dimension `dim` last, and that dimension."""
    meta = need_tensor(name, "input", x)._meta
    at = wrap_dim(name, dim, meta.ndim)
    if meta.ndim == 0 or at == meta.ndim - 1:
        return x, at
    return movedim(x, at, -1).contiguous(), at


def _placed(parts: tuple[Tensor, Tensor], at: int) -> tuple[Tensor, Tensor]:
    """Results with their last dimension put back to `at`."""
    values, indices = parts
    if values._meta.ndim and at != values._meta.ndim - 1:
        values, indices = movedim(values, -1, at), movedim(indices, -1, at)
    return values, indices


@method()
@with_out
def sort(
    input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False
) -> return_types.sort:
    """The elements of dimension `dim` in order: (values, indices).

    NaN counts as the largest number.  Equal elements keep their order, whether `stable` asks for it
    or not.

    >>> flow.sort(flow.tensor([3, 1, 2])).indices.tolist()
    [1, 2, 0]
    """
    x, at = _last("sort", input, dim)
    n = x._meta.shape[-1] if x._meta.ndim else 1
    values, indices = ordered_rows(x.detach(), 0, n, bool(descending))
    values, indices = _placed((_linked(x, values, indices), indices), at)
    return return_types.sort((laid_as(values, input), laid_as(indices, input)))


@method()
@with_out
def argsort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    """The positions that sort dimension `dim`: `sort(...).indices`.

    >>> flow.argsort(flow.tensor([30, 10, 20]))
    tensor([1, 2, 0])
    """
    return sort(need_tensor("argsort", "input", input).detach(), dim, descending, stable).indices


@method()
@with_out
def msort(input: Tensor) -> Tensor:
    """The tensor sorted along its first dimension.

    >>> flow.msort(flow.tensor([[3, 1], [2, 5]]))
    tensor([[2, 1],
            [3, 5]])
    """
    return sort(input, 0).values


# --- the order of rows --------------------------------------------------------------------------


def _before(a: Any, b: Any, descending: bool) -> bool:
    """Return True if `a` comes strictly before `b`."""
    if descending:
        return bool(a > b or (a != a and b == b))
    return bool(a < b or (b != b and a == a))


def _row_before(x: Array, a: int, b: int) -> bool:
    for k in range(x.shape[1]):
        if _before(x[a, k], x[b, k], False):
            return True
        if _before(x[b, k], x[a, k], False):
            return False
    return False


def _order_body(order: Array, other: Array, x: Array, lo: int, hi: int) -> None:
    n = len(order)
    passes, width = 0, 1
    while width < n:
        passes, width = passes + 1, 2 * width
    p, q = order, other
    if passes % 2:
        p, q = q, p
    for i in range(n):
        p[i] = i
    width = 1
    while width < n:
        for start in range(0, n, 2 * width):
            i, middle, end = start, min(n, start + width), min(n, start + 2 * width)
            j = middle
            for k in range(start, end):
                if i < middle and (j >= end or not _row_before(x, p[j], p[i])):
                    q[k] = p[i]
                    i += 1
                else:
                    q[k] = p[j]
                    j += 1
        p, q = q, p
        width *= 2


@op("x -> order, other", name="row_order", cuda="order:row_order", letters=unsplit)
def _row_order(x: TensorMeta) -> Launch:
    n = x.shape[0]
    out = TensorMeta.of((n,), int64, x.device)
    line = View(int64, (n,))
    kind = uint8 if x.dtype is bool_ else x.dtype
    rows = View(kind, (n, math.prod(x.shape[1:])))
    return Launch((out, out), _order_body, (line, line, rows))


# not public
def row_order(x: Tensor) -> Tensor:
    """The positions that sort the slices of dimension 0, compared from their first element on."""
    if x._meta.ndim == 1:
        return argsort(x)
    order: Tensor = _row_order(x.detach())[0]
    return order


# --- the first k --------------------------------------------------------------------------------


def _worse(values: Array, indices: Array, r: int, a: int, b: int, largest: bool) -> bool:
    """Return True if element a of the heap comes behind b: of equal values, the later one."""
    if _before(values[r, b], values[r, a], largest):
        return True
    return not _before(values[r, a], values[r, b], largest) and indices[r, a] > indices[r, b]


def _sink(values: Array, indices: Array, r: int, i: int, size: int, largest: bool) -> None:
    """Restore the heap, whose root is the worst, from element i down."""
    while True:
        child = 2 * i + 1
        if child >= size:
            return
        if child + 1 < size and _worse(values, indices, r, child + 1, child, largest):
            child += 1
        if not _worse(values, indices, r, child, i, largest):
            return
        _exchange(values, indices, r, i, child)
        i = child


def _exchange(values: Array, indices: Array, r: int, i: int, j: int) -> None:
    v, p = values[r, i], indices[r, i]
    values[r, i], indices[r, i] = values[r, j], indices[r, j]
    values[r, j], indices[r, j] = v, p


def _any_before(x: Array, worst: object, largest: bool) -> bool:
    """Return True if an element may come before `worst`; it looks at vectors at a time."""
    hits = 0
    if largest:
        for i in range(len(x)):
            hits += not (x[i] <= worst)
    else:
        for i in range(len(x)):
            hits += not (x[i] >= worst)
    return hits > 0


def _topk_body(values: Array, indices: Array, x: Array, largest: bool, lo: int, hi: int) -> None:
    n, k = x.shape[1], values.shape[1]
    for r in range(lo, hi):
        for i in range(k):
            values[r, i], indices[r, i] = x[r, i], i
        for i in range(k // 2 - 1, -1, -1):
            _sink(values, indices, r, i, k, largest)
        for start in range(k, n if k > 0 else k, STRIDE):
            end = min(n, start + STRIDE)
            if _any_before(x[r, start:end], values[r, 0], largest):
                for i in range(start, end):
                    if _before(x[r, i], values[r, 0], largest):
                        values[r, 0], indices[r, 0] = x[r, i], i
                        _sink(values, indices, r, 0, k, largest)
        for size in range(k - 1, 0, -1):  # the worst goes last
            _exchange(values, indices, r, 0, size)
            _sink(values, indices, r, 0, size, largest)


@op(
    "x -> values, indices",
    name="topk",
    cuda="selection:topk",
    letters=unsplit,
    takes=lambda metas, v: 0 <= v["k"] <= last_size(metas[0]),
)
def _topk_rows(x: TensorMeta, k: int, largest: bool) -> Launch:
    n = x.shape[-1] if x.ndim else 1
    rows = x.numel // n if n else math.prod(x.shape[:-1])
    shape = (*x.shape[:-1], k) if x.ndim else ()
    kind = uint8 if x.dtype is bool_ else x.dtype
    values, indices = x.with_shape(shape), x.with_shape(shape, int64)
    views = (View(kind, (rows, k)), View(int64, (rows, k)), View(kind, (rows, n)))
    return Launch((values, indices), _topk_body, views, (largest,), rows, max(1, 8192 // max(n, 1)))


@method()
@with_out
def topk(
    input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> return_types.topk:
    """The `k` largest (or smallest) elements of dimension `dim`, best first: (values, indices).

    Of equal elements the earlier one comes first.  NaN counts as the largest number.

    >>> flow.topk(flow.tensor([1, 5, 3]), 2)
    flow.return_types.topk(
    values=tensor([5, 3]),
    indices=tensor([1, 2]))
    """
    x, at = _last("topk", input, dim)
    n = x._meta.shape[-1] if x._meta.ndim else 1
    k = whole("topk", "k", k)
    if not 0 <= k <= n:
        raise OutOfRangeError(
            f"topk: k = {k} is not between 0 and {n}, the size of dimension {dim}"
        )
    if x._meta.ndim == 0 and k == 0:
        raise ArgumentError("topk: k must be 1 for a 0-d tensor")
    if k * k.bit_length() * HEAP > n:
        values, indices = ordered_rows(x.detach(), 0, k, bool(largest))
    else:
        values, indices = _topk_rows(x.detach(), int(k), bool(largest))
    return return_types.topk(_placed((_linked(x, values, indices), indices), at))


@method()
@with_out
def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> return_types.kthvalue:
    """The `k`-th smallest element (from 1) of dimension `dim`: (values, indices).

    >>> flow.kthvalue(flow.tensor([30, 10, 20]), 2)
    flow.return_types.kthvalue(
    values=tensor(20),
    indices=tensor(2))
    """
    x, at = _last("kthvalue", input, dim)
    n = x._meta.shape[-1] if x._meta.ndim else 1
    k = whole("kthvalue", "k", k)
    if not 1 <= k <= n:
        raise OutOfRangeError(
            f"kthvalue: k = {k} is not between 1 and {n}, the size of dimension {dim}"
        )
    if n < NTH_FROM:
        values, indices = ordered_rows(x.detach(), k - 1, 1, False)
        shape = x._meta.shape[:-1]
        parts = reshape(values, shape), reshape(indices, shape)
    else:
        parts = nth_of_rows(x.detach(), k - 1)
    return return_types.kthvalue(_reduced(x, parts, at, keepdim))


# --- the most frequent --------------------------------------------------------------------------


def _mode_body(values: Array, indices: Array, x: Array, order: Array, lo: int, hi: int) -> None:
    n = x.shape[1]
    for r in range(lo, hi):
        most = begin = last = 0
        for i in range(1, n + 1):
            a, b = x[r, i - 1], x[r, min(i, n - 1)]
            if i == n or not (a == b or (a != a and b != b)):
                if i - begin > most:
                    most, last = i - begin, i - 1
                begin = i
        values[r], indices[r] = x[r, last], order[r, last]


@op("x, order -> value, index", name="mode", cuda="order:mode", letters=unsplit)
def _mode_rows(x: TensorMeta, order: TensorMeta) -> Launch:
    """The most frequent element of each sorted row, and where its last one was."""
    n = x.shape[-1] if x.ndim else 1
    rows, shape = math.prod(x.shape[:-1]), x.shape[:-1]
    kind = uint8 if x.dtype is bool_ else x.dtype
    views = View(kind, (rows,)), View(int64, (rows,)), View(kind, (rows, n)), View(int64, (rows, n))
    outputs = x.with_shape(shape), x.with_shape(shape, int64)
    return Launch(outputs, _mode_body, views, (), rows, max(1, 16384 // n))


@method()
@with_out
def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> return_types.mode:
    """The most frequent element of dimension `dim`, and the position of its last occurrence:
    (values, indices).

    Of equally frequent ones it is the smallest.  All NaN count as one number, the largest.

    >>> flow.mode(flow.tensor([2, 1, 2, 3])).values
    tensor(2)
    """
    x, at = _last("mode", input, dim)
    if x._meta.ndim and x._meta.shape[-1] == 0:
        raise OutOfRangeError(
            f"mode: dimension {dim} of shape {tuple(input.shape)} has no elements"
        )
    parts = _mode_rows(*sort(x.detach()))
    return return_types.mode(_reduced(x, parts, at, keepdim))


def _reduced(
    x: Tensor, parts: tuple[Tensor, Tensor], at: int, keepdim: bool
) -> tuple[Tensor, Tensor]:
    """One element of each row of `x` and its position, recorded; the row's dimension was `at`."""
    if x._meta.ndim == 0:
        return _linked(x, *parts), parts[1]
    indices = unsqueeze(parts[1], -1)
    values = _linked(x, unsqueeze(parts[0], -1), indices)
    values, indices = (_select(t, t._meta.ndim - 1, 0) for t in (values, indices))
    if keepdim:
        values, indices = unsqueeze(values, at), unsqueeze(indices, at)
    return values, indices


# --- samples ------------------------------------------------------------------------------------


def _distinct(rng: np.random.Generator, *calls: tuple[Any, ...]) -> list[Sample]:
    """For each (shape, arguments...) a tensor whose elements are far apart."""
    cases = []
    for shape, *rest in calls:
        numbers = rng.permutation(math.prod(shape)) / 4.0 - 1.0
        cases.append(Sample((numbers.reshape(shape), *rest)))
    return cases


def _numpy_sort(x: Array, dim: int = -1, descending: bool = False) -> Any:
    if x.ndim == 0:
        return x, np.array(0)
    order = np.argsort(-x if descending else x, dim, kind="stable")
    return np.take_along_axis(x, order, dim), order


def _numpy_topk(x: Array, k: int, dim: int = -1, largest: bool = True) -> tuple[Array, Array]:
    values, order = _numpy_sort(x, dim, largest)
    return np.take(values, range(k), dim), np.take(order, range(k), dim)


def _numpy_kth(x: Array, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Array, Array]:
    values, order = _numpy_sort(x, dim)
    at = [k - 1] if keepdim else k - 1
    return np.take(values, at, dim), np.take(order, at, dim)


_CALLS: tuple[tuple[object, ...], ...] = (
    ((2, 5),),
    ((4, 3), 0),
    ((2, 3, 2), 1, True),
    ((),),
    ((0, 3),),
    ((60,), 0, True),
)
samples(
    sort,
    lambda rng: [
        *_distinct(rng, *_CALLS),
        Sample((np.array([2, 1, 2, 0, 1]),), {"stable": True}),
        Sample((np.array([[True, False, True]]), 1, True), {"stable": True}),
    ],
    lambda x, *a, stable=False: _numpy_sort(x.astype(np.int64) if x.dtype == bool else x, *a),
    errors=((lambda flow: flow.sort(flow.ones(2), 1), IndexError),),
)
samples(argsort, lambda rng: _distinct(rng, *_CALLS), lambda *a: _numpy_sort(*a)[1], grad=False)
samples(msort, lambda rng: _distinct(rng, ((3, 2),), ((4,),)), lambda x: np.sort(x, 0))
samples(
    topk,
    lambda rng: _distinct(
        rng, ((2, 5), 2), ((4, 3), 2, 0), ((2, 4), 3, 1, False), ((4,), 0), ((3,), 3), ((1, 80), 70)
    ),
    _numpy_topk,
    errors=((lambda flow: flow.topk(flow.ones(2), 3), IndexError),),
)


def _numpy_mode(x: Array, dim: int = -1, keepdim: bool = False) -> object:
    def of_row(row: Array) -> int:
        values, often = np.unique(row, return_counts=True)
        return int(np.flatnonzero(row == values[np.argmax(often)])[-1])

    if x.ndim == 0:
        return x, np.array(0)
    at = np.expand_dims(np.apply_along_axis(of_row, dim, x), dim)
    values = np.take_along_axis(x, at, dim)
    return (values, at) if keepdim else (values.squeeze(dim), at.squeeze(dim))


samples(
    mode,
    lambda rng: [
        Sample((rng.integers(0, 3, (3, 5)),)),
        Sample((np.array([[1.0, 2.0], [1.0, 3.0], [4.0, 3.0]]), 0, True)),
        Sample((np.array([2.0, 1.0, 3.0]),)),
        Sample((np.array(1.5),)),
    ],
    _numpy_mode,
    grad=False,
    errors=((lambda flow: flow.mode(flow.ones(2, 0)), IndexError),),
)
samples(
    kthvalue,
    lambda rng: _distinct(rng, ((2, 5), 2), ((4, 3), 1, 0), ((2, 4), 4, 1, True)),
    _numpy_kth,
    errors=((lambda flow: flow.kthvalue(flow.ones(2), 0), IndexError),),
)
