"""Global tensors made of local ones, of numbers, and of each other: `to_global`, `to_local`, the
`placement` and `sbp` of functions that make tensors; and what lower layers ask about them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.global_calls import Globals, partial_grads
from flowvm.eager.modes import grad_enabled, recording, recording_to
from flowvm.eager.nodes import Node
from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentError, ArgumentTypeError, ShapeError
from flowvm.loading.lazy import lazy
from flowvm.meta.device import Device, cpu
from flowvm.meta.dtype import ALL_DTYPES, DType
from flowvm.meta.global_meta import GlobalMeta
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.meta.placements import (
    BROADCAST,
    Sbps,
    as_sbps,
    broadcast,
    own_device,
    partial_sum,
    placed_device,
    placement,
    rank_and_size,
    world,
)
from flowvm.ops.declare.composite import Recorded, need_tensor
from flowvm.ops.declare.core import cast
from flowvm.ops.shapes.create import tensor
from flowvm.vm.callers.hot import hot

if TYPE_CHECKING:
    from flowvm.cuda.driver import runtime as runtimes
    from flowvm.eager.nodes import Node
    from flowvm.ops.placed import agreement, boxing, calls, gradients, views
    from flowvm.ranks import world as world_of_ranks
else:
    agreement = lazy("flowvm.ops.placed.agreement")
    boxing = lazy("flowvm.ops.placed.boxing")
    calls = lazy("flowvm.ops.placed.calls")
    gradients = lazy("flowvm.ops.placed.gradients")
    views = lazy("flowvm.ops.placed.views")
    world_of_ranks = lazy("flowvm.ranks.world")
    runtimes = lazy("flowvm.cuda.driver.runtime")

# --- what a tensor says ---------------------------------------------------------------------------


def _is_global(x: Tensor) -> bool:
    """True if the tensor lives on a placement.

    >>> flow.ones(2).is_global
    False
    """
    return x._meta.__class__ is GlobalMeta


def _is_local(x: Tensor) -> bool:
    """True if the tensor is this process's own.

    >>> flow.ones(2).is_local
    True
    """
    return x._meta.__class__ is not GlobalMeta


def _need_global(x: Tensor, what: str) -> GlobalMeta:
    meta: TensorMeta = need_tensor(what, "input", x)._meta
    if meta.__class__ is not GlobalMeta:
        raise ArgumentTypeError(
            f"{what}: this tensor is local; make it global by to_global(placement, sbp)"
        )
    return meta


def _placement(x: Tensor) -> placement:
    """The ranks that hold the global tensor.

    >>> flow.ones(2).to_global(flow.placement("cpu", [0]), flow.sbp.split(0)).placement
    flow.placement(type="cpu", ranks=[0])
    """
    return _need_global(x, "placement").placement


def _sbp(x: Tensor) -> Sbps:
    """The sbp of the global tensor: a tuple of one for each dimension of its placement.

    >>> flow.ones(2).to_global(flow.placement("cpu", [0]), flow.sbp.split(0)).sbp
    (flow.sbp.split(0),)
    """
    return _need_global(x, "sbp").sbp


for _name, _function in (
    ("is_global", _is_global), ("is_local", _is_local), ("placement", _placement), ("sbp", _sbp),
):  # fmt: skip
    setattr(Tensor, _name, property(_function))


@method()
def global_id(x: Tensor) -> int:
    """A number of the global tensor, the same on all ranks that made as many global tensors before
    it asked for one.

    >>> x = flow.ones(2).to_global(flow.placement("cpu", [0]), flow.sbp.split(0))
    >>> x.global_id() == x.global_id()
    True
    """
    _need_global(x, "global_id")
    extra = x.extra()
    if "global_id" not in extra:
        extra["global_id"] = next(_numbers)
    number: int = extra["global_id"]
    return number


_numbers = itertools.count(1)


@method()
def check_meta_consistency(x: Tensor) -> None:
    """Have the ranks of the tensor's placement compare its shape, dtype and sbp: where they differ,
    the next reading of a value is a CommunicationError.

    >>> x = flow.ones(2).to_global(flow.placement("cpu", [0]), flow.sbp.split(0))
    >>> x.check_meta_consistency()
    """
    meta = _need_global(x, "check_meta_consistency")
    agreement.agree(meta.placement, f"check_meta_consistency({meta!r})")


ASKED = 8  # dimensions that ranks tell each other of at least, so that a different number is seen


# --- local to global ------------------------------------------------------------------------------


def _grad_sbp(sbp: Sbps) -> Sbps:
    """Return the sbp of a gradient: each summand of a partial sum has the whole gradient."""
    return tuple(broadcast if s is partial_sum else s for s in sbp)


def _to_global_grad(c: Any, g: Tensor) -> tuple[Tensor]:
    """To the placement and sbp that the input had, or that were asked for."""
    meta, (target,) = c.metas[0], c.attrs
    if target is not None:
        g = _changed(g, g._meta.placement, target)  # type: ignore[attr-defined]
    return (_changed(g, meta.placement, _grad_sbp(meta.sbp)),)


def _from_local_grad(c: Node, g: Tensor) -> tuple[Tensor]:
    where, sbp, target = c.attrs
    g = _changed(g, where, _grad_sbp(sbp) if target is None else target)
    return (to_local(g),)


def _to_local_grad(c: Any, g: Tensor) -> tuple[Tensor]:
    """Return the local gradients as parts of the global one; broadcast parts all have the same."""
    (meta,), (target,) = c.metas, c.attrs
    held = meta.with_sbp(_grad_sbp(meta.sbp) if target is None else target)
    return (boxing.global_of(cast(g, g._meta.dtype) if not g._meta.contiguous else g, held),)


_boxing_node = Recorded("to_global", _to_global_grad, ("x",))
_global_node = Recorded("to_global", _from_local_grad, ("x",))
_local_node = Recorded("to_local", _to_local_grad, ("x",))


def _recorded(op: Recorded, x: Tensor, out: Tensor, attrs: Attrs) -> Tensor:
    if x._node is not None and grad_enabled() and out._meta.dtype.inexact:
        out._node = Node(op, (x._node,), (), (), (x._meta,), attrs, (out._meta,))
    return out


def _changed(x: Tensor, where: placement, sbp: Sbps, copy: bool = False) -> Tensor:
    """A global tensor elsewhere or held otherwise; on memory of its own, if `copy`."""
    meta: Any = x._meta
    if meta.placement is where and meta.sbp == sbp:
        return x
    with recording(False):
        out = boxing.moved(x, where, sbp)
        if copy and out.storage() is x.storage():
            now: Any = out._meta
            out = boxing.global_of(cast(boxing.part_of(out), now.dtype), now.with_sbp(now.sbp))
    return _recorded(_boxing_node, x, out, (None,))


@method()
def to_global(
    x: Tensor,
    placement: Any = None,
    sbp: Any = None,
    *,
    grad_sbp: Any = None,
    check_meta: bool = True,
    copy: bool = False,
) -> Tensor:
    """The tensor on the ranks of `placement`, held as `sbp` says.

    Of a local tensor, whose ranks all call it: `split(d)` takes what each rank has as its part, in
    the order of the ranks, and the sizes must be those of an even cut; `broadcast` takes the first
    rank's, and sends it; `partial_sum` takes each as a summand.  `check_meta=False` trusts that
    ranks have the same shape and, where it is broadcast, the same values: nothing is sent.
    It is moved to the rank's device there first.
    Of a global tensor: the same values, moved as little as possible; what is left out stays.

    grad_sbp   how its gradient is held on the way back, `sbp` by default

    >>> flow.ones(2).to_global(flow.placement("cpu", [0]), flow.sbp.broadcast).is_global
    True
    """
    meta: TensorMeta = need_tensor("to_global", "input", x)._meta
    if meta.__class__ is GlobalMeta:
        where = meta.placement if placement is None else placement
        if sbp is None and where is not meta.placement and len(where.shape) != len(meta.sbp):
            raise ArgumentError("to_global: another number of dimensions of ranks needs sbp=")
        held = meta.sbp if sbp is None else as_sbps(sbp, where, meta.ndim)
        text = f"to_global({meta!r}, {_held_text(where, held)})"
        agreement.agree(meta.placement, text)  # in one order on all ranks, or they wait in a circle
        if where is not meta.placement:
            agreement.agree(where, text)
        out = _changed(x, where, held, copy=True)
        if copy and out is x:
            out = x.clone()
        if grad_sbp is not None and out._node is not None:
            if out is x:
                out = _recorded(_boxing_node, x, boxing.same_memory(x, meta), (None,))
            out._node.attrs = (as_sbps(grad_sbp, where, meta.ndim),)
        return out
    if placement is None or sbp is None:
        raise ArgumentTypeError("to_global: a local tensor needs both placement and sbp")
    return global_of_local(x, placement, sbp, grad_sbp, check_meta=check_meta)


def global_of_local(
    x: Tensor,
    placement: Any,
    sbp: Any,
    grad_sbp: Any = None,
    *,
    check_meta: bool = True,
    tell_others: bool = True,
) -> Tensor:
    """Return `to_global` of a local tensor.  Without `tell_others` only the ranks of `placement`
    need to call it, as for a part of a mesh: other ranks are not told the shape.
    """
    meta: TensorMeta = x._meta
    outside = check_meta and tell_others and placement.place_of(rank_and_size()[0]) is None
    held = as_sbps(sbp, placement, None if outside else meta.ndim)
    x = x.to(placed_device(placement).local)
    target = None if grad_sbp is None else as_sbps(grad_sbp, placement, meta.ndim)
    if check_meta:  # shapes are asked of the ranks each time
        text = (
            f"to_global({meta.dtype.name}, {meta.ndim} dimensions, {_held_text(placement, held)})"
        )
        agreement.agree(placement, text)
    with recording(False):
        out = _from_local(x, placement, held, check_meta, tell_others)
    return _recorded(_global_node, x, out, (placement, held, target))


def _held_text(where: placement, sbp: Sbps) -> str:
    """Return how a tensor is held and where, as its meta prints it."""
    return f"{','.join(s.short for s in sbp)}@{where.ranks.tolist()}"


def _from_local(x: Tensor, where: placement, sbp: Sbps, check: bool, tell: bool) -> Tensor:
    own = rank_and_size()[0]
    place = where.place_of(own)
    local = x._meta
    shape, dtype = list(local.shape), local.dtype
    others = where.size > 1 or (tell and rank_and_size()[1] > 1)
    if others and check and (tell or place is not None):
        with recording_to(None):  # a capture needs shapes now, as all ranks' captures do
            shape, dtype = _agreed(local, where, sbp, place, tell)
    else:
        for s, n in zip(sbp, where.shape, strict=True):
            if s.is_split:
                shape[s.dim] *= n
    meta = GlobalMeta.make(tuple(shape), dtype, placed_device(where), sbp)
    if place is None:
        return boxing.hollow(meta)
    if local.shape != meta.local.shape:
        raise ShapeError(
            f"to_global: rank {own} has a part of shape {tuple(local.shape)}, and its part of a "
            f"tensor of shape {tuple(shape)} held as {sbp} has shape {tuple(meta.local.shape)}: "
            f"the first ranks have one more where it does not come out even"
        )
    out = x
    if where.size > 1 and check and any(s.dim == BROADCAST for s in sbp):
        use = boxing.transport[-1]()
        for axis, s in enumerate(sbp):
            if s.dim == BROADCAST and where.shape[axis] > 1:
                ranks = where.group(axis, own)
                out = use.broadcast(out.contiguous(), ranks[0], use.group(ranks), meta=None)
    if out is x:
        out = cast(part_of_local(x), local.dtype)
    return boxing.global_of(out, meta)


def part_of_local(x: Tensor) -> Tensor:
    """A local tensor outside the graph."""
    return x.detach()


def _agreed(
    local: TensorMeta, where: placement, sbp: Sbps, place: tuple[int, ...] | None, tell: bool
) -> tuple[list[int], DType]:
    """Return the logical shape, and the dtype: parts are asked of all ranks of the placement, and
    other ranks are told with `tell`.
    """
    use = boxing.transport[-1]()
    inside = place is not None  # other ranks' tensors have whatever shape
    room = max(ASKED, local.ndim) if inside or not tell else ASKED
    known = [local.ndim, ALL_DTYPES.index(local.dtype), *local.shape][: 2 + room]
    mine = tensor(np.array([known + [0] * (2 + room - len(known))], np.int64))
    first = where.flat[0]
    if place is None:
        message = use.recv(TensorMeta.of((where.size, 2 + room), mine.dtype), first)
    else:
        message = use.all_gather(mine, use.group(where.flat))
        if tell and rank_and_size()[0] == first:
            for other in range(rank_and_size()[1]):
                if other not in where.flat:
                    use.send(message, other)
    rows = message.numpy().reshape((*where.shape, 2 + room))
    if len(set(rows[..., 0].ravel().tolist())) > 1:
        raise ShapeError("to_global: ranks have tensors of several numbers of dimensions")
    one = rows[(0,) * len(where.shape)]
    ndim, dtype = int(one[0]), ALL_DTYPES[int(one[1])]
    shapes = rows[..., 2 : 2 + ndim]
    shape = [int(n) for n in shapes[(0,) * len(where.shape)]]
    for d in range(ndim):
        if any(s.dim == d for s in sbp):
            line = tuple(slice(None) if s.dim == d else 0 for s in sbp)
            shape[d] = int(shapes[line][..., d].sum())
    return shape, dtype


@method()
def to_local(x: Tensor, *, grad_sbp: object = None, grad_placements: object = None) -> Tensor:
    """This rank's part of a global tensor, on the same memory; an empty tensor on a rank that holds
    nothing of it.

    grad_sbp   what ranks' gradients are on the way back: parts where the tensor is split, else each
               has all of it.  `grad_placements` is PyTorch's name of it

    >>> flow.ones(2).to_global(flow.placement("cpu", [0]), flow.sbp.split(0)).to_local()
    tensor([1., 1.])
    """
    meta = _need_global(x, "to_local")
    target = grad_placements if grad_sbp is None else grad_sbp
    held = None if target is None else as_sbps(target, meta.placement, meta.ndim)
    return _recorded(_local_node, x, boxing.part_of(x), (held,))


# --- what is asked from below ---------------------------------------------------------------------


def _gathered(x: Tensor) -> Tensor:
    meta: Any = x._meta
    boxing.inside(meta, "reading values")
    return boxing.part_of(boxing.boxed(x, (broadcast,) * len(meta.sbp)))


def _grad_target(leaf: Tensor) -> Sbps:
    """Return the sbp of a leaf's `.grad`."""
    sbp: Sbps | None = leaf.extra().get("grad_sbp")
    return _grad_sbp(leaf._meta.sbp) if sbp is None else sbp  # type: ignore[attr-defined]


