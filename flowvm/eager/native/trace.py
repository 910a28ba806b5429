"""The replay of a trace: what an earlier call of the function, with such metas and such arguments,
came to (`flowvm.eager.native.trace_cache`), step by step, without a Python frame.

All steps make new tensors.  So whatever a step cannot do is a miss of the whole call: what was made
is dropped, and the function makes the call from its beginning.  Only where an operator's call is
out of the ordinary its twin makes that, and the replay goes on.
"""

from __future__ import annotations

from flowvm.eager.native.arguments import all_whole, departs, is_elsewhere
from flowvm.eager.native.call import change, change_into, drop, issue_into, tuple_of
from flowvm.eager.native.cpython import (
    allocate,
    append,
    as_int,
    call_nothing,
    call_one,
    clear_error,
    decref,
    dict_item,
    error_occurred,
    incref,
    int_of,
    list_item,
    list_size,
    new_list,
    new_tuple,
    put_word,
    scratch,
    set_list_item,
    set_tuple_item,
    tuple_item,
    tuple_size,
    vectorcall,
    weak_reference,
    word,
)
from flowvm.eager.native.inline_cache import insert, lookup
from flowvm.eager.native.key import call_key_of, dict_key_of, gradient_key_of, is_fixed
from flowvm.eager.native.node import of_inputs, saved_input
from flowvm.eager.native.regions import records
from flowvm.eager.native.tensor import (
    class_of,
    give,
    is_tensor,
    is_whole,
    lend,
    own_storage,
    renewal_of,
)
from flowvm.eager.native.words import (
    ALIAS,
    CALL,
    FAILED,
    FRONT,
    INTO,
    LEARN,
    MISS,
    MOST_VALUES,
    OWN_CHANGE,
    OWN_INTO,
    PIECES,
    RECORD,
    REFUSED,
    RENEWAL,
    SHARED,
    SITE,
    STEP,
    TRACE,
)
from flowvm.vm.callers.lines import NO_ORIGIN
from flowvm.vm.machine.lang import load_word

# --- the call ---------------------------------------------------------------------------------


def replay_call(site: int, args: int, count: int, names: int) -> int:
    """Return the result of a call that follows a trace; LEARN if there may be a trace next time;
    MISS if there is none; FAILED.
    """
    shared = word(site, SITE.SHARED)
    if departs(shared, site) or is_elsewhere(site):
        return MISS
    values, call_key = scratch(), scratch()
    put_word(values, RENEWAL, renewal_of(shared))
    if word(site, SITE.KIND) == FRONT:
        total = count if names == 0 else count + int(tuple_size(names))
        length = call_key_of(shared, args, total, names, call_key, values)
    else:
        length = gradient_key_of(shared, args, count if names == 0 else 0, call_key, values)
    if length <= FAILED:
        return length
    count = word(values, MOST_VALUES)
    for k in range(count):  # a list, or a Node, may let go of them meanwhile
        incref(word(values, k))
    result = replay_key(shared, site, call_key, length, values)
    drop(values, count)
    return result


def replay_key(shared: int, site: int, call_key: int, length: int, values: int) -> int:
    """Return what `replay_call` does, for a call whose tensors are held by the caller."""
    cached = lookup(shared, site, call_key, length)
    if cached != 0:
        incref(cached)
        return replay_known(shared, site, cached, values)
    key = dict_key_of(shared, call_key, length)
    if key <= FAILED:
        return key
    cached = dict_item(word(site, SITE.CACHE), key)
    incref(cached)
    if cached == 0:
        decref(key)
        return LEARN
    if as_int(tuple_item(cached, 0)) > LEARN and is_fixed(shared, call_key, length):
        insert(shared, site, call_key, length, cached)
    decref(key)  # it holds the metas that `insert` keeps
    return replay_known(shared, site, cached, values)


def replay_known(shared: int, site: int, cached: int, values: int) -> int:
    """Replay a call whose entry in the cache is known.  Its reference is stolen."""
    trace = int(as_int(tuple_item(cached, 0)))
    result = trace
    if trace > LEARN:
        result = replay(shared, trace, values)
    elif trace == REFUSED:
        result = MISS
    if result > LEARN:
        put_word(site, SITE.HITS, word(site, SITE.HITS) + 1)
    decref(cached)
    return result


