"""Backward from its beginning, as `flowvm.autograd.engine.run` says what it means: of one tensor,
which ops have made, of one element; without arguments, and where all else is usual.

What the loop (`backward.py`) leaves is run by the engine, `GO_ON`, in the regions that are made
here.
"""

from __future__ import annotations

from flowvm.eager.native.backward import gone_back
from flowvm.eager.native.cpython import (
    allocate,
    append,
    as_int,
    attribute,
    call_one,
    clear_error,
    decref,
    dict_item,
    dict_set,
    dict_size,
    error_occurred,
    incref,
    int_of,
    list_item,
    list_size,
    new_dict,
    new_list,
    put_word,
    scratch,
    set_list_item,
    set_size,
    this_frame,
    tuple_item,
    tuple_size,
    vectorcall,
    word,
)
from flowvm.eager.native.errors import told
from flowvm.eager.native.making import give
from flowvm.eager.native.places import above, frame_place
from flowvm.eager.native.reading import class_of, departs, is_whole
from flowvm.eager.native.regions import entered, entries_of, left, said_in
from flowvm.eager.native.words import FAILED, MISS, SHARED, SITE
from flowvm.vm.callers.lines import UNKNOWN
from flowvm.vm.machine.lang import load_word

READY, GRADS, COUNTS, HERE, KEEP, COURSE = range(6)  # what the loop is called with; of GO_ON


def unrecorded(site: int, args: int, count: int, names: int) -> int:
    """Call FUNCTION as if in a with statement where nothing is recorded; FAILED."""
    shared = word(site, SITE.SHARED)
    function, inside = word(site, SITE.FUNCTION), word(shared, SHARED.UNRECORDED)
    entries = entries_of(shared, SHARED.RECORDING)
    if entries == FAILED:
        return MISS
    incref(entries)
    entry = entered(shared, entries, inside, word(shared, SHARED.FORGET), word(shared, SHARED.NONE))
    result = FAILED
    if entry != FAILED:
        result = int(vectorcall(function, args, count, names))
        left(entries, inside, entry)
    decref(entries)
    return result


def started(site: int, args: int, count: int) -> int:
    """Go back from a tensor: None, a new reference; MISS, and nothing is done; FAILED."""
    shared = word(site, SITE.SHARED)
    if count != 1 or word(shared, SHARED.GO_ON) == 0 or departs(shared, site):
        return MISS
    if set_size(word(shared, SHARED.STARTED)) + dict_size(word(shared, SHARED.ASKERS)) != 0:
        return MISS
    x = word(args, 0)
    if not is_whole(shared, x):
        return MISS
    node = load_word(x + word(shared, SHARED.TENSOR_NODE))
    g = dict_item(word(site, SITE.CACHE), load_word(x + word(shared, SHARED.TENSOR_META)))
    if class_of(shared, node) != word(shared, SHARED.NODE) or g == 0 or not unchanged(shared, g):
        if error_occurred() != 0:
            clear_error()
        return MISS
    if set_size(word(shared, SHARED.PINNED)) != 0 and said_in(shared, SHARED.USER_LINES) != MISS:
        return MISS  # backward in backward belongs to that
    incref(node)
    incref(g)
    state = scratch()
    done = prepared(shared, state, node, g)
    if done == 1:
        done = in_regions(shared, site, state)
    for k in range(HERE + 1):
        decref(word(state, k))
    decref(g)
    decref(node)
    if done != 1:
        return done
    incref(word(shared, SHARED.NONE))
    return word(shared, SHARED.NONE)


def unchanged(shared: int, g: int) -> bool:
    """Whether ones are a Tensor that nobody has written."""
    if class_of(shared, g) != word(shared, SHARED.TENSOR) or not is_whole(shared, g):
        return False
    storage = load_word(g + word(shared, SHARED.TENSOR_STORAGE))
    if storage == word(shared, SHARED.NONE):
        return True
    if class_of(shared, storage) != word(shared, SHARED.STORAGE):
        return False
    version = load_word(storage + word(shared, SHARED.STORAGE_VERSION))
    return version != 0 and as_int(version) == 0


def prepared(shared: int, state: int, node: int, g: int) -> int:
    """What the loop is called with, new references in `state`, or 0: 1; MISS or FAILED."""
    put_word(state, READY, new_list(1))
    put_word(state, GRADS, new_dict())
    put_word(state, COUNTS, new_dict())
    put_word(state, HERE, 0)
    put_word(state, KEEP, word(shared, SHARED.NONE))
    if word(state, READY) == 0 or word(state, GRADS) == 0 or word(state, COUNTS) == 0:
        return FAILED
    incref(node)
    set_list_item(word(state, READY), 0, node)
    if dict_set(word(state, GRADS), node, g) != 0:
        return FAILED
    done = counted(shared, word(state, COUNTS), node)
    if done != 1:
        return done
    here = line(shared)
    if here <= FAILED:
        return here
    put_word(state, HERE, here)
    return 1


