"""Guards: questions to Python's state, besides the arguments, that a Plan asks at each call.

A watcher has `holds()`, whether all is as it was, `difference()`, what is not, in words, and
`gated`: whether what it looks at changes only with `flowvm.eager.modes.note_change`, so that
it need not be asked as long as that was not called.  Values are compared by identity first, which
is nearly always the answer, and then by what they are: 1 is neither True nor 1.0.

A guard is a watcher of one Python value that code read while it was captured.  It has the place of
the value, and `then`, the value that was read, `now()`, the value that is there, and `expression`,
Python source that is true if it is the very object of then: most calls need ask no more.  MISSING
stands for a name that was, or is, not there.
"""

from __future__ import annotations

import datetime
import math
import operator
import random
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from types import BuiltinMethodType, MethodType
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import numpy as np

from flowvm.eager.tensor import Tensor
from flowvm.meta.dtype import get_default_dtype
from flowvm.vm.engine.engine import engine
from flowvm.vm.watch.notes import writer_of

if TYPE_CHECKING:
    from flowvm.meta.meta import TensorMeta


# --- values -----------------------------------------------------------------------------------


ITEMS = 256  # a container of more is watched by its length alone
MISSING: Any = type("Missing", (), {})()

Asked = tuple[Any, Mapping[str, Any], list[Any]]


class View:
    """Some names of one mapping, with the values that they had."""

    def __init__(self, label: str, mapping: Mapping[str, Any]) -> None:
        self.label, self.mapping = label, mapping
        self.then: dict[str, Any] = {}

    def finish(self) -> tuple[Any, Mapping[str, Any], list[Any]]:
        """(getter of a tuple, mapping, values): what is asked at each call."""
        names = list(self.then)
        return operator.itemgetter(*names, names[0]), self.mapping, [*self.then.values()]

    def text(self, name: str) -> str:
        """Return the user's name for an attribute: with the label of its owner in front."""
        return f"{self.label}.{name}" if self.label else name


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


class Modules:
    """The modules' own attributes, and where tensors are: changes of these are announced
    (`flowvm.eager.modes.note_change`), so who asks may do so after one only.
    """

    gated = True

    def __init__(self) -> None:
        self.views: dict[int, View] = {}
        self.tables: dict[int, tuple[str, dict[str, Any], list[Any]]] = {}
        self.optional: list[tuple[dict[str, Any], str, Any, str]] = []  # may be absent
        self.tensors: dict[int, tuple[str, Tensor, TensorFacts]] = {}
        self._checks: list[Asked] = []

    def ready(self) -> None:
        """Prepare the guard for checks: nothing is added to it from now on."""
        self._checks = [view.finish() for view in self.views.values() if view.then]

    def holds(self) -> bool:
        """Return True if modules, parameters and tables are as they were at the capture."""
        return (
            all(facts_of(t) == then for _, t, then in self.tensors.values())
            and all(m.get(name, MISSING) is then for m, name, then, _ in self.optional)
            and all(unchanged(table, then) for _, table, then in self.tables.values())
            and _all_hold(self._checks)
        )

    def difference(self) -> list[str]:
        """List the changes since the capture as text; empty if the guard holds."""
        differences = _view_differences(self.views.values())
        for mapping, name, then, label in self.optional:
            if mapping.get(name, MISSING) is not then:
                differences.append(f"{label} changed")
        for label, t, then in self.tensors.values():
            now = facts_of(t)
            if now.ref != then.ref:
                differences.append(f"{label} has other memory")
            elif now.constant is not then.constant:
                differences.append(f"{label}.requires_grad {not then.constant} -> {then.constant}")
            elif now.meta != then.meta:
                differences.append(f"{label} {then.meta!r} -> {now.meta!r}")
            elif now != then:
                differences.append(f"{label} has other hooks")
        for label, table, then in self.tables.values():
            if not differences and not unchanged(table, then):
                differences.append(f"{label} has other parts")
        return differences


