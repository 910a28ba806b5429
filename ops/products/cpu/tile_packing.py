"""The LLVM code that packs panels for tiles and stores their results: `copy_panel` and
`transpose_block` of `ops/products/cpu/tile.py`, which convert reduced floats on the way.

Imported only to compile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir

from flowvm.ops.declare.cpu.vector_code import Emitter
from flowvm.ops.products.cpu.tile_shape import TileShape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowvm.private.code_types import Builder, Value


AHEAD = 8  # rows of a copy whose lines are brought to the cache: they are far from each other


def emit_copy(dtype: str, shape: TileShape) -> ir.Module:
    """A module whose function `entry` is `copy_panel`, from memory of `dtype`."""
    e = Emitter(ir.Module(), dtype, shape.lanes)
    return _copy(e, shape.vectors, e.memory, e.pointer)


def emit_store(dtype: str, shape: TileShape) -> ir.Module:
    """Emit the copy of a panel to memory of `dtype`."""
    e = Emitter(ir.Module(), dtype, shape.lanes)
    return _copy(e, shape.vectors, e.pointer, e.memory)


def emit_transpose(dtype: str, shape: TileShape) -> ir.Module:
    """A module whose function `entry` is `transpose_block`, from memory of `dtype`."""
    e = Emitter(ir.Module(), dtype, shape.lanes)
    return _transpose(e, e.memory, e.pointer)


def emit_store_transposed(dtype: str, shape: TileShape) -> ir.Module:
    """Emit the transposing copy of a panel to memory of `dtype`."""
    e = Emitter(ir.Module(), dtype, shape.lanes)
    return _transpose(e, e.pointer, e.memory)


def _copy(e: Emitter, vectors: int, source: object, to: object) -> ir.Module:
    """Emit a copy from memory to memory of these pointers' types."""
    n = e.i64
    function = e.function("entry", [source, n, n, n, n, to, n, n])
    x, x_row, x_column, rows, columns, y, y_row, width = function.args
    b = ir.IRBuilder(function.append_basic_block("entry"))
    near, far, whole, short, narrow, part, end = (function.append_basic_block() for _ in range(7))
    last = b.sub(columns, n(1))
    b.cbranch(b.icmp_signed("==", x_column, n(1)), near, far)

    def rows_copied(read: Sequence[object], write: Sequence[object]) -> None:
        ends = [*(n(j * e.lanes) for j in range(len(read))), last]

        def row(i: object) -> None:
            source, target = b.gep(x, [b.mul(x_row, i)]), b.gep(y, [b.mul(y_row, i)])
            later = b.gep(x, [b.mul(x_row, b.add(i, n(AHEAD)))])
            for place in ends:
                e.prefetch(b, b.gep(later, [place]))
            values = [e.load(b, source, j * e.lanes, mask) for j, mask in enumerate(read)]
            for j, (value, mask) in enumerate(zip(values, write, strict=True)):
                e.store(b, value, target, j * e.lanes, mask)

        e.loop(b, n(0), rows, 1, row)
        b.branch(end)

    b.position_at_end(near)
    full = [b.icmp_signed("==", size, n(vectors * e.lanes)) for size in (columns, width)]
    b.cbranch(b.and_(*full), whole, short)
    b.position_at_end(whole)
    rows_copied([None] * vectors, [None] * vectors)
    b.position_at_end(short)
    few = [b.icmp_signed("<=", size, n(e.lanes)) for size in (columns, width)]
    b.cbranch(b.and_(*few), narrow, part)
    b.position_at_end(narrow)
    rows_copied([e.mask(b, columns)], [e.mask(b, width)])
    b.position_at_end(part)
    rows_copied(e.masks(b, columns, vectors), e.masks(b, width, vectors))

    b.position_at_end(far)

    def gathered(i: object) -> None:
        source, target = b.gep(x, [b.mul(x_row, i)]), b.gep(y, [b.mul(y_row, i)])

        def element(j: object) -> None:
            value = e.read(b, b.load(b.gep(source, [b.mul(x_column, j)])))
            b.store(e.written(b, value, target), b.gep(target, [j]))

        def nothing(j: object) -> None:
            place = b.gep(target, [j])
            b.store(ir.Constant(place.type.pointee, None), place)

        e.loop(b, n(0), columns, 1, element)
        e.loop(b, columns, width, 1, nothing)

    e.loop(b, n(0), rows, 1, gathered)
    b.branch(end)
    b.position_at_end(end)
    b.ret_void()
    return e.module


def _transpose(e: Emitter, source: object, to: object) -> ir.Module:
    """Emit a transposing copy from memory to memory of these pointers' types."""
    n, lanes = e.i64, e.lanes
    function = e.function("entry", [source, n, n, n, to, n, n])
    x, x_row, rows, columns, y, y_row, width = function.args
    b = ir.IRBuilder(function.append_basic_block("entry"))
    whole, part, end = (function.append_basic_block() for _ in range(3))
    sizes = [b.icmp_signed("==", size, n(lanes)) for size in (rows, columns, width)]
    b.cbranch(b.and_(sizes[0], b.and_(sizes[1], sizes[2])), whole, part)

    def line(pointer: object, step: object, i: int) -> Value:
        return b.gep(pointer, [b.mul(step, n(i))])

    b.position_at_end(whole)
    block = _exchanged(e, b, [e.load(b, line(x, x_row, i), 0) for i in range(lanes)])
    for j, vector in enumerate(block):
        e.store(b, vector, line(y, y_row, j), 0)
    b.branch(end)

    b.position_at_end(part)
    read, nothing = e.mask(b, columns), ir.Constant(e.bits, None)
    exists = [b.icmp_signed(">", rows, n(i)) for i in range(lanes)]
    lines = [line(x, x_row, i) for i in range(lanes)]
    block = [e.load(b, lines[i], 0, b.select(exists[i], read, nothing)) for i in range(lanes)]
    write = e.mask(b, width)
    for j, vector in enumerate(_exchanged(e, b, block)):
        more = function.append_basic_block()
        b.cbranch(b.icmp_signed(">", columns, n(j)), more, end)
        b.position_at_end(more)
        e.store(b, vector, line(y, y_row, j), 0, write)
    b.branch(end)
    b.position_at_end(end)
    b.ret_void()
    return e.module


def _exchanged(e: Emitter, b: Builder, rows: list[Value]) -> list[Value]:
    """The transpose of a square of vectors, by exchanging the off-diagonal quarters of ever smaller
    squares (Eklundh, "A Fast Computer Method for Matrix Transposing", 1972).
    """
    lanes = e.lanes
    distance = lanes // 2
    while distance:
        for i in range(lanes):
            if i & distance == 0:
                low, high = rows[i], rows[i + distance]
                rows[i] = b.shuffle_vector(low, high, _lanes(e, distance, 0))
                rows[i + distance] = b.shuffle_vector(low, high, _lanes(e, distance, distance))
        distance //= 2
    return rows


def _lanes(e: Emitter, distance: int, half: int) -> Value:
    """Return a shuffle of two vectors: alternating lanes whose bit `distance` is as in `half`."""
    lanes = e.lanes
    picked = [
        (lane & ~distance) + half + (lanes if lane & distance else 0) for lane in range(lanes)
    ]
    return ir.Constant(ir.VectorType(e.i32, lanes), [e.i32(p) for p in picked])
