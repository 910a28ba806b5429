"""Numbers of the VM's streams, passed from owner to owner.

A worker thread stays for the life of the process, so the number of a stream whose owner was
collected goes to the next owner; what is still in its queue runs first.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

from flowvm.errors import VMError
from flowvm.vm.callers.hot import FIRST_USER_STREAM
from flowvm.vm.engine.engine import engine


class Numbers:
    """Numbers of streams of one kind, lent to their owners."""

    def __init__(self) -> None:
        self._idle: list[int] = []  # any thread; append and pop are atomic

    def take(self, name: str, make: Callable[[], int]) -> int:
        """Return a stream without an owner, and call it `name`; make one by `make` if there is
        none.

        VMError when as many streams as the VM has are in use.
        """
        number = self._reused()
        if number < 0:
            try:
                return make()
            except VMError:
                gc.collect()  # owners may be in cycles that are not collected yet
                number = self._reused()
                if number < 0:
                    raise
        engine.streams.user_names[number - FIRST_USER_STREAM] = name
        return number

    def lend(self, number: int, owner: object) -> None:
        """Keep `number` from others until `owner` is collected."""
        weakref.finalize(owner, self._idle.append, number).atexit = False

    def _reused(self) -> int:
        try:
            return self._idle.pop()
        except IndexError:
            return -1
