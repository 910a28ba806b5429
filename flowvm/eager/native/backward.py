"""Backward, natively: from its beginning, and the loop over nodes that are ready.

`run_backward` does what `flowvm.autograd.engine.run` says, of one tensor of one element that ops
have made, without arguments, and where all else is usual.  `run_ready` is the loop, of which `_run`
of `flowvm.autograd.engine` says the meaning, and goes on where it stops: a node is looked at where
it is, last in `ready`, and its gradient in `grads`.  Both stay there until nothing can be left to
Python any more; so Python finds them as if nobody had looked.  What the loop leaves is run by the
engine, `GO_ON`, in the regions that are made here.
"""

from __future__ import annotations

from flowvm.eager.native.arguments import departs
from flowvm.eager.native.cpython import (
    allocate,
    append,
    as_int,
    attribute,
    call_nothing,
    call_one,
    clear_error,
    decref,
    dict_delete,
    dict_item,
    dict_set,
    dict_size,
    error_occurred,
    incref,
    int_of,
    is_true,
    list_item,
    list_size,
    new_dict,
    new_list,
    put_word,
    scratch,
    set_list_item,
    set_list_slice,
    set_size,
    this_frame,
    tuple_item,
    tuple_size,
    vectorcall,
    word,
)
from flowvm.eager.native.errors import tell_error
from flowvm.eager.native.key import are_tuples
from flowvm.eager.native.origin import above, frame_place
from flowvm.eager.native.regions import enter, entries_of, entry_in, leave
from flowvm.eager.native.tensor import class_of, give, is_tensor, is_whole
from flowvm.eager.native.trace import replay_call
from flowvm.eager.native.words import FAILED, LEARN, MISS, SHARED, SITE
from flowvm.vm.callers.lines import UNKNOWN
from flowvm.vm.machine.lang import load_word

# --- from the beginning -----------------------------------------------------------------------


READY, GRADS, COUNTS, HERE, KEEP, RUN = range(6)  # what the loop is called with; of GO_ON


def call_unrecorded(site: int, args: int, count: int, names: int) -> int:
    """Call FUNCTION as if in a with statement where nothing is recorded; FAILED."""
    shared = word(site, SITE.SHARED)
    function, inside = word(site, SITE.FUNCTION), word(shared, SHARED.UNRECORDED)
    entries = entries_of(shared, SHARED.RECORDING)
    if entries == FAILED:
        return MISS
    incref(entries)
    entry = enter(shared, entries, inside, word(shared, SHARED.FORGET), word(shared, SHARED.NONE))
    result = FAILED
    if entry != FAILED:
        result = int(vectorcall(function, args, count, names))
        leave(entries, inside, entry)
    decref(entries)
    return result


def run_backward(site: int, args: int, count: int) -> int:
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
    if class_of(shared, node) != word(shared, SHARED.NODE) or g == 0 or not is_unchanged(shared, g):
        if error_occurred() != 0:
            clear_error()
        return MISS
    if set_size(word(shared, SHARED.PINNED)) != 0 and entry_in(shared, SHARED.USER_LINES) != MISS:
        return MISS  # backward in backward belongs to that
    incref(node)
    incref(g)
    state = scratch()
    status = prepare(shared, state, node, g)
    if status == 1:
        status = in_regions(shared, site, state)
    for k in range(HERE + 1):
        decref(word(state, k))
    decref(g)
    decref(node)
    if status != 1:
        return status
    incref(word(shared, SHARED.NONE))
    return word(shared, SHARED.NONE)


def is_unchanged(shared: int, g: int) -> bool:
    """Return True if the ones are a Tensor that nobody has written."""
    if class_of(shared, g) != word(shared, SHARED.TENSOR) or not is_whole(shared, g):
        return False
    storage = load_word(g + word(shared, SHARED.TENSOR_STORAGE))
    if storage == word(shared, SHARED.NONE):
        return True
    if class_of(shared, storage) != word(shared, SHARED.STORAGE):
        return False
    version = load_word(storage + word(shared, SHARED.STORAGE_VERSION))
    return version != 0 and as_int(version) == 0


def prepare(shared: int, state: int, node: int, g: int) -> int:
    """Store the loop's arguments in `state`, as new references or 0.  Return 1, MISS or FAILED."""
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
    status = count_gradients(shared, word(state, COUNTS), node)
    if status != 1:
        return status
    origin = user_line(shared)
    if origin <= FAILED:
        return origin
    put_word(state, HERE, origin)
    return 1


