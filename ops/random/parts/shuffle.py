"""Random permutations, made by any number of threads and the same for each.

Every number is put into one of `buckets` at random, in three phases: blocks of numbers count their
buckets, then write them, then the buckets are shuffled one by one (Fisher and Yates).  That is the
distribution of a shuffle of them all, and a bucket fits the first-level cache where the whole does
not (after Rao and Sandelius).

Word i of the call chooses the bucket of number i, word `after` + p what is swapped into place p,
where `after` is n rounded up to whole Philox counters.  A short permutation has one bucket.
"""

from __future__ import annotations

import numpy as np

from flowvm.eager.tensor import Tensor
from flowvm.launch import PHASE_BITS, Launch, View
from flowvm.meta.arrays import Array
from flowvm.meta.device import Device
from flowvm.meta.dtype import int64
from flowvm.meta.meta import Size, TensorMeta
from flowvm.ops.declare.letters import unsplit
from flowvm.ops.declare.registry import op
from flowvm.ops.random.parts.philox import LOW, STEP, draw_words

BUCKET = 4096  # numbers in a bucket, about: 32 KiB
MOST = 1024  # buckets; more would be more than the pages that can be written to in turn
BLOCK = 1 << 16  # numbers of a block, at least
BLOCKS = 64  # at most


def _shuffle_body(
    out: Array,
    buckets: int,
    shift: int,
    block: int,
    seed: int,
    call: int,
    scratch: Array,
    arena: Array,
    lo: int,
    hi: int,
) -> None:
    n = len(out)
    counts = scratch.view(np.int64)  # those of block b begin at b * buckets
    words = arena[: 4 * STEP].view(np.int32)
    phase, mask = lo >> PHASE_BITS, (1 << PHASE_BITS) - 1
    if buckets == 1:
        for k in range(n):
            out[k] = k
        _shuffle(out, 0, n, words, seed, call)
        return
    for unit in range(lo & mask, (lo & mask) + hi - lo):
        start, end = unit * block, min(n, (unit + 1) * block)
        if phase == 0:
            own = counts[unit * buckets : (unit + 1) * buckets]
            own[:] = 0
            for at in range(start, end, STEP):
                m = min(STEP, end - at)
                draw_words(words, at // 4, m, seed, call)
                for k in range(m):
                    own[(words[k] & LOW) >> shift] += 1
        elif phase == 1:
            place = arena[4 * STEP :].view(np.int64)[:buckets]
            _places(place, counts, unit)
            for at in range(start, end, STEP):
                m = min(STEP, end - at)
                draw_words(words, at // 4, m, seed, call)
                for k in range(m):
                    b = (words[k] & LOW) >> shift
                    out[place[b]] = at + k
                    place[b] += 1
        else:
            first = size = 0
            for k in range(len(counts)):
                first += counts[k] if k % buckets < unit else 0
                size += counts[k] if k % buckets == unit else 0
            _shuffle(out[first : first + size], first, n, words, seed, call)


def _places(place: Array, counts: Array, block: int) -> None:
    """Store where this block's part of each bucket begins."""
    at = 0
    for b in range(len(place)):
        place[b] = at
        for other in range(len(counts) // len(place)):
            if other < block:
                place[b] += counts[other * len(place) + b]
            at += counts[other * len(place) + b]


def _shuffle(row: Array, first: int, n: int, words: Array, seed: int, call: int) -> None:
    """Fisher and Yates; `first` is the place of the row in the whole."""
    after, size = (n + 3) // 4, len(row)
    at, drawn = 0, first // 4 * 4
    while at < size:
        draw_words(words, after + drawn // 4, STEP, seed, call)
        for k in range(max(first - drawn, 0), min(STEP, first + size - drawn)):
            j = at + (((words[k] & LOW) * (size - at)) >> 32)
            row[at], row[j] = row[j], row[at]
            at += 1
        drawn += STEP


def buckets_for(n: int) -> tuple[int, int]:
    """Return the number of buckets for n numbers, and of a word's bits that choose none."""
    buckets = 1
    while buckets < MOST and buckets * BUCKET < n // 2:
        buckets *= 2
    return buckets, 33 - buckets.bit_length()


@op(
    " -> out",
    name="randperm",
    scalars="seed: int, call: int",
    cuda="shuffle:permutation",
    letters=unsplit,
)
def _permutation(out: TensorMeta) -> Launch:
    n = out.numel
    buckets, shift = buckets_for(n)
    block = max(BLOCK, -(-n // BLOCKS) + STEP - 1) // STEP * STEP
    blocks = -(-n // block)
    several = (blocks, 1), (buckets, max(1, 4 * BUCKET * buckets // max(n, 1)))
    return Launch(
        (out,),
        _shuffle_body,
        (View(int64, (n,)),),
        (buckets, shift, block),
        units=blocks if buckets > 1 else 1,
        scratch=8 * max(1, blocks * buckets),
        arena=4 * STEP + 8 * MOST,
        phases=several if buckets > 1 else (),
    )


def permutation(n: int, device: Device, seed: int, call: int) -> Tensor:
    """The integers below `n` in random order."""
    out: Tensor = _permutation(TensorMeta.of(Size((n,)), int64, device), seed, call)
    return out
