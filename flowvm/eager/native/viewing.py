"""Views and Nodes that a course makes: tensors on another's memory, which their base knows of."""

from __future__ import annotations

from flowvm.eager.native.cpython import (
    allocate,
    append,
    as_int,
    call_nothing,
    call_one,
    clear_error,
    decref,
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
    weak_reference,
    word,
)
from flowvm.eager.native.making import give, lend, of_inputs, own_storage, saved_input
from flowvm.eager.native.reading import class_of, is_tensor
from flowvm.eager.native.regions import records
from flowvm.eager.native.words import ALIAS, FAILED, MISS, SHARED, STEP
from flowvm.vm.callers.lines import NO_ORIGIN
from flowvm.vm.machine.lang import load_word


def view_step(shared: int, step: int, values: int, at: int) -> int:
    """A tensor on the memory of another: 1, and it is value `at`; MISS or FAILED."""
    x = word(values, word(step, STEP.GIVEN))
    none = word(shared, SHARED.NONE)
    shares = load_word(x + word(shared, SHARED.TENSOR_STORAGE)) != none
    done = own_storage(shared, x)
    if done != 1:
        return done
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
    out = allocate(word(shared, SHARED.TENSOR), 0)
    if out == 0:
        decref(ref)
        return FAILED
    # its storage first: from then on it owns nothing
    lend(out, word(shared, SHARED.TENSOR_STORAGE), storage)
    give(out, word(shared, SHARED.TENSOR_REF), ref)
    lend(out, word(shared, SHARED.TENSOR_META), word(step, STEP.MADE))
    lend(out, word(shared, SHARED.TENSOR_NODE), none)
    if word(step, STEP.KIND) != ALIAS:
        lend(out, word(shared, SHARED.TENSOR_KIN), base)
        done = noted(shared, step, x, out, base, node)
        if done != 1:
            decref(out)
            return done
    put_word(values, at, out)
    return 1


def base_of(shared: int, x: int) -> int:
    """The tensor that `x` is a view of, or `x`; borrowed."""
    kin = load_word(x + word(shared, SHARED.TENSOR_KIN))
    return kin if kin != 0 and is_tensor(shared, kin) else x


def noted(shared: int, step: int, x: int, out: int, base: int, node: int) -> int:
    """What is recorded of a view: its Node, and that its base has it: 1; MISS or FAILED."""
    recorded = records(shared)
    if recorded != 1:
        return 1 if recorded == 0 else FAILED if recorded < 0 else MISS
    if node != word(shared, SHARED.NONE):
        args = scratch()
        put_word(args, 0, x)
        made = bare_node(shared, step, args, 1, 0, word(step, STEP.MADE))
        if made <= FAILED:
            return made
        decref(word(shared, SHARED.NONE))
        give(out, word(shared, SHARED.TENSOR_NODE), made)
        number = int_of(NO_ORIGIN)
        if number == 0:
            return FAILED
        give(made, word(shared, SHARED.NODE_SEQ), number)
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
    reference = weak_reference(view, 0)
    if reference == 0:
        return FAILED
    incref(views)
    done = 0
    count = list_size(views)
    last = 0
    if count != 0:
        last = call_nothing(list_item(views, count - 1))
    if last == word(shared, SHARED.NONE) and list_size(views) == count:
        incref(reference)
        done = set_list_item(views, count - 1, reference)  # in place of one that is gone
    else:
        if count >= 16 and count & (count - 1) == 0:
            decref(call_one(word(shared, SHARED.PRUNE), views))
        done = append(views, reference)
    decref(last)
    decref(reference)
    decref(views)
    return 1 if done == 0 and error_occurred() == 0 else FAILED


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
    metas, number, done = new_tuple(count), int_of(NO_ORIGIN), 1
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
        if done == 1:
            done = piece(shared, out, base, node, k if count > 1 else -1)
        if done == 1 and not in_leaf:
            done = remembered(shared, base, out)
    decref(node)
    return done


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
