"""Rows of a table added up, averaged or compared bag by bag: `embedding_bag`.

A bag is a stretch of the indices, from one bound to the next; the bounds divide all of them, which
the kernels check.  The rows are folded as they are looked up, so no table of looked-up rows exists
forward; the gradient is made of flowvm ops and differentiates again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, DTypeError, ShapeError
from flowvm.launch import GRAIN, Launch, View
from flowvm.meta.arrays import Array
from flowvm.meta.dtype import int64
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.composite import filled_of, need_tensor, whole
from flowvm.ops.declare.letters import unsplit
from flowvm.ops.declare.registry import Sample, op, samples
from flowvm.ops.places.cpu.index_kernels import NONE
from flowvm.ops.places.embedding import check_sparse, renormalize, sparse_gradient
from flowvm.ops.places.gather import positions_of, spread, take_slices
from flowvm.ops.places.scatter import scatter_add
from flowvm.ops.shapes.join import cat
from flowvm.ops.shapes.ranges import arange

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node


# --- kernels ------------------------------------------------------------------------------------


class Bags(NamedTuple):
    """The table's rows, and the indices that take part in a bag."""

    rows: int  # of the table
    skip: int  # the index that takes no part, or NONE
    mean: int  # whether sums are divided by how many took part


def _outside(index: Array, bounds: Array, bag: int, bags: int, rows: int, details: Array) -> bool:
    """Return True if a bag's bounds or indices are out of range, and write the details."""
    begin, end = bounds[bag], bounds[bag + 1]
    low = 0 if bag == 0 else begin
    high = len(index) if bag == bags - 1 else end
    if begin != low or begin < 0 or begin > len(index):
        details[0], details[1], details[2] = begin, low + 1, -1
        return True
    if end != high or end < begin or end > len(index):
        details[0], details[1], details[2] = end, len(index) + 1, -1
        return True
    for e in range(begin, end):
        if index[e] < 0 or index[e] >= rows:
            details[0], details[1], details[2] = index[e], rows, 0
            return True
    return False


def _sum_body(
    out: Array, ids: Array, counts: Array, weight: Array, index: Array, bounds: Array,
    scales: Array, t: Bags, lo: int, hi: int, details: Array,
) -> int:  # fmt: skip
    n, rows, skip, mean = out.shape[1], t.rows, t.skip, t.mean
    for bag in range(lo, hi):
        if _outside(index, bounds, bag, len(out), rows, details):
            return 1  # Status.INDEX_OUT_OF_RANGE
        to, count = out[bag], 0
        for k in range(n):
            to[k] = 0
        for e in range(bounds[bag], bounds[bag + 1]):
            ids[e] = bag
            if index[e] == skip:
                continue
            row, scale = weight[index[e]], scales[e]
            for k in range(n):
                to[k] += scale * row[k]
            count += 1
        counts[bag] = max(count, 1)
        if mean != 0 and count > 1:
            for k in range(n):
                to[k] /= counts[bag]
    return 0


def _max_body(
    out: Array, where: Array, weight: Array, index: Array, bounds: Array, t: Bags, lo: int, hi: int,
    details: Array,
) -> int:  # fmt: skip
    n, rows, skip = out.shape[1], t.rows, t.skip
    for bag in range(lo, hi):
        if _outside(index, bounds, bag, len(out), rows, details):
            return 1  # Status.INDEX_OUT_OF_RANGE
        to, at = out[bag], where[bag]
        for k in range(n):
            to[k], at[k] = 0, -1
        for e in range(bounds[bag], bounds[bag + 1]):
            i = index[e]
            if i != skip:
                row = weight[i]
                for k in range(n):
                    if at[k] < 0 or row[k] > to[k] or (row[k] != row[k] and to[k] == to[k]):
                        to[k], at[k] = row[k], i
    return 0


# --- ops ----------------------------------------------------------------------------------------


def _sum_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
    weight, index, scales, ids, counts = c.saved
    skip, mean, scaled, sparse = c.attrs
    rows = take_slices(g / counts.unsqueeze(1) if mean else g, ids, 0, 0, 0, NONE, NONE)
    to_weight = to_scales = None
    if c.needs[0]:
        parts = rows * scales.unsqueeze(1)
        if sparse:
            to_weight = sparse_gradient(parts, index, weight.shape[0], skip, scaled)
        elif scaled:
            ones = filled_of(index._meta, 1, g._meta.dtype)
            often = spread(ones, index, (weight.shape[0],), 0, 0, 0)
            parts = parts / take_slices(often, index, 0, 0, 0, NONE, NONE).unsqueeze(1)
        if to_weight is None:
            to_weight = spread(parts, index, weight.shape, 0, 0, 0, skip)
    if c.needs[3]:
        to_scales = (rows * take_slices(weight, index, 0, 0, 0, NONE, skip)).sum(1)
        to_scales = to_scales * (index != skip)
    return to_weight, None, None, to_scales


