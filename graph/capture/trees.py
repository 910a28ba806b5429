"""Trees of arguments: nested tuples, lists and dicts of tensors, and their form as a key.

("tensor",)                          the next tensor
("tuple", items...), ("list", items...)
("sequence", class, items...)        of a subclass of those, such as a namedtuple
("dict", (key, item)...)             in the dict's order
("composed", class, key, items...)   of a tensor that is made of tensors, such as a sparse one
("constant", class, value)           anything else that is hashable; a float as its hex text, so
                                     that 0.0 is not -0.0, and NaN is itself
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flowvm.eager.live import plain_number
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, CaptureError


def flatten(value: object, leaves: list[Tensor]) -> object:
    """The structure of nested tuples, lists and dicts, hashable; tensors go to `leaves`."""
    if isinstance(value, Tensor):
        own = type(value)
        if own is not Tensor and hasattr(own, "composed_of"):
            key, parts = value.composed_of()
            return ("composed", own, key, *[flatten(part, leaves) for part in parts])
        leaves.append(value)
        return _LEAF
    if isinstance(value, (tuple, list)):
        kind = _PLAIN.get(type(value)) or ("sequence", type(value))
        return (*kind, *[flatten(v, leaves) for v in value])
    if isinstance(value, dict):
        return ("dict", *[(k, flatten(v, leaves)) for k, v in value.items()])
    value = plain_number(value)
    if type(value) is float:
        return ("constant", float, value.hex())
    try:
        hash(value)
    except TypeError:
        raise CaptureError(
            f"a graph takes and returns tensors, None, numbers and strings in tuples, lists and "
            f"dicts, not {type(value).__name__} ({value!r})"
        ) from None
    return ("constant", type(value), value)


def parts_of(value: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors that have the memory of one: itself, or those that it is made of."""
    kind = type(value)
    if kind is not Tensor and hasattr(kind, "composed_of"):
        parts: tuple[Tensor, ...] = value.composed_of()[1]
        return parts
    return (value,)


_LEAF = ("tensor",)
_PLAIN: dict[object, tuple[str, ...]] = {tuple: ("tuple",), list: ("list",)}


def unflatten(structure: Any, leaves: Iterator[Tensor]) -> Any:
    """The tree of a structure, with these tensors for its leaves."""
    kind = structure[0]
    if kind == "tensor":
        return next(leaves)
    if kind == "tuple":
        return tuple([unflatten(s, leaves) for s in structure[1:]])
    if kind == "list":
        return [unflatten(s, leaves) for s in structure[1:]]
    if kind == "sequence":
        return _sequence(structure[1], [unflatten(s, leaves) for s in structure[2:]])
    if kind == "dict":
        return {k: unflatten(s, leaves) for k, s in structure[1:]}
    if kind == "composed":
        return structure[1].composed(structure[2], [unflatten(s, leaves) for s in structure[3:]])
    return _constant(structure)


def check_tree(structure: object, leaves: int, where: str) -> None:
    """Raise ArgumentError unless this is a structure of `leaves` tensors; `where` is its origin."""
    tree_leaves = _leaves_of(structure, where)
    if tree_leaves != leaves:
        raise ArgumentError(f"{where} of the saved graph have {tree_leaves} tensors, not {leaves}")


def _leaves_of(structure: Any, where: str) -> int:
    match structure:
        case ("tensor",):
            return 1
        case ("tuple" | "list", *items):
            return sum(_leaves_of(item, where) for item in items)
        case ("sequence", kind, *items) if isinstance(kind, type) and issubclass(kind, tuple):
            if len(getattr(kind, "__match_args__", [*items, None])) == len(items):
                return sum(_leaves_of(item, where) for item in items)
        case ("composed", kind, key, *items) if hasattr(kind, "composed"):
            hash(key)
            return sum(_leaves_of(item, where) for item in items)
        case ("dict", *items) if all(type(item) is tuple and len(item) == 2 for item in items):
            if len({key for key, _ in items}) == len(items):
                return sum(_leaves_of(item, where) for _, item in items)
        case ("constant", kind, str(value)) if kind is float:
            float.fromhex(value)
            return 0
        case ("constant", kind, value) if type(value) is kind:
            hash(value)
            return 0
    raise ArgumentError(f"{where} of the saved graph are damaged: {str(structure)[:80]}")


def _sequence(kind: Any, items: list[object]) -> Any:
    return kind(*items) if hasattr(kind, "_fields") else kind(items)


def _constant(structure: Any) -> object:
    return float.fromhex(structure[2]) if structure[1] is float else structure[2]


def tree_text(structure: Any, leaves: Iterator[str], own: dict[str, object]) -> str:
    """Return Python source of the tree; `own` gets the names in it."""
    kind = structure[0]
    if kind == "tensor":
        return next(leaves)
    if kind == "dict":
        items = []
        for key, inner in structure[1:]:
            own[f"k{len(own)}"] = key
            items.append(f"k{len(own) - 1}: {tree_text(inner, leaves, own)}")
        return f"{{{', '.join(items)}}}"
    if kind == "constant":
        own[f"k{len(own)}"] = _constant(structure)
        return f"k{len(own) - 1}"
    if kind == "composed":
        names = [tree_text(s, leaves, own) for s in structure[3:]]
        own[f"k{len(own)}"] = structure[1].composed
        own[f"k{len(own)}"] = structure[2]
        return f"k{len(own) - 2}(k{len(own) - 1}, [{', '.join(names)}])"
    items = structure[2:] if kind == "sequence" else structure[1:]
    inside = "".join(f"{tree_text(s, leaves, own)}, " for s in items)
    if kind != "sequence":
        return f"({inside})" if kind == "tuple" else f"[{inside}]"
    own[f"k{len(own)}"] = structure[1]
    named = hasattr(structure[1], "_fields")
    return f"k{len(own) - 1}({inside})" if named else f"k{len(own) - 1}([{inside}])"
