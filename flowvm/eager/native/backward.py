"""Backward's loop over nodes that are ready, as far as all is as usual: `_run` of
`flowvm.autograd.engine` says what it means, and goes on where this stops.

A node is looked at where it is, last in `ready`, and its gradient in `grads`.  Both stay there
until nothing can be left to Python any more; so it finds them as if nobody had looked.
"""

from __future__ import annotations

from flowvm.eager.native.cpython import (
    append,
    as_int,
    call_nothing,
    call_one,
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
    put_word,
    scratch,
    set_list_item,
    set_list_slice,
    tuple_item,
    tuple_size,
    vectorcall,
    word,
)
from flowvm.eager.native.following import by_course
from flowvm.eager.native.lines import are_tuples
from flowvm.eager.native.making import give
from flowvm.eager.native.reading import class_of, is_tensor, is_whole
from flowvm.eager.native.words import FAILED, LEARN, MISS, SHARED, SITE
from flowvm.vm.callers.lines import UNKNOWN
from flowvm.vm.machine.lang import load_word


def gone_back(site: int, args: int, count: int) -> int:
    """Run nodes of `ready` for `(ready, grads, counts, here, keep_graph)` until there is none, or
    one for Python: None, a new reference; MISS; FAILED, and the node that failed is still there.
    """
    shared = word(site, SITE.SHARED)
    if count != 5 or class_of(shared, word(args, 0)) != word(shared, SHARED.LIST):
        return MISS
    ready, done = word(args, 0), 1
    while done == 1 and list_size(ready) > 0:
        node = list_item(ready, list_size(ready) - 1)
        g = dict_item(word(args, 1), node)
        if g == 0 or not is_whole(shared, g):
            done = FAILED if error_occurred() != 0 else MISS
            continue
        incref(node)
        incref(g)
        if class_of(shared, node) == word(shared, SHARED.LEAF):
            done = stored(shared, args, node, g)
        elif class_of(shared, node) == word(shared, SHARED.NODE):
            done = run(shared, word(site, SITE.NUMBERED), args, node, g)
        else:
            done = MISS
        decref(g)
        decref(node)
    if done == FAILED:
        return FAILED
    incref(word(shared, SHARED.NONE))
    return word(shared, SHARED.NONE)


def taken(args: int, node: int) -> int:
    """Take a node, which is the last, from `ready`, and its gradient from `grads`: 1 or FAILED."""
    ready = word(args, 0)
    last = list_size(ready) - 1
    if dict_delete(word(args, 1), node) != 0 or set_list_slice(ready, last, last + 1, 0) != 0:
        return FAILED
    return 1


def stored(shared: int, args: int, leaf: int, g: int) -> int:
    """Add a gradient to the leaf's `.grad`, or make it that: 1; MISS or FAILED."""
    hooks = load_word(leaf + word(shared, SHARED.LEAF_HOOKS))
    after = load_word(leaf + word(shared, SHARED.LEAF_AFTER))
    weak = load_word(leaf + word(shared, SHARED.LEAF_TENSOR))
    if hooks == 0 or after == 0 or weak == 0 or dict_size(hooks) + dict_size(after) != 0:
        return FAILED if error_occurred() != 0 else MISS
    tensor = call_nothing(weak)
    if tensor == 0:
        return FAILED
    done = MISS
    if is_tensor(shared, tensor) and is_whole(shared, tensor):
        node = load_word(tensor + word(shared, SHARED.TENSOR_NODE))
        meta = load_word(tensor + word(shared, SHARED.TENSOR_META))
        if node == leaf and class_of(shared, meta) == word(shared, SHARED.META):
            done = added(shared, tensor, g)
    if done == 1:
        done = taken(args, leaf)
    decref(tensor)
    return done


