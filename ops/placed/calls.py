"""Calls on global tensors: operands boxed to the signature that was chosen, the op on the parts.

A call whose operands are held as the signature wants is given an entry of its own
(`keep_global`), and never comes here again.  The node that backward goes over is that of the global
call: gradient functions are ops, called with global tensors, and choose for themselves.

The attribute that says the result's shape (`shaped=`) says that of the part.  Random ops
draw the whole tensor's numbers and keep their part, so numbers do not depend on the placement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowvm.eager.declaration import no_fallback
from flowvm.eager.global_calls import local_of, mixed
from flowvm.eager.interpreter import Operator, call_into, device_of, keep_global
from flowvm.eager.modes import recording
from flowvm.eager.tensor import Tensor
from flowvm.meta.global_meta import GlobalMeta
from flowvm.meta.meta import Attrs
from flowvm.meta.placements import Sbps, broadcast
from flowvm.ops.declare import core
from flowvm.ops.declare.composite import empty_of, filled_of, record_call
from flowvm.ops.declare.core import cast
from flowvm.ops.declare.facts import Fact
from flowvm.ops.placed import sequences  # noqa: F401 - has a rewrite
from flowvm.ops.placed.agreement import note
from flowvm.ops.placed.boxing import boxed, global_of, hollow, part_of
from flowvm.ops.placed.choice import Choice, choose, forced, watched, whole_of
from flowvm.ops.placed.rewrites import REWRITE
from flowvm.ops.placed.views import written_back
from flowvm.ops.products.matmul import _affine, _matmul, _matmul_nt, _matmul_tn
from flowvm.ops.rows.parts.folds import add_up
from flowvm.ops.rows.reduce import _sum_whole
from flowvm.vm.watch.pending import issued


def _local_attrs(op: Operator, attrs: Attrs, outs: tuple[GlobalMeta, ...]) -> Attrs:
    local: Attrs = local_of(attrs)
    if not op.signature.shaped:
        return local
    place = op.signature.attrs.index(op.signature.shaped)
    return (*local[:place], tuple(outs[0].local.shape), *local[place + 1 :])


def _draws(op: Operator) -> bool:
    """Return True if the op draws random numbers by the places of elements."""
    return "seed" in op.signature.scalars


def _noted(
    op: Operator, metas: Sequence[GlobalMeta], attrs: Attrs, scalars: tuple[object, ...]
) -> None:
    """Note a call for the other ranks.

    No copy: one may be made of a part for how it lies, or for who else holds it, which is this
    rank's own.  No reading of tensors that each rank has whole: a rank may log the mean of a weight
    by itself, and the others do not miss it.
    """
    if op not in core.COPIES and (op.signature.writes or any(m.sbp != _whole(m) for m in metas)):
        note(metas[0].placement, op, metas, attrs, scalars)


def call(
    op: Operator, tensors: tuple[Tensor, ...], attrs: Attrs, scalars: tuple[object, ...]
) -> Any:
    """The result of a call on global tensors."""
    metas: Any = tuple(t._meta for t in tensors)
    if any(m.placement is not metas[0].placement for m in metas):
        last = max((m.placement for m in reversed(metas)), key=lambda where: max(where.flat))
        together = (t.to_global(placement=last) for t in tensors)
        return op.call(*together, *attrs, *scalars)
    if metas and _draws(op):
        note(metas[0].placement, op, metas, attrs, scalars)
    rewrite = REWRITE.of(op)
    if rewrite is not None and any(m.sbp != _whole(m) for m in metas):
        result = rewrite(op, tensors, attrs, scalars)
        if result is not None:
            return result
    if not metas:
        return _created(op, attrs, scalars)
    key = ("global", *metas, *attrs)
    choice: Choice | None = op.lru.find(key) if forced.now() is None else None
    if choice is None:
        choice = choose(op, metas, attrs)
        if forced.now() is None:
            op.lru.put(key, choice, 2000)
            _noted(op, metas, attrs, scalars)
    see = watched.now()
    if see is not None:
        see(op, metas, choice)
    as_held = all(m.sbp == s for m, s in zip(metas, choice.inputs, strict=True))
    written = op.signature.written(tensors)
    if not all(m.inside for m in metas):
        results = tuple(hollow(m) for m in choice.outputs)
    elif as_held and _can_keep(op, tensors, attrs, choice):
        parts = _by_fallback(op, tensors, attrs, scalars, choice)
        if parts is None:
            keep_global(op, metas, attrs, choice.outputs)
            return op.call(*tensors, *attrs, *scalars)
        results = _assembled(op, parts, choice.outputs)
    else:
        with recording(False):
            results = _computed(op, tensors, attrs, scalars, choice)
    for t in written:
        t.bump()
        written_back(t)
    if op.grad is not None:
        record_call(op, tensors, attrs, scalars, results, _without_node)
    if not results:
        return written[0]
    return results if len(results) > 1 else results[0]


def _can_keep(op: Operator, tensors: Any, attrs: Attrs, choice: Choice) -> bool:
    """Tell whether the call may have an entry: the parts here can make it as they are."""
    own = _local_attrs(op, attrs, choice.outputs)
    if any(t._meta.local.numel == 0 or (op.signature.writes and t._meta.is_copy) for t in tensors):
        return False
    is_bypassed = forced.now() is not None or watched.now() is not None
    if is_bypassed or op.signature.unsized or own != local_of(attrs) or _draws(op):
        return False
    # of other parts the op may want copies first, and makes them by another call
    return isinstance(op.origin.form, tuple) or all(t._meta.local.contiguous for t in tensors)


def _by_fallback(
    op: Operator,
    tensors: tuple[Tensor, ...],
    attrs: Attrs,
    scalars: tuple[object, ...],
    choice: Choice,
) -> Any:
    """Return the result of the op's fallback on the parts, None if it leaves the call to an entry.

    A fallback that answers has also written where the op writes: it is asked once.
    """
    if isinstance(op.origin.form, tuple) or op.rules.fallback is no_fallback:
        return None
    with recording(False):
        own = _local_attrs(op, attrs, choice.outputs)
        return op.rules.fallback(*map(part_of, tensors), *own, *scalars)


def _computed(
    op: Operator, tensors: Any, attrs: Attrs, scalars: tuple[object, ...], choice: Choice
) -> tuple[Tensor, ...]:
    """The results of the op on parts of the boxed operands."""
    written = op.signature.written(tensors)
    if written and _draws(op):
        (x,) = tensors
        local = op.call(empty_of(x._meta.whole), *local_of(attrs), *scalars)
        _put_back(x, global_of(local, x._meta.with_shape(x._meta.shape)))
        return ()
    ready = [boxed(t, s) for t, s in zip(tensors, choice.inputs, strict=True)]
    own = _local_attrs(op, attrs, choice.outputs)
    parts = _of_nothing(op, ready, choice)
    if parts is None:
        locals_ = [
            _contiguous_part(op, n, t) for n, t in zip(op.signature.inputs, ready, strict=True)
        ]
        parts = op.call(*locals_, *own, *scalars)
    for t, r in zip(tensors, ready, strict=True):
        if r is not t and any(t is w for w in written):
            _put_back(t, r)
    return _assembled(op, parts, choice.outputs)


# ops whose kernels take operands however they lie, also where the operand's meta says C order
_ANY_STRIDES: Fact[bool] = Fact()
_ANY_STRIDES.say(True, *core.COPIES, _matmul, _matmul_nt, _matmul_tn, _affine)
_ANY_STRIDES.say(True, _sum_whole, add_up.call)


def _contiguous_part(op: Operator, name: str, t: Tensor) -> Tensor:
    """The part of an operand, in C order where the op may count on that: a global tensor says that
    it is.
    """
    local = part_of(t)
    if local._meta.contiguous or name in op.signature.writes:
        return local
    if isinstance(op.origin.form, tuple) or _ANY_STRIDES.of(op):
        return local
    return cast(local, local._meta.dtype)


def _of_nothing(op: Operator, ready: Sequence[Any], choice: Choice) -> Any:
    """Return the results of a rank whose parts have no elements, though the tensors have some.

    The results are empty, or zeros as summands.  Return None if the op must run: a result has
    elements here, or an input is a summand with elements.
    """
    metas = [t._meta for t in ready]
    if op.signature.unsized or not any(m.local.numel == 0 < m.numel for m in metas):
        return None
    if any(m.has_partial and m.local.numel for m in metas):
        return None
    if any(m.local.numel and not m.has_partial for m in choice.outputs):
        return None
    return tuple(filled_of(m.local, 0) for m in choice.outputs)


def _whole(meta: GlobalMeta) -> Sbps:
    return (broadcast,) * len(meta.sbp)


def _assembled(op: Operator, parts: object, outs: tuple[GlobalMeta, ...]) -> tuple[Tensor, ...]:
    if not outs:
        return ()
    listed = parts if isinstance(parts, tuple) else (parts,)
    results = []
    for name, local, meta in zip(op.signature.outputs, listed, outs, strict=True):
        if name in op.signature.unsized:
            meta = meta.with_shape(local._meta.shape, local._meta.dtype)
        elif local._meta.dtype is not meta.dtype:
            meta = GlobalMeta.make(meta.shape, local._meta.dtype, meta.device, meta.sbp)
        results.append(global_of(local, meta))
    return tuple(results)


def _created(op: Operator, attrs: Attrs, scalars: tuple[object, ...]) -> Tensor:
    """Run a creation op: create only this rank's part, or the full tensor if it has no parts."""
    examples = [a for a in attrs if a.__class__ is GlobalMeta]
    device: Any = device_of((), attrs)
    if _draws(op):
        note(device.placement, op, examples, attrs, scalars)
    device = device.placement.device(device.rank)
    if examples and not _draws(op) and not examples[0].has_partial:
        meta = examples[0]
        if not meta.inside:
            return hollow(meta)
        return global_of(op.call(*local_of(attrs), *scalars), meta)
    local = op.call(*whole_of(attrs), *scalars)
    held = (broadcast,) * len(device.placement.shape)
    out = global_of(local, GlobalMeta.make(local._meta.shape, local._meta.dtype, device, held))
    if not out._meta.inside:  # type: ignore[attr-defined]
        out = hollow(out._meta)  # type: ignore[arg-type]
    return boxed(out, examples[0].sbp) if examples else out


