"""The record of a call.

From the moment that a sequence number is taken to the record's mark, nothing here calls what could
run Python code, raise, or let another thread have the GIL: what is freed meanwhile is kept until
the mark is stored.
"""

from __future__ import annotations

from flowvm.eager.native.cpython import (
    as_int,
    call_one,
    clear_error,
    decref,
    dict_item,
    dict_size,
    error_occurred,
    incref,
    int_of,
    iterator,
    list_item,
    list_size,
    next_item,
    put_word,
    set_list_item,
    set_list_slice,
    word,
)
from flowvm.eager.native.tensor import class_of
from flowvm.eager.native.words import FAILED, MISS, MOST_RELEASED, SHARED, SITE
from flowvm.vm.machine.lang import load_word, store_release, store_word, words_at
from flowvm.vm.machine.words import CTL, ENT, KIND, OPERAND, RING

INLINE_ALWAYS = True
RECLAIM = 32  # releases, of which one asks what memory of others is not needed any more


def counter_of(shared: int) -> int:
    """Return the counter of sequence numbers, a new reference; MISS or FAILED.  In a fork this
    waits.
    """
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
    refs: int,
    bits: int,
    entry: int,
    outs: int,
    count: int,
    seq: int,
    code: int,
    last: int,
) -> None:
    """Write record `seq`, which begins with `count` outputs, and has inputs' operand words and
    scalars' words behind them, and remember its place: `code` and `last` are stolen.
    """
    slot = seq & RING.SLOT_MASK
    codes, lasts = word(shared, SHARED.CODES), word(shared, SHARED.LASTS)
    before = list_item(codes, slot)
    incref(before)
    set_list_item(codes, slot, code)
    set_list_item(lasts, slot, last)
    at = word(shared, SHARED.RING) + 8 * RING.WORDS * slot
    store_word(at + 8 * RING.ENTRY, as_int(load_word(entry + word(shared, SHARED.CALL_WORD))))
    to = at + 8 * RING.OPERANDS
    for k in range(count):
        store_word(to, ref_of(shared, word(outs, k)))
        to -= 8
    inputs = word(site, SITE.INPUTS)
    for k in range(inputs):
        store_word(to - 8 * k, word(refs, k))
    for k in range(word(site, SITE.SCALARS)):
        store_word(to - 8 * (inputs + k), word(bits, k))
    store_release(words_at(at, RING.WORDS), RING.MARK, seq + 1)
    decref(before)


def plain_dead(shared: int) -> int:
    """Return the number of dead storages for the next record that releases.  0 leaves them to the
    Python function: one is no id, of another stream, or of memory that is not the VM's; or it is
    time to look for borrowed memory that can be returned.
    """
    adopted, stream_of = word(shared, SHARED.ADOPTED), word(shared, SHARED.STREAM_OF)
    elsewhere = dict_size(adopted) + dict_size(stream_of) != 0
    if dict_size(adopted) != 0:
        turn = word(shared, SHARED.RELEASES_SINCE) + 1
        put_word(shared, SHARED.RELEASES_SINCE, turn % RECLAIM)
        if turn == RECLAIM:
            return 0
    dead = word(shared, SHARED.DEAD)
    size = int(list_size(dead))
    count = min(size, MOST_RELEASED, int(list_size(word(shared, SHARED.RELEASES))) - 1)
    for k in range(size - count, size):
        number = list_item(dead, k)
        if class_of(shared, number) != word(shared, SHARED.INT):
            return 0
        if as_int(number) == -1:
            clear_error()
            return 0
        if elsewhere and (dict_item(adopted, number) != 0 or dict_item(stream_of, number) != 0):
            return 0
    return count


def release(shared: int) -> int:
    """Publish a record that releases dead storages: its number, a new reference; MISS or FAILED."""
    numbers, nothing = counter_of(shared), int_of(0)
    if numbers <= FAILED or nothing == 0:
        if numbers != FAILED and numbers != MISS:
            decref(numbers)
        decref(nothing)
        return FAILED if error_occurred() != 0 else MISS
    # From here on nothing runs: what a fork that was waited for has left is what is released.  The
    # ids are taken from the list first, for no storage may be released twice, whatever fails.
    count = plain_dead(shared)
    number = 0
    if count != 0 and take_dead(shared, count):
        number = next_item(numbers)
    decref(numbers)
    if number == 0:
        decref(nothing)
        return FAILED if error_occurred() != 0 else MISS
    seq = as_int(number)
    slot = seq & RING.SLOT_MASK
    codes, none = word(shared, SHARED.CODES), word(shared, SHARED.NONE)
    before = list_item(codes, slot)
    incref(before)
    incref(none)
    set_list_item(codes, slot, none)
    set_list_item(word(shared, SHARED.LASTS), slot, nothing)
    at = word(shared, SHARED.RING) + 8 * RING.WORDS * slot
    entry = list_item(word(shared, SHARED.RELEASES), count)
    store_word(at + 8 * RING.ENTRY, as_int(entry))
    for k in range(count):
        store_word(at + 8 * (RING.OPERANDS - k), word(shared, SHARED.RELEASED + k))
    store_release(words_at(at, RING.WORDS), RING.MARK, seq + 1)
    decref(before)
    return int(number)


def take_dead(shared: int, count: int) -> bool:
    """Return True if the last `count` dead storages were taken from their list, last first."""
    dead = word(shared, SHARED.DEAD)
    size = int(list_size(dead))
    for k in range(count):
        put_word(shared, SHARED.RELEASED + k, as_int(list_item(dead, size - 1 - k)))
    if set_list_slice(dead, size - count, size, 0) == 0:
        return True
    clear_error()
    return False


def is_due(shared: int, seq: int, dead: int) -> bool:
    """Return True if work is due behind record `seq`; `dead` storages wait to be released."""
    if dead != 0:
        return True
    if word(word(shared, SHARED.CONTROL), CTL.SCHEDULER_SLEEPS) != 0:
        return True
    return not has_room(shared, seq) or is_lent(shared, seq)


def is_lent(shared: int, seq: int) -> bool:
    """Return True if record `seq`, just published, accesses a storage that is lent."""
    lent = word(shared, SHARED.LENT)
    if load_word(lent) == 0:
        return False
    record = word(shared, SHARED.RING) + 8 * RING.WORDS * (seq & RING.SLOT_MASK)
    number = load_word(record + 8 * RING.ENTRY) & ENT.MASK
    entry = word(shared, SHARED.CONTROL) + 8 * (ENT.AT + number * ENT.WORDS)
    if load_word(entry + 8 * ENT.KIND) == KIND.RELEASE:
        return False
    for k in range(load_word(entry + 8 * ENT.COUNT)):
        operand = load_word(record + 8 * (RING.OPERANDS - k))
        if load_word(lent + 8 * (operand & OPERAND.STORAGE_MASK)) != 0:
            return True
    return False


def has_room(shared: int, seq: int) -> bool:
    """Return True if there is room behind record `seq` for one more."""
    limit = dict_item(word(shared, SHARED.HOT), word(shared, SHARED.LIMIT_NAME))
    return limit != 0 and seq < int(as_int(limit))


def finish(shared: int, number: int) -> int:
    """Do the work that is due behind a record.  Return 1, or FAILED."""
    answer = call_one(word(shared, SHARED.FINISH), number)
    if answer == 0:
        return FAILED
    decref(answer)
    return 1
