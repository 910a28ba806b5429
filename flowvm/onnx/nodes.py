"""A captured call's nodes as ONNX's, one after another, and the errors of untranslated ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flowvm.eager.interpreter import Operator
from flowvm.errors import ArgumentError, FlowError
from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import OpNode
from flowvm.loading.lazy import lazy
from flowvm.nn.graph.function import Traced
from flowvm.onnx.call import Call
from flowvm.onnx.expressions import Untranslated, elementwise
from flowvm.onnx.memory import Memory
from flowvm.onnx.rows import Values
from flowvm.onnx.translations import ABSENT, TRANSLATION
from flowvm.onnx.writer import Writer
from flowvm.ops.declare.elementwise import Elementwise
from flowvm.ops.declare.registry import operator_of
from flowvm.ops.rows.parts import norm_ops

if TYPE_CHECKING:
    import onnx
else:
    onnx = lazy("onnx")


def translated(trace: Traced, w: Writer, inputs: Sequence[str], outputs: Sequence[str]) -> Writer:
    """Translate the nodes of a call, whose inputs and outputs have these names.  Return `w`."""
    graph = trace.graph
    for name in (*inputs, *outputs):
        w.name(name)
    memory = Memory(graph, w)
    for name, operand in zip(inputs, graph.inputs, strict=True):
        if operand.meta.dtype.is_complex:
            raise ArgumentError(
                f"onnx.export: {name} is {operand.meta.dtype.name}, and few ops of ONNX know "
                f"complex numbers; give its real and imaginary parts"
            )
        memory.define(operand, name)
    for node in needed(graph):
        w.scope, w.line = node.scope, node.line
        w.origin = f"{node.operator.name}{_where(node)}"
        try:
            values = _values(node, memory, w)
            _put(node, values, memory)
        except Untranslated as why:
            raise ArgumentError(
                f"onnx.export: {node.operator.name}{_where(node)} has no translation to ONNX "
                f"({why}).  {_ADVICE.get(node.phase, _advice(node))}"
            ) from None
        except FlowError as error:
            raise ArgumentError(
                f"onnx.export: {node.operator.name}{_where(node)}: {error}"
            ) from None
    w.scope = w.line = w.origin = ""
    for name, operand in zip(outputs, graph.outputs, strict=True):
        try:
            w.nodes.append(onnx.helper.make_node("Identity", [memory.read(operand)], [name]))
        except ArgumentError as error:
            raise ArgumentError(f"onnx.export: {name}: {error}") from None
    return w


def needed(graph: LogicalGraph) -> list[OpNode]:
    """Return the nodes on which outputs or variables depend; all others are left out."""
    needed_buffers = {o.buffer for o in graph.outputs}
    nodes = []
    for node in reversed(graph.nodes):
        written = {o.buffer for o in node.written()}
        if written & needed_buffers or any(b.held is not None for b in written):
            nodes.append(node)
            needed_buffers.update(o.buffer for o in node.inputs)
    return nodes[::-1]


def _values(node: OpNode, memory: Memory, w: Writer) -> Values:
    call, form = Call(node, memory, w), node.operator.origin.form
    if isinstance(form, tuple) and isinstance(form[0], Elementwise):
        names, metas = [call.x(k) for k in range(call.count)], call.metas
        numbers = [call.attrs[n] for n in node.operator.signature.scalars]
        op, pattern = form
        return [elementwise(w, op, pattern, names, metas, node.attrs, numbers, call.out)]
    translation = TRANSLATION.of(node.operator)
    if translation is None or node.operator.signature.unsized:
        raise Untranslated(
            ABSENT.of(node.operator) or "ONNX's nodes for it are not in flowvm.onnx.translations"
        )
    return translation(call)


def _put(node: OpNode, values: Values, memory: Memory) -> None:
    """Record a node's values in the memory that it writes."""
    if node.into:
        for operand, value in zip(node.outputs, values, strict=True):
            memory.write(operand, value or "")
        return
    if node.operator.signature.writes:
        written = [o for access, o in node.accesses() if access == "mut"]
        for operand, value in zip(written, values, strict=True):
            memory.write(operand, value or "")
        return
    for operand, value in zip(node.outputs, values, strict=True):
        if value is not None:
            memory.define(operand, value)


def _where(node: OpNode) -> str:
    scope = f" in {node.scope}" if node.scope else ""
    return f"{scope} at {node.line}" if node.line else scope


_TRACKING = tuple(map(operator_of, (norm_ops._tracking, norm_ops._update)))
_ADVICE = {
    "backward": "Export the forward computation alone.",
    "optimizer": "Export the forward computation alone.",
}


def _advice(node: OpNode) -> str:
    operator: Operator = node.operator
    if operator in _TRACKING:
        return "It keeps statistics of batches, as modules do that train: call eval() on them."
    if "seed" in operator.signature.scalars:
        return (
            "It draws random numbers, which differ from run to run: call eval() on modules, or "
            "make them outside and give them as an input."
        )
    return "Compute it outside of what is exported, or of other ops."
