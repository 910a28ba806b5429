"""The inner loops of convolution: sums in registers, operands where they lie.

Two tiles, each a loop over a depth with about two dozen vectors of sums in registers.  They are kin
of the matrix product's tile (`ops/products/cpu/tile.py`); what differs is that a convolution's
matrix of windows is never built.  Its rows are shifts of the input, so a table of offsets says
where each one starts.

    convolve_strip   C[rows, q] = sum over k of A[k, rows] * B[offset[k] + q]   forward, input's
    correlate_tile   C[i, j]    = sum over q of G[i, q] * X[offset[j] + q]      weight's gradient

Invariants
- A sum goes over its depth in order, one fused multiply-add a step; `correlate_tile` keeps one sum
  a lane and adds the lanes as a tree.  Which tile computes an element never shows in it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flowvm.compiler.native import Intrinsic
from flowvm.meta.arrays import Array
from flowvm.ops.declare.cpu.vector_code import (
    Emitter,
    emitter,
    lanes_of,
    numbers_in,
    registers,
    same_reals,
)

if TYPE_CHECKING:
    from flowvm.private.code_types import (
        Builder,
        CodeContext,
        Function,
        Generator,
        Signature,
        Type,
        Typing,
        TypingContext,
        Value,
    )


ALONE, ADDED, PLACED = 0, 1, 2  # what `convolve_strip` does with a product


def _roomy() -> bool:
    return registers().available >= 32


def strip_rows() -> dict[int, tuple[int, ...]]:
    """The heights that a strip may have, and the vectors that it does at once in each."""
    if _roomy():
        return {8: (3, 2, 1), 4: (6, 3, 1), 1: (8, 4, 2, 1)}
    return {4: (3, 2, 1), 1: (6, 3, 1)}


def tile_of(rows: int) -> tuple[int, int]:
    """Return the rows and columns of `correlate_tile`'s tile for a matrix of `rows` rows."""
    if rows == 1:
        return (1, 9)
    return (4, 6) if _roomy() else (2, 4)


class StripSize(NamedTuple):
    """A strip of C: integers, whatever their type."""

    rows: int  # one of `strip_rows`
    depth: int  # rows of B
    vectors: int  # of a row
    apart: int  # elements from a row of C to the next
    kind: int  # ALONE, ADDED, PLACED


class TileSize(NamedTuple):
    """A tile of C and the segments that are summed: integers, whatever their type."""

    rows: int  # 1, or what `tile_of` says
    segments: int
    vectors: int  # of a segment
    g_row: int  # elements from a row of G to the next
    g_segment: int  # and from a segment to the next
    x_segment: int
    more: int  # whether C is added to


# --- what they mean in Python -------------------------------------------------------------------


