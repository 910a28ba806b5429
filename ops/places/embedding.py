"""Rows of a table by their number: `embedding`, and `one_hot`, the table of unit vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

from flowvm.eager.keywords import spelled
from flowvm.eager.modes import current_recorder, recording
from flowvm.eager.native.trace_cache import steady
from flowvm.eager.tensor import Tensor, alias
from flowvm.errors import (
    ArgumentError,
    AutogradError,
    CaptureError,
    DTypeError,
    ModeError,
    ShapeError,
)
from flowvm.launch import GRAIN, Launch, View
from flowvm.meta.arrays import Array
from flowvm.meta.dtype import bool_, int64
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.composite import Recorded, filled_of, need_tensor, record, whole
from flowvm.ops.declare.halves import wide
from flowvm.ops.declare.kinds import Count
from flowvm.ops.declare.registry import Sample, op, samples
from flowvm.ops.places.cpu.index_kernels import NONE
from flowvm.ops.places.gather import positions_of, spread, take_slices
from flowvm.ops.places.parts.place_letters import one_hot as one_hot_letters
from flowvm.ops.places.scatter import index_copy_
from flowvm.ops.places.unique import unique
from flowvm.ops.pointwise.compare import where
from flowvm.ops.shapes.views import unsqueeze

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node


def _one_hot_body(out: Array, index: Array, lo: int, hi: int, details: Array) -> int:
    n = out.shape[1]
    for i in range(lo, hi):
        j = index[i]
        if j < 0 or j >= n:
            details[0], details[1], details[2] = j, n, -1
            return 1  # Status.INDEX_OUT_OF_RANGE
        for k in range(n):
            out[i, k] = 0
        out[i, j] = 1
    return 0


@op(
    "index -> out",
    name="one_hot",
    cuda="flowvm.ops.shapes.cuda.matrices:one_hot",
    letters=one_hot_letters,
)
def _one_hot(index: TensorMeta, classes: Count) -> Launch:
    m = index.numel
    out = index.with_shape((*index.shape, classes))
    views = (View(int64, (m, classes)), View(int64, (m,)))
    return Launch((out,), _one_hot_body, views, (), m, max(1, GRAIN // max(classes, 1)))


# public: flow, F
@spelled(input="tensor")
def one_hot(
    tensor: Tensor, num_classes: int = -1, on_value: float = 1, off_value: float = 0
) -> Tensor:
    """A new last dimension of size `num_classes` with 1 at the index and 0 elsewhere; int64.

    -1 takes the largest index plus one, which waits for the tensor.  OneFlow's `on_value` and
    `off_value` stand for 1 and 0: floats make a tensor of the default dtype.

    >>> F.one_hot(flow.tensor([0, 2]), 3)
    tensor([[1, 0, 0],
            [0, 0, 1]])
    """
    meta = need_tensor("one_hot", "tensor", tensor)._meta
    if meta.dtype is not int64:
        raise DTypeError(f"one_hot: tensor must hold int64 indices, got {meta.dtype.name}")
    num_classes = whole("one_hot", "num_classes", num_classes)
    if num_classes == -1:
        if meta.numel == 0:
            raise ArgumentError(
                "one_hot: num_classes cannot be worked out from a tensor without elements"
            )
        num_classes = int(np.max(tensor.numpy())) + 1
        if num_classes < 1:
            raise ArgumentError("one_hot: class indices cannot be negative")
    if num_classes < 1:
        raise ArgumentError(f"one_hot: num_classes must be positive, got {num_classes}")
    out: Tensor = _one_hot(tensor, int(num_classes))
    if (on_value, off_value) == (1, 0) and isinstance(on_value, int) and isinstance(off_value, int):
        return out
    chosen: Tensor = where(out.to(bool_), on_value, off_value)
    return chosen


def _scaled_grad(c: Node, g: Tensor) -> tuple[Tensor]:
    (index,) = c.saved
    (rows,) = c.attrs
    ones = filled_of(index._meta, 1, g._meta.dtype)
    often = spread(ones, index, (rows,), 0, 0, 0)
    return (g / unsqueeze(take_slices(often, index, 0, 0, 0, NONE, NONE), -1),)


_scaled_op = Recorded("embedding_scale", _scaled_grad, ("x",))

# what makes the sparse gradient of a table with so many rows, of the gradient of each row that was
# looked up, the indices, and the index that has none; `flowvm.loading.providers` enters it
sparse_gradients: Final[list[Callable[[Tensor, Tensor, int, int], Tensor]]] = []


def sparse_gradient(g: Tensor, index: Tensor, rows: int, skip: int, scaled: bool) -> Tensor:
    """Return the sparse gradient of a table with so many `rows`: `g` has one for each index."""
    if scaled:
        raise AutogradError(
            "embedding: scale_grad_by_freq=True has no sparse gradient; give one of both as False"
        )
    if current_recorder() is not None:
        raise CaptureError(
            "embedding: a graph has no sparse gradients, as how many rows they have is known with "
            "the values alone; give sparse=False, or go back outside of the graph"
        )
    (make,) = sparse_gradients
    return make(g, index, rows, skip)


def _sparse_grad(c: Node, g: Tensor) -> tuple[Tensor]:
    (index,) = c.saved
    rows, skip, scaled = c.attrs
    return (sparse_gradient(g, index, rows, skip, scaled),)


_sparse_op = Recorded("embedding_sparse", _sparse_grad, ("weight",))


def check_sparse(name: str, weight: TensorMeta) -> None:
    """Raise unless a table's gradient may be sparse."""
    if weight.parted:
        raise ModeError(f"{name}: the gradient of a global tensor is not sparse; give sparse=False")


