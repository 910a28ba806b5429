"""Calls of modules: that of a module's `forward`, where it has no hooks, and, while the profiler
wants to know, what was issued meanwhile (`flowvm.vm.callers.scopes`).
"""

from __future__ import annotations

from flowvm.eager.native.cpython import (
    as_int,
    attribute,
    call_method,
    call_one,
    clear_error,
    decref,
    dict_item,
    error_occurred,
    incref,
    int_of,
    list_size,
    put_word,
    thread_ident,
    vectorcall,
    word,
)
from flowvm.eager.native.errors import tell_error
from flowvm.eager.native.tensor import class_of
from flowvm.eager.native.words import FAILED, MISS, SHARED, SITE
from flowvm.vm.callers.scopes import CALLS, NOTES, OPEN, OVER
from flowvm.vm.machine.lang import load_word

COUNT = (1 << 63) - 1  # of CPython's count of arguments, all but its flag


def call_module(site: int, args: int, count: int, names: int) -> int:
    """Return the result of `forward`; MISS if it was not called; FAILED."""
    shared = word(site, SITE.SHARED)
    if count < 1:
        return MISS
    if list_size(word(site, SITE.CACHE)) != 0:  # some module has hooks
        hooks = attribute(word(args, 0), word(shared, SHARED.HOOKS_NAME))
        if hooks != word(shared, SHARED.NONE):
            if hooks == 0:
                clear_error()
            decref(hooks)
            return MISS
        decref(hooks)
    result = int(call_method(word(shared, SHARED.FORWARD_NAME), args, count, names))
    if result == FAILED:
        tell_error(word(site, SITE.FUNCTION), word(shared, SHARED.FLOW_ERROR), word(args, 0))
    return result


def call_noted_module(site: int, args: int, count: int, names: int) -> int:
    """Call a module and note the call; a module with hooks is called by the NOTES' PLAIN."""
    shared, notes = word(site, SITE.SHARED), word(site, SITE.NUMBERED)
    if count & COUNT < 1 or word(notes, NOTES.FREE) == 0:
        return MISS
    counter = counter_now(shared)
    if counter == 0:
        return MISS
    path = path_of(notes, word(args, 0))
    row = word(notes, NOTES.FREE)
    if path < 0 or row == 0:
        return FAILED if path < 0 else MISS
    incref(counter)
    begin(notes, row, load_word(counter + word(shared, SHARED.COUNTER_AT)), path, word(args, 0))
    result = call_module(site, args, count & COUNT, names)
    if result == MISS:
        result = int(vectorcall(word(notes, NOTES.PLAIN), args, count, names))
    # an exception may be set: here are words of memory, and a dict with plain names
    now = counter_now(shared)
    if now == 0:  # a fork closes it meanwhile
        now = counter
    end(notes, row, load_word(now + word(shared, SHARED.COUNTER_AT)))
    decref(counter)
    return result


def counter_now(shared: int) -> int:
    """Return the counter of sequence numbers, borrowed; 0 if something stands in its place."""
    counter = dict_item(word(shared, SHARED.HOT), word(shared, SHARED.COUNTER_NAME))
    if counter == 0 or class_of(shared, counter) != word(shared, SHARED.COUNTER):
        return 0
    return int(counter)


def path_of(notes: int, module: int) -> int:
    """The number of a module's path; -1 and an exception."""
    key = int_of(module)
    if key == 0:
        return -1
    number = dict_item(word(notes, NOTES.KNOWN), key)
    decref(key)
    if number != 0:
        return int(as_int(number))
    if error_occurred() != 0:
        return -1
    number = call_one(word(notes, NOTES.ADD), module)
    if number == 0:
        return -1
    path = int(as_int(number))
    decref(number)
    return path


def begin(notes: int, row: int, first: int, path: int, module: int) -> None:
    """Write an OPEN, the first that is free: whoever looks has the GIL."""
    put_word(notes, NOTES.FREE, word(row, OPEN.NEXT))
    ticket = word(notes, NOTES.BEGUN) + 1
    put_word(notes, NOTES.BEGUN, ticket)
    put_word(row, OPEN.TICKET, ticket)
    put_word(row, OPEN.FIRST, first)
    put_word(row, OPEN.THREAD, thread_ident())
    put_word(row, OPEN.PATH, path)
    put_word(row, OPEN.MODULE, module)


def end(notes: int, row: int, last: int) -> None:
    """Write an OVER of what is in an OPEN, which is free then."""
    number = word(notes, NOTES.COUNT)
    over = notes + 8 * (NOTES.OVER + OVER.WORDS * (number % CALLS))
    put_word(over, OVER.FIRST, word(row, OPEN.FIRST))
    put_word(over, OVER.LAST, last)
    put_word(over, OVER.THREAD, word(row, OPEN.THREAD))
    put_word(over, OVER.PATH, word(row, OPEN.PATH))
    put_word(notes, NOTES.COUNT, number + 1)
    put_word(row, OPEN.TICKET, 0)
    put_word(row, OPEN.NEXT, word(notes, NOTES.FREE))
    put_word(notes, NOTES.FREE, row)
