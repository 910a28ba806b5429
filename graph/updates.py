"""Updates: nodes of one operator that change different tensors in place become one node.

An optimizer issues one update for each parameter.  Here they become one task (OneFlow's
multi-tensor update), whose kernel goes through all of them, so that workers share a model's many
small tensors as they share a large one.  Nothing is known of any operator: what was declared for
one tensor is run for each, so an optimizer that a user wrote profits as ours do, with what it
computes on the way, and so do gradients that are scaled in place.  Every bit is as it was.

A node joins the nodes that stand furthest in front, as long as nothing between changes what it
reads or reads what it changes.

Invariants:
- the members of a node share no memory that one of them writes;
- the layout of a merged kernel holds the layouts of its members, and nothing else is pointed to.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from flowvm import jit
from flowvm.graph.logical import Buffer, LogicalGraph, Operand, OpNode
from flowvm.graph.plain import operator_mark, plain, read_operator
from flowvm.graph.rewriting import is_pure, rebuilt
from flowvm.interpreter import Invocation, Operator, call_into
from flowvm.live import Live
from flowvm.meta import TensorMeta
from flowvm.ops.walk import OPERANDS_AT, stack_memory
from flowvm.vm.lang import call_kernel, load_word, store_word
from flowvm.vm.layout import ARG_HEADER, DETAILS

__all__ = ["Merged", "merge_updates", "merged_again", "merged_operator"]

MOST_BYTES = 1 << 20  # of an operand: a larger one keeps workers busy alone, and its gradient
MOST_WORDS = 1 << 10  # would have to wait for the others; operands and scalars of a node


def merge_updates(graph: LogicalGraph) -> LogicalGraph:
    """Make one node of those that run one operator in place on tensors apart from each other."""
    slots: list[_Slot] = []
    for node in graph.nodes:
        key = _key(node)
        if key is not None:
            found = next((s for s in _reachable(slots, node) if s.takes(key, node)), None)
            if found is not None:
                found.add(node)
                continue
        slots.append(_Slot(key, node))
    return rebuilt(graph, [slot.node() for slot in slots])


def _key(node: OpNode) -> Any:
    """What nodes that may be merged have in common; None if this one may not."""
    if node.operator.unsized or isinstance(node.operator, Merged):
        return None
    if is_pure(node) and node.phase != "optimizer":  # its result would have to wait for others
        return None
    if any(operand.meta.nbytes > MOST_BYTES for _, operand in node.accesses()):
        return None
    made = _lowered(node)
    if made.scratch or made.phases or not made.units:
        return None
    run = (node.stream, node.repeat, node.region, node.again)
    return node.operator, node.into, node.phase, *run


def _lowered(node: OpNode) -> Invocation:
    into = tuple(o.meta for o in node.outputs) if node.into else ()
    return node.operator.lower((*into, *(o.meta for o in node.inputs)), node.attrs)


@dataclass(eq=False)
class _Slot:
    """A place in the new order: a node, or several that become one."""

    key: Any
    first: OpNode
    members: list[OpNode] = field(default_factory=list)
    reads: set[Buffer] = field(default_factory=set)
    writes: set[Buffer] = field(default_factory=set)
    words: int = 0

    def __post_init__(self) -> None:
        self.add(self.first)

    def add(self, node: OpNode) -> None:
        self.members.append(node)
        self.reads |= {operand.buffer for operand in node.inputs}
        self.writes |= {operand.buffer for operand in node.written()}
        self.words += _words(node)

    def conflicts(self, reads: set[Buffer], writes: set[Buffer]) -> bool:
        """Whether these accesses must stay behind those of the slot."""
        return not (
            self.writes.isdisjoint(reads)
            and self.writes.isdisjoint(writes)
            and self.reads.isdisjoint(writes)
        )

    def takes(self, key: Any, node: OpNode) -> bool:
        return bool(self.key == key) and self.words + _words(node) <= MOST_WORDS

    def node(self) -> OpNode:
        return self.first if len(self.members) == 1 else _merged(self.members)


def _words(node: OpNode) -> int:
    return len(node.outputs) + len(node.inputs) + len(node.scalars)


def _reachable(slots: Sequence[_Slot], node: OpNode) -> list[_Slot]:
    """The slots in whose place `node` may run, first to last."""
    reads = {operand.buffer for operand in node.inputs}
    writes = {operand.buffer for operand in node.written()}
    first = len(slots)
    while first and slots[first - 1].first.repeat == node.repeat:
        if slots[first - 1].conflicts(reads, writes):
            break
        first -= 1
    return list(slots[first:])


# --- the merged node ----------------------------------------------------------------------------


def _merged(members: Sequence[OpNode]) -> OpNode:
    """One node for all of these; an output that was given is an operand that it changes."""
    first = members[0]
    kinds = [_scalar_kinds(node) for node in members]
    scalars: list[Any] = []
    places: dict[Any, int] = {}
    numbers = []
    for node, kind in zip(members, kinds, strict=True):
        own = []
        for k, value in zip(kind, node.scalars, strict=True):
            what = id(value) if isinstance(value, Live) else repr(value)
            if (k, what) not in places:
                places[k, what] = len(scalars)
                scalars.append((k, value))
            own.append(places[k, what])
        numbers.append(tuple(own))
    operator = merged_operator(
        first.operator, first.into, len(members), "".join(k for k, _ in scalars)
    )
    operands: list[Operand] = []
    for node in members:
        operands += [*(node.outputs if node.into else ()), *node.inputs]
    return replace(
        first,
        operator=operator,
        inputs=tuple(operands),
        outputs=() if first.into else tuple(o for node in members for o in node.outputs),
        attrs=(tuple(n.attrs for n in members), tuple(numbers)),
        scalars=tuple(value for _, value in scalars),
        into=False,
        scope=first.scope if len({n.scope for n in members}) == 1 else "",
    )


def _scalar_kinds(node: OpNode) -> str:
    return _lowered(node).scalar_pack[::-1] or node.operator.scalar_kinds


class Merged(Operator):
    """`base`, issued for several tensors at once; made by `merged_operator`."""

    base: Operator
    count: int
    ahead: int  # outputs of `base` that are given, in front of each member's inputs

    def __post_init__(self) -> None:
        self.lowered: dict[Any, Invocation] = {}
        self.call = self._call_each

    def per_member(self, values: Sequence[Any]) -> Iterable[Sequence[Any]]:
        """`values`, one for each operand, member by member."""
        each = self.ahead + len(self.base.inputs)
        return (values[k * each : (k + 1) * each] for k in range(self.count))

    def _call_each(self, *args: Any) -> tuple[Any, ...]:
        """Issue the members one by one: what a merged node means."""
        tensors, (all_attrs, numbers_of, *scalars) = (
            args[: len(self.inputs)],
            args[len(self.inputs) :],
        )
        made: list[Any] = []
        for own, attrs, places in zip(self.per_member(tensors), all_attrs, numbers_of, strict=True):
            numbers = tuple(scalars[i] for i in places)
            outs, ins = own[: self.ahead], own[self.ahead :]
            if not outs:
                result = self.base.call(*ins, *attrs, *numbers)
                made += result if isinstance(result, tuple) else [result]
                continue
            call_into(self.base, tuple(outs), tuple(ins), attrs, numbers)
            for out in outs:
                out.bump()
        return tuple(made)


@functools.cache
def merged_operator(base: Operator, into: bool, count: int, kinds: str) -> Operator:
    """The operator of `count` nodes of `base` (its outputs given, if `into`) as one; `kinds` are
    those of its scalars.
    """
    outs = base.outputs if into else ()
    own = (*outs, *base.inputs)
    changed = {*outs, *base.writes}
    fresh = () if into else base.outputs
    made = Merged(
        name=f"{base.name.rstrip('_')}_each",
        inputs=tuple(f"{name}{k}" for k in range(count) for name in own),
        outputs=tuple(f"{name}{k}" for k in range(count) for name in fresh),
        lower=lambda metas, attrs: _lower(made, kinds, metas, attrs),
        attrs=("attrs", "numbers"),
        scalars=tuple(f"number{k}" for k in range(len(kinds))),
        scalar_kinds=kinds,
        writes=frozenset(f"{name}{k}" for k in range(count) for name in own if name in changed),
    )
    made.base, made.count, made.ahead = base, count, len(outs)
    made.recipe = (f"{__name__}:merged_again", (_reference(base), into, count, kinds))
    return made


def merged_again(base: tuple[Any, ...], into: bool, count: int, kinds: str) -> Operator:
    """`merged_operator` of the operator that `base` refers to: for graphs that were saved."""
    return merged_operator(
        read_operator([plain(v, "an operator") for v in base]), into, count, kinds
    )


def _reference(operator: Operator) -> tuple[Any, ...]:
    """The recipe of an operator, or what tells it from others that are declared."""
    if operator.recipe is not None:
        return ("recipe", *operator.recipe)
    pattern = operator.form[1] if operator.form is not None else ""
    return ("declared", operator.name, pattern, operator_mark(operator))


def _lower(
    made: Merged, kinds: str, metas: tuple[TensorMeta, ...], attrs: tuple[Any, ...]
) -> Invocation:
    """The members' kernels in one.

    A unit is one chunk of a large member, or several small members whole.  Layout words: for each
    unit where its pieces begin, and behind the last; the pieces (member, lo, hi); the members
    (kernel, operands and scalars in number and where each is among the arguments, layout).
    """
    all_attrs, numbers_of = attrs
    if (known := made.lowered.get((metas, attrs))) is not None:
        return known
    each, count = made.ahead + len(made.base.inputs), len(made.outputs)
    outs = count // made.count
    lowered = [
        made.base.lower(tuple(own), own_attrs)
        for own, own_attrs in zip(made.per_member(metas), all_attrs, strict=True)
    ]
    units = _units([(own.units, max(1, own.grain)) for own in lowered])
    pieces = [piece for unit in units for piece in unit]
    begins = np.cumsum([0, *map(len, units)])
    first_piece = len(begins)
    first_member = first_piece + 3 * len(pieces)
    words: list[int] = []
    place: list[int] = []
    for k, (own, places) in enumerate(zip(lowered, numbers_of, strict=True)):
        place.append(first_member + len(words))
        args = [*range(k * outs, (k + 1) * outs)]
        args += range(count + k * each, count + (k + 1) * each)
        args += (count + len(made.inputs) + i for i in places)
        words += [own.kernel, len(args), *args, *own.layout.tolist()]
    head = [first_piece + 3 * int(b) for b in begins]
    table = [word for m, lo, hi in pieces for word in (place[m], lo, hi)]
    layout = np.array([*head, *table, *words], np.int64)
    metas_out = tuple(meta for own in lowered for meta in own.outputs) if outs else ()
    result = Invocation(metas_out, _kernel(), layout, len(units), 1, scalar_pack=kinds[::-1])
    made.lowered[metas, attrs] = result
    return result


Piece = tuple[int, int, int]  # a member, and from where to where in its units


def _units(sizes: Sequence[tuple[int, int]]) -> list[list[Piece]]:
    """Units of about equal work: each (units, grain) cut into chunks, small ones together."""
    units: list[list[Piece]] = []
    room = 0.0
    for member, (count, grain) in enumerate(sizes):
        for lo in range(0, count, grain):
            hi = min(lo + grain, count)
            part = (hi - lo) / grain
            if part > room:
                units.append([])
                room = 1.0
            units[-1].append((member, lo, hi))
            room -= part
    return units


def run_pieces(args: int, layout: int, lo: int, hi: int, arena: int) -> int:
    """The kernel: the pieces of the units [lo, hi), each with arguments as its own kernel has them.

    A member's arguments are laid out on the stack: its details, no scratch, the stream, then its
    operands and scalars.
    """
    own = stack_memory()
    for k in range(DETAILS):
        store_word(own + 8 * k, 0)
    store_word(own + 8 * (ARG_HEADER - 2), 0)
    store_word(own + 8 * (ARG_HEADER - 1), load_word(args + 8 * (ARG_HEADER - 1)))
    piece = layout + 8 * load_word(layout + 8 * lo)
    end = layout + 8 * load_word(layout + 8 * hi)
    while piece < end:
        member = layout + 8 * load_word(piece)
        count = load_word(member + 8)
        for k in range(count):
            given = load_word(member + 16 + 8 * k)
            store_word(own + 8 * (OPERANDS_AT + k), load_word(args + 8 * (OPERANDS_AT + given)))
        status = call_kernel(
            load_word(member), own, member + 16 + 8 * count,
            load_word(piece + 8), load_word(piece + 16), arena,
        )  # fmt: skip
        if status != 0:
            for k in range(DETAILS):
                store_word(args + 8 * k, load_word(own + 8 * k))
            return status
        piece += 24
    return 0


@functools.cache
def _kernel() -> int:
    return jit.native(run_pieces, "int32(int64, int64, int64, int64, int64)")