def _without_node(x: Any) -> Tensor:
    """Return a global tensor of the same parts, outside the autograd graph."""
    return global_of(part_of(x), x._meta)


# --- results that go into tensors -----------------------------------------------------------------


def into(
    op: Operator,
    outs: tuple[Tensor, ...],
    tensors: tuple[Tensor, ...],
    attrs: Attrs,
    scalars: tuple[object, ...],
) -> int:
    """`call_into` where tensors are global.  DeviceError where some are local."""
    metas: Any = tuple(t._meta for t in tensors)
    targets: Any = tuple(o._meta for o in outs)
    if not all(isinstance(m, GlobalMeta) for m in (*targets, *metas)):
        raise mixed(op.name, op.signature.operands, (*targets, *metas))
    if not all(m.inside for m in targets):
        return issued() - 1
    key = ("global into", len(outs), *targets, *metas, *attrs)
    choice: Choice | None = op.lru.find(key) if forced.now() is None else None
    if choice is None:
        choice = choose(op, metas, attrs, targets)
        if forced.now() is None:
            op.lru.put(key, choice, 2000)
            _noted(op, (*targets, *metas), attrs, scalars)
    with recording(False):
        ready = tuple(part_of(boxed(t, s)) for t, s in zip(tensors, choice.inputs, strict=True))
        parts = []
        for out, s in zip(outs, _held(choice), strict=True):
            same = s == out._meta.sbp  # type: ignore[attr-defined]
            parts.append(part_of(out) if same else part_of(boxed(out, s)).clone())
        own = _local_attrs(op, attrs, targets)
        number = call_into(op, tuple(parts), ready, own, scalars)
        for out, s, local in zip(outs, _held(choice), parts, strict=True):
            if s != out._meta.sbp:  # type: ignore[attr-defined]
                meta: Any = out._meta
                _put_back(out, global_of(local, meta.with_sbp(s)))
    for out in outs:
        written_back(out)
    return number


def _held(choice: Choice) -> list[Sbps]:
    return [tuple(s.outputs[k] for s in choice.signatures) for k in range(len(choice.outputs))]


def _put_back(x: Tensor, changed: Tensor) -> None:
    """The values of `changed` into the memory of `x`."""
    meta: Any = x._meta
    part_of(x).copy_(part_of(boxed(changed, meta.sbp)))
