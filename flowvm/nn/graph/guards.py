"""Guards: the Python values, besides the arguments, that must be as they were at the capture.

A guard is one value at one place that code read, or that flowvm found before the code ran.  It has
the place of the value, and `then`, the value that was there, `now()`, the value that is there, and
`expression`, Python source that is true if it is the very object of then: most calls need ask no
more.  MISSING stands for a name that was, or is, not there.  Values are compared by identity first,
which is nearly always the answer, and then by what they are: 1 is neither True nor 1.0.

`Guards` are those that a Plan asks together at a call.  They are `gated` if their values change
only with `flowvm.eager.modes.note_change`, so that they need not be asked as long as that was not
called.
"""

from __future__ import annotations

import datetime
import math
import operator
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from types import BuiltinMethodType, MethodType
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import numpy as np

from flowvm.eager.tensor import Tensor
from flowvm.meta.dtype import DType
from flowvm.vm.engine.engine import engine
from flowvm.vm.watch.notes import writer_of

if TYPE_CHECKING:
    from flowvm.meta.meta import TensorMeta


# --- values -----------------------------------------------------------------------------------


MISSING: Any = type("Missing", (), {})()


class TensorFacts(NamedTuple):
    """The facts of a tensor on which captured code depends, beside its values."""

    ref: int
    meta: TensorMeta
    constant: bool  # nothing is recorded of it
    hooks: tuple[Any, ...]  # of a leaf


def facts_of(t: Tensor) -> TensorFacts:
    """Return the facts of a tensor now."""
    node = t._node
    if node is None or not node.is_leaf:
        return TensorFacts(t._ref, t._meta, node is None, ())
    hooks = (*node.hooks.values(), *node.after.values()) if node.hooks or node.after else ()
    return TensorFacts(t._ref, t._meta, False, hooks)


# of which two that are equal are alike
_PLAIN: frozenset[Any] = frozenset({
    complex, range, Decimal, Fraction, datetime.date, datetime.datetime,
    datetime.time, datetime.timedelta, UUID, PurePosixPath, PureWindowsPath, PosixPath, WindowsPath,
})  # fmt: skip


