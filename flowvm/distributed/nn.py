"""`torch.distributed.nn`: collectives between two steps of a model, through which gradients go.

Each answers new tensors.  `group` is a group of `new_group`, ranks in a list, or None for all; the
gradient of what a rank receives goes back to the rank that sent it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from flowvm.distributed import functional
from flowvm.distributed.groups import ReduceOp
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError
from flowvm.loading.listing import listing, own_names
from flowvm.meta.dtype import bool_
from flowvm.meta.meta import Size, TensorMeta
from flowvm.ops.collectives import collectives
from flowvm.ops.declare.composite import filled_of
from flowvm.ops.pointwise.compare import where
from flowvm.ops.shapes.join import cat, stack
from flowvm.ranks.world import Group

__dir__ = listing(globals())


def _received_or(is_receiver: bool, received: Tensor, other: Tensor | int) -> Tensor:
    """Return `received` on a rank that receives, else `other`.  In both cases this rank takes part
    in the gradient, which is exchanged as well.
    """
    if is_receiver:
        return received
    never = filled_of(TensorMeta.of(Size(()), bool_, received.device))
    out: Tensor = where(never, received, other)
    return out


def all_reduce(
    tensor: Tensor, op: object = ReduceOp.SUM, group: Group | Iterable[int] | None = None
) -> Tensor:
    """The reduction of the ranks' tensors, on all of them.

    >>> from flowvm.distributed import nn as collective
    >>> collective.all_reduce(flow.ones(2))
    tensor([1., 1.])
    """
    return functional.all_reduce(tensor, op, group)


def reduce(
    tensor: Tensor, dst: int, op: object = ReduceOp.SUM, group: Group | Iterable[int] | None = None
) -> Tensor:
    """The reduction of the ranks' tensors on rank `dst`, and the tensor's values on the others.

    >>> from flowvm.distributed import nn as collective
    >>> collective.reduce(flow.ones(2), 0)
    tensor([1., 1.])
    """
    members = Group.of(group)
    total = functional.all_reduce(tensor, op, members)
    return _received_or(members.rank == members.rank_of(dst, "reduce"), total, tensor.detach())


def broadcast(tensor: Tensor, src: int, group: Group | Iterable[int] | None = None) -> Tensor:
    """The tensor of rank `src` on all ranks; its gradient is the sum of theirs.

    >>> from flowvm.distributed import nn as collective
    >>> collective.broadcast(flow.ones(2), 0)
    tensor([1., 1.])
    """
    return collectives.broadcast(tensor, src, Group.of(group))


def all_gather(tensor: Tensor, group: Group | Iterable[int] | None = None) -> tuple[Tensor, ...]:
    """The ranks' tensors, of one shape.

    >>> from flowvm.distributed import nn as collective
    >>> collective.all_gather(flow.ones(2))
    (tensor([1., 1.]),)
    """
    out: Any = collectives.all_gather(tensor.unsqueeze(0), Group.of(group)).unbind()
    return out  # type: ignore[no-any-return]


def gather(
    tensor: Tensor, dst: int = 0, group: Group | Iterable[int] | None = None
) -> tuple[Tensor, ...]:
    """The ranks' tensors on rank `dst`, and zeros on the others.

    >>> from flowvm.distributed import nn as collective
    >>> collective.gather(flow.ones(2))
    (tensor([1., 1.]),)
    """
    members = Group.of(group)
    rows = all_gather(tensor, members)
    is_destination = members.rank == members.rank_of(dst, "gather")
    return tuple(_received_or(is_destination, row, 0) for row in rows)


def scatter(
    tensors: Sequence[Tensor], src: int = 0, group: Group | Iterable[int] | None = None
) -> Tensor:
    """This rank's of the tensors, one for each rank and of one shape, that rank `src` has.

    Every rank passes tensors; those of others than `src` say shape and dtype alone.

    ArgumentError unless there is one for each rank.

    >>> from flowvm.distributed import nn as collective
    >>> collective.scatter([flow.ones(2)])
    tensor([1., 1.])
    """
    members = Group.of(group)
    if len(tensors) != members.size:
        raise ArgumentError(f"scatter: {members.size} ranks take a tensor each, got {len(tensors)}")
    return collectives.broadcast(stack(list(tensors)), src, members)[members.rank]


def reduce_scatter(
    output: Tensor,
    input_list: Sequence[Tensor],
    op: object = ReduceOp.SUM,
    group: Group | Iterable[int] | None = None,
) -> Tensor:
    """Reduce the ranks' lists, one tensor for each rank, and answer this rank's.

    `output` says nothing that the list does not.

    >>> from flowvm.distributed import nn as collective
    >>> collective.reduce_scatter(flow.empty(2), [flow.ones(2)])
    tensor([1., 1.])
    """
    rows = stack(list(input_list))
    out: Any = functional.reduce_scatter_tensor(rows, op, 0, Group.of(group)).squeeze(0)
    return out  # type: ignore[no-any-return]


def all_to_all(
    output_tensor_list: Sequence[Tensor],
    input_tensor_list: Sequence[Tensor],
    group: Group | Iterable[int] | None = None,
) -> tuple[Tensor, ...]:
    """Send tensor i to rank i; what comes has the shapes of `output_tensor_list`.

    >>> from flowvm.distributed import nn as collective
    >>> collective.all_to_all([flow.empty(2)], [flow.ones(2)])
    (tensor([1., 1.]),)
    """
    flat = cat([t.reshape(-1) for t in input_tensor_list])
    sent = [t.numel() for t in input_tensor_list]
    received_sizes = [t.numel() for t in output_tensor_list]
    come = collectives.all_to_all(
        flat, Group.of(group), split_sizes=sent, concat_sizes=received_sizes
    )
    parts = come.split(received_sizes)
    return tuple(p.reshape(o.shape) for p, o in zip(parts, output_tensor_list, strict=True))


def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Group | Iterable[int] | None = None,
) -> Tensor:
    """Send rows of `input` to all ranks; `output` says nothing that the sizes do not.

    >>> from flowvm.distributed import nn as collective
    >>> collective.all_to_all_single(flow.empty(2), flow.ones(2))
    tensor([1., 1.])
    """
    return functional.all_to_all_single(
        input, output_split_sizes or None, input_split_sizes or None, group
    )


__all__ = own_names(globals())
