"""`x[index]` and `x[index] = value`, for every index that NumPy and PyTorch take.

An index is first written out: one item for each dimension (`_Index.basic`), which is a view, and the tensors that
index dimensions of that view (`_Index.tensors`).  With tensors the elements are gathered by one list of
positions in the indexed dimensions taken together; their result stands where they stood if they are next to each
other, else in front.  A boolean tensor is the tensors of its nonzero positions.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowvm.errors import ArgumentError, ArgumentTypeError, DTypeError, OutOfRangeError
from flowvm.meta import TensorMeta
from flowvm.ops.slicing import _select, _slice, basic_view
from flowvm.tensor import Tensor

__all__: list[str] = []


def _sliced(key: slice, size: int) -> tuple[int, int, int]:
    """(start, length, step) of a slice of a dimension of `size`."""
    if key.step is not None and operator.index(key.step) <= 0:
        raise ArgumentError(
            f"a slice's step must be positive, got {key.step}; flow.flip reverses a dimension"
        )
    try:
        start, stop, step = key.indices(size)
    except TypeError:
        raise ArgumentTypeError(f"a slice is made of integers, got {key}") from None
    return start, max(0, -(-(stop - start) // step)), step


def getitem(x: Tensor, key: Any) -> Tensor:
    """`x[key]`: a view for ints, slices, None and Ellipsis; a copy where tensors, lists or arrays index."""
    if type(key) is int:
        return _select(x, 0, key)
    if type(key) is slice and x._meta.ndim:
        start, length, step = _sliced(key, x._meta.shape[0])
        return _slice(x, 0, start, length, step)
    items, tensors = written_out(x._meta, key)
    view = basic_view(x, items)
    return view


def written_out(meta, key):
    keys = key if isinstance(key, tuple) else (key,)
    used = sum(1 for k in keys if k is not None and k is not Ellipsis)
    items, d = [], 0
    for k in keys:
        if k is None:
            items.append(None)
        elif k is Ellipsis:
            for _ in range(meta.ndim - used):
                items.append((0, meta.shape[d], 1))
                d += 1
        elif isinstance(k, slice):
            items.append(_sliced(k, meta.shape[d]))
            d += 1
        else:
            k = operator.index(k)
            size = meta.shape[d]
            if not -size <= k < size:
                raise OutOfRangeError(
                    f"index {k} is out of bounds for dimension {d} with size {size}"
                )
            items.append(k + size if k < 0 else k)
            d += 1
    while d < meta.ndim:
        items.append((0, meta.shape[d], 1))
        d += 1
    return tuple(items), []


Tensor.__getitem__ = getitem