def replay(shared: int, trace: int, values: int) -> int:
    """Return the result of a call, a new reference; MISS or FAILED.  `values` begins with its
    tensors, which the caller holds.
    """
    count_of_inputs = word(trace, TRACE.TENSORS)
    count, status, changes = count_of_inputs, 1, 0
    if word(trace, TRACE.APART) != 0 and not are_apart(shared, values, count_of_inputs):
        return MISS
    for k in range(word(trace, TRACE.STEPS)):
        step = trace + 8 * (TRACE.WORDS + k * STEP.WORDS)
        kind = word(step, STEP.KIND)
        if kind == CALL:
            status = call_step(shared, step, values, count)
            if status == 1:
                count += word(word(step, STEP.SITE), SITE.OUTPUTS)
        elif kind == RECORD:
            status = record_step(shared, step, values)
        elif kind == INTO:
            status = into_step(shared, step, values)
            if status == MISS and changes != 0:
                status = copy_step(shared, step, values)
            changes = 1
        elif kind == OWN_INTO:  # if the call is made from its beginning, it is other memory
            status = into_step(shared, step, values)
        elif kind == OWN_CHANGE:
            status = change_step(shared, step, values)
        elif kind == PIECES:
            status = pieces_step(shared, step, values)
        else:
            status = view_step(shared, step, values, count)
            count += 1 if status == 1 else 0
        if status != 1:
            break
    # what has read memory or written to it has asked itself; views and Nodes have not
    if status == 1 and changes == 0 and is_renewed(shared, values):
        status = MISS
    if status == 1:
        status = result_of(shared, trace, values)
    drop(values + 8 * count_of_inputs, count - count_of_inputs)
    return status


def is_renewed(shared: int, values: int) -> bool:
    """Return True if a tensor may have got another place and meta since the call's key was made."""
    return renewal_of(shared) != word(values, RENEWAL)


def are_apart(shared: int, values: int, count: int) -> bool:
    """Return True if no two tensors are one, or on one Storage."""
    at, none = word(shared, SHARED.TENSOR_STORAGE), word(shared, SHARED.NONE)
    for k in range(1, count):
        storage = load_word(word(values, k) + at)
        for j in range(k):
            same = storage != none and storage == load_word(word(values, j) + at)
            if same or word(values, j) == word(values, k):
                return False
    return True


def result_of(shared: int, trace: int, values: int) -> int:
    """The result, a new reference; FAILED."""
    place = word(trace, TRACE.RESULT)
    if place >= 0:
        incref(word(values, place))
        return word(values, place)
    count, results = word(trace, TRACE.RESULTS), scratch()
    for k in range(count):
        place = word(trace, TRACE.GIVEN + k)
        x = word(shared, SHARED.NONE) if place < 0 else word(values, place)
        incref(x)
        put_word(results, k, x)
    result = tuple_of(results, count)
    kind = word(trace, TRACE.CLASS)
    if result == 0 or kind == word(shared, SHARED.TUPLE):
        return result
    put_word(results, 0, kind)
    put_word(results, 1, result)
    named = vectorcall(word(shared, SHARED.NEW_TUPLE), results, 2, 0)
    decref(result)
    return int(named)


def fill(step: int, values: int, args: int) -> None:
    """The arguments of a step, borrowed."""
    for k in range(word(step, STEP.ARGUMENTS)):
        x = word(step, STEP.GIVEN + k)
        put_word(args, k, word(values, x) if x < MOST_VALUES else x)


def call_step(shared: int, step: int, values: int, at: int) -> int:
    """Call an operator: 1, and its outputs are the values from `at` on; FAILED."""
    site, call = word(step, STEP.SITE), scratch()
    args, outs, status = call + 8, values + 8 * at, MISS
    fill(step, values, args)
    if all_whole(shared, site, args):
        renewal = word(values, RENEWAL)
        status = issue_into(shared, site, args, 0, word(step, STEP.MADE), renewal, outs)
    if status != MISS or is_renewed(shared, values):
        return status
    put_word(site, SITE.MISSES, word(site, SITE.MISSES) + 1)
    put_word(call, 0, word(site, SITE.TWIN))
    result = vectorcall(word(shared, SHARED.THROUGH), call, word(step, STEP.ARGUMENTS) + 1, 0)
    count = word(site, SITE.OUTPUTS)
    if count == 1 or result == 0:
        put_word(outs, 0, result)
        return 1 if result != 0 else FAILED
    if class_of(shared, result) != word(shared, SHARED.TUPLE) or tuple_size(result) != count:
        decref(result)
        return MISS
    for k in range(count):
        x = tuple_item(result, k)
        incref(x)
        put_word(outs, k, x)
    decref(result)
    return 1


