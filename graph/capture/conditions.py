"""Conditions: the values that must be the same as at the capture, for it to serve a call.

What code decides by numbers is asked again at each call.  So is what was watched, with one
exception: what is *gated* (modules and their settings) only where something has changed in some
module since it was asked last, which `hot["changed"]` tells at once.
"""

from __future__ import annotations

from typing import Any

from flowvm.eager.live import Guard
from flowvm.eager.tensor import Tensor
from flowvm.vm.callers.hot import hot

NO_ANSWER = (ArithmeticError, ValueError, TypeError)  # of an expression of numbers


def is_met(guard: Guard) -> bool:
    """Return True if the guard's answer is the same as at the capture.

    Return False if there is no answer, such as for a division by 0: then the code runs again, and
    raises its own error.
    """
    find, outcome = guard
    try:
        return bool(find() == outcome)
    except NO_ANSWER:
        return False


class Conditions:
    """The base of captures, which serve calls as long as `holds()`.

    watched   each has a `holds()`, and says whether it is `gated`
    guards    decisions by numbers: what was asked, and the answer
    last_check  [the value of `hot["changed"]` when gated things were last found to hold]
    """

    watched: list[Any]
    guards: list[Guard]
    last_check: list[object]

    def holds(self) -> bool:
        """Return True if the code would issue the same operations now."""
        return (
            self.unchanged()
            and all(watched.holds() for watched in self.watched if not watched.gated)
            and all(is_met(guard) for guard in self.guards)
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


class ReadValue:
    """A tensor from outside whose values Python code has read: they must stay the same."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.storage = tensor, tensor.storage()
        self.version = self.storage.version

    def holds(self) -> bool:
        """Return True if the value has not changed in place since, and its memory is the same."""
        return self.storage.version == self.version and self.tensor._storage is self.storage

    def difference(self) -> list[str]:
        """Return the difference, in words."""
        return [f"a value that build reads, of a tensor {self.tensor._meta!r}, may have changed"]


class ReadSeed:
    """A generator whose seed Python code has read: it must stay the same."""

    def __init__(self, generator: Any) -> None:
        self.generator, self.seed = generator, generator._seed

    def holds(self) -> bool:
        """Return True if the seed is still the same."""
        return bool(self.generator._seed == self.seed)

    def difference(self) -> list[str]:
        """Return the difference, in words."""
        return [f"the seed that build reads {self.seed} -> {self.generator._seed}"]
