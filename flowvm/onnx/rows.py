"""Translations of reductions, softmax, norms, scans and order.

A translation gives the values of a node's outputs, None where nothing looks at one, from a `Call`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from flowvm.meta.dtype import bool_, int32, int64
from flowvm.onnx.call import Call
from flowvm.onnx.expressions import Untranslated

Values = list[str | None]


def _dims(c: Call) -> tuple[list[int], bool]:
    """The dimensions that a fold goes over, and whether they are kept."""
    dims = c.attrs.get("dims", tuple(range(c.metas[0].ndim)))
    return [d for d in dims if c.metas[0].ndim], bool(c.attrs.get("keepdim", False))


def _fold(c: Call, kind: str, x: str) -> str:
    dims, keep = _dims(c)
    if not dims:
        if kind == "ReduceSumSquare":
            return c.w.op("Mul", x, x)
        return c.w.op("Abs", x) if kind == "ReduceL1" else x
    return c.w.op(kind, x, c.w.ints(*dims), keepdims=int(keep))


def summed(kind: str) -> Callable[[Call], Values]:
    """Sums and products, in the result's dtype (a reduced float in float32), with a divisor."""

    def translate(c: Call) -> Values:
        computing = c.out.dtype.compute
        x = c.x() if c.metas[0].dtype is computing else c.w.cast(c.x(), computing)
        divisor, shape = c.attrs.get("divisor", 1.0), c.metas[0].shape
        if kind == "ReduceSum" and divisor == math.prod(shape[d] for d in _dims(c)[0]):
            # a mean, also of sizes that the reader of the file chooses
            return [c.as_out(_fold(c, "ReduceMean", x), computing)]
        outputs = _fold(c, kind, x)
        if divisor != 1.0:
            outputs = c.w.op("Div", outputs, c.number(divisor, computing))
        return [c.as_out(outputs, computing)]

    return translate


def extreme(kind: str) -> Callable[[Call], Values]:
    """Translate amax and amin."""

    def translate(c: Call) -> Values:
        dtype = c.metas[0].dtype
        if dtype is bool_:
            return [c.w.cast(_fold(c, kind, c.w.cast(c.x(), int32)), bool_)]
        return [_fold(c, kind, c.x())]

    return translate


def truths(kind: str) -> Callable[[Call], Values]:
    """Translate any, all and count_nonzero."""

    def translate(c: Call) -> Values:
        x = c.x() if c.metas[0].dtype is bool_ else c.w.cast(c.x(), bool_)
        outputs = _fold(c, kind, c.w.cast(x, int64))
        return [c.as_out(outputs, int64)]

    return translate


def extreme_at(kind: str) -> Callable[[Call], Values]:
    """Translate max and min along a dimension, with their indices."""

    def translate(c: Call) -> Values:
        dim, keep, x = c.attrs["dim"], int(c.attrs["keepdim"]), c.x()
        if not c.metas[0].ndim:
            return [x, c.number(0, int64)]
        values = c.w.op(f"Reduce{kind}", x, c.w.ints(dim), keepdims=keep)
        if not c.wants(1):
            return [values, None]
        return [values, c.w.op(f"Arg{kind}", x, axis=dim, keepdims=keep)]

    return translate


def moments(c: Call) -> Values:
    """Variance, or its root, and mean."""
    w, computing = c.w, c.out.dtype
    dims, keep = _dims(c)
    x = c.x() if c.metas[0].dtype is computing else w.cast(c.x(), computing)
    axes = w.ints(*dims)
    apart = w.op("Sub", x, w.op("ReduceMean", x, axes, keepdims=1))
    total = w.op("ReduceSum", w.op("Mul", apart, apart), axes, keepdims=int(keep))
    mean = w.op("ReduceMean", x, axes, keepdims=int(keep)) if c.wants(1) else None
    variance = w.op("Div", total, c.number(c.attrs["freedom"]))
    return [w.op("Sqrt", variance) if c.attrs["root"] else variance, mean]


def softmax(kind: str) -> Callable[[Call], Values]:
    """softmax and log_softmax."""

    def translate(c: Call) -> Values:
        if not c.metas[0].ndim:
            return [c.number(1.0 if kind == "Softmax" else 0.0)]
        return [c.w.op(kind, c.x(), axis=c.attrs["dim"])]

    return translate


def cumsum(c: Call) -> Values:
    """Translate running sums, from either end."""
    x = c.x() if c.metas[0].dtype is c.out.dtype else c.w.cast(c.x(), c.out.dtype)
    if not c.metas[0].ndim:
        return [x]
    dim = c.number(c.attrs["dim"], int64)
    return [c.w.op("CumSum", x, dim, reverse=int(c.attrs["reverse"]))]


