"""What CPython calls: one function for all operators and all that follows courses, and one for what
dies.  What it cannot do is left to a Python function from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable

from flowvm.eager.native.backward import gone_back
from flowvm.eager.native.call import issued
from flowvm.eager.native.cpython import append, incref, put_word, vectorcall, word
from flowvm.eager.native.following import by_course
from flowvm.eager.native.reading import class_of, is_tensor
from flowvm.eager.native.words import BACKWARD, FAILED, LEARN, MISS, OPERATOR, SHARED, SITE
from flowvm.vm.machine.lang import load_word

SIGNATURE = "int64(int64, int64, int64, int64)"
COUNT = (1 << 63) - 1  # of CPython's count of arguments, all but its flag


def entry(site_at: int) -> Callable[[int, int, int, int], int]:
    """What CPython calls; the address of the SITE is `site_at` bytes into the called object."""

    def call(self: int, args: int, count: int, names: int) -> int:
        site = load_word(self + site_at)
        twin = SITE.TWIN
        if word(site, SITE.KIND) == BACKWARD:
            result = gone_back(site, args, count & COUNT) if names == 0 else MISS
            if result != MISS:
                return result
            twin = SITE.FUNCTION
        elif word(site, SITE.KIND) != OPERATOR:
            result = by_course(site, args, count & COUNT, names)
            if result > LEARN or result == FAILED:
                return result
            if result == MISS:
                twin = SITE.FUNCTION
        elif names == 0:
            result = issued(site, args, count & COUNT)
            if result != MISS:
                return result
        put_word(site, SITE.MISSES, word(site, SITE.MISSES) + 1)
        return int(vectorcall(word(site, twin), args, count, names))

    return call


def death(site_at: int) -> Callable[[int, int, int, int], int]:
    """The same for `__del__` of Tensor and Storage, which is a Python frame for each otherwise."""

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
            else:
                number = MISS
        if number == MISS:
            return int(vectorcall(word(site, SITE.TWIN), args, count, names))
        if number != 0 and append(word(shared, SHARED.DEAD), number) != 0:
            return FAILED
        incref(word(shared, SHARED.NONE))
        return word(shared, SHARED.NONE)

    return call