def count_gradients(shared: int, counts: int, root: int) -> int:
    """Fill the dict of how many gradients each node from `root` down waits for: 1; MISS or FAILED.

    Who has a node's edges keeps them: a node above, or the dict.
    """
    zero, waiting = int_of(0), new_list(0)
    status = 1
    if zero == 0 or waiting == 0 or dict_set(counts, root, zero) + append(waiting, root) != 0:
        status = FAILED
    k = 0
    while status == 1 and k < list_size(waiting):
        status = count_below(shared, counts, waiting, list_item(waiting, k))
        k += 1
    decref(zero)
    decref(waiting)
    return status


def count_below(shared: int, counts: int, waiting: int, node: int) -> int:
    """Count the edges of a node; nodes seen first are added to `waiting`: 1; MISS or FAILED."""
    if class_of(shared, node) == word(shared, SHARED.NODE):
        edges = load_word(node + word(shared, SHARED.NODE_EDGES))
        incref(edges)
    else:
        edges = int(attribute(node, word(shared, SHARED.EDGES_NAME)))
        if edges == 0:
            return FAILED
    status = 1
    if edges == 0 or class_of(shared, edges) != word(shared, SHARED.TUPLE):
        decref(edges)
        return MISS
    for k in range(tuple_size(edges)):
        edge = tuple_item(edges, k)
        if class_of(shared, edge) == word(shared, SHARED.OUTPUT_EDGE):
            edge = load_word(edge + word(shared, SHARED.EDGE_NODE))
        if status == 1 and edge == 0:
            status = MISS
        if status == 1 and edge != word(shared, SHARED.NONE):
            status = count_edge(shared, counts, waiting, edge)
    decref(edges)
    return status


def count_edge(shared: int, counts: int, waiting: int, node: int) -> int:
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


def user_line(shared: int) -> int:
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
    user, pair, origin = allocate(word(shared, SHARED.BACKWARD), 0), new_list(2), int_of(UNKNOWN)
    if user == 0 or pair == 0 or origin == 0:
        decref(code)
        decref(last)
        decref(user)
        decref(pair)
        decref(origin)
        return FAILED
    give(user, word(shared, SHARED.BACKWARD_CODE), code)
    give(user, word(shared, SHARED.BACKWARD_LAST), last)
    set_list_item(pair, 0, user)
    set_list_item(pair, 1, origin)
    return int(pair)


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
    status, pin = FAILED, 0
    quiet = enter(shared, recording, unrecorded, word(shared, SHARED.FORGET),
                    word(shared, SHARED.NONE))  # fmt: skip
    if quiet != FAILED:
        pin = enter(shared, users, pins, word(state, HERE), this_frame())
    if pin != FAILED:
        status = run_all(shared, site, state, pin)
        leave(users, pins, pin)
    if quiet != FAILED:
        leave(recording, unrecorded, quiet)
    decref(users)
    decref(recording)
    return status


def run_all(shared: int, site: int, state: int, pin: int) -> int:
    """Run all nodes: 1 or FAILED."""
    ready = word(state, READY)
    result = run_ready(site, state, RUN)
    decref(result if result > FAILED else 0)
    if result == FAILED:
        explain_error(shared, ready)
        return FAILED
    if list_size(ready) == 0:
        return 1
    backward_run = call_one(word(shared, SHARED.BACKWARD_RUN), word(state, COUNTS))
    if backward_run == 0:
        return FAILED
    put_word(state, RUN, backward_run)
    give(pin, word(shared, SHARED.ENTRY_KEEP), backward_run)
    answer = vectorcall(word(shared, SHARED.GO_ON), state, RUN + 1, 0)
    decref(answer)
    return 1 if answer != 0 else FAILED


def explain_error(shared: int, ready: int) -> None:
    """Let the error say of whose gradient it is, if it is that of the node that is still there."""
    if list_size(ready) == 0:
        return
    node = list_item(ready, list_size(ready) - 1)
    if class_of(shared, node) == word(shared, SHARED.LEAF):
        return
    incref(node)
    tell_error(word(shared, SHARED.EXPLAIN), word(shared, SHARED.EXCEPTION), node)
    decref(node)


# --- the loop ---------------------------------------------------------------------------------


def run_ready(site: int, args: int, count: int) -> int:
    """Run nodes of `ready` for `(ready, grads, counts, here, keep_graph)` until there is none, or
    one for Python: None, a new reference; MISS; FAILED, and the node that failed is still there.
    """
    shared = word(site, SITE.SHARED)
    if count != 5 or class_of(shared, word(args, 0)) != word(shared, SHARED.LIST):
        return MISS
    ready, status = word(args, 0), 1
    while status == 1 and list_size(ready) > 0:
        node = list_item(ready, list_size(ready) - 1)
        g = dict_item(word(args, 1), node)
        if g == 0 or not is_whole(shared, g):
            status = FAILED if error_occurred() != 0 else MISS
            continue
        incref(node)
        incref(g)
        if class_of(shared, node) == word(shared, SHARED.LEAF):
            status = accumulate(shared, args, node, g)
        elif class_of(shared, node) == word(shared, SHARED.NODE):
            status = run(shared, word(site, SITE.NUMBERED), args, node, g)
        else:
            status = MISS
        decref(g)
        decref(node)
    if status == FAILED:
        return FAILED
    incref(word(shared, SHARED.NONE))
    return word(shared, SHARED.NONE)


