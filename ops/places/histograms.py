"""Counts of values between edges: `histogram`, `histogramdd`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowvm import return_types
from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentError, DTypeError, ShapeError
from flowvm.meta.dtype import float32, float64
from flowvm.ops.declare.composite import need_tensor, whole
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.places.search import searchsorted
from flowvm.ops.shapes.fill import ones_like, zeros
from flowvm.ops.shapes.ranges import linspace


def _points(name: str, input: object) -> Tensor:
    x = need_tensor(name, "input", input).detach()
    if x._meta.dtype not in (float32, float64):
        raise DTypeError(f"{name}: input is float32 or float64, got {x.dtype.name}")
    return x


def _limits(name: str, x: Any, limits: Sequence[float] | None) -> tuple[float, float]:
    if limits is not None:
        low, high = float(limits[0]), float(limits[1])
    elif x.numel():
        low, high = float(x.min()), float(x.max())
    else:
        low, high = 0.0, 1.0
    if not (math.isfinite(low) and math.isfinite(high)) or low > high:
        raise ArgumentError(
            f"{name}: a range must have finite ends in ascending order, got {low} to {high}"
        )
    return (low - 0.5, high + 0.5) if low == high else (low, high)


def _edges(name: str, x: Tensor, bins: object, limits: Sequence[float] | None) -> Tensor:
    if isinstance(bins, Tensor):
        if limits is not None:
            raise ArgumentError(f"{name}: range goes with a number of bins, not with edges")
        if bins.ndim != 1 or bins.numel() < 1 or bins.dtype is not x.dtype:
            raise ShapeError(
                f"{name}: edges are a vector of {x.dtype.name}, got {bins.dtype.name} of shape "
                f"{tuple(bins.shape)}"
            )
        return bins.detach()
    count = whole(name, "bins", bins)
    if count < 1:
        raise ArgumentError(f"{name}: bins is positive, got {count}")
    low, high = _limits(name, x, limits)
    return linspace(low, high, count + 1, dtype=x.dtype, device=x.device)


def _bins(x: Any, edges: Any) -> tuple[Any, Any]:
    """The bin of each value, and whether it has one: the last edge belongs to the last bin."""
    at = searchsorted(edges, x.contiguous(), right=True) - 1
    last = edges.numel() - 2
    at = at - (x == edges[-1]).long()
    inside = (at >= 0) & (at <= last) & (x <= edges[-1])
    return at.clamp(min=0, max=max(last, 0)), inside


def _count(x: Any, edges: list[Any], weight: Any, density: bool) -> Tensor:
    shape = [e.numel() - 1 for e in edges]
    flat: Any = 0  # a tensor behind the first column
    inside: bool | Tensor = True
    for column, e, n in zip(x.unbind(1), edges, shape, strict=True):
        at, within = _bins(column, e)
        flat, inside = flat * n + at, within & inside
    amounts = (ones_like(x.select(1, 0)) if weight is None else weight) * inside
    counts: Tensor = zeros(math.prod(shape), dtype=x.dtype, device=x.device)
    if counts.numel() and amounts.numel():
        counts = counts.index_add(0, flat, amounts.to(x.dtype))
    counts = counts.reshape(shape)
    if density:
        counts = counts / counts.sum()
        for d, e in enumerate(edges):
            widths = e[1:] - e[:-1]
            counts = counts / widths.reshape([-1 if i == d else 1 for i in range(len(edges))])
    return counts


def _checked_weight(name: str, weight: Any, x: Any, shape: Sequence[int]) -> Any:
    if weight is None:
        return None
    w: Any = need_tensor(name, "weight", weight).detach()
    if tuple(w.shape) != tuple(shape) or w.dtype is not x.dtype:
        raise ShapeError(
            f"{name}: weight is {x.dtype.name} of shape {tuple(shape)}, got {w.dtype.name} of "
            f"{tuple(w.shape)}"
        )
    return w.reshape(-1)


# public: flow
@method()
@with_out
def histogram(
    input: Tensor,
    bins: object = 100,
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> return_types.histogram:
    """Count the elements of `input` between each two edges, as (hist, bin_edges).

    bins      a number of bins of one width from the smallest element, or `range[0]`, to the
              largest, or `range[1]`; or their edges, an ascending vector.  An element on an edge
              is in the bin to its right, on the last one in the last bin
    weight    what each element counts, of `input`'s shape
    density   the integral over the bins is 1

    >>> flow.histogram(flow.tensor([1.0, 2.0, 1.0]), bins=2, range=(0.0, 4.0)).hist
    tensor([2., 1.])
    """
    x = _points("histogram", input)
    edges = _edges("histogram", x, bins, range)
    w = _checked_weight("histogram", weight, x, x.shape)
    counts = _count(x.reshape((-1, 1)), [edges], w, density)
    return return_types.histogram((counts, edges))


# public: flow
def histogramdd(
    input: Tensor,
    bins: object,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> return_types.histogramdd:
    """Count the points, the rows of `input` (*, n), in each box between edges.

    Return (hist of n dimensions, the edges of each).

    bins    a number of bins for all dimensions, a list of one for each, or of vectors of edges
    range   the lowest and the highest edge of each dimension, one behind the other

    >>> points = flow.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    >>> flow.histogramdd(points, [2, 2], range=[0.0, 2.0, 0.0, 2.0]).hist
    tensor([[0., 1.],
            [1., 1.]])
    """
    x = _points("histogramdd", input)
    if x.ndim < 2:
        raise ShapeError(f"histogramdd: input has 2 dimensions or more, got {tuple(x.shape)}")
    n = x.shape[-1]
    w = _checked_weight("histogramdd", weight, x, x.shape[:-1])
    x = x.reshape((-1, n))
    each = list(bins) if isinstance(bins, (list, tuple)) else [bins] * n
    if len(each) != n or (range is not None and len(range) != 2 * n):
        raise ArgumentError(f"histogramdd: {n} dimensions, bins {bins} and range {range}")
    edges = [
        _edges("histogramdd", column, b, None if range is None else range[2 * d : 2 * d + 2])
        for d, (column, b) in enumerate(zip(x.unbind(1), each, strict=True))
    ]
    return return_types.histogramdd((_count(x, edges, w, density), tuple(edges)))


samples(
    histogram,
    lambda rng: [
        Sample((rng.standard_normal((4, 5)), 4)),
        Sample((rng.standard_normal(20), 3), {"range": (-1.0, 1.0), "density": True}),
        Sample((np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.0, 1.0, 3.0]))),
    ],
    lambda x, bins, range=None, density=False: np.histogram(x, bins, range, density=density),
    grad=False,
    floats=("float64", "float32"),
    errors=(
        (lambda flow: flow.histogram(flow.arange(3), 2), RuntimeError),
        (lambda flow: flow.histogram(flow.ones(3), 0), ValueError),
        (lambda flow: flow.histogram(flow.ones(3), 2, weight=flow.ones(2)), RuntimeError),
    ),
)
samples(
    histogramdd,
    lambda rng: [Sample((rng.standard_normal((20, 2)), [3, 2]))],
    lambda x, bins: (lambda h: (h[0], *h[1]))(np.histogramdd(x, bins)),
    grad=False,
    floats=("float64", "float32"),
)
