"""One native call, step by step: what CPython calls instead of an operator's Python function.

It does what that function's text says (`flowvm.eager.calls`, the operator's *twin*), for calls that
are as most are: plain tensors and numbers, metas that were seen before, no thread in a region that
changes what calls mean.  Everything else is a *miss*, and the twin makes the call from its
beginning; so up to the sequence number nothing is done that may not be dropped again.
"""

from __future__ import annotations

from flowvm.eager.native.arguments import (
    all_counted,
    all_whole,
    any_node,
    bits_of_scalars,
    departs,
    entry_of,
    frees_first,
    number_class,
    refs_of,
)
from flowvm.eager.native.cpython import (
    as_int,
    decref,
    error_occurred,
    incref,
    list_size,
    new_tuple,
    next_item,
    put_word,
    scratch,
    set_tuple_item,
    word,
)
from flowvm.eager.native.node import attach, new_node
from flowvm.eager.native.origin import place
from flowvm.eager.native.record import counter_of, finish, has_room, is_due, publish, release
from flowvm.eager.native.regions import records
from flowvm.eager.native.tensor import (
    class_of,
    count_change,
    count_changes,
    is_unrecorded,
    new_output,
    own_storage,
    own_storages,
    renewal_of,
)
from flowvm.eager.native.words import FAILED, MISS, SHARED, SITE
from flowvm.vm.machine.lang import load_word, store_word

KEEP_DEAD = 15  # as `flowvm.eager.calls` has it


def issue_call(site: int, args: int, count: int) -> int:
    """The output, a new reference; MISS or FAILED."""
    shared = word(site, SITE.SHARED)
    if count != word(site, SITE.ARGUMENTS) or departs(shared, site):
        return MISS
    kind = 0
    if word(site, SITE.NUMBERED) != 0:
        kind = number_class(shared, word(args, 1))
        if kind != 0:
            site = word(site, SITE.NUMBERED)
    if not all_whole(shared, site, args):
        return MISS
    renewal = renewal_of(shared)
    entry = entry_of(shared, site, args, kind)
    if entry <= FAILED:
        return entry
    result = issue_as(shared, site, args, kind, entry, renewal)
    decref(entry)
    return result


def issue_as(shared: int, site: int, args: int, kind: int, entry: int, renewal: int) -> int:
    """Issue a call whose entry is known, as it was behind a renewal.  Return the output, a new
    reference; MISS or FAILED.
    """
    if word(site, SITE.WRITES) != 0:
        return change(shared, site, args, kind, entry, renewal)
    outs = scratch()
    status = issue_into(shared, site, args, kind, entry, renewal, outs)
    if status != 1:
        return status
    if word(site, SITE.OUTPUTS) == 1:
        return word(outs, 0)
    return tuple_of(outs, word(site, SITE.OUTPUTS))


def tuple_of(values: int, count: int) -> int:
    """A tuple of `count` references, which are stolen; FAILED."""
    result = new_tuple(count)
    for k in range(count):
        if result == 0:
            decref(word(values, k))
        else:
            set_tuple_item(result, k, word(values, k))
    return int(result)


def issue_into(
    shared: int, site: int, args: int, kind: int, entry: int, renewal: int, outs: int
) -> int:
    """Issue a call of an operator that writes nothing, with its entry: 1, and the outputs are words
    of `outs`, new references; MISS or FAILED.
    """
    bits = scratch()
    if not bits_of_scalars(shared, site, entry, args, kind, bits):
        return MISS
    if frees_first(shared, entry):
        freed = release_dead(shared)
        if freed != 1:
            return freed
    recorded = 0
    if word(site, SITE.OPERATOR) != 0 and any_node(shared, site, args):
        recorded = records(shared)
        if recorded < 0:
            return FAILED
        if recorded > 1 or (recorded == 1 and word(site, SITE.LIVE) > 1):
            return MISS
    count = word(site, SITE.OUTPUTS)
    for k in range(count):
        out = new_output(shared, entry, k)
        if out <= FAILED:
            drop(outs, k)
            return out
        put_word(outs, k, out)
    node = 0
    if recorded != 0:
        node = new_node(shared, site, args, kind, entry, outs)
        if node <= FAILED:
            drop(outs, count)
            return node
    status = publish_call(shared, site, args, bits, entry, renewal, outs, count, node)
    if status <= FAILED:
        decref(node)
        drop(outs, count)
        return status
    if node != 0:
        attach(shared, word(outs, 0), node)
    return 1


def drop(values: int, count: int) -> None:
    """Drop `count` references."""
    for k in range(count):
        decref(word(values, k))


