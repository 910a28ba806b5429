"""Calls on tensors with levels: operands of one set of levels, the call that their plan says, the
node that backward goes over.

A call that is the same op on the same memory is given an entry (`keep_batched`) and never comes
here again; it costs what a call outside of maps costs.  Nothing is kept while somebody hears of the
calls (a capture): they are told of the calls that are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowvm.eager.batched import Batches
from flowvm.eager.interpreter import Operator, call_into, keep_batched
from flowvm.eager.modes import recording
from flowvm.eager.tensor import Tensor, alias
from flowvm.errors import UnbatchableError
from flowvm.guards.lru_cache import lru_cached
from flowvm.meta.batched_meta import (
    Axis,
    BatchedDevice,
    BatchedMeta,
    axes_of,
    base_device,
    example_of,
    with_axes,
)
from flowvm.meta.device import Device
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.batched import place_rules, product_rules, row_rules, shape_rules, sparse_rules  # noqa: F401 - they say
from flowvm.ops.batched.levels import WATCHED, lifted
from flowvm.ops.batched.loop import each
from flowvm.ops.batched.physical import batched_axes, behind, in_front, is_shared
from flowvm.ops.batched.plans import COMPOSED, STEPS, Plan, plan_of
from flowvm.ops.batched.random_rules import DROPOUT, own_numbers
from flowvm.ops.declare import core
from flowvm.ops.declare.composite import empty_of, record_call
from flowvm.ops.declare.core import cast
from flowvm.vm.watch.pending import issued

_NONE = object()


def call(
    op: Operator, tensors: tuple[Tensor, ...], attrs: Attrs, scalars: tuple[object, ...]
) -> Any:
    """Return the result of a call of which an operand or an attribute has levels."""
    if not tensors:
        return _created(op, attrs, scalars)
    metas = tuple([t._meta for t in tensors])
    axes = _all_axes(metas)
    if "seed" in op.signature.scalars and op is not DROPOUT:
        return _drawn(op, tensors, attrs, scalars)
    composed = COMPOSED.of(op)
    if composed is not None and (op is DROPOUT or batched_axes(metas)):
        return composed(op, tensors, attrs, scalars)
    written = op.signature.written(tensors)
    _check_written(op, written, metas)
    with recording(False):
        results = _stepwise(op, tensors, attrs, scalars)
        if results is None:
            plan = _plan(op, metas, attrs)
            results = _computed(op, tensors, attrs, scalars, plan)
            watched = axes[-1].level >= WATCHED
            if plan is not None and not plan.dense and not watched and not op.signature.unsized:
                outs = tuple([r._meta for r in results])
                keep_batched(op, metas, attrs, outs, (*plan.metas, *plan.attrs))
    for t in written:
        t.bump()
    outputs: tuple[Tensor, ...] = results
    if op.grad is not None:
        record_call(op, tensors, attrs, scalars, outputs, lambda t: alias(t, t._meta))
    if not outputs:
        return written[0]
    return outputs if len(outputs) > 1 else outputs[0]


@lru_cached("views")
def _all_axes(metas: tuple[TensorMeta, ...]) -> tuple[Axis, ...]:
    return tuple(sorted({a.level: a for m in metas for a in axes_of(m)}.values()))


def _plan(op: Operator, metas: tuple[TensorMeta, ...], attrs: Attrs) -> Plan | None:
    key = ("batched", *metas, *attrs)
    plan = op.lru.find(key)
    if plan is None:
        own_levels = {a.level for a in batched_axes(metas)}
        shared = tuple(a._replace(stride=0) for a in _all_axes(metas) if a.level not in own_levels)
        plan = op.lru.put(key, plan_of(op, metas, attrs, shared) or _NONE, 1500)
    return None if plan is _NONE else plan


def _check_written(op: Operator, written: list[Tensor], metas: Sequence[TensorMeta]) -> None:
    for t in written:
        for axis in batched_axes(metas):
            if is_shared(t._meta, (axis,)):
                raise UnbatchableError(
                    f"{op.name} changes a tensor in place that is one for all examples, by what "
                    f"differs between them"
                )


def _stepwise(
    op: Operator, tensors: tuple[Tensor, ...], attrs: Attrs, scalars: object
) -> tuple[Tensor, ...] | None:
    """Return the results by the family's own steps, None if it has none for this call."""
    steps = STEPS.of(op)
    if steps is None or not batched_axes([t._meta for t in tensors]):
        return None
    result = steps(op, tensors, attrs, scalars)
    return result if isinstance(result, tuple) or result is None else (result,)


