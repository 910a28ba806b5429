"""Translations of ops on elements at indices that are data: gathers, scatters, counts, searches."""

from __future__ import annotations

import math

import numpy as np

from flowvm.meta.dtype import bool_, int64
from flowvm.onnx.call import Call
from flowvm.onnx.expressions import Untranslated
from flowvm.onnx.rows import Values
from flowvm.ops.places.cpu.index_kernels import ADD, AMAX, AMIN, MULTIPLY, NONE, SET
from flowvm.ops.places.gather import split_at


def index_select(c: Call) -> Values:
    w, index, zero = c.w, c.x(1), c.attrs["zero"]
    x = c.x() if c.metas[0].ndim else w.reshape(c.x(), [1])
    gathered = w.op("Gather", x, index, axis=c.attrs["dim"])
    if zero == NONE:
        return [gathered]
    mask = w.op("Equal", index, c.number(zero, int64))
    inner = c.metas[0].ndim - c.attrs["dim"] - 1
    mask = w.reshape(mask, (*c.metas[1].shape, *(1,) * inner))
    return [w.op("Where", mask, c.number(0), gathered)]


def gather(c: Call) -> Values:
    if not c.metas[0].ndim:
        return [c.w.expand(c.x(), c.out.shape)]
    return [c.w.op("GatherElements", c.x(), c.x(1), axis=c.attrs["dim"])]


_REDUCTIONS = {SET: "none", ADD: "add", MULTIPLY: "mul", AMAX: "max", AMIN: "min"}


def scatter(c: Call) -> Values:
    """Write elements of the third input into the first at indices, or combine them with the present
    elements.
    """
    w, (x, index, source) = c.w, c.metas
    if not x.ndim:
        raise Untranslated("a tensor of no dimensions is written")
    values = c.x(2)
    if not source.ndim:
        values = w.expand(values, index.shape)
    elif tuple(source.shape) != tuple(index.shape):
        dims = range(x.ndim)
        cut = [w.ints(*[0 for _ in dims]), w.ints(*index.shape), w.ints(*dims)]
        values = w.op("Slice", values, *cut)
    return [_scattered(c, c.x(0), c.x(1), values, c.attrs["dim"])]


def put(c: Call) -> Values:
    """Write whole slices at indices, seen as [outer, n, inner]."""
    w, dim, (x, index, source) = c.w, c.attrs["dim"], c.metas
    if c.attrs.get("skip", NONE) != NONE:
        raise Untranslated("an index that is left out")
    outer, n, inner = split_at(x, dim)
    shape = outer, index.numel, inner
    where = w.expand(w.reshape(c.x(1), (1, -1, 1)), shape)
    one = source.numel == 1 and math.prod(shape) != 1
    values = w.expand(w.reshape(c.x(2), [1]), shape) if one else w.reshape(c.x(2), shape)
    scattered = _scattered(c, w.reshape(c.x(0), (outer, n, inner)), where, values, 1)
    return [w.reshape(scattered, x.shape)]


def _scattered(c: Call, x: str, where: str, values: str, dim: int) -> str:
    kind = _REDUCTIONS[c.attrs.get("mode", SET)]
    return c.w.op("ScatterElements", x, where, values, axis=dim, reduction=kind)


def join_positions(c: Call) -> Values:
    """Combine indices of two dimensions to indices of both together; negative ones count from the
    end.
    """
    a, b = (
        c.w.op("Mod", c.x(k), c.number(c.attrs[size], int64)) for k, size in enumerate(("na", "nb"))
    )
    return [c.w.op("Add", c.w.op("Mul", a, c.number(c.attrs["nb"], int64)), b)]


def one_hot(c: Call) -> Values:
    index = c.w.op("Unsqueeze", c.x(), c.w.ints(-1))
    same = c.w.op("Equal", index, c.number(np.arange(c.attrs["classes"]), int64))
    return [c.as_out(same, bool_)]