def _postponed(leaf: Tensor, g: Tensor, keep: Callable[[Tensor, Tensor], None]) -> bool:
    return gradients.postpone(leaf, g, _grad_target(leaf), keep)


def _landed(leaf: Tensor, g: Tensor) -> Tensor:
    """A gradient as `.grad` of a global leaf: held as the leaf is, or as its "grad_sbp" says; or a
    partial sum still, inside `partial_grads`.
    """
    meta: Any = leaf._meta
    target = _grad_target(leaf)
    if "grad_sbp" not in leaf.extra():
        now: Any = g._meta
        if partial_grads.now() and now.placement is meta.placement:
            both = zip(now.sbp, target, strict=True)
            target = tuple(h if h is partial_sum and w is broadcast else w for h, w in both)
    return _changed(g, meta.placement, target)


def _placed(x: Tensor, device: Any) -> Tensor:
    """A local tensor that all ranks have alike, as global on `device`."""
    held = (broadcast,) * len(device.placement.shape)
    own = device.placement.device(device.rank)
    meta = GlobalMeta.make(x._meta.shape, x._meta.dtype, own, held)
    return boxing.global_of(x.contiguous(), meta) if meta.inside else boxing.hollow(meta)


def _widened(x: Tensor) -> Tensor:
    """A global tensor that all ranks have: those without it get it."""
    where: placement = x._meta.placement  # type: ignore[attr-defined]
    if len({*where.flat}) == rank_and_size()[1]:
        return x
    with recording(False):
        return to_global(x, placement.all(where.type), broadcast)