def content_of(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def items_of(container: Any) -> list[Any]:
    """Values and keys of a dict, else the items."""
    return [*container.values(), *container] if isinstance(container, dict) else [*container]


def restore(container: Any, items: list[Any]) -> None:
    container.clear()
    if isinstance(container, dict):
        half = len(items) // 2
        container.update(zip(items[half:], items[:half], strict=True))
    else:
        (container.update if isinstance(container, set) else container.extend)(items)


def is_same(now: Any, then: Any) -> bool:
    """Identical, or plain and equal: 1 is neither True nor 1.0, 0.0 is not -0.0, NaN is NaN."""
    if now is then:
        return True
    kind = type(now)
    if kind is not type(then):
        return False
    if kind is float:
        if math.isnan(now) or math.isnan(then):
            return math.isnan(now) and math.isnan(then)
        return bool(now == then and math.copysign(1.0, now) == math.copysign(1.0, then))
    if kind is tuple:
        return _all_same(now, then)
    if kind in (bool, int, str, bytes):
        return bool(now == then)
    if kind in _PLAIN:
        return bool(now == then and repr(now) == repr(then))
    if isinstance(now, np.generic):
        return bool(now.dtype == then.dtype and now.tobytes() == then.tobytes())
    if isinstance(now, MethodType):
        return now.__func__ is then.__func__ and now.__self__ is then.__self__
    if isinstance(now, BuiltinMethodType):
        return now.__self__ is then.__self__ and now.__name__ == then.__name__
    return False


def _all_same(now: Any, then: Any) -> bool:
    if len(now) != len(then):
        return False
    return all(map(operator.is_, now, then)) or all(map(is_same, now, then))


SOON = 0.05  # seconds: a capture takes as long


def change_text(label: str, then: object, now: object) -> str:
    """Describe a change from `then` to `now`; for two values that print alike, name the writer."""
    before, after = value_text(then), value_text(now)
    if before != after:
        return f"{label} {before} -> {after}"
    if not isinstance(now, Tensor):
        return f"{label} is another {after}"
    engine.waits.wait_idle(SOON)  # what was issued a moment ago is in the record then
    writer = writer_of(engine, now._ref)
    return f"{label} was replaced by another tensor {now._meta!r}" + f" (of {writer})" * bool(
        writer
    )


def value_text(value: object) -> str:
    if value is MISSING:
        return "nothing"
    if isinstance(value, Tensor):
        return f"a tensor {value._meta!r}"
    text = (
        repr(value)
        if isinstance(value, (bool, int, float, str, tuple, DType))
        else type(value).__name__
    )
    return text if len(text) <= 40 else text[:37] + "..."


def random_states() -> tuple[Any, ...]:
    kind, keys, place, has_gauss, gauss = np.random.get_state(legacy=True)
    return random.getstate(), kind, keys.tobytes(), place, has_gauss, gauss  # type: ignore[union-attr]


def state_of(source: Any) -> object:
    """Return the state of a source of random numbers; None: of those that all programs share."""
    if source is None:
        return random_states()
    if isinstance(source, random.Random):
        return source.getstate()
    if isinstance(source, np.random.Generator):
        return repr(source.bit_generator.state)
    return repr(source.get_state(legacy=False))


# --- guards -----------------------------------------------------------------------------------


FAILED: Any = type("Failed", (), {"__repr__": lambda self: "an error"})()  # asking raised

Namer = Callable[[Any], str]  # the name of an object in generated code
Key = tuple[Any, ...]  # a place: its kind, the identity of its owner, a name


class Guard:
    """A value at a place that is called `label`.

    by_code  code reads it by that name; else flowvm keeps it for the code
    """

    __slots__ = ("label", "owner", "then")
    by_code = True

    def __init__(self, label: str, owner: Any, then: Any) -> None:
        self.label, self.owner, self.then = label, owner, then

    def now(self) -> Any:
        """Return the value that is there, MISSING, or FAILED if asking raises; what the process
        lacks is raised.
        """
        try:
            return self._read()
        except (AttributeError, KeyError, IndexError, ValueError):
            return MISSING
        except (MemoryError, RecursionError):
            raise
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
        """Return True if the value is the one at the capture."""
        return is_same(self.now(), self.then)

    def difference(self) -> str:
        """The change in words."""
        return change_text(self.label, self.then, self.now())


class Attribute(Guard):
    """An attribute as Python finds it."""

    __slots__ = ("name",)

    def __init__(self, label: str, owner: object, name: str, then: object) -> None:
        super().__init__(label, owner, then)
        self.name = name

    def _read(self) -> Any:
        return getattr(self.owner, self.name)

    def put(self, value: object) -> None:
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

    def __init__(self, label: str, owner: object, key: Any, then: object) -> None:
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


class Slot(Entry):
    """An entry of a dict that flowvm keeps: a table, hooks, an optimizer's state."""

    __slots__ = ()
    by_code = False

    def difference(self) -> str:
        """The change in words."""
        return f"{self.label} changed"


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

    def _read(self) -> int:
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

    def __init__(self, label: str, owner: object) -> None:
        super().__init__(label, owner, ())
        self.then = self._read()

    def _read(self) -> tuple[Any, ...]:
        owner = self.owner
        then: tuple[Any, ...] = self.then
        is_dict = isinstance(owner, dict)
        if len(owner) << is_dict == len(then):
            now = chain(owner.values(), owner) if is_dict else owner
            if all(map(operator.is_, now, then)):  # without a new tuple
                return then
        return tuple(items_of(owner))

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


class Parts(Contents):
    """The contents of a table of a module."""

    __slots__ = ()
    by_code = False

    def holds(self) -> bool:
        """Return True if the table has the same parts."""
        return self._read() is self.then or super().holds()

    def difference(self) -> str:
        """The change in words."""
        return f"{self.label} has other parts"


class Bytes(Guard):
    """The values of an array."""

    __slots__ = ()

    def _read(self) -> tuple[Any | None, Any | None, Any]:
        return bytes_of(self.owner)

    def expression(self, name: Namer) -> str:
        """Source of the comparison."""
        return f"{name(bytes_of)}({name(self.owner)}) == {name(self.then)}"

    def difference(self) -> str:
        """The change in words."""
        return f"the values of {self.label} changed"


def bytes_of(array: Any) -> tuple[Any | None, Any | None, Any]:
    """Return the bytes of a NumPy array, `array.array`, bytearray, memoryview or an object of
    ctypes, to be compared.
    """
    named = isinstance(array, (np.ndarray, memoryview))
    shape, dtype = array.shape if named else None, getattr(array, "dtype", None) if named else None
    return (shape, dtype, array.tobytes() if hasattr(array, "tobytes") else bytes(array))


class Answer(Guard):
    """A guard on the answer of a function without effects: `ContextVar.get`, a weak reference."""

    __slots__ = ("args",)

    def __init__(self, label: str, owner: object, args: tuple[Any, ...], then: object) -> None:
        super().__init__(label, owner, then)
        self.args = args

    def _read(self) -> Any:
        return self.owner(*self.args)

    def expression(self, name: Namer) -> str:
        """Source of the comparison."""
        return f"{name(self.owner)}(*{name(self.args)}) is {name(self.then)}"


class Lives(Guard):
    """A guard on whether the object of a weak reference is alive; it does not hold the object."""

    __slots__ = ()

    def _read(self) -> bool:
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


class Facts(Guard):
    """The facts of a tensor, beside its values."""

    __slots__ = ()
    by_code = False

    def __init__(self, label: str, owner: Tensor) -> None:
        super().__init__(label, owner, facts_of(owner))

    def holds(self) -> bool:
        """Return True if the facts are equal to those at the capture."""
        return bool(facts_of(self.owner) == self.then)

    def expression(self, name: Namer) -> str:
        """Source of the comparison."""
        return f"{name(facts_of)}({name(self.owner)}) == {name(self.then)}"

    def difference(self) -> str:
        """The change in words."""
        label, now, then = self.label, facts_of(self.owner), self.then
        if now.ref != then.ref:
            return f"{label} has other memory"
        if now.constant is not then.constant:
            return f"{label}.requires_grad {not then.constant} -> {then.constant}"
        if now.meta != then.meta:
            return f"{label} {then.meta!r} -> {now.meta!r}"
        return f"{label} has other hooks"


class State(Guard):
    """The state of a source of random numbers, which drawing changes."""

    __slots__ = ()

    def _read(self) -> object:
        return state_of(self.owner)

    def expression(self, name: Namer) -> str:
        """Source of the comparison."""
        return "False"

    def difference(self) -> str:
        """The change in words."""
        return f"the random state of {self.label}, which build draws from"


# --- what is asked together ---------------------------------------------------------------------


class Guards:
    """Guards that are asked together, one for each place.

    gated    their values change only with `note_change`
    """

    def __init__(self, gated: bool = False) -> None:
        self.gated = gated
        self._guards: dict[Key, Guard] = {}
        self._alone: list[Guard] = []
        self._entries: list[tuple[Callable[[Any], Any], Any, list[Any]]] = []
        self._absent: list[tuple[dict[object, object], object]] = []

    def __iter__(self) -> Iterator[Guard]:
        return iter(self._guards.values())

    def places(self) -> list[tuple[Key, Guard]]:
        """All guards now, with the keys of their places."""
        return list(self._guards.items())

    def add(self, key: Key, guard: Guard) -> bool:
        """Add the guard of a place; False if the place has one already, which stays."""
        return self._guards.setdefault(key, guard) is guard

    def drop(self, key: Key) -> None:
        """Ask no more for a place."""
        del self._guards[key]

    def keys(self) -> set[Key]:
        """The keys of all places."""
        return set(self._guards)

    def ready(self) -> None:
        """Prepare for checks, after the last guard was added: ask for entries of a dict at once."""
        entries: dict[int, list[Entry]] = {}
        self._alone.clear()
        self._absent.clear()
        for guard in self:
            if not isinstance(guard, Entry) or type(guard.owner) is not dict:
                self._alone.append(guard)
            elif guard.then is MISSING:
                self._absent.append((guard.owner, guard.key))
            else:
                entries.setdefault(id(guard.owner), []).append(guard)
        self._entries.clear()
        for same in entries.values():
            get = operator.itemgetter(same[0].key, *(g.key for g in same))  # of a tuple
            self._entries.append((get, same[0].owner, [same[0].then, *(g.then for g in same)]))

    def holds(self) -> bool:
        """Return True if all values are as they were at the capture."""
        for get, owner, then in self._entries:
            try:
                now = get(owner)
            except KeyError:
                return False
            if not all(map(operator.is_, now, then)) and not all(map(is_same, now, then)):
                return False
        if any(key in owner for owner, key in self._absent):
            return False
        return all(guard.holds() for guard in self._alone)

    def difference(self) -> list[str]:
        """List the changes since the capture as text; empty if the guards hold."""
        broken = [guard for guard in self if not guard.holds()]
        places = [guard for guard in broken if not isinstance(guard, Parts)]  # which say more
        return [guard.difference() for guard in places or broken]

    def expression(self, name: Namer) -> str:
        """Source that is true if everything is the very object that it was."""
        return " and ".join(guard.expression(name) for guard in self) or "True"
