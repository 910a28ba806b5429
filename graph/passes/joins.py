"""Joins: the operator that puts a tensor together from others, and `cat` as a case of it.

A `cat` of tensors that were copied for it, as after a reshape of heads, reads what was copied;
zeros that were made for it are written by it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace

from flowvm.eager.declaration import Invocation, Kernel, Origin, Signature
from flowvm.eager.interpreter import Operator
from flowvm.files.schema import integer
from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import Operand, OpNode, is_pure
from flowvm.graph.logical.rewriting import Accesses, rebuilt, together
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.declare.assembly import NUMBER, Assembly, Piece, check_pieces
from flowvm.ops.declare.composite import _fill
from flowvm.ops.declare.core import _cast, _cast_away
from flowvm.ops.declare.recipes import maker
from flowvm.ops.shapes.join import MOST, _cat_of
from flowvm.ops.shapes.views import _restride


@maker("assemble", integer(0, MOST))
@functools.cache
def assembly_operator(count: int) -> Operator:
    """Copies from `count` operands, and zeros, as one tensor; attributes: its meta, the pieces."""

    def infer(metas: tuple[TensorMeta, ...], attrs: Attrs) -> Assembly:
        out, pieces = attrs
        parts = tuple(Piece(*piece) for piece in pieces)
        check_pieces(out, metas, parts)
        return Assembly(out, parts)

    def lower(metas: tuple[TensorMeta, ...], attrs: tuple[object, ...]) -> Invocation:
        return infer(metas, attrs).on_cpu()

    return Operator(
        "assemble",
        Signature(tuple(f"x{k}" for k in range(count)), ("out",), attrs=("meta", "pieces")),
        Kernel(lower, infer),
        origin=Origin(recipe=("assemble", (count,))),
    )


def is_zero(value: object) -> bool:
    """Return True if a scalar is the number +0."""
    return isinstance(value, (int, float)) and value == 0 and math.copysign(1, value) > 0


def join_copies(graph: LogicalGraph) -> LogicalGraph:
    """Let `cat` read the sources of copies made for it, and write zeros made for it."""
    accesses = Accesses(graph)
    copies: dict[int, OpNode] = {}
    gone: set[int] = set()
    for place, node in enumerate(graph.nodes):
        if not is_pure(node) or not node.inputs or node.operator is not _cat_of(len(node.inputs)):
            continue
        if node.outputs[0].meta.dtype.is_complex:
            continue
        if any(operand.meta.numel == 0 for operand in node.inputs):
            continue
        sources: list[Operand] = []
        pieces: list[Piece] = []
        left_out: list[int] = []
        for operand, (region, offset, stride) in zip(node.inputs, _regions(node), strict=True):
            maker = accesses.maker(operand.buffer)
            for_this = maker >= 0 and _read_only_by(accesses, maker, operand, place)
            operator = accesses.nodes[maker].operator
            if for_this and operator is _fill and is_zero(accesses.nodes[maker].scalars[0]):
                zeros = Piece(
                    NUMBER, tuple(region.shape), region.stride, offset, 0, (0,) * region.ndim
                )
                pieces.append(zeros)
                left_out.append(maker)
                continue
            source, to = operand, region
            if for_this and operator in (_cast, _cast_away):
                copied = _copied(accesses, maker, region, place)
                if copied is not None:
                    source, to = copied
                    stride = source.meta.stride
                    left_out.append(maker)
            sources.append(source)
            pieces.append(Piece(len(sources), tuple(to.shape), to.stride, offset, 0, stride))
        if left_out:
            copies[place] = replace(
                node,
                operator=assembly_operator(len(sources)),
                inputs=tuple(sources),
                attrs=(node.outputs[0].meta, tuple(map(tuple, pieces))),
            )
            gone.update(left_out)
    nodes = [copies.get(p, n) for p, n in enumerate(graph.nodes) if p not in gone]
    return rebuilt(graph, nodes) if copies else graph


def _regions(node: OpNode) -> Iterator[tuple[TensorMeta, int, tuple[int, ...]]]:
    """Yield the position of each input of a `cat`.

    It is a region of the output and its offset, and the strides by which the input is read.
    """
    dim, new = node.attrs
    out = node.outputs[0].meta
    at, start = dim % out.ndim, 0
    for operand in node.inputs:
        shape, stride = tuple(operand.meta.shape), operand.meta.stride
        if new:
            shape, stride = (*shape[:at], 1, *shape[at:]), (*stride[:at], 0, *stride[at:])
        region = TensorMeta.of(shape, out.dtype, out.device, out.stride)
        yield region, start * out.stride[at], stride
        start += shape[at]


def _read_only_by(accesses: Accesses, maker: int, operand: Operand, place: int) -> bool:
    """Return True if only the node at `place` reads a node's result: once, whole, in C order."""
    writer, reader = accesses.nodes[maker], accesses.nodes[place]
    out = writer.outputs[0]
    plain = operand.offset == 0 and operand.meta.contiguous and out.meta.contiguous
    whole = plain and operand.meta.numel == out.meta.numel and operand.meta.dtype is out.meta.dtype
    once = sum(o.buffer is out.buffer for o in reader.inputs) == 1
    return whole and once and together(writer, reader) and accesses.only_readers(out.buffer, place)


def _copied(
    accesses: Accesses, copy: int, region: TensorMeta, place: int
) -> tuple[Operand, TensorMeta] | None:
    """Return a copy's source and its region; None if it cannot be read at `place`."""
    (source,) = accesses.nodes[copy].inputs
    if source.meta.dtype is not region.dtype:
        return None
    if not accesses.unchanged(source.buffer, copy + 1, place):
        return None
    stride = _restride(region, source.meta.shape)
    if stride is None:
        return None
    return source, TensorMeta.of(source.meta.shape, region.dtype, region.device, stride)
