"""Fields that are made at the first use, by whichever thread comes first.

Several threads may need one at once, and each makes it.  `exchange` keeps the first thread's
object, and the others take that.  It tests and sets in one call of C, in which CPython neither
changes threads nor runs signal handlers.  Nor does it make an object between test and setting that
the garbage collector tracks: CPython 3.11 may collect where one is made, and the finalizers that
it runs then are Python code, between whose lines threads change.  There is no lock that an
exception could leave taken, nor one that a finalizer could wait for.  Native calls hold the GIL
while they do so (`flowvm.eager.native.tensor`).

A table of such objects uses `dict.setdefault`, which is one such call.  Objects that must not be
made twice (compiled code, captures, entries of the VM) are made under their owner's lock.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from functools import cache
from itertools import chain, compress, starmap
from operator import is_
from typing import Any

from flowvm.private.objects import slot_place


def exchange(
    now: Iterable[object],
    expected: tuple[object, ...],
    settings: tuple[tuple[Callable[..., object], tuple[object, ...]], ...],
) -> bool:
    """Make each setting (setter, arguments) whose present value is the expected one.  Return True
    if any setting was made.

    now      a lazy map of a C function that reads the present value and makes no tracked object;
             an AttributeError that C suppresses is one
    setter   a bound `__set__` of a slot, or `operator.setitem`: not `object.__setattr__`, which
             makes a tuple, nor `setattr`, which may be a subclass's Python

    A second setting that expects the value of the first is made only where that was.
    """
    calls = [starmap(setter, (arguments,)) for setter, arguments in settings]
    return bool(list(chain.from_iterable(compress(calls, map(is_, now, expected)))))


def first_of(holder: object, kind: type, name: str, value: object) -> Any:
    """Set a slot that is unset, unless another thread was first; return its value then.

    kind    the class that has the slot
    """
    place, setter = _slot(kind, name)
    word = ctypes.c_ssize_t.from_address(id(holder) + place)  # 0 where it is unset: no exception
    exchange(map(getattr, (word,), ("value",)), (0,), ((setter, (holder, value)),))
    return getattr(holder, name)


@cache
def _slot(kind: type, name: str) -> tuple[int, Callable[..., object]]:
    """Return where a slot lies in an object, in bytes, and what sets it."""
    return slot_place(kind, name), vars(kind)[name].__set__
