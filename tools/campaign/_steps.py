"""Lists of steps, made shorter: by what campaigns of programs shrink their cases."""

from __future__ import annotations

from typing import Any


def ranges(length: int) -> list[tuple[int, int]]:
    """Halves, quarters, ... and single places of a list: what to leave out, in this order."""
    found, size = [], (length + 1) // 2
    while size:
        found += [(first, min(first + size, length)) for first in range(0, length, size)]
        size = (size + 1) // 2 if size > 1 else 0
    return found


def left_out(steps: list[Any], first: int, last: int) -> list[Any]:
    """The list without these places."""
    return steps[:first] + steps[last:]