def take(args: int, node: int) -> int:
    """Take a node, which is the last, from `ready`, and its gradient from `grads`: 1 or FAILED."""
    ready = word(args, 0)
    last = list_size(ready) - 1
    if dict_delete(word(args, 1), node) != 0 or set_list_slice(ready, last, last + 1, 0) != 0:
        return FAILED
    return 1


def accumulate(shared: int, args: int, leaf: int, g: int) -> int:
    """Add a gradient to the leaf's `.grad`, or make it that: 1; MISS or FAILED."""
    hooks = load_word(leaf + word(shared, SHARED.LEAF_HOOKS))
    after = load_word(leaf + word(shared, SHARED.LEAF_AFTER))
    weak = load_word(leaf + word(shared, SHARED.LEAF_TENSOR))
    if hooks == 0 or after == 0 or weak == 0 or dict_size(hooks) + dict_size(after) != 0:
        return FAILED if error_occurred() != 0 else MISS
    tensor = call_nothing(weak)
    if tensor == 0:
        return FAILED
    status = MISS
    if is_tensor(shared, tensor) and is_whole(shared, tensor):
        node = load_word(tensor + word(shared, SHARED.TENSOR_NODE))
        meta = load_word(tensor + word(shared, SHARED.TENSOR_META))
        if node == leaf and class_of(shared, meta) == word(shared, SHARED.META):
            status = add_grad(shared, tensor, g)
    if status == 1:
        status = take(args, leaf)
    decref(tensor)
    return status


def add_grad(shared: int, tensor: int, g: int) -> int:
    """Add to the `.grad` of a tensor, or set it: 1; MISS or FAILED."""
    at, name = word(shared, SHARED.TENSOR_EXTRA), word(shared, SHARED.GRAD_NAME)
    extra, old = load_word(tensor + at), 0
    if extra != 0:
        old = dict_item(extra, name)
        if old == 0 and error_occurred() != 0:
            return FAILED
    if old == 0 or old == word(shared, SHARED.NONE):
        return put_grad(shared, tensor, g)
    if word(shared, SHARED.ADD) == 0 or not is_whole(shared, old):  # a sparse one may become dense
        return MISS
    call = scratch()
    put_word(call, 0, old)
    put_word(call, 1, g)
    incref(old)
    answer = vectorcall(word(shared, SHARED.ADD), call, 2, 0)
    decref(old)
    decref(answer)
    return 1 if answer != 0 else FAILED


def put_grad(shared: int, tensor: int, g: int) -> int:
    """Make a gradient that nobody else holds the `.grad` of a tensor that has none: 1; MISS or
    FAILED.
    """
    none, at = word(shared, SHARED.NONE), word(shared, SHARED.TENSOR_EXTRA)
    if load_word(g + word(shared, SHARED.TENSOR_STORAGE)) != none:
        return MISS
    if load_word(g + word(shared, SHARED.TENSOR_NODE)) != none:
        return MISS
    meta = word(shared, SHARED.TENSOR_META)
    if load_word(g + meta) != load_word(tensor + meta):  # it may lie otherwise
        return MISS
    counted = call_one(word(shared, SHARED.GETREFCOUNT), g)
    if counted == 0:
        return FAILED
    holders = as_int(counted)
    decref(counted)
    if holders != 2:  # `grads`, and who calls this
        return MISS
    extra = load_word(tensor + at)
    if extra == 0:
        extra = new_dict()
        if extra == 0:
            return FAILED
        if load_word(tensor + at) != 0:  # a collection came in between
            decref(extra)
            return MISS
        give(tensor, at, extra)
    return 1 if dict_set(extra, word(shared, SHARED.GRAD_NAME), g) == 0 else FAILED


