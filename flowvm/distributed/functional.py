"""Collectives that answer new tensors and have gradients, by the names of PyTorch's
`torch.distributed._functional_collectives`.

`group` is a group of `new_group`, a `DeviceMesh` of one dimension, a mesh and one of its dimensions
in a tuple, ranks in a list, or None for all.  A reader of a result waits for it, so `wait_tensor`
returns its argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from flowvm.distributed.device_mesh import DeviceMesh
from flowvm.distributed.groups import ReduceOp, get_global_rank, op_of
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError
from flowvm.loading.listing import listing, own_names
from flowvm.ops.collectives import collectives
from flowvm.ranks.world import Group

__dir__ = listing(globals())
_OPS = {"avg": "mean", "product": "prod"}  # PyTorch's names that flowvm's ops do not use


def _group(group: Any) -> Group:
    if isinstance(group, DeviceMesh):
        return group.get_group()
    if isinstance(group, tuple) and len(group) == 2 and isinstance(group[0], DeviceMesh):
        return group[0].get_group(group[1])
    return Group.of(group)


def _op(name: str, op: object) -> str:
    if isinstance(op, ReduceOp):
        return op_of(name, op)
    word = str(op).lower()
    return _OPS.get(word, word)


def wait_tensor(tensor: Tensor) -> Tensor:
    """The tensor itself: whoever reads it waits.

    >>> from flowvm.distributed.functional import wait_tensor
    >>> wait_tensor(flow.ones(1))
    tensor([1.])
    """
    return tensor


def all_reduce(
    self: Tensor, reduceOp: object, group: Group | Iterable[int] | None = None, tag: str = ""
) -> Tensor:
    """The reduction of the ranks' tensors, on all of them: "sum", "avg", "min", "max", "product".

    The gradient, of sums and means, is reduced likewise.  ArgumentError for another op.

    >>> from flowvm.distributed.functional import all_reduce
    >>> all_reduce(flow.ones(2), "sum")
    tensor([1., 1.])
    """
    return collectives.all_reduce(self, _op("all_reduce", reduceOp), _group(group))


def broadcast(
    self: Tensor, src: int, group: Group | Iterable[int] | None = None, tag: str = ""
) -> Tensor:
    """The tensor of `src`, a rank's number in the group, on all ranks.

    >>> from flowvm.distributed.functional import broadcast
    >>> broadcast(flow.ones(2), 0)
    tensor([1., 1.])
    """
    members = _group(group)
    return collectives.broadcast(self, get_global_rank(members, src), members)


def all_gather_tensor(
    self: Tensor, gather_dim: int, group: Group | Iterable[int] | None = None, tag: str = ""
) -> Tensor:
    """The ranks' tensors, of one shape, one behind the other along `gather_dim`.

    >>> from flowvm.distributed.functional import all_gather_tensor
    >>> all_gather_tensor(flow.ones(2), 0)
    tensor([1., 1.])
    """
    return collectives.all_gather(self, _group(group), None, gather_dim)


def reduce_scatter_tensor(
    self: Tensor,
    reduceOp: object,
    scatter_dim: int,
    group: Group | Iterable[int] | None = None,
    tag: str = "",
) -> Tensor:
    """This rank's part, along `scatter_dim`, of the reduction of the ranks' tensors.

    >>> from flowvm.distributed.functional import reduce_scatter_tensor
    >>> reduce_scatter_tensor(flow.ones(2), "sum", 0)
    tensor([1., 1.])
    """
    op = _op("reduce_scatter_tensor", reduceOp)
    return collectives.reduce_scatter(self, op, _group(group), None, scatter_dim)


def all_to_all_single(
    self: Tensor,
    output_split_sizes: Sequence[int] | None,
    input_split_sizes: Sequence[int] | None,
    group: Group | Iterable[int] | None = None,
    tag: str = "",
) -> Tensor:
    """Send rows of the tensor to all ranks, `input_split_sizes` to each.  `output_split_sizes` are
    the rows from each rank.  Equal parts if both are None.

    ArgumentError if one of them is None.

    >>> from flowvm.distributed.functional import all_to_all_single
    >>> all_to_all_single(flow.ones(2), [2], [2])
    tensor([1., 1.])
    """
    if (output_split_sizes is None) != (input_split_sizes is None):
        raise ArgumentError(
            "all_to_all_single: give both output_split_sizes and input_split_sizes, or neither"
        )
    return collectives.all_to_all(
        self, _group(group), split_sizes=input_split_sizes, concat_sizes=output_split_sizes
    )


all_gather_tensor_autograd = all_gather_tensor
reduce_scatter_tensor_autograd = reduce_scatter_tensor
all_to_all_single_autograd = all_to_all_single

__all__ = own_names(globals())
