"""The choice of a call's signature: the one whose operands cost the fewest bytes to box.

Among equal costs the signature that changes the fewest operands wins, then the first one.  So
splits are kept before tensors are made whole.  Each dimension of the placement is chosen for
itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from flowvm.eager.global_calls import with_metas
from flowvm.eager.interpreter import Operator, device_of
from flowvm.eager.modes import departing
from flowvm.guards.regions import Mode
from flowvm.meta.global_meta import GlobalMeta
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.meta.placements import Sbps
from flowvm.ops.declare.assembly import Assembly
from flowvm.ops.declare.kinds import Inferred
from flowvm.ops.placed.boxing import cost
from flowvm.ops.placed.signatures import Signature, signatures


@dataclass(frozen=True)
class Choice:
    """The signature of a call: the sbp of each input and result, the results' metas, the
    reasons.
    """

    inputs: tuple[Sbps, ...]
    outputs: tuple[GlobalMeta, ...]
    signatures: tuple[Signature, ...]
    bytes: float
    ties: tuple[Signature, ...] = ()  # that cost as much


def whole_of(value: Any) -> Any:
    """Replace the metas in a value by local ones of the logical shape."""
    return with_metas(value, attrgetter("whole"))


# Inside either, threads depart: no trace stands for the calls that are to be asked about.
# For tests: takes the legal signatures and says which one is to be used, None for the cheapest
forced: Mode[Any] = Mode(None, departing())
# for `explain`: is told of each call's choice
watched: Mode[Any] = Mode(None, departing())


def results_of(op: Operator, metas: Sequence[TensorMeta], attrs: Attrs) -> tuple[TensorMeta, ...]:
    """Return a call's result metas for local tensors of the logical shapes; raise its error."""
    if op.kernel.infer is None:
        return op.kernel.lower(tuple(metas), attrs).outputs
    infer = (
        op.kernel.infer.infer_unchecked
        if isinstance(op.kernel.infer, Inferred)
        else op.kernel.infer
    )
    answer = infer(tuple(metas), attrs)
    if isinstance(answer, Assembly):
        return (answer.out,)
    outputs: tuple[TensorMeta, ...] = answer.outputs
    return outputs


def choose(
    op: Operator,
    metas: tuple[GlobalMeta, ...],
    attrs: tuple[object, ...],
    into: tuple[GlobalMeta, ...] | None = None,
) -> Choice:
    """For a call, or one whose results go into tensors of `into`."""
    wholes, plain = tuple(m.whole for m in metas), whole_of(attrs)
    before = () if into is None else tuple(m.whole for m in into)
    device: Any = device_of((*metas, *(into or ())), attrs)
    outs = before if into is not None else results_of(op, wholes, plain)
    chosen, ties, total = [], [], 0.0
    where = device.placement
    fixed = [n in op.signature.writes for n in op.signature.inputs]
    for axis, parts in enumerate(where.shape):
        legal = signatures(op, wholes, plain, outs, parts)
        priced = [(*_price(s, metas, fixed, into, axis), k) for k, s in enumerate(legal)]
        pick = forced.now()
        best = min(priced) if pick is None else priced[pick(op, legal)]
        chosen.append(legal[best[-1]])
        ties += [legal[p[-1]] for p in priced if p[:2] == best[:2] and p is not best]
        total += best[0]
    inputs = tuple(tuple(s.inputs[k] for s in chosen) for k in range(len(metas)))
    outputs = tuple(
        GlobalMeta.make(m.shape, m.dtype, device, tuple(s.outputs[k] for s in chosen))
        for k, m in enumerate(outs)
    )
    return Choice(inputs, outputs, tuple(chosen), total, tuple(ties))


def _price(
    s: Signature,
    metas: Sequence[GlobalMeta],
    fixed: Sequence[bool],
    into: tuple[GlobalMeta, ...] | None,
    axis: int,
) -> tuple[float, int]:
    """Return the bytes to box, and the number of changed operands; written ones change twice."""
    total, changed = 0.0, 0
    for want, meta, written in zip(s.inputs, metas, fixed, strict=True):
        if want is not meta.sbp[axis]:
            changed += 1 + written
            other = (*meta.sbp[:axis], want, *meta.sbp[axis + 1 :])
            total += cost(meta, other)
            if written:
                total += cost(meta.with_sbp(other), meta.sbp)
    for sbp, meta in zip(s.outputs, into or (), strict=False):
        if sbp is not meta.sbp[axis]:
            changed += 1
            other = (*meta.sbp[:axis], sbp, *meta.sbp[axis + 1 :])
            total += cost(meta.with_sbp(other), meta.sbp)
    return total, changed