def into_step(shared: int, step: int, values: int) -> int:
    """Change a tensor that the call was given in place: 1; MISS, and it was not changed; FAILED."""
    site, args, last = word(step, STEP.SITE), scratch(), word(step, STEP.ARGUMENTS) - 1
    fill(step, values, args)
    target = word(args, last)
    if not all_whole(shared, site, args) or not is_whole(shared, target):
        return MISS
    storage = load_word(target + word(shared, SHARED.TENSOR_STORAGE))
    for k in range(word(site, SITE.INPUTS)):
        x = word(args, k)
        same = storage == load_word(x + word(shared, SHARED.TENSOR_STORAGE))
        if same and x != target and storage != word(shared, SHARED.NONE):
            return MISS  # in what arrangement is Python's to see
    entry, renewal = word(step, STEP.MADE), word(values, RENEWAL)
    return change_into(shared, site, args, entry, renewal, args + 8 * last)


def change_step(shared: int, step: int, values: int) -> int:
    """Call an operator that writes tensors that the trace made: 1; MISS or FAILED."""
    site, args = word(step, STEP.SITE), scratch()
    fill(step, values, args)
    if not all_whole(shared, site, args):
        return MISS
    renewal = word(values, RENEWAL)
    changed = change(shared, site, args, 0, word(step, STEP.MADE), renewal)
    if changed <= FAILED:
        return changed
    decref(changed)
    return 1


def copy_step(shared: int, step: int, values: int) -> int:
    """Let Python make a change that is a copy: 1 or FAILED."""
    call = scratch()
    put_word(call, 0, word(shared, SHARED.COPY))
    put_word(call, 1, word(values, word(step, STEP.GIVEN + word(step, STEP.ARGUMENTS) - 1)))
    put_word(call, 2, word(values, word(step, STEP.GIVEN)))
    answer = vectorcall(word(shared, SHARED.THROUGH), call, 3, 0)
    decref(answer)
    return 1 if answer != 0 else FAILED


def record_step(shared: int, step: int, values: int) -> int:
    """Give a finished tensor its Node: 1; MISS or FAILED."""
    args, inputs, needs_grad = scratch(), word(step, STEP.INPUTS), 0
    fill(step, values, args)
    for k in range(inputs):
        edge = load_word(word(args, k) + word(shared, SHARED.TENSOR_NODE))
        if edge != word(shared, SHARED.NONE):
            needs_grad = 1
    if needs_grad == 0:
        return 1
    recorded = records(shared)
    if recorded != 1:
        return 1 if recorded == 0 else FAILED if recorded < 0 else MISS
    out = word(values, word(step, STEP.MADE))
    saves = word(step, STEP.ARGUMENTS) - inputs
    at = word(shared, SHARED.TENSOR_NODE)
    meta = load_word(out + word(shared, SHARED.TENSOR_META))
    node = bare_node(shared, step, args, inputs, saves, meta)
    if node <= FAILED:
        return node
    number = int_of(word(shared, SHARED.LAST))
    if number == 0 or load_word(out + at) != word(shared, SHARED.NONE):
        decref(number)
        decref(node)
        return FAILED if number == 0 else MISS
    give(node, word(shared, SHARED.NODE_SEQ), number)
    decref(word(shared, SHARED.NONE))
    give(out, at, node)
    return 1


# --- views and Nodes --------------------------------------------------------------------------


