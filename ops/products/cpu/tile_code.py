"""The LLVM code of the register tile, `multiply_tile` of `ops/products/cpu/tile.py`.

Imported only to compile.  Invariant: nothing outside the rows and columns that it is given is read
or written, except B's padding, where the caller says that it is there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from llvmlite import ir

from flowvm.ops.declare.cpu.vector_code import Emitter
from flowvm.ops.products.cpu.tile_shape import TileShape

if TYPE_CHECKING:
    from flowvm.private.code_types import Function, Value

GROUP = 4  # rows that share a pointer into A
AHEAD = 8  # steps of the depth whose row of B is brought to the first cache
ROWS, COLUMN = 1, 2  # kinds of start: see `multiply_tile`


class _Arguments(NamedTuple):
    """The arguments of a variant, as LLVM values; see `multiply_tile`."""

    depth: Value
    a: Value
    a_row: Value
    a_step: Value
    b: Value
    b_row: Value
    padded: Value
    c: Value
    c_row: Value
    kind: Value
    start: Value
    start_row: Value
    rows: Value
    columns: Value


class _Variant:
    """One variant under construction."""

    def __init__(
        self, e: Emitter, shape: TileShape, function: Function, groups: int, vectors: int
    ) -> None:
        self.e, self.shape, self.function = e, shape, function
        self.groups, self.vectors = groups, vectors
        self.arguments = _Arguments(*function.args)
        self.height = groups * GROUP
        self.b = b = ir.IRBuilder(function.append_basic_block("entry"))
        self.mask = e.masks(b, self.arguments.columns, vectors)
        self.full = b.icmp_signed("==", self.arguments.columns, e.i64(vectors * e.lanes))

    def emit(self) -> None:
        e, b, arguments = self.e, self.b, self.arguments
        sums = self.started()
        readable = b.or_(self.full, b.icmp_signed("!=", arguments.padded, e.i64(0)))
        exact = b.and_(readable, b.icmp_signed("==", arguments.rows, e.i64(self.height)))
        panel = b.icmp_signed("==", arguments.a_row, e.i64(1))
        ways, end = [], self.block()
        for test, product in ((b.and_(exact, panel), self.of_panel), (exact, self.of_rows)):
            full, other = self.block(), self.block()
            b.cbranch(test, full, other)
            b.position_at_end(full)
            ways.append((product(sums), b.block))
            b.branch(end)
            b.position_at_end(other)
        ways.append((self.of_any(sums), b.block))
        b.branch(end)
        b.position_at_end(end)
        sums = self.merged(ways)
        self.either(self.full, lambda mask: self.stored(sums, mask))
        b.ret_void()

    def block(self) -> Value:
        return self.function.append_basic_block()

    def loaded(self, row: Value, j: int, mask: Value) -> Value:
        """Vector j of a row."""
        return self.e.load(self.b, row, j * self.e.lanes, None if mask is None else mask[j])

    def merged(self, ways: list[tuple[list[Value], Value]]) -> list[Value]:
        """A phi for each value that arrives from several blocks."""
        phis = []
        for values in zip(*(values for values, _ in ways), strict=True):
            phi = self.b.phi(values[0].type)
            for value, (_, block) in zip(values, ways, strict=True):
                phi.add_incoming(value, block)
            phis.append(phi)
        return phis

    def either(self, full: Value, emit: Callable[[Value], list[Value]]) -> list[Value]:
        """Emit the code without masks if `full`, else with masks; return its values, merged."""
        b, ways = self.b, []
        whole, part, end = self.block(), self.block(), self.block()
        b.cbranch(full, whole, part)
        for block, mask in ((whole, None), (part, self.mask)):
            b.position_at_end(block)
            ways.append((emit(mask), b.block))
            b.branch(end)
        b.position_at_end(end)
        return self.merged(ways)

    def clamped(self, i: int) -> Value:
        """Return row i, or the last row; results for rows beyond the last are not stored."""
        e, b = self.e, self.b
        if i <= self.height - GROUP:
            return e.i64(i)
        end = b.sub(self.arguments.rows, e.i64(1))
        return b.select(b.icmp_signed("<", end, e.i64(i)), end, e.i64(i))

    def started(self) -> list[Value]:
        """Return the values with which the sums begin."""
        e, b, arguments = self.e, self.b, self.arguments
        none, rows, column, end = (self.block(), self.block(), self.block(), self.block())
        switch = b.switch(arguments.kind, none)
        switch.add_case(e.i64(ROWS), rows)
        switch.add_case(e.i64(COLUMN), column)

        def places() -> list[Value]:
            steps = [b.mul(arguments.start_row, self.clamped(i)) for i in range(self.height)]
            return [b.gep(arguments.start, [step]) for step in steps]

        def lines(mask: Value) -> list[Value]:
            return [self.loaded(spot, j, mask) for spot in places() for j in range(self.vectors)]

        b.position_at_end(none)
        own = [self.clamped(i) for i in range(self.height)]
        self.expected(arguments.c, arguments.c_row, own, True)  # storing will find them
        zero = ir.Constant(e.vector, None)
        ways = [([zero] * (self.height * self.vectors), b.block)]
        b.branch(end)
        b.position_at_end(rows)
        ways.append((self.either(self.full, lines), b.block))
        below = [e.i64(i) for i in range(self.height, 2 * self.height)]
        self.expected(arguments.start, arguments.start_row, below, False)  # for the next tile
        b.branch(end)
        b.position_at_end(column)
        numbers = [e.splat(b, b.load(spot, align=e.size)) for spot in places()]
        ways.append(([n for n in numbers for _ in range(self.vectors)], b.block))
        b.branch(end)
        b.position_at_end(end)
        return self.merged(ways)

    def expected(self, pointer: Value, step: Value, rows: list[Value], writes: bool) -> None:
        """Have lines of these rows brought to the cache while the sums are made."""
        e, b = self.e, self.b
        for i in rows:
            row = b.gep(pointer, [b.mul(step, i)])
            for j in range(0, self.vectors * e.lanes, 64 // e.size):
                e.prefetch(b, b.gep(row, [e.i64(j)]), writes)

    def of_panel(self, sums: list[Value]) -> list[Value]:
        """The sums after all steps where A's numbers of a step lie side by side, as in a packed
        panel: one pointer and constants are all that their addresses take.
        """
        e, arguments = self.e, self.arguments
        behind = [[e.i64(i) for i in range(self.height)]]
        return self.loop(sums, [arguments.a], [arguments.a_step], behind, None)

    def of_rows(self, sums: list[Value]) -> list[Value]:
        """The sums after all steps for any strides of A.

        A pointer to every fourth row, and the offsets of the rows behind it, are all that the
        addresses of A take: twelve pointers would not fit into the registers of an x86.  LLVM would
        see what they have in common and walk from row to row, an addition for each: so it is not
        told.
        """
        e, b, arguments = self.e, self.b, self.arguments
        row = arguments.a_row
        starts = [b.gep(arguments.a, [b.mul(row, e.i64(i * GROUP))]) for i in range(self.groups)]
        pointers = [self.untold(start) for start in starts]
        steps = [self.untold(arguments.a_step) for _ in starts]
        one, three = self.untold(row), self.untold(b.mul(row, e.i64(3)))
        offsets = [e.i64(0), one, b.shl(one, e.i64(1)), three]
        return self.loop(sums, pointers, steps, [offsets] * self.groups, None)

    def untold(self, value: Value) -> Value:
        """The value by way of memory, so that LLVM does not know what it is."""
        place = self.b.alloca(value.type)
        self.b.store(value, place)
        return self.b.load(place)

    def of_any(self, sums: list[Value]) -> list[Value]:
        """The sums after all steps of a tile that lacks rows or columns."""
        row, b = self.arguments.a_row, self.b
        behind = [[b.mul(row, self.clamped(i)) for i in range(self.height)]]
        return self.loop(sums, [self.arguments.a], [self.arguments.a_step], behind, self.mask)

    def loop(
        self, sums: list[Value], groups: list[Value], steps: list[Value], behind: list[list[Value]],
        mask: Value,
    ) -> list[Value]:  # fmt: skip
        """The sums after a loop over the depth, one step a turn: more would only be longer.

        `groups` point to rows of A, and move on by `steps`; `behind` has the offsets of each
        group's rows.
        """
        e, b, arguments = self.e, self.b, self.arguments
        before, head, end = b.block, self.block(), self.block()
        b.cbranch(b.icmp_signed(">", arguments.depth, e.i64(0)), head, end)
        b.position_at_end(head)
        state = [arguments.depth, arguments.b, *groups, *sums]
        phis = [b.phi(value.type) for value in state]
        remaining, row, *rest = phis
        places = rest[: len(groups)]
        after = self.step(places, behind, row, rest[len(groups) :], mask)
        row = b.gep(row, [arguments.b_row])
        places = [b.gep(place, [step]) for place, step in zip(places, steps, strict=True)]
        remaining = b.sub(remaining, e.i64(1))
        for phi, value, again in zip(phis, state, [remaining, row, *places, *after], strict=True):
            phi.add_incoming(value, before)
            phi.add_incoming(again, b.block)
        b.cbranch(b.icmp_signed(">", remaining, e.i64(0)), head, end)
        b.position_at_end(end)
        return self.merged([(sums, before), (after, head)])

    def step(
        self,
        groups: list[Value],
        behind: list[list[Value]],
        row: Value,
        sums: list[Value],
        mask: Value,
    ) -> list[Value]:
        """The sums after one step of the depth."""
        e, b = self.e, self.b
        vectors = [self.loaded(row, j, mask) for j in range(self.vectors)]
        if mask is None:
            later = b.gep(row, [b.mul(self.arguments.b_row, e.i64(AHEAD))])
            for j in range(0, self.vectors * e.lanes, 64 // e.size):
                e.prefetch(b, b.gep(later, [e.i64(j)]))
        after = []
        for i in range(self.height):
            many = len(behind[0])
            spot = b.gep(groups[i // many], [behind[i // many][i % many]])
            number = e.splat(b, b.load(spot, align=e.size))
            for j, vector in enumerate(vectors):
                after.append(e.fma(b, number, vector, sums[i * self.vectors + j]))
        return after

    def stored(self, sums: list[Value], mask: Value) -> list[Value]:
        """Store the sums of the rows that there are."""
        e, b, arguments = self.e, self.b, self.arguments
        end = self.block()
        for i in range(self.height):
            if i > self.height - GROUP:  # not in every tile of this variant
                more = self.block()
                b.cbranch(b.icmp_signed(">", arguments.rows, e.i64(i)), more, end)
                b.position_at_end(more)
            row = b.gep(arguments.c, [b.mul(arguments.c_row, e.i64(i))])
            for j in range(self.vectors):
                part = None if mask is None else mask[j]
                e.store(b, sums[i * self.vectors + j], row, j * e.lanes, part)
        b.branch(end)
        b.position_at_end(end)
        return []


def emit_tile(dtype: str, shape: TileShape) -> ir.Module:
    """A module whose function `entry` is `multiply_tile`.

    There is a variant for every number of groups of rows and every number of vectors; the entry
    picks the smallest that holds the tile.
    """
    e = Emitter(ir.Module(), dtype, shape.lanes)
    n, pointer = e.i64, e.pointer
    kinds = [n, pointer, n, n, pointer, n, n, pointer, n, n, pointer, n, n, n]
    entry = e.function("entry", kinds)
    b = ir.IRBuilder(entry.append_basic_block("entry"))
    rows, columns = entry.args[-2:]
    group = b.udiv(b.sub(rows, n(1)), n(GROUP))
    vector = b.udiv(b.sub(columns, n(1)), n(shape.lanes))
    variants = []
    for groups in range(1, shape.rows // GROUP + 1):
        for vectors in range(1, shape.vectors + 1):
            variant = e.function(f"tile_{groups}_{vectors}", kinds)
            _Variant(e, shape, variant, groups, vectors).emit()
            variants.append(variant)
    e.switched(b, b.add(b.mul(group, n(shape.vectors)), vector), variants)
    return e.module