class Others:
    """All that changes unannounced: attributes of other objects, closures, globals, containers,
    the optimizers' state, random states that the code draws from.
    """

    gated = False

    def __init__(self) -> None:
        self.views: dict[int, View] = {}
        self.cells: dict[int, tuple[str, Any, Any]] = {}  # (name, cell, value)
        self.contents: dict[int, tuple[str, Any, list[Any]]] = {}
        self.entries: list[tuple[dict[str, Any], str, Any, str]] = []  # of optimizers' states
        self.random: tuple[Any, ...] | None = None
        self.dtype = get_default_dtype()
        self._checks: list[Asked] = []
        self._places: list[tuple[dict[str, Any], str]] = []
        self._values: list[Any] = []

    def keys(self) -> set[tuple[Any, ...]]:
        """All that is looked at here, by the keys that `Reads` has for it."""
        keys: set[tuple[object, ...]] = {("cell", id(cell)) for _, cell, _ in self.cells.values()}
        for view in self.views.values():
            keys.update(("entry", id(view.mapping), name) for name in view.then)
        for _, container, items in self.contents.values():
            if len(container) << isinstance(container, dict) == len(items):
                keys.add(("contents", id(container)))
        return keys

    def ready(self) -> None:
        """Prepare the guard for checks: nothing is added to it from now on."""
        self._checks = [view.finish() for view in self.views.values() if view.then]
        self._places = [(entry, name) for entry, name, _, _ in self.entries]
        self._values = [then for _, _, then, _ in self.entries]

    def holds(self) -> bool:
        """Return True if all values that code read are as they were at the capture."""
        if not _all_hold(self._checks):
            return False
        for _, cell, then in self.cells.values():
            now = content_of(cell)
            if now is not then and not is_same(now, then):
                return False
        for _, container, items in self.contents.values():
            if not unchanged(container, items):
                return False
        try:
            values = [entry[name] for entry, name in self._places]
        except KeyError:
            return False
        if not all(map(operator.is_, values, self._values)):
            return False
        if get_default_dtype() is not self.dtype:
            return False
        return self.random is None or random_states() == self.random

    def difference(self) -> list[str]:
        """List the changes since the capture as text; empty if the guard holds."""
        differences = _view_differences(self.views.values())
        if get_default_dtype() is not self.dtype:
            differences.append(f"the default dtype {self.dtype!r} -> {get_default_dtype()!r}")
        for name, cell, then in self.cells.values():
            if not is_same(now := content_of(cell), then):
                differences.append(change_text(name, then, now))
        for label, container, items in self.contents.values():
            if not unchanged(container, items):
                differences.append(f"the contents of {label} changed")
        for entry, name, then, label in self.entries:
            if entry.get(name) is not then:
                differences.append(f"{label} has another {name}")
                break
        if self.random is not None and random_states() != self.random:
            differences.append("Python's or NumPy's random state, which build draws from")
        return differences


# of which two that are equal are alike
_PLAIN: frozenset[Any] = frozenset({
    complex, range, Decimal, Fraction, datetime.date, datetime.datetime,
    datetime.time, datetime.timedelta, UUID, PurePosixPath, PureWindowsPath, PosixPath, WindowsPath,
})  # fmt: skip

# --- values -------------------------------------------------------------------------------------


def content_of(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def items_of(container: Any, whole: bool = False) -> list[Any]:
    """Values and keys of a dict, else the items; of a large one, unless `whole`, its length."""
    if len(container) > ITEMS and not whole:
        return [len(container)]
    return [*container.values(), *container] if isinstance(container, dict) else [*container]


def unchanged(container: Any, then: list[Any]) -> bool:
    """Return True if a container has the items of `then`.  Identical ones need no new list."""
    is_dict = isinstance(container, dict)
    if len(container) <= ITEMS and len(container) << is_dict == len(then):
        now = chain(container.values(), container) if is_dict else container
        if all(map(operator.is_, now, then)):
            return True
    return _all_same(items_of(container), then)


def new_items(container: object, then: list[Any]) -> list[Any]:
    known = set(map(id, then))
    return [item for item in items_of(container) if id(item) not in known]


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


def _all_hold(checks: list[Asked]) -> bool:
    for get, mapping, then in checks:
        try:
            now = get(mapping)
        except KeyError:
            return False
        if not all(map(operator.is_, now, then)) and not all(map(is_same, now, then)):
            return False
    return True


def _view_differences(views: Iterable[View]) -> list[str]:
    return [
        change_text(view.text(name), then, view.mapping.get(name, MISSING))
        for view in views
        for name, then in view.then.items()
        if not is_same(view.mapping.get(name, MISSING), then)
    ]


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
        repr(value) if isinstance(value, (bool, int, float, str, tuple)) else type(value).__name__
    )
    return text if len(text) <= 40 else text[:37] + "..."


def random_states() -> tuple[Any, ...]:
    kind, keys, place, has_gauss, gauss = np.random.get_state(legacy=True)
    return random.getstate(), kind, keys.tobytes(), place, has_gauss, gauss  # type: ignore[union-attr]


# --- guards -----------------------------------------------------------------------------------


FAILED: Any = type("Failed", (), {"__repr__": lambda self: "an error"})()  # asking raised

Namer = Callable[[Any], str]  # the name of an object in generated code


class Guard:
    """A value at a place that is called `label`."""

    __slots__ = ("label", "owner", "then")

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

    def _read(self) -> tuple[Any, ...]:
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
