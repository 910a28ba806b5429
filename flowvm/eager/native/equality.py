"""Equality of two tensors, compared where they lie.

Nothing is issued for that, as for other values that are read (`flowvm.eager.native.values`), if
both are dense, of one shape and one dtype, and small enough for one thread.  Elements are compared
as bits, a word at a time: integers are equal if their bits are, and floats too unless they are NaN;
what else makes two floats equal, zeros of both signs, is looked for where bits differ.
"""

from __future__ import annotations

from flowvm.eager.native.cpython import as_int, clear_error, dict_item, set_size, tuple_item, word
from flowvm.eager.native.tensor import class_of, is_whole
from flowvm.eager.native.values import address_of, bits_at, truth
from flowvm.eager.native.words import MISS, SHARED, SITE
from flowvm.vm.machine.lang import Words, load_word, words_at

BLOCK = 64  # words that are compared between two looks at what came out
MOST_BYTES = 1 << 18  # of a tensor: more is shared among threads


def equal_values(site: int, args: int, count: int) -> int:
    """Return True if two tensors have one shape and equal elements, or False: a new reference; MISS
    where the function is to say.
    """
    shared = word(site, SITE.SHARED)
    if count != 2 or set_size(word(shared, SHARED.DEPARTED)) != 0:
        return MISS
    x, y = word(args, 0), word(args, 1)
    if not is_whole(shared, x) or not is_whole(shared, y):
        return MISS
    a, b = address_of(shared, x, 0, False), address_of(shared, y, 0, False)
    if a == 0 or b == 0:
        if address_of(shared, x, 0) == 0 or address_of(shared, y, 0) == 0:
            return MISS
        # others may have run: from here on nobody does
        if not is_whole(shared, x) or not is_whole(shared, y):
            return MISS
        a, b = address_of(shared, x, 0, False), address_of(shared, y, 0, False)
        if a == 0 or b == 0:
            return MISS
    meta = load_word(x + word(shared, SHARED.TENSOR_META))
    other = load_word(y + word(shared, SHARED.TENSOR_META))
    if not is_dense(shared, meta) or (meta != other and not is_like(shared, meta, other)):
        return MISS
    known = dict_item(word(site, SITE.CACHE), load_word(meta + word(shared, SHARED.META_DTYPE)))
    if known == 0:
        clear_error()
        return MISS
    nbytes = as_int(load_word(meta + word(shared, SHARED.META_NUMEL))) * part(known, 0)
    size, signs, spare = part(known, 1), part(known, 2), part(known, 3)
    if not 0 < nbytes <= MOST_BYTES or (a | b) & (size - 1) != 0:
        return MISS
    return truth(shared, are_equal(a, b, nbytes, size, signs, spare))


def part(known: int, k: int) -> int:
    """Return a number of what is known of a dtype."""
    return int(as_int(tuple_item(known, k)))


def is_dense(shared: int, meta: int) -> bool:
    """Return True if it is the meta of a tensor on the CPU whose elements lie in the order of their
    indices, without gaps.
    """
    if class_of(shared, meta) != word(shared, SHARED.META):  # a global tensor
        return False
    if load_word(meta + word(shared, SHARED.META_DEVICE)) != word(shared, SHARED.CPU):
        return False
    shape = load_word(meta + word(shared, SHARED.META_SHAPE))
    stride = load_word(meta + word(shared, SHARED.META_STRIDE))
    step = 1
    for k in range(as_int(load_word(meta + word(shared, SHARED.META_NDIM))) - 1, -1, -1):
        length = as_int(tuple_item(shape, k))
        if length != 1 and as_int(tuple_item(stride, k)) != step:
            return False
        step *= length
    return True


def is_like(shared: int, meta: int, other: int) -> bool:
    """Return True if another meta is dense, too, and has the shape and dtype of this one."""
    at = word(shared, SHARED.META_DTYPE)
    if not is_dense(shared, other) or load_word(meta + at) != load_word(other + at):
        return False
    ndim = as_int(load_word(meta + word(shared, SHARED.META_NDIM)))
    if as_int(load_word(other + word(shared, SHARED.META_NDIM))) != ndim:
        return False
    at = word(shared, SHARED.META_SHAPE)
    for k in range(ndim):
        if as_int(tuple_item(load_word(meta + at), k)) != as_int(
            tuple_item(load_word(other + at), k)
        ):
            return False
    return True


def are_equal(a: int, b: int, nbytes: int, size: int, signs: int, spare: int) -> bool:
    """Return True if the numbers of `size` bytes at two addresses are equal.  See `EQUALS`, in
    `flowvm.eager.native.tables`, for `signs` and `spare`.
    """
    place = 0
    if (a | b) & 7 == 0:
        words = nbytes >> 3
        x, y = words_at(a, words), words_at(b, words)
        for begin in range(0, words, BLOCK):
            end = min(words, begin + BLOCK)
            if differences(x, y, begin, end, signs, spare) != 0 and (
                signs == 0
                or not each_equal(
                    a + 8 * begin, b + 8 * begin, 8 * (end - begin), size, signs, spare
                )
            ):
                return False
        place = 8 * words
    return each_equal(a + place, b + place, nbytes - place, size, signs, spare)


def differences(x: Words, y: Words, begin: int, end: int, signs: int, spare: int) -> int:
    """Return a word that is 0 if the words from `begin` to `end` are the same, without a NaN."""
    difference = 0
    for k in range(begin, end):
        bits = x[k]
        difference |= (bits ^ y[k]) | (((bits & ~signs) + spare) & signs)
    return difference


def each_equal(a: int, b: int, nbytes: int, size: int, signs: int, spare: int) -> bool:
    """Return what `are_equal` does, number by number."""
    every = -1 if size == 8 else (1 << 8 * size) - 1
    sign, spare = signs & every, spare & every
    for at in range(0, nbytes, size):
        bits, others = bits_at(size, a + at) & every, bits_at(size, b + at) & every
        if ((bits & ~sign) + spare) & sign != 0:
            return False
        if bits != others and (sign == 0 or (bits | others) & ~sign != 0):
            return False
    return True