def _strip_python(
    c: Array, a: Array, b: Array, offsets: Array, plus: Array, spots: Array, masks: Array,
    size: StripSize,
) -> None:  # fmt: skip
    rows, depth, vectors, apart, kind = size
    lanes = lanes_of(str(c.dtype))
    width = vectors * lanes
    for i in range(rows):
        total = np.zeros(width, c.dtype)
        for k in range(depth):
            total += a[k * rows + i] * b[offsets[k] :][:width]
        start = i * apart
        if kind != PLACED:
            c[start : start + width] = total + (c[start : start + width] if kind == ADDED else 0)
            continue
        for v in range(2 * vectors):
            for lane in range(lanes):
                if masks[v] >> lane & 1:
                    value = total[v // 2 * lanes + lane] + plus[i]
                    c[start + spots[v] + lane] = value


def _tile_python(
    c: Array, g: Array, x: Array, offsets: Array, masks: Array, size: TileSize
) -> None:
    rows, segments, vectors, g_row, g_segment, x_segment, more = size
    lanes = lanes_of(str(c.dtype))
    columns = tile_of(rows)[1]
    bits = masks[:vectors, None] >> np.arange(lanes) & 1
    keep = bits.reshape(-1).astype(bool)
    if not more:
        c[: -(-rows * columns // lanes) * lanes] = 0
    for i in range(rows):
        for j in range(columns):
            total = np.zeros(lanes, c.dtype)
            for s in range(segments):
                y = g[i * g_row + s * g_segment :][: len(keep)]
                z = x[offsets[j] + s * x_segment :][: len(keep)]
                total += (y * np.where(keep, z, 0)).reshape(-1, lanes).sum(0)
            c[i * columns + j] += total.sum()


# --- their LLVM code ----------------------------------------------------------------------------


class _Tiles(Emitter):
    """The functions of both tiles."""

    def strip(self, rows: int) -> Function:
        """(depth, a, b, offsets, c, c_row, kind, plus, spots, masks, vectors), for a strip of so
        many rows.
        """
        pointer, n, table = self.real.as_pointer(), self.i64, self.i32.as_pointer()
        bits = self.i16.as_pointer()
        args = [n, pointer, pointer, table, pointer, n, n, pointer, table, bits, n]

        def emit(b: Builder, function: Function) -> None:
            depth, a, x, offsets, c, c_row, kind, plus, spots, masks, vectors = function.args
            in_line = b.icmp_signed("!=", kind, n(PLACED))
            for wide in strip_rows()[rows]:
                step = n(wide * self.lanes)

                def turn(
                    q: object, state: Sequence[object], wide: int = wide, step: Value = step
                ) -> list[Value]:
                    x, c, spots, masks = state
                    sums = self.strip_sums(b, rows, wide, (depth, a, x, offsets))
                    self.strip_end(b, rows, wide, sums, (c, c_row, kind, plus, spots, masks))
                    moved = b.select(in_line, step, n(0))
                    two = [b.gep(spots, [n(2 * wide)]), b.gep(masks, [n(2 * wide)])]
                    return [b.gep(x, [step]), b.gep(c, [moved]), *two]

                state = [x, c, spots, masks]
                did, (x, c, spots, masks) = self.counted(b, vectors, wide, state, turn)
                vectors = b.sub(vectors, did)
            b.ret_void()

        return self.shared(f"strip_{rows}", args, emit, long=True)

    def strip_sums(self, b: Builder, rows: int, wide: int, args: tuple[object, ...]) -> list[Value]:
        """Emit the products of a tile of `rows` rows and `wide` vectors."""
        depth, a, x, offsets = args
        n = self.i64

        def step(k: Value, sums: Sequence[object]) -> list[Value]:
            line = b.gep(x, [b.sext(b.load(b.gep(offsets, [k])), n)])
            row = [self.load(b, line, n(j * self.lanes)) for j in range(wide)]
            numbers = b.gep(a, [b.mul(k, n(rows))])
            out = []
            for i in range(rows):
                number = self.splat(b, b.load(b.gep(numbers, [n(i)])))
                out += [self.fma(b, number, row[j], sums[i * wide + j]) for j in range(wide)]
            return out

        def twice(k: Value, sums: list[Value]) -> list[Value]:
            return step(b.add(k, n(1)), step(k, sums))

        zeros = [self.zero] * (rows * wide)
        did, sums = self.counted(b, depth, 2, zeros, twice)
        _, sums = self.counted(b, b.sub(depth, did), 1, sums, lambda k, s: step(b.add(k, did), s))
        return sums

    def strip_end(
        self, b: Builder, rows: int, wide: int, sums: Sequence[object], args: tuple[object, ...]
    ) -> None:
        """Store a tile: in line, added to the sums in memory, or under masks at its place."""
        c, c_row, kind, plus, spots, masks = args
        n = self.i64
        end = b.append_basic_block()
        ways = {number: b.append_basic_block() for number in (ALONE, ADDED, PLACED)}
        switch = b.switch(kind, ways[ALONE])
        for number, block in ways.items():
            if number != ALONE:
                switch.add_case(n(number), block)
            b.position_at_end(block)
            if number == PLACED:
                places = [b.sext(b.load(b.gep(spots, [n(k)])), n) for k in range(2 * wide)]
                lanes = [self.lanes_in(b, masks, n(k)) for k in range(2 * wide)]
            for i in range(rows):
                line = b.gep(c, [b.mul(c_row, n(i))])
                if number == PLACED:
                    more = self.splat(b, b.load(b.gep(plus, [n(i)])))
                for j in range(wide):
                    value, at = sums[i * wide + j], n(j * self.lanes)
                    if number == PLACED:
                        value = b.fadd(value, more)
                        for k in (2 * j, 2 * j + 1):
                            self.store(b, value, line, places[k], lanes[k])
                        continue
                    if number == ADDED:
                        value = b.fadd(self.load(b, line, at), value)
                    self.store(b, value, line, at)
            b.branch(end)
        b.position_at_end(end)

    def lanes_in(self, b: Builder, masks: Value, at: Value) -> Value:
        """The lanes whose bits are set in a word of 16."""
        word = b.load(b.gep(masks, [at]))
        word = word if self.lanes == 16 else b.trunc(word, self.ir.IntType(self.lanes))
        return b.bitcast(word, self.ir.VectorType(self.i1, self.lanes))

    def tile(self, rows: int) -> Function:
        """(segments, vectors, g, g_row, g_segment, x, x_segment, offsets, masks, c, more)."""
        pointer, n = self.real.as_pointer(), self.i64
        table, bits = self.i32.as_pointer(), self.i16.as_pointer()
        args = [n, n, pointer, n, n, pointer, n, table, bits, pointer, n]
        columns = tile_of(rows)[1]

        def emit(b: Builder, function: Function) -> None:
            segments, vectors, g, g_row, g_segment, x, x_segment, offsets, masks, c, more = (
                function.args
            )
            lines = [b.gep(g, [b.mul(g_row, n(i))]) for i in range(rows)]
            shifts = [b.sext(b.load(b.gep(offsets, [n(j)])), n) for j in range(columns)]
            shifted = [b.gep(x, [shift]) for shift in shifts]

            def segment(s: Value, sums: list[Value]) -> list[object]:
                g_at, x_at = b.mul(s, g_segment), b.mul(s, x_segment)
                ys = [b.gep(line, [g_at]) for line in lines]
                zs = [b.gep(line, [x_at]) for line in shifted]

                def vector(v: Value, sums: Sequence[object]) -> list[Value]:
                    at = b.mul(v, n(self.lanes))
                    keep = self.lanes_in(b, masks, v)
                    gs = [self.load(b, y, at) for y in ys]
                    out = list(sums)
                    for j, z in enumerate(zs):
                        value = b.select(keep, self.load(b, z, at), self.zero)
                        for i in range(rows):
                            k = i * columns + j
                            out[k] = self.fma(b, gs[i], value, sums[k])
                    return out

                return self.counted(b, vectors, 1, sums, vector)[1]

            _, sums = self.counted(b, segments, 1, [self.zero] * (rows * columns), segment)
            again = b.icmp_signed("!=", more, n(0))
            for k in range(0, len(sums), self.lanes):
                group = sums[k : k + self.lanes]
                total = self.added(b, group + [self.zero] * (self.lanes - len(group)))
                before = b.select(again, self.load(b, c, n(k)), self.zero)
                self.store(b, b.fadd(before, total), c, n(k))
            b.ret_void()

        return self.shared(f"tile_{rows}", args, emit, long=True)


def _define(
    arrays: int, reals: int, call: Callable[[_Tiles, Builder, list[Value], list[Value]], None]
) -> Typing:
    """Return the typing of a function of `arrays` arrays and a size.

    The first `reals` arrays have one dtype. `call(emitter, builder, addresses, size)` writes its
    code.
    """
    from numba import types

    def typing(typingctx: TypingContext, *kinds: Type) -> tuple[Signature, Generator] | None:
        if not same_reals(*kinds[:reals]):
            return None

        def codegen(
            context: CodeContext, builder: Builder, sig: Signature, values: Sequence[Value]
        ) -> Value:
            e = emitter(_Tiles, builder.module, str(kinds[0].dtype))
            addresses = [
                context.make_array(kind)(context, builder, value).data
                for kind, value in zip(sig.args[:arrays], values[:arrays], strict=True)
            ]
            call(e, builder, addresses, numbers_in(context, builder, kinds[arrays], values[arrays]))
            return context.get_dummy_value()

        return types.void(*kinds), codegen

    # Numba would take *kinds for one argument, a tuple
    names = ["typingctx", *(f"a{k}" for k in range(arrays)), "size"]
    parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names]
    typing.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return typing


def _strip_define() -> object:
    def call(e: _Tiles, b: Builder, arrays: Sequence[object], size: Sequence[object]) -> None:
        rows, depth, vectors, apart, kind = size
        c, a, x, offsets, plus, spots, masks = arrays
        args = [depth, a, x, offsets, c, apart, kind, plus, spots, masks, vectors]
        e.chosen(b, rows, list(strip_rows()), lambda height: b.call(e.strip(height), args))

    return _define(7, 3, call)


def _tile_define() -> object:
    def call(e: _Tiles, b: Builder, arrays: Sequence[object], size: Sequence[object]) -> None:
        rows, segments, vectors, g_row, g_segment, x_segment, more = size
        c, g, x, offsets, masks = arrays
        args = [segments, vectors, g, g_row, g_segment, x, x_segment, offsets, masks, c, more]
        e.chosen(b, rows, [1, tile_of(2)[0]], lambda height: b.call(e.tile(height), args))

    return _define(5, 3, call)


convolve_strip = Intrinsic(_strip_python, _strip_define)
convolve_strip.__doc__ = """A strip of C (+)= A B, inside a body.

convolve_strip(c, a, b, offsets, plus, spots, masks, size), all but the size arrays of one dimension

a[k * rows + i] is A; row k of B starts at b[offsets[k]] (int32).  `size.kind` says whether the
product is put into C ALONE, one vector behind the other, or ADDED to what is there.  PLACED, vector
v of row i, plus the number plus[i], goes to elements spots[2 v] (int32) of the row and following
under masks[2 v] (uint16, a bit for a lane), and to spots[2 v + 1] likewise.
"""
correlate_tile = Intrinsic(_tile_python, _tile_define)
correlate_tile.__doc__ = """A tile of C (+)= G X', inside a body: sums over segments of vectors.

correlate_tile(c, g, x, offsets, masks, size), all but the size arrays of one dimension

The tile's columns of X start at x[offsets[j]] (int32).  Bit l of masks[v] (uint16) says whether
lane l of vector v of X counts; where it does not, G must be 0.  C's elements lie together, row
after row, filled up to whole vectors.
"""
