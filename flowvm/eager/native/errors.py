"""Errors that a function is told of on their way: `except` as compiled code has it."""

from __future__ import annotations

from flowvm.eager.native.cpython import (
    clear_error,
    decref,
    dict_item,
    error_is,
    fetch_error,
    incref,
    make_error,
    put_word,
    restore_error,
    scratch,
    set_error,
    set_traceback,
    traceback_of,
    vectorcall,
    word,
)
from flowvm.eager.native.tensor import class_of
from flowvm.eager.native.words import FAILED, MISS, SHARED, SITE


def tell_error(function: int, kind: int, about: int) -> None:
    """Call `function(error, about)` if the error that is set is one of a class, and raise it again,
    with the traceback that it has then.
    """
    error = scratch()
    call = error + 24
    put_word(error, 0, 0)
    put_word(error, 1, 0)
    put_word(error, 2, 0)
    fetch_error(error, error + 8, error + 16)
    if error_is(word(error, 0), kind) != 0:
        make_error(error, error + 8, error + 16)
        if word(error, 2) != 0:
            set_traceback(word(error, 1), word(error, 2))
        put_word(call, 0, word(error, 1))
        put_word(call, 1, about)
        incref(about)
        answer = vectorcall(function, call, 2, 0)
        decref(about)
        if answer == FAILED:
            clear_error()
        decref(answer)
        decref(word(error, 2))
        put_word(error, 2, traceback_of(word(error, 1)))
    restore_error(word(error, 0), word(error, 1), word(error, 2))


def refuse_name(site: int, args: int, count: int) -> int:
    """Raise the AttributeError of a tensor that lacks a name which was asked for before: FAILED;
    or MISS.
    """
    shared = word(site, SITE.SHARED)
    if count != 2 or class_of(shared, word(args, 0)) != word(shared, SHARED.TENSOR):
        return MISS
    if class_of(shared, word(args, 1)) != word(shared, SHARED.STR):
        return MISS
    message = dict_item(word(site, SITE.CACHE), word(args, 1))
    if message == 0:
        clear_error()
        return MISS
    set_error(word(shared, SHARED.ATTRIBUTE_ERROR), message)
    return FAILED
