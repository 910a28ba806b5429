"""Things of which there is one: whoever copies what holds them, such as a module with a function of
flowvm as its attribute, gets the same ones.

A copy would look at memory that belongs to the first, which may be gone before it.
"""

from __future__ import annotations

from typing import Any, Self


class Unique:
    """A copy of it is itself."""

    __slots__ = ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self