def counted(shared: int, counts: int, root: int) -> int:
    """Fill the dict of how many gradients each node from `root` down waits for: 1; MISS or FAILED.

    Who has a node's edges keeps them: a node above, or the dict.
    """
    zero, waiting = int_of(0), new_list(0)
    done = 1
    if zero == 0 or waiting == 0 or dict_set(counts, root, zero) + append(waiting, root) != 0:
        done = FAILED
    k = 0
    while done == 1 and k < list_size(waiting):
        done = counted_below(shared, counts, waiting, list_item(waiting, k))
        k += 1
    decref(zero)
    decref(waiting)
    return done


def counted_below(shared: int, counts: int, waiting: int, node: int) -> int:
    """Count the edges of a node; nodes seen first are added to `waiting`: 1; MISS or FAILED."""
    if class_of(shared, node) == word(shared, SHARED.NODE):
        edges = load_word(node + word(shared, SHARED.NODE_EDGES))
        incref(edges)
    else:
        edges = int(attribute(node, word(shared, SHARED.EDGES_NAME)))
        if edges == 0:
            return FAILED
    done = 1
    if edges == 0 or class_of(shared, edges) != word(shared, SHARED.TUPLE):
        decref(edges)
        return MISS
    for k in range(tuple_size(edges)):
        edge = tuple_item(edges, k)
        if class_of(shared, edge) == word(shared, SHARED.OUTPUT_EDGE):
            edge = load_word(edge + word(shared, SHARED.EDGE_NODE))
        if done == 1 and edge == 0:
            done = MISS
        if done == 1 and edge != word(shared, SHARED.NONE):
            done = counted_edge(shared, counts, waiting, edge)
    decref(edges)
    return done


def counted_edge(shared: int, counts: int, waiting: int, node: int) -> int:
    """Count one edge to a node: 1 or FAILED."""
    old = dict_item(counts, node)
    if old == 0 and error_occurred() != 0:
        return FAILED
    first = old == 0 and class_of(shared, node) != word(shared, SHARED.LEAF)
    if first and append(waiting, node) != 0:
        return FAILED
    number = int_of(1 if old == 0 else as_int(old) + 1)
    if number == 0:
        return FAILED
    failed = dict_set(counts, node, number)
    decref(number)
    return 1 if failed == 0 else FAILED


def line(shared: int) -> int:
    """The user's line that everything belongs to, and an origin: [Backward, UNKNOWN], a new
    reference; MISS or FAILED.
    """
    frame = this_frame()
    if frame == 0:
        return MISS
    code, last = frame_place(shared, frame)
    if code == FAILED:
        code, last = above(shared, frame)
    if code <= FAILED:
        return MISS
    user, here, origin = allocate(word(shared, SHARED.BACKWARD), 0), new_list(2), int_of(UNKNOWN)
    if user == 0 or here == 0 or origin == 0:
        decref(code)
        decref(last)
        decref(user)
        decref(here)
        decref(origin)
        return FAILED
    give(user, word(shared, SHARED.BACKWARD_CODE), code)
    give(user, word(shared, SHARED.BACKWARD_LAST), last)
    set_list_item(here, 0, user)
    set_list_item(here, 1, origin)
    return int(here)


def in_regions(shared: int, site: int, state: int) -> int:
    """Go back where nothing is recorded and the line is pinned: 1; MISS, before there is anything;
    FAILED.
    """
    recording = entries_of(shared, SHARED.RECORDING)
    users = entries_of(shared, SHARED.USER_LINES)
    if recording == FAILED or users == FAILED:
        return MISS
    incref(recording)
    incref(users)
    unrecorded, pins = word(shared, SHARED.UNRECORDED), word(shared, SHARED.PINNED)
    done, pin = FAILED, 0
    quiet = entered(shared, recording, unrecorded, word(shared, SHARED.FORGET),
                    word(shared, SHARED.NONE))  # fmt: skip
    if quiet != FAILED:
        pin = entered(shared, users, pins, word(state, HERE), this_frame())
    if pin != FAILED:
        done = gone_on(shared, site, state, pin)
        left(users, pins, pin)
    if quiet != FAILED:
        left(recording, unrecorded, quiet)
    decref(users)
    decref(recording)
    return done


def gone_on(shared: int, site: int, state: int, pin: int) -> int:
    """Run all nodes: 1 or FAILED."""
    ready = word(state, READY)
    result = gone_back(site, state, COURSE)
    decref(result if result > FAILED else 0)
    if result == FAILED:
        explained(shared, ready)
        return FAILED
    if list_size(ready) == 0:
        return 1
    course = call_one(word(shared, SHARED.COURSE), word(state, COUNTS))
    if course == 0:
        return FAILED
    put_word(state, COURSE, course)
    give(pin, word(shared, SHARED.ENTRY_KEEP), course)
    answer = vectorcall(word(shared, SHARED.GO_ON), state, COURSE + 1, 0)
    decref(answer)
    return 1 if answer != 0 else FAILED


def explained(shared: int, ready: int) -> None:
    """Let the error say of whose gradient it is, if it is that of the node that is still there."""
    if list_size(ready) == 0:
        return
    node = list_item(ready, list_size(ready) - 1)
    if class_of(shared, node) == word(shared, SHARED.LEAF):
        return
    incref(node)
    told(word(shared, SHARED.EXPLAIN), word(shared, SHARED.EXCEPTION), node)
    decref(node)