def _across(x: Tensor, device: Any) -> Tensor:
    """A global tensor on the placement of `device`: held as that one says, or else as it was."""
    where, held = device.placement, device.sbp
    if held is None and len(where.shape) != len(_sbp(x)):
        held = (broadcast,) * len(where.shape)
    return to_global(x, where, held)


# what does the work is imported when there is some
Globals.call = staticmethod(lambda *args: calls.call(*args))
Globals.call_into = staticmethod(lambda *args: calls.into(*args))
Globals.gathered = staticmethod(_gathered)
Globals.landed = staticmethod(_landed)
Globals.postponed = staticmethod(_postponed)
Globals.across = staticmethod(_across)
Globals.placed = staticmethod(_placed)
Globals.widened = staticmethod(_widened)
hot.update(
    {
        "global_alias": lambda *args: views.share_base(*args),
        "global_links": lambda *args: views.links(*args),
        "global_view": lambda *args: views.view(*args),
    }
)


@functools.cache  # it is asked often, and does not change
def _own_place() -> tuple[int, int]:
    return world_of_ranks.rank(), world_of_ranks.world_size()


@functools.cache
def _own_device(type: str) -> Device:
    """Return this rank's device: each rank of a host has one, as far as there are enough."""
    if type == "cpu":
        return cpu
    return Device(type, world_of_ranks.world().local_rank % max(1, runtimes.count()))


