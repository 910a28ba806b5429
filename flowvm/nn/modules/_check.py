"""Checks of the arguments that layers are built with.

A wrong number is reported by the constructor that got it, with the name and the value, not by a
kernel many lines later.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import SupportsIndex

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, ShapeError

Ints = int | Sequence[int]  # one for all dimensions, or one each


def integer(owner: object, name: str, value: SupportsIndex, minimum: int = 0) -> int:
    """`value` as an int of at least `minimum`."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentTypeError(
            f"{_name(owner)}: {name} must be an int, got {value!r} ({type(value).__name__})"
        ) from None
    if number < minimum:
        raise ArgumentError(f"{_name(owner)}: {name} must be at least {minimum}, got {number}")
    return number


def sizes(owner: object, name: str, value: object, ndim: int, minimum: int = 0) -> tuple[int, ...]:
    """`value`, an int or `ndim` of them, as a tuple of `ndim` ints of at least `minimum`."""
    if not isinstance(value, (tuple, list)):
        return (integer(owner, name, value, minimum),) * ndim  # type: ignore[arg-type]
    if len(value) != ndim:
        raise ArgumentError(
            f"{_name(owner)}: {name} must be an int or {ndim} of them, got {tuple(value)}"
        )
    return tuple(integer(owner, name, item, minimum) for item in value)


def probability(owner: object, name: str, value: float) -> float:
    """`value` as a float in [0, 1]."""
    if not isinstance(value, (int, float)):
        raise ArgumentTypeError(f"{_name(owner)}: {name} must be a number, got {value!r}")
    if not 0.0 <= value <= 1.0:
        raise ArgumentError(f"{_name(owner)}: {name} must be in [0, 1], got {value}")
    return float(value)


def flag(owner: object, name: str, value: bool) -> bool:
    """`value`, which is True or False: a number in its place is most likely another argument."""
    if not isinstance(value, bool):
        raise ArgumentTypeError(f"{_name(owner)}: {name} should be of type bool, got {value!r}")
    return value


def choice(owner: object, name: str, value: str, allowed: tuple[str, ...]) -> str:
    """`value`, which is one of `allowed`."""
    if value not in allowed:
        raise ArgumentError(f"{_name(owner)}: {name} must be one of {allowed}, got {value!r}")
    return value


def channels(owner: object, x: Tensor, dim: int, expected: int, what: str) -> None:
    """Refuse an input whose size in `dim` is not what the layer was built for."""
    if x.ndim <= (dim if dim >= 0 else -dim - 1) or x.shape[dim] != expected:
        raise ShapeError(
            f"{_name(owner)}: the input has shape {tuple(x.shape)}, but dimension {dim} must be "
            f"{expected}, the layer's {what}"
        )


def _name(owner: object) -> str:
    return owner if isinstance(owner, str) else type(owner).__name__
