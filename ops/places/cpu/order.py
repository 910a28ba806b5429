"""Kernels that put rows in order: the part [first, first + count) of each sorted row, with the
positions that its elements had.  `flowvm.ops.places.sort` makes the public functions of them.

An element becomes an integer key that has its order: the bits of a float, those of a negative one
flipped, so that NaN, whatever its sign, comes last, and -0 where 0 is.  Descending order takes the
complements of keys, which keeps equal elements in their order, as ascending does.  Keys are counted
from the smallest of the row, so that small numbers have few bits, and packed into one word with
their positions where both fit.

    up to RANKED elements   an element's place is how many packed keys are smaller: counted all
                            against all, which takes no branches and whole vectors
    longer                  radix sort, from the lowest digit up; only as many digits as the row's
                            keys have
    longer than ROW         the same by blocks, in phases, so that several threads sort one row:
                            blocks count a digit, then write to where the counts say

All of them are stable, and none depends on the number of threads.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from flowvm.launch import PHASE_BITS, Launch, View
from flowvm.meta.arrays import Array
from flowvm.meta.dtype import bool_, dtype_named, int64, uint8, uint64
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.kinds import Count, last_size
from flowvm.ops.declare.letters import unsplit
from flowvm.ops.declare.registry import op

Word = int | np.int64  # an integer of 64 bits, Python's or NumPy's
RANKED = 96  # elements that are ranked by counting
ROW = 1 << 15  # elements of a row that one thread sorts in its arena
BLOCK = 1 << 16  # elements of a block of a longer row, at least
BLOCKS = 64  # at most
_TOP = -(1 << 63)
DIGIT = 8  # bits: where the elements of each digit go fits the first-level cache
INLINE_ALWAYS = True


# --- keys -------------------------------------------------------------------------------------


def key_view(meta: TensorMeta, shape: tuple[int, ...]) -> View:
    """The elements as the integers that keys are made of."""
    if meta.dtype.is_floating_point:
        return View(dtype_named(f"int{8 * meta.dtype.itemsize}"), shape)
    return View(uint8 if meta.dtype is bool_ else meta.dtype, shape)


class Order(NamedTuple):
    """The order of the keys: elements of one dtype, ascending or descending."""

    flip: int  # the bits below the sign, of floats; 0 of integers
    infinity: int  # its bits; 0 of integers
    down: int  # bits that are the other way round: all for descending order, the highest of uint64


def order_of(meta: TensorMeta, down: bool = False) -> Order:
    """The order of the elements of a tensor."""
    if not meta.dtype.is_floating_point:
        top = _TOP if meta.dtype is uint64 else 0  # its numbers from there on are the larger ones
        return Order(0, 0, -int(down) ^ top)
    infinity = int(meta.dtype.stored(np.array(math.inf)).view(f"i{meta.dtype.itemsize}"))
    return Order((1 << (8 * meta.dtype.itemsize - 1)) - 1, infinity, -int(down))


def at_hand(o: Order) -> Order:
    """The numbers of an order that lies in memory: a loop that writes would read them each time."""
    return Order(o.flip, o.infinity, o.down)


def key_of(bits: Word, o: Order) -> Word:
    """An integer that has the order of the element with these bits."""
    b: Word = np.int64(bits)
    key = b ^ ((b >> 63) & o.flip)
    key = 0 if (key == -1 and o.flip != 0) else key  # -0
    key = o.flip if (b & o.flip) > o.infinity else key  # NaN
    return key ^ o.down


def _bits_of(key: Word, o: Order) -> Word:
    """Return the bits that have this key; 0 and NaN have one key for several bits."""
    k = key ^ o.down
    return k ^ ((k >> 63) & o.flip)


def minus(a: Word, b: Word) -> Word:
    """a - b, wrapping around: LLVM may take it that a signed difference never does."""
    return np.int64(np.uint64(a) - np.uint64(b))


def width_of(span: Word) -> int:
    """Return the number of bits that an unsigned number has."""
    width = 0
    if span < 0:
        return 64
    while span > 0:
        width, span = width + 1, span >> 1
    return width


def block_of(n: int) -> int:
    """The elements of a block of a long row."""
    return max(BLOCK, (n + BLOCKS - 1) // BLOCKS)


def digits_of(itemsize: int) -> int:
    """The most digits of a key."""
    return (8 * itemsize + DIGIT - 1) // DIGIT


def limits_of(x: Array, o: Order) -> tuple[Word, Word]:
    low: Word
    high: Word
    low, high = np.int64(0x7FFFFFFFFFFFFFFF), np.int64(-0x7FFFFFFFFFFFFFFF - 1)
    for i in range(len(x)):
        key = key_of(x[i], o)
        low, high = min(low, key), max(high, key)
    return low, high


def _write(
    values: Array,
    indices: Array,
    x: Array,
    keys: Array,
    places: Array,
    packed: int,
    low: Word,
    o: Order,
) -> None:
    """Values and positions of sorted keys; `packed` bits of a key are its position (0: not)."""
    count = len(values)
    if packed > 0:
        mask = (1 << packed) - 1
        for i in range(count):
            word = keys[i]
            key = np.int64((np.uint64(word) >> np.uint64(packed)) + np.uint64(low))
            values[i] = values.dtype.type(_bits_of(key, o))
            indices[i] = word & mask
    else:
        for i in range(count):
            key = np.int64(np.uint64(keys[i]) + np.uint64(low))
            values[i] = values.dtype.type(_bits_of(key, o))
            indices[i] = places[i]
    if o.flip != 0:  # 0 may have been -0, and NaN is not one value
        _copy_equal(values, indices, x, 0)
        _copy_equal(values, indices, x, o.flip)


def _copy_equal(values: Array, indices: Array, x: Array, bits: int) -> None:
    """Take the elements with these bits, which are neighbours, from where they came."""
    at = 0
    for i in range(len(values)):
        at += values[i] == bits
    if at == 0:
        return
    for i in range(len(values)):
        if values[i] == bits:
            values[i] = x[indices[i]]


# --- rows in an arena ---------------------------------------------------------------------------


def _ranked(values: Array, indices: Array, x: Array, words: Array, n: int, first: int) -> None:
    """`words` are n packed keys, filled up with larger ones to a multiple of 8; then free room."""
    whole = (n + 7) // 8 * 8
    keys, ranks = words[:whole], words[whole : 2 * whole]
    for i in range(whole):
        ranks[i] = -first
    for j in range(0, whole, 4):
        a, b, c, d = keys[j], keys[j + 1], keys[j + 2], keys[j + 3]
        for i in range(whole):
            k = keys[i]
            ranks[i] += np.int64(a < k) + np.int64(b < k) + np.int64(c < k) + np.int64(d < k)
    count = len(values)
    for i in range(n):
        rank = ranks[i]
        if 0 <= rank < count:
            values[rank] = x[i]
            indices[rank] = i


def _short_body(
    values: Array,
    indices: Array,
    x: Array,
    first: int,
    order: Order,
    arena: Array,
    lo: int,
    hi: int,
) -> None:
    """Rows of up to RANKED elements of 32 bits at most, whose keys leave room for their places."""
    n, o = x.shape[1], at_hand(order)
    words, packed = arena.view(np.int64), max(width_of(n - 1), 1)
    for r in range(lo, hi):
        row = x[r]
        low = limits_of(row, o)[0]
        for i in range(n):
            words[i] = minus(key_of(row[i], o), low) << packed | i
        for i in range(n, (n + 7) // 8 * 8):
            words[i] = np.int64(0x7FFFFFFFFFFFFFFF)
        _ranked(values[r], indices[r], row, words, n, first)


def _encode(
    keys: Array, places: Array, x: Array, begin: int, end: int, packed: int, low: Word, o: Order
) -> None:
    """The keys of elements [begin, end), with their places in `packed` bits, or beside them."""
    for k in range(end - begin):
        i = begin + k
        key = minus(key_of(x[i], o), low) << packed
        keys[i] = key | i if packed > 0 else key
    if packed == 0:
        for i in range(begin, end):
            places[i] = i


def _spread(
    others: Array,
    other_places: Array,
    keys: Array,
    places: Array,
    starts: Array,
    shift: int,
    mask: int,
    packed: bool,
) -> None:
    """Write keys where their digit's next one goes."""
    if packed:
        for i in range(len(keys)):
            key = keys[i]
            digit = np.uint64((key >> shift) & mask)
            at = starts[digit]
            others[np.uint64(at)] = key
            starts[digit] = at + 1
    else:
        for i in range(len(keys)):
            key = keys[i]
            digit = np.uint64((key >> shift) & mask)
            at = starts[digit]
            others[np.uint64(at)] = key
            other_places[np.uint64(at)] = places[i]
            starts[digit] = at + 1


