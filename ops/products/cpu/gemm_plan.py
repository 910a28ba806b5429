"""The choice of a matrix product's plan: its way, the operands to pack, the blocks.

All is decided from sizes and strides alone:
- which operand lies along the vectors.  B does, unless it is cheaper to compute the transpose, out'
  = B' A', and to store it transposed: a thin A whose rows are contiguous, times a wide B stored by
  columns (the forward pass of a linear layer), would cost a transpose of all of B;
- whether a thin A does better without tiles: by dot products where both operands are contiguous
  along the depth, by streaming B where its rows are long;
- what is packed, and the blocks.  A tile takes A with any strides and B with contiguous rows.  So
  rows of A stay where they lie, columns are packed; B stays, is packed for each block, or once for
  all of them.  Of the cuts that may be good, the one is taken that costs least by `COSTS`, in which
  an uneven number of blocks counts, too.  No cut changes a sum: it goes over the depth in order.

Costs are cycles of a core.  A way's were measured on a Zen 4 (one vector of multiplications in
each), `COSTS` on a processor with 48 KiB and 2 MiB of cache (two vectors in each).
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import NamedTuple

from flowvm.launch import ARENA_BYTES
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


class Costs(NamedTuple):
    """The cycles that a kind of processor takes, as far as a cut into blocks changes them.

    An element is one of A or B that is packed, or read where it lies, for a block; `far` is a share
    of the multiplications.
    """

    copied: float  # an element of A, packed
    packed: float  # of B, packed into the arena
    shared: float  # of B, packed into scratch
    again: float  # of B, read from scratch by another block
    near: float  # of B, read where it lies
    far: float  # where rows of B share one or two groups of a cache's sets
    apart: float  # where they share four
    stored: float  # an element of the result, for each block of the depth but the first
    panel: bool  # a panel of B must be in the first cache: a tile's rows are too few to wait for it


# by bytes of a vector; those of 16 bytes are guessed from those of 32
COSTS = {
    64: Costs(0.8, 0.9, 1.4, 0.12, 0.3, 0.08, 0.05, 0.3, False),
    32: Costs(0.8, 0.9, 1.2, 0.12, 1.5, 0.3, 0.3, 0.3, True),
    16: Costs(0.8, 0.9, 1.2, 0.12, 1.5, 0.3, 0.3, 0.3, True),
}
SHALLOW = 64  # depth of products that take longer to store than to multiply, nearly
_LARGE = 2 * CHUNK  # multiplications from which several threads take part


def _evenness(units: int) -> float:
    """The cost of so many units for several threads, some of which may have nothing to do."""
    two, four = (-(-units // threads) * threads / units for threads in (2, 4))
    return 1 + 0.15 * (two - 1) + 0.05 * (four - 1)


def cut_up(
    p: Product, way: int, items: int, tile: TileShape, size: int, reduced: bool = False
) -> Cut:
    """Return how to pack a product and cut it into blocks; `size` is a panel element's size."""
    m, n, k = max(p.m, 1), max(p.n, 1), max(p.k, 1)
    if way == DOTS:
        return Cut(0, 0, 0, k, m, max(8, _up(CHUNK // 2 // (m * k), 8)))
    if way == STREAM:
        return Cut(0, 0, 0, k, m, max(WIDE, _up(CHUNK // 2 // (m * k), WIDE)))
    cuts = [
        _cut(p, pack_b, shared, items, tile, size, reduced, tall, wide)
        for pack_b, shared in _packings(p, items, tile, size, reduced)
        for tall in _heights(m, k, items * m * n * k, tile, pack_b)
        if m > tall or not shared
        for wide in _widths(n, k, items * m * n * k, size, pack_b, shared, tile)
    ]
    if len(cuts) == 1:
        return cuts[0]
    return min(cuts, key=lambda cut: _cost(p, cut, items, tile, size))


def _packings(
    p: Product, items: int, tile: TileShape, size: int, reduced: bool
) -> list[tuple[int, int]]:
    """The ways to have B: (pack_b, shared)."""
    packed = items * _up(p.n, tile.columns) * p.k * size
    large = p.m > 2 * tile.rows and packed <= SCRATCH and items * p.m * p.n * p.k > CHUNK
    if p.b_column != 1:
        pack = TRANSPOSED if p.b_step == 1 else COPIED
        return [(pack, 0), (pack, 1)] if large else [(pack, 0)]
    if reduced:
        return [(COPIED, 0), (COPIED, 1)] if large else [(COPIED, 0)]
    if p.n <= 2 * tile.columns or not _is_spread(p, size) or p.m <= 4 * tile.rows:
        return [(IN_PLACE, 0)]
    return [(IN_PLACE, 0), (COPIED, 0), (COPIED, 1)] if large else [(IN_PLACE, 0), (COPIED, 0)]


def _heights(m: int, k: int, work: int, tile: TileShape, pack_b: int) -> list[int]:
    """Rows of a block that are worth looking at."""
    if k <= SHALLOW and pack_b == IN_PLACE:  # results are stored, in few pages at a time
        return [min(m, _up(12 if k <= SHALLOW // 4 else 24, tile.rows))]
    if m <= 2 * tile.rows or work <= CHUNK:
        return [m]
    half = _up(-(-m // 2), tile.rows)  # for two threads
    return sorted({min(m, tall) for tall in (min(half, 96), 96, 192, 384)})


def _widths(
    n: int, k: int, work: int, size: int, pack_b: int, shared: int, tile: TileShape
) -> list[int]:
    """Columns of a block that are worth looking at."""
    most = ROW // size
    if k <= SHALLOW and pack_b == IN_PLACE:
        return [min(n, ROW)]
    if n <= 4 * tile.columns or work <= CHUNK:
        return [min(n, most)]
    half = max(min(n, most) // 2, 4 * tile.columns)  # for two threads
    return sorted({min(n, w) for w in (half, most, most * (1 + shared))})


def _cut(
    p: Product, pack_b: int, shared: int, items: int, tile: TileShape, size: int, reduced: bool,
    tall: int, wide: int,
) -> Cut:  # fmt: skip
    """A cut into blocks of about `tall` by `wide`, which are even ones."""
    m, n, k = max(p.m, 1), max(p.n, 1), max(p.k, 1)
    first, most = cache_bytes(1), ROW // size
    narrow = tile.columns if _costs(tile, size).panel and m > tile.rows else tile.rows
    deep = min(first * 3 // 4 // (narrow * size), most)
    if tall > 192 or (pack_b == IN_PLACE and _is_spread(p, size)):
        deep = min(deep, most // 2)
    deep = max(deep // 8 * 8, 8)
    deep = _up(-(-k // -(-k // deep)), 4)
    wide = _up(-(-n // -(-n // wide)), tile.columns)
    blocks = -(-m // tall)
    tall = _up(-(-m // blocks), tile.rows if blocks > 1 else 4)
    pack_a = IN_PLACE
    if reduced:
        pack_a = COPIED
    elif p.a_step == 1:
        if n >= 4 * tile.columns and conflicts(abs(p.a_row) * size, tile.rows):
            pack_a = COPIED
    elif n > (4 if p.a_row == 1 else 1) * tile.columns:
        pack_a = COPIED
    cut = Cut(pack_a, pack_b, int(shared and m > tall), deep, tall, wide)
    while _arena_bytes(cut, tile, size) > ARENA_BYTES:
        cut = cut._replace(wide=_up(cut.wide // 2, tile.columns))
    return cut


def _arena_bytes(cut: Cut, tile: TileShape, size: int) -> int:
    """Bytes that a block takes at most: what is packed, and the sums if they are staged."""
    wide = _up(cut.wide, tile.columns)
    a = _up(cut.tall, tile.rows) * cut.deep if cut.pack_a else 0
    b = wide * cut.deep if cut.pack_b and not cut.shared else 0
    return (a + b + cut.tall * wide) * size


def _is_spread(p: Product, size: int) -> bool:
    """Return True if a block of B, where it lies, is in too many pages."""
    return min(p.k, ROW // size) * abs(p.b_step) * size > PAGES


def conflicts(line: int, rows: int) -> bool:
    """Return True if lines so many bytes apart need more ways of the first cache than it has."""
    sets = 4096 // math.gcd(line, 4096)
    return rows * 4096 > cache_bytes(1) * sets


def _costs(tile: TileShape, size: int) -> Costs:
    return COSTS[tile.lanes * size]


def _cost(p: Product, cut: Cut, items: int, tile: TileShape, size: int) -> float:
    """The cycles of a cut, about."""
    c = _costs(tile, size)
    m, n, k = p.m, p.n, p.k
    down, across = -(-m // cut.tall), -(-n // cut.wide)
    multiplied = _up(m, 4) * _up(n, tile.lanes) * k / (2 * tile.lanes)
    total = multiplied + c.near * m * k * across / 4
    if cut.pack_a != IN_PLACE:
        total += c.copied * m * k * across
    if cut.pack_b == IN_PLACE:
        if _is_spread(p, size):  # and blocks find it in the second cache only if it is shallow
            total += c.near * n * k * (1 if k <= SHALLOW else down)
        line = abs(p.b_step) * size
        if conflicts(line, 64):
            total += (c.far if line % 2048 == 0 else c.apart) * multiplied
    elif cut.shared:
        total += (c.shared + c.again * down) * n * k
    else:
        total += c.packed * n * k * down
    total += c.stored * m * n * (-(-k // cut.deep) - 1)
    return total * (_evenness(items * down * across) if items * m * n * k > _LARGE else 1)


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
