"""The first few of long rows, or one element, without sorting them: `kthvalue` and `topk`.

The digits of the key of the last element wanted are found from the highest down: each counts the
elements that have the digits found so far.  What comes before that element is collected and sorted
by itself.  Short rows, and many elements of long ones, are sorted.
"""

from __future__ import annotations

import numpy as np
from numba import cuda

from flowvm.cuda.launch import Const, CudaLaunch, Operand, Scratch
from flowvm.launch import Launch, View
from flowvm.meta.arrays import Array
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.declare.cuda.steps import consts, flat_step
from flowvm.ops.places.cpu.order import Order, key_of, key_view, order_of
from flowvm.ops.places.cuda.order import SHORT, bits_of, power_from, short, sort_pairs, sorted_rows
from flowvm.ops.places.cuda.prefix import (
    EACH,
    MOST_WARPS,
    before_in_block,
    own_range,
    prefix_room,
    prefix_steps,
    tile_step,
    tiles_of,
)

Metas = tuple[TensorMeta, ...]
DIGIT = 8
VALUES = 1 << DIGIT

# words of a row: the digits found so far, in their places; how many of the elements with these
# digits come before the one that is looked for; the elements collected so far; then how many have
# each value of the next digit
FOUND, BEFORE, TAKEN, COUNTS = 0, 1, 2, 3
WORDS = COUNTS + VALUES


def _clear(words: Array, nth: int) -> None:
    for i in range(cuda.grid(1), len(words), cuda.gridsize(1)):
        words[i] = nth if i % WORDS == BEFORE else 0


def _count_digit(
    words: Array, x: Array, tiles: int, shift: int, top: int, above: int, order: Order
) -> None:
    """Count the digits of the elements whose higher digits are the ones found so far."""
    digit_counts = cuda.shared.array(VALUES, np.int32)
    row, tile, n = cuda.blockIdx.x // tiles, cuda.blockIdx.x % tiles, x.shape[1]
    own = words[row * WORDS : (row + 1) * WORDS]
    for d in range(cuda.threadIdx.x, VALUES, cuda.blockDim.x):
        digit_counts[d] = 0
    cuda.syncthreads()
    for k in range(EACH):
        i = (tile * EACH + k) * cuda.blockDim.x + cuda.threadIdx.x
        if i < n:
            key = np.int64(key_of(x[row, i], order))
            if ((key ^ own[FOUND]) & above) == 0:
                cuda.atomic.add(digit_counts, ((key >> shift) & (VALUES - 1)) ^ top, 1)
    cuda.syncthreads()
    for d in range(cuda.threadIdx.x, VALUES, cuda.blockDim.x):
        if digit_counts[d] != 0:
            cuda.atomic.add(own, COUNTS + d, np.int64(digit_counts[d]))


def _choose_digit(words: Array, shift: int, top: int, negative: int) -> None:
    """The digit of the element: a block goes through the counts of one row.

    negative   the digit's bits from which on the key is negative, which is so for the highest digit
    """
    room = cuda.shared.array(MOST_WARPS, np.int64)
    own = words[cuda.blockIdx.x * WORDS : (cuda.blockIdx.x + 1) * WORDS]
    each = VALUES // cuda.blockDim.x
    first, total, place = cuda.threadIdx.x * each, np.int64(0), own[BEFORE]
    for d in range(first, first + each):
        total += own[COUNTS + d]
    before, _ = before_in_block(room, total)
    for d in range(first, first + each):
        count = own[COUNTS + d]
        own[COUNTS + d] = 0
        if before <= place and place < before + count:
            raw = d ^ top
            own[FOUND] |= np.int64(raw - VALUES if raw >= negative else raw) << shift
            own[BEFORE] = place - before
        before += count


def _count_equal(counts: Array, words: Array, x: Array, tiles: int, order: Order) -> None:
    """Count the elements of each tile whose key is the one that was found."""
    room = cuda.shared.array(MOST_WARPS, np.int64)
    row, tile = cuda.blockIdx.x // tiles, cuda.blockIdx.x % tiles
    target, equal = words[row * WORDS + FOUND], np.int64(0)
    first, end = own_range(x.shape[1], tile)
    for i in range(first, end):
        equal += 1 if key_of(x[row, i], order) == target else 0
    _, total = before_in_block(room, equal)
    if cuda.threadIdx.x == 0:
        counts[cuda.blockIdx.x] = total


