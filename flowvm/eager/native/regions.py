"""Values of this thread's with statements, and calls as if inside of one.

A native call is one step of Python: nothing can come between what it switches and what it switches
back.  So it needs none of what makes a with statement safe (`flowvm.guards.regions`): an entry
among the thread's, and one in the mode's `inside`.
"""

from __future__ import annotations

from flowvm.eager.native.cpython import (
    allocate,
    attribute,
    call_nothing,
    clear_error,
    decref,
    dict_contains,
    dict_delete,
    dict_next,
    dict_set,
    dict_size,
    is_true,
    put_word,
    set_add,
    set_discard,
    set_size,
    this_thread,
    thread_number,
    tuple_item,
    word,
)
from flowvm.eager.native.tensor import class_of, lend
from flowvm.eager.native.words import FAILED, MISS, SHARED
from flowvm.vm.machine.lang import load_word

INLINE_ALWAYS = True


def entries_of(shared: int, mode: int) -> int:
    """The dict of what this thread's with statements say of a mode, RECORDING or USER_LINES, whose
    word is followed by that of the dict; borrowed; FAILED where it is not known.

    Asked of `mode.local` once while no other thread asks: a `threading.local` takes its time.
    """
    thread = thread_number(this_thread())
    if word(shared, SHARED.THREAD) != thread:
        put_word(shared, SHARED.THREAD, thread)
        forget(shared, SHARED.RECORDING + 1)
        forget(shared, SHARED.USER_LINES + 1)
    known = word(shared, mode + 1)
    if known != 0 and word(shared, SHARED.THREAD) == thread:
        return known
    entries = attribute(word(shared, mode), word(shared, SHARED.ENTRIES_NAME))
    if entries == 0:
        clear_error()
        return FAILED
    # a thread's first question runs Python code, and maybe other threads
    if word(shared, SHARED.THREAD) == thread and word(shared, mode + 1) == 0:
        put_word(shared, mode + 1, entries)
    else:
        decref(entries)  # which the thread has, too
    return int(entries)


def forget(shared: int, k: int) -> None:
    """Drop the reference in a word of SHARED."""
    old = word(shared, k)
    put_word(shared, k, 0)
    decref(old)


def entry_in(shared: int, mode: int) -> int:
    """The innermost entry of this thread's with statements, borrowed; MISS where there is none;
    FAILED where that is not known.
    """
    entries = entries_of(shared, mode)
    if entries == FAILED:
        return FAILED
    put_word(shared, SHARED.PLACE, 0)
    at, entry = shared + 8 * SHARED.PLACE, 0
    for _ in range(dict_size(entries)):
        if dict_next(entries, at, 0, at + 8) != 0:
            entry = word(shared, SHARED.PLACE + 1)
    if entry == 0:
        return MISS
    return entry if class_of(shared, entry) == word(shared, SHARED.ENTRY) else FAILED


def value_in(shared: int, mode: int) -> int:
    """Return the value of this thread's innermost with statement, borrowed; MISS or FAILED."""
    entry = entry_in(shared, mode)
    return load_word(entry + word(shared, SHARED.ENTRY_VALUE)) if entry > FAILED else entry


def records(shared: int) -> int:
    """Return 1 if this thread records for backward, else 0; 2 if a listener is to be told of it,
    which the twin does; -1 and an exception.
    """
    if dict_size(word(shared, SHARED.ASKERS)) != 0:
        return 2
    if set_size(word(shared, SHARED.UNRECORDED)) == 0:
        return 1
    now = value_in(shared, SHARED.RECORDING)
    if now == MISS:  # nothing, on this thread
        return 1
    if now > FAILED and class_of(shared, now) == word(shared, SHARED.RECORDED):
        return 1 if tuple_item(now, 0) == word(shared, SHARED.TRUE) else 0
    answer = call_nothing(word(shared, SHARED.GRAD_ENABLED))
    if answer == 0:
        return -1
    records = int(is_true(answer))
    decref(answer)
    return records


def enter(shared: int, entries: int, inside: int, value: int, owner: int) -> int:
    """Let `value` hold on the thread of these entries, as if in a with statement of `owner`, until
    `leave`: what is to be left, a new reference; FAILED.  `inside` is the mode's set.
    """
    entry = allocate(word(shared, SHARED.ENTRY), 0)
    if entry == 0:
        return FAILED
    lend(entry, word(shared, SHARED.ENTRY_VALUE), value)
    lend(entry, word(shared, SHARED.ENTRY_OWNER), owner)
    status = set_add(inside, entry)
    if status == 0:
        status = dict_set(entries, entry, entry)
        if status != 0:
            set_discard(inside, entry)
    if status != 0:
        decref(entry)
        return FAILED
    return int(entry)


def leave(entries: int, inside: int, entry: int) -> None:
    """Restore the value before, whatever the entry says by now.  An exception may be set."""
    if dict_contains(entries, entry) == 1:
        dict_delete(entries, entry)
    set_discard(inside, entry)
    decref(entry)
