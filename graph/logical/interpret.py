"""Running a LogicalGraph node by node on the VM: the baseline of compiled forms, and their oracle.

Repetitions (`OpNode.repeat`) are run one after the other, all with the same drawn numbers.

Slow and plain: each node is issued as the eager call it came from, on tensors that stand for its
operands.  A temporary is released when the last node that names it has been issued.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowvm.eager.autocast import autocasting
from flowvm.eager.interpreter import call_into
from flowvm.eager.live import now
from flowvm.eager.modes import recording
from flowvm.eager.tensor import Storage, Tensor, new_tensor
from flowvm.errors import CaptureError
from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import Buffer, BufferKind, Operand, OpNode
from flowvm.vm.machine.words import OPERAND


def interpret(graph: LogicalGraph, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs for these inputs; variables are changed as the graph says.

    CaptureError unless the inputs have the metas that the graph was captured with.
    """
    if [t._meta for t in inputs] != [o.meta for o in graph.inputs]:
        raise CaptureError(
            f"{graph.name}: captured for {[o.meta for o in graph.inputs]}, called with "
            f"{[t._meta for t in inputs]}"
        )
    storages = {}
    for operand, tensor in zip(graph.inputs, inputs, strict=True):
        storages[operand.buffer] = (
            tensor.storage(),
            tensor._ref - (operand.offset << OPERAND.STORAGE_BITS),
        )
    last_use = _last_uses(graph)
    with recording(False), autocasting(None):
        for places in _sections(graph.nodes):
            for time in range(graph.nodes[places[0]].repeat):
                for place in places:
                    _run(graph.nodes[place], storages, time)
            for place in places:
                for buffer in last_use.get(place, ()):
                    storages.pop(buffer, None)
        return [_tensor(operand, storages) for operand in graph.outputs]


def _sections(nodes: Sequence[OpNode]) -> list[list[int]]:
    """Places of nodes that are repeated together; each other one alone."""
    rows: list[list[int]] = []
    for place, node in enumerate(nodes):
        if node.repeat > 1 and place and nodes[place - 1].repeat == node.repeat:
            rows[-1].append(place)
        else:
            rows.append([place])
    return rows


def _last_uses(graph: LogicalGraph) -> dict[int, list[Buffer]]:
    result = {operand.buffer for operand in graph.outputs}
    last: dict[Buffer, int] = {}
    for place, node in enumerate(graph.nodes):
        for _, operand in node.accesses():
            if operand.buffer.kind is BufferKind.TEMPORARY and operand.buffer not in result:
                last[operand.buffer] = place
    ends: dict[int, list[Buffer]] = {}
    for buffer, place in last.items():
        ends.setdefault(place, []).append(buffer)
    return ends


def _tensor(operand: Operand, storages: dict[Buffer, Any], time: int = 0) -> Tensor:
    buffer = operand.buffer
    if buffer.kind is BufferKind.VARIABLE and buffer not in storages:
        storages[buffer] = (buffer.held, buffer.held.id)
    storage, ref = storages[buffer]
    offset = operand.offset + time * operand.step
    return new_tensor(ref + (offset << OPERAND.STORAGE_BITS), operand.meta, storage)


def _run(node: OpNode, storages: dict[Buffer, Any], time: int = 0) -> None:
    tensors = tuple(_tensor(operand, storages, time) for operand in node.inputs)
    scalars = tuple(now(s) for s in node.scalars)
    if node.into:
        outs = tuple(_tensor(operand, storages, time) for operand in node.outputs)
        call_into(node.operator, outs, tensors, node.attrs, scalars)
        for out in outs:
            out.bump()
        return
    result = node.operator.call(*tensors, *node.attrs, *scalars)
    results = result if isinstance(result, tuple) else (result,)
    for operand, tensor in zip(node.outputs, results, strict=False):
        storage: Storage = tensor.storage()
        storages[operand.buffer] = (storage, tensor._ref)


def run_nodes(nodes: Sequence[OpNode], requested: set[Buffer]) -> dict[Buffer, Storage]:
    """Run nodes that need no input, and give the storages of the buffers that are `requested`."""
    storages: dict[Buffer, Any] = {}
    with recording(False), autocasting(None):
        for node in nodes:
            _run(node, storages)
    return {buffer: storages[buffer][0] for buffer in requested}
