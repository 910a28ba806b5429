"""What a call makes: its output, and the Node that leads its gradient back."""

from __future__ import annotations

from flowvm.eager.native.cpython import (
    allocate,
    as_int,
    call_nothing,
    call_one,
    clear_error,
    decref,
    incref,
    int_of,
    new_tuple,
    set_tuple_item,
    tuple_item,
    word,
)
from flowvm.eager.native.reading import argument, class_of
from flowvm.eager.native.words import FAILED, MISS, SHARED, SITE
from flowvm.vm.machine.lang import load_word, store_word

INLINE_ALWAYS = True


def give(x: int, at: int, value: int) -> None:
    """Set an empty slot of `x` to a reference that is stolen."""
    store_word(x + at, value)


def lend(x: int, at: int, value: int) -> None:
    """Set an empty slot of `x` to a reference of its own."""
    incref(value)
    store_word(x + at, value)


def new_output(shared: int, made: int, k: int) -> int:
    """Output `k`: a tensor with a storage id and the entry's meta: a new reference; MISS where no
    id is free, which the twin sees to; or FAILED.
    """
    out = allocate(word(shared, SHARED.TENSOR), 0)
    if out == 0:
        return FAILED
    number = call_nothing(word(shared, SHARED.POP))
    if number == 0:
        clear_error()
        decref(out)
        return MISS
    give(out, word(shared, SHARED.TENSOR_REF), number)
    lend(out, word(shared, SHARED.TENSOR_META), tuple_item(made, 1 + k))
    lend(out, word(shared, SHARED.TENSOR_NODE), word(shared, SHARED.NONE))
    lend(out, word(shared, SHARED.TENSOR_STORAGE), word(shared, SHARED.NONE))
    return int(out)


def own_storages(shared: int, site: int, args: int) -> int:
    """Give each tensor that is to be written, all of which are whole, a Storage of its own, if it
    has none: 1; MISS or FAILED.
    """
    for k in range(word(site, SITE.WRITES)):
        done = own_storage(shared, word(args, word(site, SITE.WRITTEN + k)))
        if done != 1:
            return done
    return 1


def own_storage(shared: int, x: int) -> int:
    """The same of one tensor."""
    none, at = word(shared, SHARED.NONE), word(shared, SHARED.TENSOR_STORAGE)
    if load_word(x + at) != none:
        return 1
    version = int_of(0)
    if version == 0:
        return FAILED
    storage = allocate(word(shared, SHARED.STORAGE), 0)
    if storage == 0:
        decref(version)
        return FAILED
    give(storage, word(shared, SHARED.STORAGE_VERSION), version)
    number = load_word(x + word(shared, SHARED.TENSOR_REF))
    if load_word(x + at) != none or number == 0:  # a collection came in between
        decref(storage)
        return MISS
    # the storage owns what the tensor owned; nothing can come in between
    lend(storage, word(shared, SHARED.STORAGE_ID), number)
    give(x, at, storage)
    decref(none)
    return 1


def count_changes(shared: int, site: int, args: int) -> int:
    """Count a change of each tensor that was written, all of which are counted: 1, or FAILED."""
    for k in range(word(site, SITE.WRITES)):
        if count_change(shared, word(args, word(site, SITE.WRITTEN + k))) != 1:
            return FAILED
    return 1


def count_change(shared: int, x: int) -> int:
    """The same of one tensor."""
    storage = load_word(x + word(shared, SHARED.TENSOR_STORAGE))
    before = load_word(storage + word(shared, SHARED.STORAGE_VERSION))
    version = int_of(as_int(before) + 1)
    if version == 0:
        return FAILED
    give(storage, word(shared, SHARED.STORAGE_VERSION), version)
    decref(before)
    return 1


