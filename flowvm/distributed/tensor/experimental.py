"""Context parallel: local tensors whose sequence the ranks of a mesh share.

    with context_parallel(mesh, buffers=[x, positions], buffer_seq_dims=[1, 0]):
        loss = model(x)    # each rank computes its part; attention goes around all

Inside, `scaled_dot_product_attention` of local tensors attends to the keys of all ranks.  Global
tensors need no region: their sbp says that the sequence is cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from flowvm.distributed.device_mesh import DeviceMesh
from flowvm.eager.modes import recording
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ShapeError
from flowvm.guards.regions import Switched
from flowvm.loading.listing import listing, own_names
from flowvm.ops.collectives.collectives import all_gather
from flowvm.ops.declare.composite import wrap_dim
from flowvm.ops.placed.sequences import ROWS, Ring, ring_attention
from flowvm.ops.sequences.attention import around
from flowvm.ops.shapes.join import cat
from flowvm.ops.shapes.slices import narrow
from flowvm.ranks.world import Group, rank

__dir__ = listing(globals())
ROTATIONS = ("allgather", "alltoall")


def _members(mesh: DeviceMesh) -> Group:
    if mesh.ndim != 1:
        raise ArgumentError(
            f'context_parallel: a mesh of one dimension, got {mesh!r}; mesh["name"]'
        )
    return mesh.get_group()


class _Around(NamedTuple):
    """Attention to the keys of all these ranks; graphs compare it with that of their capture."""

    ranks: tuple[int, ...]

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float
    ) -> Tensor:
        shapes = [tuple(t.shape) for t in (query, key, value)]
        if any(len(s) != 4 or s[:2] != shapes[0][:2] for s in shapes):
            raise ShapeError(
                f"scaled_dot_product_attention: context_parallel takes tensors of batch, heads, "
                f"sequence and features, got shapes {', '.join(map(str, shapes))}"
            )
        if any(s[ROWS] % 2 for s in shapes) or (causal and shapes[0][ROWS] != shapes[1][ROWS]):
            raise ShapeError(
                f"scaled_dot_product_attention: context_parallel has two chunks of a sequence on a "
                f"rank, and as many queries as keys under is_causal, got shapes "
                f"{', '.join(map(str, shapes))}"
            )
        ring = Ring.of(self.ranks, rank(), shapes[1][ROWS] * len(self.ranks), balanced=True)
        return ring_attention(ring, query, key, value, causal, scale)


def _part(buffer: Tensor, dim: int, members: Group) -> Tensor:
    """This rank's part of a buffer: a chunk from the front, and its counterpart from the back."""
    dim, n = wrap_dim("context_parallel", dim, buffer.ndim), members.size
    rows = buffer.shape[dim]
    if rows % (2 * n):
        raise ShapeError(
            f"context_parallel: dimension {dim} of {tuple(buffer.shape)} is no multiple of {2 * n}:"
            f" each of {n} ranks has two chunks of one size; pad the sequence"
        )
    size = rows // (2 * n)
    chunks = [narrow(buffer, dim, number * size, size) for number in
              (members.rank, 2 * n - 1 - members.rank)]  # fmt: skip
    return cat(chunks, dim)