def isin(c: Call) -> Values:
    if not c.metas[1].numel:
        return [c.w.expand(c.number(c.attrs["invert"]), c.out.shape)]
    each = c.w.op("Unsqueeze", c.x(0), c.w.ints(-1))
    same = c.w.cast(c.w.op("Equal", each, c.w.reshape(c.x(1), [-1])), int64)
    is_in = c.w.cast(c.w.op("ReduceMax", same, c.w.ints(-1), keepdims=0), bool_)
    return [c.w.op("Not", is_in) if c.attrs["invert"] else is_in]


def masked_scatter(c: Call) -> Values:
    """Take the source's elements in their order at the true places of the mask; a running count
    numbers them.
    """
    w, shape = c.w, c.metas[0].shape
    mask = w.expand(c.x(1), shape)
    count = w.op("CumSum", w.cast(w.reshape(mask, [-1]), int64), c.number(0, int64))
    place = w.op("Max", w.op("Sub", count, c.number(1, int64)), c.number(0, int64))
    gathered = w.op("Gather", w.reshape(c.x(2), [-1]), place)
    return [w.op("Where", mask, w.reshape(gathered, shape), c.x(0))]


def searchsorted(c: Call) -> Values:
    """Count the boundaries that are less than a value, or not greater."""
    w = c.w
    boundaries, each = c.x(0), w.op("Unsqueeze", c.x(1), w.ints(-1))
    if c.metas[0].ndim > 1:
        boundaries = w.op("Unsqueeze", boundaries, w.ints(-2))
    below = w.op("LessOrEqual" if c.attrs["right"] else "Less", boundaries, each)
    return [w.op("ReduceSum", w.cast(below, int64), w.ints(-1), keepdims=0)]


def _bags(c: Call) -> tuple[str, str]:
    """Rows of an embedding, and for each bag which of them are in it, as bools."""
    w = c.w
    index, bounds = c.x(1), c.x(2)
    order = w.op("Range", *[c.number(e, int64) for e in (0, c.metas[1].numel, 1)])
    count = c.metas[2].numel - 1
    starts, ends = (
        w.op("Unsqueeze", c.cut(bounds, 0, *cut), w.ints(1)) for cut in ((0, count), (1, count + 1))
    )
    inside = w.op("And", w.op("GreaterOrEqual", order, starts), w.op("Less", order, ends))
    if c.attrs["skip"] >= 0:
        counted = w.op("Not", w.op("Equal", index, c.number(c.attrs["skip"], int64)))
        inside = w.op("And", inside, counted)
    return w.op("Gather", c.x(0), index), inside


def embedding_bag(c: Call) -> Values:
    """Translate sums over bags as a product: a matrix of 0 and 1, the rows in each bag, times the
    rows.
    """
    _only_first(c)
    w, (rows, inside) = c.w, _bags(c)
    chosen = w.cast(inside, c.out.dtype)
    sums = w.op("MatMul", chosen, w.op("Mul", rows, w.op("Unsqueeze", c.x(3), w.ints(1))))
    if c.attrs["mean"]:
        many = w.op("ReduceSum", chosen, w.ints(1), keepdims=1)
        sums = w.op("Div", sums, w.op("Max", many, c.number(1)))
    return [sums, *[None] * (len(c.outs) - 1)]


def embedding_bag_max(c: Call) -> Values:
    """Take the largest element of each bag; 0 for an empty bag."""
    _only_first(c)
    w, (rows, inside) = c.w, _bags(c)
    each = w.op("Where", w.op("Unsqueeze", inside, w.ints(2)), rows, c.number(-math.inf))
    largest = w.op("ReduceMax", each, w.ints(1), keepdims=0)
    some = w.op("ReduceMax", w.cast(inside, int64), w.ints(1), keepdims=1)
    return [w.op("Where", w.cast(some, bool_), largest, c.number(0)), None]


def _only_first(c: Call) -> None:
    if any(c.wants(place) for place in range(1, len(c.outs))):
        raise Untranslated("more is asked of it than what comes out")
