"""Containers: modules that hold modules or parameters and, Sequential apart, have no forward.

Sequential, ModuleList and ParameterList name what they hold "0", "1", ...; whatever changes their
length renumbers the rest, so a name is always the index.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, Self, SupportsIndex, TypeVar, overload

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, OutOfRangeError
from flowvm.nn.module import Module
from flowvm.nn.parameter import Parameter

# public: nn

M = TypeVar("M")


class Identity(Module):
    """Returns its input; takes any arguments, so that it can stand in for any layer.

    >>> nn.Identity()(flow.tensor([1, 2]))
    tensor([1, 2])
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        return input


class _Numbered(Module, Generic[M]):
    """Base of list-like containers: `_items` is the table whose names are indices."""

    _kind: str

    def _items(self) -> dict[str, Any]:
        table: dict[str, object] = getattr(self, self._kind)
        return table

    def _renumber(self, items: Iterable[M]) -> None:
        new = list(items)
        for name in list(self._items()):
            self._remove(name)
        for item in new:
            self.append(item)

    def _remove(self, name: str) -> None:
        delattr(self, name)

    def _index(self, index: SupportsIndex) -> int:
        i = operator.index(index)
        if not -len(self) <= i < len(self):
            raise OutOfRangeError(
                f"index {i} is out of range for {type(self).__name__} of {len(self)}"
            )
        return i % len(self)

    def append(self, item: M) -> Self:
        """Add at the end."""
        self.add_module(str(len(self)), item)  # type: ignore[arg-type]
        return self

    def extend(self, items: Iterable[M]) -> Self:
        """Add several at the end."""
        for item in list(items):
            self.append(item)
        return self

    def insert(self, index: int, item: M) -> Self:
        """Add in front of the one at `index`."""
        items = list(self)
        items.insert(index, item)
        self._renumber(items)
        return self

    def pop(self, index: SupportsIndex = -1) -> M:
        """Remove and return the one at `index`."""
        item = self[index]
        del self[index]
        return item

    @overload
    def __getitem__(self, index: SupportsIndex) -> M: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: SupportsIndex | slice) -> M | Self:
        if isinstance(index, slice):
            return type(self)._of(list(self)[index])
        item: M = self._items()[str(self._index(index))]
        return item

    def __setitem__(self, index: SupportsIndex, item: M) -> None:
        self._put(self._kind, str(self._index(index)), self._accepted(item))

    def __delitem__(self, index: SupportsIndex | slice) -> None:
        items = list(self)
        del items[index if isinstance(index, slice) else self._index(index)]
        self._renumber(items)

    def __iter__(self) -> Iterator[M]:
        return iter(self._items().values())

    def __len__(self) -> int:
        return len(self._items())

    def __contains__(self, item: object) -> bool:
        return any(item is held for held in self)

    def __reversed__(self) -> Iterator[M]:
        return reversed(list(self))

    def __add__(self, other: Iterable[M]) -> Self:
        return type(self)._of([*self, *other])

    def __mul__(self, times: int) -> Self:
        return type(self)._of(list(self) * self._times(times))

    __rmul__ = __mul__

    def __imul__(self, times: int) -> Self:
        items = list(self)
        for _ in range(self._times(times) - 1):
            self.extend(items)
        return self

    def _times(self, times: int) -> int:
        if not isinstance(times, int):
            raise ArgumentTypeError(
                f"{type(self).__name__} is multiplied by an int, got {type(times).__name__}"
            )
        if times <= 0:
            raise ArgumentError(f"{type(self).__name__}: {times} times leaves nothing")
        return times

    def __iadd__(self, other: Iterable[M]) -> Self:
        return self.extend(other)

    @classmethod
    def _of(cls, items: list[M]) -> Self:
        return cls(items)

    def _accepted(self, item: M) -> M:
        kind = Module if self._kind == "_modules" else Parameter
        if item is not None and not isinstance(item, kind):
            raise ArgumentTypeError(
                f"{type(self).__name__} holds {kind.__name__}s, got {type(item).__name__}"
            )
        return item


class Sequential(_Numbered[Module]):
    """Calls its modules one after the other.

    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> net = nn.Sequential({"hidden": nn.Linear(4, 8), "out": nn.Linear(8, 2)})
    """

    _kind = "_modules"

    def __init__(self, *modules: Module | Mapping[str, Module]) -> None:
        super().__init__()
        named: Mapping[str, Any] = {str(i): module for i, module in enumerate(modules)}
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            named = modules[0]
        for name, module in named.items():
            self.add_module(name, self._accepted(module))

    def forward(self, input: object) -> Any:
        for module in self._modules.values():
            input = module(input)
        return input

    @classmethod
    def _of(cls, items: list[Module]) -> Self:
        return cls(*items)

    def __getitem__(self, index: Any) -> Any:
        names = list(self._modules)
        if isinstance(index, slice):
            chosen = {name: self._modules[name] for name in names[index]}
            return type(self)(chosen)
        return self._modules[names[self._index(index)]]

    def __setitem__(self, index: SupportsIndex, item: Module) -> None:
        self._put("_modules", list(self._modules)[self._index(index)], self._accepted(item))


class ModuleList(_Numbered[Module]):
    """A list of modules, each of them a child; None keeps a place free.

    >>> layers = nn.ModuleList([nn.Linear(2, 3), nn.ReLU()])
    >>> len(layers), list(layers.state_dict())
    (2, ['0.weight', '0.bias'])
    """

    _kind = "_modules"

    def __init__(self, modules: Iterable[Module | None] | None = None) -> None:
        super().__init__()
        for module in modules or ():
            self.append(self._accepted(module))  # type: ignore[arg-type]


