"""The tables of a module: what is registered, in its order.

Whatever stands in one is an attribute of the module, too.  Programs that write a table themselves,
`module._parameters["weight"] = other`, as some libraries do, write the attribute by that.

A program may also put a dict of its own in a table's place: `module._parameters = {...}`.  Nobody
hears of what is written there; so nothing of it is an attribute in the module's `__dict__`,
and whoever asks for one is answered from the dict (`Module.__getattr__`).
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from flowvm.eager.modes import note_change

TABLES = ("_parameters", "_buffers", "_modules")
_NONE = object()


class Table(dict[str, Any]):
    """`_parameters`, `_buffers` or `_modules` of `owner`; copies and pickles are plain dicts."""

    __slots__ = ("_owner",)

    def __init__(self, owner: object, items: Mapping[str, object] | None = None) -> None:
        self._owner = weakref.ref(owner)
        if items:
            super().update(items)

    def belongs_to(self, module: object) -> bool:
        """Return True if this is a table of `module`, and not of another one."""
        return self._owner() is module

    def note(self, name: str, value: object) -> None:
        """Write it here alone: the module writes the attribute."""
        super().__setitem__(name, value)

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        owner = self._owner()
        if owner is not None:
            owner.__dict__[name] = value
        note_change()

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        owner = self._owner()
        if owner is not None:
            owner.__dict__.pop(name, None)
        note_change()

    def pop(self, name: str, default: object = _NONE) -> Any:
        """Take an entry out, and the attribute."""
        if name not in self and default is not _NONE:
            return default
        value = self[name]
        del self[name]
        return value

    def popitem(self) -> tuple[str, object]:
        """Take the last entry out, and its attribute."""
        name = next(reversed(self))
        return name, self.pop(name)

    def clear(self) -> None:
        """Take all out."""
        for name in list(self):
            del self[name]

    def update(self, *others: object, **more: object) -> None:
        """Put in what others have."""
        for name, value in dict(*others, **more).items():
            self[name] = value

    def setdefault(self, name: str, default: object = None) -> Any:
        """Return the entry of `name`; without one, set it to `default` first."""
        if name not in self:
            self[name] = default
        return self[name]

    def __ior__(self, other: object) -> Table:  # type: ignore[override,misc]
        self.update(other)
        return self

    def copy(self) -> dict[str, Any]:
        """A plain dict."""
        return dict(self)

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return dict, (dict(self),)
