"""The user's line of a call: the code object and the offset that issuing remembers."""

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
    set_size,
    this_frame,
    word,
)
from flowvm.eager.native.regions import entry_in
from flowvm.eager.native.tensor import class_of
from flowvm.eager.native.words import FAILED, MISS, SHARED
from flowvm.vm.machine.lang import load_word

INLINE_ALWAYS = True


def place(shared: int) -> tuple[int, int]:
    """The one that is pinned by what this frame called; else the calling frame's if its file is
    known for a user's, else the one that is pinned, else the first of a user's from that frame up,
    as `find_user` finds it: two new references; MISS or FAILED.
    """
    frame = this_frame()
    if frame == 0:
        return MISS, 0
    any_pins = set_size(word(shared, SHARED.PINNED)) != 0
    if any_pins:
        code, last = pinned(shared, frame)
        if code != MISS:
            return code, last
    own, last = frame_place(shared, frame)
    if own > FAILED:
        return own, last
    code, last = MISS, 0
    if any_pins:
        code, last = pinned(shared, 0)
    if code == MISS and own == FAILED:
        code, last = above(shared, frame)
    if code != MISS:
        return code, last
    position = call_one(word(shared, SHARED.FIND_USER), frame)
    if position == 0:
        return FAILED, 0
    code = sequence_item(position, 0)
    last = sequence_item(position, 1)
    decref(position)
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


def pinned(shared: int, owner: int) -> tuple[int, int]:
    """Return the line pinned by this thread's innermost with statement, as `find_user` reads it:
    two new references.  MISS if no statement pins a line, or if it does not belong to `owner`,
    where one is given: native backward's is that of the frame that calls it.
    """
    entry = entry_in(shared, SHARED.USER_LINES)
    code, last = MISS, 0
    if entry <= FAILED:
        return code, last
    if owner != 0 and load_word(entry + word(shared, SHARED.ENTRY_OWNER)) != owner:
        return code, last
    origin = load_word(entry + word(shared, SHARED.ENTRY_VALUE))
    if class_of(shared, origin) == word(shared, SHARED.LIST) and list_size(origin) == 2:
        code, last = list_item(origin, 0), list_item(origin, 1)
        incref(code)
        incref(last)
    return code, last
