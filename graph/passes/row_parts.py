"""The checks of the parts of a program on rows that comes from a saved graph.

A program's parts are a small graph.  Its operands are places, each as large as the largest view of
it.  So it must pass the checks of a graph.  A node's operands are checked against the places for
which they were made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowvm.eager.interpreter import Operator
from flowvm.errors import ArgumentError
from flowvm.files.schema import Check, anything, integer, row, several, text, wrong
from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import Buffer, BufferKind, Operand, OpNode
from flowvm.graph.passes.fusion_program import MOST_ARGUMENTS, MOST_TITLE
from flowvm.graph.passes.row_layout import RowParts
from flowvm.meta.meta import TensorMeta

MOST_PARTS = 1024


def _a(kind: type) -> Check:
    def check(value: object, where: str) -> None:
        if not isinstance(value, kind):
            wrong(where, value, f"a {kind.__name__}")

    return check


_REF = row(integer(-MOST_PARTS, MOST_ARGUMENTS), _a(TensorMeta), kind=tuple)
_PART = row(
    _a(Operator),
    several(anything, kind=tuple),
    several(_REF, MOST_ARGUMENTS, kind=tuple),
    several(integer(0, MOST_ARGUMENTS), MOST_ARGUMENTS, kind=tuple),
    kind=tuple,
)
# the arguments of an operator of such a program: name, parts, outputs, inputs, numbers
PARTS: tuple[Check, ...] = (
    text(MOST_TITLE),
    several(_PART, MOST_PARTS, 1, kind=tuple),
    *[integer(0, MOST_ARGUMENTS)] * 3,
)


def check_parts(name: str, parts: Any, outputs: int, inputs: int, scalars: int) -> None:
    """Raise ArgumentError unless the parts are a graph of so many outputs, inputs and scalars."""
    buffers: dict[int, Buffer] = {}
    for _, _, refs, _ in parts:
        for place, meta in refs:
            is_input = outputs <= place < outputs + inputs
            kind = BufferKind.INPUT if is_input else BufferKind.TEMPORARY
            buffer = buffers.setdefault(place, Buffer(place, kind, 0))
            buffer.nbytes = max(buffer.nbytes, meta.span)
    nodes = []
    for number, (operator, attrs, refs, numbers) in enumerate(parts):
        if len(refs) != len(operator.signature.operands):
            raise ArgumentError(f"{name}: part {number} has {len(refs)} operands")
        signature = operator.signature
        if len(numbers) != len(signature.scalars) or signature.writes or signature.unsized:
            raise ArgumentError(
                f"{name}: part {number}, {operator.name}, cannot be fused: it has {len(numbers)} "
                f"numbers for {len(signature.scalars)}, writes to an operand, or has no fixed shape"
            )
        operands = [Operand(buffers[place], 0, meta) for place, meta in refs]
        count = len(operator.signature.outputs)
        nodes.append(
            OpNode(number, operator, tuple(operands[count:]), tuple(operands[:count]), attrs)
        )
        for operand in operands[:count]:
            if operand.buffer.nbytes != operand.meta.span:
                raise ArgumentError(f"{name}: part {number} makes fewer bytes than others read")
    if [n for part in parts for n in part[3]] != list(range(scalars)):
        raise ArgumentError(f"{name}: its parts do not take {scalars} numbers")
    places = {place for place in buffers if place >= 0}
    if places != set(range(outputs + inputs)):
        raise ArgumentError(f"{name}: its parts have operands {sorted(places)}")
    LogicalGraph(name, nodes).check()


def check_places(
    program: RowParts, outs: Sequence[TensorMeta], metas: Sequence[TensorMeta]
) -> None:
    """Raise ArgumentError unless a node's operands fit the places of the program's parts."""
    operands = (*outs, *metas)
    places = {place: meta for part in program.parts for place, meta in part.outs}
    for part in program.parts:
        for place, meta in part.refs:
            if place < 0:
                continue
            own = operands[place]
            if meta.span > own.span or meta.dtype is not own.dtype:
                raise ArgumentError(f"a program on rows takes {meta!r} for its {own!r}")
    if [places.get(place) for place in range(len(outs))] != list(outs):
        raise ArgumentError(f"a program on rows makes no outputs {list(outs)}")
