"""Plans: the call on all examples that does what a call does on each.

All operands have the same levels; those at which every operand is shared are left out, and the
results are shared there.  A plan says the physical metas, which have the other levels' dimensions
somewhere, and the attributes.  The forms are tried one after the other:

- elementwise: the levels' dimensions in front of dimensions of size 1 up to the call's rank;
- in front: the levels' dimensions before all others, and attributes that name a dimension (`Dim`,
  `Dims`) or the result's shape (`shaped=`) moved along.  The op's SBP letters, asked of these
  operands, must name each of them by a letter of its own that all batched operands and all results
  have there, and that is no sum: then what an op may cut it computes apart.  Shared operands stay
  as they are if the letters allow that, else they are repeated;
- folded: the levels multiply a dimension that the letters of one example name so, as the samples of
  a convolution.

What a family must say by itself is in the files `*_rules`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flowvm.eager.interpreter import Operator
from flowvm.errors import FlowError
from flowvm.meta.batched_meta import Axis, example_of
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.batched.physical import (
    Wrap,
    ahead_of,
    batched_axes,
    behind,
    folded_meta,
    in_front,
    in_front_of_ones,
    is_shared,
    unfolded_meta,
)
from flowvm.ops.declare.assembly import Assembly
from flowvm.ops.declare.facts import Fact
from flowvm.ops.declare.kinds import Inferred
from flowvm.ops.declare.letters import Letters

Metas = tuple[TensorMeta, ...]


@dataclass(frozen=True)
class Plan:
    """A call on all examples.

    metas   of the operands
    dense   those that must be copied to memory in C order to have them: (place, the meta that
            shows all examples where they are, in that order)
    wrap    (place of a result, its meta): the meta of one example, with levels
    """

    metas: Metas
    attrs: Attrs
    wrap: Wrap
    dense: tuple[tuple[int, TensorMeta], ...] = ()


# ops whose kernels go over all dimensions in front of those that they are about, whatever their
# letters say: how many dimensions of an operand are the last ones
LEADING: Fact[bool] = Fact()
# ops that compute the first dimension of all operands apart, whatever their letters say
SAMPLES: Fact[bool] = Fact()
# functions that compute a call by other calls on tensors with levels: (op, tensors, attrs, scalars)
# -> results, None where the forms here will do
STEPS: Fact[Callable[..., object]] = Fact()
# the same, with graphs of their own: the call itself has no node then
COMPOSED: Fact[Callable[..., object]] = Fact()
# what a family says: (op, metas, attrs, outs of one example, axes) -> Plan or None
RULE: Fact[Callable[..., Plan | None]] = Fact()


def results_of(op: Operator, metas: Sequence[TensorMeta], attrs: Attrs) -> Metas:
    """Return a call's result metas; raise its error."""
    if op.kernel.infer is None:
        return op.kernel.lower(tuple(metas), attrs).outputs
    answer = op.kernel.infer(tuple(metas), attrs)
    if isinstance(answer, Assembly):
        return (answer.out,)
    outputs: Metas = answer.outputs
    return outputs


def plan_of(op: Operator, metas: Metas, attrs: Attrs, shared: tuple[Axis, ...]) -> Plan | None:
    """Return the plan of a call on operands of one set of levels; None if no form fits.

    `shared` are the levels at which all of them are shared.  Raise the call's own error.
    """
    examples = tuple(map(example_of, metas))
    axes = batched_axes(metas)
    if not axes:
        plain = tuple(map(example_of, attrs)) if attrs and not metas else attrs
        return Plan(examples, plain, behind((), shared))
    outs = results_of(op, [m.dense() for m in examples] if op.kernel.dense else examples, attrs)
    rule = RULE.of(op)
    if rule is not None:
        plan: Plan | None = rule(op, metas, attrs, outs, axes, shared)
        if plan is not None:
            return plan
    if isinstance(op.origin.form, tuple):
        return _elementwise(op, metas, attrs, outs, axes, shared)
    for form in (_front_unrepeated, _front_repeated, _front_copied, _folded):
        try:
            plan = form(op, metas, attrs, outs, axes, shared)
        except (FlowError, IndexError, ValueError, TypeError):  # it takes no such operands
            continue
        if plan is not None:
            return plan
    return None


