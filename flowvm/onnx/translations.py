"""TRANSLATIONS: how each op is said in ONNX, by the op's name.

Elementwise ops are not in it: all of them go by their expression (`flowvm.onnx.expressions`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from flowvm.eager.tensor import Tensor
from flowvm.meta.dtype import bool_, int64
from flowvm.onnx import planes, rows, sequences
from flowvm.onnx.call import Call
from flowvm.onnx.expressions import Untranslated
from flowvm.onnx.rows import Values
from flowvm.ops.places.cpu.index_kernels import ADD, AMAX, AMIN, MULTIPLY, NONE, SET
from flowvm.ops.places.gather import split_at

Translation = Callable[[Call], Values]

# --- products -------------------------------------------------------------------------------------


def _matmul(turned: int | None) -> Translation:
    """A product; the input `turned` is given with its last two dimensions the other way round."""

    def translate(c: Call) -> Values:
        values = [c.x(0), c.x(1)]
        if turned is not None:
            n = c.metas[turned].ndim
            values[turned] = c.w.transpose(values[turned], [*range(n - 2), n - 1, n - 2])
        return [c.w.op("MatMul", *values)]

    return translate


def _linear(c: Call) -> Values:
    weight = c.w.transpose(c.x(1), [1, 0])
    return [c.w.op("Add", c.w.op("MatMul", c.x(0), weight), c.x(2))]


def _addmm(c: Call) -> Values:
    product, plus = c.w.op("MatMul", c.x(0), c.x(1)), c.x(2)
    if c.attrs["alpha"] != 1:
        product = c.w.op("Mul", product, c.number(c.attrs["alpha"]))
    if c.attrs["beta"] == 0:
        return [product]
    if c.attrs["beta"] != 1:
        plus = c.w.op("Mul", plus, c.number(c.attrs["beta"]))
    return [c.w.op("Add", product, plus)]


# --- shapes, and what is made of nothing ----------------------------------------------------------


def _cast(c: Call) -> Values:
    return [c.as_out(c.x(), c.metas[0].dtype)]


def _copy(c: Call) -> Values:
    value = c.as_out(c.x(), c.metas[0].dtype)
    same = tuple(c.metas[0].shape) == tuple(c.out.shape)
    return [value if same else c.w.expand(value, c.out.shape)]


def _fill(c: Call) -> Values:
    return [c.w.expand(c.number(c.attrs.get("value", 0)), c.out.shape)]


def _arange(c: Call) -> Values:
    """Numbers by a start and a step, which a file of any size counts if they are integers."""
    start, step, n = c.attrs["start"], c.attrs["step"], c.out.numel
    if start != int(start) or step != int(step) or c.attrs.get("middle", n) < n:
        return _computed(c)
    ends = int(start), int(start) + int(step) * n, int(step)
    return [c.as_out(c.w.op("Range", *[c.number(e, int64) for e in ends]), int64)]


def _computed(c: Call) -> Values:
    """The values of an op that has no inputs."""
    result = c.node.operator.call(*c.node.attrs, *[c.attrs[n] for n in c.node.operator.scalars])
    assert isinstance(result, Tensor)
    values = result.cpu().float() if c.out.dtype.name == "bfloat16" else result.cpu()
    return [c.number(values.numpy())]


def _cat(c: Call) -> Values:
    values = []
    for place, meta in enumerate(c.metas):
        value = c.as_out(c.x(place), meta.dtype)
        stacked = c.attrs["stacked"]
        values.append(c.w.op("Unsqueeze", value, c.w.ints(c.attrs["dim"])) if stacked else value)
    return [c.w.op("Concat", *values, axis=c.attrs["dim"])]


def _pad(c: Call) -> Values:
    sides, value = c.attrs["sides"], c.x()
    if not sides:
        return [value]
    both = c.w.ints(*[a for a, _ in sides], *[b for _, b in sides])
    mode = c.attrs.get("mode")
    if mode is None:
        return [c.w.op("Pad", value, both, c.number(c.attrs["value"]))]
    if mode != "circular":
        return [c.w.op("Pad", value, both, mode="edge" if mode == "replicate" else mode)]
    for dim, (front, behind) in enumerate(sides):
        if front or behind:
            n = c.metas[0].shape[dim]
            parts = [_part(c, value, dim, n - front, n)] if front > 0 else []
            inside = max(0, -front), n + min(0, behind)
            parts.append(value if inside == (0, n) else _part(c, value, dim, *inside))
            parts += [_part(c, value, dim, 0, behind)] if behind > 0 else []
            value = c.w.op("Concat", *parts, axis=dim)
    return [value]


def _part(c: Call, value: str, dim: int, start: int, end: int) -> str:
    return c.w.op("Slice", value, c.w.ints(start), c.w.ints(end), c.w.ints(dim))


def _roll(c: Call) -> Values:
    value = c.x()
    for dim, cut in enumerate(c.attrs["cuts"]):
        if cut:
            n = c.metas[0].shape[dim]
            parts = [_part(c, value, dim, cut, n), _part(c, value, dim, 0, cut)]
            value = c.w.op("Concat", *parts, axis=dim)
    return [value]


def _triangle(upper: int) -> Translation:
    return lambda c: [c.w.op("Trilu", c.x(), c.number(c.attrs["k"], int64), upper=upper)]


# --- places that are data -------------------------------------------------------------------------


def _index_select(c: Call) -> Values:
    w, index, zero = c.w, c.x(1), c.attrs["zero"]
    x = c.x() if c.metas[0].ndim else w.reshape(c.x(), [1])
    taken = w.op("Gather", x, index, axis=c.attrs["dim"])
    if zero == NONE:
        return [taken]
    mask = w.op("Equal", index, c.number(zero, int64))
    inner = c.metas[0].ndim - c.attrs["dim"] - 1
    mask = w.reshape(mask, (*c.metas[1].shape, *(1,) * inner))
    return [w.op("Where", mask, c.number(0), taken)]


def _gather(c: Call) -> Values:
    if not c.metas[0].ndim:
        return [c.w.expand(c.x(), c.out.shape)]
    return [c.w.op("GatherElements", c.x(), c.x(1), axis=c.attrs["dim"])]


_REDUCTIONS = {SET: "none", ADD: "add", MULTIPLY: "mul", AMAX: "max", AMIN: "min"}


def _scatter(c: Call) -> Values:
    """The first input with elements of the third written at places, or combined with what is
    there.
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


