"""One native call, step by step: what CPython calls instead of an operator's Python function.

It does what that function's text says (`flowvm.eager.calls`, the operator's *twin*), for calls that
are as most are: plain tensors and numbers, metas that were seen before, no thread in a region that
changes what calls mean.  Everything else is a *miss*, and the twin makes the call from its
beginning; so up to the sequence number nothing is done that may not be dropped again.
"""

from __future__ import annotations

from collections.abc import Callable

from flowvm.eager.native.cpython import (
    append,
    as_int,
    clear_error,
    decref,
    dict_item,
    error_occurred,
    incref,
    list_size,
    next_item,
    put_word,
    vectorcall,
    word,
)
from flowvm.eager.native.making import (
    attach,
    count_changes,
    finish,
    new_node,
    new_output,
    own_storages,
    records,
)
from flowvm.eager.native.places import place
from flowvm.eager.native.publishing import counter_of, is_due, publish, release
from flowvm.eager.native.reading import (
    all_counted,
    all_whole,
    any_node,
    departs,
    entry_of,
    frees_first,
    is_tensor,
    is_unrecorded,
    number_class,
    scalars_fit,
)
from flowvm.eager.native.words import FAILED, MISS, SHARED, SITE
from flowvm.vm.machine.lang import load_word, store_word

SIGNATURE = "int64(int64, int64, int64, int64)"
COUNT = (1 << 63) - 1  # of CPython's count of arguments, all but its flag
KEEP_DEAD = 15  # as `flowvm.eager.calls` has it


def entry(site_at: int) -> Callable[[int, int, int, int], int]:
    """What CPython calls; the address of the SITE is `site_at` bytes into the called object."""

    def call(self: int, args: int, count: int, names: int) -> int:
        site = load_word(self + site_at)
        if names == 0:
            result = issued(site, args, count & COUNT)
            if result != MISS:
                return result
        put_word(site, SITE.MISSES, word(site, SITE.MISSES) + 1)
        return int(vectorcall(word(site, SITE.TWIN), args, count, names))

    return call


def death(site_at: int) -> Callable[[int, int, int, int], int]:
    """The same for `Tensor.__del__`, which is a Python frame for every tensor otherwise."""

    def call(self: int, args: int, count: int, names: int) -> int:
        site = load_word(self + site_at)
        shared = word(site, SITE.SHARED)
        if names != 0 or count & COUNT != 1 or not is_tensor(shared, word(args, 0)):
            return int(vectorcall(word(site, SITE.TWIN), args, count, names))
        x = word(args, 0)
        number = load_word(x + word(shared, SHARED.TENSOR_REF))
        owns = load_word(x + word(shared, SHARED.TENSOR_STORAGE)) == word(shared, SHARED.NONE)
        if owns and number != 0 and append(word(shared, SHARED.DEAD), number) != 0:
            return FAILED
        incref(word(shared, SHARED.NONE))
        return word(shared, SHARED.NONE)

    return call


def issued(site: int, args: int, count: int) -> int:
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
    made = entry_of(shared, site, args, kind)
    if made <= FAILED:
        return made
    result = issued_as(shared, site, args, kind, made)
    decref(made)
    return result


def issued_as(shared: int, site: int, args: int, kind: int, made: int) -> int:
    """The same, with the call's entry."""
    if frees_first(shared, made) or not scalars_fit(shared, site, made, args, kind):
        return MISS
    if word(site, SITE.WRITES) != 0:
        return changed(shared, site, args, kind, made)
    recorded = 0
    if word(site, SITE.OPERATOR) != 0 and any_node(shared, site, args):
        recorded = records(shared)
        if recorded < 0:
            return FAILED
        if recorded > 1:
            return MISS
    out = new_output(shared, made)
    if out <= FAILED:
        return out
    node = 0
    if recorded != 0:
        node = new_node(shared, site, args, kind, made, out)
        if node <= FAILED:
            decref(out)
            return node
    done = published(shared, site, args, kind, made, out, node)
    if done <= FAILED:
        decref(node)
        decref(out)
        return done
    if node != 0:
        attach(shared, out, node)
    return out


def changed(shared: int, site: int, args: int, kind: int, made: int) -> int:
    """The same of an operator that writes: the first input that it does."""
    over, done = 0, 1
    if word(site, SITE.OVER) != 0:
        over, done = word(args, 0), goes_over(shared, site, args)
    if done == 1:
        done = own_storages(shared, site, args)
    if done == 1:
        done = published(shared, site, args, kind, made, over, 0)
    if done != 1:
        return done
    written = word(args, word(site, SITE.WRITTEN))
    incref(written)
    return written


def goes_over(shared: int, site: int, args: int) -> int:
    """Whether a result may go over the first input: 1; MISS if that might be recorded, or changes
    what another operand is; FAILED.
    """
    recorded = records(shared)
    if recorded < 0:
        return FAILED
    x = word(args, 0)
    if recorded > 1 or (recorded == 1 and any_node(shared, site, args)):
        return MISS
    extra = load_word(x + word(shared, SHARED.TENSOR_EXTRA))
    if recorded == 1 and extra != 0:
        base = dict_item(extra, word(shared, SHARED.BASE_NAME))
        if error_occurred() != 0:  # it is no dict
            clear_error()
            return MISS
        if base != 0 and not is_unrecorded(shared, base):
            return MISS
    storage = load_word(x + word(shared, SHARED.TENSOR_STORAGE))
    for k in range(1, word(site, SITE.INPUTS)):
        other = load_word(word(args, k) + word(shared, SHARED.TENSOR_STORAGE))
        if other == storage and other != word(shared, SHARED.NONE) and word(args, k) != x:
            return MISS
    return 1


def published(shared: int, site: int, args: int, kind: int, made: int, out: int, node: int) -> int:
    """Publish the record, and do what is due behind it: 1; MISS, before there is one; FAILED."""
    code, last = place(shared)
    if code <= FAILED:
        return code
    numbers = counter_of(shared)
    # what ran since `all_whole` might have changed an operand; from here on nothing runs
    if (
        numbers <= FAILED
        or not all_whole(shared, site, args)
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
    publish(shared, site, args, kind, made, out, seq, code, last)
    decref(numbers)
    put_word(site, SITE.HITS, word(site, SITE.HITS) + 1)
    if node != 0:
        incref(number)
        store_word(node + word(shared, SHARED.NODE_SEQ), number)
    dead = 0 if seq & KEEP_DEAD != 0 else list_size(word(shared, SHARED.DEAD))
    done = count_changes(shared, site, args)
    if done == 1 and dead != 0 and not is_due(shared, seq, 0):
        done = released(shared)
        dead = 0 if done == 1 else list_size(word(shared, SHARED.DEAD))
        done = FAILED if done == FAILED else 1
    if done == 1 and is_due(shared, seq, dead):
        done = finish(shared, number)
    decref(number)
    return done


def released(shared: int) -> int:
    """Release the dead storages: 1; MISS where the Python function is to; FAILED."""
    while list_size(word(shared, SHARED.DEAD)) != 0:
        number = release(shared)
        if number <= FAILED:
            return number
        seq, done = as_int(number), 1
        if is_due(shared, seq, 0):
            done = finish(shared, number)
        decref(number)
        if done != 1:
            return FAILED
    return 1