# public: F
@steady
def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """The rows of `weight` (2-d) that the integers in `input` name: shape (*input.shape,
    weight.shape[1]).

    padding_idx          this row gets no gradient
    max_norm             rows that are looked up and have a larger `norm_type` norm are scaled down
                         to it, in place
    scale_grad_by_freq   divide a row's gradient by how often it was looked up
    sparse               the gradient of `weight` is a sparse tensor: the rows looked up, in order

    OutOfRangeError when the result is read, for an index outside.

    >>> F.embedding(flow.tensor([1, 0, 1]), flow.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[3., 4.],
            [1., 2.],
            [3., 4.]])
    """
    index = positions_of("embedding", "input", input)
    meta = need_tensor("embedding", "weight", weight)._meta
    if meta.ndim != 2:
        raise ShapeError(f"embedding: weight must be 2-d, got shape {tuple(meta.shape)}")
    rows = meta.shape[0]
    skip = NONE
    if padding_idx is not None:
        if not -rows <= padding_idx < rows:
            raise ArgumentError(
                f"embedding: padding_idx {padding_idx} is outside the {rows} rows of weight"
            )
        skip = padding_idx % rows
    if max_norm is not None:
        renormalize(weight, index, max_norm, norm_type)
    if sparse and weight._node is not None:
        check_sparse("embedding", meta)
        rows_of: Tensor = take_slices(weight.detach(), index, 0, 0, 0, NONE, skip)
        attrs = (rows, skip, bool(scale_grad_by_freq))
        return record(_sparse_op, (weight,), alias(rows_of, rows_of._meta), attrs, (index,))
    out: Tensor = take_slices(weight, index, 0, 0, 0, NONE, skip)
    if scale_grad_by_freq:
        return record(_scaled_op, (out,), alias(out, out._meta), (rows,), (index,))
    return out


def renormalize(weight: Tensor, index: Tensor, most: float, order: float) -> None:
    """Scale rows of `weight` that `index` names down to the norm `most`, in place."""
    with recording(False):
        used = unique(index)
        picked = take_slices(weight.detach(), used, 0, 0, 0, NONE, NONE)
        dtype, picked = weight._meta.dtype, wide(picked)
        norms = picked.norm(order, -1, True)
        scale = (most / (norms + 1e-7)).masked_fill(norms <= most, 1.0)
        index_copy_(weight, 0, used, (picked * scale).to(dtype))


# --- samples ------------------------------------------------------------------------------------

samples(
    one_hot,
    lambda rng: [
        Sample((rng.integers(0, 4, (2, 3)), 4)),
        Sample((np.array([0, 2]),)),
        Sample((np.array(1), 3)),
    ],
    lambda x, n=-1: np.eye(n if n > 0 else x.max() + 1, dtype=np.int64)[x],
    grad=False,
    errors=(
        (lambda flow: flow.one_hot(flow.tensor([3]), 2).numpy(), IndexError),
        (lambda flow: flow.one_hot(flow.ones(2)), RuntimeError),
        (lambda flow: flow.one_hot(flow.tensor([0]), 0), ValueError),
    ),
)
samples(
    embedding,
    lambda rng: [
        Sample((rng.integers(0, 4, (2, 3)), rng.standard_normal((4, 2)))),
        Sample((np.array(1), rng.standard_normal((2, 3)))),
        Sample((np.zeros((0,), np.int64), rng.standard_normal((2, 3)))),
    ],
    lambda index, weight: weight[index],
    errors=(
        (lambda flow: embedding(flow.tensor([2]), flow.ones(2, 2)).numpy(), IndexError),
        (lambda flow: embedding(flow.tensor([-1]), flow.ones(2, 2)).numpy(), IndexError),
        (lambda flow: embedding(flow.ones(2), flow.ones(2, 2)), RuntimeError),
        (lambda flow: embedding(flow.tensor([0]), flow.ones(2)), RuntimeError),
        (lambda flow: embedding(flow.tensor([0]), flow.ones(2, 2), 5), ValueError),
    ),
)
