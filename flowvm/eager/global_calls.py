"""The way of calls on global tensors to `flowvm.ops.placed`, which is imported at the first one.

A call's entry is found by its operands' metas, and those of global tensors are theirs alone
(`flowvm.meta.global_meta`); so a call that needs no communication finds an entry of its own, and is
issued as any other.  All others are a miss, and come here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeVar

from flowvm.eager.batched import Batches
from flowvm.eager.tensor import Tensor
from flowvm.errors import DeviceError
from flowvm.guards.regions import Mode
from flowvm.meta.batched_meta import is_batched
from flowvm.meta.device import made_on
from flowvm.meta.global_meta import GlobalMeta
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.meta.placements import PlacedDevice, Sbps, broadcast, split
from flowvm.vm.callers.hot import hot


class Globals:
    """The functions that know global tensors."""

    call: Callable[..., object]  # (op, tensors, attrs, scalars): the call's result
    call_into: Callable[..., int]  # (op, outs, tensors, attrs, scalars): the instruction's number
    view: Callable[..., Tensor]  # (base, logical meta, offset in elements, may it be a copy)
    gathered: Callable[..., Tensor]  # (x): a local tensor of all of it
    across: Callable[..., Tensor]  # (x, device): a global tensor on another placement
    placed: Callable[..., Tensor]  # (x, device): a local tensor, the same on all ranks, as global
    landed: Callable[..., Tensor]  # (leaf, gradient): the gradient, held as the leaf's `.grad` is
    # (leaf, gradient, keep): is the gradient to be summed over ranks with others?  Then
    # keep(leaf, sum) is called when it is
    postponed: Callable[..., bool]
    widened: Callable[..., Tensor]  # (x): a global tensor that all ranks have
    read_together: bool = False  # by `numpy()`: of ranks outside of the placement, too
    # (): do operands of several placements move to the placement with the last rank?
    meeting: Callable[[], bool] = staticmethod(lambda: False)
    factory: Callable[
        ..., Tensor
    ]  # (function, args, placement, sbp, kwargs): what it makes, global


def is_placed(*values: object) -> bool:
    """Return True if a meta or device among `values` belongs to a global tensor."""
    for value in values:
        device = value.device if isinstance(value, TensorMeta) else value
        if device.__class__ is PlacedDevice:
            return True
    return False


def mixed(name: str, names: tuple[str, ...], metas: tuple[TensorMeta, ...]) -> DeviceError:
    """The error of a call with operands of several placements, or of none."""
    listed = ", ".join(
        f"{n} on {m.placement!r}" if isinstance(m, GlobalMeta) else f"{n} local"
        for n, m in zip(names, metas, strict=False)
    )
    if any(not isinstance(m, GlobalMeta) for m in metas):
        hint = "make the local ones global by to_global(placement, sbp), or the others local"
    else:
        hint = "move them to one placement by to_global(placement=...)"
    return DeviceError(
        f"{name}: global tensors of one placement compute together, got {listed}; {hint}"
    )


def local_of(value: Any) -> Any:
    """A meta or device, or what stands for one among attributes, as this rank has it."""
    return with_metas(value, _local)


def with_metas(value: object, of: Callable[[GlobalMeta], object]) -> object:
    """A value with `of(meta)` in the places of global metas, and this rank's device in those of
    placements' devices.
    """
    if value.__class__ is GlobalMeta:
        return of(value)
    if value.__class__ is PlacedDevice:
        return value.local
    if value.__class__ is tuple:
        return tuple(with_metas(v, of) for v in value)
    return value


_local = attrgetter("local")


Function = TypeVar("Function", bound=Callable[..., object])


def takes_placement(function: Function) -> Function:
    """The function, which makes a tensor, with `placement=` and `sbp=`."""

    @functools.wraps(function)
    def make(*args: object, **kwargs: object) -> Any:
        if "placement" in kwargs or "sbp" in kwargs:
            where, sbp = kwargs.pop("placement", None), kwargs.pop("sbp", None)
            return Globals.factory(function, args, where, sbp, kwargs)
        if made_globally.inside and (mode := made_globally.now()) is not None:
            kwargs.pop("device", None)
            return Globals.factory(function, args, *mode, kwargs)
        return function(*args, **kwargs)

    return make  # type: ignore[return-value]


# placement and SBP of tensors that are made without their own; None: local ones
made_globally: Mode[tuple[object, object] | None] = Mode(None)
# not empty while a thread makes tensors on another device than the CPU, or global ones
elsewhere = (made_on.inside, made_globally.inside)


# from how many elements on what is made like a tensor that all ranks have is cut among them; 0: not
spread: Mode[int] = Mode(0)


# gradients of leaves stay the partial sums that they are: who sets it sums them over ranks later
partial_grads: Mode[bool] = Mode(False)


def spread_sbp(meta: GlobalMeta) -> Sbps:
    """Return the SBP of a tensor made like one of `meta`: the same without partial sums; inside
    `spread`, dimension 0 is split among ranks that would all have equal parts.
    """
    held = meta.dense().sbp
    least = spread.now()
    if not least or meta.ndim == 0 or meta.numel < least or any(s.dim == 0 for s in held):
        return held
    for axis, count in enumerate(meta.placement.shape):
        if held[axis] is broadcast and count > 1:
            return (*held[:axis], split(0), *held[axis + 1 :])
    return held


def placed_like(function: Function) -> Function:
    """The function, which makes a tensor like its first argument, with `placement=` and `sbp=`:
    those of a global argument by default, but for partial sums.
    """

    @functools.wraps(function)
    def make(*args: object, **kwargs: object) -> Any:
        meta = getattr(args[0] if args else kwargs.get("input"), "_meta", None)
        if meta.__class__ is GlobalMeta and "device" not in kwargs:
            where = kwargs.pop("placement", None) or meta.placement
            sbp = kwargs.pop("sbp", None) or spread_sbp(meta)
            return Globals.factory(function, args, where, sbp, kwargs)
        if "placement" in kwargs or "sbp" in kwargs:
            where, sbp = kwargs.pop("placement", None), kwargs.pop("sbp", None)
            return Globals.factory(function, args, where, sbp, kwargs)
        return function(*args, **kwargs)

    return make  # type: ignore[return-value]


def _globally(op: object, tensors: Any, attrs: Attrs, scalars: tuple[object, ...]) -> object:
    """A call on global tensors that has no entry yet, or that communicates; or on tensors inside
    `vmap`.
    """
    if is_batched(*(t._meta for t in tensors), *attrs):
        return Batches.call(op, tensors, attrs, scalars)
    return Globals.call(op, tensors, attrs, scalars)


hot.update({"globally": _globally})
