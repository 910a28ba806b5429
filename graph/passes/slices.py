"""Slices: a tensor that is put together from parts is written once, where it ends up.

The gradient of a slice is zeros with a part copied in, so that of three slices of one tensor is
three such tensors and two additions, often followed by a copy in another order of dimensions.  Here
that becomes one node, `assemble`, which copies each part to its place and writes zeros where
nothing comes.

Nothing is rounded; where zeros were added a -0.0 was +0.0 before, and stays -0.0 here.

Invariant: the parts of an assembled tensor do not overlap.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import Buffer, Operand, OpNode, is_pure
from flowvm.graph.logical.rewriting import Accesses, rebuilt, together
from flowvm.graph.passes.joins import assembly_operator, is_zero, join_copies
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.assembly import NUMBER, Piece
from flowvm.ops.declare.composite import _fill
from flowvm.ops.declare.core import _cast, _cast_away, _copy
from flowvm.ops.declare.scalar_launch import broadcast_stride
from flowvm.ops.pointwise.arithmetic import _add

MOST_PARTS = 24  # of an assembled tensor
MOST_GAPS = 24  # rectangles of zeros in it

Box = tuple[tuple[int, int], ...]  # start and size in each dimension


class _Part(NamedTuple):
    """A rectangle of a tensor, the source copied there, and the copying node's place."""

    box: Box
    source: Operand  # as read: of the box's shape, perhaps broadcast
    place: int


@dataclass(eq=False)
class _Whole:
    """A tensor that consists of parts and zeros; `gone` are the nodes that made it so far."""

    meta: TensorMeta
    parts: list[_Part]
    gone: list[int]


def assemble_slices(graph: LogicalGraph) -> LogicalGraph:
    """Make one node of zeros, copies into slices of them, sums of such, and a copy of that."""
    return join_copies(_assembled(graph))


# --- zeros with slices copied in ----------------------------------------------------------------


def _assembled(graph: LogicalGraph) -> LogicalGraph:
    accesses = Accesses(graph)
    wholes: dict[Buffer, _Whole] = {}
    for place, node in enumerate(graph.nodes):
        if not is_pure(node):
            continue
        assembly = None
        if node.operator is _fill:
            assembly = _filled(accesses, place)
        elif node.operator is _add.operator:
            assembly = _sum(accesses, wholes, place)
        elif node.operator in (_cast, _cast_away):
            assembly = _turned(accesses, wholes, place)
        if assembly is not None:
            for operand in node.inputs:
                wholes.pop(operand.buffer, None)
            wholes[node.outputs[0].buffer] = assembly
    node_of: dict[int, OpNode] = {}
    gone: set[int] = set()
    for buffer, whole in wholes.items():
        built = _node(accesses, buffer, whole)
        if built is not None:
            node_of[max(whole.gone)] = built
            gone.update(whole.gone)
    if not node_of:
        return graph
    nodes = [node_of.get(p, n) for p, n in enumerate(graph.nodes) if p in node_of or p not in gone]
    return rebuilt(graph, nodes)


def _filled(accesses: Accesses, place: int) -> _Whole | None:
    """Zeros, as copies into slices change them before anybody reads."""
    node = accesses.nodes[place]
    (out,) = node.outputs
    if not is_zero(node.scalars[0]) or out.meta.numel == 0 or out.meta.dtype.is_complex:
        return None
    buffer, writes = out.buffer, accesses.writes[out.buffer][1:]
    if not writes or max(writes) >= min(accesses.reads.get(buffer, [len(accesses.nodes)])):
        return None
    parts: list[_Part] = []
    for at in writes:
        copy = accesses.nodes[at]
        if copy.operator is not _copy or not copy.into or not together(node, copy):
            return None
        (to,), (source,) = copy.outputs, copy.inputs
        box = _box(out.meta, to)
        if box is None or source.meta.dtype is not out.meta.dtype:
            return None
        if any(_meet(box, other.box) for other in parts):
            return None
        parts.append(_Part(box, _read_as(source, tuple(to.meta.shape), box), at))
    return _Whole(out.meta, parts, [place, *writes])


def _read_as(source: Operand, shape: tuple[int, ...], box: Box) -> Operand:
    """`source`, copied to a slice of `shape`, as an operand of the box's dimensions."""
    stride = dict(enumerate(broadcast_stride(source.meta, source.meta.with_shape(shape).shape)))
    dims = [d for d, n in enumerate(shape) if n != 1]
    steps = iter([stride[d] for d in dims])
    sizes = tuple(n for _, n in box)
    full = tuple(0 if n == 1 else next(steps) for n in sizes)
    return replace(source, meta=TensorMeta.of(sizes, source.meta.dtype, source.meta.device, full))


