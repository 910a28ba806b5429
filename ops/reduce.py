"""Sums, products, extremes and truth over dimensions.

Each public function is one autograd node, whatever number of instructions it issues.
"""

from __future__ import annotations

import builtins
from typing import Any, NamedTuple

import numpy as np

from flowvm.dtype import DType, as_dtype, bool_, int64
from flowvm.errors import ArgumentTypeError, DTypeError, OutOfRangeError
from flowvm.meta import TensorMeta
from flowvm.ops.compare import where
from flowvm.ops.core import cast
from flowvm.ops.folds import add_up, every, largest, multiply_up, shape_without, smallest, some
from flowvm.ops.recording import Recorded, filled_of, need_tensor, record, wrap_dim, wrap_dims
from flowvm.ops.registry import Sample, samples
from flowvm.tensor import Tensor, method

__all__ = [
    "all",
    "amax",
    "amin",
    "any",
    "count_nonzero",
    "mean",
    "nansum",
    "prod",
    "sum",
]

Dims = int | tuple[int, ...] | list[int] | None


def dims_of(name: str, x: Any, dim: Any) -> tuple[int, ...]:
    """The dimensions to reduce, ascending: all of them for None and ()."""
    need_tensor(name, "input", x)
    if dim is None or (isinstance(dim, (tuple, list)) and len(dim) == 0):
        return tuple(range(x._meta.ndim))
    if x._meta.ndim == 0:
        wrap_dims(name, dim, 0)
        return ()
    return tuple(sorted(wrap_dims(name, dim, x._meta.ndim)))


def spread(g: Tensor, meta: TensorMeta, dims: tuple[int, ...]) -> Tensor:
    """`g`, a result reduced over `dims`, kept or not, broadcast back over `meta`'s shape."""
    kept = shape_without(meta.shape, dims, True)
    if g._meta.shape != kept:
        g = g.reshape(kept)
    wide: Tensor = g.expand(meta.shape)
    return wide


# --- sums -------------------------------------------------------------------------------------


def _sum_grad(c: Any, g: Tensor) -> tuple[Tensor]:
    dims, divisor = c.attrs
    g = g if divisor == 1.0 else g / divisor
    return (spread(g, c.metas[0], dims),)


_sum_node = Recorded("sum", _sum_grad, ("x",))
_mean_node = Recorded("mean", _sum_grad, ("x",))


def sum(
    input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """The sum over `dim` (one or several; None: all), which is gone from the shape, or 1 with `keepdim`.

    Integers and bools sum to int64.  With `dtype`, `input` is converted first.

    >>> flow.sum(flow.ones(2, 3), 1)
    tensor([3., 3.])
    """
    dims = dims_of("sum", input, dim)
    if dtype is not None:
        input = input.to(as_dtype(dtype))
    out = add_up(input, dims, keepdim)
    if input._node is not None:
        record(_sum_node, (input,), out, (dims, 1.0))
    return out


def mean(
    input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """The mean over `dim` (one or several; None: all).  DTypeError for integers: pass `dtype`, such as flow.float32."""
    dims = dims_of("mean", input, dim)
    if dtype is not None:
        input = input.to(as_dtype(dtype))
    if not input._meta.dtype.is_floating_point:
        raise DTypeError(
            f"mean is for floats, got {input.dtype.name}; pass dtype=flow.float32 to convert first"
        )
    count = 1
    for d in dims:
        count *= input._meta.shape[d]
    divisor = float(count)
    out = add_up(input, dims, keepdim, divisor)
    if input._node is not None:
        record(_mean_node, (input,), out, (dims, divisor))
    return out


def nansum(
    input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """`sum` with NaN taken as 0."""
    need_tensor("nansum", "input", input)
    if not input._meta.dtype.is_floating_point:
        return sum(input, dim, keepdim, dtype=dtype)
    return sum(where(input != input, 0, input), dim, keepdim, dtype=dtype)


for _f in (sum, mean, nansum):
    method()(_f)
