"""TRANSLATIONS: the translation of each op to ONNX, by the op's name.

Elementwise ops are not in it: all of them go by their expression (`flowvm.onnx.expressions`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from flowvm.eager.tensor import Tensor
from flowvm.meta.dtype import bool_, int64
from flowvm.onnx import draws, places, planes, rows, sequences
from flowvm.onnx.call import Call
from flowvm.onnx.rows import Values

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


def _slogdet(c: Call) -> Values:
    """By rows of length 1, whose determinant is at most 1: no product of many numbers overflows."""
    w, computing = c.w, c.metas[0].dtype
    length = w.op("Sqrt", w.op("ReduceSumSquare", c.x(), w.ints(-1), keepdims=1))
    none = w.op("Equal", length, c.number(0, computing))
    length = w.op("Where", none, c.number(1, computing), length)
    det = w.op("Det", w.op("Div", c.x(), length))
    logs = w.op("ReduceSum", w.op("Log", length), w.ints(-2, -1), keepdims=0)
    return [w.op("Sign", det), w.op("Add", w.op("Log", w.op("Abs", det)), logs)]


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
    whole = start == int(start) and step == int(step) != 0  # with a step of 0, no count is known
    if not whole or c.attrs.get("middle", n) < n:
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
            parts = [c.cut(value, dim, n - front, n)] if front > 0 else []
            inside = max(0, -front), n + min(0, behind)
            parts.append(value if inside == (0, n) else c.cut(value, dim, *inside))
            parts += [c.cut(value, dim, 0, behind)] if behind > 0 else []
            value = c.w.op("Concat", *parts, axis=dim)
    return [value]


def _roll(c: Call) -> Values:
    value = c.x()
    for dim, cut in enumerate(c.attrs["cuts"]):
        if cut:
            n = c.metas[0].shape[dim]
            parts = [c.cut(value, dim, cut, n), c.cut(value, dim, 0, cut)]
            value = c.w.op("Concat", *parts, axis=dim)
    return [value]


def _triangle(upper: int) -> Translation:
    return lambda c: [c.w.op("Trilu", c.x(), c.number(c.attrs["k"], int64), upper=upper)]


def _diag_embed(c: Call) -> Values:
    """A matrix of zeros but for one diagonal, `k` above the main one."""
    w, k, n = c.w, c.attrs["k"], c.out.shape[-1]
    sides = [0] * (c.metas[0].ndim - 1)
    x = w.op("Pad", c.x(), w.ints(*sides, 0, *sides, abs(k)), c.number(0))
    x = w.op("Unsqueeze", x, w.ints(-1 if k >= 0 else -2))
    eye = w.op("EyeLike", w.expand(c.number(0, int64), (n, n)), k=k)
    return [w.op("Where", w.cast(eye, bool_), x, c.number(0))]


# ops that cannot be said in ONNX: why
ABSENT = {
    **dict.fromkeys(
        (
            "cholesky", "cholesky_ex", "complex_eig", "eigh", "eigvalsh", "geqrf",
            "householder_product", "inverse", "ldl_factor", "ldl_solve", "lstsq", "lu_factor",
            "lu_permutation", "qr", "real_eig", "solve", "solve_ex", "svd", "svdvals",
            "triangular_solve",
        ),
        "ONNX has no op that solves linear systems, inverts or factors matrices",
    ),
    "ctc_loss": "ONNX has no CTC loss",
    "frexp": "no node of ONNX sees the bits of numbers",
}  # fmt: skip

TRANSLATIONS: dict[str, Translation] = {
    # products
    "matmul": _matmul(None), "_matmul_nt": _matmul(1), "_matmul_tn": _matmul(0),
    "linear": _linear, "addmm": _addmm, "slogdet": _slogdet,
    # random numbers
    "rand": draws.uniform, "uniform_": draws.uniform, "randn": draws.normal,
    "normal_": draws.normal, "exponential_": draws.exponential, "randint": draws.integers,
    "random_": draws.integers, "randperm": draws.permutation, "bernoulli": draws.bernoulli,
    "bernoulli_": draws.bernoulli, "dropout": draws.dropout,
    # planes
    "conv": planes.conv, "conv_input": planes.transposed, "max_pool": planes.max_pool,
    "avg_pool": planes.avg_pool, "interpolate": planes.resize,
    "interpolate_nearest": planes.nearest, "unfold": planes.unfold, "fold": planes.fold,
    "roi_align": planes.roi_align,
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
    "cumprod": rows.prefixes("ReduceProd", 1),
    "cummax": rows.prefixes("ReduceMax", -math.inf),
    "cummin": rows.prefixes("ReduceMin", math.inf),
    "logcumsumexp": rows.prefixes("ReduceLogSumExp", -math.inf),
    "cumsum": rows.cumsum, "sort": rows.sort, "topk": rows.topk, "normalize": rows.normalize,
    "attention": sequences.attention, "recurrent": sequences.recurrent,
    # shapes
    "arrange": _cast, "cast": _cast, "copy": _copy, "copy_to": _cast, "fill": _fill, "empty": _fill,
    "arange": _arange, "linspace": _arange, "cat": _cat, "pad": _pad, "roll": _roll,
    "tril": _triangle(0), "triu": _triangle(1), "diag_embed": _diag_embed,
    # places
    "index_select": places.index_select, "gather": places.gather, "scatter_": places.scatter,
    "scatter_reduce_": places.scatter, "index_copy_": places.put, "index_reduce_": places.put,
    "join_positions": places.join_positions, "one_hot": places.one_hot, "isin": places.isin,
    "masked_scatter_": places.masked_scatter, "searchsorted": places.searchsorted,
    "embedding_bag": places.embedding_bag, "embedding_bag_max": places.embedding_bag_max,
}  # fmt: skip
