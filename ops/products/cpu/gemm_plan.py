"""The choice of a matrix product's plan: its way, the operands to pack, the blocks.

All is decided from sizes and strides alone:
- which operand lies along the vectors.  B does, unless it is cheaper to compute the transpose, out'
  = B' A', and to store it transposed: a thin A whose rows are contiguous, times a wide B stored by
  columns (the forward pass of a linear layer), would cost a transpose of all of B;
- whether a thin A does better without tiles: by dot products where both operands are contiguous
  along the depth, by streaming B where its rows are long;
- what is packed.  A tile takes A with any strides and B with contiguous rows, so small operands
  stay where they are; larger ones are packed so that a panel lies in few pages and cache sets;
- blocks: a depth at which a tile's rows of A fit three quarters of the first cache, as many rows as
  fit a quarter of the second, an even number of blocks of them.

The numbers were measured on a Zen 4 (32 KiB and 1 MiB of cache), the costs are cycles of a core
that does one vector of multiplications in each.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple

from flowvm.ops.products.cpu.gemm_kernels import (
    COPIED,
    DOTS,
    IN_PLACE,
    STREAM,
    TILES,
    TRANSPOSED,
    WIDE,
)
from flowvm.ops.products.cpu.tile_shape import TileShape

BLOCK = 1 << 24  # multiplications of a block at most, about: a third of a millisecond
CHUNK = 1 << 20  # multiplications that are worth handing to another thread
ROW = 2048  # bytes that a block is deep and wide at most: the arena holds ROW * ROW / size
PAGES = 1 << 18  # bytes that a panel of B may be spread over without being packed
SCRATCH = 1 << 26  # bytes of packed panels at most; beyond, each block packs its own


@functools.cache
def cache_bytes(level: int) -> int:
    """Return the size of a core's data cache of level 1 or 2, or the least of most processors."""
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            words = [(folder / name).read_text().strip() for name in ("level", "type", "size")]
        except OSError:
            continue
        if words[0] == str(level) and words[1] != "Instruction" and words[2].endswith("K"):
            return int(words[2][:-1]) << 10
    return {1: 32 << 10, 2: 256 << 10}[level]


# --- the plan -----------------------------------------------------------------------------------


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


# cycles to transpose an element, to gather one, to add up a dot product, to call a function
_TRANSPOSED, _GATHERED, _ADDED_UP, _CALL = 0.35, 1.5, 4.0, 60.0
_THIN = 4  # rows of A up to which B is streamed row by row


def _tiles_cost(m: int, n: int, k: int, step: int, column: int, tile: TileShape) -> float:
    """The cost of tiles with B's strides `step` and `column`."""
    ways = _TRANSPOSED if step == 1 else _GATHERED
    packing = 0.0 if column == 1 or n == 1 else ways * n * k
    return _up(m, 4) * _up(n, tile.lanes) * k / tile.lanes + packing


def _dots_cost(m: int, n: int, k: int, tile: TileShape) -> float:
    return m * n * (_up(k, tile.lanes) / tile.lanes * (1 + 0.25 / max(min(m, 4), 1)) + _ADDED_UP)


class Product(NamedTuple):
    """A product of two sides, as it will be computed."""

    m: int
    n: int
    k: int
    a_row: int
    a_step: int
    b_step: int
    b_column: int

    @property
    def other(self) -> Product:
        """The transposed product."""
        return Product(self.n, self.m, self.k, self.b_column, self.b_step, self.a_step, self.a_row)


def best_way(p: Product, tile: TileShape, reduced: bool) -> tuple[int, int]:
    """(way, swap) of the cheapest way; of tiles for reduced floats, whose packing converts them."""
    o, store = p.other, _TRANSPOSED * p.m * p.n + _CALL
    if reduced:
        return TILES, int(p.b_column != 1 and o.b_column == 1)
    if p.m <= _THIN and p.b_column == 1 and p.n >= WIDE and p.k >= 8:
        return STREAM, 0
    if o.m == 1 and o.b_column == 1 and o.n >= WIDE and o.k >= 8:
        return STREAM, 1
    costs = {
        (TILES, 0): _tiles_cost(p.m, p.n, p.k, p.b_step, p.b_column, tile),
        (TILES, 1): _tiles_cost(o.m, o.n, o.k, o.b_step, o.b_column, tile) + store,
    }
    if p.a_step == 1 and p.b_step == 1:
        costs[DOTS, int(p.n < p.m)] = _dots_cost(min(p.m, p.n), max(p.m, p.n), p.k, tile)
    return min(costs, key=lambda way: costs[way])


class Cut(NamedTuple):
    pack_a: int
    pack_b: int
    shared: int
    deep: int
    tall: int
    wide: int


def cut_up(
    p: Product, way: int, items: int, tile: TileShape, size: int, reduced: bool = False
) -> Cut:
    """Return how to pack a product and cut it into blocks; `size` is a panel element's size."""
    m, n, k = max(p.m, 1), max(p.n, 1), max(p.k, 1)
    if way == DOTS:
        return Cut(0, 0, 0, k, m, max(8, _up(CHUNK // 2 // (m * k), 8)))
    if way == STREAM:
        return Cut(0, 0, 0, k, m, max(WIDE, _up(CHUNK // 2 // (m * k), WIDE)))
    first, second = cache_bytes(1), cache_bytes(2)
    most = ROW // size
    deep = max(min(first * 3 // 4 // (tile.rows * size), most) // 8 * 8, 8)
    deep = _up(-(-k // -(-k // deep)), 4)
    wide = _up(-(-n // -(-n // most)), tile.columns)
    tall = max(min(second // 4 // (deep * size), 96, BLOCK // (wide * deep)), 48)
    blocks = -(-m // tall)
    if m <= 192 and (items > 1 or m * n * k <= CHUNK):
        blocks = 1
    tall = _up(-(-m // (blocks + blocks % 2 if blocks > 1 else 1)), 4)
    line = abs(p.b_step) * size
    far = n > 2 * tile.columns and deep * line > PAGES
    if p.b_column != 1:
        pack_b = TRANSPOSED if p.b_step == 1 else COPIED
    else:
        pack_b = COPIED if far and m > 4 * tile.rows else IN_PLACE
    if pack_b == IN_PLACE and far and line >= 2048:
        deep = min(deep, 64)  # so that the pages of a panel stay known from one to the next
    if reduced and pack_b == IN_PLACE:
        pack_b = COPIED
    pack_a = IN_PLACE
    if reduced:
        pack_a = COPIED
    elif p.a_step == 1:
        if n >= 4 * tile.columns and (k * size >= 2048 or items > 1):
            pack_a = COPIED
    elif n > (4 if p.a_row == 1 else 1) * tile.columns:
        pack_a = COPIED
    packed = items * _up(n, tile.columns) * k * size
    shared = int(pack_b != IN_PLACE and m > tall and packed <= SCRATCH)
    return Cut(pack_a, pack_b, shared, deep, tall, wide)


def functions_of(way: int, swap: int, cut: Cut, reduced: bool) -> frozenset[str]:
    """Return the names of the `TileFunctions` that a product calls."""
    if way != TILES:
        return frozenset(("dots",) if way == DOTS else ("stream",))
    called = {
        "tile": True,
        "copy": cut.pack_a != IN_PLACE or cut.pack_b == COPIED,
        "transpose": cut.pack_b == TRANSPOSED,
        "store": reduced and not swap,
        "store_transposed": bool(swap),
    }
    return frozenset(name for name, is_called in called.items() if is_called)
