"""The key of a call that has courses: by it `flowvm.eager.native.courses` remembers what the call
came to.  `parts.key_of` makes the same key in Python.

It is the call's line (`lines.py`) with what is equal made equal: plain values of Python alone.
"""

from __future__ import annotations

from flowvm.eager.native.cpython import (
    as_float,
    bits_of,
    clear_error,
    decref,
    incref,
    int_of,
    list_as_tuple,
    new_tuple,
    set_tuple_item,
    tuple_item,
    tuple_size,
    word,
)
from flowvm.eager.native.lines import is_plain
from flowvm.eager.native.reading import class_of
from flowvm.eager.native.words import FAILED, MISS, SHARED

MINUS_ZERO = -(1 << 63)  # its bits


def key_of(shared: int, line: int, count: int) -> int:
    """The key of a call with such a line, a new reference; MISS where an argument is none that keys
    have; FAILED.
    """
    for k in range(1, count):  # before anything can run
        incref(word(line, k) & -2)
    key = held_key(shared, line, count)
    for k in range(1, count):
        decref(word(line, k) & -2)
    return key


def held_key(shared: int, line: int, count: int) -> int:
    """The same, while what the line has is held."""
    key, first = new_tuple(count), int_of(word(line, 0))
    if key == 0 or first == 0:
        decref(key)
        decref(first)
        return FAILED
    set_tuple_item(key, 0, first)
    for k in range(1, count):
        x = word(line, k)
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
    """Whether a part of a key is no argument."""
    around = x == word(shared, SHARED.OPEN_LIST) or x == word(shared, SHARED.OPEN_TUPLE)
    return around or x == word(shared, SHARED.CLOSE) or x == word(shared, SHARED.SLICED)


def is_fixed(shared: int, line: int, count: int) -> bool:
    """Whether the same objects will be such a call again: none is a list, which may change."""
    for k in range(2, count):
        x = word(line, k)
        if x & 1 == 0 and class_of(shared, x) == word(shared, SHARED.LIST):
            return False
    return True


def part_of(shared: int, x: int) -> int:
    """What stands for an argument in a key, a new reference; MISS where nothing can; FAILED."""
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
    """Whether objects of a class are equal to none but themselves, or to text that is the same."""
    if kind == word(shared, SHARED.STR) or kind == word(shared, SHARED.TYPE):
        return True
    return kind == word(shared, SHARED.DTYPE) or kind == word(shared, SHARED.META)


def pair(kind: int, x: int) -> int:
    """(kind, x), a new reference; `x` is stolen."""
    made = new_tuple(2)
    if made == 0:
        decref(x)
        return FAILED
    incref(kind)
    set_tuple_item(made, 0, kind)
    set_tuple_item(made, 1, x)
    return int(made)


def all_plain(shared: int, x: int) -> bool:
    """Whether all elements of a tuple are."""
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