def _computed(
    op: Operator,
    tensors: tuple[Tensor, ...],
    attrs: Attrs,
    scalars: tuple[object, ...],
    plan: Plan | None,
) -> tuple[Tensor, ...]:
    if plan is not None:
        return _run(op, tensors, scalars, plan)
    if isinstance(op.origin.form, tuple):
        return _converted(op, tensors, attrs, scalars)
    return each(op, tensors, attrs, scalars, "its declaration does not say how to batch it")


def _drawn(
    op: Operator, tensors: tuple[Tensor, ...], attrs: Attrs, scalars: tuple[object, ...]
) -> Tensor:
    """Make a call that draws random numbers: each example has its own where its map wants that."""
    own = {a.level for a in own_numbers()}
    with recording(False):
        for axis in batched_axes([t._meta for t in tensors]):
            if axis.level not in own:
                results = each(op, tensors, attrs, scalars, "", axis)
                return results[0] if results else tensors[0]
        ready = []
        for n, t in zip(op.signature.inputs, tensors, strict=True):
            shared = [a for a in axes_of(t._meta) if a.level in own and not a.stride and a.size > 1]
            if shared and n in op.signature.writes:
                raise UnbatchableError(f"{op.name} changes a tensor that is one for all examples")
            if shared:
                wide = empty_of(t._meta)
                t = core.copy_(wide, t.detach())
            ready.append(t)
        metas = tuple([t._meta for t in ready])
        plan = _plan(op, metas, attrs)
        if plan is None:
            raise UnbatchableError(f"{op.name} draws random numbers for one example at a time")
        results = _run(op, ready, scalars, plan)
    for n, t in zip(op.signature.inputs, tensors, strict=True):
        if n in op.signature.writes:
            t.bump()
    return results[0] if results else tensors[0]


def _run(
    op: Operator, tensors: Sequence[Tensor], scalars: tuple[object, ...], plan: Plan
) -> tuple[Tensor, ...]:
    physical = [alias(t, meta) for t, meta in zip(tensors, plan.metas, strict=True)]
    for k, where in plan.dense:
        meta = plan.metas[k]
        physical[k] = alias(cast(alias(tensors[k], where), meta.dtype), meta)
    result = op.call(*physical, *plan.attrs, *scalars)
    for k, where in plan.dense:
        if op.signature.inputs[k] in op.signature.writes:  # a copy was changed
            back = alias(physical[k], where.dense())
            core.copy_(alias(tensors[k], where), back)
    if not op.signature.outputs:
        return ()
    listed = result if isinstance(result, tuple) else (result,)
    for k, r in enumerate(listed):
        r._meta = plan.wrap(k, r._meta)
    return tuple(listed)


def _converted(
    op: Operator, tensors: tuple[Tensor, ...], attrs: Attrs, scalars: tuple[object, ...]
) -> tuple[Tensor, ...]:
    """Return the result of an elementwise call with the operands in the dtype that one example's
    call computes in: there a 0-d tensor has no say in it.
    """
    form, pattern = op.origin.form
    examples = [example_of(t._meta) for t in tensors]
    compute, result = form.types_of(pattern, examples, attrs)
    kinds = [c for c, p in zip(compute, pattern, strict=True) if p == "t"]
    ready = [
        cast(t, c) if t._meta.dtype is not c else t for t, c in zip(tensors, kinds, strict=True)
    ]
    out = op.call(*ready, *attrs, *scalars)
    return (out if out._meta.dtype is result else cast(out, result),)


# --- tensors that are made ------------------------------------------------------------------------