world[0], own_device[0] = _own_place, _own_device


# --- functions that make tensors ------------------------------------------------------------------


def _call_factory(
    function: Callable[..., Tensor],
    args: tuple[object, ...],
    where: object,
    sbp: object,
    kwargs: dict[str, object],
) -> Tensor:
    """Call a function that makes tensors with `placement` and `sbp`.

    All ranks call it with the same arguments; the result is held as `sbp` says, and nothing is
    sent.
    """
    name = getattr(function, "__name__", "a tensor")
    if not isinstance(where, placement):
        raise ArgumentTypeError(f"{name}: placement is a flow.placement, got {where!r}")
    if sbp is None:
        raise ArgumentTypeError(f"{name}: placement needs sbp, such as flow.sbp.broadcast")
    if kwargs.get("device") is not None:
        raise ArgumentTypeError(f"{name}: placement says the device; leave device out")
    wants = kwargs.pop("requires_grad", False)
    held = as_sbps(sbp, where)
    kwargs["device"] = where.device(rank_and_size()[0], held)
    with recording(False):
        local = function(*args, **kwargs)
        out = _changed(local, where, as_sbps(sbp, where, local._meta.ndim), copy=True)
    agreement.agree(where, f"{name}({out._meta!r})")
    return out.requires_grad_() if wants else out


Globals.factory = staticmethod(_call_factory)
