"""TRANSLATION, the fact of a declaration that translates an op to ONNX, and ABSENT, the reason why
there is no translation.

Elementwise ops have none: all of them go by their expression (`flowvm.onnx.expressions`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from flowvm.eager.tensor import Tensor
from flowvm.meta.dtype import bool_, int64
from flowvm.onnx import draws, places, planes, rows, sequences
from flowvm.onnx.call import Call
from flowvm.onnx.rows import Values
from flowvm.ops.declare import composite, core, transfers
from flowvm.ops.declare.facts import Fact
from flowvm.ops.linalg import systems
from flowvm.ops.linalg.parts import factors, spectra
from flowvm.ops.places import embedding, embedding_bag, gather, indexing, masks, search, sort
from flowvm.ops.places.cpu import order
from flowvm.ops.planes import patches, regions, resize
from flowvm.ops.planes.parts import conv_ops, pool_ops
from flowvm.ops.pointwise import numeric
from flowvm.ops.products import matmul, products
from flowvm.ops.random.parts import philox, shuffle
from flowvm.ops.rows import ctc_loss, extremes, moments, reduce, scan, softmax
from flowvm.ops.rows.parts import class_loss_ops, folds, norm_ops
from flowvm.ops.sequences.parts import attention_ops, scans
from flowvm.ops.shapes import join, matrices, padding, ranges
from flowvm.ops.sparse import products as by_rows

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
    result = c.node.operator.call(
        *c.node.attrs, *[c.attrs[n] for n in c.node.operator.signature.scalars]
    )
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


TRANSLATION: Fact[Translation] = Fact()
for _translation, *_declarations in (
    # products
    (_matmul(None), matmul._matmul), (_matmul(1), matmul._matmul_nt),
    (_matmul(0), matmul._matmul_tn), (_linear, matmul._affine), (_addmm, products._added_product),
    (_slogdet, systems._slogdet),
    # random numbers
    (draws.uniform, philox.uniform_words, philox.uniform_into),
    (draws.normal, philox.normal_words, philox.normal_into),
    (draws.exponential, philox.exponential_into),
    (draws.integers, philox.integer_words, philox.integers_into),
    (draws.permutation, shuffle._permutation),
    (draws.bernoulli, philox.chosen_words, philox.bernoulli_words, philox.bernoulli_into),
    (draws.dropout, philox.dropout_words),
    # planes
    (planes.conv, conv_ops._conv, conv_ops._conv_bias),
    (planes.transposed, conv_ops._conv_input, conv_ops._conv_input_bias),
    (planes.max_pool, pool_ops._max), (planes.avg_pool, pool_ops._average),
    (planes.resize, resize._resize), (planes.nearest, resize._nearest),
    (planes.unfold, patches._unfold), (planes.fold, patches._fold),
    (planes.roi_align, regions._align),
    # rows
    (rows.summed("ReduceSum"), reduce._sum_whole, folds.add_up.call),
    (rows.summed("ReduceProd"), folds.multiply_up.call),
    (rows.summed("ReduceSumSquare"), folds.square_up.call),
    (rows.summed("ReduceL1"), folds.magnitude_up.call),
    (rows.extreme("ReduceMax"), folds.largest.call),
    (rows.extreme("ReduceMin"), folds.smallest.call),
    (rows.truths("ReduceMax"), folds.some.call), (rows.truths("ReduceMin"), folds.every.call),
    (rows.truths("ReduceSum"), folds.count_up.call),
    (rows.extreme_at("Max"), extremes._largest), (rows.extreme_at("Min"), extremes._smallest),
    (rows.moments, moments._moments_of),
    (rows.class_loss("SoftmaxCrossEntropyLoss"),
     class_loss_ops._entropy, class_loss_ops._weighted_entropy),
    (rows.class_loss("NegativeLogLikelihoodLoss"),
     class_loss_ops._nll, class_loss_ops._weighted_nll),
    (rows.softmax("Softmax"), softmax._softmax), (rows.softmax("LogSoftmax"), softmax._log_softmax),
    (rows.prefixes("ReduceProd", 1), scan._cumprod),
    (rows.prefixes("ReduceMax", -math.inf), scan._cummax),
    (rows.prefixes("ReduceMin", math.inf), scan._cummin),
    (rows.prefixes("ReduceLogSumExp", -math.inf), scan._logcumsumexp),
    (rows.cumsum, scan._cumsum), (rows.sort, order.ordered_rows), (rows.topk, sort._topk_rows),
    (rows.normalize,
     norm_ops._plain, norm_ops._weighted, norm_ops._affine, norm_ops._fixed),
    (sequences.attention, attention_ops._plain, attention_ops._masked),
    (sequences.recurrent, scans.scan),
    # shapes
    (_cast, *core.CASTS, core._arrange, core._arrange_away, transfers._move),
    (_copy, core._copy), (_fill, composite._fill, composite._empty),
    (_arange, ranges._count, ranges._ramp), (_cat, join._cat_of),
    (_pad, padding._constant, padding._border), (_roll, padding._roll),
    (_triangle(0), matrices._tril), (_triangle(1), matrices._triu), (_diag_embed, matrices._embed),
    # places
    (places.index_select, gather.take_slices), (places.gather, gather.gather_elements),
    (places.scatter, gather.scatter_elements, gather.combine_elements),
    (places.put, gather.put_slices, gather.combine_slices),
    (places.join_positions, indexing._join_positions), (places.one_hot, embedding._one_hot),
    (places.isin, search._isin), (places.masked_scatter, masks._place),
    (places.searchsorted, search._search), (places.embedding_bag, embedding_bag._sum),
    (places.embedding_bag_max, embedding_bag._max),
):  # fmt: skip
    TRANSLATION.say(_translation, *_declarations)

ABSENT: Fact[str] = Fact()  # why an op cannot be said in ONNX
ABSENT.say(
    "ONNX has no op that solves linear systems, inverts or factors matrices",
    factors.cholesky_info, factors.geqrf_op, factors.orgqr_op, factors.ldl_op,
    factors.ldl_solve_op, factors.lu_op, factors.permutation_of, factors.qr_op,
    factors.right_solve, factors.right_triangular, spectra.complex_eig, spectra.eigh_op,
    spectra.eigvalsh_op, spectra.lstsq_op, spectra.real_eig, spectra.svd_op, spectra.svdvals_op,
    systems._cholesky, systems._inverse, systems._solve,
)  # fmt: skip
ABSENT.say(
    "ONNX has no op on sparse matrices by rows",
    by_rows.grouped, by_rows.row_numbers, by_rows.row_product, by_rows.row_product_kept,
    by_rows.row_samples,
)  # fmt: skip
ABSENT.say("ONNX has no CTC loss", ctc_loss._ctc)
ABSENT.say("no node of ONNX sees the bits of numbers", numeric._frexp)
