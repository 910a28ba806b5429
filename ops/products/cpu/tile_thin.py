"""The LLVM code of thin products: `multiply_dots` and `multiply_stream` of
`ops/products/cpu/tile.py`.

Imported only to compile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from llvmlite import ir

from flowvm.ops.declare.cpu.vector_code import Emitter
from flowvm.ops.products.cpu.tile_shape import TileShape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowvm.private.code_types import Builder, Function, Value


DOTS = ((1, 8), (2, 4), (4, 4))  # variants of `multiply_dots`: rows and columns
STREAMS = ((1, 8), (2, 8), (4, 4))  # variants of `multiply_stream`: rows and steps at a time


def emit_dots(dtype: str, shape: TileShape) -> ir.Module:
    """A module whose function `entry` is `multiply_dots`: a variant for 1, 2, and up to 4 rows."""
    e = Emitter(ir.Module(), dtype, shape.lanes)
    n, pointer = e.i64, e.pointer
    kinds = [n, pointer, n, pointer, n, pointer, n, n, n, n]
    entry = e.function("entry", kinds)
    b = ir.IRBuilder(entry.append_basic_block("entry"))
    rows = entry.args[-2]
    variants = []
    for height, width in DOTS:
        variant = e.function(f"dots_{height}_{width}", kinds)
        _dots(e, variant, height, width)
        variants.append(variant)
    more = [b.zext(b.icmp_signed(">", rows, n(height)), n) for height, _ in DOTS[:-1]]
    e.switched(b, b.add(*more), variants)
    return e.module


def _dots(e: Emitter, function: Function, height: int, width: int) -> None:
    """One variant: a vector of partial sums for each pair of rows, added up at the end."""
    n, lanes = e.i64, e.lanes
    depth, x, x_row, y, y_row, c, c_row, c_column, rows, columns = function.args
    b = ir.IRBuilder(function.append_basic_block("entry"))

    def lines(pointer: Value, step: Value, count: int, size: Value) -> list[Value]:
        """Pointers to the rows; to the last one again where there are fewer."""
        end = b.sub(size, n(1))
        places = [b.select(b.icmp_signed("<", end, n(i)), end, n(i)) for i in range(count)]
        return [b.gep(pointer, [b.mul(step, place)]) for place in places]

    left, right = lines(x, x_row, height, rows), lines(y, y_row, width, columns)

    def step(at: object, sums: Sequence[object], mask: object) -> list[Value]:
        a = [e.load(b, line, at, mask) for line in left]
        after = list(sums)
        for j, line in enumerate(right):
            vector = e.load(b, line, at, mask)
            for i, number in enumerate(a):
                k = i * width + j
                after[k] = e.fma(b, number, vector, sums[k])
        return after

    whole = b.and_(depth, n(-lanes))
    before, head, rest = (b.block, function.append_basic_block(), function.append_basic_block())
    part, exit_block = function.append_basic_block(), function.append_basic_block()
    zero = ir.Constant(e.vector, None)
    b.cbranch(b.icmp_signed(">", whole, n(0)), head, rest)
    b.position_at_end(head)
    at = b.phi(n)
    sums = [b.phi(e.vector) for _ in range(height * width)]
    after = step(at, sums, None)
    following = b.add(at, n(lanes))
    for phi, first, again in zip(
        [at, *sums], [n(0), *[zero] * len(sums)], [following, *after], strict=True
    ):
        phi.add_incoming(first, before)
        phi.add_incoming(again, head)
    b.cbranch(b.icmp_signed("<", following, whole), head, rest)

    def joined(
        values: Sequence[object], first: Sequence[object], block: object, start: object
    ) -> list[Value]:
        phis = [b.phi(e.vector) for _ in values]
        for phi, value, begin in zip(phis, values, first, strict=True):
            phi.add_incoming(begin, start)
            phi.add_incoming(value, block)
        return phis

    b.position_at_end(rest)
    sums = joined(after, [zero] * len(sums), head, before)
    b.cbranch(b.icmp_signed("<", whole, depth), part, exit_block)
    b.position_at_end(part)
    last = step(whole, sums, e.mask(b, b.sub(depth, whole)))
    b.branch(exit_block)
    b.position_at_end(exit_block)
    sums = joined(last, sums, part, rest)

    end = function.append_basic_block()
    for i in range(height):
        for j in range(width):
            place = b.gep(c, [b.add(b.mul(c_row, n(i)), b.mul(c_column, n(j)))])
            store, after_store = (function.append_basic_block(), function.append_basic_block())
            in_tile = b.and_(b.icmp_signed(">", rows, n(i)), b.icmp_signed(">", columns, n(j)))
            total = _added_up(e, b, sums[i * width + j])
            b.cbranch(in_tile, store, after_store)
            b.position_at_end(store)
            b.store(total, place, align=e.size)
            b.branch(after_store)
            b.position_at_end(after_store)
    b.branch(end)
    b.position_at_end(end)
    b.ret_void()


def _added_up(e: Emitter, b: Builder, vector: Value) -> Value:
    """The sum of the lanes, as a tree."""
    lanes = e.lanes
    while lanes > 1:
        lanes //= 2
        kind = ir.VectorType(e.i32, lanes)
        low, high = (
            ir.Constant(kind, [e.i32(start + i) for i in range(lanes)]) for start in (0, lanes)
        )
        undefined = ir.Constant(vector.type, ir.Undefined)
        vector = b.fadd(
            b.shuffle_vector(vector, undefined, low), b.shuffle_vector(vector, undefined, high)
        )
    return b.extract_element(vector, e.i32(0))


def emit_stream(dtype: str, shape: TileShape) -> ir.Module:
    """A module whose function `entry` is `multiply_stream`: variants for 1, 2 and up to 4 rows."""
    e = Emitter(ir.Module(), dtype, shape.lanes)
    n, pointer = e.i64, e.pointer
    kinds = [n, pointer, n, n, pointer, n, pointer, n, n, n]
    entry = e.function("entry", kinds)
    b = ir.IRBuilder(entry.append_basic_block("entry"))
    variants = []
    for height, steps in STREAMS:
        variant = e.function(f"stream_{height}", kinds)
        _Stream(e, variant, height).emit(steps)
        variants.append(variant)
    more = [b.zext(b.icmp_signed(">", entry.args[-2], n(height)), n) for height, _ in STREAMS[:-1]]
    e.switched(b, b.add(*more), variants)
    return e.module


class _Stream:
    """One variant under construction."""

    def __init__(self, e: Emitter, function: Function, height: int) -> None:
        self.e, self.function, self.height = e, function, height
        self.b = b = ir.IRBuilder(function.append_basic_block("entry"))
        (
            self.depth, self.a, a_row, self.a_step, self.x, self.x_row, c, c_row, rows,
            self.columns,
        ) = function.args  # fmt: skip
        end = b.sub(rows, e.i64(1))
        places = [e.i64(i) for i in range(height)]
        # the last row again where there are fewer: its sum is made, and stored, twice
        places = [b.select(b.icmp_signed("<", end, i), end, i) for i in places]
        self.lines = [b.gep(self.a, [b.mul(a_row, i)]) for i in places]
        self.sums = [b.gep(c, [b.mul(c_row, i)]) for i in places]
        self.whole = b.and_(self.columns, e.i64(-e.lanes))
        self.mask = e.mask(b, b.sub(self.columns, self.whole))

    def emit(self, steps: int) -> None:
        e, b = self.e, self.b
        zero = ir.Constant(e.vector, None)
        self.along(lambda at, mask: [zero] * self.height)
        most = b.sub(self.depth, b.urem(self.depth, e.i64(steps)))
        e.loop(b, e.i64(0), most, steps, lambda k: self.group(k, steps))
        e.loop(b, most, self.depth, 1, lambda k: self.group(k, 1))
        b.ret_void()

    def along(self, values: Callable[[Value, Value], Sequence[object]]) -> None:
        """Store the vectors that `values(place, mask)` makes for each row, all along the rows."""
        e, b = self.e, self.b

        def store(at: Value, mask: Value) -> None:
            new_values = values(at, mask)
            for line, value in zip(self.sums, new_values, strict=True):
                e.store(b, value, line, at, mask)

        e.loop(b, e.i64(0), self.whole, e.lanes, lambda at: store(at, None))
        e.loop(b, self.whole, self.columns, e.lanes, lambda at: store(at, self.mask))

    def group(self, k: object, steps: int) -> None:
        """Add `steps` rows of B, from row k, to the sums."""
        e, b = self.e, self.b
        ks = [b.add(k, e.i64(step)) for step in range(steps)]
        rows = [b.gep(self.x, [b.mul(self.x_row, i)]) for i in ks]
        numbers = [
            [e.splat(b, b.load(b.gep(line, [b.mul(self.a_step, i)]), align=e.size)) for i in ks]
            for line in self.lines
        ]

        def values(at: object, mask: object) -> list[Value]:
            vectors = [e.load(b, row, at, mask) for row in rows]
            totals = []
            for line, factors in zip(self.sums, numbers, strict=True):
                total = e.load(b, line, at, mask)
                for factor, vector in zip(factors, vectors, strict=True):
                    total = e.fma(b, factor, vector, total)
                totals.append(total)
            return totals

        self.along(values)