def new_node(shared: int, site: int, args: int, kind: int, made: int, outs: int) -> int:
    """The Node of the call, whole but for its number: a new reference; MISS or FAILED."""
    node = allocate(word(shared, SHARED.NODE), 0)
    if node == 0:
        return FAILED
    inputs, saves = word(site, SITE.INPUTS), word(site, SITE.SAVES)
    rest = word(site, SITE.ATTRS) + word(site, SITE.SCALARS)
    edges, metas = new_tuple(inputs), new_tuple(inputs)
    saved, versions = new_tuple(saves), new_tuple(saves)
    live = word(site, SITE.LIVE)
    attrs, out_metas = new_tuple(rest), new_tuple(live)
    lend(node, word(shared, SHARED.NODE_OPERATOR), word(site, SITE.OPERATOR))
    give(node, word(shared, SHARED.NODE_EDGES), edges)
    give(node, word(shared, SHARED.NODE_METAS), metas)
    give(node, word(shared, SHARED.NODE_SAVED), saved)
    give(node, word(shared, SHARED.NODE_VERSIONS), versions)
    give(node, word(shared, SHARED.NODE_ATTRS), attrs)
    give(node, word(shared, SHARED.NODE_OUT_METAS), out_metas)
    if edges == 0 or metas == 0 or saved == 0 or versions == 0 or attrs == 0 or out_metas == 0:
        decref(node)
        return FAILED
    if of_inputs(shared, args, inputs, edges, metas) != 1:
        decref(node)
        return MISS
    for k in range(rest):
        value = argument(args, inputs + k, kind)
        incref(value)
        set_tuple_item(attrs, k, value)
    for k in range(live):
        meta = tuple_item(made, 1 + k)
        incref(meta)
        set_tuple_item(out_metas, k, meta)
    for k in range(saves):
        place = word(site, SITE.SAVED + k)
        if place < 0:
            tensor, version = saved_output(shared, tuple_item(made, -place), word(outs, -1 - place))
        else:
            tensor, version = saved_input(shared, word(args, place))
        if tensor <= FAILED:
            decref(node)
            return tensor
        set_tuple_item(saved, k, tensor)
        set_tuple_item(versions, k, version)
    return int(node)


def of_inputs(shared: int, args: int, inputs: int, edges: int, metas: int) -> int:
    """Fill the tuples that a Node has of its inputs, their edges and metas: 1; MISS where one of
    them is half made.
    """
    for k in range(inputs):
        x = word(args, k)
        edge = load_word(x + word(shared, SHARED.TENSOR_NODE))
        meta = load_word(x + word(shared, SHARED.TENSOR_META))
        if edge == 0 or meta == 0:
            return MISS
        incref(edge)
        set_tuple_item(edges, k, edge)
        incref(meta)
        set_tuple_item(metas, k, meta)
    return 1


def saved_input(shared: int, x: int) -> tuple[int, int]:
    """A tensor that is saved and the version that it has: new references; MISS or FAILED."""
    storage = load_word(x + word(shared, SHARED.TENSOR_STORAGE))
    version = 0
    if storage == word(shared, SHARED.NONE):
        version = int_of(0)
    elif storage != 0 and class_of(shared, storage) == word(shared, SHARED.STORAGE):
        version = load_word(storage + word(shared, SHARED.STORAGE_VERSION))
        incref(version)
    if version == 0:
        return MISS, 0
    incref(x)
    return x, version


def saved_output(shared: int, meta: int, out: int) -> tuple[int, int]:
    """An output outside of the graph, which is a tensor of its own on the same storage, and its
    version: new references; or FAILED.
    """
    storage = allocate(word(shared, SHARED.STORAGE), 0)
    if storage == 0:
        return FAILED, 0
    alias, version = allocate(word(shared, SHARED.TENSOR), 0), int_of(0)
    if alias == 0 or version == 0:
        decref(storage)  # it has no id yet
        decref(alias)
        decref(version)
        return FAILED, 0
    number = load_word(out + word(shared, SHARED.TENSOR_REF))
    lend(storage, word(shared, SHARED.STORAGE_VERSION), version)
    # from here on the storage owns what the tensor owned; nothing can come in between
    lend(storage, word(shared, SHARED.STORAGE_ID), number)
    lend(alias, word(shared, SHARED.TENSOR_STORAGE), storage)
    decref(word(shared, SHARED.NONE))
    give(out, word(shared, SHARED.TENSOR_STORAGE), storage)
    lend(alias, word(shared, SHARED.TENSOR_REF), number)
    lend(alias, word(shared, SHARED.TENSOR_META), meta)
    lend(alias, word(shared, SHARED.TENSOR_NODE), word(shared, SHARED.NONE))
    return alias, version


def attach(shared: int, out: int, node: int) -> None:
    """Let the output lead to its Node, a reference that is stolen."""
    decref(word(shared, SHARED.NONE))
    give(out, word(shared, SHARED.TENSOR_NODE), node)


def finish(shared: int, number: int) -> int:
    """What is due behind a record: 1, or FAILED."""
    answer = call_one(word(shared, SHARED.FINISH), number)
    if answer == 0:
        return FAILED
    decref(answer)
    return 1