def view_step(shared: int, step: int, values: int, at: int) -> int:
    """A tensor on the memory of another: 1, and it is value `at`; MISS or FAILED."""
    x = word(values, word(step, STEP.GIVEN))
    none = word(shared, SHARED.NONE)
    shares = load_word(x + word(shared, SHARED.TENSOR_STORAGE)) != none
    status = own_storage(shared, x)
    if status != 1:
        return status
    storage = load_word(x + word(shared, SHARED.TENSOR_STORAGE))
    first = load_word(x + word(shared, SHARED.TENSOR_REF))
    node = load_word(x + word(shared, SHARED.TENSOR_NODE))
    if (
        storage == 0
        or first == 0
        or node == 0
        or class_of(shared, first) != word(shared, SHARED.INT)
    ):
        return MISS
    base = x
    if shares:
        base = base_of(shared, x)
    ref = int_of(as_int(first) + word(step, STEP.OFFSET))
    if ref == 0 or error_occurred() != 0:
        clear_error()
        decref(ref)
        return MISS
    incref(storage)  # a collection may run what gives the tensor another one
    incref(base)
    out = allocate(word(shared, SHARED.TENSOR), 0)
    if out == 0:
        decref(ref)
        decref(storage)
        decref(base)
        return FAILED
    # its storage first: from then on it owns nothing
    give(out, word(shared, SHARED.TENSOR_STORAGE), storage)
    give(out, word(shared, SHARED.TENSOR_REF), ref)
    lend(out, word(shared, SHARED.TENSOR_META), word(step, STEP.MADE))
    lend(out, word(shared, SHARED.TENSOR_NODE), none)
    if word(step, STEP.KIND) == ALIAS:
        decref(base)
    else:
        give(out, word(shared, SHARED.TENSOR_KIN), base)
        status = noted(shared, step, x, out, base, node)
        if status != 1:
            decref(out)
            return status
    put_word(values, at, out)
    return 1


def base_of(shared: int, x: int) -> int:
    """The tensor that `x` is a view of, or `x`; borrowed."""
    kin = load_word(x + word(shared, SHARED.TENSOR_KIN))
    return kin if kin != 0 and is_tensor(shared, kin) else x


def noted(shared: int, step: int, x: int, out: int, base: int, node: int) -> int:
    """Record a view: its Node, and its place in its base's list.  Return 1, MISS or FAILED."""
    recorded = records(shared)
    if recorded != 1:
        return 1 if recorded == 0 else FAILED if recorded < 0 else MISS
    if node != word(shared, SHARED.NONE):
        args = scratch()
        put_word(args, 0, x)
        node_of_view = bare_node(shared, step, args, 1, 0, word(step, STEP.MADE))
        if node_of_view <= FAILED:
            return node_of_view
        decref(word(shared, SHARED.NONE))
        give(out, word(shared, SHARED.TENSOR_NODE), node_of_view)
        number = int_of(NO_ORIGIN)
        if number == 0:
            return FAILED
        give(node_of_view, word(shared, SHARED.NODE_SEQ), number)
    place = load_word(base + word(shared, SHARED.TENSOR_NODE))
    if place == 0:
        return MISS
    if place != word(shared, SHARED.NONE):
        kind = class_of(shared, place)
        if kind == word(shared, SHARED.LEAF):
            return 1
        if kind != word(shared, SHARED.NODE) and kind != word(shared, SHARED.OUTPUT_EDGE):
            return MISS
    return remembered(shared, base, out)


def remembered(shared: int, base: int, view: int) -> int:
    """Let `base` know of a view of it, as `remember_view` does: 1; MISS or FAILED."""
    at = word(shared, SHARED.TENSOR_KIN)
    views = load_word(base + at)
    if views == 0:
        views = new_list(0)
        if views == 0:
            return FAILED
        if load_word(base + at) != 0:
            decref(views)
            return MISS
        give(base, at, views)
    if class_of(shared, views) != word(shared, SHARED.LIST):
        return MISS
    incref(views)
    reference = weak_reference(view, 0)
    if reference == 0:
        decref(views)
        return FAILED
    status = 0
    count = list_size(views)
    last = 0
    if count != 0:
        last = call_nothing(list_item(views, count - 1))
    if last == word(shared, SHARED.NONE) and list_size(views) == count:
        incref(reference)
        status = set_list_item(views, count - 1, reference)  # in place of one that is gone
    else:
        if count >= 16 and count & (count - 1) == 0:
            decref(call_one(word(shared, SHARED.PRUNE), views))
        status = append(views, reference)
    decref(last)
    decref(reference)
    decref(views)
    return 1 if status == 0 and error_occurred() == 0 else FAILED