def _elementwise(
    op: Operator,
    metas: Metas,
    attrs: Attrs,
    outs: Metas,
    axes: Sequence[Axis],
    shared: Sequence[Axis],
) -> Plan | None:
    rank = max(m.ndim for m in (*metas, *outs))
    physical = tuple(
        example_of(m) if is_shared(m, axes) else in_front_of_ones(m, axes, rank) for m in metas
    )
    form, pattern = op.origin.form
    if form.types_of(pattern, physical, attrs) != form.types_of(
        pattern, tuple(map(example_of, metas)), attrs
    ):
        return None  # a 0-d tensor has no say in the dtype, and has dimensions here
    return Plan(physical, attrs, behind(axes, shared))


# --- levels in front ------------------------------------------------------------------------------

_DIMS = {"Dim", "Dims"}
_NAMES = {"dim", "dims"}


def moved_attrs(op: Operator, attrs: Attrs, axes: Sequence[Axis], rank: int) -> Attrs:
    """Return the attributes of a call with the levels' dimensions in front."""
    infer = op.kernel.infer.infer if isinstance(op.kernel.infer, Inferred) else op.kernel.infer
    annotations = getattr(infer, "__annotations__", {})
    n = len(axes)
    moved = []
    for name, value in zip(op.signature.attrs, attrs, strict=False):
        if name == op.signature.shaped:
            value = (*(a.size for a in axes), *value)
        elif annotations.get(name) in _DIMS or name in _NAMES:
            if type(value) is int:
                value += n if value >= 0 else 0
            elif rank:
                value = tuple(d + n for d in value)
            else:
                value = ()
        moved.append(value)
    return (*moved, *attrs[len(moved) :])


def _front_unrepeated(
    op: Operator,
    metas: Metas,
    attrs: Attrs,
    outs: Metas,
    axes: Sequence[Axis],
    shared: Sequence[Axis],
) -> Plan | None:
    """The levels in front of the operands that are not shared."""
    alone = tuple(is_shared(m, axes) for m in metas)
    if not any(alone) or any(
        n in op.signature.writes for n, one in zip(op.signature.inputs, alone, strict=True) if one
    ):
        return None
    return _front(op, metas, attrs, outs, axes, shared, alone)


def _front_repeated(
    op: Operator,
    metas: Metas,
    attrs: Attrs,
    outs: Metas,
    axes: Sequence[Axis],
    shared: Sequence[Axis],
) -> Plan | None:
    """The levels in front of all operands."""
    return _front(op, metas, attrs, outs, axes, shared, (False,) * len(metas))


def _front_copied(
    op: Operator,
    metas: Metas,
    attrs: Attrs,
    outs: Metas,
    axes: Sequence[Axis],
    shared: Sequence[Axis],
) -> Plan | None:
    """The levels in front of all operands, in C order though the op takes some other strides."""
    return _front(op, metas, attrs, outs, axes, shared, (False,) * len(metas), copied=True)


def _front(
    op: Operator, metas: Metas, attrs: Attrs, outs: Metas, axes: Sequence[Axis],
    shared: Sequence[Axis],
    alone: tuple[bool, ...], copied: bool = False,
) -> Plan | None:  # fmt: skip
    whole = tuple(
        example_of(m) if one else in_front(m, axes) for m, one in zip(metas, alone, strict=True)
    )
    dense, physical = laid(whole) if op.kernel.dense or copied else ((), whole)
    moved = moved_attrs(op, attrs, axes, metas[0].ndim)
    outputs = results_of(op, physical, moved)
    sizes = tuple(a.size for a in axes)
    if any(tuple(p.shape) != (*sizes, *m.shape) for p, m in zip(outputs, outs, strict=True)):
        return None
    if any(p.dtype is not m.dtype for p, m in zip(outputs, outs, strict=True)):
        return None
    if (any(alone) or not LEADING.of(op)) and not _apart(
        op, physical, moved, outputs, alone, len(axes)
    ):
        return None
    return Plan(physical, moved, behind(axes, shared), dense)


