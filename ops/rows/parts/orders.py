"""The orders of two elements, by which searches and running extremes choose the better one.

Kernels of every device call these functions.  A NaN beats every number, and nothing beats a NaN.
Of equals a search finds the first, a running extreme the last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from flowvm.ops.rows.parts.fold_rules import larger_of, smaller_of

INLINE_ALWAYS = (
    True  # for flowvm.compiler.native: a call in a loop would keep it from being vectorized
)


class Order(NamedTuple):
    """One of two orders.

    join      the better of two that are no NaN, in any order
    beats     whether a is better than b
    replaces  (value, place, other, its place) -> whether a search finds the other and not the value
    follows   (value, later one) -> whether a running extreme is the later one from there on
    ahead     whether number a is before number b; a value that is ahead is followed by nothing
    """

    join: Any
    beats: Callable[[Any, Any], Any]
    replaces: Callable[[Any, Any, Any, Any], Any]
    follows: Callable[[Any, Any], Any]
    ahead: Callable[[Any, Any], Any]


def _above(a: Any, b: Any) -> Any:
    return a > b


def _below(a: Any, b: Any) -> Any:
    return a < b


def _order(join: Any, ahead: Callable[[Any, Any], Any]) -> Order:
    """Return the Order of numbers by `ahead`."""

    def beats(a: Any, b: Any) -> Any:
        return ahead(a, b) | ((a != a) & (b == b))

    def replaces(value: Any, place: Any, other: Any, its_place: Any) -> Any:
        return beats(other, value) | ((not beats(value, other)) & (its_place < place))

    def follows(value: Any, later: Any) -> Any:
        return not beats(value, later)

    return Order(join, beats, replaces, follows, ahead)


LARGEST = _order(larger_of, _above)
SMALLEST = _order(smaller_of, _below)
