"""Tensors of Python numbers: `flow.tensor(3.0)`, `flow.tensor([[1, 2], [3, 4]])`, with `dtype=`.

The elements lie in an object of bytes that the storage keeps, as it keeps the array that the Python
function makes.  Numbers of one class, in lists or tuples of equal lengths, are taken if the dtype
has room for each; the function makes all other tensors, raises all errors, and enters what the
numbers, the dtype and the lengths come to: a meta.
"""

from __future__ import annotations

from flowvm.eager.native.arguments import is_elsewhere
from flowvm.eager.native.cpython import (
    allocate,
    as_float,
    as_int,
    bits_of,
    bytes_at,
    call_nothing,
    clear_error,
    decref,
    dict_item,
    dict_set,
    error_occurred,
    incref,
    int_of,
    list_item,
    list_size,
    new_bytes,
    put_int8,
    put_int16,
    put_int32,
    put_word,
    scratch,
    set_size,
    single_bits,
    tuple_item,
    tuple_size,
    word,
)
from flowvm.eager.native.tensor import class_of, give, lend
from flowvm.eager.native.values import BYTES
from flowvm.eager.native.words import BOOLEAN, FAILED, FLOATING, MISS, SHARED, SIGNED, SITE
from flowvm.vm.machine.lang import load_word, store_word, words_at
from flowvm.vm.machine.words import ARRAY, STO

OF_BOOLS, OF_INTS, OF_FLOATS = 1, 2, 3  # kinds of numbers
DEPTH = 3  # of lists in lists
LENGTH_BITS = 19  # of a length, in a layout
MOST_DEAD = 32  # storages that wait to be released while such tensors are made
MOST_BYTES = 1 << 24  # of such tensors between two releases
EXACT = 1 << 53  # up to here each int is a float


def layout_of(kind: int, lengths: tuple[int, ...]) -> int:
    """Return the number that stands for a kind of numbers, in lists of these lengths."""
    layout = kind * 4 + len(lengths)
    for length in lengths:
        layout = layout << LENGTH_BITS | length
    return layout


def constant(site: int, args: int, count: int, names: int) -> int:
    """Make a tensor of numbers: a new reference; MISS or FAILED."""
    shared = word(site, SITE.SHARED)
    if count != 1 or set_size(word(shared, SHARED.DEPARTED)) != 0 or is_elsewhere(site):
        return MISS
    dtype = word(shared, SHARED.NONE)
    if names != 0:
        if tuple_size(names) != 1 or tuple_item(names, 0) != word(site, SITE.DTYPE_NAME):
            return MISS
        dtype = word(args, 1)
        if class_of(shared, dtype) != word(shared, SHARED.DTYPE):
            return MISS
    dead = list_size(word(shared, SHARED.DEAD)) >= MOST_DEAD
    if dead or word(site, SITE.HELD_BYTES) > MOST_BYTES:
        put_word(site, SITE.HELD_BYTES, 0)
        answer = call_nothing(word(shared, SHARED.RELEASE))
        if answer == 0:
            return FAILED
        decref(answer)
    lengths = scratch()
    ndim = lengths_of(shared, word(args, 0), lengths)
    if ndim < 0:
        return MISS
    known = known_layout(site, dtype, ndim, lengths, word(lengths, DEPTH))
    if known == MISS:
        return MISS
    result = filled(site, word(args, 0), ndim, lengths, known)
    decref(known)
    return result


def lengths_of(shared: int, data: int, lengths: int) -> int:
    """Return how deep lists or tuples lie in each other, and put the lengths of the first ones and
    the kind of the first number, at place DEPTH, into `lengths`; -1 for what is none of these.
    """
    ndim = 0
    while True:
        kind = kind_of(shared, data)
        if kind != 0:
            put_word(lengths, DEPTH, kind)
            return ndim
        length = length_of(shared, data)
        if ndim == DEPTH or not 0 < length < 1 << LENGTH_BITS:
            return -1
        put_word(lengths, ndim, length)
        data = part_of(shared, data, 0)
        ndim += 1


def kind_of(shared: int, x: int) -> int:
    """Return the kind of a number; 0 for what is none."""
    kind = class_of(shared, x)
    if kind == word(shared, SHARED.FLOAT):
        return OF_FLOATS
    if kind == word(shared, SHARED.INT):
        return OF_INTS
    return OF_BOOLS if kind == word(shared, SHARED.BOOL) else 0


def length_of(shared: int, x: int) -> int:
    """Return the length of a list or tuple; -1 for what is neither."""
    kind = class_of(shared, x)
    if kind == word(shared, SHARED.LIST):
        return int(list_size(x))
    return int(tuple_size(x)) if kind == word(shared, SHARED.TUPLE) else -1


def part_of(shared: int, x: int, k: int) -> int:
    """Return element `k` of a list or tuple, borrowed."""
    if class_of(shared, x) == word(shared, SHARED.LIST):
        return int(list_item(x, k))
    return int(tuple_item(x, k))


