"""The instructions of collectives: an `Exchange` each, declared like every op.

Each changes `order`, the tensor of its lane (`flowvm.ranks.world`): that keeps them in the order
issued, in graphs too.  Ranks are attributes, as numbers of the world.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, AutogradError
from flowvm.launch import Launch, elsewhere
from flowvm.meta.device import cpu
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.collectives.cpu import mpi
from flowvm.ops.collectives.cpu.exchange import both, none, one
from flowvm.ops.collectives.exchanges import TRAFFIC, Exchange, Traffic, exchange
from flowvm.ops.declare.letters import unsplit
from flowvm.ops.declare.registry import op as declare
from flowvm.ops.declare.registry import operator_of
from flowvm.ops.shapes.fill import zeros_like
from flowvm.ranks.lanes import Lane, lane, lane_for
from flowvm.ranks.world import Group
from flowvm.vm.callers.hot import hot
from flowvm.vm.engine.engine import engine


def run(op: Any, *args: Any, at: Lane | None = None) -> Any:
    """Issue one of the instructions below to its lane.

    By default it is the lane of collectives on the tensor's device.  Arguments are at most one
    tensor, then attributes.
    """
    x = args[0]
    if not isinstance(x, Tensor):
        at = at or lane()
        args = (at.order, *args)
    else:
        if at is None:
            at = lane("", 0, x._meta.device)
        if not x._meta.contiguous:
            x = x.contiguous()
        elif engine.lending.holds(x._ref) and not _writes_first(op):
            x = x.clone()  # nobody waits for an exchange: who has the memory may write there
        args = (x, at.order, *args[1:])
    if hot["departed"]:  # a graph is captured, perhaps, which asks what stream it is
        with at.within():
            return op(*args)
    out = op(*args)  # its entry says the stream
    if out is not None and out is not args[0]:  # what is made there is released there, else it
        engine.storages.stream_of[out._ref] = (
            at.stream.number
        )  # would be the allocator's of another stream
    return out


def _writes_first(op: Any) -> bool:
    """Return True if an instruction writes its first operand."""
    declared = operator_of(op)
    return declared.signature.inputs[0] in declared.signature.writes


def _unequal(rows: tuple[int, ...]) -> list[object]:
    """Return the sizes of the parts if they differ, since ranks must agree on them."""
    return [rows] if len({*rows}) > 1 else []


def _elements(rows: tuple[int, ...], meta: TensorMeta) -> tuple[int, ...]:
    """Convert numbers of rows of a tensor to numbers of elements."""
    each = math.prod(meta.shape[1:])
    return tuple(r * each for r in rows)


CUDA = "exchange:steps"


def _answered(e: Exchange, outputs: Sequence[TensorMeta], operands: Sequence[TensorMeta]) -> Launch:
    """Return the Launch of an exchange; `operands`: outputs, then inputs, without `order`."""
    if e.lane.device is not cpu:
        return elsewhere(tuple(outputs), e)
    return mpi.launched(e, (none, one, both)[len(operands)], outputs, operands)


@declare(
    "x, order! -> out", name="all_reduce", complex=True, half="cuda", cuda=CUDA,
    grad=lambda c, g: (_reduced_back(c.attrs, g), None), letters=unsplit,
)  # fmt: skip
def all_reduce_of(x: TensorMeta, order: TensorMeta, how: str, ranks: tuple[int, ...]) -> Launch:
    """The reduction of the ranks' `x`."""
    e = exchange("all_reduce", x, ranks, lane(device=x.device), [how])._replace(how=how)
    out = x.dense()
    return _answered(e, (out,), (out, x))


@declare("x!, order! ->", name="all_reduce_", complex=True, half="cuda", cuda=CUDA, letters=unsplit)
def all_reduce_into(x: TensorMeta, order: TensorMeta, how: str, ranks: tuple[int, ...]) -> Launch:
    """The reduction of `x` over the ranks, in its place."""
    e = exchange("all_reduce", x, ranks, lane(device=x.device), [how])
    return _answered(e._replace(how=how, same=True), (), (x,))


