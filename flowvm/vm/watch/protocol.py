"""The interface of an engine that watchers need.  The engine itself lies above, and is passed
in.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol

from flowvm.meta.arrays import Array


class VM(Protocol):
    """The interface of an engine for watchers (`flowvm.vm.engine.engine` describes its parts)."""

    base: int
    m: Array
    words: memoryview
    entry_info: list[Any]
    entries_reused: int  # how often an entry got the number of another, which is gone
    threads: list[threading.Thread]
    running: bool
    stopped: bool
    at_once: bool  # an issuing thread runs its instructions itself

    @property
    def streams(self) -> int:
        """The number of streams."""

    def stream_name(self, stream: int) -> str:
        """Return the name of a stream."""

    def call(self, name: str) -> Any:
        """The compiled shell function `name`."""

    def wait_idle(self, seconds: float | None = None) -> bool:
        """Wait until everything issued so far is done."""