def added(shared: int, tensor: int, g: int) -> int:
    """Add to the `.grad` of a tensor, or set it: 1; MISS or FAILED."""
    at, name = word(shared, SHARED.TENSOR_EXTRA), word(shared, SHARED.GRAD_NAME)
    extra, old = load_word(tensor + at), 0
    if extra != 0:
        old = dict_item(extra, name)
        if old == 0 and error_occurred() != 0:
            return FAILED
    if old == 0 or old == word(shared, SHARED.NONE):
        return put_grad(shared, tensor, g)
    if word(shared, SHARED.ADD) == 0:
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
    before = begun(shared, word(args, 3), node)
    if before <= FAILED:
        return before
    given = scratch()
    put_word(given, 0, node)
    put_word(given, 1, g)
    results = by_course(gradients, given, 2, 0)
    done = 1
    if results == FAILED:
        done = FAILED
    elif results in (MISS, LEARN):
        done = MISS
    elif not are_tuples(shared, results, results) or tuple_size(results) != tuple_size(edges):
        decref(results)
        done = MISS
    if done != 1:  # Python begins the node once more, or says whose error it is
        if set_list_item(word(args, 3), 1, before) != 0:
            return FAILED
        return done
    decref(before)
    done = taken(args, node)
    if done == 1 and is_true(word(args, 4)) == 0:
        saved = load_word(node + word(shared, SHARED.NODE_SAVED))
        if saved != 0 and saved != word(shared, SHARED.NONE):
            incref(word(shared, SHARED.NONE))
            give(node, word(shared, SHARED.NODE_SAVED), word(shared, SHARED.NONE))
            decref(saved)
    for k in range(tuple_size(edges)):
        if done == 1 and tuple_item(edges, k) != word(shared, SHARED.NONE):
            done = sent(shared, args, node, tuple_item(edges, k), tuple_item(results, k),
                        tuple_item(metas, k))  # fmt: skip
    decref(results)
    return done


def begun(shared: int, here: int, node: int) -> int:
    """Let what is issued from now on belong to a node: what was said before, a new reference; MISS
    or FAILED.
    """
    seq = load_word(node + word(shared, SHARED.NODE_SEQ))
    if class_of(shared, here) != word(shared, SHARED.LIST) or list_size(here) != 2 or seq == 0:
        return MISS
    before = list_item(here, 1)
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
    if now == 0 or set_list_item(here, 1, now) != 0:
        decref(before)
        return FAILED
    return int(before)


def sent(shared: int, args: int, node: int, edge: int, result: int, meta: int) -> int:
    """Send a gradient down an edge, to a node, one of its outputs, or a leaf: 1 or FAILED."""
    ready, grads, counts, target = word(args, 0), word(args, 1), word(args, 2), edge
    if class_of(shared, edge) == word(shared, SHARED.OUTPUT_EDGE):
        target = load_word(edge + word(shared, SHARED.EDGE_NODE))
    left = dict_item(counts, target)
    if left == 0:
        return FAILED if error_occurred() != 0 else 1
    waiting = as_int(left)
    if result != word(shared, SHARED.NONE):
        done = arrived(shared, grads, node, edge, result, meta)
        if done != 1:
            return done
    if waiting == 1:
        return 1 if append(ready, target) == 0 else FAILED
    number = int_of(waiting - 1)
    if number == 0:
        return FAILED
    failed = dict_set(counts, target, number)
    decref(number)
    return 1 if failed == 0 else FAILED


def arrived(shared: int, grads: int, node: int, edge: int, result: int, meta: int) -> int:
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
    done = 1
    several = class_of(shared, edge) == word(shared, SHARED.OUTPUT_EDGE)
    if not several and dict_item(grads, edge) == 0:
        if error_occurred() != 0 or dict_set(grads, edge, result) != 0:
            done = FAILED
    else:
        put_word(call, 0, grads)
        put_word(call, 1, edge)
        put_word(call, 2, result)
        put_word(call, 3, word(shared, SHARED.NO_GRAPH))
        answer = vectorcall(word(shared, SHARED.ARRIVE), call, 4, 0)
        if answer == 0:
            done = FAILED
        decref(answer)
    decref(result)
    return done
