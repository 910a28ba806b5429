"""Boxing: the same global tensor held otherwise, by the least communication.

Along one dimension of the placement:

    P -> B      all-reduce              S(i) -> S(j)  all-to-all
    P -> S      reduce-scatter          B -> S        a slice, nothing is sent
    S -> B      all-gather              B, S -> P     the first rank keeps it, the others have zeros

Several dimensions change one after the other, each among the ranks along it.  A dimension of the
placement whose split is cut again by a later one changes when the later one is out of the way.
Another placement: where both are arrays of ranks of one shape, each sends its part to its
counterpart; else the tensor is made whole, sent to who has not got it, and cut.

What a step sends is known before it is made: `cost`, in bytes that each rank receives.  The steps
depend on shapes and sbp alone, so all ranks issue the same collectives in the same order.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from flowvm.eager.modes import recording
from flowvm.eager.tensor import Tensor, alias, new_tensor
from flowvm.errors import ArgumentError
from flowvm.meta.global_meta import GlobalMeta
from flowvm.meta.meta import TensorMeta
from flowvm.meta.placements import PARTIAL, Sbps, broadcast, cut, part, placement, sizes
from flowvm.ops.declare.composite import filled_of
from flowvm.ops.placed.agreement import settle
from flowvm.ops.placed.transport import Transport as Transport
from flowvm.ops.placed.transport import transport as transport
from flowvm.ops.shapes.slices import narrow

if TYPE_CHECKING:
    from flowvm.meta.placements import sbp


class Step(NamedTuple):
    """A change along one dimension of the placement."""

    axis: int
    before: Sbps
    after: Sbps

    def __repr__(self) -> str:
        old, new = self.before[self.axis], self.after[self.axis]
        return f"{old.short} -> {new.short}" + (f" along {self.axis}" if self.axis else "")


@functools.cache
def steps(before: Sbps, after: Sbps) -> tuple[Step, ...]:
    """The changes that lead from one to the other."""
    return tuple(_steps(before, after))


def _steps(before: Sbps, after: Sbps) -> Iterator[Step]:
    # invariant: an axis that has its target keeps it, and an axis gives way once at most
    now = before
    while now != after:
        differing = [k for k, (a, b) in enumerate(zip(now, after, strict=True)) if a is not b]
        ready = [
            k
            for i, k in enumerate(differing)
            if _is_last(now, k, now[k])
            and _is_last(now, k, after[k])
            and not any(after[k] in (now[j], after[j]) for j in differing[:i] if after[k].is_split)
        ]
        if ready:
            k, to = ready[0], after[ready[0]]
        else:  # a later dimension cuts the same again: the last one that does gives way
            dims = {now[differing[0]].dim, after[differing[0]].dim}
            k = max(j for j, s in enumerate(now) if s.dim in dims and s.dim >= 0)
            to = broadcast
        step = Step(k, now, (*now[:k], to, *now[k + 1 :]))
        yield step
        now = step.after


def _is_last(now: Sbps, axis: int, one: sbp) -> bool:
    return one.dim < 0 or all(s is not one for s in now[axis + 1 :])


def step_cost(meta: GlobalMeta, step: Step) -> float:
    """Bytes that each rank receives, at most."""
    n: int = meta.placement.shape[step.axis]
    old, new = step.before[step.axis], step.after[step.axis]
    held: float = meta.nbytes
    for k, (s, count) in enumerate(zip(step.before, meta.placement.shape, strict=True)):
        if s.is_split and k != step.axis:
            held /= count
    share = held * (n - 1) / n
    if old.dim == PARTIAL:
        return 2 * share if new is broadcast else share
    if old.is_split:
        return share if new is broadcast else share / n if new.is_split else 0.0
    return 0.0


def cost(meta: GlobalMeta, sbp: Sbps) -> float:
    """Bytes that each rank receives when a tensor of `meta` is boxed to `sbp`."""
    return sum(step_cost(meta, step) for step in steps(meta.sbp, sbp))


# --- local parts and back -------------------------------------------------------------------------


def part_of(x: Tensor) -> Tensor:
    """The part of a global tensor that is here, on the same memory; outside the autograd graph."""
    meta: Any = x._meta
    return new_tensor(x._ref, meta.local, x.storage())


def global_of(local: Tensor, meta: GlobalMeta) -> Tensor:
    """The global tensor of `meta` whose part is `local`, on the same memory."""
    return new_tensor(local._ref, meta.with_local(local._meta), local.storage())


def hollow(meta: GlobalMeta) -> Tensor:
    """Return a global tensor of `meta` on a rank outside of its placement."""
    return global_of(filled_of(meta.local, 0), meta)


def inside(meta: GlobalMeta, what: str) -> None:
    """Raise ArgumentError on a rank outside of the placement."""
    if not meta.inside:
        raise ArgumentError(
            f"{what}: rank {meta.device.rank} holds nothing of a tensor placed on ranks "
            f"{meta.placement.ranks.tolist()}"
        )


# --- the changes ----------------------------------------------------------------------------------


def boxed(x: Tensor, sbp: Sbps) -> Tensor:
    """`x` held as `sbp` says; `x` itself if it is.  Outside the autograd graph."""
    meta: Any = x._meta
    if meta.sbp == sbp:
        return x
    if not meta.inside:
        return hollow(meta.with_sbp(sbp))
    with recording(False):
        local = part_of(x)
        for step in steps(meta.sbp, sbp):
            local = changed(local, meta, step)
    return global_of(local, meta.with_sbp(sbp))


def changed(x: Tensor, meta: GlobalMeta, step: Step) -> Tensor:
    """The part here of a tensor of `meta`, behind one step of boxing."""
    where, axis, rank = meta.placement, step.axis, meta.device.rank
    ranks = where.group(axis, rank)
    old, new = step.before[axis], step.after[axis]
    place: Any = where.place_of(rank)
    k, n = place[axis], len(ranks)
    # how long the parts are along the dimensions that are cut, before this dimension cuts them
    outer = part(meta.shape, where, _without(step.before, axis), place)
    if n == 1:
        return x
    use = transport[-1]()
    group = use.group(ranks)
    if old.dim == PARTIAL or (old.is_split and new.dim != PARTIAL):
        settle(where)
    if old.dim == PARTIAL:
        if new is broadcast:
            return use.all_reduce(x, "sum", group)
        parts = sizes(x._meta.shape[new.dim], n)
        return use.reduce_scatter(x.contiguous(), "sum", group, sizes=parts, dim=new.dim)
    if old.is_split and new is not broadcast and new.is_split:
        return use.all_to_all(
            x.contiguous(), group, split_dim=new.dim, concat_dim=old.dim,
            split_sizes=sizes(x._meta.shape[new.dim], n),
            concat_sizes=sizes(outer[old.dim][1] - outer[old.dim][0], n),
        )  # fmt: skip
    if old.is_split:
        if new.dim == PARTIAL:
            return _placed_in_zeros(x, outer, old.dim, k, n)
        parts = sizes(outer[old.dim][1] - outer[old.dim][0], n)
        return use.all_gather(x.contiguous(), group, sizes=parts, dim=old.dim)
    if new.is_split:
        begin, end = cut(x._meta.shape[new.dim], n, k)
        return narrow(x, new.dim, begin, end - begin)
    return x if k == 0 else filled_of(x._meta, 0)


def _placed_in_zeros(
    x: Tensor, outer: tuple[tuple[int, int], ...], dim: int, k: int, n: int
) -> Tensor:
    """A part as a summand: zeros everywhere else."""
    begin, end = outer[dim]
    shape = list(x._meta.shape)
    shape[dim] = end - begin
    out = filled_of(x._meta.with_shape(shape), 0)
    low, high = cut(end - begin, n, k)
    narrow(out, dim, low, high - low).copy_(x)
    return out


def _without(sbp: Sbps, axis: int) -> Sbps:
    return (*sbp[:axis], broadcast, *sbp[axis + 1 :])


# --- another placement ----------------------------------------------------------------------------


def moved(x: Tensor, where: placement, sbp: Sbps) -> Tensor:
    """`x` on another placement, held as `sbp` says there.  All ranks of both call it."""
    meta: Any = x._meta
    if meta.placement is where:
        return boxed(x, sbp)
    target = GlobalMeta.make(meta.shape, meta.dtype, where.device(meta.device.rank), sbp)
    if where.type != meta.placement.type:
        raise ArgumentError(
            f"a tensor does not change from {meta.placement!r} to {where!r} in one step: move "
            f"its local parts to the device, and make it global there"
        )
    source = meta.placement
    if source.shape == where.shape:
        return boxed(_to_counterparts(x, where), sbp)
    whole = boxed(x, (broadcast,) * len(source.shape))
    rank, first = meta.device.rank, source.flat[0]
    local = part_of(whole) if meta.inside else None
    lacking = tuple(r for r in where.flat if r not in source.flat)
    use = transport[-1]() if lacking else None
    if use is not None and (rank in lacking or rank == first):
        ranks = (first, *lacking)
        if len(ranks) == 2:
            if rank == first:
                use.send(local, lacking[0])
            else:
                local = use.recv(meta.whole, first)
        else:
            local = use.broadcast(local, first, use.group(ranks), meta=meta.whole)
    if not target.inside or local is None:
        return hollow(target)
    held = target.with_sbp((broadcast,) * len(where.shape))
    return boxed(global_of(local, held), sbp)


def _to_counterparts(x: Tensor, where: placement) -> Tensor:
    """Move part k of `x` to rank k of `where`, in the order of the parts, which all ranks share."""
    meta: Any = x._meta
    rank = meta.device.rank
    target = GlobalMeta.make(meta.shape, meta.dtype, where.device(rank), meta.sbp)
    use, received = transport[-1](), None
    for source, to in zip(meta.placement.flat, where.flat, strict=True):
        if source == to == rank:
            received = part_of(x)
        elif rank == source:
            use.send(part_of(x).contiguous(), to)
        elif rank == to:
            place: Any = where.place_of(to)
            bounds = part(meta.shape, where, meta.sbp, place)
            shape = [end - begin for begin, end in bounds]
            received = use.recv(TensorMeta.of(shape, meta.dtype, meta.device.local), source)
    return hollow(target) if received is None else global_of(received, target)


def bytes_of(count: float) -> str:
    """Return a number of bytes as a person reads it."""
    if count < 1024:
        return f"{math.ceil(count)} B"
    return f"{count / 1024:.4g} KiB" if count < 1 << 20 else f"{count / (1 << 20):.4g} MiB"


def same_memory(x: Tensor, meta: GlobalMeta) -> Tensor:
    """`x` seen as `meta`, on its memory."""
    return alias(x, meta)
