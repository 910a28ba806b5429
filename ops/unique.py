"""The different elements of a tensor: `unique` and `unique_consecutive`, one kernel on sorted rows.

It is a mut2 op: called once to count and once to write.  Asking for a shape waits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flowvm.dtype import int64
from flowvm.errors import ShapeError
from flowvm.meta import TensorMeta
from flowvm.ops.recording import need_tensor, wrap_dim
from flowvm.ops.registry import Launch, Sample, View, op, samples
from flowvm.ops.sorting import row_order
from flowvm.ops.views import movedim, reshape
from flowvm.reading import adopt_array
from flowvm.tensor import Tensor, method

__all__ = ["unique", "unique_consecutive"]

Array = Any


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
    kept = -1
    for i in range(len(order)):
        row = order[i]
        if i == 0 or not _same_row(x, order[i - 1], row):
            kept += 1
            if lo >= 0:
                counts[kept] = 0
                for k in range(x.shape[1]):
                    values[kept, k] = x[row, k]
        if lo >= 0:
            counts[kept] += 1
            inverse[row] = kept
    details[0] = kept + 1
    details[2] = kept + 1


@op("x, order -> values?, inverse, counts?", name="unique")
def _unique(x: TensorMeta, order: TensorMeta) -> Launch:
    n = order.numel
    inner = math.prod(x.shape[1:])
    values, whole = x.dense(), TensorMeta.of((n,), int64, x.device)
    rows, line = View(x.dtype, (n, inner)), View(int64, (n,))
    return Launch((values, whole, whole), _unique_body, (rows, line, line, rows, line))


def _results(parts: tuple[Any, ...], wanted: tuple[bool, ...]) -> Any:
    chosen = tuple(p for p, w in zip(parts, wanted, strict=True) if w)
    return chosen[0] if len(chosen) == 1 else chosen


def _unique_of(
    name: str, x: Tensor, ordered: bool, inverse: bool, count: bool, dim: int | None
) -> Any:
    shape = need_tensor(name, "input", x)._meta.shape
    plain = x.detach()
    if dim is None:
        rows = reshape(plain.contiguous(), (-1,)) if x.numel() else reshape(plain, (0,))
    else:
        at = wrap_dim(name, dim, len(shape))
        rows = movedim(plain, at, 0).contiguous()
        if rows.numel() == 0 and rows._meta.shape[0]:
            raise ShapeError(
                f"{name}: dim {dim} of shape {tuple(shape)} has slices without elements"
            )
    n = rows._meta.shape[0]
    order = row_order(rows) if ordered else adopt_array(np.arange(n, dtype=np.int64))
    values, back, counts = _unique(rows, order)
    if dim is None:
        back = reshape(back, shape)
    elif len(shape) > 1:
        values = movedim(values, 0, at)
    return _results((values, back, counts), (True, inverse, count))


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
    """
    return _unique_of("unique", input, True, return_inverse, return_counts, dim)


@method()
def unique_consecutive(
    input: Tensor,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """The elements (or slices of `dim`) without those equal to the one before; see `unique`."""
    return _unique_of("unique_consecutive", input, False, return_inverse, return_counts, dim)


# --- samples ------------------------------------------------------------------------------------


def _numpy_unique(
    x: Any, sorted: bool = True, inverse: bool = False, counts: bool = False, dim: int | None = None
) -> Any:
    values, back, often = np.unique(x, return_inverse=True, return_counts=True, axis=dim)
    back = back.reshape(x.shape if dim is None else -1)
    return _results((values, back, often), (True, inverse, counts))


def _repetitive(rng: np.random.Generator) -> list[Any]:
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


def _numpy_consecutive(x: Any, inverse: bool = False, counts: bool = False) -> Any:
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
