"""Sparse gradients: made of rows that were looked up, and what steps of optimizers do with them.

A gradient has coordinates of the rows that it is not zero for.  A step reads and writes these rows
of the parameter and of its state, and no others.
"""

from __future__ import annotations

import math
from typing import Any

from flowvm.eager.tensor import Tensor
from flowvm.meta.formats import sparse_coo
from flowvm.ops.places.cpu.index_kernels import NONE
from flowvm.ops.places.gather import index_select
from flowvm.ops.places.scatter import index_add_, index_copy_
from flowvm.ops.shapes.views import reshape
from flowvm.ops.sparse.conversion import coalesced, to_coo
from flowvm.ops.sparse.pattern import Pattern
from flowvm.ops.sparse.tensor import SparseTensor, sparse


def of_rows(g: Tensor, index: Tensor, rows: int, skip: int) -> SparseTensor:
    """Return the gradient of a table with so many `rows`, of `g` (*index.shape, n): a value for
    each index but `skip`, in the order in which they were looked up.

    Waits for the indices where one may be left out.
    """
    n = g._meta.shape[-1]
    places = reshape(index, (-1,))
    values = reshape(g, (index._meta.numel, n))
    if skip != NONE:
        real_rows = (places != skip).nonzero().squeeze(1)
        places, values = index_select(places, 0, real_rows), index_select(values, 0, real_rows)
    return sparse(Pattern(sparse_coo, (places.unsqueeze(0),), (rows, n), False), values)


class Rows:
    """The rows of dense tensors that a coalesced sparse one has values for."""

    def __init__(self, grad: SparseTensor) -> None:
        whole = coalesced(to_coo(grad))
        p = whole._pattern
        self.values = whole._data.detach()
        self._index = p.linear()
        self._shape = (math.prod(p.sparse_shape), *p.dense_shape)

    def of(self, x: Tensor) -> Any:
        """Return these rows of a dense tensor."""
        return index_select(reshape(x.detach(), self._shape), 0, self._index)

    def set(self, x: Tensor, values: Tensor) -> None:
        """Set these rows of a dense tensor."""
        if x._meta.contiguous:
            index_copy_(reshape(x.detach(), self._shape), 0, self._index, values)
        else:
            x.copy_(reshape(self._copied(x, values), tuple(x.shape)))

    def _copied(self, x: Tensor, values: Tensor) -> Tensor:
        whole = reshape(x.detach(), self._shape)
        return whole.index_copy(0, self._index, values)


def add_to(dense: Tensor, x: SparseTensor, alpha: float = 1.0) -> None:
    """Add `alpha * x` to a contiguous dense tensor in place: the rows with values alone change."""
    p = x._pattern
    values = x._data.to(dense.dtype)
    if p.block is not None:
        values = reshape(values, (-1, *p.dense_shape))
    lines = reshape(dense, (math.prod(p.sparse_shape), *p.dense_shape))
    index_add_(lines, 0, p.linear(), values, alpha=alpha)


# --- steps ----------------------------------------------------------------------------------------


def momentum_of(
    buffer: SparseTensor | None, grad: SparseTensor, momentum: float, dampening: float
) -> Any:
    """Return the next momentum buffer, a sparse tensor; the first one is the gradient itself."""
    if buffer is None:
        return sparse(grad._pattern, grad._data.detach().clone())
    held: Any = buffer
    total = held * momentum + grad.detach() * (1 - dampening)
    p = total._pattern
    return coalesced(total) if p.entries > math.prod(p.sparse_shape) else total


def adagrad_step(param: Tensor, grad: Any, total: Tensor, rate: float, eps: float) -> None:
    """`Adagrad`'s step by a sparse gradient: `rate` is the learning rate as it has decayed."""
    rows = Rows(grad)
    g = rows.values
    squares = rows.of(total) + g * (g.conj() if g.is_complex() else g)
    rows.set(total, squares)
    rows.set(param, rows.of(param) - rate * (g / (squares.sqrt() + eps)))


def adam_step(
    param: Tensor, grad: Any, mean: Tensor, square: Tensor,
    lr: float, beta1: float, beta2: float, eps: float, step: int,
) -> None:  # fmt: skip
    """`SparseAdam`'s step: running means move in the rows of the gradient alone."""
    rows = Rows(grad)
    g = rows.values
    means, squares = rows.of(mean), rows.of(square)
    means = means + (g - means) * (1 - beta1)
    squares = squares + (g * g - squares) * (1 - beta2)
    rows.set(mean, means)
    rows.set(square, squares)
    rate = lr * math.sqrt(1 - beta2**step) / (1 - beta1**step)
    rows.set(param, rows.of(param) - rate * (means / (squares.sqrt() + eps)))
