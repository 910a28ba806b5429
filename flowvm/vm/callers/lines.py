"""The attribution of every instruction to the user's line that issued it.

A frame is the user's if its file is not flowvm's own.  Issuing remembers the frame's code object
and instruction offset, which cost nothing to take.  The line number is computed from them on
demand.

Instructions of backward have a `Backward` in the place of the code object.  In the place of the
offset they have the *origin*: the number of the forward call to whose gradient they belong.
`apart` tells both kinds from each other.
"""

from __future__ import annotations

import linecache
import os
import sys
import warnings
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from flowvm.files.printable import printable

NO_ORIGIN = -1  # an instruction that is no part of a gradient
UNKNOWN = -2  # part of a gradient whose forward call is unknown; lower ones are `behind(seq)`

_root = str(Path(__file__).resolve().parents[2])
_roots = tuple(
    os.path.join(os.path.dirname(_root), name) + os.sep
    for name in (os.path.basename(_root), "ops", "autograd", "graph")
)
_examples = (
    os.path.join(_root, "commands", "demo.py"),
)  # programs that come with flowvm count as users


class _Files(dict[str, bool]):
    def __missing__(self, name: str) -> bool:
        inside = name.startswith(_roots) or name.startswith("<flowvm")
        self[name] = inside = inside and name not in _examples
        return inside


INTERNAL: dict[str, bool] = _Files()
"""Whether a source file is flowvm's own, by its name."""


class Backward:
    """A call of backward, with the user's place that called it."""

    __slots__ = ("code", "last")

    def __init__(self, code: CodeType | None, last: int) -> None:
        self.code, self.last = code, last


def apart(code: Any, last: int) -> tuple[CodeType | None, int, int]:
    """Return code object, offset and origin from the two values that issuing remembers.

    An origin below UNKNOWN is `behind(seq)`: the node's forward call issued nothing (a view), and
    the node ran after the one of forward call `seq`.
    """
    if code.__class__ is Backward:
        return code.code, code.last, last
    return code, last, NO_ORIGIN


def behind(origin: Any) -> Any:
    """Return the origin of an instruction that follows `origin` and has no origin of its own; its
    own inverse.
    """
    return UNKNOWN - 1 - origin


def is_internal(filename: str) -> bool:
    """Return True if a source file is flowvm's own: such frames are no user's line."""
    return INTERNAL[filename]


def user_frame(depth: int) -> tuple[CodeType | None, int]:
    """Code and instruction offset of the first frame outside flowvm, from `depth` frames up."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None and INTERNAL[frame.f_code.co_filename]:
        frame = frame.f_back
    return (None, 0) if frame is None else (frame.f_code, frame.f_lasti)


def warn(
    text: str, category: type[Warning] = UserWarning, place: tuple[str, int] = ("", 0)
) -> None:
    """A warning on `place`, file and line number, or without one on the first caller's line that is
    the user's; Python's filters say how often one is seen.
    """
    file, number = place
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name == file or (not file and not is_internal(name)):
            break
        frame = frame.f_back
    if not file and frame is not None:
        file, number = frame.f_code.co_filename, frame.f_lineno
    registry = {} if frame is None else frame.f_globals.setdefault("__warningregistry__", {})
    text, file = printable(text, lines=True), printable(file)
    warnings.warn_explicit(text, category, file, number, registry=registry)


def shown(filename: str) -> str:
    """A source file's name as people know it: a cell of IPython's or of a notebook is `In[3]`,
    whatever file it was compiled as; any other keeps its name, made printable.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    cell = shell.compile.format_code_name(filename) if shell is not None else None
    return printable(cell[1] if cell else filename)


def source_line(filename: str, number: int) -> str:
    """Return a line of a source file, "" where there is none or no file can have the name."""
    try:
        return linecache.getline(filename, number)
    except ValueError:
        return ""


def position(code: CodeType | None, last: int) -> str:
    """`path/file.py:12` of an instruction offset, or ""."""
    if code is None:
        return ""
    positions = list(code.co_positions())
    line = positions[last // 2][0] if last // 2 < len(positions) else code.co_firstlineno
    return f"{shown(code.co_filename)}:{line}"


def short_position(code: CodeType | None, last: int) -> str:
    """`file.py:12` of an instruction offset, or ""."""
    return position(code, last).rsplit("/", 1)[-1]


def expression(code: CodeType | None, last: int) -> tuple[str, int, int]:
    """The line's text without its indent, and the columns [first, last) in it of the expression at
    an instruction offset; ("", 0, 0) if the source is not to be had, 0 and 0 for unknown columns.
    """
    if code is None:
        return "", 0, 0
    positions = list(code.co_positions())
    nowhere = (None, None, None, None)
    line, end_line, begin, end = positions[last // 2] if last // 2 < len(positions) else nowhere
    source = source_line(code.co_filename, line or code.co_firstlineno).rstrip()
    text = source.lstrip()
    if begin is None or end is None:
        return text, 0, 0  # Python runs without columns
    # columns are UTF-8 bytes; a reader counts characters
    encoded, indent = source.encode(), len(source) - len(text)
    first = max(0, len(encoded[:begin].decode(errors="replace")) - indent)
    over = len(encoded[:end].decode(errors="replace")) - indent
    return text, first, len(text) if end_line != line else max(first, over)
