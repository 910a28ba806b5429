"""Placements of a tensor along a dimension of a mesh, by PyTorch's names.  `Shard(d)` is
`flow.sbp.split(d)`, `Replicate()` is `flow.sbp.broadcast`, `Partial()` is `flow.sbp.partial_sum`.
"""

from __future__ import annotations

from dataclasses import dataclass

from flowvm.errors import ArgumentError
from flowvm.loading.listing import listing
from flowvm.meta.placements import BROADCAST, Sbps, broadcast, cut, partial_sum, sbp, split

# public: distributed.tensor

__all__ = ["Partial", "Placement", "Replicate", "Shard"]
__dir__ = listing(globals())


class Placement:
    """One of `Shard`, `Replicate`, `Partial`.

    >>> from flowvm.distributed.tensor import Replicate, Shard
    >>> Shard(0).is_shard(), Shard(0).is_shard(1), Replicate().is_replicate()
    (True, False, True)
    """

    def is_shard(self, dim: int | None = None) -> bool:
        """Return True if ranks have parts, of dimension `dim` if it is given."""
        return isinstance(self, Shard) and dim in (None, self.dim)

    def is_replicate(self) -> bool:
        """Return True if each rank has the whole tensor."""
        return isinstance(self, Replicate)

    def is_partial(self, reduce_op: str | None = None) -> bool:
        """Return True if each rank has a summand."""
        return isinstance(self, Partial) and reduce_op in (None, self.reduce_op)

    def as_sbp(self, ndim: int | None) -> sbp:
        """Return this placement as a `flow.sbp`, for a tensor with `ndim` dimensions."""
        return partial_sum if self.is_partial() else broadcast


@dataclass(frozen=True)
class Shard(Placement):
    """A cut of dimension `dim` among the ranks.  The first ranks may have one element more.
    PyTorch cuts 5 for 4 ranks as 2, 2, 1, 0, flowvm as 2, 1, 1, 1.

    >>> from flowvm.distributed.tensor import Shard
    >>> Shard(1)
    Shard(dim=1)
    """

    dim: int

    def as_sbp(self, ndim: int | None) -> sbp:
        """`flow.sbp.split(dim)`; a dimension below 0 counts from the back."""
        if ndim is not None and not -ndim <= self.dim < ndim:
            raise ArgumentError(f"{self!r} of a tensor with {ndim} dimensions")
        return split(self.dim % ndim if ndim is not None else self.dim)

    @staticmethod
    def local_shard_size_and_offset(
        curr_local_size: int, num_chunks: int, rank: int
    ) -> tuple[int, int]:
        """Return the length and the beginning of the part of `rank`, of `curr_local_size`
        elements.
        """
        begin, end = cut(curr_local_size, num_chunks, rank)
        return end - begin, begin


@dataclass(frozen=True)
class Replicate(Placement):
    """The placement of a tensor that each rank has as a whole.

    >>> from flowvm.distributed.tensor import Replicate
    >>> Replicate()
    Replicate()
    """


@dataclass(frozen=True)
class Partial(Placement):
    """The placement of a tensor of which each rank has a summand.  ArgumentError for another
    `reduce_op` than "sum".

    >>> from flowvm.distributed.tensor import Partial
    >>> Partial()
    Partial(reduce_op='sum')
    """

    reduce_op: str = "sum"

    def __post_init__(self) -> None:
        if self.reduce_op != "sum":
            raise ArgumentError(
                f"Partial: what ranks hold of a pending result are summands ('sum'), got "
                f"{self.reduce_op!r}"
            )


@dataclass(frozen=True)
class _StridedShard(Placement):
    """A part of each of `split_factor` groups of a dimension.  Programs name it to ask whether a
    tensor is held so; here none is.  ArgumentError where one is to be.
    """

    dim: int
    split_factor: int = 1

    def as_sbp(self, ndim: int | None) -> sbp:
        """Raise ArgumentError: no tensor is held so."""
        raise ArgumentError(
            f"{self!r}: ranks hold whole ranges of a dimension, Shard(dim); cut the groups apart "
            f"first: unflatten({self.dim}, ({self.split_factor}, -1)) and Shard({self.dim + 1})"
        )


# not public
def as_placements(held: Sbps) -> tuple[Placement, ...]:
    """Return a tuple of sbp as placements."""
    return tuple(
        Shard(s.dim) if s.is_split else Replicate() if s.dim == BROADCAST else Partial()
        for s in held
    )
