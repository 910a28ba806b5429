"""Lists of steps made shorter, for campaigns of programs that shrink their cases."""

from __future__ import annotations

from typing import Any


def ranges(length: int) -> list[tuple[int, int]]:
    """Return the ranges to leave out of a list, in order: halves, quarters, ..., single places."""
    parts, size = [], (length + 1) // 2
    while size:
        parts += [(first, min(first + size, length)) for first in range(0, length, size)]
        size = (size + 1) // 2 if size > 1 else 0
    return parts


def left_out(steps: list[Any], first: int, last: int) -> list[Any]:
    """The list without these places."""
    return steps[:first] + steps[last:]