def _max_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
    (where,) = c.saved
    zeros = filled_of(c.metas[0], 0, g._meta.dtype)
    return scatter_add(zeros, 0, where.clamp(0), g * (where >= 0)), None, None


def _grain(bags: int, work: int) -> int:
    return max(1, GRAIN * bags // max(1, work))


@op(
    "weight, index, bounds, scales -> out, ids, counts",
    name="embedding_bag",
    saves="weight, index, scales, ids, counts",
    constants="ids, counts",
    grad=_sum_grad,
    half="cuda",
    cuda="embedding_bag:fold",
    letters=unsplit,
)
def _sum(
    weight: TensorMeta, index: TensorMeta, bounds: TensorMeta, scales: TensorMeta, skip: int,
    mean: bool, scaled: bool, sparse: bool,
) -> Launch:  # fmt: skip
    rows, n = weight.shape
    bags = bounds.numel - 1
    outputs = (
        weight.with_shape((bags, n)), index.with_shape(index.shape), weight.with_shape((bags,))
    )  # fmt: skip
    return Launch(
        outputs, _sum_body, tuple(View.of(m) for m in (*outputs, weight, index, bounds, scales)),
        (Bags(rows, skip, int(mean)),), bags, _grain(bags, index.numel * n),
    )  # fmt: skip


@op(
    "weight, index, bounds -> out, where",
    name="embedding_bag_max",
    saves="where",
    constants="where",
    grad=_max_grad,
    half="cuda",
    cuda="embedding_bag:largest",
    letters=unsplit,
)
def _max(weight: TensorMeta, index: TensorMeta, bounds: TensorMeta, skip: int) -> Launch:
    rows, n = weight.shape
    bags = bounds.numel - 1
    out = weight.with_shape((bags, n))
    outputs = (out, out.with_shape((bags, n), int64))
    bag = Bags(rows, skip, 0)
    return Launch(outputs, _max_body, (), (bag,), bags, _grain(bags, index.numel * n))


def _bounds(index: Tensor, offsets: Tensor | None, include_last_offset: bool) -> Tensor:
    """Return the begin of each bag, and the end of the last."""
    shape = index._meta.shape
    if len(shape) == 2:
        if offsets is not None:
            raise ArgumentError("embedding_bag: offsets are for a 1-d input; a row is a bag of 2-d")
        bounds: Tensor = arange(shape[0] + 1, device=index.device) * shape[1]
        return bounds
    if len(shape) != 1:
        raise ShapeError(f"embedding_bag: input has 1 or 2 dimensions, got shape {tuple(shape)}")
    if offsets is None:
        raise ArgumentError("embedding_bag: a 1-d input needs offsets, where the bags begin")
    begins = positions_of("embedding_bag", "offsets", offsets)
    if begins._meta.ndim != 1 or (include_last_offset and begins._meta.numel == 0):
        raise ShapeError(
            f"embedding_bag: offsets have 1 dimension, got shape {tuple(begins.shape)}"
        )
    if index._meta.numel and begins._meta.numel == int(include_last_offset):
        raise ShapeError("embedding_bag: offsets name no bag, but the input has indices")
    if include_last_offset:
        return begins
    end: Tensor = filled_of(begins._meta.with_shape((1,)), shape[0])
    return cat((begins, end))


# public: F
def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """The "sum", "mean" or "max" of the rows of `weight` (2-d) that the integers of a bag name.

    offsets              where each bag begins in a 1-d input; without them each row of a 2-d input
                         is a bag
    per_sample_weights   a factor for each index, for mode "sum"
    include_last_offset  the last offset is the end of the last bag
    padding_idx          this row takes no part and gets no gradient
    sparse               the gradient of `weight` is a sparse tensor; not for mode "max"

    An empty bag is zeros.  The other arguments are those of `embedding`.  OutOfRangeError when the
    result is read, for an index or offset outside.

    >>> rows = flow.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> F.embedding_bag(flow.tensor([[0, 1], [1, 1]]), rows)  # the mean of each bag
    tensor([[2., 3.],
            [3., 4.]])
    """
    index = positions_of("embedding_bag", "input", input)
    meta = need_tensor("embedding_bag", "weight", weight)._meta
    if meta.ndim != 2:
        raise ShapeError(f"embedding_bag: weight must be 2-d, got shape {tuple(meta.shape)}")
    if not meta.dtype.is_floating_point:
        raise DTypeError(f"embedding_bag: weight must be of floats, got {meta.dtype.name}")
    if mode not in ("sum", "mean", "max"):
        raise ArgumentError(f'embedding_bag: mode is "sum", "mean" or "max", got {mode!r}')
    bounds = _bounds(index, offsets, include_last_offset)
    skip, rows = NONE, meta.shape[0]
    if padding_idx is not None:
        padding_idx = whole("embedding_bag", "padding_idx", padding_idx)
        if not -rows <= padding_idx < rows:
            raise ArgumentError(
                f"embedding_bag: padding_idx {padding_idx} is outside the {rows} rows of weight"
            )
        skip = padding_idx % rows
    if per_sample_weights is not None:
        own = need_tensor("embedding_bag", "per_sample_weights", per_sample_weights)._meta
        if mode != "sum":
            raise ArgumentError(f'embedding_bag: per_sample_weights are for "sum", not {mode!r}')
        if own.shape != input._meta.shape or own.dtype is not meta.dtype:
            raise ShapeError(
                f"embedding_bag: per_sample_weights need shape {tuple(input.shape)} and dtype "
                f"{meta.dtype.name}, got {tuple(own.shape)} and {own.dtype.name}"
            )
    if scale_grad_by_freq and mode == "max":
        raise ArgumentError('embedding_bag: scale_grad_by_freq is not for mode "max"')
    if sparse and mode == "max":
        raise ArgumentError("embedding_bag: max mode does not support sparse weights")
    if sparse:
        check_sparse("embedding_bag", meta)
    index = index.reshape(-1)
    if max_norm is not None:
        renormalize(weight, index, max_norm, norm_type)
    if mode == "max":
        return _max(weight, index, bounds, skip)[0]  # type: ignore[no-any-return]
    if per_sample_weights is None:
        scales = filled_of(index._meta, 1, meta.dtype)
    else:
        scales = per_sample_weights.reshape(-1)
    out: Tensor = _sum(
        weight, index, bounds, scales, skip, mode == "mean", scale_grad_by_freq, bool(sparse)
    )[0]  # fmt: skip
    return out


# --- samples ------------------------------------------------------------------------------------


def _reference(
    index: Array, weight: Array, offsets: Any = None, *, mode: str = "mean",
    per_sample_weights: Any = None, include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:  # fmt: skip
    if index.ndim == 2:
        offsets, include_last_offset = np.arange(len(index) + 1) * index.shape[1], True
    ends = offsets if include_last_offset else np.append(offsets, index.size)
    index = index.reshape(-1)
    scales = np.ones(index.size) if per_sample_weights is None else per_sample_weights.reshape(-1)
    folds: dict[str, Any] = {"sum": np.sum, "mean": np.mean, "max": np.max}
    out = np.zeros((len(ends) - 1, weight.shape[1]), weight.dtype)
    for bag in range(len(out)):
        at = np.arange(ends[bag], ends[bag + 1])
        at = at[index[at] != padding_idx] if padding_idx is not None else at
        if at.size:
            out[bag] = folds[mode](weight[index[at]] * scales[at, None], axis=0)
    return out


def _table(rng: np.random.Generator) -> Array:
    return rng.permutation(15).reshape(5, 3) * 0.37


samples(
    embedding_bag,
    lambda rng: [
        Sample((rng.integers(0, 5, (2, 3)), _table(rng))),
        Sample((rng.integers(0, 5, 6), _table(rng), np.array([0, 2, 2]))),
        Sample((rng.integers(0, 5, 6), _table(rng), np.array([0, 4])), {"mode": "max"}),
        Sample(
            (rng.integers(0, 5, 6), _table(rng), np.array([0, 4, 6])),
            {"mode": "max", "include_last_offset": True, "padding_idx": 2},
        ),
        Sample(
            (rng.integers(0, 5, (2, 3)), _table(rng)),
            {"mode": "sum", "per_sample_weights": rng.standard_normal((2, 3)), "padding_idx": 1},
        ),
        Sample((rng.integers(0, 5, (3, 4)), _table(rng)), {"padding_idx": 1}),
        Sample((np.zeros((0, 2), np.int64), _table(rng))),
        Sample((np.zeros(0, np.int64), _table(rng), np.array([0, 0])), {"mode": "sum"}),
    ],
    _reference,
    errors=(
        (lambda flow: embedding_bag(flow.tensor([[5]]), flow.ones(2, 2)).numpy(), IndexError),
        (
            lambda flow: embedding_bag(
                flow.tensor([1, 0]), flow.ones(2, 2), flow.tensor([1])
            ).numpy(),
            IndexError,
        ),
        (
            lambda flow: embedding_bag(
                flow.tensor([1, 0]), flow.ones(2, 2), flow.tensor([0, 3])
            ).numpy(),
            IndexError,
        ),
        (lambda flow: embedding_bag(flow.tensor([0]), flow.ones(2, 2)), ValueError),
        (lambda flow: embedding_bag(flow.tensor([[0]]), flow.ones(2)), RuntimeError),
        (
            lambda flow: embedding_bag(
                flow.tensor([0]), flow.ones(2, 2), flow.tensor([0]), include_last_offset=True
            ),
            RuntimeError,
        ),
        (
            lambda flow: embedding_bag(
                flow.tensor([[0]]), flow.ones(2, 2), per_sample_weights=flow.ones(1, 1)
            ),
            ValueError,
        ),
    ),
)
