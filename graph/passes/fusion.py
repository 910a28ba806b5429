"""Fusion: chains of elementwise nodes become one node with one generated kernel.

The kernel reads each input once, keeps intermediate values in registers and writes what is needed
outside (`fusion_program.py`).  All of a group have one shape; inputs may be broadcast to it.

Results may differ from eager ones in the last place: within one kernel a product and a sum may
become a fused multiply-add.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from flowvm.eager.live import Live
from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import OpNode
from flowvm.graph.passes.fusion_program import program_of, real_of
from flowvm.graph.passes.groups import MOST_OPERANDS, Group, Groups
from flowvm.ops.declare.core import CASTS

if TYPE_CHECKING:
    from flowvm.meta.meta import TensorMeta


def fuse_elementwise(graph: LogicalGraph) -> LogicalGraph:
    """Fuse every group of at least two nodes that may be one."""
    groups = Groups(graph)

    def fits(members: list[OpNode]) -> bool:
        return _one_program(groups, members)

    runs = groups.search(is_elementwise, fits)
    return groups.joined([(group, _fused(groups, group)) for group in runs])


def is_elementwise(node: OpNode) -> bool:
    """Return True if a node is arithmetic on single elements of floating point tensors and
    bools.
    """
    known = node.operator.origin.form is not None or node.operator in CASTS
    return known and real_of(node) is not None


def _one_program(groups: Groups, members: list[OpNode]) -> bool:
    if len({real_of(m) for m in members} - {""}) > 1:
        return False
    if len({tuple(m.outputs[0].meta.shape) for m in members}) > 1:
        return False
    inside = {m.outputs[0].buffer: m.outputs[0] for m in members}
    if any(inside.get(o.buffer, o) != o for m in members for o in m.inputs):
        return False  # a view of what the group itself makes
    inputs, outputs = groups.interface(members)
    lives = {id(s) for m in members for s in m.scalars if isinstance(s, Live)}
    return 0 < len(outputs) and len(inputs) + len(outputs) + len(lives) <= MOST_OPERANDS


def _fused(groups: Groups, group: Group) -> OpNode:
    members = groups.members(group)
    inputs, outputs = groups.interface(members)
    program = program_of(members, inputs, outputs)
    metas: tuple[TensorMeta, ...] = tuple(o.meta for o in outputs)
    return replace(
        members[-1],
        operator=program.operator,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        attrs=(metas,),
        scalars=program.lives,
    )
