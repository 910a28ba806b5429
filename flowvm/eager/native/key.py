"""The call key of a call that may have a trace, and the dict key made of it.

The *call key* has the tensors' metas and all other arguments, as they are; which tensors have a
place in the autograd graph, if this thread records, and which are one; and the names of keywords.
By it the call is found in an inline cache (`inline_cache.py`).  The *dict key* is the call key with
what is equal made equal: plain values of Python alone.  By it `flowvm.eager.native.trace_cache`
remembers what the call came to; `key_twin.dict_key_of` makes the same key in Python.
"""

from __future__ import annotations

from flowvm.eager.native.cpython import (
    as_float,
    as_int,
    bits_of,
    clear_error,
    decref,
    incref,
    int_of,
    list_as_tuple,
    list_item,
    list_size,
    new_tuple,
    put_word,
    set_tuple_item,
    tuple_item,
    tuple_size,
    word,
)
from flowvm.eager.native.regions import records
from flowvm.eager.native.tensor import class_of, is_tensor, is_whole
from flowvm.eager.native.words import (
    FAILED,
    MISS,
    MOST_ARGUMENTS,
    MOST_PARTS,
    MOST_SAME,
    MOST_VALUES,
    SHARED,
)
from flowvm.vm.machine.lang import load_word

# --- the call key -----------------------------------------------------------------------------


def call_key_of(shared: int, args: int, total: int, names: int, call_key: int, values: int) -> int:
    """Return the number of words in the call key of a call with `total` arguments; MISS if it can
    have none; FAILED.  The words go to `call_key`, the call's tensors to `values`, and their number
    to its word MOST_VALUES.
    """
    if total > MOST_ARGUMENTS:
        return MISS
    tensors, recorded_bits, at = 0, 0, 2
    recorded = records(shared)  # first: others may run, and change a list of tensors
    if recorded < 0:
        return FAILED
    for k in range(total):
        x = word(args, k)
        size = tensors_in(shared, x)
        if at > MOST_PARTS or size > MOST_PARTS - at:
            return MISS
        if size == 0 and not is_tensor(shared, x):
            at = put_part(shared, x, call_key, at)
            if at == MISS:
                return MISS
            continue
        if tensors + max(size, 1) > MOST_VALUES:
            return MISS
        if size != 0:
            put_word(call_key, at, opening(shared, x))
            at += 1
        for i in range(max(size, 1)):
            t = x if size == 0 else item(shared, x, i)
            if t == 0 or not is_whole(shared, t):
                return MISS
            if load_word(t + word(shared, SHARED.TENSOR_NODE)) != word(shared, SHARED.NONE):
                recorded_bits |= 1 << tensors
            put_word(values, tensors, t)
            put_word(call_key, at, load_word(t + word(shared, SHARED.TENSOR_META)) | 1)
            tensors += 1
            at += 1
        if size != 0:
            put_word(call_key, at, word(shared, SHARED.CLOSE))
            at += 1
    if recorded_bits != 0:
        if recorded > 1:
            return MISS
        recorded_bits *= recorded
    same = same_of(values, tensors)
    if same < 0:
        return MISS
    put_word(values, MOST_VALUES, tensors)
    put_word(call_key, 0, recorded_bits | same << 32)
    put_word(call_key, 1, names)
    return at


def same_of(values: int, count: int) -> int:
    """Return which of the tensors are one: three bits for each but the first, with the number from
    1 of the equal one before it, or 0.  MISS if there are too many.
    """
    same = 0
    for k in range(1, count):
        before = 0
        for j in range(k):
            if before == 0 and word(values, j) == word(values, k):
                before = j + 1
        if before != 0 and k > MOST_SAME:
            return MISS
        if before != 0:
            same |= before << 3 * (k - 1)
    return same


