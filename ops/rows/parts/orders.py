"""The orders of two elements, by which searches and running extremes choose the better one.

Kernels of every device call these functions.  A NaN beats every number, and nothing beats a NaN.
Of equals a search finds the first, a running extreme the last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from flowvm.ops.rows.parts.fold_rules import larger_of, smaller_of

if TYPE_CHECKING:
    from flowvm.compiler.native import Intrinsic
    from flowvm.meta.arrays import Number


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
    beats: Callable[[Number, Number], Number]
    replaces: Callable[[Number, Number, Number, Number], Number]
    follows: Callable[[Number, Number], Number]
    ahead: Callable[[Number, Number], Number]


def _above(a: Number, b: Number) -> object:
    return a > b


def _below(a: Number, b: Number) -> object:
    return a < b


def _order(join: Intrinsic, ahead: Callable[[Number, Number], Number]) -> Order:
    """Return the Order of numbers by `ahead`."""

    def beats(a: Number, b: Number) -> object:
        return ahead(a, b) | ((a != a) & (b == b))

    def replaces(value: Number, place: Number, other: Number, its_place: Number) -> object:
        return beats(other, value) | ((not beats(value, other)) & (its_place < place))

    def follows(value: object, later: object) -> bool:
        return not beats(value, later)

    return Order(join, beats, replaces, follows, ahead)


LARGEST = _order(larger_of, _above)
SMALLEST = _order(smaller_of, _below)