class context_parallel(Switched):  # noqa: N801 - PyTorch's name
    """A region in which each rank of a mesh has a part of a sequence.

    buffers             tensors that become this rank's part inside: inputs, targets, positions
    buffer_seq_dims     the dimension of the sequence of each
    no_restore_buffers  those that stay parts behind the region; the others become whole again

    A part is a chunk from the front of the sequence and its counterpart from the back, so all ranks
    have the same work under a causal mask.  ArgumentError for a mesh of several dimensions, or
    buffers without a dimension each; ShapeError for a sequence that is no multiple of twice the
    ranks.  Attention takes no mask but `is_causal` inside, and no dropout.

    >>> from flowvm.distributed.tensor import init_device_mesh
    >>> from flowvm.distributed.tensor.experimental import context_parallel
    >>> x = flow.ones(1, 2, 4, 3)
    >>> with context_parallel(
    ...     init_device_mesh("cpu", (1,)), buffers=[x], buffer_seq_dims=[2]
    ... ):
    ...     F.scaled_dot_product_attention(x, x, x, is_causal=True).shape
    flow.Size([1, 2, 4, 3])
    """

    def __init__(
        self,
        mesh: DeviceMesh,
        *,
        buffers: Sequence[Tensor] | None = None,
        buffer_seq_dims: Sequence[int] | None = None,
        no_restore_buffers: Iterable[Tensor] | None = None,
    ) -> None:
        self.members = _members(mesh)
        self.buffers, self.dims = list(buffers or ()), list(buffer_seq_dims or ())
        unrestored = {id(b) for b in no_restore_buffers or ()}
        if len(self.buffers) != len(self.dims):
            raise ArgumentError(
                f"context_parallel: {len(self.buffers)} buffers need as many buffer_seq_dims, got "
                f"{self.dims}"
            )
        if unrestored - {id(b) for b in self.buffers}:
            raise ArgumentError("context_parallel: no_restore_buffers are some of buffers")
        self.wholes = [(b, None if id(b) in unrestored else b.detach()) for b in self.buffers]
        self.attention = around.to(_Around(self.members.ranks))

    def _switch(self) -> context_parallel:
        with recording(False):
            parts = [
                _part(b.detach(), dim, self.members)
                for b, dim in zip(self.buffers, self.dims, strict=True)
            ]
        for buffer, part in zip(self.buffers, parts, strict=True):
            buffer.data = part
        self.attention.__enter__()
        return self

    def _on_exit(self, *error: object) -> None:
        self.attention.__exit__(*error)

    def _undo(self) -> None:
        for buffer, whole in self.wholes:
            if whole is not None:
                buffer.data = whole


def context_parallel_unshard(
    mesh: DeviceMesh, buffers: Sequence[Tensor], seq_dims: Sequence[int]
) -> list[Tensor]:
    """The whole of what ranks have as parts, in the order of the sequence: all ranks call it.

    >>> from flowvm.distributed.tensor import init_device_mesh
    >>> from flowvm.distributed.tensor.experimental import context_parallel_unshard
    >>> context_parallel_unshard(init_device_mesh("cpu", (1,)), [flow.arange(4)], [0])
    [tensor([0, 1, 2, 3])]
    """
    members, wholes = _members(mesh), []
    for buffer, dim in zip(buffers, seq_dims, strict=True):
        dim, n = wrap_dim("context_parallel_unshard", dim, buffer.ndim), members.size
        if buffer.shape[dim] % 2:
            raise ShapeError(
                f"context_parallel_unshard: a part has two chunks, dimension {dim} of "
                f"{tuple(buffer.shape)} is odd"
            )
        size = buffer.shape[dim] // 2
        gathered = all_gather(buffer, members, dim=dim)
        order = [(2 * k, k) for k in range(n)] + [(2 * k + 1, 2 * n - 1 - k) for k in range(n)]
        chunks = [at for at, _ in sorted(order, key=lambda pair: pair[1])]
        wholes.append(cat([narrow(gathered, dim, at * size, size) for at in chunks], dim))
    return wholes


def set_rotate_method(rotate_method: str) -> None:
    """Take the name of the way in which keys go around, "allgather" or "alltoall": here each rank
    sends to the next one, whatever it says.  ArgumentError for another name.

    >>> from flowvm.distributed.tensor.experimental import set_rotate_method
    >>> set_rotate_method("alltoall")
    """
    if rotate_method not in ROTATIONS:
        raise ArgumentError(f"set_rotate_method: one of {ROTATIONS}, got {rotate_method!r}")


__all__ = own_names(globals())
