"""`Stateful`: the interface of objects with a state dict, by which they are saved and loaded."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from flowvm.loading.listing import listing, own_names

__dir__ = listing(globals())


@runtime_checkable
class Stateful(Protocol):
    """An object with `state_dict()` and `load_state_dict(state_dict)`: a module, an optimizer, an
    object of the program's own.

    >>> from flowvm.distributed.checkpoint.stateful import Stateful
    >>> isinstance(nn.Linear(1, 1), Stateful), isinstance({}, Stateful)
    (True, False)
    """

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the loaded state."""
        ...


__all__ = own_names(globals())
