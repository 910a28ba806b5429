"""Inline caches: what calls of one operator or function were last seen to be, in front of its dict.

A call is known again by its *call key*: the same metas, and the same objects besides.  The dict
asks for equal ones, so it needs a dict key, made, hashed and compared.  What a call key refers to
is kept alive by a list of the table's, or an address might be another object's by then.  What is
dropped from the dict is dropped here, too: all of it, when anything was dropped anywhere.
"""

from __future__ import annotations

from flowvm.eager.native.cpython import (
    clear_error,
    incref,
    new_tuple,
    put_word,
    set_list_item,
    set_tuple_item,
    word,
)
from flowvm.eager.native.words import CACHE, MOST_KEY, SHARED, SITE, SLOT
from flowvm.vm.machine.lang import load_word

INLINE_ALWAYS = True
SPREAD = -7046029254386353131  # an odd number without a pattern
MANY = 256  # call keys that are kept, before it is one of sixteen


def place_of(cache: int, call_key: int, count: int) -> int:
    """Return the number of the slot in which a call key is looked for first."""
    mixed = count
    for k in range(count):
        mixed = (mixed ^ word(call_key, k)) * SPREAD
    return (mixed >> 40) & (word(cache, CACHE.COUNT) - 1)


def slot_at(cache: int, k: int) -> int:
    """The address of SLOT `k`."""
    return cache + 8 * (CACHE.WORDS + k * SLOT.WORDS)


def is_in_slot(slot: int, call_key: int, count: int) -> bool:
    """Return True if a SLOT has this call key."""
    if word(slot, SLOT.VALUE) == 0 or word(slot, SLOT.WORDS_OF) != count:
        return False
    for k in range(count):  # noqa: SIM110 - Numba has no generators
        if word(slot, SLOT.KEY + k) != word(call_key, k):
            return False
    return True


def lookup(shared: int, site: int, call_key: int, count: int) -> int:
    """Return the value stored for a call key, borrowed; 0 if there is none."""
    cache = word(site, SITE.INLINE_CACHE)
    if cache == 0 or word(cache, CACHE.CLEARED) != load_word(word(shared, SHARED.CLEARED)):
        return 0
    first = place_of(cache, call_key, count)
    slot = slot_at(cache, first)
    if is_in_slot(slot, call_key, count):
        return word(slot, SLOT.VALUE)
    slot = slot_at(cache, first ^ 1)
    return word(slot, SLOT.VALUE) if is_in_slot(slot, call_key, count) else 0


def insert(shared: int, site: int, call_key: int, count: int, value: int) -> None:
    """Know such a call key again, which has a plain number in front, as `value`.

    Where call keys are ever new, as those of calls with tuples made for them, few are kept.
    """
    cache = word(site, SITE.INLINE_CACHE)
    if cache == 0 or count > MOST_KEY:
        return
    if word(cache, CACHE.CLEARED) != load_word(word(shared, SHARED.CLEARED)):
        for k in range(word(cache, CACHE.COUNT)):
            put_word(slot_at(cache, k), SLOT.VALUE, 0)
        put_word(cache, CACHE.CLEARED, load_word(word(shared, SHARED.CLEARED)))
    turn = word(cache, CACHE.TURN) + 1
    put_word(cache, CACHE.TURN, turn)
    if turn > MANY and turn & 15 != 0:
        return
    held = new_tuple(count)
    if held == 0:
        clear_error()
        return
    incref(value)
    set_tuple_item(held, 0, value)
    for k in range(1, count):
        x = word(call_key, k) & -2
        x = word(shared, SHARED.NONE) if x == 0 else x
        incref(x)
        set_tuple_item(held, k, x)
    place = place_of(cache, call_key, count)
    if word(slot_at(cache, place), SLOT.VALUE) != 0:
        place ^= (turn ^ turn >> 4) & 1
    slot = slot_at(cache, place)
    put_word(slot, SLOT.WORDS_OF, count)
    for k in range(count):
        put_word(slot, SLOT.KEY + k, word(call_key, k))
    put_word(slot, SLOT.VALUE, value)
    # last: what was held may be dropped now, and run what it likes
    if set_list_item(word(cache, CACHE.HELD), place, held) != 0:
        clear_error()
        put_word(slot, SLOT.VALUE, 0)
