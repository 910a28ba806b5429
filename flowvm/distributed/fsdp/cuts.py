"""Cuts of parameters and their reversal.  One flat tensor holds several parts, so one exchange
takes them all.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from flowvm.eager.tensor import Tensor
from flowvm.ops.shapes.join import cat


@dataclass(frozen=True)
class Cut:
    """The cut of one parameter: its shape, the dimension, and the length of each rank's part."""

    shape: tuple[int, ...]
    dim: int
    lengths: tuple[int, ...]

    def part_shape(self, k: int) -> tuple[int, ...]:
        """Return the shape of the part of rank `k` of the group."""
        return (*self.shape[: self.dim], self.lengths[k], *self.shape[self.dim + 1 :])

    def count(self, k: int) -> int:
        """Return the number of elements of the part of rank `k` of the group."""
        total = 1
        for n in self.part_shape(k):
            total *= n
        return total


def joined(flat: Tensor, cuts: Sequence[Cut], ranks: int) -> list[Tensor]:
    """Join the ranks' parts to whole tensors.  `flat` has each rank's parts of all tensors, rank by
    rank.
    """
    counts = [[c.count(k) for c in cuts] for k in range(ranks)]
    if all(c.dim == 0 and len(set(c.lengths)) == 1 for c in cuts):
        table, ends = flat.reshape(ranks, -1), [0, *accumulate(counts[0])]
        return [
            table[:, low:high].reshape(c.shape)
            for c, low, high in zip(cuts, ends, ends[1:], strict=False)
        ]
    pieces: list[list[Tensor]] = [[] for _ in cuts]
    at = 0
    for k in range(ranks):
        for i, c in enumerate(cuts):
            if counts[k][i]:
                pieces[i].append(flat[at : at + counts[k][i]].reshape(c.part_shape(k)))
            at += counts[k][i]
    both = zip(pieces, cuts, strict=True)
    return [cat(p, c.dim) if p else flat.new_zeros(c.shape) for p, c in both]


def parted(whole: Sequence[Tensor], cuts: Sequence[Cut], ranks: int) -> Tensor:
    """Cut whole tensors into one flat tensor of the ranks' parts, rank by rank; the opposite of
    `joined`.
    """
    if len(whole) == 1 and cuts[0].dim == 0:
        alone: Tensor = whole[0].reshape(-1)
        return alone
    if all(c.dim == 0 and len(set(c.lengths)) == 1 for c in cuts):
        table: Tensor = cat([t.reshape(ranks, -1) for t in whole], 1)
        return table.reshape(-1)
    pieces = []
    for k in range(ranks):
        for t, c in zip(whole, cuts, strict=True):
            if c.count(k):
                begin = sum(c.lengths[:k])
                pieces.append(t.narrow(c.dim, begin, c.lengths[k]).reshape(-1))
    return cat(pieces) if pieces else whole[0].new_zeros((0,))


def as_dtype(value: Any, to: Any) -> Any:
    """The floating point tensors in tuples, lists, dicts and objects with fields, as `to`."""
    if isinstance(value, Tensor):
        return value.to(to) if value.dtype.is_floating_point else value
    if isinstance(value, dict):
        new = copy.copy(value)
        new.update({k: as_dtype(v, to) for k, v in value.items()})
        return new
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(as_dtype(v, to) for v in value))
    if isinstance(value, (tuple, list)):
        return type(value)(as_dtype(v, to) for v in value)
    if hasattr(value, "__dataclass_fields__"):
        new = copy.copy(value)
        for name in value.__dataclass_fields__:
            setattr(new, name, as_dtype(getattr(value, name), to))
        return new
    return value