def _put(c: Call) -> Values:
    """The same with whole slices, seen as [outer, n, inner]."""
    w, dim, (x, index, source) = c.w, c.attrs["dim"], c.metas
    if c.attrs.get("skip", NONE) != NONE:
        raise Untranslated("an index that is left out")
    outer, n, inner = split_at(x, dim)
    shape = outer, index.numel, inner
    where = w.expand(w.reshape(c.x(1), (1, -1, 1)), shape)
    one = source.numel == 1 and math.prod(shape) != 1
    values = w.expand(w.reshape(c.x(2), [1]), shape) if one else w.reshape(c.x(2), shape)
    made = _scattered(c, w.reshape(c.x(0), (outer, n, inner)), where, values, 1)
    return [w.reshape(made, x.shape)]


def _scattered(c: Call, x: str, where: str, values: str, dim: int) -> str:
    kind = _REDUCTIONS[c.attrs.get("mode", SET)]
    return c.w.op("ScatterElements", x, where, values, axis=dim, reduction=kind)


def _join_positions(c: Call) -> Values:
    """Positions in two dimensions as those in both taken together; negative ones from the end."""
    a, b = (
        c.w.op("Mod", c.x(k), c.number(c.attrs[size], int64)) for k, size in enumerate(("na", "nb"))
    )
    return [c.w.op("Add", c.w.op("Mul", a, c.number(c.attrs["nb"], int64)), b)]


def _one_hot(c: Call) -> Values:
    index = c.w.op("Unsqueeze", c.x(), c.w.ints(-1))
    same = c.w.op("Equal", index, c.number(np.arange(c.attrs["classes"]), int64))
    return [c.as_out(same, bool_)]


def _isin(c: Call) -> Values:
    if not c.metas[1].numel:
        return [c.w.expand(c.number(c.attrs["invert"]), c.out.shape)]
    each = c.w.op("Unsqueeze", c.x(0), c.w.ints(-1))
    same = c.w.cast(c.w.op("Equal", each, c.w.reshape(c.x(1), [-1])), int64)
    found = c.w.cast(c.w.op("ReduceMax", same, c.w.ints(-1), keepdims=0), bool_)
    return [c.w.op("Not", found) if c.attrs["invert"] else found]


TRANSLATIONS: dict[str, Translation] = {
    # products
    "matmul": _matmul(None), "_matmul_nt": _matmul(1), "_matmul_tn": _matmul(0),
    "linear": _linear, "addmm": _addmm,
    # planes
    "conv": planes.conv, "conv_input": planes.transposed, "max_pool": planes.max_pool,
    "avg_pool": planes.avg_pool, "interpolate": planes.resize,
    "interpolate_nearest": planes.nearest, "unfold": planes.unfold,
    # rows
    "sum": rows.summed("ReduceSum"), "prod": rows.summed("ReduceProd"),
    "sum_of_squares": rows.summed("ReduceSumSquare"),
    "sum_of_magnitudes": rows.summed("ReduceL1"),
    "amax": rows.extreme("ReduceMax"), "amin": rows.extreme("ReduceMin"),
    "any": rows.truths("ReduceMax"), "all": rows.truths("ReduceMin"),
    "count_nonzero": rows.truths("ReduceSum"),
    "max": rows.extreme_at("Max"), "min": rows.extreme_at("Min"), "moments": rows.moments,
    "cross_entropy": rows.class_loss("SoftmaxCrossEntropyLoss"),
    "nll_loss": rows.class_loss("NegativeLogLikelihoodLoss"),
    "softmax": rows.softmax("Softmax"), "log_softmax": rows.softmax("LogSoftmax"),
    "cumsum": rows.cumsum, "sort": rows.sort, "topk": rows.topk, "normalize": rows.normalize,
    "attention": sequences.attention, "recurrent": sequences.recurrent,
    # shapes
    "cast": _cast, "copy": _copy, "copy_to": _cast, "fill": _fill, "empty": _fill,
    "arange": _arange, "linspace": _arange, "cat": _cat, "pad": _pad, "roll": _roll,
    "tril": _triangle(0), "triu": _triangle(1),
    # places
    "index_select": _index_select, "gather": _gather, "scatter_": _scatter,
    "scatter_reduce_": _scatter, "index_copy_": _put, "index_reduce_": _put,
    "join_positions": _join_positions, "one_hot": _one_hot, "isin": _isin,
}  # fmt: skip
