"""The Node of a call, which leads its gradient back."""

from __future__ import annotations

from flowvm.eager.native.arguments import argument
from flowvm.eager.native.cpython import (
    allocate,
    decref,
    incref,
    int_of,
    new_tuple,
    set_tuple_item,
    word,
)
from flowvm.eager.native.tensor import class_of, give, lend, output_meta
from flowvm.eager.native.words import FAILED, MISS, SHARED, SITE
from flowvm.vm.machine.lang import load_word

INLINE_ALWAYS = True


def new_node(shared: int, site: int, args: int, kind: int, entry: int, outs: int) -> int:
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
        meta = output_meta(shared, entry, k)
        incref(meta)
        set_tuple_item(out_metas, k, meta)
    for k in range(saves):
        place = word(site, SITE.SAVED + k)
        if place < 0:
            meta = output_meta(shared, entry, -1 - place)
            tensor, version = saved_output(shared, meta, word(outs, -1 - place))
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
