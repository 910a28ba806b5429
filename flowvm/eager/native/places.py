"""Whose line a call is on: the code object and the offset that issuing remembers."""

from __future__ import annotations

from flowvm.eager.native.cpython import (
    call_one,
    clear_error,
    decref,
    dict_item,
    error_occurred,
    frame_before,
    frame_code,
    frame_last,
    incref,
    int_of,
    list_item,
    list_size,
    sequence_item,
    set_contains,
    this_frame,
    word,
)
from flowvm.eager.native.making import said
from flowvm.eager.native.reading import class_of
from flowvm.eager.native.words import FAILED, MISS, SHARED
from flowvm.vm.machine.lang import load_word

INLINE_ALWAYS = True


def place(shared: int) -> tuple[int, int]:
    """The calling frame's if its file is known for a user's, else the one that is pinned, else the
    first of a user's from that frame up, as `find_user` finds it: two new references; MISS or
    FAILED.
    """
    frame = this_frame()
    if frame == 0:
        return MISS, 0
    own, last = frame_place(shared, frame)
    if own > FAILED:
        return own, last
    code, last = pinned(shared)
    if code == MISS and own == FAILED:
        code, last = above(shared, frame)
    if code != MISS:
        return code, last
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


def frame_place(shared: int, frame: int) -> tuple[int, int]:
    """A frame's own place, two new references, if its file is known for a user's; FAILED if it is
    known for flowvm's; MISS if neither.
    """
    code = frame_code(frame)
    name = load_word(code + word(shared, SHARED.FILENAME_AT))
    known = set_contains(word(shared, SHARED.USER_FILES), name)
    if known == 1:
        last = int_of(frame_last(frame))
        if last != 0:
            return code, last
    inside = dict_item(word(shared, SHARED.INTERNAL), name) == word(shared, SHARED.TRUE)
    decref(code)
    if error_occurred() != 0:
        clear_error()
    return FAILED if inside else MISS, 0


def above(shared: int, frame: int) -> tuple[int, int]:
    """The place of the first frame above this one that is known for a user's, if all between are
    known for flowvm's, two new references; else MISS.
    """
    code, last = FAILED, 0
    incref(frame)
    while code == FAILED and frame != 0:
        before = frame_before(frame)
        decref(frame)
        frame = before
        code = MISS
        if frame != 0:
            code, last = frame_place(shared, frame)
    decref(frame)
    return code, last


def pinned(shared: int) -> tuple[int, int]:
    """What this thread's innermost with statement says, as `find_user` reads it, two new
    references; MISS where there is none that says it.
    """
    here = said(shared, word(shared, SHARED.USER_LINES))
    code, last = MISS, 0
    listed = here > FAILED and class_of(shared, here) == word(shared, SHARED.LIST)
    if listed and list_size(here) == 2:
        code, last = list_item(here, 0), list_item(here, 1)
        incref(code)
        incref(last)
    return code, last
