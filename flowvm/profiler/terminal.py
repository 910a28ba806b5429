"""The output's properties: its width, its characters (ASCII or more), its colours."""

from __future__ import annotations

import os
import shutil
import sys

NARROW, USUAL, WIDE = 40, 100, 240  # columns that screens are made for
_ASCII = str.maketrans({
    "█": "#", "▇": "#", "▆": "#", "▅": "+", "▄": "+", "▃": "-", "▂": "_", "▁": "_", "▉": "#",
    "▊": "#", "▋": "+", "▌": "+", "▍": "-", "▎": "-", "▏": "|", "░": ".", "▒": "J", "▓": "%",
    "▫": ",", "·": " ", "╳": "X", "─": "-", "━": "=", "═": "~", "│": "|", "┃": "|", "├": "+",
    "╰": "`", "└": "`", "┐": "+", "┘": "+", "┌": "+", "╭": ",", "╮": ".", "╯": "'", "┤": "+",
    "◆": "*", "○": "o", "◄": "<", "←": "<", "→": ">", "▲": "^", "▼": "v", "↩": "<", "–": "-",
    "≈": "~", "≥": ">", "≤": "<", "×": "x", "µ": "u", "…": "~", "┼": "+", "┴": "+", "┬": "+",
    "►": ">", "•": "*", "↑": "^", "▞": "/", "▚": "\\", "▤": "=", "▥": "$", "✗": "!", "∅": "0",
})  # fmt: skip


def to_ascii(text: str) -> str:
    """Return the text in ASCII: each glyph has a twin, anything else becomes a question mark."""
    return text.translate(_ASCII).encode("ascii", "replace").decode()


def terminal_width() -> int:
    """Return the columns to print to: the terminal's, 40 to 240.  Without a terminal, COLUMNS or
    100.
    """
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS", "").isdecimal():
        return USUAL
    return min(max(shutil.get_terminal_size((USUAL, 24)).columns, NARROW), WIDE)


def has_colours() -> bool:
    """Return True if stdout is a terminal that shows colours, and they are not switched off, by
    NO_COLOR or in IPython (`%colors nocolor`).
    """
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is None or str(getattr(shell, "colors", "")).lower() != "nocolor"


def speaks_utf8() -> bool:
    """Return True if stdout takes more than ASCII."""
    return (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "") == "utf8"
