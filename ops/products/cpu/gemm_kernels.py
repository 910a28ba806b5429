"""The kernels of matrix products: blocks packed and multiplied tile by tile.

    out = act(alpha * A B + beta * addend)

The way through a product is one function, compiled once for all dtypes: it works on addresses, and
all that differs, from strides to the tile of a dtype, is a number of the `Plan`.  So a transposed
operand is read where it lies, and a new shape compiles nothing.  The way is BLIS's (Van Zee and van
de Geijn, 2015; Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008):
blocks of A that fit the second cache, a tile's rows of it the first.  What must be packed is packed
into the arena of the thread that needs it, or, if several blocks of rows need it, into scratch in a
phase of its own.

Invariants
- A product is cut into blocks by its plan alone, which its shape and strides make: results do not
  depend on threads.
- No element is skipped for being zero: 0 * inf is NaN.
- reduced floats are summed in float32, converted as they are packed and as they are stored.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from flowvm.compiler import jit
from flowvm.launch import PHASE_BITS
from flowvm.loading.lazy import lazy
from flowvm.meta.arrays import Array
from flowvm.ops.declare.cpu.body_kernel import Kind
from flowvm.ops.products.cpu.gemm_epilogue import FINAL, finish
from flowvm.ops.products.cpu.tile import (
    START_ROWS,
    address,
    caller,
    copy_panel,
    dot_columns,
    multiply_dots,
    multiply_stream,
    multiply_tile,
    transpose_block,
)

words = lazy("flowvm.compiler.words")  # LLVM, for a compilation only

TILES, DOTS, STREAM = 0, 1, 2  # ways to multiply
WIDE = 512  # columns that STREAM does at once, whose sums stay in the first cache
IN_PLACE, COPIED, TRANSPOSED = 0, 1, 2  # how an operand's blocks are packed
PANELS = 8  # of B that are packed together into scratch


class Plan(NamedTuple):
    """The numbers of a product's kernel: `m` by `n`, depth `k`; strides are in elements.

    `way`: TILES, or for a thin A, DOTS where both operands are contiguous along the depth, STREAM
    where B is contiguous along its columns.
    `swap`: the plan is of out' = B' A', and its blocks are transposed as they are stored.
    """

    way: int
    swap: int
    m: int
    n: int
    k: int
    a_row: int
    a_step: int
    b_step: int
    b_column: int
    pack_a: int  # COPIED: row by row if contiguous along the depth, else step by step
    pack_b: int
    shared: int  # B is packed in a phase of its own
    deep: int  # depth of a block
    tall: int  # rows of a block
    wide: int  # columns of a block
    down: int  # blocks
    across: int
    mr: int  # the tile
    nr: int
    lanes: int
    d1: int  # batch dimensions but the first, then the strides of A, B and the addend in all three
    d2: int
    a0: int
    a1: int
    a2: int
    b0: int
    b1: int
    b2: int
    s0: int
    s1: int
    s2: int
    start: int  # how the sums start from the addend
    finish: int  # FINAL, or act(sum), act(alpha * sum) or act(alpha * sum + beta * addend)
    s_row: int
    s_column: int
    staged: int  # the sums are stored from a panel: transposed if `swap`, else copied
    stored: int  # bytes of an element of A, B and out
    size: int  # bytes of an element of a panel, whose dtype is float32 where those are reduced
    tile: int  # addresses: the dtype's TileFunctions, the `walker`, and the `finisher`
    dots: int
    stream: int
    copy: int
    transpose: int
    store: int
    store_transposed: int
    walk: int
    finisher: int
    alpha: float
    beta: float


class Corner(NamedTuple):
    """A block's corner in each operand: addresses."""

    out: int
    a: int
    b: int
    addend: int


