"""Trees of arguments: nested tuples, lists and dicts of tensors, and their form as a key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flowvm.errors import CaptureError
from flowvm.tensor import Tensor

__all__ = ["difference", "flatten", "unflatten"]


def flatten(value: Any, leaves: list[Tensor]) -> Any:
    """The structure of nested tuples, lists and dicts, hashable; tensors go to `leaves`."""
    if isinstance(value, Tensor):
        leaves.append(value)
        return _LEAF
    if isinstance(value, (tuple, list)):
        return (type(value).__name__, *[flatten(v, leaves) for v in value])
    if isinstance(value, dict):
        return ("dict", *[(k, flatten(v, leaves)) for k, v in value.items()])
    try:
        hash(value)
    except TypeError:
        raise CaptureError(
            f"a graph takes and returns tensors, None, numbers and strings in tuples, lists and "
            f"dicts, not {type(value).__name__} ({value!r})"
        ) from None
    return ("constant", type(value), value)


_LEAF = ("tensor",)


def unflatten(structure: Any, leaves: Iterator[Tensor]) -> Any:
    kind = structure[0]
    if kind == "tensor":
        return next(leaves)
    if kind == "tuple":
        return tuple([unflatten(s, leaves) for s in structure[1:]])
    if kind == "list":
        return [unflatten(s, leaves) for s in structure[1:]]
    if kind == "dict":
        return {k: unflatten(s, leaves) for k, s in structure[1:]}
    return structure[2]


def difference(old: Any, new: Any) -> str:
    """What distinguishes two keys, for `explain`."""
    if len(old) != len(new) or old[0] != new[0]:
        return "another structure of arguments, or another number among them"
    pairs = [(a, b) for a, b in zip(old[1:], new[1:], strict=True) if a != b]
    return (
        "; ".join(f"{a!r} before, {b!r} now" for a, b in pairs[:3]) or "a decision was another one"
    )