def run(shared: int, gradients: int, args: int, node: int, g: int) -> int:
    """Run a node, and send what it gives down its edges: 1; MISS or FAILED."""
    edges = load_word(node + word(shared, SHARED.NODE_EDGES))
    metas = load_word(node + word(shared, SHARED.NODE_METAS))
    if not are_tuples(shared, edges, metas) or tuple_size(edges) != tuple_size(metas):
        return MISS
    for k in range(tuple_size(edges)):
        edge = tuple_item(edges, k)
        kind = class_of(shared, edge)
        plain = kind == word(shared, SHARED.NODE) or kind == word(shared, SHARED.LEAF)
        plain = plain or kind == word(shared, SHARED.OUTPUT_EDGE)
        if not plain and edge != word(shared, SHARED.NONE):
            return MISS
    before = begin_node(shared, word(args, 3), node)
    if before <= FAILED:
        return before
    values = scratch()
    put_word(values, 0, node)
    put_word(values, 1, g)
    results = replay_call(gradients, values, 2, 0)
    status = 1
    if results == FAILED:
        status = FAILED
    elif results in (MISS, LEARN):
        status = MISS
    elif not are_tuples(shared, results, results) or tuple_size(results) != tuple_size(edges):
        decref(results)
        status = MISS
    if status != 1:  # Python begins the node once more, or says whose error it is
        if set_list_item(word(args, 3), 1, before) != 0:
            return FAILED
        return status
    decref(before)
    status = take(args, node)
    if status == 1 and is_true(word(args, 4)) == 0:
        saved = load_word(node + word(shared, SHARED.NODE_SAVED))
        if saved != 0 and saved != word(shared, SHARED.NONE):
            incref(word(shared, SHARED.NONE))
            give(node, word(shared, SHARED.NODE_SAVED), word(shared, SHARED.NONE))
            decref(saved)
    for k in range(tuple_size(edges)):
        if status == 1 and tuple_item(edges, k) != word(shared, SHARED.NONE):
            status = send(shared, args, node, tuple_item(edges, k), tuple_item(results, k),
                        tuple_item(metas, k))  # fmt: skip
    decref(results)
    return status


def begin_node(shared: int, origin: int, node: int) -> int:
    """Let what is issued from now on belong to a node: what was said before, a new reference; MISS
    or FAILED.
    """
    seq = load_word(node + word(shared, SHARED.NODE_SEQ))
    if class_of(shared, origin) != word(shared, SHARED.LIST) or list_size(origin) != 2 or seq == 0:
        return MISS
    before = list_item(origin, 1)
    if class_of(shared, before) != word(shared, SHARED.INT):
        return MISS
    if class_of(shared, seq) != word(shared, SHARED.INT):
        return MISS
    now = seq
    incref(seq)
    incref(before)
    if as_int(seq) < 0:
        decref(seq)
        now = before
        incref(before)
        if as_int(before) >= 0:
            decref(before)
            now = int_of(UNKNOWN - 1 - as_int(before))
    if now == 0 or set_list_item(origin, 1, now) != 0:
        decref(before)
        return FAILED
    return int(before)


def send(shared: int, args: int, node: int, edge: int, result: int, meta: int) -> int:
    """Send a gradient down an edge, to a node, one of its outputs, or a leaf: 1 or FAILED."""
    ready, grads, counts, target = word(args, 0), word(args, 1), word(args, 2), edge
    if class_of(shared, edge) == word(shared, SHARED.OUTPUT_EDGE):
        target = load_word(edge + word(shared, SHARED.EDGE_NODE))
    count = dict_item(counts, target)
    if count == 0:
        return FAILED if error_occurred() != 0 else 1
    waiting = as_int(count)
    if result != word(shared, SHARED.NONE):
        status = add_arrival(shared, grads, node, edge, result, meta)
        if status != 1:
            return status
    if waiting == 1:
        return 1 if append(ready, target) == 0 else FAILED
    number = int_of(waiting - 1)
    if number == 0:
        return FAILED
    failed = dict_set(counts, target, number)
    decref(number)
    return 1 if failed == 0 else FAILED


def add_arrival(shared: int, grads: int, node: int, edge: int, result: int, meta: int) -> int:
    """Add a gradient to what an edge has got so far: 1 or FAILED."""
    call = scratch()
    incref(result)
    same = class_of(shared, result) == word(shared, SHARED.TENSOR)
    if not same or load_word(result + word(shared, SHARED.TENSOR_META)) != meta:
        put_word(call, 0, node)
        put_word(call, 1, result)
        put_word(call, 2, meta)
        fitted = vectorcall(word(shared, SHARED.FITTED), call, 3, 0)
        decref(result)
        result = int(fitted)
        if result == 0:
            return FAILED
    status = 1
    several = class_of(shared, edge) == word(shared, SHARED.OUTPUT_EDGE)
    if not several and dict_item(grads, edge) == 0:
        if error_occurred() != 0 or dict_set(grads, edge, result) != 0:
            status = FAILED
    else:
        put_word(call, 0, grads)
        put_word(call, 1, edge)
        put_word(call, 2, result)
        put_word(call, 3, word(shared, SHARED.NO_GRAPH))
        answer = vectorcall(word(shared, SHARED.ARRIVE), call, 4, 0)
        if answer == 0:
            status = FAILED
        decref(answer)
    decref(result)
    return status
