"""Fields that are made at the first use, by whichever thread comes first.

Several threads may need one at once, and each makes it.  `exchange` keeps the first thread's
object, and the others take that.  It tests and sets in one call of C, in which CPython neither
changes threads nor runs signal handlers.  There is no lock that an exception could leave taken, nor
one that a finalizer could wait for.  Native calls hold the GIL while they do so
(`flowvm.eager.native.tensor`).

A table of such objects uses `dict.setdefault`, which is one such call.  Objects that must not be
made twice (compiled code, captures, entries of the VM) are made under their owner's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import compress, starmap
from operator import is_
from typing import Any

_put: Callable[..., Any] = object.__setattr__  # no subclass's: that could be Python


def exchange(
    now: Iterable[Any],
    expected: tuple[Any, ...],
    settings: tuple[tuple[Any, Any, Any], ...],
    put: Callable[..., Any] = _put,
) -> bool:
    """Make each setting (holder, name, value) whose present value is the expected one.  `now` is a
    lazy map of a C function that reads it.  Return True if any setting was made.

    A second setting that expects the value of the first is made only where that was.
    """
    return bool(list(starmap(put, compress(settings, map(is_, now, expected)))))
