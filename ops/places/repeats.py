"""Repeated elements: `repeat_interleave`, with counts that may be data."""

from __future__ import annotations

import numpy as np

from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentError, ShapeError
from flowvm.meta.dtype import int32, int64
from flowvm.ops.declare.composite import need_tensor, wrap_dim
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.places.counts import repeated_positions
from flowvm.ops.places.gather import index_select
from flowvm.ops.shapes.views import _dims_of, _xs, expand, flatten, reshape, unsqueeze


# public: flow
@method()
def repeat_interleave(
    input: Tensor | None = None,
    repeats: int | Tensor | None = None,
    dim: int | None = None,
    *,
    output_size: int | None = None,
) -> Tensor:
    """Each element (or each slice of `dim`) `repeats` times in place; without `dim` of the
    flattened tensor.

    `repeats` may be a tensor with a number for each slice; then the result's size is known when it
    has run.  A vector of numbers alone gives each place as often as its number says.

    >>> flow.repeat_interleave(flow.tensor([1, 2]), flow.tensor([2, 3]))
    tensor([1, 1, 2, 2, 2])
    >>> flow.repeat_interleave(flow.tensor([2, 3]))
    tensor([0, 0, 1, 1, 1])
    """
    if input is None or repeats is None:
        return _places(input if repeats is None else repeats)
    x = need_tensor("repeat_interleave", "input", input)
    if dim is None:
        x, dim = flatten(x), 0
    at = wrap_dim("repeat_interleave", dim, x._meta.ndim)
    if x._meta.ndim == 0:
        x = unsqueeze(x, 0)
    size = x._meta.shape[at]
    if isinstance(repeats, Tensor):
        if repeats._meta.dtype.inexact or repeats._meta.shape not in ((), (1,), (size,)):
            raise ShapeError(
                f"repeat_interleave: repeats must be integers, one or {size} of them, got "
                f"{repeats._meta}"
            )
        counts = expand(reshape(repeats, (-1,)), (size,))
        return index_select(x, at, repeated_positions(counts))
    (times,) = _dims_of((repeats,))
    if times < 0:
        raise ArgumentError(f"repeat_interleave: repeats cannot be negative, got {times}")
    shape = x._meta.shape
    spread = expand(unsqueeze(x, at + 1), (*shape[: at + 1], times, *shape[at + 1 :]))
    return reshape(spread.clone(), (*shape[:at], size * times, *shape[at + 1 :]))


def _places(repeats: object) -> Tensor:
    counts = need_tensor("repeat_interleave", "repeats", repeats)
    if counts.ndim != 1 or counts._meta.dtype not in (int32, int64):
        raise ArgumentError(
            f"repeat_interleave: repeats alone are a vector of int32 or int64, got {counts._meta}"
        )
    out: Tensor = repeated_positions(counts).to(counts._meta.dtype)
    return out


samples(
    repeat_interleave,
    lambda rng: [
        *_xs(rng, ((2, 3), 2), ((2, 3), 3, 1), ((2,), 0)),
        Sample((rng.standard_normal((3, 2)), np.array([2, 0, 1]), 0)),
        Sample((rng.standard_normal((2, 2)), np.array([3]), 1)),
    ],
    np.repeat,
    errors=(
        (lambda flow: flow.repeat_interleave(flow.ones(2), -1), ValueError),
        (lambda flow: flow.repeat_interleave(flow.ones(2), flow.ones(2)), RuntimeError),
    ),
)