def _box(base: TensorMeta, to: Operand) -> Box | None:
    """Return the box of a slice of a dense tensor: (start, count) for each dimension.

    Return None if the slice is no rectangle whose dimensions are the tensor's, in their order.
    """
    if not base.contiguous or to.meta.dtype is not base.dtype or to.meta.numel == 0:
        return None
    at, size = to.offset // base.dtype.itemsize, base.dtype.itemsize
    if to.offset % size:
        return None
    box = []
    dims = [(n, s) for n, s in zip(to.meta.shape, to.meta.stride, strict=True) if n != 1]
    for n, step in zip(base.shape, base.stride, strict=True):
        start, at = (at // step, at % step) if n != 1 else (0, at)
        count = dims.pop(0)[0] if n != 1 and dims and dims[0][1] == step else 1
        if start + count > n:
            return None
        box.append((start, count))
    return tuple(box) if not dims and at == 0 else None


def _meet(a: Box, b: Box) -> bool:
    return all(s < t + m and t < s + n for (s, n), (t, m) in zip(a, b, strict=True))


def _sum(accesses: Accesses, wholes: dict[Buffer, _Whole], place: int) -> _Whole | None:
    """The sum of two tensors whose parts do not meet: one with the parts of both."""
    node = accesses.nodes[place]
    a, b = node.inputs
    one, other = wholes.get(a.buffer), wholes.get(b.buffer)
    if one is None or other is None or one is other:
        return None
    same = a.meta == b.meta == node.outputs[0].meta == one.meta == other.meta
    alone = (
        accesses.only_readers(a.buffer, place)
        and accesses.only_readers(b.buffer, place)
        and a.offset == b.offset == 0
    )
    if not same or not alone or len(one.parts) + len(other.parts) > MOST_PARTS:
        return None
    if any(_meet(p.box, q.box) for p in one.parts for q in other.parts):
        return None
    if not together(node, accesses.nodes[one.gone[0]]) or not together(
        node, accesses.nodes[other.gone[0]]
    ):
        return None
    return _Whole(one.meta, [*one.parts, *other.parts], [*one.gone, *other.gone, place])


def _turned(accesses: Accesses, wholes: dict[Buffer, _Whole], place: int) -> _Whole | None:
    """A copy of a whole tensor with its dimensions in another order."""
    node = accesses.nodes[place]
    (source,), (out,) = node.inputs, node.outputs
    whole = wholes.get(source.buffer)
    if whole is None or source.offset or not accesses.only_readers(source.buffer, place):
        return None
    if source.meta.dtype is not out.meta.dtype or not out.meta.contiguous:
        return None
    if not together(node, accesses.nodes[whole.gone[0]]):
        return None
    order = _order(whole.meta, source.meta)
    if order is None:
        return None
    parts = []
    for part in whole.parts:
        stride = part.source.meta.stride
        box = tuple((0, 1) if d is None else part.box[d] for d in order)
        meta = TensorMeta.of(
            tuple(n for _, n in box),
            source.meta.dtype,
            source.meta.device,
            tuple(0 if d is None else stride[d] for d in order),
        )
        parts.append(_Part(box, replace(part.source, meta=meta), part.place))
    return _Whole(out.meta, parts, [*whole.gone, place])


def _order(base: TensorMeta, view: TensorMeta) -> list[int | None] | None:
    """Return the dimension of `base` for each dimension of a view of all of it, None for size 1.

    Return no list at all if the view is no reordering.
    """
    if view.numel != base.numel:
        return None
    dim_of_stride = {
        s: d for d, (n, s) in enumerate(zip(base.shape, base.stride, strict=True)) if n != 1
    }
    order: list[int | None] = []
    for n, s in zip(view.shape, view.stride, strict=True):
        if n == 1:
            order.append(None)
            continue
        d = dim_of_stride.pop(s, None)
        if d is None or base.shape[d] != n:
            return None
        order.append(d)
    return order


# --- the node -----------------------------------------------------------------------------------


def _node(accesses: Accesses, buffer: Buffer, whole: _Whole) -> OpNode | None:
    """Return the node that replaces the last removed one; None if a source changes before."""
    at = max(whole.gone)
    if not all(accesses.unchanged(p.source.buffer, p.place + 1, at) for p in whole.parts):
        return None
    gaps = _gaps(tuple((0, n) for n in whole.meta.shape), [p.box for p in whole.parts])
    if len(gaps) > MOST_GAPS or len(whole.parts) > MOST_PARTS:
        return None
    pieces = [
        _piece(k, whole.meta, part.box, part.source.meta.stride)
        for k, part in enumerate(whole.parts, 1)
    ]
    pieces += [_piece(NUMBER, whole.meta, gap, (0,) * len(gap)) for gap in gaps]
    last = accesses.nodes[at]
    return replace(
        last,
        operator=assembly_operator(len(whole.parts)),
        inputs=tuple(part.source for part in whole.parts),
        outputs=(Operand(buffer, 0, whole.meta),),
        attrs=(whole.meta, tuple(map(tuple, pieces))),
        scalars=(),
        into=False,
    )


def _piece(operand: int, meta: TensorMeta, box: Box, stride: tuple[int, ...]) -> Piece:
    offset = sum(start * s for (start, _), s in zip(box, meta.stride, strict=True))
    return Piece(operand, tuple(n for _, n in box), meta.stride, offset, 0, stride)


def _gaps(whole: Box, boxes: Sequence[Box]) -> list[Box]:
    """Return the rest that no box covers, as rectangles."""
    gaps = [whole]
    for box in boxes:
        gaps = list(itertools.chain.from_iterable(_without(piece, box) for piece in gaps))
        if len(gaps) > MOST_GAPS:
            break
    return gaps


def _without(piece: Box, box: Box) -> list[Box]:
    if not _meet(piece, box):
        return [piece]
    rest = []
    for d, ((start, n), (other, m)) in enumerate(zip(piece, box, strict=True)):
        low, high = max(start, other), min(start + n, other + m)
        for a, b in ((start, low), (high, start + n)):
            if a < b:
                rest.append((*piece[:d], (a, b - a), *piece[d + 1 :]))
        piece = (*piece[:d], (low, high - low), *piece[d + 1 :])
    return rest
