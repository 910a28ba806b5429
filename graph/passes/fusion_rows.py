"""Fusion of reductions with the nodes in front and behind: row by row, or block by block.

A softmax, a norm, a sum, a loss takes rows one by one, and so may elementwise programs: a group of
both goes through its tensors in blocks of rows (`ops/declare/cpu/blocks.py`).  Each kernel of the
group runs on a block while it is in the cache; what only the group needs is never stored.  Any
kernel joins that says what its units touch (`Launch.blocks`), so scale, mask and softmax are such a
group, or a residual and the norm behind it, or a gradient and its sum over a batch.

Kernels and the units they are called for are those of the nodes alone, so not a bit changes.  It
pays where it saves traffic beyond the second-level cache: with tensors of 4 MiB a loss takes 0.84
of the time, a norm written out 0.77, a norm's gradient and the ops around it 0.9, scale and softmax
0.97; below WORTH all are even.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from flowvm.eager.declaration import Invocation, Kernel
from flowvm.eager.interpreter import Operator
from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import Operand, OpNode
from flowvm.graph.passes.device_rows import held_launch, held_operator, holds
from flowvm.graph.passes.fusion import is_elementwise
from flowvm.graph.passes.fusion_program import is_program, operator_by, program_of, title
from flowvm.graph.passes.groups import MOST_OPERANDS, Group, Groups
from flowvm.graph.passes.row_layout import Part, RowParts, arrange, lower_rows
from flowvm.graph.passes.row_parts import PARTS, check_parts, check_places
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.declare.recipes import maker

# bytes that a group must save: to find them in the second-level cache costs nothing
WORTH = 1 << 20
MOST_SAVED = 8  # operands of a group's length that it saves, at most


def fuse_rows(graph: LogicalGraph) -> LogicalGraph:
    """Fuse the groups of reductions and elementwise nodes that share rows, where it pays."""
    groups = Groups(graph)
    cut = {id(node) for node in graph.nodes if groups.makes_values(node) and _is_cut(node)}
    if not cut:
        return graph

    def joins(node: OpNode) -> bool:
        return id(node) in cut or is_program(node.operator) or is_elementwise(node)

    def fits(members: list[OpNode]) -> bool:
        if not any(id(m) in cut for m in members):
            return False
        program = _Made.of(groups, members)
        return program is not None and program.fits

    pairs = groups.search(joins, fits)
    chosen = []
    for group in pairs:
        program = _Made.of(groups, groups.members(group))
        if program is not None and program.saved >= WORTH:
            chosen.append(
                (group, _node(groups, group, program, row_operator, program.program.blocks))
            )
    return groups.joined(chosen)


def fuse_rows_on_device(graph: LogicalGraph) -> LogicalGraph:
    """Fuse elementwise nodes with the kernels that hold the rows they make or take."""
    groups = Groups(graph)
    held = {id(node) for node in graph.nodes if groups.makes_values(node) and _is_held(node)}
    if not held:
        return graph

    def joins(node: OpNode) -> bool:
        return id(node) in held or is_program(node.operator) or is_elementwise(node)

    def fits(members: list[OpNode]) -> bool:
        if sum(id(m) in held for m in members) != 1:
            return False
        program = _Made.of(groups, members)
        return program is not None and held_launch(program.program) is not None

    chosen = []
    for group in groups.search(joins, fits):
        program = _Made.of(groups, groups.members(group))
        assert program is not None
        chosen.append((group, _node(groups, group, program, held_operator, "")))
    return groups.joined(chosen)


def _is_held(node: OpNode) -> bool:
    if is_elementwise(node) or is_program(node.operator) or not node.outputs or not node.inputs:
        return False
    metas = tuple(operand.meta for operand in node.inputs)
    like = metas[0].numel == node.outputs[0].meta.numel
    return like and holds(node.operator, metas, node.attrs)


@functools.lru_cache(maxsize=4096)
def _blocks(operator: Operator, metas: tuple[TensorMeta, ...], attrs: Attrs) -> tuple[int, ...]:
    return operator.kernel.lower(metas, attrs).blocks


def _is_cut(node: OpNode) -> bool:
    if is_elementwise(node) or not node.outputs or not node.inputs:
        return False
    if max(o.meta.nbytes for _, o in node.accesses()) * MOST_SAVED < WORTH:
        return False
    metas = tuple(operand.meta for operand in node.inputs)
    return any(_blocks(node.operator, metas, node.attrs))


@dataclass
class _Made:
    """A group as a program on rows."""

    program: RowParts
    inputs: list[Operand]
    outputs: list[Operand]
    scalars: list[object]
    members: list[OpNode]

    @staticmethod
    def of(groups: Groups, members: list[OpNode]) -> _Made | None:
        inputs, outputs = groups.interface(members)
        read = {o.buffer for m in members for o in m.inputs}
        outputs += [  # nobody reads it, and it may be no row of a block
            o for m in members for o in m.outputs
            if o not in outputs and o.buffer not in read
        ]  # fmt: skip
        places = {o.buffer: k for k, o in enumerate(outputs)}
        place_of = {o: len(outputs) + k for k, o in enumerate(inputs)}
        own: dict[object, int] = {}
        parts: list[Part] = []
        scalars: list[object] = []
        for m in members:
            operator, attrs, lives, read_by = m.operator, m.attrs, m.scalars, list(m.inputs)
            if is_elementwise(m):  # as a program, whose kernel is made for any plan
                read_by = list(dict.fromkeys(m.inputs))
                operator, lives = program_of([m], read_by, m.outputs)
                attrs = (tuple(o.meta for o in m.outputs),)
            refs = []
            for o in (*m.outputs, *read_by):
                place = place_of.get(o, places.get(o.buffer))
                if place is None:
                    place = -1 - own.setdefault(o.buffer, len(own))
                if place < len(outputs) and o.offset:
                    return None  # a part of what the group itself makes
                refs.append((place, o.meta))
            numbers = tuple(range(len(scalars), len(scalars) + len(lives)))
            parts.append(Part(operator, attrs, tuple(refs), numbers))
            scalars += lives
        if len(inputs) + len(outputs) + len(scalars) > MOST_OPERANDS:
            return None
        return _Made(RowParts(tuple(parts), len(outputs)), inputs, outputs, scalars, members)

    @property
    def fits(self) -> bool:
        return arrange(self.program) is not None

    @property
    def saved(self) -> int:
        """Count the bytes that are never stored, and the bytes that a sum need not read again.

        A kernel that gives as much as it takes reads what is stored in the time that it computes;
        to a sum, reading is all there is.
        """
        stored = {o.buffer for o in self.outputs}
        metas = {o.buffer: o.meta for m in self.members for o in m.outputs}
        total = sum(meta.nbytes for buffer, meta in metas.items() if buffer not in stored)
        for m in self.members:
            for buffer in {o.buffer for o in m.inputs} & stored:
                if m.outputs[0].meta.numel < metas[buffer].numel:
                    total += metas[buffer].nbytes
        return total


def _node(
    groups: Groups, group: Group, program: _Made, maker: Callable[..., Operator], blocks: str
) -> OpNode:
    members = groups.members(group)
    names = [m.operator.name.removeprefix("fused[").removesuffix("]") for m in members]
    operator = maker(
        title(",".join(names).split(",")),
        tuple((p.operator, p.attrs, p.refs, p.scalars) for p in program.program.parts),
        len(program.outputs),
        len(program.inputs),
        len(program.scalars),
    )
    metas = tuple(o.meta for o in program.outputs)
    return replace(
        members[-1],
        operator=operator,
        inputs=tuple(program.inputs),
        outputs=tuple(program.outputs),
        attrs=(metas, blocks),
        scalars=tuple(program.scalars),
    )


@maker("rows", *PARTS, together=check_parts)
@functools.cache
def row_operator(
    name: str, parts: tuple[Any, ...], outputs: int, inputs: int, scalars: int
) -> Operator:
    """The operator of a program on rows: its parts' (operator, attributes, references, numbers).

    What is compiled are the parts' kernels, which know no sizes.
    """
    program = RowParts(tuple(Part(*part) for part in parts), outputs)

    def lower(metas: tuple[TensorMeta, ...], attrs: Attrs) -> Invocation:
        check_places(program, attrs[0], metas)
        return lower_rows(program, attrs[0], inputs)

    return operator_by(
        ("rows", (name, parts, outputs, inputs, scalars)),
        (inputs, outputs, scalars),
        ("metas", "blocks"),
        Kernel(lower, aliases=program.aliases),
    )
