"""The record of a call.

From the moment that a sequence number is taken to the record's mark, nothing here calls what could
run Python code, raise, or let another thread have the GIL: what is freed meanwhile is kept until
the mark is stored.
"""

from __future__ import annotations

from flowvm.eager.native.cpython import (
    as_int,
    decref,
    dict_item,
    incref,
    iterator,
    list_item,
    set_list_item,
    tuple_item,
    word,
)
from flowvm.eager.native.reading import argument, code_of_scalar, scalar_word
from flowvm.eager.native.words import FAILED, MISS, SHARED, SITE
from flowvm.vm.machine.lang import load_word, store_release, store_word, words_at
from flowvm.vm.machine.words import CTL, RING

INLINE_ALWAYS = True


def counter_of(shared: int) -> int:
    """What hands out sequence numbers: a new reference; MISS or FAILED.  In a fork this waits."""
    counter = dict_item(word(shared, SHARED.HOT), word(shared, SHARED.COUNTER_NAME))
    if counter == 0:
        return MISS
    incref(counter)
    numbers = iterator(counter)
    decref(counter)
    return int(numbers) if numbers != 0 else FAILED


def ref_of(shared: int, x: int) -> int:
    """The operand word of a whole tensor."""
    return int(as_int(load_word(x + word(shared, SHARED.TENSOR_REF))))


def publish(
    shared: int,
    site: int,
    args: int,
    kind: int,
    made: int,
    out: int,
    seq: int,
    code: int,
    last: int,
) -> None:
    """Write record `seq`, and remember its place: `code` and `last` are stolen; `out` may be 0."""
    slot = seq & RING.SLOT_MASK
    codes, lasts = word(shared, SHARED.CODES), word(shared, SHARED.LASTS)
    before = list_item(codes, slot)
    incref(before)
    set_list_item(codes, slot, code)
    set_list_item(lasts, slot, last)
    at = word(shared, SHARED.RING) + 8 * RING.WORDS * slot
    store_word(at + 8 * RING.ENTRY, as_int(tuple_item(made, 0)))
    to = at + 8 * RING.OPERANDS
    if out != 0:
        store_word(to, ref_of(shared, out))
        to -= 8
    inputs = word(site, SITE.INPUTS)
    for k in range(inputs):
        store_word(to - 8 * k, ref_of(shared, word(args, k)))
    first = inputs + word(site, SITE.ATTRS)
    for k in range(word(site, SITE.SCALARS)):
        x = argument(args, first + k, kind)
        bits = scalar_word(shared, code_of_scalar(site, made, k), x)
        store_word(to - 8 * (inputs + k), bits)
    store_release(words_at(at, RING.WORDS), RING.MARK, seq + 1)
    decref(before)


def is_due(shared: int, seq: int, dead: int) -> bool:
    """Whether something is to be done behind record `seq`; `dead` storages wait to be released."""
    if dead != 0:
        return True
    if word(word(shared, SHARED.CONTROL), CTL.SCHEDULER_SLEEPS) != 0:
        return True
    limit = dict_item(word(shared, SHARED.HOT), word(shared, SHARED.LIMIT_NAME))
    return limit == 0 or seq >= int(as_int(limit))
