"""`flow.comm`: collectives under OneFlow's names; `flow.distributed` has PyTorch's.

They need no `init_process_group`: a program started by `flowvm launch` or mpiexec is a world, and
any other is a world of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from flowvm.eager.modes import recording
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, ShapeError
from flowvm.loading.listing import listing, own_names
from flowvm.meta.device import as_device
from flowvm.meta.dtype import as_dtype, dtype_named
from flowvm.meta.meta import TensorMeta, as_shape
from flowvm.ops.collectives import collectives
from flowvm.ops.shapes.create import tensor as new_tensor
from flowvm.ops.shapes.join import cat, stack
from flowvm.ranks.world import rank, world_size
from flowvm.vm.engine.engine import engine

if TYPE_CHECKING:
    from flowvm.meta.device import DeviceLike
    from flowvm.meta.dtype import DTypeLike


__dir__ = listing(globals())

DTYPES = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
    "float64", "complex64", "complex128", "uint16", "uint32", "uint64",
)  # fmt: skip
MOST_DIMS = 14  # of a tensor whose shape is sent with it


def _list(name: str, tensors: list[Tensor] | None, like: Tensor) -> list[Tensor]:
    if not isinstance(tensors, (list, tuple)) or len(tensors) != world_size():
        raise ArgumentError(f"comm.{name}: expected a list of {world_size()} tensors, one a rank")
    for t in tensors:
        if t.shape != like.shape or t.dtype is not like.dtype:
            raise ShapeError(
                f"comm.{name}: all tensors have one shape and dtype, got {t._meta!r} and "
                f"{like._meta!r}"
            )
    return list(tensors)


def _store(outs: Sequence[Tensor], values: Tensor) -> None:
    with recording(False):
        for out, value in zip(outs, values, strict=True):
            out.copy_(value)


def all_reduce(tensor: Tensor) -> None:
    """Sum the ranks' tensors into every rank's."""
    collectives.all_reduce_(tensor)


def reduce(tensor: Tensor, dst: int) -> None:
    """Sum the ranks' tensors into the tensor of rank `dst`."""
    collectives.reduce_(tensor, dst)


def broadcast(tensor: Tensor, src: int) -> None:
    """Copy rank `src`'s `tensor` to every rank's."""
    collectives.broadcast_(tensor, src)


def all_gather(tensor_list: list[Tensor], tensor: Tensor) -> None:
    """The ranks' tensors, in the order of ranks."""
    outs = _list("all_gather", tensor_list, tensor)
    _store(outs, collectives.all_gather(tensor.detach().unsqueeze(0)))


def all_gather_into_tensor(output_tensor: Tensor, input_tensor: Tensor) -> None:
    """The ranks' tensors, one behind the other, in `output_tensor`."""
    gathered = collectives.all_gather(input_tensor.detach().reshape(-1))
    with recording(False):
        output_tensor.copy_(gathered.reshape(output_tensor.shape))


def reduce_scatter(output: Tensor, input_list: list[Tensor]) -> None:
    """The sum of the ranks' `input_list[i]`, in `output` of rank i."""
    inputs = _list("reduce_scatter", input_list, output)
    _store([output], collectives.reduce_scatter(stack([t.detach() for t in inputs])))


def reduce_scatter_tensor(output_tensor: Tensor, input_tensor: Tensor) -> None:
    """This rank's part of the sum of the ranks' `input_tensor`, in `output_tensor`."""
    reduced = collectives.reduce_scatter(input_tensor.detach().reshape(-1))
    with recording(False):
        output_tensor.copy_(reduced.reshape(output_tensor.shape))


def all_to_all(output_tensor_list: list[Tensor], input_tensor_list: list[Tensor]) -> None:
    """`input_tensor_list[i]` goes to rank i, which has it at this rank's place."""
    if not input_tensor_list or not isinstance(input_tensor_list[0], Tensor):
        raise ArgumentTypeError("comm.all_to_all: expected two lists of tensors")
    inputs = _list("all_to_all", input_tensor_list, input_tensor_list[0])
    outs = _list("all_to_all", output_tensor_list, input_tensor_list[0])
    _store(outs, collectives.all_to_all(stack([t.detach() for t in inputs])))


def scatter(tensor: Tensor, scatter_list: list[Tensor] | None = None, src: int = 0) -> None:
    """`scatter_list[i]` of rank `src`, in `tensor` of rank i."""
    n, own = world_size(), rank()
    inputs = _list("scatter", scatter_list, tensor) if own == src else []
    flat = cat([t.detach().reshape(-1) for t in inputs or [tensor.detach().reshape(-1)[:0]]])
    sent = [tensor.numel() if own == src else 0] * n
    come = [tensor.numel() if r == src else 0 for r in range(n)]
    received = collectives.all_to_all(flat, split_sizes=sent, concat_sizes=come)
    _store([tensor], received.reshape((1, *tensor.shape)))


def gather(tensor: Tensor, gather_list: list[Tensor] | None = None, dst: int = 0) -> None:
    """The ranks' tensors, in `gather_list` of rank `dst`."""
    n, own = world_size(), rank()
    outs = _list("gather", gather_list, tensor) if own == dst else []
    sent = [tensor.numel() if r == dst else 0 for r in range(n)]
    come = [tensor.numel() if own == dst else 0] * n
    flat = tensor.detach().reshape(-1)
    received = collectives.all_to_all(flat, split_sizes=sent, concat_sizes=come)
    if outs:
        _store(outs, received.reshape((n, *tensor.shape)))


def barrier() -> None:
    """Wait until every rank has come, with all its issued instructions done."""
    engine.waits.wait_idle()
    if world_size() > 1:
        collectives.barrier()
        engine.waits.sync()


def send(input: Tensor, dst: int, send_meta: bool = True) -> None:
    """Send a tensor to rank `dst`, with its shape and dtype unless `recv` says these."""
    if send_meta:
        if input.ndim > MOST_DIMS:
            raise ShapeError(f"comm.send: at most {MOST_DIMS} dimensions, got {input.ndim}")
        words = [DTYPES.index(input.dtype.name), input.ndim, *input.shape]
        collectives.send(new_tensor(words + [0] * (MOST_DIMS + 2 - len(words))), dst)
    collectives.send(input.detach(), dst)


def recv(
    src: int,
    shape: Sequence[int] | None = None,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Receive a tensor of rank `src`.  Without a shape, wait for the sender to name it.

    `out` takes the values where it is given.
    """
    if (shape is None) != (dtype is None):
        raise ArgumentError("comm.recv: give shape and dtype, or neither")
    if shape is None:
        words = collectives.recv(TensorMeta.of((MOST_DIMS + 2,), as_dtype(np.int64)), src).tolist()
        meta = TensorMeta.of(as_shape(words[2 : 2 + words[1]]), dtype_named(DTYPES[words[0]]))
    else:
        meta = TensorMeta.of(as_shape(shape), as_dtype(dtype), as_device(device))
    received = collectives.recv(meta, src)
    if out is None:
        return received
    _store([out], received.unsqueeze(0))
    return out


__all__ = own_names(globals())
