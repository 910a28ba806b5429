"""The VM's native functions, and their replacements until they are compiled.

Compiling them takes some ten seconds, once on a machine.  Nothing waits for that: helper processes
make the missing ones (`flowvm.compiler.helpers`).  Until then the functions run as Python, on the
thread that issues (`Threads.start`).

Where there can be no processes, or they fail, a thread of this one compiles.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from flowvm.compiler import helpers
from flowvm.compiler.helpers import Helper
from flowvm.config import say
from flowvm.guards.apart import apart
from flowvm.guards.collection import Uncollected
from flowvm.vm.machine.lang import Uncompiled, address_of, cached_address

LOOK_S = 0.05  # between two looks whether the helpers are done


class Loops:
    """A table of the functions of `room` with these `signatures`: C functions, or Python's until
    these are compiled.

    `ready` is called by one thread at a time.
    """

    def __init__(
        self,
        room: object,
        signatures: Mapping[str, str],
        groups: tuple[tuple[str, ...], ...],
        last: Iterable[str],
        on_clock: Callable[[], None],
        job: str,
    ) -> None:
        self.room = room
        self.job = job  # in a helper, with a name behind it: makes that function
        self.on_clock = on_clock  # `ticks` of Python's functions is the native clock from now on
        self.signatures = signatures
        self.groups = groups  # functions that have most of what they call in common, one a helper
        self.last = tuple(last)  # not waited for; compiled when others are, then loaded
        self.native: dict[str, Callable[..., int]] = {}
        self.needed: set[str] = set()  # functions being compiled because they are needed
        self.makers: list[Helper] = []
        self.thread: threading.Thread | None = None
        self.looked = 0.0
        self.draining = 0  # the thread on which uncompiled code runs instructions

    def ready(self, names: Iterable[str]) -> bool:
        """Return True if all of these functions are native.  If not, have them compiled from now
        on, except in a helper, which runs little.

        Quick while they are: it looks every LOOK_S.
        """
        missing = [name for name in names if name not in self.native]
        if not missing:
            return True
        if helpers.inside:
            return False
        making, now = self.needed.issuperset(missing), time.monotonic()
        if making and now < self.looked + LOOK_S:
            return False
        self.looked, at_work = now, making and self._are_at_work()
        for name in missing:
            if not self._take(name) and at_work:
                return False
        missing = [name for name in missing if name not in self.native]
        if not missing:
            self.needed.clear()
            for name in self.last:
                self._take(name)
        elif making:  # they have failed
            self._make_here(missing)
        else:
            self.needed |= set(missing)
            self._send(missing)
        return not missing

    def function(self, name: str) -> Callable[..., int]:
        """Return the native function, or the Python function until it is compiled."""
        return self.native.get(name) or partial(_python, getattr(self.room, name))

    def all_cached(self, names: Iterable[str]) -> bool:
        """Return True if these functions are native or can be loaded; nothing is compiled."""
        return all(name in self.native or self._take(name) for name in names)

    def in_python(self, function: Callable[..., object], *args: object) -> Any:
        """Run a function of the machine as Python, where no signal handler runs (`apart`).

        No garbage is collected from before that thread begins: a finalizer that computes would wait
        there for the lock that this thread holds.
        """
        with Uncollected():
            return apart(self._drained, function, *args)

    def _drained(self, function: Callable[..., object], *args: object) -> object:
        self.draining = threading.get_ident()
        try:
            return function(*args)
        finally:
            self.draining = 0

    def compiled(self, name: str) -> Callable[..., int]:
        """Return the native function; compile it now, on this thread, if necessary."""
        if name not in self.native:
            self._use(name, address_of(getattr(self.room, name), self.signatures[name]))
        return self.native[name]

    def after_fork_in_child(self) -> None:
        """Drop the compilers of the functions in a forked child: they are the parent's."""
        self.makers, self.thread = [], None
        self.needed.clear()

    # --- taking -------------------------------------------------------------------------------

    def _take(self, name: str) -> bool:
        """Load the function if it is compiled.  Return True if it is."""
        address = cached_address(getattr(self.room, name), self.signatures[name])
        if address is not None:
            self._use(name, address)
        return address is not None

    def _use(self, name: str, address: int) -> None:
        count = self.signatures[name].count("int64") - 1
        kind = ctypes.CFUNCTYPE(ctypes.c_int64, *([ctypes.c_int64] * count))
        self.native[name] = kind(address)
        if name == "read_clocks":
            Uncompiled.ticks = partial(_native_ticks, self.native[name], (ctypes.c_int64 * 2)())
            self.on_clock()

    # --- making -------------------------------------------------------------------------------

    def _are_at_work(self) -> bool:
        at_work = self.thread is not None and self.thread.is_alive()
        return at_work or any(maker.is_at_work() for maker in self.makers)

    def _send(self, names: list[str]) -> None:
        """Let helper processes compile these functions."""
        say(1, "the VM is compiled by helpers; until then it runs uncompiled")
        self.makers.clear()
        try:
            for share in self._shares(names):
                self.makers.append(Helper([f"{self.job}:{name}" for name in share]))
        except (OSError, ValueError) as error:  # no Python to be run, or no more processes
            say(1, f"there are no helpers ({error})")
            if not self.makers:
                self._make_here(names)

    def _shares(self, names: list[str]) -> list[list[str]]:
        """Return the functions of each helper, those of a group together; there are no more helpers
        than groups whose long function is wanted, and processors.
        """
        all_names = [*names, *(name for name in self.last if name not in names)]
        large = sum(group[0] in names for group in self.groups)
        count = max(1, min(large, len(os.sched_getaffinity(0))))
        shares: list[list[str]] = [[] for _ in range(count)]
        for k, group in enumerate(self.groups):
            shares[k % count] += [name for name in group if name in all_names]
        grouped = {name for group in self.groups for name in group}
        shares[-1] += [name for name in all_names if name not in grouped]
        return [share for share in shares if share]

    def _make_here(self, names: list[str]) -> None:
        """Let a thread of this process compile the functions, for `_take` to find."""

        def make() -> None:
            for name in names:
                address_of(getattr(self.room, name), self.signatures[name])

        self.thread = threading.Thread(target=make, name="flowvm-making", daemon=True)
        self.thread.start()


def _python(function: Callable[..., Any], *args: int) -> int:
    return int(function(*args))


def _native_ticks(read_clocks: Callable[[int], int], pair: Any) -> int:
    read_clocks(ctypes.addressof(pair))
    return int(pair[0])
