"""The different elements of a tensor: `unique` and `unique_consecutive`, after a sort.

Their kernels, one for elements and one for slices, are those of mut2 ops: called once to count and
once to write.  Asking for a shape waits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ShapeError
from flowvm.launch import Launch, View
from flowvm.meta.arrays import Array
from flowvm.meta.dtype import int64
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.composite import empty_of, need_tensor, wrap_dim
from flowvm.ops.declare.letters import unsplit
from flowvm.ops.declare.registry import Sample, op, samples
from flowvm.ops.places.sort import row_order, sort
from flowvm.ops.shapes.ranges import arange
from flowvm.ops.shapes.views import movedim, reshape

# --- elements -----------------------------------------------------------------------------------


def _distinct_body(
    values: Array,
    inverse: Array,
    counts: Array,
    x: Array,
    order: Array,
    lo: int,
    hi: int,
    details: Array,
) -> None:
    """Equal elements of x are neighbours; element i of x is number order[i] (without order: i).

    `inverse` and `counts` are empty if they are not wanted.
    """
    n, count = len(x), 0
    if lo < 0:
        for i in range(n - 1):
            count += x[i + 1] != x[i]
    elif n > 0:
        values[0], begin = x[0], 0
        numbered = n if len(inverse) > 0 and len(order) == 0 else 0
        for i in range(1, n):
            if x[i] != x[i - 1]:
                if len(counts) > 0:
                    counts[count] = i - begin
                count, begin = count + 1, i
                values[count] = x[i]
            if i < numbered:
                inverse[i] = count
        if len(counts) > 0:
            counts[count] = n - begin
        if numbered > 0:
            inverse[0] = 0
        elif len(inverse) > 0:
            _number(inverse, x, order)
    details[0] = count + 1 if n > 0 else 0
    details[2] = details[0] if len(counts) > 0 else 0


def _number(inverse: Array, x: Array, order: Array) -> None:
    count = 0
    inverse[order[0]] = 0
    for i in range(1, len(x)):
        count += x[i] != x[i - 1]
        inverse[np.uint64(order[i])] = count


@op(
    "x, order -> values?, inverse, counts?",
    name="unique",
    cuda="compaction:unique",
    letters=unsplit,
)
def _distinct(x: TensorMeta, order: TensorMeta, wants_inverse: bool, wants_counts: bool) -> Launch:
    n = x.numel
    values = x.dense()
    inverse = TensorMeta.of((n if wants_inverse else 0,), int64, x.device)
    counts = TensorMeta.of((n if wants_counts else 0,), int64, x.device)
    line = View(x.dtype, (n,))
    views = (line, View.of(inverse), View.of(counts), line, View.of(order))
    return Launch((values, inverse, counts), _distinct_body, views)


# --- slices -------------------------------------------------------------------------------------

# A slice counts as a row: x is [n, inner].  `order` sorts the rows; equal rows are then neighbours.


def _same_row(x: Array, a: int, b: int) -> bool:
    for k in range(x.shape[1]):  # noqa: SIM110
        if x[a, k] != x[b, k]:
            return False
    return True


def _unique_body(
    values: Array,
    inverse: Array,
    counts: Array,
    x: Array,
    order: Array,
    lo: int,
    hi: int,
    details: Array,
) -> None:
    group = -1
    for i in range(len(order)):
        row = order[i]
        if i == 0 or not _same_row(x, order[i - 1], row):
            group += 1
            if lo >= 0:
                counts[group] = 0
                for k in range(x.shape[1]):
                    values[group, k] = x[row, k]
        if lo >= 0:
            counts[group] += 1
            inverse[row] = group
    details[0] = group + 1
    details[2] = group + 1


@op(
    "x, order -> values?, inverse, counts?",
    name="unique_dim",
    cuda="compaction:unique_dim",
    letters=unsplit,
)
def _unique(x: TensorMeta, order: TensorMeta) -> Launch:
    n = order.numel
    inner = math.prod(x.shape[1:])
    values, whole = x.dense(), TensorMeta.of((n,), int64, x.device)
    rows, line = View(x.dtype, (n, inner)), View(int64, (n,))
    return Launch((values, whole, whole), _unique_body, (rows, line, line, rows, line))


def _results(parts: tuple[object, ...], flags: tuple[bool, ...]) -> Any:
    chosen = tuple(p for p, w in zip(parts, flags, strict=True) if w)
    return chosen[0] if len(chosen) == 1 else chosen


def _unique_of(
    name: str, x: Tensor, ordered: bool, inverse: bool, count: bool, dim: int | None
) -> Any:
    shape = need_tensor(name, "input", x)._meta.shape
    plain = x.detach()
    if dim is None:
        line = reshape(plain.contiguous(), (plain.numel(),))
        order = empty_of(TensorMeta.of((0,), int64, plain._meta.device))
        if ordered:
            line, order = sort(line)
        values, back, counts = _distinct(line, order, inverse, count)
        back = reshape(back, shape) if inverse else back
        return _results((values, back, counts), (True, inverse, count))
    at = wrap_dim(name, dim, len(shape))
    rows = movedim(plain, at, 0).contiguous()
    n = rows._meta.shape[0]
    if rows.numel() == 0 and n:
        raise ShapeError(f"{name}: dim {dim} of shape {tuple(shape)} has slices without elements")
    order = row_order(rows) if ordered else arange(n, device=rows._meta.device)
    values, back, counts = _unique(rows, order)
    if len(shape) > 1:
        values = movedim(values, 0, at)
    return _results((values, back, counts), (True, inverse, count))


# public: flow
@method()
def unique(
    input: Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """The different elements (or slices of `dim`), always sorted.

    return_inverse   also where each element of `input` is in the result
    return_counts    also how often each occurs

    Has no gradient.  Every NaN is different from every other.

    >>> flow.unique(flow.tensor([3, 1, 3, 2]))
    tensor([1, 2, 3])
    >>> flow.unique(flow.tensor([3, 1, 3]), return_counts=True)
    (tensor([1, 3]), tensor([1, 2]))
    """
    return _unique_of("unique", input, True, return_inverse, return_counts, dim)


# public: flow
@method()
def unique_consecutive(
    input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """Return the elements (or slices of `dim`) that differ from the one before; see `unique`.

    >>> flow.unique_consecutive(flow.tensor([1, 1, 2, 1]))
    tensor([1, 2, 1])
    """
    return _unique_of("unique_consecutive", input, False, return_inverse, return_counts, dim)


# --- samples ------------------------------------------------------------------------------------


def _numpy_unique(
    x: Array,
    sorted: bool = True,
    inverse: bool = False,
    counts: bool = False,
    dim: int | None = None,
) -> object:
    values, back, often = np.unique(x, return_inverse=True, return_counts=True, axis=dim)
    back = back.reshape(x.shape if dim is None else -1)
    return _results((values, back, often), (True, inverse, counts))


def _repetitive(rng: np.random.Generator) -> list[object]:
    return [
        rng.integers(0, 4, (3, 4)).astype(np.float64),
        rng.integers(-2, 3, 6),
        np.array([True, False, True]),
        np.array(2.0),
        np.zeros(0),
    ]


samples(
    unique,
    lambda rng: [
        *(Sample((a,)) for a in _repetitive(rng)),
        *(Sample((a, True, True, True)) for a in _repetitive(rng)),
        Sample((rng.integers(0, 2, (4, 2)), True, True, True, 0)),
        Sample((rng.integers(0, 2, (2, 4)), True, True, False, 1)),
    ],
    _numpy_unique,
    grad=False,
    errors=((lambda flow: flow.unique(flow.ones(2), dim=1), IndexError),),
)


def _numpy_consecutive(x: Array, inverse: bool = False, counts: bool = False) -> object:
    flat = x.reshape(-1)
    new = np.concatenate([np.ones(min(1, flat.size), bool), flat[1:] != flat[:-1]])
    back = np.cumsum(new) - 1
    return _results(
        (flat[new], back.reshape(x.shape), np.bincount(back, minlength=0)), (True, inverse, counts)
    )


samples(
    unique_consecutive,
    lambda rng: [Sample((a, True, True)) for a in _repetitive(rng)],
    _numpy_consecutive,
    grad=False,
)