def put_part(shared: int, x: int, call_key: int, at: int) -> int:
    """Put what is no tensor into a call key, from word `at` on: how many it has then; MISS.

    Slices are made for each call, and tuples of them, so their parts are put in.
    """
    kind = class_of(shared, x)
    if at > MOST_PARTS:
        return MISS
    if kind == word(shared, SHARED.SLICE):
        return put_slice(shared, x, call_key, at)
    if kind != word(shared, SHARED.TUPLE) or not has_slice(shared, x):
        put_word(call_key, at, x)
        return at + 1
    put_word(call_key, at, word(shared, SHARED.OPEN_TUPLE))
    at += 1
    for k in range(tuple_size(x)):
        part = tuple_item(x, k)
        if at == MISS or at > MOST_PARTS:
            at = MISS
        elif class_of(shared, part) == word(shared, SHARED.SLICE):
            at = put_slice(shared, part, call_key, at)
        elif is_plain(shared, part):
            put_word(call_key, at, part)
            at += 1
        else:
            at = MISS
    if at == MISS:
        return MISS
    put_word(call_key, at, word(shared, SHARED.CLOSE))
    return at + 1


def put_slice(shared: int, x: int, call_key: int, at: int) -> int:
    """Put the parts of a slice into `call_key` from word `at` on.  Return the word behind them, or
    MISS.
    """
    start = load_word(x + word(shared, SHARED.SLICE_START))
    stop = load_word(x + word(shared, SHARED.SLICE_STOP))
    step = load_word(x + word(shared, SHARED.SLICE_STEP))
    if not (is_plain(shared, start) and is_plain(shared, stop) and is_plain(shared, step)):
        return MISS
    put_word(call_key, at, word(shared, SHARED.SLICED))
    put_word(call_key, at + 1, start)
    put_word(call_key, at + 2, stop)
    put_word(call_key, at + 3, step)
    return at + 4


def has_slice(shared: int, x: int) -> bool:
    """Return True if a tuple has a slice."""
    for k in range(tuple_size(x)):
        if class_of(shared, tuple_item(x, k)) == word(shared, SHARED.SLICE):
            return True
    return False


def is_plain(shared: int, x: int) -> bool:
    """Return True if `x` is an int, None or Ellipsis."""
    if class_of(shared, x) == word(shared, SHARED.INT):
        return True
    return x == word(shared, SHARED.NONE) or x == word(shared, SHARED.ELLIPSIS)


def tensors_in(shared: int, x: int) -> int:
    """Return the length of a list or tuple that begins with a tensor, 0 for all else."""
    kind, size, first = class_of(shared, x), 0, 0
    if kind == word(shared, SHARED.LIST):
        size = int(list_size(x))
        first = list_item(x, 0) if size != 0 else 0
    elif kind == word(shared, SHARED.TUPLE):
        size = int(tuple_size(x))
        first = tuple_item(x, 0) if size != 0 else 0
    return size if first != 0 and is_tensor(shared, first) else 0


def opening(shared: int, x: int) -> int:
    """Return the mark in front of the tensors of a list or tuple."""
    of_list = class_of(shared, x) == word(shared, SHARED.LIST)
    return word(shared, SHARED.OPEN_LIST) if of_list else word(shared, SHARED.OPEN_TUPLE)


def item(shared: int, x: int, k: int) -> int:
    """Element `k` of it, borrowed."""
    if class_of(shared, x) == word(shared, SHARED.LIST):
        return int(list_item(x, k))
    return int(tuple_item(x, k))


