"""Levels: a dimension of tensors that a function which is mapped does not see.

`entered` hides a dimension, `level_as_dim` shows it again, `lifted` gives a tensor that is one for
all examples the level as well.  All are views, recorded for backward as each other's opposites:
what came into a map as one tensor gets the sum of what the examples want of it.

A number is a level's while its `Level` lives: the map is under way, or a graph for backward leads
through it.  Then it is another map's, which finds the entries of its calls where a former one left
them.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Sequence
from typing import Any

from flowvm.eager.modes import current_recorder, current_trace_recorder, grad_enabled
from flowvm.eager.nodes import Node
from flowvm.eager.tensor import Tensor, alias, base_of
from flowvm.guards.forks import held_at_fork
from flowvm.guards.lru_cache import lru_cached
from flowvm.meta.batched_meta import Axis, axes_of, base_device, example_of, with_axes
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.composite import Recorded
from flowvm.ops.declare.rebase import remember_view
from flowvm.vm.callers.interrupt import protected

WATCHED = 1 << 20  # the first number of levels whose calls somebody hears of: no entries are kept

_lock = held_at_fork(threading.Lock())
_free: dict[bool, list[int]] = {False: [], True: []}
_next = {False: 1, True: WATCHED}


class Level:
    """The level of a map over `size` examples."""

    __slots__ = ("number", "size")

    def __init__(self, size: int) -> None:
        recorded = current_recorder() is not None or current_trace_recorder() is not None
        self.size = size
        with _lock:
            if _free[recorded]:
                self.number = heapq.heappop(_free[recorded])
            else:
                self.number = _next[recorded]
                _next[recorded] += 1

    @protected
    def __del__(self) -> None:
        number = getattr(self, "number", 0)
        if number:
            heapq.heappush(_free[number >= WATCHED], number)


def _recorded(op: Recorded, x: Tensor, out: Tensor, attrs: tuple[object, ...]) -> Tensor:
    if x._node is not None and grad_enabled():
        out._node = Node(op, (x._node,), (), (), (x._meta,), attrs, (out._meta,))
    return out


@lru_cached("views")
def _entered_meta(meta: TensorMeta, number: int, dim: int) -> TensorMeta:
    shape = (*meta.shape[:dim], *meta.shape[dim + 1 :])
    stride = (*meta.stride[:dim], *meta.stride[dim + 1 :])
    local = TensorMeta.of(shape, meta.dtype, base_device(meta.device), stride)
    axis = Axis(number, meta.shape[dim], meta.stride[dim])
    return with_axes(local, (*axes_of(meta), axis))


def entered(x: Tensor, level: Level, dim: int) -> Tensor:
    """Return `x` with its dimension `dim` as the level's."""
    at = dim % x._meta.ndim
    out = alias(x, _entered_meta(x._meta, level.number, at))
    out.extra()["entered"] = x, at
    return _recorded(_ENTERED, x, out, (level, at))


@lru_cached("views")
def _left_meta(meta: TensorMeta, number: int, size: int, dim: int) -> tuple[TensorMeta, bool]:
    axes = axes_of(meta)
    step = next((a.stride for a in axes if a.level == number), None)
    shape = (*meta.shape[:dim], size, *meta.shape[dim:])
    stride = (*meta.stride[:dim], step or 0, *meta.stride[dim:])
    local = TensorMeta.of(shape, meta.dtype, base_device(meta.device), stride)
    return with_axes(local, [a for a in axes if a.level != number]), step is not None


def level_as_dim(x: Tensor, level: Level, dim: int) -> Tensor:
    """Return `x` with the level as dimension `dim` of the result; all examples are alike where it
    does not have the level.
    """
    at = dim % (x._meta.ndim + 1)
    meta, has = _left_meta(x._meta, level.number, level.size, at)
    out = _recorded(_LEFT if has else _REPEATED, x, alias(x, meta), (level, at))
    _show_base(x, out)
    return out


def place_of(x: Tensor, level: Level) -> int | None:
    """Return which dimension of what came into the map the level is, 0 of what was computed; None
    if `x` does not have it.
    """
    if all(a.level != level.number for a in axes_of(x._meta)):
        return None
    _, place = getattr(x, "_extra", {}).get("entered", (None, 0))
    return int(place)


def _show_base(x: Tensor, out: Tensor) -> None:
    """Make `out`, which a map gives, a view of the tensor that came into the map, if it is one."""
    source = x
    if axes_of(x._meta):
        try:
            source, _ = base_of(x)._extra["entered"]
        except (AttributeError, KeyError):
            return
    base = out._kin = base_of(source)
    changeable = base._node is None or not base._node.is_leaf
    if changeable and not axes_of(out._meta) and grad_enabled():
        remember_view(base, out)


@lru_cached("views")
def _lifted_meta(
    meta: TensorMeta, axes: tuple[Axis, ...]
) -> tuple[TensorMeta, tuple[Axis, ...]] | None:
    own = axes_of(meta)
    has = {a.level for a in own}
    more = tuple(a._replace(stride=0) for a in axes if a.level not in has)
    return (with_axes(example_of(meta), (*own, *more)), more) if more else None


def lifted(x: Tensor, axes: tuple[Axis, ...]) -> Tensor:
    """Return `x` with those of the levels that it has not: there, it is one for all examples."""
    meta = _lifted_meta(x._meta, axes)
    return x if meta is None else _recorded(_LIFTED, x, alias(x, meta[0]), meta[1])


def dropped(x: Tensor, number: int, k: int) -> Tensor:
    """Return example `k` of a level, outside of the graph; `x` itself if it does not have it."""
    axis = next((a for a in axes_of(x._meta) if a.level == number), None)
    if axis is None:
        return x
    meta = x._meta
    rest = [a for a in axes_of(meta) if a is not axis]
    return alias(x, with_axes(example_of(meta), rest), k * axis.stride * meta.dtype.itemsize)


class _Known:
    """A level that is known by its number and size."""

    def __init__(self, axis: Axis) -> None:
        self.number, self.size = axis.level, axis.size


def summed(g: Tensor, axes: Sequence[Axis]) -> Tensor:
    """Return the sum over the examples of these levels."""
    for axis in axes:
        known: Any = _Known(axis)
        g = level_as_dim(g, known, 0).sum(0)
    return g


def of_levels(g: Tensor, meta: TensorMeta, outs: Sequence[TensorMeta] = ()) -> Tensor:
    """Return the gradient of an operand of `meta`, whose call had results `outs`, with the
    operand's levels: the sum over those that only other operands had.
    """
    own = {a.level for a in axes_of(meta)}
    more = {a.level for o in outs for a in axes_of(o) if a.level not in own}
    if more:
        g = summed(g, [a for a in axes_of(g._meta) if a.level in more])
    return lifted(g, axes_of(meta)) if own else g


_ENTERED = Recorded("enter_map", lambda c, g: (level_as_dim(g, *c.attrs),), ("x",))
_LEFT = Recorded("leave_map", lambda c, g: (entered(g, *c.attrs),), ("x",))
_REPEATED = Recorded("leave_map", lambda c, g: (g.sum(c.attrs[1]),), ("x",))
_LIFTED = Recorded("lift", lambda c, g: (summed(g, c.attrs),), ("x",))
