"""Whose line: every instruction is attributed to the user's line that issued it.

A frame is the user's if its file is not flowvm's own.  What issuing remembers of it is the code
object and the instruction offset, which cost nothing to take; a line number is worked out from them
when somebody asks.
"""

from __future__ import annotations

import os
import sys
from types import CodeType, FrameType

__all__ = ["INTERNAL", "is_internal", "position", "short_position", "user_frame"]

_root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_roots = tuple(
    os.path.join(os.path.dirname(_root), name) + os.sep
    for name in (os.path.basename(_root), "ops", "autograd", "graph")
)
_examples = (os.path.join(_root, "demo.py"),)  # programs that come with flowvm count as users


class _Files(dict[str, bool]):
    def __missing__(self, name: str) -> bool:
        inside = name.startswith(_roots) or name.startswith("<flowvm")
        self[name] = inside = inside and name not in _examples
        return inside


INTERNAL: dict[str, bool] = _Files()
"""Whether a source file is flowvm's own, by its name."""


def is_internal(filename: str) -> bool:
    """Whether a source file is flowvm's own: such frames are no user's line."""
    return INTERNAL[filename]


def user_frame(depth: int) -> tuple[CodeType | None, int]:
    """Code and instruction offset of the first frame outside flowvm, from `depth` frames up."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None and INTERNAL[frame.f_code.co_filename]:
        frame = frame.f_back
    return (None, 0) if frame is None else (frame.f_code, frame.f_lasti)


def position(code: CodeType | None, last: int) -> str:
    """`path/file.py:12` of an instruction offset, or ""."""
    if code is None:
        return ""
    positions = list(code.co_positions())
    line = positions[last // 2][0] if last // 2 < len(positions) else code.co_firstlineno
    return f"{code.co_filename}:{line}"


def short_position(code: CodeType | None, last: int) -> str:
    """`file.py:12` of an instruction offset, or ""."""
    return position(code, last).rsplit("/", 1)[-1]
