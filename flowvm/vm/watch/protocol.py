"""The interface of an engine that watchers and its own parts need.  The engine itself lies above,
and is passed in.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from flowvm.meta.arrays import Array


class EntryTable(Protocol):
    """The entries of an engine."""

    info: list[Any]  # by number: what the entry is of, and what it keeps alive
    reused: int  # how often an entry got the number of another, which is gone


class StreamTable(Protocol):
    """The streams of an engine."""

    @property
    def count(self) -> int:
        """The number of streams."""

    def name(self, stream: int) -> str:
        """Return the name of a stream."""


class ThreadTable(Protocol):
    """The threads of an engine."""

    members: list[threading.Thread]
    running: bool
    stopped: bool
    uncompiled: bool  # the VM runs as Python, until it is compiled


class NativeTable(Protocol):
    """The shell's functions."""

    def function(self, name: str) -> Callable[..., int]:
        """Return a function: native, or Python's until it is compiled."""


class Waiter(Protocol):
    """The waits of an engine."""

    def wait_idle(self, seconds: float | None = None) -> bool:
        """Wait until everything issued so far is done."""


class Runner(Protocol):
    """The sequential engine."""

    at_once: bool  # an issuing thread runs its instructions itself


class VM(Protocol):
    """The interface of an engine (`flowvm.vm.engine.engine` describes its parts)."""

    base: int
    m: Array
    words: memoryview
    lock: Any  # a `threading.RLock`, which is no class before Python 3.14

    @property
    def entries(self) -> EntryTable:
        """Entries: the facts that all calls of a kind share."""

    @property
    def streams(self) -> StreamTable:
        """The queues of instructions."""

    @property
    def threads(self) -> ThreadTable:
        """Scheduler, workers and helpers."""

    @property
    def loops(self) -> NativeTable:
        """The native functions."""

    @property
    def waits(self) -> Waiter:
        """The waits of issuing threads."""

    @property
    def sequential(self) -> Runner:
        """The sequential engine."""
