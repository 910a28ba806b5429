"""Matrices of parts, and choices of elements: `block_diag`, `diagflat`, `combinations`."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentError, ShapeError
from flowvm.meta.dtype import result_type
from flowvm.ops.declare.composite import need_tensor, whole
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.shapes.create import tensor
from flowvm.ops.shapes.fill import zeros
from flowvm.ops.shapes.join import cat
from flowvm.ops.shapes.matrices import diag

# public: flow


def block_diag(*tensors: Any) -> Tensor:
    """The matrix with these matrices along its diagonal, zeros elsewhere; a vector is a row, a
    number a matrix of one element.

    >>> flow.block_diag(flow.ones(1, 2), flow.tensor([[5.0]]))
    tensor([[1., 1., 0.],
            [0., 0., 5.]])
    """
    if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)):
        tensors = tuple(tensors[0])
    parts: list[Any] = []
    for t in tensors:
        x: Tensor = need_tensor("block_diag", "tensors", t)
        if x.ndim > 2:
            raise ShapeError(f"block_diag: matrices, got shape {tuple(x.shape)}")
        parts.append(x if x.ndim == 2 else x.reshape((1, -1)))
    if not parts:
        return zeros(1, 0)
    kind = result_type(parts[0], parts[0])
    for part in parts[1:]:
        kind = result_type(part, zeros(1, dtype=kind))
    width = sum(part.shape[1] for part in parts)
    rows, before = [], 0
    for part in parts:
        height, own = part.shape
        left = zeros(height, before, dtype=kind, device=part.device)
        right = zeros(height, width - before - own, dtype=kind, device=part.device)
        rows.append(cat([left, part.to(kind), right], 1))
        before += own
    whole_matrix: Tensor = cat(rows, 0)
    return whole_matrix


@method()
def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """The square matrix with the elements of `input` on diagonal number `offset`.

    >>> flow.diagflat(flow.tensor([1, 2]), 1)
    tensor([[0, 1, 0],
            [0, 0, 2],
            [0, 0, 0]])
    """
    flat: Tensor = need_tensor("diagflat", "input", input)
    return diag(flat.reshape(-1), offset)


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """The choices of `r` elements of a vector in the order of `itertools`: (choices, r).

    >>> flow.combinations(flow.tensor([1, 2, 3]))
    tensor([[1, 2],
            [1, 3],
            [2, 3]])
    """
    x: Tensor = need_tensor("combinations", "input", input)
    if x.ndim != 1:
        raise ShapeError(f"combinations: input is a vector, got shape {tuple(x.shape)}")
    count = whole("combinations", "r", r)
    if count < 0:
        raise ArgumentError(f"combinations: r is not negative, got {count}")
    if count == 0:
        return zeros(0, dtype=x.dtype, device=x.device)
    pick = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    chosen = np.array(list(pick(range(x.numel()), count)), np.int64).reshape(-1, count)
    places = tensor(chosen.reshape(-1), device=x.device)
    out: Tensor = x.index_select(0, places).reshape(chosen.shape)
    return out


samples(
    block_diag,
    lambda rng: [
        Sample((rng.standard_normal((2, 3)), rng.standard_normal(2), rng.standard_normal(())))
    ],
    lambda a, b, c: np.block(
        [
            [a, np.zeros((2, 3))],
            [np.zeros((1, 3)), b[None], np.zeros((1, 1))],
            [np.zeros((1, 5)), c.reshape(1, 1)],
        ]
    ),
    errors=((lambda flow: flow.block_diag(flow.ones(1, 1, 1)), RuntimeError),),
)
samples(
    diagflat,
    lambda rng: [Sample((rng.standard_normal((2, 2)), k)) for k in (0, -1)],
    lambda x, k: np.diagflat(x, k),
)
samples(
    combinations,
    lambda rng: [Sample((rng.standard_normal(4), 3)), Sample((rng.standard_normal(3), 2, True))],
    lambda x, r, again=False: np.array(
        list((itertools.combinations_with_replacement if again else itertools.combinations)(x, r))
    ),
    errors=(
        (lambda flow: flow.combinations(flow.ones(2, 2)), RuntimeError),
        (lambda flow: flow.combinations(flow.ones(2), -1), ValueError),
    ),
)