def _collect(
    keys: Array, places: Array, counts: Array, words: Array, x: Array, tiles: int, order: Order
) -> None:
    """The elements before the one that was found, in any order, then the first ones equal to it.

    With one place a row, that is the element itself.
    """
    room = cuda.shared.array(MOST_WARPS, np.int64)
    row, tile, most = cuda.blockIdx.x // tiles, cuda.blockIdx.x % tiles, keys.shape[1]
    own = words[row * WORDS : (row + 1) * WORDS]
    target, equal = own[FOUND], np.int64(0)
    first, end = own_range(x.shape[1], tile)
    for i in range(first, end):
        equal += 1 if key_of(x[row, i], order) == target else 0
    before, _ = before_in_block(room, equal)
    # the last place of the row belongs to equal element number own[BEFORE]
    before += counts[cuda.blockIdx.x] - counts[row * tiles] + most - 1 - own[BEFORE]
    for i in range(first, end):
        key = np.int64(key_of(x[row, i], order))
        if key == target:
            if 0 <= before and before < most:
                keys[row, before], places[row, before] = key, i
            before += 1
        elif key < target and most > 1:
            k = cuda.atomic.add(own, TAKEN, np.int64(1))
            keys[row, k], places[row, k] = key, i


def _finish(
    values: Array, indices: Array, x: Array, keys: Array, places: Array, width: int
) -> None:
    """Sort the elements that were collected of a row."""
    room = cuda.shared.array(SHORT, np.int64)
    order = cuda.shared.array(SHORT, np.int64)
    row, count = cuda.blockIdx.x, keys.shape[1]
    for s in range(cuda.threadIdx.x, width, cuda.blockDim.x):
        room[s] = order[s] = 0x7FFFFFFFFFFFFFFF
        if s < count:
            room[s], order[s] = keys[row, s], places[row, s]
    cuda.syncthreads()
    sort_pairs(room, order, width, width)
    for s in range(cuda.threadIdx.x, count, cuda.blockDim.x):
        values[row, s] = x[row, order[s]]
        indices[row, s] = order[s]


def _selected(
    outputs: Metas, views: tuple[View, ...], x: TensorMeta, count: int, last: int, down: bool
) -> CudaLaunch:
    """Return the launch of the first `count` of each sorted row; `last` is the last one's index."""
    values, indices, source = (Operand(k, view) for k, view in enumerate(views))
    (rows, n), (bits, signed) = views[2].shape, bits_of(views[2])
    tiles = tiles_of(n)
    counts_at = 8 * rows * WORDS
    spare = counts_at + 8 * (rows * tiles + 1)
    keys_at = spare + prefix_room(rows * tiles)
    places_at = keys_at + 8 * rows * count
    words = Scratch(0, "int64", (rows * WORDS,))
    counts = Scratch(counts_at, "int64", (rows * tiles + 1,))
    keys, places = (Scratch(at, "int64", (rows, count)) for at in (keys_at, places_at))
    order = Const(order_of(x, down))
    steps = [flat_step(_clear, rows * WORDS, words, Const(last))]
    for shift in range(bits - DIGIT, -1, -DIGIT):
        highest = shift == bits - DIGIT
        top = VALUES // 2 if signed and highest else 0
        negative = VALUES if not highest else VALUES // 2 if signed else 0 if down else VALUES
        above = 0 if highest else -1 << (shift + DIGIT)
        numbers = consts(tiles, shift, top, above)
        steps += [
            tile_step(_count_digit, rows * tiles, words, source, *numbers, order),
            tile_step(_choose_digit, rows, words, *consts(shift, top, negative)),
        ]
    steps += [
        tile_step(_count_equal, rows * tiles, counts, words, source, Const(tiles), order),
        *prefix_steps(counts_at, rows * tiles, spare),
        tile_step(_collect, rows * tiles, keys, places, counts, words, source, Const(tiles), order),
        tile_step(_finish, rows, values, indices, source, keys, places, Const(power_from(count))),
    ]
    return CudaLaunch(outputs, tuple(steps), places_at + 8 * rows * count)


# --- rules ----------------------------------------------------------------------------------------


def kthvalue(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """Element `nth` of each sorted row."""
    x, (nth,) = metas[0], attrs
    values, indices, rows = launch.views
    column = View(values.dtype, (*values.shape, 1)), View(indices.dtype, (*indices.shape, 1)), rows
    if rows.shape[1] <= short():
        return sorted_rows(launch.outputs, column, x, nth, False)
    return _selected(launch.outputs, column, x, 1, nth, False)


def topk(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """The first k of each sorted row."""
    x, (k, largest) = metas[0], attrs
    values, indices, rows = launch.views
    views = key_view(x, values.shape), indices, key_view(x, rows.shape)
    if rows.shape[1] <= short() or k > short() or rows.shape[0] * k == 0:
        return sorted_rows(launch.outputs, views, x, 0, largest)
    return _selected(launch.outputs, views, x, k, k - 1, largest)
