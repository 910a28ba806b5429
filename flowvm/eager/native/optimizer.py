"""A step of an optimizer: an operator's calls for each of many tensors, with its gradient and the
state that dicts have of it.

`flowvm.ops.declare.update.each` says what that means.  A tensor for which something is not as usual
is left to Python as it was.
"""

from __future__ import annotations

from flowvm.eager.native.arguments import all_whole, departs, entry_of
from flowvm.eager.native.call import issue_as
from flowvm.eager.native.cpython import (
    append,
    as_int,
    decref,
    dict_item,
    dict_set,
    error_occurred,
    incref,
    int_of,
    list_item,
    list_size,
    new_list,
    put_word,
    scratch,
    tuple_item,
    tuple_size,
    word,
)
from flowvm.eager.native.tensor import class_of, is_whole, renewal_of
from flowvm.eager.native.words import FAILED, MISS, MOST_ARGUMENTS, SHARED, SITE
from flowvm.vm.machine.lang import load_word


def call_each(site: int, args: int, count: int) -> int:
    """Call the operator for `(tensors, state, *numbers)`: a list of the tensors that are left, a
    new reference; MISS, and nothing is done; FAILED.
    """
    shared, operator = word(site, SITE.SHARED), word(site, SITE.NUMBERED)
    counters = int(tuple_size(word(site, SITE.CACHE)))
    counts = 0 if word(site, SITE.KINDS) == 0 else 1
    if count < 2 or departs(shared, site) or 2 + counters + count - 2 + counts > MOST_ARGUMENTS:
        return MISS
    if word(operator, SITE.ARGUMENTS) != counters + count + counts:
        return MISS
    tensors = word(args, 0)
    if class_of(shared, tensors) != word(shared, SHARED.LIST) or not is_dict(shared, word(args, 1)):
        return MISS
    unprocessed, k, status = new_list(0), 0, 1
    while status == 1 and unprocessed != 0 and k < list_size(tensors):
        x = list_item(tensors, k)
        incref(x)
        status = call_for(shared, site, args, count, x)
        if status == MISS:
            status = 1 if append(unprocessed, x) == 0 else FAILED
        decref(x)
        k += 1
    if status != 1:
        decref(unprocessed)
        return FAILED
    return int(unprocessed)


def is_dict(shared: int, x: int) -> bool:
    """Return True if `x` is a dict, or one with a default."""
    if x == 0:
        return False
    kind = class_of(shared, x)
    return kind == word(shared, SHARED.DICT) or kind == word(shared, SHARED.DEFAULT_DICT)


def call_for(shared: int, site: int, args: int, count: int, x: int) -> int:
    """Call it for one tensor, if that has a gradient: 1; MISS or FAILED."""
    if not is_whole(shared, x):
        return MISS
    extra = load_word(x + word(shared, SHARED.TENSOR_EXTRA))
    if extra == 0:
        return 1
    if not is_dict(shared, extra):
        return MISS
    g = dict_item(extra, word(shared, SHARED.GRAD_NAME))
    if g == 0 or g == word(shared, SHARED.NONE):
        return FAILED if error_occurred() != 0 else 1
    names = word(site, SITE.CACHE)
    row, counters, of_x = scratch(), int(tuple_size(names)), 0
    if counters != 0 or word(site, SITE.KINDS) != 0:
        of_x = int(dict_item(word(args, 1), x))
        if of_x == 0 or not is_dict(shared, of_x):
            return FAILED if error_occurred() != 0 else MISS
    put_word(row, 0, x)
    put_word(row, 1, g)
    for k in range(counters):
        value = dict_item(of_x, tuple_item(names, k))
        if value == 0:
            return FAILED if error_occurred() != 0 else MISS
        put_word(row, 2 + k, value)
    for k in range(count - 2):
        put_word(row, 2 + counters + k, word(args, 2 + k))
    for k in range(2 + counters):
        incref(word(row, k))
    incref(of_x)
    status = counted_call(shared, site, of_x, row, counters + count)
    decref(of_x)
    for k in range(2 + counters):
        decref(word(row, k))
    return status


def counted_call(shared: int, site: int, of_x: int, row: int, last: int) -> int:
    """Count the call in the tensor's dict, if calls are counted, and make it: 1; MISS, and it is
    not counted; FAILED.
    """
    operator, name = word(site, SITE.NUMBERED), word(site, SITE.KINDS)
    if not all_whole(shared, operator, row):
        return MISS
    if name == 0:
        return one_call(shared, operator, row)
    before = dict_item(of_x, name)
    if before == 0 or class_of(shared, before) != word(shared, SHARED.INT):
        return FAILED if error_occurred() != 0 else MISS
    now = int_of(as_int(before) + 1)
    if now == 0 or error_occurred() != 0:
        decref(now)
        return FAILED
    incref(before)
    put_word(row, last, now)
    status = 1 if dict_set(of_x, name, now) == 0 else FAILED
    if status == 1:
        status = one_call(shared, operator, row)
        if status == MISS and dict_set(of_x, name, before) != 0:
            status = FAILED
    decref(before)
    decref(now)
    return status


def one_call(shared: int, operator: int, row: int) -> int:
    """Make it: 1; MISS or FAILED."""
    renewal = renewal_of(shared)
    entry = entry_of(shared, operator, row, 0)
    if entry <= FAILED:
        return entry
    result = issue_as(shared, operator, row, 0, entry, renewal)
    decref(entry)
    if result <= FAILED:
        return result
    decref(result)
    return 1
