"""Passes: functions from LogicalGraph to LogicalGraph that change the work and not the results.

Each is listed in PASSES, in the order in which they run, and can be switched off by name.
`FLOWVM_DEBUG_PASS=name` (or `all`) prints a graph before and after.  Every pass checks its result.

What all of them must respect: a buffer may be written more than once, and memory of inputs and
variables is seen by others.  A *stable* buffer is a temporary with one writer: its operands mean
the same values wherever they are read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from flowvm.config import config
from flowvm.eager.live import Live
from flowvm.errors import ArgumentError
from flowvm.graph.logical.interpret import run_nodes
from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import Buffer, BufferKind, Operand, OpNode, is_pure
from flowvm.graph.logical.rewriting import rebuilt, writers_of
from flowvm.graph.memory.inplace import reuse_memory
from flowvm.graph.memory.offsets import eager_peak
from flowvm.graph.passes.accumulate import accumulate_in_place, values_of_sums
from flowvm.graph.passes.algebra import simplify
from flowvm.graph.passes.biases import split_biases
from flowvm.graph.passes.buckets import bucket_gradients
from flowvm.graph.passes.checkpointing import checkpoint_regions, pair_with_gradients, recompute
from flowvm.graph.passes.epilogues import fuse_epilogues
from flowvm.graph.passes.fusion import fuse_elementwise
from flowvm.graph.passes.fusion_rows import fuse_rows, fuse_rows_on_device
from flowvm.graph.passes.late import read_sums_late
from flowvm.graph.passes.order import order_for_memory, settled
from flowvm.graph.passes.slices import assemble_slices
from flowvm.graph.passes.updates import merge_updates
from flowvm.guards.regions import reverting
from flowvm.meta.device import cpu
from flowvm.ops.declare.core import CASTS

Pass = Callable[[LogicalGraph], LogicalGraph]
Told = Callable[[str, LogicalGraph, LogicalGraph], None]
FOLD_BYTES = 1 << 20  # a constant larger than this is rather computed again than kept


# on a device, other passes run in the places of those that make a CPU's kernels
ON_DEVICES: dict[str, Pass] = {"epilogues": split_biases, "rows": fuse_rows_on_device}


def optimize(
    graph: LogicalGraph, without: Sequence[str] = (), listener: Told | None = None
) -> LogicalGraph:
    """Apply all passes except `without`.

    `listener` is called after each with its name, the graph before, and the graph after.
    ArgumentError for an unknown name.
    """
    pass_names(without)
    watched = config.debug_pass
    if watched not in ("", "all", *PASSES):
        names = ", ".join(PASSES)
        raise ArgumentError(f"debug_pass={watched!r} is not a pass; there are {names}, and all")
    written = [o.buffer for o in graph.inputs if o.buffer in graph.writes()]

    def undo() -> None:
        for buffer in written:
            buffer.kind = BufferKind.INPUT

    with reverting(undo):  # to passes, these are variables: their memory is there before and after
        for buffer in written:
            buffer.kind = BufferKind.VARIABLE
        optimized = _passed(graph, without, listener)
    return replace(optimized, captured=(graph, tuple(without)))


def _passed(graph: LogicalGraph, without: Sequence[str], listener: Told | None) -> LogicalGraph:
    watched = config.debug_pass
    graph = settled(replace(graph, eager=eager_peak(graph)))
    lowered: dict[object, object] = {}
    for name, run in passes_for(graph).items():
        if name in without:
            continue
        after = run(graph)
        after.check(lowered)
        if listener is not None:
            listener(name, graph, after)
        if watched in (name, "all"):
            print(
                f"--- {name}: {len(graph.nodes)} nodes before, {len(after.nodes)} after\n"
                f"{graph!r}\n--- after {name}\n{after!r}",
                file=sys.stderr,
            )
        graph = after
    return graph


def passes_for(graph: LogicalGraph) -> dict[str, Pass]:
    """The passes of a graph where its tensors are; of one on several devices there will be none."""
    devices = graph.devices()
    if devices <= {cpu}:
        return PASSES
    return {**PASSES, **ON_DEVICES} if len(devices) == 1 else {}


def pass_names(names: Sequence[str]) -> Sequence[str]:
    """Return `names` unchanged; ArgumentError if one of them is no pass."""
    unknown = sorted(set(names) - set(PASSES))
    if unknown:
        raise ArgumentError(f"there is no pass {unknown}; there are {', '.join(PASSES)}")
    return names


# --- passes -------------------------------------------------------------------------------------


def eliminate_dead_code(graph: LogicalGraph) -> LogicalGraph:
    """Leave out nodes whose results nobody reads and that change no variable."""
    needed = {operand.buffer for operand in graph.outputs}
    nodes = []
    for node in reversed(graph.nodes):
        written = {operand.buffer for operand in node.written()}
        if any(b in needed or b.kind is not BufferKind.TEMPORARY for b in written):
            nodes.append(node)
            needed |= {operand.buffer for _, operand in node.accesses()}
    return rebuilt(graph, nodes[::-1])


def eliminate_copies(graph: LogicalGraph) -> LogicalGraph:
    """Read the source of a copy instead of the copy, where nobody could tell.

    The copy and its source must not be written after it, or the source is a temporary that nobody
    touches any more: a gradient that becomes `.grad` and is summed over ranks in its place.  And an
    output stays apart from inputs, variables and other outputs, because the user may write to it.
    """
    last_write: dict[Buffer, int] = {}
    last_use: dict[Buffer, int] = {}
    repeats: dict[Buffer, set[int]] = {}
    for place, node in enumerate(graph.nodes):
        for operand in node.written():
            last_write[operand.buffer] = place
        for _, operand in node.accesses():
            last_use[operand.buffer] = place
            repeats.setdefault(operand.buffer, set()).add(node.repeat)
    shown = {operand.buffer for operand in graph.outputs}
    moved: dict[Buffer, Operand] = {}
    nodes = []
    for place, node in enumerate(graph.nodes):
        if node.operator not in CASTS or not is_pure(node):
            nodes.append(node)
            continue
        (source,), (out,) = node.inputs, node.outputs
        temporary = source.buffer.kind is BufferKind.TEMPORARY and source.buffer not in shown
        same = source.meta == out.meta and not source.step
        quiet = last_write[out.buffer] == place and last_write.get(source.buffer, -1) < place
        is_last_use = (
            temporary
            and last_use[source.buffer] == place
            and source.buffer not in moved  # what it stands for is not left
            and len(repeats[source.buffer] | repeats[out.buffer]) == 1
        )
        apart = out.buffer not in shown or temporary
        if same and (quiet or is_last_use) and apart:
            moved[out.buffer] = source
            if out.buffer in shown:
                shown.add(source.buffer)
            used = source.buffer
            while used in moved:
                used = moved[used].buffer
            last_use[used] = max(last_use[used], last_use[out.buffer])
        else:
            nodes.append(node)
    return rebuilt(graph, nodes, moved)


def eliminate_common_subexpressions(graph: LogicalGraph) -> LogicalGraph:
    """Compute once a value that is computed twice from the same values."""
    writers = writers_of(graph)
    shown = {operand.buffer for operand in graph.outputs}
    version: dict[Buffer, int] = {}
    known_nodes: dict[object, OpNode] = {}
    moved: dict[Buffer, Operand] = {}
    nodes = []
    for node in graph.nodes:
        inputs = []
        for operand in node.inputs:
            while operand.buffer in moved:
                operand = operand.moved(moved[operand.buffer])
            inputs.append((operand, version.get(operand.buffer, 0)))
        key = (
            node.operator,
            tuple(inputs),
            node.again,
            node.attrs,
            tuple(id(s) if isinstance(s, Live) else (type(s), repr(s)) for s in node.scalars),
        )
        stable = all(
            writers[o.buffer] == 1 and o.buffer.kind is BufferKind.TEMPORARY
            and o.buffer not in shown
            for o in node.outputs
        )  # fmt: skip
        if is_pure(node) and stable:
            known = known_nodes.get(key)
            if known is not None:
                for old, new in zip(node.outputs, known.outputs, strict=True):
                    moved[old.buffer] = new
                continue
            known_nodes[key] = node
        for operand in node.written():
            version[operand.buffer] = version.get(operand.buffer, 0) + 1
        nodes.append(node)
    return rebuilt(graph, nodes, moved)


def fold_constants(graph: LogicalGraph) -> LogicalGraph:
    """Compute now the values that depend on nothing: they become variables of the graph."""
    writers = writers_of(graph)
    shown = {operand.buffer for operand in graph.outputs}
    constant: set[Buffer] = set()
    folded, nodes = [], []
    for node in graph.nodes:
        ready = (
            is_pure(node)
            and all(operand.buffer in constant for operand in node.inputs)
            and not any(isinstance(s, Live) for s in node.scalars)
            and all(
                writers[o.buffer] == 1 and o.buffer not in shown and o.buffer.nbytes <= FOLD_BYTES
                for o in node.outputs
            )
        )
        if ready:
            constant |= {operand.buffer for operand in node.outputs}
            folded.append(node)
        else:
            nodes.append(node)
    used = {operand.buffer for node in nodes for operand in node.inputs} & constant
    values = run_nodes(folded, used)
    moved = {}
    for old, storage in values.items():
        buffer = Buffer(old.number, BufferKind.VARIABLE, old.nbytes, "constant", storage)
        moved[old] = Operand(buffer, 0, _whole(old, graph))
    return rebuilt(graph, nodes, moved)


def _whole(buffer: Buffer, graph: LogicalGraph) -> Any:
    return next(o.meta for node in graph.nodes for o in node.outputs if o.buffer is buffer)


PASSES: dict[str, Pass] = {
    "buckets": bucket_gradients,
    "late": read_sums_late,
    "sums": values_of_sums,
    "algebra": simplify,
    "copies": eliminate_copies,
    "constants": fold_constants,
    "common": eliminate_common_subexpressions,
    "dead": eliminate_dead_code,
    "checkpointing": checkpoint_regions,
    "slices": assemble_slices,
    "accumulate": accumulate_in_place,
    "epilogues": fuse_epilogues,
    "fusion": fuse_elementwise,
    "pairs": pair_with_gradients,
    "rows": fuse_rows,
    "recompute": recompute,
    "order": order_for_memory,
    "updates": merge_updates,
    "inplace": reuse_memory,
}
