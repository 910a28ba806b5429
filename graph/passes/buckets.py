"""Buckets: gradients that are summed over ranks one behind the other are summed together.

Each all-reduce of backward is an actor that waits for the kernel whose result it sums, and one that
is waited for: for small gradients that is most of what it costs.  Here a run of them becomes one:
they are copied behind each other, by the stream that exchanges, so that compute waits for nobody,
and who read a sum reads a part of the bucket.  A bucket goes out when its last gradient is there,
and the bucket in front of it long before: exchanges still run beside the rest of backward.

Ranks must agree on what they exchange, whatever passes found on one of them alone.  So this runs
first, on what was captured, and looks at nothing that differs between the ranks of a group: the
exchanges in their order, their sizes, and who uses a sum.

The sum of several tensors at once may be made in another order of ranks: last bits may differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import Buffer, BufferKind, Operand, OpNode, is_pure
from flowvm.graph.logical.rewriting import rebuilt
from flowvm.meta.meta import TensorMeta
from flowvm.ops.collectives.instructions import all_reduce_of
from flowvm.ops.declare.core import CASTS
from flowvm.ops.declare.registry import operator_of
from flowvm.ops.shapes.join import MOST, _cat_of

BUCKET = 1 << 20  # bytes: a larger exchange is no quicker for its size


@dataclass(eq=False)
class _Bucket:
    """All-reduces, by their places, that may be made where the last of them stands; and copies of
    their sums, which then stand behind it: a gradient becomes `.grad` as one.
    """

    places: list[int] = field(default_factory=list)
    copies: list[int] = field(default_factory=list)
    nbytes: int = 0
    sources: set[Buffer] = field(default_factory=set)
    sums: set[Buffer] = field(default_factory=set)

    @property
    def moved(self) -> list[int]:
        """The places of nodes that go to the last of them."""
        return [place for place in (*self.places, *self.copies) if place <= self.places[-1]]

    def add(self, place: int, node: OpNode) -> None:
        self.places.append(place)
        self.nbytes += node.inputs[0].meta.nbytes
        self.sources.add(node.inputs[0].buffer)
        self.sums.add(node.outputs[0].buffer)

    def takes(self, node: OpNode, first: OpNode) -> bool:
        """Return True if an all-reduce is of the same kind as the `first`, and there is room."""
        return (
            len(self.places) < MOST
            and self.nbytes + node.inputs[0].meta.nbytes <= BUCKET
            and node.operator is first.operator
            and node.attrs == first.attrs
            and node.inputs[1] == first.inputs[1]
            and node.inputs[0].meta.dtype is first.inputs[0].meta.dtype
            and node.stream == first.stream
        )

    def copies_too(self, place: int, node: OpNode) -> bool:
        """Note a node that only copies a sum, and return True: it then runs behind the bucket."""
        if node.operator not in CASTS or not is_pure(node):
            return False
        if node.inputs[0].buffer not in self.sums:
            return False
        self.copies.append(place)
        self.sums.add(node.outputs[0].buffer)
        return True

    def ends_at(self, node: OpNode) -> bool:
        """Return True if a node needs the sums, changes their sources, or exchanges."""
        if "order" in node.operator.signature.writes:
            return True
        if any(operand.buffer in self.sums for _, operand in node.accesses()):
            return True
        return any(operand.buffer in self.sources for operand in node.written())


def bucket_gradients(graph: LogicalGraph) -> LogicalGraph:
    """Join gradients that backward sums over ranks one by one to one sum, up to BUCKET bytes."""
    shown = {operand.buffer for operand in graph.outputs}
    gradients: list[_Bucket] = []
    now = _Bucket()
    for place, node in enumerate(graph.nodes):
        fits = _is_gradient(node) and node.outputs[0].buffer not in shown
        if fits and now.places and now.takes(node, graph.nodes[now.places[0]]):
            now.add(place, node)
        elif fits or (now.places and not now.copies_too(place, node) and now.ends_at(node)):
            gradients.append(now)
            now = _Bucket()
            if fits:
                now.add(place, node)
    gradients = [bucket for bucket in (*gradients, now) if len(bucket.places) > 1]
    return _with_buckets(graph, gradients) if gradients else graph


def _is_gradient(node: OpNode) -> bool:
    """Return True if the node is an all-reduce of backward that makes a new, dense tensor."""
    operator = node.operator
    return (
        operator is operator_of(all_reduce_of)
        and node.phase == "backward"
        and not node.into
        and node.repeat == 1
        and not any(operand.step for operand in node.inputs)
    )


def _with_buckets(graph: LogicalGraph, buckets: Sequence[_Bucket]) -> LogicalGraph:
    number = max(buffer.number for buffer in graph.buffers())
    gone = {place for bucket in buckets for place in bucket.moved}
    bucket_at: dict[int, list[OpNode]] = {}
    moved: dict[Buffer, Operand] = {}
    for bucket in buckets:
        members = [graph.nodes[place] for place in bucket.places]
        last, meta = members[-1], members[-1].inputs[0].meta
        parts = [replace(n.inputs[0], meta=_flat(n.inputs[0].meta, n.inputs[0].meta.numel))
                 for n in members]  # fmt: skip
        whole = _flat(meta, sum(part.meta.numel for part in parts))
        before, after = (
            Operand(Buffer(number + k, BufferKind.TEMPORARY, whole.nbytes), 0, whole)
            for k in (1, 2)
        )
        number += 2
        bucket_at[bucket.places[-1]] = [
            replace(last, operator=_cat_of(len(parts)), inputs=tuple(parts), outputs=(before,),
                    attrs=(0, False)),
            replace(last, inputs=(before, last.inputs[1]), outputs=(after,)),
            *(graph.nodes[place] for place in bucket.moved[len(members) :]),
        ]  # fmt: skip
        start = 0
        for node in members:
            moved[node.outputs[0].buffer] = Operand(after.buffer, start, node.outputs[0].meta)
            start += node.inputs[0].meta.nbytes
    nodes = [
        node
        for place, old in enumerate(graph.nodes)
        for node in bucket_at.get(place, () if place in gone else (old,))
    ]
    return rebuilt(graph, nodes, moved)


def _flat(meta: TensorMeta, count: int) -> TensorMeta:
    return TensorMeta.of((count,), meta.dtype, meta.device)
