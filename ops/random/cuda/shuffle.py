"""Random permutations on CUDA, the same as `flowvm.ops.random.parts.shuffle` makes.

The numbers are put into their buckets by a stable sort, and each bucket is shuffled by a block: its
threads work out what is exchanged, one of them exchanges, in shared memory where the bucket fits.
"""

from __future__ import annotations

import numpy as np
from numba import cuda

from flowvm.cuda.compiler.compilation import threads
from flowvm.cuda.launch import Const, CudaLaunch, KernelStep, Operand, Scalar
from flowvm.launch import Launch
from flowvm.meta.arrays import Array
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.cuda.steps import flat_step
from flowvm.ops.places.cuda.prefix import tile_step
from flowvm.ops.places.cuda.radix import current_half, note_varying, sorting, sorting_steps
from flowvm.ops.random.parts.philox import philox
from flowvm.ops.random.parts.shuffle import buckets_for

Metas = tuple[TensorMeta, ...]
BLOCK = 256
FITS = 10240  # numbers that a block shuffles in shared memory
SEED, CALL = Scalar(0, "i"), Scalar(1, "i")


def _begin(varying: Array) -> None:
    if cuda.grid(1) == 0:
        varying[0] = 0


def _draw(
    keys: Array, places: Array, varying: Array, n: int, shift: int, seed: int, call: int
) -> None:
    """The bucket of each number."""
    shared_bits = cuda.shared.array(1, np.int64)
    first, differing = philox(0, call, seed)[0] >> shift, np.int64(0)
    for k in range(cuda.grid(1), (n + 3) // 4, cuda.gridsize(1)):
        a, b, c, d = philox(k, call, seed)
        differing |= _put(keys, places, n, 4 * k, a >> shift) ^ first
        differing |= _put(keys, places, n, 4 * k + 1, b >> shift) ^ first
        differing |= _put(keys, places, n, 4 * k + 2, c >> shift) ^ first
        differing |= _put(keys, places, n, 4 * k + 3, d >> shift) ^ first
    note_varying(varying, shared_bits, differing)


def _put(keys: Array, places: Array, n: int, i: int, bucket: int) -> int:
    if i < n:
        keys[0, i], places[0, i] = bucket, i
    return bucket


def _number(out: Array) -> None:
    for i in range(cuda.grid(1), len(out), cuda.gridsize(1)):
        out[i] = i


def _fill(out: Array, places: Array, varying: Array, digits: int) -> None:
    near = places[current_half(varying, digits)]
    for i in range(cuda.grid(1), len(out), cuda.gridsize(1)):
        out[i] = near[i]


def _first_of(keys: Array, bucket: int) -> int:
    low, high = 0, len(keys)
    while low < high:
        middle = (low + high) // 2
        if keys[middle] < bucket:
            low = middle + 1
        else:
            high = middle
    return low


def _choose(swaps: Array, begin: int, first: int, size: int, n: int, seed: int, call: int) -> None:
    """Store the places with which the numbers from place `begin` of the bucket on are exchanged."""
    t = cuda.threadIdx.x
    at = begin + t
    if at < size:
        place = first + at  # in the whole
        a, b, c, d = philox((n + 3) // 4 + place // 4, call, seed)
        k = place % 4
        word = a if k == 0 else b if k == 1 else c if k == 2 else d
        swaps[t] = at + ((word * (size - at)) >> 32)


def _exchange(row: Array, swaps: Array, begin: int, size: int) -> None:
    for at in range(begin, min(size, begin + cuda.blockDim.x)):
        j = swaps[at - begin]
        row[at], row[j] = row[j], row[at]


def _shuffle(out: Array, first: int, size: int, seed: int, call: int) -> None:
    """Fisher and Yates, by one block, on `size` numbers from place `first` of the whole."""
    room = cuda.shared.array(FITS, np.int32)
    swaps = cuda.shared.array(BLOCK, np.int64)
    n, t, row = len(out), cuda.threadIdx.x, out[first : first + size]
    inside = size <= FITS and n < 1 << 31
    if inside:
        for i in range(t, size, cuda.blockDim.x):
            room[i] = row[i]
    for begin in range(0, size, cuda.blockDim.x):
        _choose(swaps, begin, first, size, n, seed, call)
        cuda.syncthreads()
        if t == 0 and inside:
            _exchange(room, swaps, begin, size)
        elif t == 0:
            _exchange(row, swaps, begin, size)
        cuda.syncthreads()
    if inside:
        for i in range(t, size, cuda.blockDim.x):
            row[i] = room[i]


def _shuffle_whole(out: Array, seed: int, call: int) -> None:
    _shuffle(out, 0, len(out), seed, call)


def _shuffle_buckets(
    out: Array, keys: Array, varying: Array, digits: int, seed: int, call: int
) -> None:
    near = keys[current_half(varying, digits)]
    first = _first_of(near, cuda.blockIdx.x)
    _shuffle(out, first, _first_of(near, cuda.blockIdx.x + 1) - first, seed, call)


def permutation(launch: Launch, metas: Metas, attrs: tuple[object, ...]) -> CudaLaunch:
    """The numbers below n in random order."""
    out = Operand(0, launch.views[0])
    (n,) = out.view.shape
    buckets, shift = buckets_for(n)
    block = threads(BLOCK)
    if n == 0:
        return CudaLaunch(launch.outputs, ())
    if buckets == 1:
        whole = KernelStep(_shuffle_whole, (out, SEED, CALL), (1, 1, 1), (block, 1, 1))
        return CudaLaunch(launch.outputs, (flat_step(_number, n, out), whole))
    bits = -(-(buckets.bit_length() - 1) // 4) * 4
    s = sorting(1, n, bits, False)
    digits = Const(bits // 4)
    steps = (
        KernelStep(_begin, (s.varying,), (1, 1, 1), (32, 1, 1)),
        flat_step(
            _draw, -(-n // 4), s.keys, s.places, s.varying, Const(n), Const(shift), SEED, CALL
        ),
        *sorting_steps(s),
        flat_step(_fill, n, out, s.places, s.varying, digits),
        tile_step(_shuffle_buckets, buckets, out, s.keys, s.varying, digits, SEED, CALL),
    )
    return CudaLaunch(launch.outputs, steps, s.end)