def gradient_key_of(shared: int, args: int, count: int, call_key: int, values: int) -> int:
    """Return the number of words in the call key of a Node's gradient function, as `call_key_of`
    does.  The key has the Node and the one gradient that has arrived: which gradients are needed,
    the operator, the metas of the gradient and of saved tensors, their versions, the metas of the
    inputs, and the attributes.
    """
    if count != 2 or class_of(shared, word(args, 0)) != word(shared, SHARED.NODE):
        return MISS
    node, g = word(args, 0), word(args, 1)
    recorded = records(shared)  # first: others may run, and let go of what the Node saves
    if recorded != 0:
        return FAILED if recorded < 0 else MISS
    edges = load_word(node + word(shared, SHARED.NODE_EDGES))
    metas = load_word(node + word(shared, SHARED.NODE_METAS))
    saved = load_word(node + word(shared, SHARED.NODE_SAVED))
    versions = load_word(node + word(shared, SHARED.NODE_VERSIONS))
    attrs = load_word(node + word(shared, SHARED.NODE_ATTRS))
    operator = load_word(node + word(shared, SHARED.NODE_OPERATOR))
    if not (are_tuples(shared, edges, metas) and are_tuples(shared, saved, versions)):
        return MISS
    if not are_tuples(shared, attrs, attrs) or operator == 0:
        return MISS
    saves, rest, inputs = int(tuple_size(saved)), int(tuple_size(attrs)), int(tuple_size(edges))
    if saves + rest > MOST_ARGUMENTS or inputs > MOST_ARGUMENTS or tuple_size(versions) != saves:
        return MISS
    if not is_whole(shared, g) or tuple_size(metas) != inputs:
        return MISS
    recorded_bits, at = 0, 3
    for k in range(saves):
        x = tuple_item(saved, k)
        if not is_whole(shared, x) or not is_of_version(shared, x, tuple_item(versions, k)):
            return MISS
        put_word(values, 1 + k, x)
        put_word(call_key, at + k, load_word(x + word(shared, SHARED.TENSOR_META)) | 1)
    at += saves
    for k in range(inputs):
        if tuple_item(edges, k) != word(shared, SHARED.NONE):
            recorded_bits |= 1 << k
        put_word(call_key, at + k, tuple_item(metas, k) | 1)  # a global tensor's, perhaps
    at += inputs
    for k in range(rest):
        if at != MISS:
            at = put_part(shared, tuple_item(attrs, k), call_key, at)
    if at == MISS:
        return MISS
    put_word(values, 0, g)
    same = same_of(values, 1 + saves)
    if same < 0:
        return MISS
    put_word(values, MOST_VALUES, 1 + saves)
    put_word(call_key, 0, recorded_bits | same << 32)
    put_word(call_key, 1, operator)
    put_word(call_key, 2, load_word(g + word(shared, SHARED.TENSOR_META)) | 1)
    return at


def are_tuples(shared: int, x: int, y: int) -> bool:
    """Return True if both slots hold tuples."""
    kind = word(shared, SHARED.TUPLE)
    return x != 0 and y != 0 and class_of(shared, x) == kind and class_of(shared, y) == kind


def is_of_version(shared: int, x: int, version: int) -> bool:
    """Return True if a saved tensor, which is whole, was not changed since."""
    storage = load_word(x + word(shared, SHARED.TENSOR_STORAGE))
    if storage == word(shared, SHARED.NONE):
        return True
    if class_of(shared, storage) != word(shared, SHARED.STORAGE):
        return False
    now = load_word(storage + word(shared, SHARED.STORAGE_VERSION))
    if now == 0 or class_of(shared, now) != word(shared, SHARED.INT):
        return False
    return class_of(shared, version) == word(shared, SHARED.INT) and as_int(now) == as_int(version)


# --- the dict key -----------------------------------------------------------------------------


MINUS_ZERO = -(1 << 63)  # its bits


def dict_key_of(shared: int, call_key: int, count: int) -> int:
    """The dict key of a call with such a call key, a new reference; MISS where an argument is none
    that keys have; FAILED.
    """
    for k in range(1, count):  # before anything can run
        incref(word(call_key, k) & -2)
    key = dict_key_of_held(shared, call_key, count)
    for k in range(1, count):
        decref(word(call_key, k) & -2)
    return key