def bare_node(shared: int, step: int, args: int, inputs: int, saves: int, meta: int) -> int:
    """A Node, of `inputs` and behind them saved tensors, whole but for its number: a new reference;
    MISS or FAILED.
    """
    node = allocate(word(shared, SHARED.NODE), 0)
    if node == 0:
        return FAILED
    edges, metas = new_tuple(inputs), new_tuple(inputs)
    saved, versions, out_metas = new_tuple(saves), new_tuple(saves), new_tuple(1)
    lend(node, word(shared, SHARED.NODE_OPERATOR), word(step, STEP.SITE))
    lend(node, word(shared, SHARED.NODE_ATTRS), word(step, STEP.ATTRS))
    give(node, word(shared, SHARED.NODE_EDGES), edges)
    give(node, word(shared, SHARED.NODE_METAS), metas)
    give(node, word(shared, SHARED.NODE_SAVED), saved)
    give(node, word(shared, SHARED.NODE_VERSIONS), versions)
    give(node, word(shared, SHARED.NODE_OUT_METAS), out_metas)
    if edges == 0 or metas == 0 or saved == 0 or versions == 0 or out_metas == 0:
        decref(node)
        return FAILED
    incref(meta)
    set_tuple_item(out_metas, 0, meta)
    if of_inputs(shared, args, inputs, edges, metas) != 1:
        decref(node)
        return MISS
    for k in range(saves):
        tensor, version = saved_input(shared, word(args, inputs + k))
        if tensor <= FAILED:
            decref(node)
            return tensor
        set_tuple_item(saved, k, tensor)
        set_tuple_item(versions, k, version)
    return int(node)


def pieces_step(shared: int, step: int, values: int) -> int:
    """Let views of what is a tensor outside of the graph be views of the tensor, and the outputs of
    one Node: 1; MISS or FAILED.
    """
    x, count = word(values, word(step, STEP.GIVEN)), word(step, STEP.ARGUMENTS) - 1
    none, at = word(shared, SHARED.NONE), word(shared, SHARED.TENSOR_NODE)
    base = base_of(shared, x)
    place = load_word(base + at)
    if place == 0 or load_word(x + at) == none:
        return MISS
    in_leaf = place != none and class_of(shared, place) == word(shared, SHARED.LEAF)
    args = scratch()
    put_word(args, 0, x)
    node = bare_node(shared, step, args, 1, 0, none)
    if node <= FAILED:
        return node
    metas, number, status = new_tuple(count), int_of(NO_ORIGIN), 1
    if metas == 0 or number == 0:
        decref(metas)
        decref(number)
        decref(node)
        return FAILED
    give(node, word(shared, SHARED.NODE_SEQ), number)
    for k in range(count):
        out = word(values, word(step, STEP.GIVEN + 1 + k))
        meta = load_word(out + word(shared, SHARED.TENSOR_META))
        incref(meta)
        set_tuple_item(metas, k, meta)
    before = load_word(node + word(shared, SHARED.NODE_OUT_METAS))
    give(node, word(shared, SHARED.NODE_OUT_METAS), metas)
    decref(before)
    for k in range(count):
        out = word(values, word(step, STEP.GIVEN + 1 + k))
        if status == 1:
            status = piece(shared, out, base, node, k if count > 1 else -1)
        if status == 1 and not in_leaf:
            status = remembered(shared, base, out)
    decref(node)
    return status


def piece(shared: int, out: int, base: int, node: int, k: int) -> int:
    """Let a view be one of `base`, and output `k` of a Node, -1: its only one: 1; MISS or
    FAILED.
    """
    none, at = word(shared, SHARED.NONE), word(shared, SHARED.TENSOR_NODE)
    if load_word(out + at) != none:
        return MISS
    kin = load_word(out + word(shared, SHARED.TENSOR_KIN))
    lend(out, word(shared, SHARED.TENSOR_KIN), base)
    decref(kin)
    if k < 0:
        lend(out, at, node)
        decref(none)
        return 1
    edge, index = allocate(word(shared, SHARED.OUTPUT_EDGE), 0), int_of(k)
    if edge == 0 or index == 0:
        decref(edge)
        decref(index)
        return FAILED
    lend(edge, word(shared, SHARED.EDGE_NODE), node)
    give(edge, word(shared, SHARED.EDGE_INDEX), index)
    give(out, at, edge)
    decref(none)
    return 1
