"""Updates: nodes of one operator that change different tensors in place become one node.

An optimizer issues one update for each parameter.  Here they become one task (OneFlow's
multi-tensor update), whose kernel goes through all of them, so that workers share a model's many
small tensors as they share a large one.  Nothing is known of any operator: what was declared for
one tensor is run for each, so an optimizer that a user wrote profits as ours do, with what it
computes on the way, and so do gradients that are scaled in place.  Every bit is as it was.

A node joins the nodes that stand furthest in front, as long as nothing between changes what it
reads or reads what it changes.  Updates that wait for different sums over ranks stay apart: the
first ones run while the last sum is under way.

Invariants:
- the members of a node share no memory that one of them writes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from flowvm.eager.declaration import Invocation, Kernel, Origin, Signature
from flowvm.eager.interpreter import Operator, device_of
from flowvm.eager.live import Live
from flowvm.errors import ArgumentError
from flowvm.files.schema import anything, flag, integer, several, text
from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import Buffer, Operand, OpNode, is_pure
from flowvm.graph.logical.plain import operator_mark, plain, read_operator
from flowvm.graph.logical.rewriting import rebuilt
from flowvm.graph.passes.late import sums_awaited
from flowvm.graph.passes.multi_tensor import Merged
from flowvm.graph.passes.update_kernels import launch_each, lower_each
from flowvm.loading.lazy import lazy
from flowvm.meta.device import Device, cpu
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.recipes import maker

if TYPE_CHECKING:
    from flowvm.ops.declare.cuda import lowering
    from flowvm.ops.updates.cuda import multi_tensor
else:
    lowering = lazy("flowvm.ops.declare.cuda.lowering")
    multi_tensor = lazy("flowvm.ops.updates.cuda.multi_tensor")

MOST_BYTES = 1 << 20  # of an operand: a larger one keeps workers busy alone, and its gradient
MOST_WORDS = 1 << 10  # would have to wait for the others; operands and scalars of a node
_Key = tuple[Operator, bool, str, int, int, int, int, int]


def merge_updates(graph: LogicalGraph) -> LogicalGraph:
    """Merge nodes that run one operator in place on separate tensors."""
    slots: list[_Slot] = []
    for number, node in zip(sums_awaited(graph), graph.nodes, strict=True):
        key = _key(node, number)
        if key is not None:
            open_slot = next((s for s in _reachable(slots, node) if s.takes(key, node)), None)
            if open_slot is not None:
                open_slot.add(node)
                continue
        slots.append(_Slot(key, node))
    return rebuilt(graph, [slot.node() for slot in slots])


def _key(node: OpNode, number: int) -> _Key | None:
    """Return the properties that nodes to be merged share; None if this node may not be merged.

    `number` is of the last sum over ranks that the node waits for.
    """
    operator = node.operator
    if (
        operator.signature.unsized
        or isinstance(operator, Merged)
        or "order" in operator.signature.writes
    ):
        return None
    if is_pure(node) and node.phase != "optimizer":  # its result would have to wait for others
        return None
    if not (_merges_on_cpu if _device_of(node) is cpu else _merges_on_device)(node):
        return None
    run = (node.stream, node.repeat, node.region, node.again)
    return operator, node.into, node.phase, number, *run


def _device_of(node: OpNode) -> Device:
    return device_of(_metas(node), node.attrs)


def _merges_on_cpu(node: OpNode) -> bool:
    if any(operand.meta.nbytes > MOST_BYTES for _, operand in node.accesses()):
        return False
    launch = _lowered(node)
    return bool(launch.units) and not launch.scratch and not launch.phases


def _merges_on_device(node: OpNode) -> bool:
    """Return True if a device can merge the node, of any size: there, the launch is the cost."""
    return multi_tensor.merges(lowering.launch_of(node.operator, _metas(node), node.attrs))


def _metas(node: OpNode) -> tuple[TensorMeta, ...]:
    into = tuple(o.meta for o in node.outputs) if node.into else ()
    return (*into, *(o.meta for o in node.inputs))


def _lowered(node: OpNode) -> Invocation:
    return node.operator.kernel.lower(_metas(node), node.attrs)


@dataclass(eq=False)
class _Slot:
    """A place in the new order: a node, or several that become one."""

    key: _Key | None
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
        """Return True if these accesses must stay behind the accesses of the slot."""
        return not (
            self.writes.isdisjoint(reads)
            and self.writes.isdisjoint(writes)
            and self.reads.isdisjoint(writes)
        )

    def takes(self, key: _Key | None, node: OpNode) -> bool:
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
    places = {}
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
    if _device_of(node) is not cpu:  # where those that depend on the call do not merge
        return node.operator.signature.scalar_kinds
    return _lowered(node).scalar_pack[::-1] or node.operator.signature.scalar_kinds


@functools.cache
def merged_operator(base: Operator, into: bool, count: int, kinds: str) -> Operator:
    """Return one operator for `count` nodes of `base` (its outputs given, if `into`).

    `kinds` are the kinds of its scalars.
    """
    outs = base.signature.outputs if into else ()
    own = (*outs, *base.signature.inputs)
    changed = {*outs, *base.signature.writes}
    fresh = () if into else base.signature.outputs
    merged: Merged = Merged(
        f"{base.name.rstrip('_')}_each",
        Signature(
            inputs=tuple(f"{name}{k}" for k in range(count) for name in own),
            outputs=tuple(f"{name}{k}" for k in range(count) for name in fresh),
            attrs=("attrs", "numbers"),
            scalars=tuple(f"number{k}" for k in range(len(kinds))),
            scalar_kinds=kinds,
            writes=frozenset(f"{name}{k}" for k in range(count) for name in own if name in changed),
        ),
        Kernel(
            lower=lambda metas, attrs: lower_each(merged, kinds, metas, attrs),
            infer=lambda metas, attrs: None,
            cuda=lambda launch, metas, attrs: launch_each(merged, metas, attrs),
        ),
        origin=Origin(recipe=("merged", (_reference(base), into, count, kinds))),
    )
    merged.base, merged.count, merged.ahead = base, count, len(outs)
    return merged


@maker(
    "merged", several(anything, most=4, kind=tuple), flag, integer(1, MOST_WORDS),
    text(MOST_WORDS, "[dq]*"),
)  # fmt: skip
def merged_again(base: tuple[object, ...], into: bool, count: int, kinds: str) -> Operator:
    """`merged_operator` of the operator that `base` refers to: for graphs that were saved."""
    of = read_operator([plain(v, "an operator") for v in base])
    if (
        of.signature.unsized
        or isinstance(of, Merged)
        or count * (len(of.signature.inputs) + 1) > MOST_WORDS
    ):
        raise ArgumentError(
            f"the saved graph is damaged: it merges {count} instructions {of.name}, which cannot be"
        )
    return merged_operator(of, into, count, kinds)


def _reference(operator: Operator) -> tuple[object, ...]:
    """Return the recipe of an operator, or a declared operator's distinguishing mark."""
    if operator.origin.recipe is not None:
        return ("recipe", *operator.origin.recipe)
    pattern = operator.origin.form[1] if operator.origin.form is not None else ""
    return ("declared", operator.name, pattern, operator_mark(operator))
