"""The instructions of collectives: one of MPI's functions each, declared like every op.

Each changes `order`, the tensor of its lane (`flowvm.ranks.world`): that keeps them in the order
issued, in graphs too.  Ranks are attributes, as numbers of the world.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, AutogradError, ShapeError
from flowvm.launch import Launch
from flowvm.meta.meta import TensorMeta
from flowvm.ops.collectives.cpu.exchange import IN, OUT, Argument, Program, both, none, one, value
from flowvm.ops.declare.registry import op as declare
from flowvm.ops.shapes.fill import zeros_like
from flowvm.ranks.library import in_place, moved_type, number_type, reduction
from flowvm.ranks.world import Group, Lane, lane, lane_for
from flowvm.vm.callers.hot import hot
from flowvm.vm.engine.engine import engine

MOST = 1 << 31  # elements that MPI's C ints count
TO, FROM = Argument(OUT, 0), Argument(IN, 0)


def run(op: Any, *args: Any, at: Lane | None = None) -> Any:
    """Issue one of the instructions below to its lane, by default that of collectives: at most one
    tensor first, then attributes.
    """
    at = lane() if at is None else at
    x = args[0]
    if not isinstance(x, Tensor):
        args = (at.order, *args)
    elif x._meta.contiguous:
        args = (x, at.order, *args[1:])
    else:
        args = (x.contiguous(), at.order, *args[1:])
    if hot["departed"]:  # a graph is captured, perhaps, which asks what stream it is
        with at.within():
            return op(*args)
    out = op(*args)  # its entry says the stream
    if out is not None:
        engine.stream_of[out._ref] = at.stream.number
    return out


def _program(name: str, meta: TensorMeta, ranks: tuple[int, ...], at: Lane, *said: Any) -> Program:
    if meta.numel >= MOST:
        raise ShapeError(f"{name}: at most {MOST - 1} elements at a time, got {meta.numel}")
    words = ", ".join([repr(meta), *filter(None, map(str, said))])
    return Program(Group.of(ranks).joined(name), at, f"{name}({words})")


def _places(rows: Sequence[int], each: int) -> list[int]:
    """Where each rank's part begins, in elements."""
    return [0, *accumulate(r * each for r in rows)][:-1]


@declare(
    "x, order! -> out", name="all_reduce", complex=True,
    grad=lambda c, g: (_reduced_back(c.attrs, g), None),
)  # fmt: skip
def all_reduce_of(x: TensorMeta, order: TensorMeta, how: str, ranks: tuple[int, ...]) -> Launch:
    """The reduction of the ranks' `x`."""
    p = _program("all_reduce", x, ranks, lane(), how)
    kind, by = value(number_type(x.dtype)), value(reduction(how, x.dtype))
    p.call("MPI_Iallreduce", FROM, TO, value(x.numel), kind, by, value(p.joined.handle))
    out = x.dense()
    return p.launch(both, (out,), (out, x))


@declare("x!, order! ->", name="all_reduce_", complex=True)
def all_reduce_into(x: TensorMeta, order: TensorMeta, how: str, ranks: tuple[int, ...]) -> Launch:
    """The reduction of `x` over the ranks, in its place."""
    p = _program("all_reduce", x, ranks, lane(), how)
    kind, by = value(number_type(x.dtype)), value(reduction(how, x.dtype))
    same = value(in_place())
    p.call("MPI_Iallreduce", same, TO, value(x.numel), kind, by, value(p.joined.handle))
    return p.launch(one, (), (x,))


@declare("x!, order! ->", name="reduce_", complex=True)
def reduce_into(
    x: TensorMeta, order: TensorMeta, how: str, dst: int, ranks: tuple[int, ...]
) -> Launch:
    """The reduction of `x` over the ranks, in the place of that of rank `dst`."""
    p, group = _program("reduce", x, ranks, lane(), how, dst), Group.of(ranks)
    kind, by = value(number_type(x.dtype)), value(reduction(how, x.dtype))
    root = group.rank_of(dst, "reduce")
    sent = value(in_place()) if group.rank == root else TO
    comm = value(p.joined.handle)
    p.call("MPI_Ireduce", sent, TO, value(x.numel), kind, by, value(root), comm)
    return p.launch(one, (), (x,))