def dict_key_of_held(shared: int, call_key: int, count: int) -> int:
    """Make the dict key of a call key whose parts are held by the caller."""
    key, first = new_tuple(count), int_of(word(call_key, 0))
    if key == 0 or first == 0:
        decref(key)
        decref(first)
        return FAILED
    set_tuple_item(key, 0, first)
    for k in range(1, count):
        x = word(call_key, k)
        part = x & -2
        if part == 0:
            part = word(shared, SHARED.NONE)  # there are no names
        if x & 1 != 0 or k == 1 or stands_for_itself(shared, part):
            incref(part)
        else:
            part = part_of(shared, part)
        if part <= FAILED:
            decref(key)
            return part
        set_tuple_item(key, k, part)
    return int(key)


def stands_for_itself(shared: int, x: int) -> bool:
    """Return True if a part of a key is no argument."""
    around = x == word(shared, SHARED.OPEN_LIST) or x == word(shared, SHARED.OPEN_TUPLE)
    return around or x == word(shared, SHARED.CLOSE) or x == word(shared, SHARED.SLICED)


def is_fixed(shared: int, call_key: int, count: int) -> bool:
    """Return True if the same objects make such a call again: none is a list, which may change."""
    for k in range(2, count):
        x = word(call_key, k)
        if x & 1 == 0 and class_of(shared, x) == word(shared, SHARED.LIST):
            return False
    return True


def part_of(shared: int, x: int) -> int:
    """Return the part of a key that stands for an argument, a new reference; MISS if there is none;
    FAILED.
    """
    if is_plain(shared, x):
        incref(x)
        return x
    kind = class_of(shared, x)
    if kind == word(shared, SHARED.BOOL):
        part = word(shared, SHARED.YES if x == word(shared, SHARED.TRUE) else SHARED.NO)
        incref(part)
        return part
    if kind == word(shared, SHARED.TUPLE) or kind == word(shared, SHARED.SIZE):
        incref(x)
        if all_plain(shared, x):
            return x
        decref(x)
        return MISS
    if is_constant(shared, kind):
        incref(x)
        return x
    if kind == word(shared, SHARED.LIST):
        return part_of_list(shared, x)
    if kind == word(shared, SHARED.FLOAT) and bits_of(as_float(x)) != MINUS_ZERO:
        incref(x)
        return pair(kind, x)
    return MISS


def is_constant(shared: int, kind: int) -> bool:
    """Return True if objects of a class equal only themselves, or are equal text."""
    if kind == word(shared, SHARED.STR) or kind == word(shared, SHARED.TYPE):
        return True
    return kind == word(shared, SHARED.DTYPE) or kind == word(shared, SHARED.META)


def pair(kind: int, x: int) -> int:
    """(kind, x), a new reference; `x` is stolen."""
    result = new_tuple(2)
    if result == 0:
        decref(x)
        return FAILED
    incref(kind)
    set_tuple_item(result, 0, kind)
    set_tuple_item(result, 1, x)
    return int(result)


def all_plain(shared: int, x: int) -> bool:
    """Return True if all elements of a tuple are plain, or tuples of what is plain."""
    for k in range(tuple_size(x)):
        part = tuple_item(x, k)
        if not is_plain(shared, part) and not is_row(shared, part):
            return False
    return True


def is_row(shared: int, x: int) -> bool:
    """Return True if `x` is a tuple whose elements are plain."""
    if class_of(shared, x) != word(shared, SHARED.TUPLE):
        return False
    for k in range(tuple_size(x)):  # noqa: SIM110 - Numba has no generators
        if not is_plain(shared, tuple_item(x, k)):
            return False
    return True


def part_of_list(shared: int, x: int) -> int:
    """(list, a tuple of its plain elements)."""
    copy = list_as_tuple(x)
    if copy == 0:
        clear_error()
        return MISS
    if not all_plain(shared, copy):
        decref(copy)
        return MISS
    return pair(word(shared, SHARED.LIST), int(copy))
