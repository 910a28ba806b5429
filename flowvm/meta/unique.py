"""Unique objects: a copy of a holder, such as a module with a function of flowvm as its attribute,
shares them.

A copy would look at memory that belongs to the first, which may be gone before it.
"""

from __future__ import annotations

from typing import Self


class Unique:
    """The base class of objects whose copies are themselves."""

    __slots__ = ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self
