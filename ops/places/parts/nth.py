"""The element that sorting a row would put in one place, without sorting it.

The digits of the element's key (see `flowvm.ops.places.cpu.order`) are found from the highest
down.  Blocks of the row count a digit, which says in which of its values the element is; they keep
the elements that have it and count the next.  So every digit but the first is one of fewer and
fewer elements.

Equal elements keep their order, as they do in `sort`.
"""

from __future__ import annotations

import math

import numpy as np

from flowvm.launch import PHASE_BITS, Launch, View
from flowvm.meta.arrays import Array
from flowvm.meta.dtype import int64
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.kinds import last_size
from flowvm.ops.declare.letters import unsplit
from flowvm.ops.declare.registry import op
from flowvm.ops.places.cpu.order import (
    DIGIT,
    Order,
    at_hand,
    block_of,
    digits_of,
    key_of,
    key_view,
    limits_of,
    minus,
    order_of,
    width_of,
)

NTH_FROM = 129  # elements; a shorter row is rather sorted
VALUES = 1 << DIGIT
# words of a block: its limits, how many elements it keeps, which of those that all blocks keep is
# looked for, and the counts of two digits: one is read while the next is written
LOW, HIGH, KEPT, PLACE, COUNTS = 0, 1, 2, 3, 4
WORDS = COUNTS + 2 * VALUES


def _chosen(words: Array, place: int, level: int) -> tuple[int, int]:
    """The digit of the element in `place`, and how many elements have a smaller one."""
    before = 0
    for digit in range(VALUES):
        count = 0
        for at in range(COUNTS + level % 2 * VALUES + digit, len(words), WORDS):
            count += words[at]
        if place < before + count:
            return digit, before
        before += count
    return VALUES - 1, before


def _keep(
    keys: Array, places: Array, length: int, shift: int, digit: int, begin: int, fresh: bool
) -> int:
    """Move the keys that have the digit to the front, with their places in the row; their number.

    fresh   key i is that of place begin + i
    """
    count = 0
    for i in range(length):
        key = keys[i]
        place = begin + i if fresh else places[i]
        keys[np.uint64(count)], places[np.uint64(count)] = key, place
        count += ((key >> shift) & (VALUES - 1)) == digit
    return count


def _index_of(keys: Array, count: int, digit: int, place: int) -> int:
    """The place-th of the keys that end in the digit."""
    for i in range(count):
        if keys[i] & (VALUES - 1) == digit:
            if place == 0:
                return i
            place -= 1
    return 0


def _nth_body(
    values: Array,
    indices: Array,
    x: Array,
    nth: int,
    order: Order,
    scratch: Array,
    lo: int,
    hi: int,
) -> None:
    """Phase 0 finds limits, phase 1 makes keys and counts the first digit, phase 1 + s the digit s;
    the last one takes the element.
    """
    (rows, n), o = x.shape, at_hand(order)
    block, steps = block_of(n), digits_of(x.itemsize)
    blocks = (n + block - 1) // block
    phase, mask = lo >> PHASE_BITS, (1 << PHASE_BITS) - 1
    room = scratch.view(np.int64)
    head = rows * blocks * WORDS
    for unit in range(lo & mask, (lo & mask) + hi - lo):
        r, b = unit // blocks, unit % blocks
        begin, end = b * block, min(n, (b + 1) * block)
        row = x[r, begin:end]
        words = room[r * blocks * WORDS : (r + 1) * blocks * WORDS]
        own = words[b * WORDS : (b + 1) * WORDS]
        if phase == 0:
            own[LOW], own[HIGH] = limits_of(row, o)
            continue
        low, high = words[LOW], words[HIGH]
        for other in range(blocks):
            low = min(low, words[other * WORDS + LOW])
            high = max(high, words[other * WORDS + HIGH])
        levels = max(1, (width_of(minus(high, low)) + DIGIT - 1) // DIGIT)
        level = phase - 1
        if level >= levels and level < steps:
            continue
        level = min(level, levels)
        at = head + 2 * (r * n + begin)
        keys, places = room[at : at + len(row)], room[at + len(row) : at + 2 * len(row)]
        counted = own[COUNTS + level % 2 * VALUES : COUNTS + (level % 2 + 1) * VALUES]
        if level == 0:
            own[KEPT], own[PLACE] = len(row), nth
            for i in range(len(row)):
                keys[i] = minus(key_of(row[i], o), low)
        else:
            digit, before = _chosen(words, own[PLACE], level - 1)
            own[PLACE] -= before
            shift = (levels - level) * DIGIT
            if level == levels:
                place = own[PLACE]
                for other in range(b):
                    at = other * WORDS + COUNTS + (level - 1) % 2 * VALUES
                    place -= words[at + digit]
                if 0 <= place < own[COUNTS + (level - 1) % 2 * VALUES + digit]:
                    k = _index_of(keys, own[KEPT], digit, place)
                    at = begin + k if level == 1 else places[k]
                    values[r], indices[r] = x[r, at], at
                continue
            own[KEPT] = _keep(keys, places, own[KEPT], shift, digit, begin, level == 1)
        counted[:] = 0
        shift = (levels - 1 - level) * DIGIT
        for i in range(own[KEPT]):
            counted[np.uint64((keys[i] >> shift) & (VALUES - 1))] += 1


@op(
    "x -> value, index",
    name="kthvalue",
    cuda="selection:kthvalue",
    letters=unsplit,
    takes=lambda metas, v: 0 <= v["nth"] < last_size(metas[0]),
)
def nth_of_rows(x: TensorMeta, nth: int) -> Launch:
    """Element `nth` of the sorted last dimension, which is gone from the result: value, position.

    Of a 0-d tensor it is that of one element.
    """
    n = x.shape[-1] if x.ndim else 1
    rows = math.prod(x.shape[:-1])
    shape = x.shape[:-1]
    views = key_view(x, (rows,)), View(int64, (rows,)), key_view(x, (rows, n))
    steps = digits_of(x.dtype.itemsize)
    units = rows * -(-n // block_of(n))
    grain = max(1, 8192 // n)
    return Launch(
        (x.with_shape(shape), x.with_shape(shape, int64)),
        _nth_body,
        views,
        (nth, order_of(x)),
        units,
        grain,
        scratch=8 * (units * WORDS + 2 * x.numel),
        phases=((units, grain),) * (steps + 1),
    )
