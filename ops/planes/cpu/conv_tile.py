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

from typing import Any

import numpy as np

from flowvm.compiler.native import Intrinsic
from flowvm.ops.declare.cpu.vector_code import (
    Emitter,
    address_of,
    emitter,
    lanes_of,
    registers,
    same_reals,
)

Array = Any
ALONE, ADDED, PLACED = 0, 1, 2  # what `convolve_strip` does with a product


def _roomy() -> bool:
    return registers().available >= 32


def strip_rows() -> dict[int, tuple[int, ...]]:
    """The heights that a strip may have, and the vectors that it does at once in each."""
    if _roomy():
        return {8: (3, 2, 1), 4: (6, 3, 1), 1: (8, 4, 2, 1)}
    return {4: (3, 2, 1), 1: (6, 3, 1)}


def tile_of(rows: int) -> tuple[int, int]:
    """Rows and columns of the tile that `correlate_tile` has for a matrix of so many rows."""
    if rows == 1:
        return (1, 9)
    return (4, 6) if _roomy() else (2, 4)


# --- what they mean in Python -------------------------------------------------------------------


def _strip_python(
    rows: int, depth: int, a: Array, a_at: int, b: Array, b_at: int, offsets: Array, at: int,
    c: Array, c_at: int, c_row: int, kind: int, plus: Array, plus_at: int, spots: Array,
    masks: Array, vectors: int,
) -> None:  # fmt: skip
    lanes = lanes_of(str(c.dtype))
    width = vectors * lanes
    for i in range(rows):
        total = np.zeros(width, c.dtype)
        for k in range(depth):
            total += a[a_at + k * rows + i] * b[b_at + offsets[at + k] :][:width]
        start = c_at + i * c_row
        if kind != PLACED:
            c[start : start + width] = total + (c[start : start + width] if kind == ADDED else 0)
            continue
        for v in range(2 * vectors):
            for lane in range(lanes):
                if masks[v] >> lane & 1:
                    value = total[v // 2 * lanes + lane] + plus[plus_at + i]
                    c[start + spots[v] + lane] = value


def _tile_python(
    rows: int, segments: int, vectors: int, g: Array, g_at: int, g_row: int, g_segment: int,
    x: Array, x_at: int, x_segment: int, offsets: Array, at: int, masks: Array, masks_at: int,
    c: Array, c_at: int, more: int,
) -> None:  # fmt: skip
    lanes = lanes_of(str(c.dtype))
    columns = tile_of(rows)[1]
    bits = masks[masks_at : masks_at + vectors, None] >> np.arange(lanes) & 1
    keep = bits.reshape(-1).astype(bool)
    if not more:
        c[c_at : c_at + -(-rows * columns // lanes) * lanes] = 0
    for i in range(rows):
        for j in range(columns):
            total = np.zeros(lanes, c.dtype)
            for s in range(segments):
                y = g[g_at + i * g_row + s * g_segment :][: len(keep)]
                z = x[x_at + offsets[at + j] + s * x_segment :][: len(keep)]
                total += (y * np.where(keep, z, 0)).reshape(-1, lanes).sum(0)
            c[c_at + i * columns + j] += total.sum()


# --- their LLVM code ----------------------------------------------------------------------------


class _Tiles(Emitter):
    """The functions of both tiles."""

    def strip(self, rows: int) -> Any:
        """(depth, a, b, offsets, c, c_row, kind, plus, spots, masks, vectors), for a strip of so
        many rows.
        """
        pointer, n, table = self.real.as_pointer(), self.i64, self.i32.as_pointer()
        bits = self.i16.as_pointer()
        args = [n, pointer, pointer, table, pointer, n, n, pointer, table, bits, n]

        def emit(b: Any, made: Any) -> None:
            depth, a, x, offsets, c, c_row, kind, plus, spots, masks, vectors = made.args
            in_line = b.icmp_signed("!=", kind, n(PLACED))
            for wide in strip_rows()[rows]:
                step = n(wide * self.lanes)

                def turn(q: Any, state: list[Any], wide: int = wide, step: Any = step) -> list[Any]:
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

    def strip_sums(self, b: Any, rows: int, wide: int, args: tuple[Any, ...]) -> list[Any]:
        """The products of a tile of so many rows and vectors."""
        depth, a, x, offsets = args
        n = self.i64

        def step(k: Any, sums: list[Any]) -> list[Any]:
            line = b.gep(x, [b.sext(b.load(b.gep(offsets, [k])), n)])
            row = [self.load(b, line, n(j * self.lanes)) for j in range(wide)]
            numbers = b.gep(a, [b.mul(k, n(rows))])
            out = []
            for i in range(rows):
                number = self.splat(b, b.load(b.gep(numbers, [n(i)])))
                out += [self.fma(b, number, row[j], sums[i * wide + j]) for j in range(wide)]
            return out

        def twice(k: Any, sums: list[Any]) -> list[Any]:
            return step(b.add(k, n(1)), step(k, sums))

        zeros = [self.zero] * (rows * wide)
        did, sums = self.counted(b, depth, 2, zeros, twice)
        _, sums = self.counted(b, b.sub(depth, did), 1, sums, lambda k, s: step(b.add(k, did), s))
        return sums

    def strip_end(
        self, b: Any, rows: int, wide: int, sums: list[Any], args: tuple[Any, ...]
    ) -> None:
        """Store a tile: in line, added to what is there, or under masks where it belongs."""
        c, c_row, kind, plus, spots, masks = args
        n = self.i64
        done = b.append_basic_block()
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
            b.branch(done)
        b.position_at_end(done)

    def lanes_in(self, b: Any, masks: Any, at: Any) -> Any:
        """The lanes whose bits are set in a word of 16."""
        word = b.load(b.gep(masks, [at]))
        word = word if self.lanes == 16 else b.trunc(word, self.ir.IntType(self.lanes))
        return b.bitcast(word, self.ir.VectorType(self.i1, self.lanes))

    def tile(self, rows: int) -> Any:
        """(segments, vectors, g, g_row, g_segment, x, x_segment, offsets, masks, c, more)."""
        pointer, n = self.real.as_pointer(), self.i64
        table, bits = self.i32.as_pointer(), self.i16.as_pointer()
        args = [n, n, pointer, n, n, pointer, n, table, bits, pointer, n]
        columns = tile_of(rows)[1]

        def emit(b: Any, made: Any) -> None:
            segments, vectors, g, g_row, g_segment, x, x_segment, offsets, masks, c, more = (
                made.args
            )
            lines = [b.gep(g, [b.mul(g_row, n(i))]) for i in range(rows)]
            shifts = [b.sext(b.load(b.gep(offsets, [n(j)])), n) for j in range(columns)]
            shifted = [b.gep(x, [shift]) for shift in shifts]

            def segment(s: Any, sums: list[Any]) -> list[Any]:
                g_at, x_at = b.mul(s, g_segment), b.mul(s, x_segment)
                ys = [b.gep(line, [g_at]) for line in lines]
                zs = [b.gep(line, [x_at]) for line in shifted]

                def vector(v: Any, sums: list[Any]) -> list[Any]:
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


def _strip_define() -> Any:
    from numba import types

    def typing(
        typingctx: Any, rows: Any, depth: Any, a: Any, a_at: Any, b: Any, b_at: Any, offsets: Any,
        at: Any, c: Any, c_at: Any, c_row: Any, kind: Any, plus: Any, plus_at: Any, spots: Any,
        masks: Any, vectors: Any,
    ) -> Any:  # fmt: skip
        n = types.int64
        if not same_reals(a, b, c, plus):
            return None

        def codegen(context: Any, builder: Any, sig: Any, v: Any) -> Any:
            e = emitter(_Tiles, builder.module, str(c.dtype))
            spots = [address_of(context, builder, sig, v, k) for k in (2, 4, 6, 8)]
            plus_at = address_of(context, builder, sig, v, 12)
            tables = [
                context.make_array(sig.args[k])(context, builder, v[k]).data for k in (14, 15)
            ]
            args = [v[1], *spots, v[10], v[11], plus_at, *tables, v[16]]
            heights = list(strip_rows())
            e.chosen(builder, v[0], heights, lambda rows: builder.call(e.strip(rows), args))
            return context.get_dummy_value()

        signature = types.void(n, n, a, n, b, n, offsets, n, c, n, n, n, plus, n, spots, masks, n)
        return signature, codegen

    return typing


def _tile_define() -> Any:
    from numba import types

    def typing(
        typingctx: Any, rows: Any, segments: Any, vectors: Any, g: Any, g_at: Any, g_row: Any,
        g_segment: Any, x: Any, x_at: Any, x_segment: Any, offsets: Any, at: Any, masks: Any,
        masks_at: Any, c: Any, c_at: Any, more: Any,
    ) -> Any:  # fmt: skip
        n = types.int64
        if not same_reals(g, x, c):
            return None

        def codegen(context: Any, builder: Any, sig: Any, v: Any) -> Any:
            e = emitter(_Tiles, builder.module, str(c.dtype))
            spots = [address_of(context, builder, sig, v, k) for k in (3, 7, 10, 12, 14)]
            g_at, x_at, table, bits, c_at = spots
            args = [v[1], v[2], g_at, v[5], v[6], x_at, v[9], table, bits, c_at, v[16]]
            heights = [1, tile_of(2)[0]]
            e.chosen(builder, v[0], heights, lambda rows: builder.call(e.tile(rows), args))
            return context.get_dummy_value()

        signature = types.void(n, n, n, g, n, n, n, x, n, n, offsets, n, masks, n, c, n, n)
        return signature, codegen

    return typing


convolve_strip = Intrinsic(_strip_python, _strip_define)
convolve_strip.__doc__ = """A strip of C (+)= A B, inside a body.

convolve_strip(rows, depth, a, a_at, b, b_at, offsets, at, c, c_at, c_row, kind, plus, plus_at,
               spots, masks, vectors)

`rows` is one of `strip_rows`; a[a_at + k * rows + i] is A; row k of B starts at b_at +
offsets[at + k] (int32) and is `vectors` vectors long.  C's rows are c_row apart.  `kind` says
whether the product is put there ALONE, one vector behind the other, or ADDED to what is there.
PLACED, vector v of row i, plus the number plus[plus_at + i], goes to elements spots[2 v] (int32) of
the row and following under masks[2 v] (uint16, a bit for a lane), and to spots[2 v + 1] likewise.
"""
correlate_tile = Intrinsic(_tile_python, _tile_define)
correlate_tile.__doc__ = """A tile of C (+)= G X', inside a body: sums over segments of vectors.

correlate_tile(rows, segments, vectors, g, g_at, g_row, g_segment, x, x_at, x_segment, offsets, at,
               masks, masks_at, c, c_at, more)

`rows` is 1 or what `tile_of` says; its columns of X start at x_at + offsets[at + j] (int32).  Bit
l of masks[masks_at + v] (uint16) says whether lane l of vector v of X counts; where it does not, G
must be 0.  C's elements lie together, row after row, filled up to whole vectors; `more`: add to it.
"""
