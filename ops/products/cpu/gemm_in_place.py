"""The walk of products without packing, staging or work at the end.

Operands are read, and results stored, where they lie.

`walk_blocks` does those, too, in the same order.  But small products and products of plain matrices
up to a few hundred rows are such, and this takes a fifth of the time to compile, which is what a
session's first product waits for.
"""

from __future__ import annotations

from flowvm.ops.products.cpu.gemm_epilogue import FINAL
from flowvm.ops.products.cpu.gemm_kernels import TILES, Plan, item_offsets
from flowvm.ops.products.cpu.tile import START_ROWS, multiply_tile


def is_in_place(p: Plan) -> bool:
    """Return True if nothing of a product is packed, staged or left to the end."""
    packed = p.pack_a or p.pack_b or p.shared or p.staged
    return p.way == TILES and p.finish == FINAL and not packed


def _block_in_place(
    p: Plan, out: int, a: int, b: int, addend: int, top: int, left: int
) -> None:  # fmt: skip
    """The block whose corner is at this row and column of an item's result."""
    size = p.size
    bottom, end = min(top + p.tall, p.m), min(left + p.wide, p.n)
    for k in range(0, max(p.k, 1), p.deep):
        depth = min(p.deep, p.k - k)
        for j in range(left, end, p.nr):
            right = b + (k * p.b_step + j * p.b_column) * size
            for i in range(top, bottom, p.mr):
                tile = out + (i * p.n + j) * size
                kind, start, start_row = START_ROWS, tile, p.n
                if k == 0:
                    start = addend + (i * p.s_row + j * p.s_column) * size
                    kind, start_row = p.start, p.s_row
                multiply_tile(
                    p.tile, depth, a + (i * p.a_row + k * p.a_step) * size, p.a_row, p.a_step,
                    right, p.b_step, 0, tile, p.n, kind, start, start_row, min(p.mr, bottom - i),
                    min(p.nr, end - j),
                )  # fmt: skip


def walk_in_place(
    p: Plan, out: int, a: int, b: int, addend: int, scratch: int, arena: int, lo: int, hi: int
) -> None:
    """Units [lo, hi): blocks, columns of them one after another."""
    size, blocks = p.size, p.down * p.across
    for unit in range(lo, hi):
        item, block = unit // blocks, unit % blocks
        a_first, b_first, s_first = item_offsets(p, item)
        row, column = block % p.down * p.tall, block // p.down * p.wide
        _block_in_place(
            p, out + item * p.m * p.n * size, a + a_first * size, b + b_first * size,
            addend + s_first * size, row, column,
        )  # fmt: skip
