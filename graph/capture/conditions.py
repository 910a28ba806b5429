"""Conditions: the values that must be the same as at the capture, for it to serve a call.

What code decides by numbers is asked again at each call.  So is what was watched, with one
exception: what is *gated* (modules and their settings) only where something has changed in some
module since it was asked last, which `hot["changed"]` tells at once.
"""

from __future__ import annotations

from typing import Any

from flowvm.eager.live import Condition
from flowvm.eager.tensor import Tensor
from flowvm.vm.callers.hot import hot


class Conditions:
    """The base of captures, which serve calls as long as `holds()`.

    watched   each has a `holds()`, and says whether it is `gated`
    guards    decisions by numbers, and values that code read
    last_check  [the value of `hot["changed"]` when gated things were last found to hold]
    """

    watched: list[Any]
    guards: list[Condition]
    last_check: list[object]

    def holds(self) -> bool:
        """Return True if the code would issue the same operations now."""
        return (
            self.unchanged()
            and all(watched.holds() for watched in self.watched if not watched.gated)
            and all(guard.holds() for guard in self.guards)
        )

    def unchanged(self) -> bool:
        """Return True if gated things are as they were; remember the check."""
        before = hot["changed"]
        if before is self.last_check[0]:
            return True
        if not all(watched.holds() for watched in self.watched if watched.gated):
            return False
        self.last_check[0] = before
        return True


class _Read:
    """The base of values that Python code has read: they must stay the same."""

    def holds(self) -> bool:
        raise NotImplementedError

    def lines(self, own: dict[str, Any], known: dict[int, str]) -> list[str]:
        """See Condition."""
        name = f"holds{len(own)}"
        own[name] = self.holds
        return [f"if not {name}(): return MISS"]


class ReadValue(_Read):
    """A tensor from outside whose values code has read."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.storage = tensor, tensor.storage()
        self.version = self.storage.version

    def holds(self) -> bool:
        """Return True if the value has not changed in place since, and its memory is the same."""
        return self.storage.version == self.version and self.tensor._storage is self.storage

    def difference(self) -> str:
        """See Condition."""
        return f"a value that build reads, of a tensor {self.tensor._meta!r}, may have changed"


class ReadSeed(_Read):
    """A generator whose seed code has read."""

    def __init__(self, generator: Any) -> None:
        self.generator, self.seed = generator, generator._seed

    def holds(self) -> bool:
        """Return True if the seed is still the same."""
        return bool(self.generator._seed == self.seed)

    def difference(self) -> str:
        """See Condition."""
        return f"the seed that build reads {self.seed} -> {self.generator._seed}"