def _a_elements(p: Plan) -> int:
    return -(-p.tall // p.mr) * p.mr * p.deep if p.pack_a else 0


def _b_elements(p: Plan) -> int:
    return -(-p.wide // p.nr) * p.nr * p.deep if p.pack_b and not p.shared else 0


def arena_elements(p: Plan) -> int:
    """Elements of the arena that a block takes: blocks of A and B, and the sums if staged."""
    c = p.tall * -(-p.wide // p.nr) * p.nr if p.staged else 0
    return _a_elements(p) + _b_elements(p) + c if p.way == TILES else 0


def _pack_a(p: Plan, a: int, rows: int, depth: int, to: int) -> None:
    """A block of A: its rows one after another, or panels of `mr` rows step by step."""
    if p.a_step == 1:
        for i in range(rows):  # each as rows of a panel's width, and what is left
            source, target = a + i * p.a_row * p.stored, to + i * depth * p.size
            lines, rest = depth // p.nr, depth % p.nr
            copy_panel(p.copy, source, p.nr, 1, lines, p.nr, target, p.nr, p.nr)
            if rest:
                place = lines * p.nr
                source, target = source + place * p.stored, target + place * p.size
                copy_panel(p.copy, source, p.nr, 1, 1, rest, target, p.nr, rest)
        return
    copy_lines(p, a, p.a_step, p.a_row, depth, rows, to, p.mr)


def copy_lines(
    p: Any, x: int, step: int, column: int, depth: int, columns: int, to: int, wide: int
) -> None:
    """Copy `depth` rows to panels of `wide` columns, the last one filled up with zeros.

    A row at a time, since memory likes its lines to be read in order.
    """
    whole = columns // wide if column == 1 else 0
    if whole > 1:
        for k in range(depth):
            source, target = x + k * step * p.stored, to + k * wide * p.size
            copy_panel(p.copy, source, wide, 1, whole, wide, target, depth * wide, wide)
    else:
        whole = 0
    for first in range(whole * wide, columns, wide):
        width = min(wide, columns - first)
        source, panel = x + first * column * p.stored, to + first * depth * p.size
        copy_panel(p.copy, source, step, column, depth, width, panel, wide, wide)


def pack_panels(p: Any, b: int, depth: int, columns: int, to: int) -> None:
    """Panels of `nr` columns of B, step by step, the last one filled up with zeros.

    `p` is a Plan, or another record with the fields of one that are asked for here.
    """
    if p.pack_b == COPIED:
        copy_lines(p, b, p.b_step, p.b_column, depth, columns, to, p.nr)
        return
    for first in range(0, columns, p.nr):
        width = min(p.nr, columns - first)
        source, panel = b + first * p.b_column * p.stored, to + first * depth * p.size
        for j in range(0, p.nr, p.lanes):
            count = max(0, min(p.lanes, width - j))
            for k in range(0, depth, p.lanes):
                transpose_block(
                    p.transpose, source + (j * p.b_column + k) * p.stored, p.b_column, count,
                    min(p.lanes, depth - k), panel + (k * p.nr + j) * p.size, p.nr, p.lanes,
                )  # fmt: skip


def _block(p: Plan, at: Corner, packed: int, arena: int, rows: int, columns: int) -> None:
    """One block of the result, `rows` by `columns`, by tiles."""
    size, out, a, b, addend = p.size, at.out, at.a, at.b, at.addend
    b_place = arena + _a_elements(p) * size
    c_place = b_place + _b_elements(p) * size
    c_row = p.nr if p.staged else p.n
    for k in range(0, max(p.k, 1), p.deep):
        depth, last = min(p.deep, p.k - k), k + p.deep >= p.k
        left, a_row, a_step, panel = a + k * p.a_step * p.stored, p.a_row, p.a_step, p.a_row
        if p.pack_a:
            _pack_a(p, left, rows, depth, arena)
            left, panel = arena, depth
            a_row, a_step = (depth, 1) if p.a_step == 1 else (1, p.mr)
        if p.pack_b and not p.shared:
            pack_panels(p, b + k * p.b_step * p.stored, depth, columns, b_place)
        for j in range(0, columns, p.nr):
            width = min(p.nr, columns - j)
            right, b_row = b + (k * p.b_step + j) * size, p.b_step
            if p.pack_b:
                right, b_row = b_place + j * depth * size, p.nr
                if p.shared:
                    right = packed + (j * p.k + k * p.nr) * size
            c = c_place + j * p.tall * size if p.staged else out + j * size
            for i in range(0, rows, p.mr):
                tile = c + i * c_row * size
                kind, start, start_row = START_ROWS, tile, c_row
                if k == 0:
                    start = addend + (i * p.s_row + j * p.s_column) * size
                    kind, start_row = p.start, p.s_row
                multiply_tile(
                    p.tile, depth, left + i * panel * size, a_row, a_step, right, b_row,
                    1 if p.pack_b else 0, tile, c_row, kind, start, start_row,
                    min(p.mr, rows - i), width,
                )  # fmt: skip
            if last:
                _panel_done(p, at, c, j, rows, width)


def _panel_done(p: Plan, at: Corner, c: int, j: int, rows: int, width: int) -> None:
    """Finish a panel of sums at `c` while it is in the first cache."""
    start, size = at.addend + j * p.s_column * p.size, p.size
    if p.staged and not p.swap:
        copy_panel(p.store, c, p.nr, 1, rows, width, at.out + j * p.stored, p.n, width)
        return
    if not p.swap:
        if p.finish != FINAL:
            finish(p.finisher, p, c, start, rows, width)
        return
    target = at.out + j * p.m * p.stored
    for i in range(0, rows, p.lanes):
        high = min(p.lanes, rows - i)
        for jj in range(0, width, p.lanes):
            transpose_block(
                p.store_transposed, c + (i * p.nr + jj) * size, p.nr, high,
                min(p.lanes, width - jj), target + (jj * p.m + i) * p.stored, p.m, high,
            )  # fmt: skip
    if p.finish != FINAL:
        finish(p.finisher, p, target, start, width, rows)


def _thin_block(p: Plan, at: Corner, rows: int, columns: int) -> None:
    """Compute one block of the result of a thin A; reading B takes the time."""
    out, a, b = at.out, at.a, at.b
    c_row, c_column = (1, p.m) if p.swap else (p.n, 1)
    if p.way == STREAM:
        for j in range(0, columns, WIDE):
            multiply_stream(
                p.stream, p.k, a, p.a_row, p.a_step, b + j * p.size, p.b_step, out + j * p.size,
                c_row, rows, min(WIDE, columns - j),
            )  # fmt: skip
    else:
        wide = dot_columns(rows)
        for j in range(0, columns, wide):
            for i in range(0, rows, 4):
                multiply_dots(
                    p.dots, p.k, a + i * p.a_row * p.size, p.a_row,
                    b + j * p.b_column * p.size, p.b_column,
                    out + (i * c_row + j * c_column) * p.size, c_row, c_column,
                    min(4, rows - i), min(wide, columns - j),
                )  # fmt: skip
    if p.finish != FINAL:
        down, across = (columns, rows) if p.swap else (rows, columns)
        finish(p.finisher, p, out, at.addend, down, across)


def walk_blocks(
    p: Plan, out: int, a: int, b: int, addend: int, scratch: int, arena: int, lo: int, hi: int
) -> None:
    """Units [lo, hi): blocks, columns of them one after another; before that, panels of B."""
    size, panels = p.stored, -(-p.n // p.nr)
    left, right = (b, a) if p.swap else (a, b)
    packs = p.shared and lo >> PHASE_BITS == 0
    blocks = -(-panels // PANELS) if packs else p.down * p.across
    first = lo & ((1 << PHASE_BITS) - 1)
    for unit in range(first, first + hi - lo):
        item, block = unit // blocks, unit % blocks
        a_first, b_first, s = item_offsets(p, item)
        y = right + b_first * size
        packed = scratch + item * panels * p.nr * p.k * p.size
        if packs:
            j = block * PANELS * p.nr
            width = min(PANELS * p.nr, p.n - j)
            pack_panels(p, y + j * p.b_column * size, p.k, width, packed + j * p.k * p.size)
            continue
        i, j = block % p.down * p.tall, block // p.down * p.wide
        rows, columns = min(p.tall, p.m - i), min(p.wide, p.n - j)
        x = left + (a_first + i * p.a_row) * size
        y += j * p.b_column * size
        c = out + (item * p.m * p.n + (j * p.m + i if p.swap else i * p.n + j)) * size
        s += i * p.s_row + j * p.s_column
        corner = Corner(c, x, y, addend + s * size)
        if p.way == TILES:
            packed += j * p.k * p.size
            _block(p, corner, packed, arena, rows, columns)
        else:
            _thin_block(p, corner, rows, columns)


def item_offsets(p: Plan, item: int) -> tuple[int, int, int]:
    """Return where an item of a batch begins in A, B and the addend, in elements."""
    i2, rest = item % p.d2, item // p.d2
    i1, i0 = rest % p.d1, rest // p.d1
    return (
        i0 * p.a0 + i1 * p.a1 + i2 * p.a2,
        i0 * p.b0 + i1 * p.b1 + i2 * p.b2,
        i0 * p.s0 + i1 * p.s1 + i2 * p.s2,
    )


_call_walk = caller("riiiiiiii", "The `walker` called with a plan, addresses and a range.")


@functools.cache
def walker(kind: Kind, walk: Callable[..., None]) -> int:
    """The address of `walk_blocks` or `walk_in_place`, for plans of this kind: they are all of
    one.
    """

    def make() -> jit.Lowered:
        takes = (words.Record(kind), *[words.INT] * 8)
        # the loops are the tiles', which are written as they are to run
        walked = words.lowered_for(walk, "void", takes)
        return jit.Lowered(walked.modules, walked.entry, walked.inline, loops_only=True)

    return jit.load(make, walk.__qualname__)


def product_body(
    out: Array, a: Array, b: Array, addend: Array, p: Plan, scratch: Array, arena: Array, lo: int,
    hi: int,
) -> None:  # fmt: skip
    """The body of a product, with an addend or none."""
    _call_walk(
        p.walk, p, address(out), address(a), address(b), address(addend), address(scratch),
        address(arena), lo, hi,
    )  # fmt: skip


def turned_body(
    out: Array, b: Array, a: Array, addend: Array, p: Plan, scratch: Array, arena: Array, lo: int,
    hi: int,
) -> None:  # fmt: skip
    """`product_body` of operands that come in the other order."""
    product_body(out, a, b, addend, p, scratch, arena, lo, hi)
