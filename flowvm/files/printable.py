"""Texts of others made safe to print: names of files and programs may contain a terminal's
commands.

Every text that a file or a program chose (names of ops, files, modules, marks, keys of a file,
lines of code) goes through `printable` where it is shown.  What a terminal, an editor or a browser
would obey and not show becomes an escape as Python writes it: `\\x1b`.
"""

from __future__ import annotations

import functools
import re
from typing import Final

# C0 and C1 controls with DEL; marks that turn the direction of text; separators that break lines in
# browsers and editors; zero-width and tag characters; halves of surrogate pairs
_UNSAFE: Final = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"
    "\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060\u2066-\u2069\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f"
)


@functools.cache  # made when a text is first not plain: most programs never have one
def _pattern(lines: bool) -> re.Pattern[str]:
    return re.compile(f"[{_UNSAFE}]" if lines else f"[{_UNSAFE}\t\n]")


def printable(text: str, *, lines: bool = False) -> str:
    r"""Return the text with each character that commands a terminal written as an escape.

    lines   keep newlines and tabs: the text may have several lines

    >>> from flowvm.files.printable import printable
    >>> print(printable("red\x1b[31m\n"))
    red\x1b[31m\n
    """
    if text.isascii() and text.isprintable():
        return text
    return _pattern(lines).sub(_escape, text)


def printable_tree(value: object) -> object:
    r"""Return plain values with each text in lists and dicts printable, for a page of them.

    >>> from flowvm.files.printable import printable_tree
    >>> printable_tree({"op": ["add\x07", 3]})
    {'op': ['add\\x07', 3]}
    """
    if isinstance(value, str):
        return printable(value, lines=True)
    if isinstance(value, dict):
        return {printable_tree(key): printable_tree(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [printable_tree(item) for item in value]
    return value


def cropped(text: object, most: int = 80) -> str:
    """Return the text of a name for an error: printable, at most `most` characters long.

    >>> from flowvm.files.printable import cropped
    >>> cropped("x" * 100, 10)
    'xxxxxxx...'
    """
    shown = str(text) if isinstance(text, (str, int, float)) else type(text).__name__
    return printable(shown if len(shown) <= most else shown[: most - 3] + "...")


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()
