"""Tensors as native calls see them: their slots, an output, the Storage of one that is written."""

from __future__ import annotations

from flowvm.eager.native.cpython import (
    allocate,
    as_int,
    call_nothing,
    clear_error,
    decref,
    incref,
    int_of,
    tuple_item,
    word,
)
from flowvm.eager.native.words import FAILED, MISS, SHARED, SITE
from flowvm.vm.machine.lang import load_word, store_word

INLINE_ALWAYS = True


def class_of(shared: int, x: int) -> int:
    """The class of an object; borrowed."""
    return load_word(x + word(shared, SHARED.TYPE_AT))


def is_tensor(shared: int, x: int) -> bool:
    """Return True if `x` is a Tensor or Parameter, whole or not."""
    kind = class_of(shared, x)
    return kind == word(shared, SHARED.TENSOR) or kind == word(shared, SHARED.PARAMETER)


def is_unrecorded(shared: int, x: int) -> bool:
    """Return True if `x` is a tensor that has no place in the autograd graph."""
    if not is_tensor(shared, x):
        return False
    return load_word(x + word(shared, SHARED.TENSOR_NODE)) == word(shared, SHARED.NONE)


def is_whole(shared: int, x: int) -> bool:
    """Return True if `x` is a tensor that has all that a call reads."""
    if not is_tensor(shared, x):
        return False
    if load_word(x + word(shared, SHARED.TENSOR_META)) == 0:
        return False
    if load_word(x + word(shared, SHARED.TENSOR_NODE)) == 0:
        return False
    if load_word(x + word(shared, SHARED.TENSOR_STORAGE)) == 0:
        return False
    ref = load_word(x + word(shared, SHARED.TENSOR_REF))
    return ref != 0 and class_of(shared, ref) == word(shared, SHARED.INT)


def renewal_of(shared: int) -> int:
    """Return the number of the last renewal (`flowvm.eager.tensor.renew`).

    While it is the same, a meta that was looked at is still that of a tensor's operand word.
    """
    return load_word(word(shared, SHARED.RENEWALS))


def give(x: int, at: int, value: int) -> None:
    """Set an empty slot of `x` to a reference that is stolen."""
    store_word(x + at, value)


def lend(x: int, at: int, value: int) -> None:
    """Set an empty slot of `x` to a reference of its own."""
    incref(value)
    store_word(x + at, value)


def output_meta(shared: int, entry: int, k: int) -> int:
    """The meta of output `k` of an entry; borrowed."""
    return int(tuple_item(load_word(entry + word(shared, SHARED.CALL_OUTPUTS)), k))


def new_output(shared: int, entry: int, k: int) -> int:
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
    lend(out, word(shared, SHARED.TENSOR_META), output_meta(shared, entry, k))
    lend(out, word(shared, SHARED.TENSOR_NODE), word(shared, SHARED.NONE))
    lend(out, word(shared, SHARED.TENSOR_STORAGE), word(shared, SHARED.NONE))
    return int(out)


def own_storages(shared: int, site: int, args: int) -> int:
    """Give each tensor that is to be written, all of which are whole, a Storage of its own, if it
    has none: 1; MISS or FAILED.
    """
    for k in range(word(site, SITE.WRITES)):
        status = own_storage(shared, word(args, word(site, SITE.WRITTEN + k)))
        if status != 1:
            return status
    return 1


def own_storage(shared: int, x: int) -> int:
    """Give one tensor, which is whole, a Storage of its own if it has none.  Return 1, MISS or
    FAILED.
    """
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
    """Count a change of one tensor.  Return 1, or FAILED."""
    storage = load_word(x + word(shared, SHARED.TENSOR_STORAGE))
    before = load_word(storage + word(shared, SHARED.STORAGE_VERSION))
    version = int_of(as_int(before) + 1)
    if version == 0:
        return FAILED
    give(storage, word(shared, SHARED.STORAGE_VERSION), version)
    decref(before)
    return 1