class _Holding(Module):
    """Base of containers of parameters and other values: each is an attribute, a Module a child."""

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[str, None] = {}  # names, in their order

    def _items(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._held}

    def _hold(self, name: str, value: Tensor | None) -> None:
        if name not in self._held:
            self._new_name(name, "parameter", "")  # or KeyError: a method has it
        plain = isinstance(value, Tensor) and not isinstance(value, Parameter)
        setattr(self, name, Parameter(value) if plain else value)
        self._held[name] = None

    def _remove(self, name: str) -> None:
        del self._held[name]
        delattr(self, name)

    def extra_repr(self) -> str:
        held = {n: v for n, v in self._items().items() if not isinstance(v, Module)}
        return "\n".join(f"({name}): {_named(value)}" for name, value in held.items())


def _named(value: Tensor | float) -> str:
    if isinstance(value, Tensor):
        return f"{type(value).__name__} of shape {tuple(value.shape)}, {value.dtype}"
    return f"{type(value).__name__} {value!r}"


class ParameterList(_Holding, _Numbered[Any]):
    """A list of parameters; a plain Tensor put in becomes a Parameter, anything else stays as it
    is: a list of lists of parameters is one of modules.

    >>> weights = nn.ParameterList([flow.ones(2), flow.ones(3)])
    >>> len(weights), list(weights.state_dict())
    (2, ['0', '1'])
    """

    def __init__(self, values: Iterable[object] | None = None) -> None:
        super().__init__()
        for value in () if values is None else values:
            self.append(value)

    def append(self, item: Any) -> Self:
        """Add at the end."""
        self._hold(str(len(self)), item)
        return self

    def __setitem__(self, index: SupportsIndex, item: Tensor | None) -> None:
        self._hold(str(self._index(index)), item)


class _Keyed(Module, Generic[M]):
    """Base of dict-like containers."""

    _kind: str

    def _items(self) -> dict[str, Any]:
        table: dict[str, object] = getattr(self, self._kind)
        return table

    def __getitem__(self, key: str) -> M:
        if key not in self._items():
            raise KeyError(f"{type(self).__name__} has no {key!r}; it has {list(self._items())}")
        item: M = self._items()[key]
        return item

    def __delitem__(self, key: str) -> None:
        self[key]  # or KeyError
        self._remove(key)

    def _remove(self, name: str) -> None:
        del self._items()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items())

    def __len__(self) -> int:
        return len(self._items())

    def __contains__(self, key: object) -> bool:
        return key in self._items()

    def __setitem__(self, key: str, item: Any) -> None:
        raise NotImplementedError

    def keys(self) -> Iterable[str]:
        """The names."""
        return self._items().keys()

    def values(self) -> Iterable[M]:
        """The values, in the order of their names."""
        return self._items().values()

    def items(self) -> Iterable[tuple[str, M]]:
        """(name, what it names)."""
        return self._items().items()

    def pop(self, key: str) -> M:
        """Remove and return."""
        item = self[key]
        del self[key]
        return item

    def __reversed__(self) -> Iterator[str]:
        return reversed(list(self._items()))

    def clear(self) -> None:
        """Remove everything."""
        for key in list(self._items()):
            del self[key]

    def update(self, items: Mapping[str, object] | Iterable[tuple[str, object]]) -> None:
        """Add or replace several."""
        for key, item in items.items() if isinstance(items, Mapping) else items:
            self[key] = item


class ModuleDict(_Keyed[Module]):
    """A dict of modules, each of them a child.

    >>> layers = nn.ModuleDict({"first": nn.Linear(2, 3), "second": nn.ReLU()})
    >>> list(layers), list(layers.state_dict())
    (['first', 'second'], ['first.weight', 'first.bias'])
    """

    _kind = "_modules"

    def __init__(
        self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] | None = None
    ) -> None:
        super().__init__()
        self.update(modules or ())

    def __setitem__(self, key: str, item: Module) -> None:
        self.add_module(key, item)


class ParameterDict(_Holding, _Keyed[Any]):
    """A dict of parameters; a plain Tensor put in becomes a Parameter, anything else stays as it
    is.

    >>> weights = nn.ParameterDict({"scale": flow.ones(2)})
    >>> weights["scale"].requires_grad, list(weights.state_dict())
    (True, ['scale'])
    """

    def __init__(
        self, parameters: Mapping[str, object] | Iterable[tuple[str, object]] | None = None
    ) -> None:
        super().__init__()
        self.update(parameters or ())

    def __setitem__(self, key: str, item: Tensor | None) -> None:
        self._hold(key, item)

    def get(self, key: str, default: object = None) -> Any:
        """Return the value of `key`, or `default`."""
        return self._items().get(key, default)

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Return the value of `key`; without one, set it to `default` first."""
        if key not in self:
            self[key] = default
        return self[key]

    def popitem(self) -> tuple[str, Any]:
        """Remove and return the last (name, parameter)."""
        key = list(self)[-1]
        return key, self.pop(key)

    def copy(self) -> ParameterDict:
        """Another one of the same parameters."""
        return ParameterDict(list(self.items()))

    def fromkeys(self, keys: Iterable[str], default: object = None) -> ParameterDict:
        """One with `default` for each of `keys`."""
        return ParameterDict([(key, default) for key in keys])

    def __or__(self, other: ParameterDict) -> ParameterDict:
        return ParameterDict([*self.items(), *other.items()])

    def __ior__(self, other: ParameterDict) -> Self:
        self.update(other.items())
        return self
