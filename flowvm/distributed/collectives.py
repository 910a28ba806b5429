"""Collectives that change their arguments, under PyTorch's names.

Each returns at once, None or with `async_op=True` a `Work`; `barrier` alone waits.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowvm.distributed.groups import ReduceOp, members, op_of, peer
from flowvm.distributed.works import Work, answered
from flowvm.eager.interpreter import short
from flowvm.eager.modes import recording
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from flowvm.ops.collectives import collectives
from flowvm.ops.collectives.collectives import all_reduce_, broadcast_, reduce_
from flowvm.ops.shapes.join import cat
from flowvm.ops.shapes.split import split
from flowvm.ranks.world import Group
from flowvm.vm.engine.engine import engine

# public: distributed


def _tensor(name: str, what: str, x: Tensor) -> Tensor:
    if not isinstance(x, Tensor):
        raise ArgumentTypeError(
            f"{name}: {what} must be a Tensor, got {type(x).__name__} ({short(x)})"
        )
    return x


def _listed(name: str, what: str, tensors: list[Tensor] | None, among: Group) -> list[Tensor]:
    """A list of a tensor a rank."""
    if not isinstance(tensors, (list, tuple)):
        raise ArgumentTypeError(
            f"{name}: {what} is a list of tensors, got {type(tensors).__name__}"
        )
    if len(tensors) != among.size:
        raise ArgumentError(
            f"{name}: {what} has {len(tensors)} tensors, and the group has {among.size} ranks"
        )
    return [_tensor(name, what, t) for t in tensors]


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return cat([t.detach().reshape(-1) for t in tensors])


def _fill(tensors: Sequence[Tensor], flat: Tensor) -> None:
    """Cut `flat` into the tensors."""
    with recording(False):
        parts = split(flat, [t.numel() for t in tensors], 0)
        for t, part in zip(tensors, parts, strict=True):
            t.copy_(part.reshape(t.shape))


def _same(name: str, tensors: Sequence[Tensor]) -> None:
    kinds = {t.dtype for t in tensors}
    if len(kinds) > 1:
        raise DTypeError(f"{name}: all tensors have one dtype, got {sorted(map(str, kinds))}")


def _fits(name: str, what: str, out: Tensor, count: int) -> None:
    if out.numel() != count:
        raise ShapeError(f"{name}: {what} has {out.numel()} elements, and {count} are needed")


def all_reduce(
    tensor: Tensor, op: ReduceOp = ReduceOp.SUM, group: object = None, async_op: bool = False
) -> Work | None:
    """The reduction of the ranks' tensors, in every rank's `tensor`."""
    among = members("all_reduce", group)
    if tensor.__class__ is not Tensor:
        _tensor("all_reduce", "tensor", tensor)
    how = op.word if op.__class__ is ReduceOp else op_of("all_reduce", op)
    all_reduce_(tensor, how, among)
    if async_op or engine.lending.holds(tensor._ref):
        return answered(async_op, tensor)
    return None


def reduce(
    tensor: Tensor,
    dst: int | None = None,
    op: ReduceOp = ReduceOp.SUM,
    group: object = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Reduce the ranks' tensors into the tensor of rank `dst`; the other ranks keep theirs."""
    among = members("reduce", group)
    root = peer("reduce", "dst", among, dst, group_dst)
    reduce_(_tensor("reduce", "tensor", tensor), root, op_of("reduce", op), among)
    return answered(async_op, tensor)


