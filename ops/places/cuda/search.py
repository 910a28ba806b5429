"""Looking values up in sorted ones: `searchsorted` and `isin`, one thread for each value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from numba import cuda

from flowvm.cuda.launch import Const, CudaLaunch
from flowvm.launch import Launch
from flowvm.meta.arrays import Array
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.declare.cuda.steps import flat_step, operands

if TYPE_CHECKING:
    from flowvm.meta.arrays import Number

Metas = tuple[TensorMeta, ...]


def _goes_before(v: Number, value: Number, right: int) -> bool:
    """Return True if a sorted element comes before the value (`right`: or is equal).

    NaN is larger than any number.
    """
    if right != 0:
        return bool(not (v > value or (v != v and value == value)))
    return bool(v < value or (value != value and v == v))


def _find(row: Array, value: object, right: int) -> int:
    low, high = 0, len(row)
    while low < high:
        middle = (low + high) // 2
        if _goes_before(row[middle], value, right):
            low = middle + 1
        else:
            high = middle
    return low


def _search(out: Array, boundaries: Array, x: Array, right: int) -> None:
    rows, m = boundaries.shape[0], x.shape[1]
    for i in range(cuda.grid(1), x.shape[0] * m, cuda.gridsize(1)):
        r, k = i // m, i % m
        out[r, k] = _find(boundaries[r if rows > 1 else 0], x[r, k], right)


def searchsorted(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """Return the steps that find the place of each value among sorted boundaries."""
    params, units = operands(*launch.views), metas[1].numel
    step = flat_step(_search, units, *params, Const(int(attrs[0])))
    return CudaLaunch(launch.outputs, (step,))


def _is_in(out: Array, x: Array, tests: Array, invert: int) -> None:
    n = len(tests)
    for i in range(cuda.grid(1), len(x), cuda.gridsize(1)):
        at = _find(tests, x[i], 0)
        out[i] = (at < n and tests[min(at, n - 1)] == x[i]) != (invert != 0)


def isin(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """Return the steps that test whether each value is among sorted ones."""
    params, units = operands(*launch.views), metas[0].numel
    return CudaLaunch(launch.outputs, (flat_step(_is_in, units, *params, Const(int(attrs[0]))),))
