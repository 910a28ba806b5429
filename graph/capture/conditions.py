"""Conditions: what has to be as it was when code was captured, for the capture to serve a call.

What code decides by numbers is asked again at each call.  So is what was watched, with one
exception: what is *gated* (modules and their settings) only where something has changed in some
module since it was asked last, which `hot["changed"]` tells at once.
"""

from __future__ import annotations

from typing import Any

from flowvm.eager.live import Guard
from flowvm.vm.callers.hot import hot

__all__ = ["Conditions"]


class Conditions:
    """Base of what serves calls as long as `holds()`.

    watched   each has a `holds()`, and says whether it is `gated`
    guards    decisions by numbers: what was asked, and the answer
    seen      [what `hot["changed"]` was when what is gated was last found to hold]
    """

    watched: list[Any]
    guards: list[Guard]
    seen: list[Any]

    def holds(self) -> bool:
        """Whether the code would issue this again, now."""
        return (
            self.unchanged()
            and all(watched.holds() for watched in self.watched if not watched.gated)
            and all(find() == outcome for find, outcome in self.guards)
        )

    def unchanged(self) -> bool:
        """Whether what is gated is as it was; remembers when that was found."""
        before = hot["changed"]
        if before is self.seen[0]:
            return True
        if not all(watched.holds() for watched in self.watched if watched.gated):
            return False
        self.seen[0] = before
        return True
