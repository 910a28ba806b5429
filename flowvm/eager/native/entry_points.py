"""The functions that CPython calls: one for all operators and all traces, one for calls of Python
functions, and one for dying objects.  Other calls are left to a Python function from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable

from flowvm.eager.native.backward import call_unrecorded, run_backward, run_ready
from flowvm.eager.native.call import issue_call
from flowvm.eager.native.constants import constant
from flowvm.eager.native.cpython import append, incref, put_word, vectorcall, word
from flowvm.eager.native.equality import equal_values
from flowvm.eager.native.errors import refuse_name
from flowvm.eager.native.module import call_module, call_noted_module
from flowvm.eager.native.optimizer import call_each
from flowvm.eager.native.tensor import class_of, is_tensor
from flowvm.eager.native.trace import replay_call
from flowvm.eager.native.values import end_loan, read_value
from flowvm.eager.native.words import (
    AS_EQUAL,
    CONSTANT,
    EACH,
    FAILED,
    FRONT,
    GRADIENT,
    LACK,
    LEARN,
    MISS,
    MODULE,
    NOTED,
    OPERATOR,
    READ,
    SHARED,
    SITE,
    START,
)
from flowvm.vm.machine.lang import load_word

WORDS_ONLY = True
SIGNATURE = "int64(int64, int64, int64, int64)"
COUNT = (1 << 63) - 1  # of CPython's count of arguments, all but its flag


def entry(site_at: int) -> Callable[[int, int, int, int], int]:
    """Return the function for CPython to call; the address of the SITE is `site_at` bytes into the
    called object.
    """

    def call(self: int, args: int, count: int, names: int) -> int:
        site = load_word(self + site_at)
        kind, result, twin = word(site, SITE.KIND), MISS, SITE.FUNCTION
        if kind == OPERATOR:
            twin = SITE.TWIN
            if names == 0:
                result = issue_call(site, args, count & COUNT)
        elif kind in (FRONT, GRADIENT):
            result = replay_call(site, args, count & COUNT, names)
            if result == LEARN:
                result, twin = MISS, SITE.TWIN
        elif names == 0 and kind == READ and word(site, SITE.HOW) == AS_EQUAL:
            result = equal_values(site, args, count & COUNT)
        elif names == 0 and kind == READ:
            result = read_value(site, args, count & COUNT)
        elif names == 0 and kind == LACK:
            result = refuse_name(site, args, count & COUNT)
        elif names == 0 and kind == EACH:
            result = call_each(site, args, count & COUNT)
        elif names == 0 and kind == START:
            result = run_backward(site, args, count & COUNT)
        elif kind == CONSTANT:
            result = constant(site, args, count & COUNT, names)
        elif names == 0 and kind not in (READ, LACK):
            result = run_ready(site, args, count & COUNT)
        if result != MISS:
            return result
        put_word(site, SITE.MISSES, word(site, SITE.MISSES) + 1)
        return int(vectorcall(word(site, twin), args, count, names))

    return call


def around(site_at: int) -> Callable[[int, int, int, int], int]:
    """Return the entry point of calls that call Python functions inside.  It is a function of its
    own: such calls nest, and each of the other kind takes a kilobyte of the stack.
    """

    def call(self: int, args: int, count: int, names: int) -> int:
        site = load_word(self + site_at)
        kind = word(site, SITE.KIND)
        if kind == MODULE:
            result = call_module(site, args, count & COUNT, names)
        elif kind == NOTED:
            result = call_noted_module(site, args, count, names)
        else:
            result = call_unrecorded(site, args, count, names)
        if result != MISS:
            return result
        return int(vectorcall(word(site, SITE.TWIN), args, count, names))

    return call


def death(site_at: int) -> Callable[[int, int, int, int], int]:
    """Return the native `__del__` of Tensor, Storage and Loan, which needs no Python frame."""

    def call(self: int, args: int, count: int, names: int) -> int:
        site = load_word(self + site_at)
        shared = word(site, SITE.SHARED)
        number = 0
        if names != 0 or count & COUNT != 1:
            number = MISS
        else:
            x = word(args, 0)
            if is_tensor(shared, x):
                storage = load_word(x + word(shared, SHARED.TENSOR_STORAGE))
                if storage == word(shared, SHARED.NONE):
                    number = load_word(x + word(shared, SHARED.TENSOR_REF))
            elif class_of(shared, x) == word(shared, SHARED.STORAGE):
                number = load_word(x + word(shared, SHARED.STORAGE_ID))
            elif class_of(shared, x) == word(shared, SHARED.LOAN):
                end_loan(shared, x)
            else:
                number = MISS
        if number == MISS:
            return int(vectorcall(word(site, SITE.TWIN), args, count, names))
        if number != 0 and append(word(shared, SHARED.DEAD), number) != 0:
            return FAILED
        incref(word(shared, SHARED.NONE))
        return word(shared, SHARED.NONE)

    return call
