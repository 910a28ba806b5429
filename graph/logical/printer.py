"""The printed form of a LogicalGraph: one line for each node, in columns.

node  result                 op            operands                 scalars   where
0     %3 float32(32, 64)     linear        %0 x, %1 fc1.weight, ..            train.py:12
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from flowvm.graph.logical.nodes import Buffer, Operand, OpNode

MOST_LISTED, LONGEST = 8, 80  # operands or attributes that a line names, and letters of one


def size_text(nbytes: int) -> str:
    """Bytes for a reader: 512 B, 1.5 KiB, 3.2 MiB."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def operand_text(operand: Operand) -> str:
    """%3, %3+64, %1 fc.weight."""
    name = operand.buffer.name
    return f"{operand!r} {name}" if name else repr(operand)


def listed(texts: Sequence[str]) -> str:
    """Texts with commas between; of many the first ones, and how many more there are, and of a long
    one the beginning.
    """
    shown = [t if len(t) <= LONGEST else f"{t[:LONGEST]}.." for t in texts[:MOST_LISTED]]
    more = len(texts) - MOST_LISTED
    return ", ".join([*shown, *([f"and {more} more"] if more > 0 else [])])


def buffer_text(buffer: Buffer) -> str:
    """One line about a buffer."""
    return f"{buffer!r} {buffer.kind.value} {buffer.name} {size_text(buffer.nbytes)}".replace(
        "  ", " "
    )


def node_cells(node: OpNode) -> tuple[str, ...]:
    """The columns of a node's line."""
    changed = [
        operand_text(o) + "!"
        for name, o in zip(node.operator.signature.inputs, node.inputs, strict=True)
        if name in node.operator.signature.writes
    ]
    results = [f"{operand_text(o)} {o.meta!r}" for o in node.outputs] or changed
    if node.into:
        results = [r + " (in place)" for r in results]
    where = node.line
    if where:
        path, _, line = where.rpartition(":")
        where = f"{os.path.basename(path)}:{line}"
    return (
        str(node.number),
        listed(results),
        node.operator.name,
        listed([operand_text(o) for o in node.inputs]),
        listed([*map(repr, node.attrs), *map(repr, node.scalars)]),
        " ".join(filter(None, (node.phase if node.phase != "forward" else "", node.scope, where))),
    )


def graph_text(
    name: str,
    nodes: Sequence[OpNode],
    inputs: Sequence[Operand],
    variables: Sequence[Buffer],
    outputs: Sequence[Operand],
    same: Mapping[Buffer, Buffer],
) -> str:
    """Return a graph as a table: inputs, variables, nodes, outputs, and shared memory."""
    rows: list[tuple[str, ...]] = [("node", "result", "op", "operands", "attributes", "where")]
    rows += [node_cells(node) for node in nodes]
    widths = [min(60, max(len(row[i]) for row in rows)) for i in range(len(rows[0]))]
    lines = [f"LogicalGraph {name}: {len(nodes)} nodes"]
    lines += [f"  in   {operand_text(o)} {o.meta!r}" for o in inputs]
    lines += [f"  var  {buffer_text(b)}" for b in variables]
    lines += [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    lines += [f"  out  {operand_text(o)} {o.meta!r}" for o in outputs]
    lines += [f"  same {old!r} and then {new!r}" for new, old in same.items()]
    return "\n".join(lines)
