"""Gradient accumulation into place: one gradient in memory where backward makes several and adds.

What scatters into zeros that are then added to another gradient (an embedding's table that is the
output layer's weight too) scatters into that gradient instead: no zeros, no addition (OneFlow's
FuseAddToOutput).  It is the same sum in another order, so the last bits may differ.

`values_of_sums` prepares for this and for epilogues, where a product begins with the gradient that
it is added to, and changes no bit: what backward added in place becomes a value of its own.
"""

from __future__ import annotations

from dataclasses import replace

from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import Buffer, BufferKind, Operand, OpNode, is_pure
from flowvm.graph.logical.rewriting import Accesses, rebuilt, together
from flowvm.ops.declare.composite import _fill
from flowvm.ops.declare.registry import operator_of
from flowvm.ops.places.cpu.index_kernels import ADD
from flowvm.ops.places.gather import combine_elements, combine_slices
from flowvm.ops.pointwise.arithmetic import _add
from flowvm.ops.updates.accumulate import accumulate_

_accumulate = operator_of(accumulate_)
_SCATTERS = (operator_of(combine_slices), operator_of(combine_elements))


def values_of_sums(graph: LogicalGraph) -> LogicalGraph:
    """Let gradients that are added to in place be sums: each value in a buffer of its own.

    So copies that were made for it can go, and other passes see who needs which value.
    """
    present: dict[Buffer, Buffer] = {}  # where a buffer's value is by now
    number = max((b.number for b in graph.buffers()), default=0)
    accesses = Accesses(graph)
    nodes: list[OpNode] = []

    def now(operand: Operand) -> Operand:
        return replace(operand, buffer=present.get(operand.buffer, operand.buffer))

    for node in graph.nodes:
        inputs, outputs = tuple(map(now, node.inputs)), node.outputs
        if node.into:
            outputs = tuple(map(now, outputs))
        if node.operator is _accumulate and _all_of(inputs[0]) and _one_turn(accesses, node):
            old = inputs[0].buffer
            number += 1
            buffer = Buffer(number, BufferKind.TEMPORARY, old.nbytes, old.name)
            outputs = (replace(inputs[0], buffer=buffer),)
            present[node.inputs[0].buffer] = buffer
            node = replace(node, operator=_add.operator)
        nodes.append(replace(node, inputs=inputs, outputs=outputs))
    if not present:
        return graph
    return replace(rebuilt(graph, nodes), outputs=[now(operand) for operand in graph.outputs])


def _one_turn(accesses: Accesses, node: OpNode) -> bool:
    """Return True if a node's summand is made in the same repetition; otherwise it would add up."""
    writes = accesses.writes[node.inputs[0].buffer]
    return all(together(accesses.nodes[place], node) for place in writes)


def _all_of(operand: Operand) -> bool:
    """Return True if the operand is a temporary buffer as a whole, in C order."""
    buffer, meta = operand.buffer, operand.meta
    whole = operand.offset == 0 and meta.contiguous and meta.nbytes == buffer.nbytes
    return whole and buffer.kind is BufferKind.TEMPORARY


def accumulate_in_place(graph: LogicalGraph) -> LogicalGraph:
    """Let a scatter into zeros scatter into the sum to which its result is added."""
    accesses = Accesses(graph)
    nodes: list[OpNode | None] = list(graph.nodes)
    moved = {}
    for place, node in enumerate(graph.nodes):
        if node.operator is not _add.operator or not is_pure(node):
            continue
        (out,) = node.outputs
        for total, last in (node.inputs, node.inputs[::-1]):
            alike = total.meta == last.meta == out.meta and total.buffer is not last.buffer
            if alike and _into_sum(accesses, nodes, place, total, last):
                moved[out.buffer] = total
                break
    if not moved:
        return graph
    return rebuilt(graph, [node for node in nodes if node is not None], moved)


def _into_sum(
    accesses: Accesses, nodes: list[OpNode | None], place: int, total: Operand, last: Operand
) -> bool:
    """Let the scatter into zeros that makes `last` scatter into `total`; return True if it can."""
    writes = accesses.writes.get(last.buffer, [])
    if len(writes) != 2 or not accesses.only_readers(last.buffer, place, writes[1]):
        return False
    node, (zeros, scatter) = accesses.nodes[place], (nodes[p] for p in writes)
    if zeros is None or scatter is None or zeros.operator is not _fill:
        return False
    if zeros.scalars != (0,) or scatter.operator not in _SCATTERS or scatter.attrs[-1] != ADD:
        return False
    if scatter.inputs[0] != last or zeros.outputs[0] != last:
        return False
    if not _all_of(total) or not accesses.only_readers(total.buffer, place):
        return False
    if not together(zeros, node) or not together(scatter, node):
        return False
    if not _one_turn(accesses, replace(scatter, inputs=(total,))):
        return False
    others = scatter.inputs[1:]
    if any(o.buffer is total.buffer for o in others) or not all(
        accesses.unchanged(o.buffer, writes[1] + 1, place) for o in others
    ):
        return False
    nodes[writes[0]] = nodes[writes[1]] = None
    nodes[place] = replace(scatter, inputs=(total, *others))
    return True