def _created(op: Operator, attrs: Attrs, scalars: tuple[object, ...]) -> Any:
    """Make a tensor for each example; random numbers as the maps say."""
    devices = [a.device if isinstance(a, TensorMeta) else a for a in attrs]
    device: Any = next(d for d in devices if axes_of(d))
    example = next((a for a in attrs if a.__class__ is BatchedMeta), None)
    random = "seed" in op.signature.scalars
    own = {a.level for a in own_numbers()}
    axes = [a for a in device.axes if not random or a.level in own]
    if example is None or op.signature.attrs[0] == "n":
        axes = []
    rest = [a._replace(stride=0) for a in device.axes if a not in axes]
    if random and op.name == "randperm" and axes:
        raise UnbatchableError("a permutation is drawn for one example at a time")
    physical: TensorMeta | None = None
    if example is not None:
        meta: TensorMeta = with_axes(example_of(example), axes)
        physical = in_front(meta.dense(), axes_of(meta.dense()))
    plain = tuple(
        physical if a is example else example_of(a) if isinstance(a, TensorMeta)
        else base_device(a) if isinstance(a, Device) else a
        for a in attrs
    )  # fmt: skip
    out = op.call(*plain, *scalars)
    out._meta = behind(axes, rest)(0, out._meta)
    return out


def _drawing(device: Device) -> Device:
    """Return the device on which random numbers are drawn now."""
    more = [a for a in own_numbers() if a.level not in {b.level for b in axes_of(device)}]
    return BatchedDevice.of(base_device(device), tuple(sorted((*axes_of(device), *more))))


def _spread(x: Tensor) -> Tensor:
    return lifted(x, own_numbers())


# --- results that go into tensors -----------------------------------------------------------------


def into(
    op: Operator, outs: tuple[Tensor, ...], tensors: tuple[Tensor, ...], attrs: Attrs,
    scalars: tuple[object, ...],
) -> int:  # fmt: skip
    """Do what `call_into` does where tensors have levels."""
    metas = [t._meta for t in (*outs, *tensors)]
    axes = _all_axes(tuple(metas))
    outs_, ready = [lifted(o, axes) for o in outs], [lifted(t, axes) for t in tensors]
    metas = [t._meta for t in (*outs_, *ready)]
    _check_written(op, outs_, metas)
    active = batched_axes(metas)
    with recording(False):
        if len(outs) == 1 and _writes_straight(op, ready, attrs, active):
            (out,) = outs_
            operands = tuple(_beneath(t, active, out._meta.ndim) for t in ready)
            return call_into(
                op, (alias(out, in_front(out._meta, active)),), operands, attrs, scalars
            )
        result = op.call(*ready, *attrs, *scalars)
        listed = result if isinstance(result, tuple) else (result,)
        for out, r in zip(outs_, listed, strict=True):
            out.copy_(r)
    return issued() - 1


def _writes_straight(
    op: Operator, tensors: list[Tensor], attrs: Attrs, axes: Sequence[Axis]
) -> bool:
    """Return True if an op's kernel goes over whatever dimensions its result has."""
    if op is core._copy:
        return True
    if not isinstance(op.origin.form, tuple):
        return False
    form, pattern = op.origin.form
    whole = [in_front(t._meta, axes) for t in tensors]
    examples = [example_of(t._meta) for t in tensors]
    same: bool = form.types_of(pattern, whole, attrs) == form.types_of(pattern, examples, attrs)
    return same


def _beneath(t: Tensor, axes: Sequence[Axis], rank: int) -> Tensor:
    if is_shared(t._meta, axes):
        return alias(t, example_of(t._meta))
    return alias(t, in_front(t._meta, axes, rank))


def _whole(x: Tensor) -> Tensor:
    axes = batched_axes((x._meta,))
    return alias(x, in_front(x._meta, axes)) if axes_of(x._meta) else x


Batches.call = staticmethod(call)
Batches.whole = staticmethod(_whole)
Batches.call_into = staticmethod(into)
Batches.drawing = staticmethod(_drawing)
Batches.spread = staticmethod(_spread)
