"""Whose line a call is on: the code object and the offset that issuing remembers."""

from __future__ import annotations

from flowvm.eager.native.cpython import (
    call_one,
    clear_error,
    decref,
    frame_code,
    frame_last,
    int_of,
    sequence_item,
    set_contains,
    this_frame,
    word,
)
from flowvm.eager.native.words import FAILED, MISS, SHARED
from flowvm.vm.machine.lang import load_word

INLINE_ALWAYS = True


def place(shared: int) -> tuple[int, int]:
    """The calling frame's if its file is known for a user's, else what `find_user` finds: two new
    references; MISS or FAILED.
    """
    frame = this_frame()
    if frame == 0:
        return MISS, 0
    code = frame_code(frame)
    name = load_word(code + word(shared, SHARED.FILENAME_AT))
    known = set_contains(word(shared, SHARED.USER_FILES), name)
    if known == 1:
        last = int_of(frame_last(frame))
        if last == 0:
            decref(code)
            return FAILED, 0
        return code, last
    decref(code)
    if known < 0:
        clear_error()
    found = call_one(word(shared, SHARED.FIND_USER), frame)
    if found == 0:
        return FAILED, 0
    code = sequence_item(found, 0)
    last = sequence_item(found, 1)
    decref(found)
    if code == 0 or last == 0:
        decref(code)
        decref(last)
        return FAILED, 0
    return code, last