def laid(whole: Metas) -> tuple[tuple[tuple[int, TensorMeta], ...], Metas]:
    """Return which operands must be copied to lie in C order, as `Plan` has it, and their metas."""
    dense = tuple((k, m) for k, m in enumerate(whole) if not m.contiguous)
    return dense, tuple(m.dense() for m in whole)


def _apart(
    op: Operator, metas: Metas, attrs: Attrs, outs: Metas, alone: Sequence[bool], count: int
) -> bool:
    """Return True if the op's letters say that it computes the first dimensions apart."""
    letters: Letters | None = (
        None if op.rules.letters is None else op.rules.letters(metas, attrs, outs)
    )
    if letters is None:
        return False
    batched = [n for n, one in zip(letters.inputs, alone, strict=True) if not one]
    others = [n for n, one in zip(letters.inputs, alone, strict=True) if one]
    operands = [*batched, *letters.outputs]
    for j in range(count):
        (name, *more) = {names[j] for names in operands}
        if more or name is None or name in letters.sums:
            return False
        if any(names.count(name) > 1 for names in operands) or any(name in n for n in others):
            return False
    return True


# --- levels in one of the dimensions --------------------------------------------------------------


def _folded(
    op: Operator,
    metas: Metas,
    attrs: Attrs,
    outs: Metas,
    axes: Sequence[Axis],
    shared: Sequence[Axis],
) -> Plan | None:
    """The levels' sizes multiply a dimension that the op computes apart."""
    if op.signature.writes or not outs or op.rules.letters is None:
        return None
    examples = tuple(map(example_of, metas))
    if SAMPLES.of(op):
        first = [("n", *(None,) * (m.ndim - 1)) for m in (*metas, *outs)]
        letters: Letters | None = Letters(tuple(first[: len(metas)]), tuple(first[len(metas) :]))
    else:
        letters = op.rules.letters(examples, attrs, outs)
    if letters is None:
        return None
    alone = tuple(is_shared(m, axes) for m in metas)
    times = math.prod(a.size for a in axes)
    for repeats in (False, True):  # shared operands that have the dimension are repeated at worst
        for name in letters.outputs[0]:
            if name is None or name in letters.sums or name in letters.even:
                continue
            if any(names.count(name) != 1 for names in letters.outputs):
                continue
            has = [names.count(name) for names in letters.inputs]
            most = [1 if repeats or not one else 0 for one in alone]
            if all((n == 1 or one) and n <= m for n, m, one in zip(has, most, alone, strict=True)):
                plan = _folded_at(op, metas, attrs, outs, axes, shared, letters, name, times)
                if plan is not None:
                    return plan
    return None


def _folded_at(
    op: Operator, metas: Metas, attrs: Attrs, outs: Metas, axes: Sequence[Axis],
    shared: Sequence[Axis],
    letters: Letters, name: object, times: int,
) -> Plan | None:  # fmt: skip
    physical, dense = [], []
    for k, (m, names) in enumerate(zip(metas, letters.inputs, strict=True)):
        if name not in names:
            physical.append(example_of(m))
            continue
        at = names.index(name)
        merged = folded_meta(m, axes, at)
        if merged is None or (op.kernel.dense and not merged.contiguous):
            dense.append((k, ahead_of(m, axes, at)))
            shape = (*m.shape[:at], times * m.shape[at], *m.shape[at + 1 :])
            merged = TensorMeta.of(shape, m.dtype, example_of(m).device)
        physical.append(merged)
    places = [names.index(name) for names in letters.outputs]
    moved = list(attrs)
    if op.signature.shaped:
        k, at = op.signature.attrs.index(op.signature.shaped), places[0]
        shape = attrs[k]
        if len(shape) != outs[0].ndim:
            return None
        moved[k] = (*shape[:at], times * shape[at], *shape[at + 1 :])
    outputs = results_of(op, physical, tuple(moved))
    for p, m, at in zip(outputs, outs, places, strict=True):
        if tuple(p.shape) != (*m.shape[:at], times * m.shape[at], *m.shape[at + 1 :]):
            return None
    sizes = [m.shape[at] for m, at in zip(outs, places, strict=True)]

    def wrap(place: int, out: TensorMeta) -> TensorMeta:
        return unfolded_meta(out, axes, places[place], sizes[place], shared)

    return Plan(tuple(physical), tuple(moved), wrap, tuple(dense))