@declare("x!, order! ->", name="reduce_", complex=True, half="cuda", cuda=CUDA, letters=unsplit)
def reduce_into(
    x: TensorMeta, order: TensorMeta, how: str, dst: int, ranks: tuple[int, ...]
) -> Launch:
    """Reduce `x` over the ranks into the `x` of rank `dst`."""
    e = exchange("reduce", x, ranks, lane(device=x.device), [how, dst])
    root = Group.of(ranks).rank_of(dst, "reduce")
    return _answered(e._replace(how=how, same=True, root=root), (), (x,))


@declare(
    "x, order! -> out", name="all_gather", half="bits", complex=True, cuda=CUDA,
    grad=lambda c, g: (run(reduce_scatter_of, g, c.attrs[0], "sum", c.attrs[1]), None),
    letters=unsplit,
)  # fmt: skip
def all_gather_of(
    x: TensorMeta, order: TensorMeta, rows: tuple[int, ...], ranks: tuple[int, ...]
) -> Launch:
    """The ranks' rows, one behind the other; `rows` of each."""
    out = x.with_shape((sum(rows), *x.shape[1:]))
    e = exchange("all_gather", out, ranks, lane(device=x.device), _unequal(rows))
    e = e._replace(elements=x.numel, receive_sizes=_elements(rows, x))
    return _answered(e, (out,), (out, x))


@declare(
    "x, order! -> out", name="reduce_scatter", complex=True, half="cuda", cuda=CUDA,
    grad=lambda c, g: (_gathered_back(c.attrs, g), None), letters=unsplit,
)  # fmt: skip
def reduce_scatter_of(
    x: TensorMeta, order: TensorMeta, rows: tuple[int, ...], how: str, ranks: tuple[int, ...]
) -> Launch:
    """This rank's rows of the reduction; `rows` of each."""
    e = exchange("reduce_scatter", x, ranks, lane(device=x.device), [how, *_unequal(rows)])
    out = x.with_shape((rows[Group.of(ranks).rank], *x.shape[1:]))
    return _answered(e._replace(how=how, send_sizes=_elements(rows, x)), (out,), (out, x))


@declare(
    "x, order! -> out", name="all_to_all", half="bits", complex=True, cuda=CUDA,
    grad=lambda c, g: (run(all_to_all_of, g, c.attrs[1], c.attrs[0], c.attrs[2]), None),
    letters=unsplit,
)  # fmt: skip
def all_to_all_of(
    x: TensorMeta,
    order: TensorMeta,
    send_sizes: tuple[int, ...],
    receive_sizes: tuple[int, ...],
    ranks: tuple[int, ...],
) -> Launch:
    """Rows from every rank: `send_sizes` to each, `receive_sizes` from each."""
    # how much each sends differs from rank to rank, so it is no part of what all must agree on
    per_peer = x.with_shape((len(ranks), math.prod(x.shape[1:])))
    e = exchange("all_to_all", per_peer, ranks, lane(device=x.device))
    out = x.with_shape((sum(receive_sizes), *x.shape[1:]))
    e = e._replace(
        elements=x.numel,
        send_sizes=_elements(send_sizes, x),
        receive_sizes=_elements(receive_sizes, x),
    )
    return _answered(e, (out,), (out, x))


@declare(
    "x, order! -> out", name="broadcast", half="bits", complex=True, cuda=CUDA,
    grad=lambda c, g: (_to_source(c.attrs, g), None), letters=unsplit,
)  # fmt: skip
def broadcast_from(x: TensorMeta, order: TensorMeta, src: int, ranks: tuple[int, ...]) -> Launch:
    """Broadcast the `x` of rank `src`."""
    out = x.dense()
    return _answered(_broadcasting(out, src, ranks, same=False), (out,), (out, x))


@declare("order! -> out", name="broadcast", half="bits", complex=True, cuda=CUDA, letters=unsplit)
def broadcast_to(order: TensorMeta, meta: TensorMeta, src: int, ranks: tuple[int, ...]) -> Launch:
    """Receive the broadcast of rank `src` on a rank that has no `x`."""
    out = meta.dense()
    return _answered(_broadcasting(out, src, ranks), (out,), (out,))


@declare("x!, order! ->", name="broadcast_", half="bits", complex=True, cuda=CUDA, letters=unsplit)
def broadcast_into(x: TensorMeta, order: TensorMeta, src: int, ranks: tuple[int, ...]) -> Launch:
    """Broadcast the `x` of rank `src` into the `x` of all ranks."""
    return _answered(_broadcasting(x.dense(), src, ranks), (), (x,))


