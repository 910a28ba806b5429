"""Guards: one Python value each that code read while it was captured, the place where it was, and
how to ask whether it is there still.

A guard has `then`, the value that was read, `now()`, the value that is there, and `expression`,
Python source that is true if it is the very object of then: most calls need ask no more.  MISSING
stands for a name that was, or is, not there.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import chain
from typing import Any

from flowvm.nn.graph.watchers import MISSING, change_text, is_same, items_of, restore

FAILED: Any = type("Failed", (), {"__repr__": lambda self: "an error"})()  # asking raised

Namer = Callable[[Any], str]  # the name of an object in generated code


class Guard:
    """A value at a place that is called `label`."""

    __slots__ = ("label", "owner", "then")

    def __init__(self, label: str, owner: Any, then: Any) -> None:
        self.label, self.owner, self.then = label, owner, then

    def now(self) -> Any:
        """The value that is there; MISSING, or FAILED if asking raises."""
        try:
            return self._read()
        except (AttributeError, KeyError, IndexError, ValueError):
            return MISSING
        except Exception:  # a user's own code
            return FAILED

    def _read(self) -> Any:
        raise NotImplementedError

    def expression(self, name: Namer) -> str:
        """Source that is true, false, or raises."""
        raise NotImplementedError

    def put(self, value: Any) -> None:
        """Put a value back."""
        raise NotImplementedError

    def holds(self) -> bool:
        """Whether the value is what it was."""
        return is_same(self.now(), self.then)

    def difference(self) -> str:
        """The change in words."""
        return change_text(self.label, self.then, self.now())


class Attribute(Guard):
    """An attribute as Python finds it."""

    __slots__ = ("name",)

    def __init__(self, label: str, owner: Any, name: str, then: Any) -> None:
        super().__init__(label, owner, then)
        self.name = name

    def _read(self) -> Any:
        return getattr(self.owner, self.name)

    def put(self, value: Any) -> None:
        """Assign it."""
        setattr(self.owner, self.name, value)

    def expression(self, name: Namer) -> str:
        """Source of the comparison."""
        if self.then is MISSING:
            return f"not hasattr({name(self.owner)}, {self.name!r})"
        if not self.name.isidentifier():
            return f"getattr({name(self.owner)}, {self.name!r}) is {name(self.then)}"
        return f"{name(self.owner)}.{self.name} is {name(self.then)}"


class Bound(Attribute):
    """The function of a method, which is bound anew whenever it is looked up."""

    __slots__ = ()

    def _read(self) -> Any:
        return getattr(self.owner, self.name).__func__

    def expression(self, name: Namer) -> str:
        """Source of the comparison."""
        return f"{name(self.owner)}.{self.name}.__func__ is {name(self.then)}"


class Entry(Guard):
    """An entry of a mapping, or its absence: globals, builtins, a dict, what a class defines."""

    __slots__ = ("key",)

    def __init__(self, label: str, owner: Any, key: Any, then: Any) -> None:
        super().__init__(label, owner, then)
        self.key = key

    def _read(self) -> Any:
        return self.owner.get(self.key, MISSING)

    def put(self, value: Any) -> None:
        """Store it."""
        self.owner[self.key] = value

    def expression(self, name: Namer) -> str:
        """Source of the comparison."""
        key = repr(self.key) if type(self.key) in (str, int, bool) else name(self.key)
        if self.then is MISSING:
            return f"{key} not in {name(self.owner)}"
        return f"{name(self.owner)}[{key}] is {name(self.then)}"


class Item(Entry):
    """An item of a sequence."""

    __slots__ = ()

    def _read(self) -> Any:
        return self.owner[self.key]

    def expression(self, name: Namer) -> str:
        """Source of the comparison."""
        return f"{name(self.owner)}[{self.key}] is {name(self.then)}"


class Cell(Guard):
    """A closure's variable."""

    __slots__ = ()

    def _read(self) -> Any:
        return self.owner.cell_contents

    def put(self, value: Any) -> None:
        """Assign it."""
        self.owner.cell_contents = value

    def expression(self, name: Namer) -> str:
        """Source of the comparison."""
        return f"{name(self.owner)}.cell_contents is {name(self.then)}"


class Length(Guard):
    """The length of a container."""

    __slots__ = ()

    def _read(self) -> Any:
        return len(self.owner)

    def expression(self, name: Namer) -> str:
        """Source of the comparison."""
        return f"len({name(self.owner)}) == {self.then}"

    def difference(self) -> str:
        """The change in words."""
        return f"the length of {self.label} {self.then} -> {len(self.owner)}"


class Contents(Guard):
    """All items of a container, of a dict its values and keys."""

    __slots__ = ()

    def _read(self) -> Any:
        return tuple(items_of(self.owner, whole=True))

    def put(self, value: Any) -> None:
        """Let it hold these items again."""
        restore(self.owner, list(value))

    def expression(self, name: Namer) -> str:
        """Source of the comparison."""
        held, length = name(self.owner), len(self.then)
        if isinstance(self.owner, dict):
            now, length = f"{name(chain)}({held}.values(), {held})", length // 2
        else:
            now = held
        same = f"all(map({name(operator.is_)}, {now}, {name(self.then)}))"
        return f"len({held}) == {length} and {same}"

    def difference(self) -> str:
        """The change in words."""
        return f"the contents of {self.label} changed"


class Bytes(Guard):
    """The values of an array."""

    __slots__ = ()

    def _read(self) -> Any:
        return bytes_of(self.owner)

    def expression(self, name: Namer) -> str:
        """Source of the comparison."""
        return f"{name(bytes_of)}({name(self.owner)}) == {name(self.then)}"

    def difference(self) -> str:
        """The change in words."""
        return f"the values of {self.label} changed"


def bytes_of(array: Any) -> Any:
    """The values of a NumPy array, an `array.array` or a bytearray, to be compared."""
    shape, dtype = getattr(array, "shape", None), getattr(array, "dtype", None)
    return (shape, dtype, array.tobytes() if hasattr(array, "tobytes") else bytes(array))


class Answer(Guard):
    """What a function without effects answers: `ContextVar.get`, a weak reference."""

    __slots__ = ("args",)

    def __init__(self, label: str, owner: Any, args: tuple[Any, ...], then: Any) -> None:
        super().__init__(label, owner, then)
        self.args = args

    def _read(self) -> Any:
        return self.owner(*self.args)

    def expression(self, name: Namer) -> str:
        """Source of the comparison."""
        return f"{name(self.owner)}(*{name(self.args)}) is {name(self.then)}"


class Lives(Guard):
    """Whether the object of a weak reference is there; the guard does not hold it."""

    __slots__ = ()

    def _read(self) -> Any:
        return self.owner() is not None

    def expression(self, name: Namer) -> str:
        """Source of the comparison."""
        return f"({name(self.owner)}() is not None) is {self.then}"


class Order(Guard):
    """The classes in which an object's attributes are looked for."""

    __slots__ = ()

    def _read(self) -> Any:
        return type(self.owner)

    def expression(self, name: Namer) -> str:
        """Source of the comparison."""
        return f"{name(type)}({name(self.owner)}) is {name(self.then)}"