def broadcast(
    tensor: Tensor,
    src: int | None = None,
    group: object = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Copy rank `src`'s `tensor` to every rank's."""
    among = members("broadcast", group)
    root = peer("broadcast", "src", among, src, group_src)
    broadcast_(_tensor("broadcast", "tensor", tensor), root, among)
    return answered(async_op, tensor)


def all_gather(
    tensor_list: list[Tensor], tensor: Tensor, group: object = None, async_op: bool = False
) -> Work | None:
    """The ranks' tensors in `tensor_list`, in the order of ranks; they may differ in size."""
    among = members("all_gather", group)
    outs = _listed("all_gather", "tensor_list", tensor_list, among)
    _same("all_gather", [*outs, _tensor("all_gather", "tensor", tensor)])
    _fits("all_gather", "tensor_list of this rank", outs[among.rank], tensor.numel())
    sizes = [t.numel() for t in outs]
    _fill(outs, collectives.all_gather(tensor.detach().reshape(-1), among, sizes))
    return answered(async_op, *outs)


def all_gather_into_tensor(
    output_tensor: Tensor, input_tensor: Tensor, group: object = None, async_op: bool = False
) -> Work | None:
    """The ranks' tensors, one behind the other or stacked, in `output_tensor`."""
    name, among = "all_gather_into_tensor", members("all_gather_into_tensor", group)
    x, out = _tensor(name, "input_tensor", input_tensor), _tensor(name, "output_tensor",
                                                                  output_tensor)  # fmt: skip
    _same(name, [x, out])
    _fits(name, "output_tensor", out, x.numel() * among.size)
    _fill([out], collectives.all_gather(x.detach().reshape(-1), among))
    return answered(async_op, out)


def reduce_scatter(
    output: Tensor,
    input_list: list[Tensor],
    op: ReduceOp = ReduceOp.SUM,
    group: object = None,
    async_op: bool = False,
) -> Work | None:
    """The reduction of the ranks' `input_list[i]`, in `output` of rank i."""
    among, how = members("reduce_scatter", group), op_of("reduce_scatter", op)
    inputs = _listed("reduce_scatter", "input_list", input_list, among)
    _same("reduce_scatter", [*inputs, _tensor("reduce_scatter", "output", output)])
    sizes = [t.numel() for t in inputs]
    _fits("reduce_scatter", "output", output, sizes[among.rank])
    _fill([output], collectives.reduce_scatter(_flat(inputs), how, among, sizes))
    return answered(async_op, output)


def reduce_scatter_tensor(
    output: Tensor,
    input: Tensor,
    op: ReduceOp = ReduceOp.SUM,
    group: object = None,
    async_op: bool = False,
) -> Work | None:
    """This rank's part of the reduction of the ranks' `input`, in `output`."""
    name, among = "reduce_scatter_tensor", members("reduce_scatter_tensor", group)
    x, out = _tensor(name, "input", input), _tensor(name, "output", output)
    _same(name, [x, out])
    _fits(name, "input", x, out.numel() * among.size)
    flat = x.detach().reshape(-1)
    _fill([out], collectives.reduce_scatter(flat, op_of(name, op), among))
    return answered(async_op, out)


def all_to_all(
    output_tensor_list: list[Tensor],
    input_tensor_list: list[Tensor],
    group: object = None,
    async_op: bool = False,
) -> Work | None:
    """`input_tensor_list[i]` goes to rank i, which has it in `output_tensor_list` at this rank's
    place.
    """
    among = members("all_to_all", group)
    outs = _listed("all_to_all", "output_tensor_list", output_tensor_list, among)
    inputs = _listed("all_to_all", "input_tensor_list", input_tensor_list, among)
    _same("all_to_all", [*outs, *inputs])
    sent, come = [t.numel() for t in inputs], [t.numel() for t in outs]
    flat = collectives.all_to_all(
        _flat(inputs), among, split_sizes=sent, concat_sizes=come
    )  # fmt: skip
    _fill(outs, flat)
    return answered(async_op, *outs)


def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: object = None,
    async_op: bool = False,
) -> Work | None:
    """Rows of `input` to each rank, rows from each rank in `output`; equally many, or as said."""
    name, among = "all_to_all_single", members("all_to_all_single", group)
    x, out = _tensor(name, "input", input), _tensor(name, "output", output)
    _same(name, [x, out])
    come = output_split_sizes or [out.shape[0] // among.size] * among.size
    received = collectives.all_to_all(
        x.detach(), among, split_sizes=input_split_sizes or None, concat_sizes=come
    )
    _fits(name, "output", out, received.numel())
    _fill([out], received.reshape(-1))
    return answered(async_op, out)


def scatter(
    tensor: Tensor,
    scatter_list: list[Tensor] | None = None,
    src: int | None = None,
    group: object = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """`scatter_list[i]` of rank `src`, in `tensor` of rank i."""
    among = members("scatter", group)
    root = peer("scatter", "src", among, 0 if src is None and group_src is None else src, group_src)
    own = among.ranks[among.rank]
    _tensor("scatter", "tensor", tensor)
    if own != root and scatter_list:
        raise ArgumentError(f"scatter: rank {root} alone has a scatter_list")
    inputs = _listed("scatter", "scatter_list", scatter_list, among) if own == root else []
    _same("scatter", [*inputs, tensor])
    sent = [t.numel() for t in inputs] or [0] * among.size
    come = [tensor.numel() if r == root else 0 for r in among.ranks]
    flat = _flat(inputs) if inputs else tensor.detach().reshape(-1)[:0]
    _fill([tensor], collectives.all_to_all(flat, among, split_sizes=sent, concat_sizes=come))
    return answered(async_op, tensor)


def gather(
    tensor: Tensor,
    gather_list: list[Tensor] | None = None,
    dst: int | None = None,
    group: object = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """The ranks' tensors, in `gather_list` of rank `dst`."""
    among = members("gather", group)
    root = peer("gather", "dst", among, 0 if dst is None and group_dst is None else dst, group_dst)
    own = among.ranks[among.rank]
    _tensor("gather", "tensor", tensor)
    if own != root and gather_list:
        raise ArgumentError(f"gather: rank {root} alone has a gather_list")
    outs = _listed("gather", "gather_list", gather_list, among) if own == root else []
    _same("gather", [*outs, tensor])
    sent = [tensor.numel() if r == root else 0 for r in among.ranks]
    come = [t.numel() for t in outs] or [0] * among.size
    flat = tensor.detach().reshape(-1)
    received = collectives.all_to_all(flat, among, split_sizes=sent, concat_sizes=come)
    if outs:
        _fill(outs, received)
    return answered(async_op, *(outs or (received,)))


def barrier(group: object = None, async_op: bool = False, device_ids: object = None) -> Work | None:
    """Wait until every rank of the group has come, with all its issued instructions done."""
    among = members("barrier", group)
    engine.waits.wait_idle()
    collectives.barrier(among)
    work = answered(True)
    assert work is not None
    if async_op:
        return work
    work.wait()
    return None


def monitored_barrier(
    group: object = None, timeout: object = None, wait_all_ranks: bool = False
) -> None:
    """Do a `barrier`.  The error names late ranks anyway, so the arguments change nothing."""
    barrier(group)