def _broadcasting(
    meta: TensorMeta, src: int, ranks: tuple[int, ...], same: bool = True
) -> Exchange:
    root = Group.of(ranks).rank_of(src, "broadcast")
    e = exchange("broadcast", meta, ranks, lane(device=meta.device), [src])
    return e._replace(root=root, same=same)


@declare("x, order! ->", name="send", half="bits", complex=True, cuda=CUDA, letters=unsplit)
def send_from(
    x: TensorMeta, order: TensorMeta, dst: int, tag: int, ranks: tuple[int, ...]
) -> Launch:
    """Send `x` to rank `dst`, on the lane for that."""
    return _answered(_message("send", x, dst, tag, ranks), (), (x,))


@declare("order! -> out", name="recv", half="bits", complex=True, cuda=CUDA, letters=unsplit)
def recv_of(
    order: TensorMeta, meta: TensorMeta, src: int, tag: int, ranks: tuple[int, ...]
) -> Launch:
    """Receive a tensor like `meta` from rank `src`."""
    out = meta.dense()
    return _answered(_message("recv", out, src, tag, ranks), (out,), (out,))


@declare("x!, order! ->", name="recv_", half="bits", complex=True, cuda=CUDA, letters=unsplit)
def recv_into(
    x: TensorMeta, order: TensorMeta, src: int, tag: int, ranks: tuple[int, ...]
) -> Launch:
    """Receive the tensor that rank `src` sends, in `x`."""
    return _answered(_message("recv", x, src, tag, ranks), (), (x,))


def _message(kind: str, meta: TensorMeta, peer: int, tag: int, ranks: tuple[int, ...]) -> Exchange:
    group = Group.of(ranks)
    number = group.rank_of(peer, kind)
    if number == group.rank:
        raise ArgumentError(f"{kind}: a rank has nothing to send to itself, and {peer} is this one")
    at = lane_for(kind, peer, meta.device)
    e = exchange(kind, meta.dense(), ranks, at, [peer, f"tag {tag}" if tag else ""], peer)
    return e._replace(root=number, tag=tag, same=True)


@declare("order! ->", name="barrier", letters=unsplit)
def barrier_of(order: TensorMeta, ranks: tuple[int, ...], text: str) -> Launch:
    """Wait for all ranks of the group, which must agree on `text`."""
    group = Group.of(ranks)
    joined = group.joined("barrier")
    return _answered(
        Exchange("barrier", text, joined, lane(), order.dtype, 0, own=group.rank), (), ()
    )


# --- gradients ------------------------------------------------------------------------------------


def _reduced_back(attrs: tuple[object, ...], g: Tensor) -> Tensor:
    how, ranks = attrs
    if how != "sum":
        raise AutogradError(f"all_reduce: only a sum has a gradient, not {how!r}")
    out: Tensor = run(all_reduce_of, g, "sum", ranks)
    return out


def _gathered_back(attrs: tuple[object, ...], g: Tensor) -> Tensor:
    rows, how, ranks = attrs
    if how != "sum":
        raise AutogradError(f"reduce_scatter: only a sum has a gradient, not {how!r}")
    out: Tensor = run(all_gather_of, g, rows, ranks)
    return out


def _to_source(attrs: Attrs, g: Tensor) -> Tensor:
    """The sum of all gradients where the values came from, zeros elsewhere."""
    src, ranks = attrs
    total: Tensor = run(all_reduce_of, g, "sum", ranks)
    return total if Group.of(ranks).rank == ranks.index(src) else zeros_like(total)


TRAFFIC.say(Traffic(2.0, lambda n: 2 * (n - 1) / n, sums=True), all_reduce_of, all_reduce_into)
TRAFFIC.say(Traffic(1.0, lambda n: (n - 1) / n, sums=True), reduce_scatter_of)
TRAFFIC.say(Traffic(1.0, lambda n: (n - 1) / n), all_gather_of, all_to_all_of)
TRAFFIC.say(Traffic(1.0, lambda n: 1.0), broadcast_from, broadcast_to, broadcast_into)
TRAFFIC.say(Traffic(1.0, lambda n: 1.0, paired=True), send_from, recv_of, recv_into)