def _counted(counts: Array, keys: Array, shift: int) -> bool:
    """Store where the elements of each digit begin; return False if all elements have one digit."""
    mask = len(counts) - 1
    for d in range(len(counts)):
        counts[d] = 0
    for i in range(len(keys)):
        counts[np.uint64((keys[i] >> shift) & mask)] += 1
    start = 0
    for d in range(len(counts)):
        size = counts[d]
        if size == len(keys):
            return False
        counts[d] = start
        start += size
    return True


def _rows_body(
    values: Array,
    indices: Array,
    x: Array,
    first: int,
    order: Order,
    arena: Array,
    lo: int,
    hi: int,
) -> None:
    n, count, o = x.shape[1], values.shape[1], at_hand(order)
    words = arena.view(np.int64)
    counts = words[: 1 << DIGIT]
    room = words[1 << DIGIT :]
    place_bits = max(width_of(n - 1), 1)
    for r in range(lo, hi):
        row = x[r]
        low, high = limits_of(row, o)
        width = width_of(minus(high, low))
        packed = place_bits if width + place_bits < 64 else 0
        keys, others = room[:n], room[n : 2 * n]
        places, other_places = room[2 * n : 3 * n], room[3 * n : 4 * n]
        _encode(keys, places, row, 0, n, packed, low, o)
        if packed > 0 and n <= RANKED:
            for i in range(n, (n + 7) // 8 * 8):
                room[i] = np.int64(0x7FFFFFFFFFFFFFFF)
            _ranked(values[r], indices[r], row, room, n, first)
            continue
        for shift in range(packed, packed + width, DIGIT):
            if _counted(counts, keys, shift):
                _spread(
                    others, other_places, keys, places, counts,
                    shift, (1 << DIGIT) - 1, packed > 0,
                )  # fmt: skip
                keys, others = others, keys
                places, other_places = other_places, places
        end = first + count
        _write(values[r], indices[r], row, keys[first:end], places[first:end], packed, low, o)


# --- rows in blocks -----------------------------------------------------------------------------


def _starts(starts: Array, counts: Array, block: int) -> None:
    """Store where this block's elements of each digit go, from the counts of the row's blocks."""
    size = len(starts)
    blocks = len(counts) // size
    for d in range(size):
        starts[d] = 0
    for b in range(block):
        for d in range(size):
            starts[d] += counts[b * size + d]
    before = 0
    for d in range(size):
        total = starts[d]
        for b in range(block, blocks):
            total += counts[b * size + d]
        starts[d] += before
        before += total


def _blocks_body(
    values: Array,
    indices: Array,
    x: Array,
    first: int,
    order: Order,
    scratch: Array,
    arena: Array,
    lo: int,
    hi: int,
) -> None:
    """Phase 0 finds the limits of blocks.  Phase 1 + 2s counts digit s, phase 2 + 2s writes in its
    order; phases of digits that the keys do not have do nothing.  The last phase decodes.
    """
    (rows, n), o = x.shape, at_hand(order)
    size, count = rows * n, values.shape[1]
    block, steps = block_of(n), digits_of(x.itemsize)
    blocks = (n + block - 1) // block
    phase, mask = lo >> PHASE_BITS, (1 << PHASE_BITS) - 1
    words = scratch.view(np.int64)
    limits, at = words[: 2 * rows * blocks], 2 * rows * blocks
    counts, at = words[at : at + (rows * blocks << DIGIT)], at + (rows * blocks << DIGIT)
    place_bits = max(width_of(n - 1), 1)
    for unit in range(lo & mask, (lo & mask) + hi - lo):
        r, b = unit // blocks, unit % blocks
        begin, end = b * block, min(n, (b + 1) * block)
        row = x[r]
        if phase == 0:
            low, high = limits_of(row[begin:end], o)
            limits[2 * unit], limits[2 * unit + 1] = low, high
            continue
        low, high = limits[2 * r * blocks], limits[2 * r * blocks + 1]
        for other in range(r * blocks, (r + 1) * blocks):
            low, high = min(low, limits[2 * other]), max(high, limits[2 * other + 1])
        width = width_of(minus(high, low))
        packed = place_bits if width + place_bits <= 64 else 0
        passes = max(1, (width + DIGIT - 1) // DIGIT)
        step = (phase - 1) // 2
        even = step % 2 == 0 if step < steps else passes % 2 == 0  # whose turn it is
        near, far = at + r * n, at + size + r * n  # keys that are read, and those that are written
        if not even:
            near, far = far, near
        keys, others = words[near : near + n], words[far : far + n]
        near, far = (near + 2 * size, far + 2 * size) if packed == 0 else (near, far)
        places, other_places = words[near : near + n], words[far : far + n]
        if step == steps:
            start, stop = max(begin, first), min(end, first + count)
            if start < stop:
                _write(
                    values[r, start - first : stop - first],
                    indices[r, start - first : stop - first],
                    row, keys[start:stop], places[start:stop], packed, low, o,
                )  # fmt: skip
            continue
        if step >= passes:
            continue
        own = counts[unit << DIGIT : unit + 1 << DIGIT]
        shift = packed + step * DIGIT
        if phase % 2 == 1:
            if step == 0:
                _encode(keys, places, row, begin, end, packed, low, o)
            own[:] = 0
            for i in range(begin, end):
                own[np.uint64((keys[i] >> shift) & ((1 << DIGIT) - 1))] += 1
        else:
            starts = arena.view(np.int64)[: 1 << DIGIT]
            _starts(starts, counts[r * blocks << DIGIT : (r + 1) * blocks << DIGIT], b)
            _spread(
                others, other_places, keys[begin:end], places[begin:end], starts,
                shift, (1 << DIGIT) - 1, packed > 0,
            )  # fmt: skip


# --- the op -------------------------------------------------------------------------------------


@op(
    "x -> values, indices",
    name="sort",
    cuda="order:sort",
    letters=unsplit,
    takes=lambda metas, v: 0 <= v["first"] <= v["first"] + v["count"] <= last_size(metas[0]),
)
def ordered_rows(x: TensorMeta, first: int, count: Count, descending: bool) -> Launch:
    """Elements first to first + count of the sorted last dimension: values and positions."""
    n = x.shape[-1] if x.ndim else 1
    rows = x.numel // n if n else math.prod(x.shape[:-1])
    shape = (*x.shape[:-1], count) if x.ndim else ()
    outputs = x.with_shape(shape), x.with_shape(shape, int64)
    views = key_view(x, (rows, count)), View(int64, (rows, count)), key_view(x, (rows, n))
    consts = (first, order_of(x, descending))
    if n <= ROW:
        arena = 8 * ((1 << DIGIT) + 4 * (n + 8))
        grain = max(1, 4096 // max(n, 1))
        body = _short_body if n <= RANKED and x.dtype.itemsize <= 4 else _rows_body
        return Launch(outputs, body, views, consts, rows, grain, arena=arena)
    wide = x.dtype.itemsize == 8
    steps = digits_of(x.dtype.itemsize)
    units = rows * -(-n // block_of(n))
    return Launch(
        outputs,
        _blocks_body,
        views,
        consts,
        units,
        scratch=8 * (2 * units + (units << DIGIT) + x.numel * (4 if wide else 2)),
        arena=8 << DIGIT,
        phases=((units, 1),) * (2 * steps + 1),
    )