def known_layout(site: int, dtype: int, ndim: int, lengths: int, kind: int) -> int:
    """Return what is known of a layout: a new reference, or MISS."""
    layouts = dict_item(word(site, SITE.CACHE), dtype)
    if layouts == 0:
        clear_error()
        return MISS
    layout = kind * 4 + ndim
    for k in range(ndim):
        layout = layout << LENGTH_BITS | word(lengths, k)
    number = int_of(layout)
    if number == 0:
        clear_error()
        return MISS
    known = dict_item(layouts, number)
    decref(number)
    if known == 0:
        clear_error()
        return MISS
    incref(known)
    return int(known)


def filled(site: int, data: int, ndim: int, lengths: int, known: int) -> int:
    """Return a tensor with the numbers in `data`, whose meta and code are known: a new reference;
    MISS or FAILED.
    """
    shared = word(site, SITE.SHARED)
    meta, code = tuple_item(known, 0), as_int(tuple_item(known, 1))
    nbytes = as_int(load_word(meta + word(shared, SHARED.META_NUMEL))) * (code & BYTES)
    out = allocate(word(shared, SHARED.TENSOR), 0)  # a collection may run what changes lists
    if out == 0:
        return FAILED
    memory = new_bytes(0, nbytes)  # from here on nothing runs
    if memory == 0:
        decref(out)
        return FAILED
    address = bytes_at(memory)
    number = 0
    if fill(shared, data, ndim, lengths, code, address):
        number = call_nothing(word(shared, SHARED.POP))
    if number == 0:  # the Python function says why, or makes more ids
        clear_error()
        decref(memory)
        decref(out)
        return MISS
    at = STO.AT + as_int(number) * STO.WORDS
    m = words_at(word(shared, SHARED.CONTROL), ARRAY.WORDS)
    if dict_set(word(shared, SHARED.ADOPTED), number, memory) != 0:
        decref(number)
        decref(memory)
        decref(out)
        return FAILED
    decref(memory)
    m[at + STO.POINTER], m[at + STO.BYTES], m[at + STO.CLASS] = address, nbytes, 0
    give(out, word(shared, SHARED.TENSOR_REF), number)
    lend(out, word(shared, SHARED.TENSOR_META), meta)
    lend(out, word(shared, SHARED.TENSOR_NODE), word(shared, SHARED.NONE))
    lend(out, word(shared, SHARED.TENSOR_STORAGE), word(shared, SHARED.NONE))
    put_word(site, SITE.HELD_BYTES, word(site, SITE.HELD_BYTES) + nbytes)
    return int(out)


def fill(shared: int, data: int, ndim: int, lengths: int, code: int, address: int) -> bool:
    """Put the numbers in `data` to an address.  Return True if all of them have one kind, the lists
    the lengths, and the dtype room.
    """
    kind, size = word(lengths, DEPTH), code & BYTES
    if ndim == 0:
        return kind_of(shared, data) == kind and put_number(data, kind, code, address)
    rows, columns = 1, word(lengths, ndim - 1)
    for k in range(ndim - 1):
        rows *= word(lengths, k)
    for row in range(rows):
        place, rest, within = data, row, rows
        for k in range(ndim - 1):
            if length_of(shared, place) != word(lengths, k):
                return False
            within //= word(lengths, k)
            place = part_of(shared, place, rest // within)
            rest %= within
        if length_of(shared, place) != columns:
            return False
        for k in range(columns):
            number = part_of(shared, place, k)
            if kind_of(shared, number) != kind or not put_number(number, kind, code, address):
                return False
            address += size
    return True


def put_number(number: int, kind: int, code: int, address: int) -> bool:
    """Put a number of a kind to an address.  Return False if a dtype has no room for it."""
    size = code & BYTES
    if kind == OF_FLOATS:
        put_float(as_float(number), size, address)
        return code & FLOATING != 0
    value = int(as_int(number))
    if value == -1 and error_occurred() != 0:
        clear_error()
        return False
    if code & FLOATING != 0:
        put_float(float(value), size, address)
        return -EXACT <= value <= EXACT
    if code & BOOLEAN == 0 and size < 8:
        half = 1 << (8 * size - 1)
        least = -half if code & SIGNED != 0 else 0
        if not least <= value < least + 2 * half:
            return False
    put_integer(value, size, address)
    return size < 8 or code & SIGNED != 0 or value >= 0


def put_float(value: float, size: int, address: int) -> None:
    """Put a float of a size to an address."""
    if size == 8:
        store_word(address, bits_of(value))
    else:
        put_int32(address, single_bits(value))


def put_integer(value: int, size: int, address: int) -> None:
    """Put an integer of a size to an address."""
    if size == 8:
        store_word(address, value)
    elif size == 4:
        put_int32(address, value)
    elif size == 2:
        put_int16(address, value)
    else:
        put_int8(address, value)