@declare(
    "x, order! -> out", name="all_gather", half="bits", complex=True,
    grad=lambda c, g: (run(reduce_scatter_of, g, c.attrs[0], "sum", c.attrs[1]), None),
)  # fmt: skip
def all_gather_of(
    x: TensorMeta, order: TensorMeta, rows: tuple[int, ...], ranks: tuple[int, ...]
) -> Launch:
    """The ranks' rows, one behind the other; `rows` of each."""
    out = x.with_shape((sum(rows), *x.shape[1:]))
    p = _program("all_gather", out, ranks, lane(), rows if len({*rows}) > 1 else "")
    each = math.prod(x.shape[1:])
    kind, comm = value(moved_type(x.dtype.itemsize)), value(p.joined.handle)
    counts, places = p.numbers([r * each for r in rows]), p.numbers(_places(rows, each))
    if len({*rows}) == 1:
        count = value(x.numel)
        p.call("MPI_Iallgather", FROM, count, kind, TO, count, kind, comm)
    else:
        p.call("MPI_Iallgatherv", FROM, value(x.numel), kind, TO, counts, places, kind, comm)
    return p.launch(both, (out,), (out, x))


@declare(
    "x, order! -> out", name="reduce_scatter", complex=True,
    grad=lambda c, g: (_gathered_back(c.attrs, g), None),
)  # fmt: skip
def reduce_scatter_of(
    x: TensorMeta, order: TensorMeta, rows: tuple[int, ...], how: str, ranks: tuple[int, ...]
) -> Launch:
    """This rank's rows of the reduction; `rows` of each."""
    p = _program("reduce_scatter", x, ranks, lane(), how, rows if len({*rows}) > 1 else "")
    out = x.with_shape((rows[Group.of(ranks).rank], *x.shape[1:]))
    each = math.prod(x.shape[1:])
    counts = p.numbers([r * each for r in rows])
    kind, by = value(number_type(x.dtype)), value(reduction(how, x.dtype))
    p.call("MPI_Ireduce_scatter", FROM, TO, counts, kind, by, value(p.joined.handle))
    return p.launch(both, (out,), (out, x))


@declare(
    "x, order! -> out", name="all_to_all", half="bits", complex=True,
    grad=lambda c, g: (run(all_to_all_of, g, c.attrs[1], c.attrs[0], c.attrs[2]), None),
)  # fmt: skip
def all_to_all_of(
    x: TensorMeta,
    order: TensorMeta,
    given: tuple[int, ...],
    taken: tuple[int, ...],
    ranks: tuple[int, ...],
) -> Launch:
    """Rows from every rank: `given` to each, `taken` from each."""
    # how much each sends differs from rank to rank, so it is no part of what all must agree on
    each = math.prod(x.shape[1:])
    p = _program("all_to_all", x.with_shape((len(ranks), each)), ranks, lane())
    out = x.with_shape((sum(taken), *x.shape[1:]))
    kind = value(moved_type(x.dtype.itemsize))
    lists = [
        p.numbers(numbers)
        for rows in (given, taken)
        for numbers in ([r * each for r in rows], _places(rows, each))
    ]
    p.call(
        "MPI_Ialltoallv", FROM, lists[0], lists[1], kind, TO, lists[2], lists[3], kind,
        value(p.joined.handle),
    )  # fmt: skip
    return p.launch(both, (out,), (out, x))


@declare(
    "x, order! -> out", name="broadcast", half="bits", complex=True,
    grad=lambda c, g: (_to_source(c.attrs, g), None),
)  # fmt: skip
def broadcast_from(x: TensorMeta, order: TensorMeta, src: int, ranks: tuple[int, ...]) -> Launch:
    """What rank `src` has in `x`."""
    group = Group.of(ranks)
    root = group.rank_of(src, "broadcast")
    p = _program("broadcast", x.dense(), ranks, lane(), src)
    out = x.dense()
    if group.rank == root:
        p.copied = out.nbytes
    _broadcasting(p, out, root)
    return p.launch(both, (out,), (out, x))


