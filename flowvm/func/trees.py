"""Nested tuples, lists and dicts, and their leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any


def leaves(tree: object) -> list[Any]:
    """Return the leaves of tuples, lists and dicts, in order; any other value is one leaf."""
    if isinstance(tree, dict):
        return [leaf for branch in tree.values() for leaf in leaves(branch)]
    if isinstance(tree, (tuple, list)):
        return [leaf for branch in tree for leaf in leaves(branch)]
    return [tree]


def rebuilt(tree: object, values: Sequence[object]) -> Any:
    """Return the tree with these leaves in the place of its own."""
    return _filled(tree, iter(values))


def _filled(tree: object, values: Iterator[object]) -> Any:
    if isinstance(tree, dict):
        return type(tree)((key, _filled(branch, values)) for key, branch in tree.items())
    if isinstance(tree, (tuple, list)):
        branches = [_filled(branch, values) for branch in tree]
        return type(tree)(*branches) if hasattr(tree, "_fields") else type(tree)(branches)
    return next(values)


def mapped(function: Callable[[Any], object], tree: object) -> Any:
    """Return the tree with `function` applied to each leaf."""
    return rebuilt(tree, [function(leaf) for leaf in leaves(tree)])


def spread(prefix: object, tree: object) -> list[Any]:
    """Return, for each leaf of `tree`, the leaf of `prefix` at its place or above it."""
    if isinstance(prefix, dict) and isinstance(tree, dict):
        return [leaf for key in tree for leaf in spread(prefix[key], tree[key])]
    if isinstance(prefix, (tuple, list)) and isinstance(tree, (tuple, list)):
        if len(prefix) != len(tree):
            raise ValueError(f"{len(prefix)} for {len(tree)} arguments")
        pairs = zip(prefix, tree, strict=True)
        return [leaf for above, branch in pairs for leaf in spread(above, branch)]
    if isinstance(prefix, (tuple, list, dict)):
        raise ValueError(f"{prefix!r} stands for a value of another structure")
    return [prefix] * len(leaves(tree))
