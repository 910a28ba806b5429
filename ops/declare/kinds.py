"""Kinds of attributes: what an infer function's annotations say that a call may have.

    def _topk(x: TensorMeta, k: Count, largest: bool) -> Launch: ...

bool, int, float, str, a Literal, a dtype, a device, a meta, a named tuple, a tuple of sizes and
unions of these say it by themselves; `Dim`, `Dims`, `Count` and others here say more, and Any that
the function looks itself.  What several values and the operands are to each other is a rule beside
the declaration, `takes=`.

A call comes from a public function, which has checked it, or from a file, which nobody has: both go
through `Inferred`.  It runs where an entry is made, and not again for calls of such metas.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.meta.device import cpu
from flowvm.meta.meta import Attrs, Size, TensorMeta

Metas = Sequence[TensorMeta]
Values = dict[str, Any]
Takes = Callable[[Metas, Values], bool]
MOST = 1 << 48  # of a size or a count


class Kind(NamedTuple):
    """A check of an attribute: `holds(value, metas, all attributes by name)`."""

    text: str
    holds: Callable[[Any, Metas, Values], bool]


def is_int(value: object, low: int = -(1 << 63), high: int = (1 << 63) - 1) -> bool:
    """True for an int, no bool, from `low` to `high`."""
    return type(value) is int and low <= value <= high


def is_size(value: object) -> bool:
    """True for an int that may be a size or a stride."""
    return is_int(value, 0, MOST)


def between(low: int, high: int) -> Kind:
    """Make the kind of an int from `low` to `high`."""
    return Kind(f"from {low} to {high}", lambda value, metas, values: is_int(value, low, high))


def _is_dim(value: object, metas: Metas, values: Values) -> bool:
    return is_int(value, 0, max(1, metas[0].ndim) - 1)


def _are_dims(value: object, metas: Metas, values: Values) -> bool:
    rank = metas[0].ndim
    if type(value) is not tuple or not all(is_int(d, 0, max(0, rank - 1)) for d in value):
        return False
    return len(set(value)) == len(value) and (rank > 0 or value in ((), (0,)))


Dim = Annotated[int, Kind("a dimension of the first operand", _is_dim)]
Dims = Annotated[tuple[int, ...], Kind("dimensions of the first operand", _are_dims)]
Count = Annotated[int, between(0, MOST)]


def computes(*metas: TensorMeta) -> bool:
    """True if all are of one dtype of floats that the device's kernels compute with."""
    dtype = metas[0].dtype
    reduced = dtype.reduced and (dtype.minifloat or metas[0].device is cpu)
    return dtype.is_floating_point and not reduced and all(m.dtype is dtype for m in metas)


def last_size(meta: TensorMeta) -> int:
    """Return the size of the last dimension, 1 of a single number."""
    return meta.shape[-1] if meta.ndim else 1


def within(values: Iterable[int], low: int, high: int = (1 << 31) - 1) -> bool:
    """True if all values are from `low` to `high`."""
    return all(low <= v <= high for v in values)


class Inferred:
    """The infer function of one of flowvm's declarations, behind the checks of its attributes."""

    def __init__(
        self, infer: Callable[..., object], name: str, attrs: tuple[str, ...], dense: bool,
        takes: Takes | None,
    ) -> None:  # fmt: skip
        self.infer, self.name, self.attrs = infer, name, attrs
        self.dense, self.takes = dense, takes
        self.__name__ = name
        self._kinds: tuple[Kind, ...] | None = None

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The attributes' kinds, read of the annotations when they are first asked for."""
        if self._kinds is None:
            self._kinds = tuple(kind_of(self.infer, name) for name in self.attrs)
        return self._kinds

    def infer_unchecked(self, metas: tuple[TensorMeta, ...], attrs: Attrs) -> Any:
        """Return what the function says of metas that stand for operands, without the checks: a
        global tensor's is of no memory, and reduced floats are converted behind it.
        """
        return self.infer(*metas, *attrs)

    def __call__(self, metas: tuple[TensorMeta, ...], attrs: Attrs) -> Any:
        """Return what the infer function says of a call; ArgumentError where there is no such."""
        if self.dense and not all(meta.contiguous for meta in metas):
            raise ArgumentError(f"{self.name} takes operands in C order, got {metas}")
        values = dict(zip(self.attrs, attrs, strict=bool(self.attrs)))
        for (name, value), kind in zip(values.items(), self.kinds, strict=True):
            if not kind.holds(value, metas, values):
                raise ArgumentError(
                    f"{self.name}: {name} must be {kind.text}, got {str(value)[:80]} with {metas}"
                )
        if self.takes is not None and not self.takes(metas, values):
            raise ArgumentError(
                f"{self.name} is not defined for operands {metas} with {str(values)[:200]}"
            )
        return self.infer(*metas, *attrs)


def kind_of(infer: Callable[..., object], name: str) -> Kind:
    """Return the kind that an annotation of `infer` says; ArgumentTypeError if it says none."""
    annotation = infer.__annotations__.get(name)
    if isinstance(annotation, str):
        annotation = eval(annotation, infer.__globals__)
    kind = None if annotation is None else _kind(annotation)
    if kind is None:
        raise ArgumentTypeError(
            f"{infer.__name__}: the annotation {annotation} of {name} is not a kind of attribute; "
            f"see flowvm.ops.declare.kinds"
        )
    return kind


def _kind(annotation: Any) -> Kind | None:
    if annotation is Any:
        return Kind("whatever the function checks itself", lambda value, metas, values: True)
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return next(
            (m for m in annotation.__metadata__ if isinstance(m, Kind)),
            _kind(annotation.__origin__),
        )
    if origin is Literal:
        options = typing.get_args(annotation)
        return Kind(
            f"one of {', '.join(map(repr, options))}",
            lambda value, metas, values: any(
                type(value) is type(option) and value == option for option in options
            ),
        )
    if origin is tuple:
        return _tuple(typing.get_args(annotation))
    if origin in (types.UnionType, typing.Union):
        return _union([_kind(part) for part in typing.get_args(annotation)])
    if isinstance(annotation, type):
        return _PLAIN.get(annotation) or Kind(
            f"a {annotation.__name__}", lambda value, metas, values: isinstance(value, annotation)
        )
    return None


_PLAIN: dict[type, Kind] = {
    bool: Kind("a bool", lambda value, metas, values: type(value) is bool),
    int: Kind("an int of 64 bits", lambda value, metas, values: is_int(value)),
    float: Kind("a number", lambda value, metas, values: type(value) in (int, float, bool)),
    types.NoneType: Kind("None", lambda value, metas, values: value is None),
}


def _tuple(parts: tuple[object, ...]) -> Kind | None:
    if set(parts) - {int, ...}:
        return None
    count = None if ... in parts else len(parts)
    return Kind(
        "sizes" if count is None else f"{count} sizes",
        lambda value, metas, values: (
            type(value) in (tuple, Size)
            and count in (None, len(value))
            and all(map(is_size, value))
        ),
    )


def _union(kinds: Sequence[Kind | None]) -> Kind | None:
    some = [kind for kind in kinds if kind is not None]
    if len(some) < len(kinds):
        return None
    return Kind(
        " or ".join(kind.text for kind in some),
        lambda value, metas, values: any(kind.holds(value, metas, values) for kind in some),
    )