def change(shared: int, site: int, args: int, kind: int, entry: int, renewal: int) -> int:
    """Issue a call of an operator that writes.  Return its first written input, a new reference;
    MISS or FAILED.
    """
    bits = scratch()
    if not bits_of_scalars(shared, site, entry, args, kind, bits):
        return MISS
    over, status = 0, 1
    if frees_first(shared, entry):
        status = release_dead(shared)
    if status == 1 and word(site, SITE.OVER) != 0:
        over, status = 1, goes_over(shared, site, args)
    if status == 1:
        status = own_storages(shared, site, args)
    if status == 1:
        status = publish_call(shared, site, args, bits, entry, renewal, args, over, 0)
    if status != 1:
        return status
    written = word(args, word(site, SITE.WRITTEN))
    incref(written)
    return written


def change_into(shared: int, site: int, args: int, entry: int, renewal: int, out: int) -> int:
    """Issue a call of an operator whose output goes into a tensor that is there, a word at `out`:
    1; MISS if that might be recorded; FAILED.
    """
    target, recorded = word(out, 0), records(shared)
    if recorded < 0:
        return FAILED
    if recorded == 1 and (any_node(shared, site, args) or is_recorded(shared, target)):
        return MISS
    bits = scratch()
    if recorded > 1 or not bits_of_scalars(shared, site, entry, args, 0, bits):
        return MISS
    status = own_storage(shared, target)
    if status == 1:
        status = publish_call(shared, site, args, bits, entry, renewal, out, 1, 0)
    return count_change(shared, target) if status == 1 else status


def is_recorded(shared: int, x: int) -> bool:
    """Return True if a tensor, or its base, has a place in the autograd graph."""
    kin = load_word(x + word(shared, SHARED.TENSOR_KIN))
    is_view = kin != 0 and class_of(shared, kin) != word(shared, SHARED.LIST)
    return not is_unrecorded(shared, x) or (is_view and not is_unrecorded(shared, kin))


def goes_over(shared: int, site: int, args: int) -> int:
    """Return 1 if the result may go over the first input; MISS if that might be recorded or changes
    another operand; FAILED.
    """
    recorded = records(shared)
    if recorded < 0:
        return FAILED
    x = word(args, 0)
    if recorded > 1 or (recorded == 1 and any_node(shared, site, args)):
        return MISS
    if recorded == 1 and is_recorded(shared, x):
        return MISS
    storage = load_word(x + word(shared, SHARED.TENSOR_STORAGE))
    for k in range(1, word(site, SITE.INPUTS)):
        other = load_word(word(args, k) + word(shared, SHARED.TENSOR_STORAGE))
        if other == storage and other != word(shared, SHARED.NONE) and word(args, k) != x:
            return MISS
    return 1


def publish_call(
    shared: int,
    site: int,
    args: int,
    bits: int,
    entry: int,
    renewal: int,
    outs: int,
    count: int,
    node: int,
) -> int:
    """Publish the record, which begins with the tensors that `count` words of `outs` have, and do
    what is due behind it: 1; MISS, before there is one; FAILED.
    """
    code, last = place(shared)
    if code <= FAILED:
        return code
    numbers, refs = counter_of(shared), scratch()
    # what ran since `all_whole` might have changed an operand, or given one another meta than the
    # entry is for, and other memory; from here on nothing runs
    if (
        numbers <= FAILED
        or renewal_of(shared) != renewal
        or not refs_of(shared, site, args, refs)
        or not all_counted(shared, site, args)
    ):
        decref(code)
        decref(last)
        if numbers != FAILED and numbers != MISS:
            decref(numbers)
            numbers = MISS
        return numbers
    number = next_item(numbers)
    if number == 0:
        decref(numbers)
        decref(code)
        decref(last)
        return FAILED if error_occurred() != 0 else MISS
    seq = as_int(number)
    publish(shared, site, refs, bits, entry, outs, count, seq, code, last)
    decref(numbers)
    put_word(site, SITE.HITS, word(site, SITE.HITS) + 1)
    put_word(shared, SHARED.LAST, seq)
    if node != 0:
        incref(number)
        store_word(node + word(shared, SHARED.NODE_SEQ), number)
    dead = 0 if seq & KEEP_DEAD != 0 else list_size(word(shared, SHARED.DEAD))
    status = count_changes(shared, site, args)
    if status == 1 and dead != 0 and has_room(shared, seq):
        status = release_dead(shared)
        dead = 0 if status == 1 else list_size(word(shared, SHARED.DEAD))
        status = FAILED if status == FAILED else 1
    if status == 1 and is_due(shared, seq, dead):
        status = finish(shared, number)
    decref(number)
    return status


def release_dead(shared: int) -> int:
    """Release the dead storages: 1; MISS where the Python function is to; FAILED."""
    while list_size(word(shared, SHARED.DEAD)) != 0:
        number = release(shared)
        if number <= FAILED:
            return number
        seq, status = as_int(number), 1
        if is_due(shared, seq, 0):
            status = finish(shared, number)
        decref(number)
        if status != 1:
            return FAILED
    return 1
