"""Inline caches: what calls of one operator or function were last seen to be, in front of its dict.

A call is known again by its *line*: the same metas, and the same objects besides.  That is less
than being equal, which the dict asks; so a key need not be made, hashed and compared.  What a line
refers to is kept alive by a list of the table's, or an address might be another object's by then.
What is dropped from the dict is dropped here, too: all of it, when anything was dropped anywhere.
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
from flowvm.eager.native.words import MOST_LINE, SHARED, SITE, WAY, WAYS
from flowvm.vm.machine.lang import load_word

INLINE_ALWAYS = True
SPREAD = -7046029254386353131  # an odd number without a pattern
MANY = 256  # lines that are kept, before it is one of sixteen


def place_of(ways: int, line: int, count: int) -> int:
    """Where a line is looked for first."""
    mixed = count
    for k in range(count):
        mixed = (mixed ^ word(line, k)) * SPREAD
    return (mixed >> 40) & (word(ways, WAYS.COUNT) - 1)


def way_at(ways: int, k: int) -> int:
    """The address of WAY `k`."""
    return ways + 8 * (WAYS.WORDS + k * WAY.WORDS)


def is_line(way: int, line: int, count: int) -> bool:
    """Whether a WAY has such a line."""
    if word(way, WAY.VALUE) == 0 or word(way, WAY.WORDS_OF) != count:
        return False
    for k in range(count):  # noqa: SIM110 - Numba has no generators
        if word(way, WAY.LINE + k) != word(line, k):
            return False
    return True


def known(shared: int, site: int, line: int, count: int) -> int:
    """What was seen of such a line, borrowed; 0 if nothing was."""
    ways = word(site, SITE.WAYS)
    if ways == 0 or word(ways, WAYS.CLEARED) != load_word(word(shared, SHARED.CLEARED)):
        return 0
    first = place_of(ways, line, count)
    way = way_at(ways, first)
    if is_line(way, line, count):
        return word(way, WAY.VALUE)
    way = way_at(ways, first ^ 1)
    return word(way, WAY.VALUE) if is_line(way, line, count) else 0


def see(shared: int, site: int, line: int, count: int, value: int) -> None:
    """Know such a line again, which has a plain number in front, as `value`.

    Where lines are ever new, as those of calls with tuples made for them, few are kept.
    """
    ways = word(site, SITE.WAYS)
    if ways == 0 or count > MOST_LINE:
        return
    if word(ways, WAYS.CLEARED) != load_word(word(shared, SHARED.CLEARED)):
        for k in range(word(ways, WAYS.COUNT)):
            put_word(way_at(ways, k), WAY.VALUE, 0)
        put_word(ways, WAYS.CLEARED, load_word(word(shared, SHARED.CLEARED)))
    turn = word(ways, WAYS.TURN) + 1
    put_word(ways, WAYS.TURN, turn)
    if turn > MANY and turn & 15 != 0:
        return
    held = new_tuple(count)
    if held == 0:
        clear_error()
        return
    incref(value)
    set_tuple_item(held, 0, value)
    for k in range(1, count):
        x = word(line, k) & -2
        x = word(shared, SHARED.NONE) if x == 0 else x
        incref(x)
        set_tuple_item(held, k, x)
    place = place_of(ways, line, count)
    if word(way_at(ways, place), WAY.VALUE) != 0:
        place ^= (turn ^ turn >> 4) & 1
    way = way_at(ways, place)
    put_word(way, WAY.WORDS_OF, count)
    for k in range(count):
        put_word(way, WAY.LINE + k, word(line, k))
    put_word(way, WAY.VALUE, value)
    # last: what was held may be dropped now, and run what it likes
    if set_list_item(word(ways, WAYS.HELD), place, held) != 0:
        clear_error()
        put_word(way, WAY.VALUE, 0)