def prefixes(kind: str, neutral: float) -> Callable[[Call], Values]:
    """Translate scans that ONNX lacks: each element's prefix becomes a row, and the row is folded.
    The index of an extreme is its last one.
    """

    def translate(c: Call) -> Values:
        w, dtype = c.w, c.out.dtype
        x = c.x() if c.metas[0].dtype is dtype else w.cast(c.x(), dtype)
        if not c.metas[0].ndim:
            places: Values = [c.number(0, int64)] if len(c.outs) > 1 else []
            return [x, *places]
        n, dim, last = c.out.shape[c.attrs["dim"]], c.attrs["dim"], c.out.ndim - 1
        order = [*(d for d in range(last + 1) if d != dim), dim]
        back = [order.index(d) for d in range(last + 1)]
        rows = w.op("Unsqueeze", w.transpose(x, order), w.ints(-2))
        along = w.op("Range", *[c.number(e, int64) for e in (0, n, 1)])
        behind = w.op("Greater", along, w.op("Unsqueeze", along, w.ints(1)))
        if np.isinf(neutral) and not dtype.is_floating_point:
            limits = np.iinfo(dtype.name)
            end = c.number(limits.min if neutral < 0 else limits.max)
        else:
            end = c.number(neutral)
        rows = w.op("Where", behind, end, rows)
        outputs = [w.transpose(w.op(kind, rows, w.ints(-1), keepdims=0), back)]
        if len(c.outs) > 1:
            arg = "ArgMax" if kind == "ReduceMax" else "ArgMin"
            at = w.op(arg, rows, axis=last + 1, keepdims=0, select_last_index=1)
            outputs.append(w.transpose(at, back))
        return list(outputs)

    return translate


def sort(c: Call) -> Values:
    """Places first to first + count of each row in order; ties as they come."""
    w, first = c.w, c.attrs["first"]
    last = first + c.attrs["count"]
    return _in_order(c, last, c.attrs["descending"], first) if c.metas[0].ndim else [
        c.x(), w.constant(np.zeros(tuple(c.out.shape)), int64)
    ]  # fmt: skip


def topk(c: Call) -> Values:
    """The k largest, or smallest, of each row."""
    return _in_order(c, c.attrs["k"], c.attrs["largest"], 0)


def _in_order(c: Call, k: int, largest: bool, first: int) -> Values:
    values, places = c.w.ops("TopK", 2, c.x(), c.w.ints(k), axis=-1, largest=int(largest), sorted=1)
    if not first:
        return [values, places]
    cut = [c.w.ints(first), c.w.ints(k), c.w.ints(-1)]
    return [c.w.op("Slice", values, *cut), c.w.op("Slice", places, *cut)]


# --- losses of classes ----------------------------------------------------------------------------


def class_loss(kind: str) -> Callable[[Call], Values]:
    """cross_entropy and nll_loss of class numbers."""

    def translate(c: Call) -> Values:
        if c.attrs.get("smoothing"):
            raise Untranslated("label smoothing")
        values = [c.x(k) for k in range(c.count)]
        how = {"reduction": c.attrs["reduction"], "ignore_index": c.attrs["ignore_index"]}
        if c.metas[0].ndim > 1:
            return [c.w.op(kind, *values, **how), None]
        values[:2] = [c.w.reshape(v, s) for v, s in zip(values, ([1, -1], [1]), strict=False)]
        return [c.w.reshape(c.w.op(kind, *values, **how), c.out.shape), None]

    return translate


# --- norms ----------------------------------------------------------------------------------------


def normalize(c: Call) -> Values:
    """Batch norm by kept statistics, and layer, group, instance and batch norm by their own."""
    if "kind" not in c.attrs:
        output = c.w.op(
            "BatchNormalization", *[c.x(k) for k in range(5)], epsilon=c.attrs["eps"]
        )  # fmt: skip
        return [output, None]
    kind, size, meta = c.attrs["kind"], c.attrs["size"], c.metas[0]
    if kind == "layer":
        return [_layer(c, list(range(meta.ndim - len(size), meta.ndim))), None]
    if kind == "batch":
        output = _apart(c, c.x(), [0, *range(2, meta.ndim)], c.attrs["center"])
    else:
        output = _groups(c, size if kind == "group" else meta.shape[1])
    return [_scaled(c, output, (-1,) + (1,) * (meta.ndim - 2)), None]


def _layer(c: Call, dims: list[int]) -> str:
    size = [c.metas[0].shape[d] for d in dims]
    if not c.attrs["center"]:
        return _scaled(c, _apart(c, c.x(), dims, False), size)
    weight = c.x(1) if c.count > 1 else c.number(np.ones(size))
    bias = [c.x(2)] if c.count > 2 else []
    return c.w.op(
        "LayerNormalization", c.x(), weight, *bias, axis=dims[0], epsilon=c.attrs["eps"]
    )  # fmt: skip


def _groups(c: Call, groups: int) -> str:
    """Each group as a channel of its own."""
    shape = c.metas[0].shape
    x = c.w.reshape(c.x(), (shape[0], groups, -1)) if c.metas[0].numel else c.x()
    dtype = c.metas[0].dtype
    one, zero = c.number(np.ones(groups), dtype), c.number(np.zeros(groups), dtype)
    output = c.w.op("InstanceNormalization", x, one, zero, epsilon=c.attrs["eps"])
    return c.w.reshape(output, shape)


def _apart(c: Call, x: str, dims: list[int], center: bool) -> str:
    """x, centered if so, over its deviation."""
    w, axes = c.w, c.w.ints(*dims)
    if center:
        x = w.op("Sub", x, w.op("ReduceMean", x, axes, keepdims=1))
    var = w.op("ReduceMean", w.op("Mul", x, x), axes, keepdims=1)
    return w.op("Div", x, w.op("Sqrt", w.op("Add", var, c.number(c.attrs["eps"]))))


def _scaled(c: Call, x: str, shape: Sequence[int]) -> str:
    for place, kind in ((1, "Mul"), (2, "Add")):
        if c.count > place:
            x = c.w.op(kind, x, c.w.reshape(c.x(place), shape))
    return x
