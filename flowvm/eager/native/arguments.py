"""The arguments of a call: whether a native call takes them, and the entry that they have.

Operands are of the class Tensor or Parameter, exactly, and whole; numbers are float, int or bool.
Whatever else comes is a miss.
"""

from __future__ import annotations

from flowvm.eager.native.cpython import (
    as_float,
    as_int,
    bits_of,
    character,
    clear_error,
    decref,
    dict_item,
    error_matches,
    error_occurred,
    incref,
    int_as_float,
    is_true,
    list_size,
    new_tuple,
    put_word,
    scratch,
    set_size,
    set_tuple_item,
    word,
)
from flowvm.eager.native.inline_cache import insert, lookup
from flowvm.eager.native.tensor import class_of, is_whole
from flowvm.eager.native.words import FAILED, FLOAT, INT, MISS, SHARED, SITE
from flowvm.vm.machine.lang import load_word, store_word

INLINE_ALWAYS = True
MINUS_ONE = -4616189618054758400  # the bits of -1.0, which is what a conversion that fails gives


def departs(shared: int, site: int) -> bool:
    """Return True if some thread is in a region that only the twin handles."""
    if set_size(word(shared, SHARED.DEPARTED)) != 0:
        return True
    return word(site, SITE.CONVERTED) != 0 and set_size(word(shared, SHARED.AUTOCAST)) != 0


def is_elsewhere(site: int) -> bool:
    """Return True if some thread makes its tensors on another device, or globally, and the SITE's
    calls look at that.
    """
    at, other = word(site, SITE.ELSEWHERE), word(site, SITE.ELSEWHERE + 1)
    return at != 0 and set_size(at) + set_size(other) != 0


def number_class(shared: int, x: int) -> int:
    """The class of a number that stands for itself whatever the tensor beside it is: float, or int
    from 0 to 127.  0 for all else.
    """
    kind = class_of(shared, x)
    if kind == word(shared, SHARED.FLOAT):
        return kind
    if kind == word(shared, SHARED.INT):
        value = as_int(x)
        if value == -1:
            clear_error()  # more than 64 bits
        if 0 <= value <= 127:
            return kind
    return 0


def argument(args: int, k: int, kind: int) -> int:
    """Argument `k`; where `kind` is a number's class, of (args[0], kind, args[1])."""
    if kind != 0 and k == 1:
        return kind
    if kind != 0 and k == 2:
        return word(args, 1)
    return word(args, k)


def refs_of(shared: int, site: int, args: int, refs: int) -> bool:
    """Return True if all inputs are whole; store their operand words in `refs`."""
    for k in range(word(site, SITE.INPUTS)):
        if not is_whole(shared, word(args, k)):
            return False
        ref = as_int(load_word(word(args, k) + word(shared, SHARED.TENSOR_REF)))
        if ref == -1:
            clear_error()
            return False
        put_word(refs, k, ref)
    return True


def all_whole(shared: int, site: int, args: int) -> bool:
    """Return True if all inputs are whole tensors."""
    for k in range(word(site, SITE.INPUTS)):  # noqa: SIM110 - Numba has no generators
        if not is_whole(shared, word(args, k)):
            return False
    return True


def all_counted(shared: int, site: int, args: int) -> bool:
    """Return True if all written inputs, which are whole, have a Storage that counts changes."""
    for k in range(word(site, SITE.WRITES)):
        x = word(args, word(site, SITE.WRITTEN + k))
        storage = load_word(x + word(shared, SHARED.TENSOR_STORAGE))
        if class_of(shared, storage) != word(shared, SHARED.STORAGE):
            return False
        version = load_word(storage + word(shared, SHARED.STORAGE_VERSION))
        if version == 0 or class_of(shared, version) != word(shared, SHARED.INT):
            return False
    return True


def any_node(shared: int, site: int, args: int) -> bool:
    """Return True if an input has a place in the autograd graph.  All inputs are whole."""
    for k in range(word(site, SITE.INPUTS)):
        node = load_word(word(args, k) + word(shared, SHARED.TENSOR_NODE))
        if node != word(shared, SHARED.NONE):
            return True
    return False


def entry_of(shared: int, site: int, args: int, kind: int) -> int:
    """The entry of the call, a new reference; MISS or FAILED."""
    inputs, attrs = word(site, SITE.INPUTS), word(site, SITE.ATTRS)
    call_key, count = scratch(), inputs + attrs + 1
    put_word(call_key, 0, 0)
    for k in range(inputs + attrs):
        part = argument(args, k, kind)
        if k < inputs:
            part = load_word(part + word(shared, SHARED.TENSOR_META))
            if part == 0:  # a collection came in between, and what it finalized did this
                return MISS
        put_word(call_key, 1 + k, part)
    entry = lookup(shared, site, call_key, count)
    incref(entry)
    if entry != 0:
        return int(entry)
    for k in range(inputs + attrs):  # before anything can run
        incref(word(call_key, 1 + k))
    key = new_tuple(inputs + attrs)
    for k in range(inputs + attrs):
        if key == 0:
            decref(word(call_key, 1 + k))
        else:
            set_tuple_item(key, k, word(call_key, 1 + k))
    if key == 0:
        return FAILED
    entry = dict_item(word(site, SITE.CACHE), key)
    incref(entry)
    if entry != 0:
        insert(shared, site, call_key, count, entry)
    decref(key)
    if entry != 0:
        return int(entry)
    if error_occurred() == 0:
        return MISS
    if (
        error_matches(word(shared, SHARED.TYPE_ERROR)) != 0
        or error_matches(word(shared, SHARED.KEY_ERROR)) != 0
        or error_matches(word(shared, SHARED.ATTRIBUTE_ERROR)) != 0
    ):
        clear_error()  # what the twin catches there, too
        return MISS
    return FAILED


def frees_first(shared: int, entry: int) -> bool:
    """Return True if the call allocates much while tensors wait to be released."""
    large = load_word(entry + word(shared, SHARED.CALL_LARGE))
    if list_size(word(shared, SHARED.DEAD)) == 0:
        return False
    return int(is_true(large)) != 0


def code_of_scalar(shared: int, site: int, entry: int, k: int) -> int:
    """The struct code of scalar `k`."""
    if word(site, SITE.KINDS) != 0:
        return word(site, SITE.CODES + k)
    pack = load_word(entry + word(shared, SHARED.CALL_PACK))
    return int(character(pack, word(site, SITE.SCALARS) - 1 - k))


def bits_of_scalar(shared: int, code: int, x: int, to: int) -> bool:
    """Return True if a scalar is a plain number that a record's word holds; store it at `to`."""
    kind, bits = class_of(shared, x), -1
    if kind == word(shared, SHARED.FLOAT):
        store_word(to, bits_of(as_float(x)))
        return code == FLOAT
    if kind != word(shared, SHARED.INT) and kind != word(shared, SHARED.BOOL):
        return False
    if code == INT:
        bits = as_int(x)
    elif code == FLOAT:
        bits = bits_of(int_as_float(x))
    else:
        return False
    store_word(to, bits)
    if bits not in (-1, MINUS_ONE) or error_occurred() == 0:
        return True
    clear_error()
    return False


def bits_of_scalars(shared: int, site: int, entry: int, args: int, kind: int, bits: int) -> bool:
    """Return True if all scalars are plain numbers; store their words in `bits`."""
    first = word(site, SITE.INPUTS) + word(site, SITE.ATTRS)
    for k in range(word(site, SITE.SCALARS)):
        x = argument(args, first + k, kind)
        if not bits_of_scalar(shared, code_of_scalar(shared, site, entry, k), x, bits + 8 * k):
            return False
    return True
