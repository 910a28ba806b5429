"""Positions and counts: results whose size depends on the data.

Each is a mut2 op: its kernel is called once to count and once to write.  The tensors can be passed
on at once; asking for a shape waits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flowvm.eager.tensor import Tensor, method
from flowvm.eager.values import adopt_array
from flowvm.errors import ArgumentError, DTypeError, InvalidValueError, ShapeError, declare_status
from flowvm.launch import Launch, View, bits
from flowvm.meta.arrays import Array
from flowvm.meta.dtype import bool_, float32, float64, int64
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.composite import need_tensor, whole
from flowvm.ops.declare.kinds import Count
from flowvm.ops.declare.letters import unsplit
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.registry import Sample, op, samples
from flowvm.ops.shapes.views import unsqueeze

NEGATIVE = declare_status(
    65, InvalidValueError, "element {0} is {1}; counts and repeats cannot be negative"
)


# --- nonzero ------------------------------------------------------------------------------------


def _positions_body(out: Array, mask: Array, lo: int, hi: int, details: Array) -> None:
    count = 0
    if lo < 0:
        for i in range(len(mask)):
            count += mask[i] != 0
    else:
        for i in range(len(mask)):
            if mask[i] != 0:
                out[count] = i
                count += 1
    details[0] = count


@op("mask -> out?", name="true_positions", cuda="compaction:true_positions", letters=unsplit)
def _true_positions(mask: TensorMeta) -> Launch:
    n = mask.numel
    out = TensorMeta.of((n,), int64, mask.device)
    return Launch((out,), _positions_body, (View(int64, (n,)), bits(mask, (n,))))


def true_positions(mask: Tensor) -> Tensor:
    """Return the positions at which the flattened bool tensor `mask` is true: int64, 1-d."""
    out: Tensor = _true_positions(mask)
    return out


def _nonzero_body(out: Array, mask: Array, sizes: Array, lo: int, hi: int, details: Array) -> None:
    count = 0
    for i in range(len(mask)):
        if mask[i] != 0:
            if lo >= 0:
                rest = i
                for d in range(len(sizes) - 1, -1, -1):
                    out[count, d] = rest % sizes[d]
                    rest //= sizes[d]
            count += 1
    details[0] = count


@op("mask, sizes -> out?", name="nonzero", cuda="compaction:nonzero", letters=unsplit)
def _nonzero(mask: TensorMeta, sizes: TensorMeta) -> Launch:
    n, ndim = mask.numel, sizes.numel
    out = TensorMeta.of((n, ndim), int64, mask.device)
    views = (View(int64, (n, ndim)), bits(mask, (n,)), View(int64, (ndim,)))
    return Launch((out,), _nonzero_body, views)


def _indices(x: Tensor) -> Tensor:
    mask = x if x._meta.dtype is bool_ else x.detach().to(bool_)
    sizes = adopt_array(np.array(x._meta.shape, np.int64)).to(device=x._meta.device)
    out: Tensor = _nonzero(mask, sizes)
    return out


# public: flow
@method()
@with_out
def nonzero(input: Tensor, as_tuple: bool = False) -> Any:
    """The indices of the elements that are not zero: int64 of shape (count, ndim), in C order.

    as_tuple   a tuple of one 1-d tensor for each dimension instead, as indexing takes it

    >>> flow.nonzero(flow.tensor([[0, 1], [2, 0]]))
    tensor([[0, 1],
            [1, 0]])
    """
    x = need_tensor("nonzero", "input", input)
    return where_nonzero(x) if as_tuple else _indices(x)


# public: flow
@method()
def argwhere(input: Tensor) -> Tensor:
    """`nonzero(input)`.

    >>> flow.argwhere(flow.tensor([[0, 1], [2, 0]]))
    tensor([[0, 1],
            [1, 0]])
    """
    return _indices(need_tensor("argwhere", "input", input))


def where_nonzero(condition: Tensor) -> tuple[Tensor, ...]:
    """Return `nonzero(condition, as_tuple=True)`, for `where` with one argument."""
    x = need_tensor("where", "condition", condition)
    if x._meta.ndim == 0:
        x = unsqueeze(x, 0)
    if x._meta.ndim == 1:
        return (true_positions(x if x._meta.dtype is bool_ else x.detach().to(bool_)),)
    return tuple(column.contiguous() for column in _indices(x).unbind(1))


MOST = 1 << 60  # rows that no memory holds: what values say more is no more than that

# --- counting -----------------------------------------------------------------------------------


def _bincount_body(
    out: Array,
    x: Array,
    weights: Array,
    weighted: bool,
    least: int,
    lo: int,
    hi: int,
    details: Array,
) -> int:
    size = least
    for i in range(len(x)):
        if x[i] < 0:
            details[0], details[1] = i, x[i]
            return 65  # NEGATIVE
        size = max(size, min(x[i], MOST - 1) + 1)
    if lo >= 0:
        for k in range(size):
            out[k] = 0
        for i in range(len(x)):
            out[x[i]] += weights[i] if weighted else 1
    details[0] = size
    return 0


@op("x, weights -> out?", name="bincount", cuda="counts:bincount", letters=unsplit)
def _bincount(x: TensorMeta, weights: TensorMeta, weighted: bool, least: Count) -> Launch:
    kind = weights.dtype if weighted else int64
    out = TensorMeta.of((1,), kind, x.device)
    n = x.numel
    views = (View(kind, (1,)), View(int64, (n,)), View(weights.dtype, (n,)))
    return Launch((out,), _bincount_body, views, (weighted, least))


# public: flow
@method()
def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """Count each of 0, 1, 2, ... in a 1-d tensor of integers, or sum the `weights` of each.

    int64, or the weights' dtype (float64 unless they are float32).  The result has at least
    `minlength` elements. InvalidValueError, when it is read, for a negative element.

    >>> flow.bincount(flow.tensor([0, 2, 2, 1, 2]))
    tensor([1, 1, 3])
    >>> flow.bincount(flow.tensor([0, 2]), weights=flow.tensor([0.5, 1.5]))
    tensor([0.5000, 0.0000, 1.5000])
    """
    meta = need_tensor("bincount", "input", input)._meta
    if meta.dtype.category != 1:
        raise DTypeError(f"bincount: input must hold integers, got {meta.dtype.name}")
    if meta.ndim != 1:
        raise ShapeError(f"bincount: input must be 1-d, got shape {tuple(meta.shape)}")
    minlength = whole("bincount", "minlength", minlength)
    if minlength < 0:
        raise ArgumentError(f"bincount: minlength cannot be negative, got {minlength}")
    x = input.to(int64)
    if weights is None:
        out: Tensor = _bincount(x, x, False, minlength)
        return out
    if need_tensor("bincount", "weights", weights)._meta.shape != meta.shape:
        raise ShapeError(
            f"bincount: weights of shape {tuple(weights.shape)} for input of shape "
            f"{tuple(meta.shape)}"
        )
    plain = weights.detach()
    plain = plain if plain._meta.dtype is float32 else plain.to(float64)
    sums: Tensor = _bincount(x, plain, True, minlength)
    return sums


def _repeats_body(out: Array, repeats: Array, lo: int, hi: int, details: Array) -> int:
    total = 0
    for i in range(len(repeats)):
        if repeats[i] < 0:
            details[0], details[1] = i, repeats[i]
            return 65  # NEGATIVE
        if lo >= 0:
            for k in range(total, total + repeats[i]):
                out[k] = i
        total = min(total + min(repeats[i], MOST), MOST)
    details[0] = total
    return 0


@op("repeats -> out?", name="repeated_positions", cuda="counts:repeated_positions", letters=unsplit)
def _repeated_positions(repeats: TensorMeta) -> Launch:
    n = repeats.numel
    out = TensorMeta.of((1,), int64, repeats.device)
    return Launch((out,), _repeats_body, (View(int64, (1,)), View(int64, (n,))))


def repeated_positions(repeats: Tensor) -> Tensor:
    """Each position i of a 1-d integer tensor `repeats[i]` times."""
    out: Tensor = _repeated_positions(repeats.to(int64))
    return out


# --- samples ------------------------------------------------------------------------------------


def _sparse(rng: np.random.Generator) -> list[Sample]:
    arrays = [rng.standard_normal((2, 3, 2)), rng.standard_normal(4), rng.standard_normal((0, 2))]
    cases = [Sample((np.where(a > 0, a, 0.0),)) for a in arrays]
    return [*cases, Sample((np.array(3.0),)), Sample((np.arange(4).reshape(2, 2),))]


samples(
    nonzero, _sparse, lambda x: np.stack(np.nonzero(np.atleast_1d(x)), 1)[:, : x.ndim], grad=False
)
samples(argwhere, _sparse, np.argwhere, grad=False)
samples(
    nonzero,
    lambda rng: [
        Sample((np.array([[0, 2], [1, 0]]),), {"as_tuple": True}),
        Sample((np.array(1.0),), {"as_tuple": True}),
    ],
    lambda x, as_tuple: np.nonzero(np.atleast_1d(x)),
    name="nonzero",
    grad=False,
)


samples(
    bincount,
    lambda rng: [
        Sample((np.array([1, 3, 1, 0]),)),
        Sample((np.array([1, 3, 1, 0]), rng.standard_normal(4), 6)),
        Sample((np.zeros(0, np.int64),), {"minlength": 2}),
        Sample((np.array([2], np.uint8),)),
    ],
    np.bincount,
    grad=False,
    floats=("float64", "float32"),
    errors=(
        (lambda flow: flow.bincount(flow.tensor([-1])).numpy(), ValueError),
        (lambda flow: flow.bincount(flow.ones(2)), RuntimeError),
        (lambda flow: flow.bincount(flow.tensor([[1]])), RuntimeError),
        (lambda flow: flow.bincount(flow.tensor([1]), minlength=-1), ValueError),
    ),
)
