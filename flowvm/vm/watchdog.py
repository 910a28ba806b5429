"""A wait in which nothing happens says so, and what everything waits for, instead of hanging."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from flowvm.config import config
from flowvm.vm import layout as w

if TYPE_CHECKING:
    from flowvm.vm.engine import Engine

__all__ = ["Watchdog"]


class Watchdog:
    """One wait's: says so, once, when nothing at all is done for `config.watchdog` seconds."""

    def __init__(self, vm: Engine) -> None:
        self.vm = vm
        self.seen = -1
        self.since = time.monotonic()

    def look(self) -> None:
        """Called every slice of a wait."""
        now, done = time.monotonic(), int(self.vm.words[w.N_DONE])
        if done != self.seen:
            self.seen, self.since = done, now
        elif config.watchdog and now - self.since > config.watchdog:
            self.since = float("inf")
            from flowvm.vm.dump import dump_text

            text = f"flowvm: no progress for {config.watchdog:g} s\n{dump_text(self.vm)}"
            print(text, file=sys.stderr, flush=True)
