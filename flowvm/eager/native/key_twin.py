"""The dict keys of calls that may have traces, made in Python: as `flowvm.eager.native.key` makes
them.
"""

from __future__ import annotations

from typing import Any

from flowvm.eager.modes import grad_enabled
from flowvm.eager.native.tables import CLOSE, NO, OPEN_LIST, OPEN_TUPLE, SLICED, YES
from flowvm.eager.native.words import MOST_ARGUMENTS, MOST_PARTS, MOST_SAME, MOST_VALUES
from flowvm.eager.tensor import Tensor
from flowvm.meta.dtype import DType
from flowvm.meta.meta import Size, TensorMeta
from flowvm.vm.callers.hot import hot


def dict_key_of(
    args: tuple[Any, ...], names: tuple[str, ...], tensors: list[Tensor]
) -> tuple[object, ...]:
    """As `key.dict_key_of`: the key, and in `tensors` those among the arguments; LookupError where
    an argument is none that keys have.
    """
    parts: list[object] = []
    mask = 0

    def add(x: Tensor) -> None:
        nonlocal mask
        mask |= (x._node is not None) << len(tensors)
        tensors.append(x)
        parts.append(x._meta)

    for x in args:
        if is_tensor(x):
            add(x)
        elif x.__class__ in (list, tuple) and len(x) and is_tensor(x[0]):
            parts.append(OPEN_LIST if x.__class__ is list else OPEN_TUPLE)
            for part in x:
                if not is_tensor(part):
                    raise LookupError
                add(part)
            parts.append(CLOSE)
        else:
            parts += parts_of(x)
    if len(args) > MOST_ARGUMENTS or len(parts) > MOST_PARTS or len(tensors) > MOST_VALUES:
        raise LookupError
    mask = mask if mask and grad_enabled() else 0
    return (mask | same_of(tensors) << 32, names or None, *parts)


def same_of(tensors: list[Tensor]) -> int:
    """Return which of the tensors are one; LookupError if there are too many to say."""
    first: dict[int, int] = {}
    same = 0
    for k, x in enumerate(tensors):
        j = first.setdefault(id(x), k)
        if j < k:
            if k > MOST_SAME:
                raise LookupError
            same |= j + 1 << 3 * (k - 1)
    return same


def is_tensor(x: object) -> bool:
    return x.__class__ is Tensor or x.__class__ is hot.get("Parameter")


def parts_of(x: object) -> list[object]:
    """Return the parts of a key for an argument that is no tensor: of slices, and of tuples that
    have some, as `key.put_part` puts them.
    """
    if x.__class__ is slice:
        return _slice(x)
    if x.__class__ is not tuple or slice not in map(type, x):
        return [part_of(x)]
    parts = [OPEN_TUPLE]
    for part in x:
        parts += _slice(part) if part.__class__ is slice else [_plain(part)]
    return [*parts, CLOSE]


def part_of(x: Any) -> object:
    """As `key.part_of`."""
    kind = x.__class__
    if kind is int or x is None or x is Ellipsis or kind in (str, type, DType, TensorMeta):
        return x
    if kind is bool:
        return YES if x else NO
    if (kind is tuple or kind is Size) and all(map(_is_plain_or_row, x)):
        return x
    if kind is list and all(map(_is_plain_or_row, x)):
        return (list, tuple(x))
    if kind is float and str(x) != "-0.0":
        return (float, x)
    raise LookupError


def _is_plain(x: object) -> bool:
    return x.__class__ is int or x is None or x is Ellipsis


def _is_plain_or_row(x: object) -> bool:
    return _is_plain(x) or (x.__class__ is tuple and all(map(_is_plain, x)))


def _plain(x: object) -> object:
    if not _is_plain(x):
        raise LookupError
    return x


def _slice(x: slice) -> list[object]:
    return [SLICED, _plain(x.start), _plain(x.stop), _plain(x.step)]
