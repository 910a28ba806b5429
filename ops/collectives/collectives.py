"""Collectives as functions: those that make new tensors, `all_reduce`, `all_gather`,
`reduce_scatter`, `all_to_all`, `broadcast`, `send`, `recv`, `barrier`; and in place `all_reduce_`,
`reduce_`, `broadcast_`, `recv_`.

Every rank of a group calls the same ones in the same order.  In a group of one rank they are
copies, without MPI.  A group is a `Group`, its ranks, or None for all; ranks are numbers of the
world.  Each is an instruction on the lane "comm", messages have lanes of their own; graphs capture
them like any other.

What is only moved is moved as bytes.  float16 and bfloat16 are reduced in float32, as everywhere;
bools by "or" (sum, max) and "and" (prod, min).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from flowvm.eager.interpreter import short
from flowvm.eager.modes import recording
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from flowvm.meta.meta import TensorMeta
from flowvm.ops.collectives.instructions import (
    all_gather_of,
    all_reduce_into,
    all_reduce_of,
    all_to_all_of,
    barrier_of,
    broadcast_from,
    broadcast_into,
    broadcast_to,
    recv_into,
    recv_of,
    reduce_into,
    reduce_scatter_of,
    run,
    send_from,
)
from flowvm.ops.declare.composite import wrap_dim
from flowvm.ops.declare.core import cast
from flowvm.ops.shapes.join import cat
from flowvm.ranks.lanes import Lane, collective, lane, lane_for
from flowvm.ranks.world import Group, world
from flowvm.vm.callers.hot import hot

OPS = ("sum", "prod", "min", "max", "mean")


def _tensor(name: str, x: Tensor) -> Tensor:
    if not isinstance(x, Tensor):
        raise ArgumentTypeError(f"{name}: x must be a Tensor, got {type(x).__name__} ({short(x)})")
    return x


def checked_op(name: str, op: object, x: TensorMeta) -> str:
    """`op`, if it is one of OPS that has a meaning for `x`; else an error."""
    if op not in OPS:
        raise ArgumentError(f"{name}: op is one of {', '.join(OPS)}, got {op!r}")
    if op == "mean" and not x.dtype.inexact:
        raise DTypeError(f"{name}: a mean of {x.dtype.name} is not of {x.dtype.name}; take the sum")
    if op in ("min", "max") and x.dtype.is_complex:
        raise DTypeError(f"{name}: {op} has no meaning for {x.dtype.name}: complex numbers have "
                         "no order")  # fmt: skip
    return str(op)


def _sizes(name: str, sizes: Any, count: int, total: int | None) -> tuple[int, ...]:
    """`sizes` as `count` numbers, whose sum is `total` where that is known."""
    rows = tuple(sizes)
    if len(rows) != count or not all(isinstance(r, int) and r >= 0 for r in rows):
        raise ArgumentError(f"{name}: sizes are {count} numbers of rows, got {short(rows)}")
    if total is not None and sum(rows) != total:
        raise ShapeError(f"{name}: sizes {rows} are {sum(rows)} rows, and x has {total}")
    return rows


def _even(name: str, rows: int, count: int) -> tuple[int, ...]:
    if rows % count:
        raise ShapeError(
            f"{name}: {rows} rows do not divide among {count} ranks; say how many each has (sizes)"
        )
    return (rows // count,) * count


def _front(name: str, x: Tensor, dim: int) -> Tensor:
    """`x` with `dim` first."""
    if x._meta.ndim == 0:
        raise ShapeError(f"{name}: a 0-d tensor has no dimension to be split or joined")
    dim = wrap_dim(name, dim, x._meta.ndim)
    front: Tensor = x.movedim(dim, 0) if dim else x
    return front


def _back(x: Tensor, dim: int) -> Tensor:
    """`x`, whose first dimension becomes `dim` again."""
    dim = wrap_dim("collective", dim, x._meta.ndim)
    return x.movedim(0, dim).contiguous() if dim else x


def all_reduce(x: Tensor, op: str = "sum", group: Group | Iterable[int] | None = None) -> Tensor:
    """The reduction of the ranks' `x`, which have one shape and dtype, on all of them.

    op  "sum", "prod", "min", "max" or "mean"

    ArgumentError for another op, DTypeError where it has no meaning for the dtype.
    """
    members, x = Group.of(group), _tensor("all_reduce", x)
    op = checked_op("all_reduce", op, x._meta)
    if members.size == 1:
        return cast(x, x._meta.dtype)
    out: Tensor = run(all_reduce_of, x, "sum" if op == "mean" else op, members.ranks)
    return out / members.size if op == "mean" else out


def all_gather(
    x: Tensor,
    group: Group | Iterable[int] | None = None,
    sizes: Sequence[int] | None = None,
    dim: int = 0,
) -> Tensor:
    """The ranks' `x`, one behind the other along `dim`, on all of them.

    sizes  how long `dim` is on each rank, where that differs; 0 will do

    ShapeError if `x` is not as long as `sizes` says.
    """
    members, x = Group.of(group), _tensor("all_gather", x)
    front = _front("all_gather", x, dim)
    count = front._meta.shape[0]
    rows = (count,) * members.size if sizes is None else _sizes("all_gather", sizes, members.size,
                                                               None)  # fmt: skip
    if members.size == 1 and count == rows[0]:
        return cast(x, x._meta.dtype)
    if members.rank >= 0 and rows[members.rank] != count:
        raise ShapeError(
            f"all_gather: sizes say {rows[members.rank]} rows for this rank, and x has {count}"
        )
    out: Tensor = run(all_gather_of, front, rows, members.ranks)
    return _back(out, dim)


def reduce_scatter(
    x: Tensor,
    op: str = "sum",
    group: Group | Iterable[int] | None = None,
    sizes: Sequence[int] | None = None,
    dim: int = 0,
) -> Tensor:
    """This rank's part, along `dim`, of the reduction of the ranks' `x`.

    sizes  how long each rank's part is, where they differ; 0 will do

    ShapeError if the parts are not all of `x`; else as `all_reduce`.
    """
    members, x = Group.of(group), _tensor("reduce_scatter", x)
    op = checked_op("reduce_scatter", op, x._meta)
    front = _front("reduce_scatter", x, dim)
    total = front._meta.shape[0]
    if sizes is None:
        rows = _even("reduce_scatter", total, members.size)
    else:
        rows = _sizes("reduce_scatter", sizes, members.size, total)
    if members.size == 1:
        return cast(x, x._meta.dtype)
    kind = "sum" if op == "mean" else op
    out: Tensor = run(reduce_scatter_of, front, rows, kind, members.ranks)
    out = out / members.size if op == "mean" else out
    return _back(out, dim)


def all_to_all(
    x: Tensor,
    group: Group | Iterable[int] | None = None,
    split_dim: int = 0,
    concat_dim: int = 0,
    split_sizes: Sequence[int] | None = None,
    concat_sizes: Sequence[int] | None = None,
) -> Tensor:
    """Send part i of `x`, along `split_dim`, to rank i; join the received parts along `concat_dim`.

    split_sizes   how long the part for each rank is; equal parts where it is not given
    concat_sizes  how long `concat_dim` is of what comes from each rank; where it is not given, as
                  long as here, and with equal dimensions as long as what goes there

    ShapeError if the parts are not all of `x`.
    """
    members, x = Group.of(group), _tensor("all_to_all", x)
    split = wrap_dim("all_to_all", split_dim, x._meta.ndim)
    concat = wrap_dim("all_to_all", concat_dim, x._meta.ndim)
    if x._meta.ndim == 0:
        raise ShapeError("all_to_all: a 0-d tensor has no dimension to be split or joined")
    n, total = members.size, x._meta.shape[split]
    send_sizes = (
        _even("all_to_all", total, n)
        if split_sizes is None
        else _sizes("all_to_all", split_sizes, n, total)
    )
    if concat_sizes is None:
        receive_sizes = send_sizes if split == concat else (x._meta.shape[concat],) * n
    else:
        receive_sizes = _sizes("all_to_all", concat_sizes, n, None)
    if n == 1:
        return cast(x, x._meta.dtype)
    if split == concat:
        return _back(
            _exchanged(_front("all_to_all", x, split), send_sizes, receive_sizes, members.ranks),
            split,
        )
    return _resplit(x, split, concat, send_sizes, receive_sizes, members)


def _exchanged(
    x: Tensor, send_sizes: tuple[int, ...], receive_sizes: tuple[int, ...], ranks: tuple[int, ...]
) -> Tensor:
    out: Tensor = run(all_to_all_of, x, send_sizes, receive_sizes, ranks)
    return out


def _resplit(
    x: Tensor,
    split: int,
    concat: int,
    send_sizes: tuple[int, ...],
    receive_sizes: tuple[int, ...],
    members: Group,
) -> Tensor:
    """Exchange parts whose shape changes: send all parts as rows of one element."""
    shape = x._meta.shape
    rest = math.prod(d for i, d in enumerate(shape) if i not in (split, concat))
    parts = x.split(list(send_sizes), split)
    flat = cat([part.contiguous().reshape(-1) for part in parts])
    own = send_sizes[members.rank]
    sent = tuple(rows * shape[concat] * rest for rows in send_sizes)
    come = tuple(own * length * rest for length in receive_sizes)
    out = _exchanged(flat, sent, come, members.ranks)
    pieces = []
    for piece, length in zip(out.split(list(come), 0), receive_sizes, strict=True):
        target = list(shape)
        target[split], target[concat] = own, length
        pieces.append(piece.reshape(target))
    return cat(pieces, concat)


def broadcast(
    x: Tensor | None,
    src: int,
    group: Group | Iterable[int] | None = None,
    meta: TensorMeta | None = None,
) -> Tensor:
    """Return the `x` of rank `src` on all ranks of the group; a rank without it passes its `meta`.

    ArgumentError for a rank that is not in the group, and on `src` without `x`.
    """
    members = Group.of(group)
    members.rank_of(src, "broadcast")
    if x is None:
        if meta is None or members.rank == members.rank_of(src, "broadcast"):
            raise ArgumentError("broadcast: rank src has an x, and others have one or say its meta")
        at = lane(device=meta.device)
        return run(broadcast_to, meta.dense(), src, members.ranks, at=at)  # type: ignore[no-any-return]
    x = _tensor("broadcast", x)
    if members.size == 1:
        return cast(x, x._meta.dtype)
    out: Tensor = run(broadcast_from, x, src, members.ranks)
    return out


def send(x: Tensor, dst: int, group: Group | Iterable[int] | None = None, tag: int = 0) -> None:
    """Send `x` to rank `dst`, whose `recv` says its meta.

    ArgumentError for this rank itself, and for one that is not in the group.
    """
    members, x = Group.of(group), _tensor("send", x)
    _peer("send", dst, members)
    run(send_from, x, dst, tag, members.ranks, at=lane_for("send", dst, x._meta.device))


def recv(
    meta: TensorMeta, src: int, group: Group | Iterable[int] | None = None, tag: int = 0
) -> Tensor:
    """Receive a tensor like `meta` from rank `src`."""
    if not isinstance(meta, TensorMeta):
        raise ArgumentTypeError(f"recv: meta is a TensorMeta, got {type(meta).__name__}")
    members = Group.of(group)
    _peer("recv", src, members)
    at = lane_for("recv", src, meta.device)
    out: Tensor = run(recv_of, meta.dense(), src, tag, members.ranks, at=at)
    return out


def _peer(name: str, peer: int, members: Group) -> None:
    if members.rank_of(peer, name) == members.rank:
        raise ArgumentError(f"{name}: rank {peer} is this rank itself")


def barrier(group: Group | Iterable[int] | None = None, text: str = "barrier()") -> None:
    """Wait, as an instruction, until every rank of the group has come here; Python goes on.

    text  what the ranks must agree on; the instruction fails where they do not
    """
    members = Group.of(group)
    if members.size > 1:
        run(barrier_of, members.ranks, text)


# --- in place -------------------------------------------------------------------------------------


def changed(op: Any, x: Tensor, *attrs: object, at: Lane | None = None) -> None:
    """Issue an instruction that writes `x` in its place, whatever its strides; autograd does not
    see it.
    """
    meta = x._meta
    if x._node is None and meta.contiguous:  # as gradients are: nothing is to be switched
        if hot["departed"]:
            run(op, x, *attrs, at=at)
        else:  # as `run` does it
            op(x, (at or collective.get(meta.device) or lane("", 0, meta.device)).order, *attrs)
        return
    with recording(False):
        dense = x.contiguous()
        run(op, dense, *attrs, at=at)
        if dense is not x:
            x.copy_(dense)


def all_reduce_(x: Tensor, op: str = "sum", group: Group | Iterable[int] | None = None) -> Tensor:
    """`all_reduce` in the place of `x`."""
    members = group if isinstance(group, Group) else Group.of(group)
    if op != "sum" or not isinstance(x, Tensor):
        op = checked_op("all_reduce", op, _tensor("all_reduce", x)._meta)
    if members.size > 1:
        changed(all_reduce_into, x, "sum" if op == "mean" else op, members.ranks)
        if op == "mean":
            with recording(False):
                x.div_(members.size)
    return x


def reduce_(
    x: Tensor, dst: int, op: str = "sum", group: Group | Iterable[int] | None = None
) -> Tensor:
    """Put the reduction of the ranks' `x` into the `x` of rank `dst`; the others keep theirs."""
    members, x = Group.of(group), _tensor("reduce", x)
    op = checked_op("reduce", op, x._meta)
    members.rank_of(dst, "reduce")
    if members.size > 1:
        changed(reduce_into, x, "sum" if op == "mean" else op, dst, members.ranks)
        if op == "mean" and world().rank == dst:
            with recording(False):
                x.div_(members.size)
    return x


def broadcast_(x: Tensor, src: int, group: Group | Iterable[int] | None = None) -> Tensor:
    """Replace every rank's `x` with the `x` of rank `src`."""
    members, x = Group.of(group), _tensor("broadcast", x)
    members.rank_of(src, "broadcast")
    if members.size > 1:
        changed(broadcast_into, x, src, members.ranks)
    return x


def recv_(x: Tensor, src: int, group: Group | Iterable[int] | None = None, tag: int = 0) -> Tensor:
    """Receive the tensor that rank `src` sends, in `x`."""
    members, x = Group.of(group), _tensor("recv", x)
    _peer("recv", src, members)
    changed(recv_into, x, src, tag, members.ranks, at=lane_for("recv", src, x._meta.device))
    return x