@declare("order! -> out", name="broadcast", half="bits", complex=True)
def broadcast_to(order: TensorMeta, meta: TensorMeta, src: int, ranks: tuple[int, ...]) -> Launch:
    """What rank `src` has, on a rank that has no `x`."""
    p = _program("broadcast", meta.dense(), ranks, lane(), src)
    _broadcasting(p, meta, Group.of(ranks).rank_of(src, "broadcast"))
    return p.launch(one, (meta.dense(),), (meta.dense(),))


@declare("x!, order! ->", name="broadcast_", half="bits", complex=True)
def broadcast_into(x: TensorMeta, order: TensorMeta, src: int, ranks: tuple[int, ...]) -> Launch:
    """What rank `src` has in `x`, in all ranks' `x`."""
    p = _program("broadcast", x.dense(), ranks, lane(), src)
    _broadcasting(p, x, Group.of(ranks).rank_of(src, "broadcast"))
    return p.launch(one, (), (x,))


def _broadcasting(p: Program, meta: TensorMeta, root: int) -> None:
    kind = value(moved_type(meta.dtype.itemsize))
    p.call("MPI_Ibcast", TO, value(meta.numel), kind, value(root), value(p.joined.handle))


@declare("x, order! ->", name="send", half="bits", complex=True)
def send_from(
    x: TensorMeta, order: TensorMeta, dst: int, tag: int, ranks: tuple[int, ...]
) -> Launch:
    """Send `x` to rank `dst`, on the lane for that."""
    return _message("MPI_Isend", "send", x, dst, tag, ranks).launch(one, (), (x,))


@declare("order! -> out", name="recv", half="bits", complex=True)
def recv_of(
    order: TensorMeta, meta: TensorMeta, src: int, tag: int, ranks: tuple[int, ...]
) -> Launch:
    """What rank `src` sends: a tensor like `meta`."""
    out = meta.dense()
    return _message("MPI_Irecv", "recv", out, src, tag, ranks).launch(one, (out,), (out,))


@declare("x!, order! ->", name="recv_", half="bits", complex=True)
def recv_into(
    x: TensorMeta, order: TensorMeta, src: int, tag: int, ranks: tuple[int, ...]
) -> Launch:
    """What rank `src` sends, in `x`."""
    return _message("MPI_Irecv", "recv", x, src, tag, ranks).launch(one, (), (x,))


def _message(
    function: str, name: str, meta: TensorMeta, peer: int, tag: int, ranks: tuple[int, ...]
) -> Program:
    group = Group.of(ranks)
    number = group.rank_of(peer, name)
    if number == group.rank:
        raise ArgumentError(f"{name}: a rank has nothing to send to itself, and {peer} is this one")
    at = lane_for(name, peer)
    p = _program(name, meta.dense(), ranks, at, peer, *([f"tag {tag}"] if tag else []))
    p.rows, p.row = (), at.row
    kind, comm = value(moved_type(meta.dtype.itemsize)), value(p.joined.handle)
    p.call(function, TO, value(meta.numel), kind, value(number), value(tag), comm)
    return p


@declare("order! ->", name="barrier")
def barrier_of(order: TensorMeta, ranks: tuple[int, ...]) -> Launch:
    """Wait for all ranks of the group."""
    p = Program(Group.of(ranks).joined("barrier"), lane(), "barrier()")
    p.call("MPI_Ibarrier", value(p.joined.handle))
    return p.launch(none, (), ())


# --- gradients ------------------------------------------------------------------------------------


def _reduced_back(attrs: tuple[Any, ...], g: Tensor) -> Tensor:
    how, ranks = attrs
    if how != "sum":
        raise AutogradError(f"all_reduce: only a sum has a gradient, not {how!r}")
    out: Tensor = run(all_reduce_of, g, "sum", ranks)
    return out


def _gathered_back(attrs: tuple[Any, ...], g: Tensor) -> Tensor:
    rows, how, ranks = attrs
    if how != "sum":
        raise AutogradError(f"reduce_scatter: only a sum has a gradient, not {how!r}")
    out: Tensor = run(all_gather_of, g, rows, ranks)
    return out


def _to_source(attrs: tuple[Any, ...], g: Tensor) -> Tensor:
    """The sum of all gradients where the values came from, zeros elsewhere."""
    src, ranks = attrs
    total: Tensor = run(all_reduce_of, g, "sum", ranks)
    return total if Group.of(ranks).rank == ranks.index(src) else zeros_like(total)
