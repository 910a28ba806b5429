"""Lanes: instructions drawn as version control draws histories.

A tree cannot show an instruction that waits for several others.  So a row's mark stands in its
stream's lane, and lines come in from the lanes of the other streams that it waited for.  Edges
within a lane are its order.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

Line = list[tuple[str, str]]  # spans: text, name of a style
_EDGES = (("─", "const"), ("━", "mut"), ("═", "mut2"))
ASCII = str.maketrans(dict(zip("─━═│├╰┤╯┼┴◆○…", "-=~|+`+'++*o~", strict=True)))


def draw_lanes(
    lanes: Sequence[int],
    sources: Sequence[Sequence[int]],
    critical: Sequence[bool],
    access: Sequence[int],
) -> list[Line]:
    """Draw a line of spans for each row.  `lanes[r]` has row r's mark; lines come in from
    `sources[r]`.

    `access[r]` (0 const, 1 mut, 2 mut2) sets the look of these lines.  Three columns a lane.
    """
    count = max(lanes, default=-1) + 1
    first, last = [len(lanes)] * count, [-1] * count
    for r, lane in enumerate(lanes):
        for k in (lane, *sources[r]):
            first[k], last[k] = min(first[k], r), max(last[k], r)
    lines = []
    for r, lane in enumerate(lanes):
        come = {k for k in sources[r] if k != lane}
        low, high = min([lane, *come]), max([lane, *come])
        dash, style = _EDGES[access[r]]
        line: Line = []
        for k in range(count):
            below = last[k] > r
            alive = first[k] < r <= last[k]
            if k == lane:
                glyph = ("◆", "critical") if critical[r] else ("○", "")
            elif k in come:
                glyph = (_corner(k, low, high, below), style)
            elif low < k < high:  # a line passes
                glyph = ("│", "head") if alive else (dash, style)
            else:
                glyph = ("│" if alive else " ", "head")
            line.append(glyph)
            if k + 1 < count:
                line.append((dash * 2 if low <= k < high else "  ", style))
        lines.append(line)
    return lines


def _corner(lane: int, low: int, high: int, below: bool) -> str:
    """Return the glyph where a line leaves its lane, which may go on below."""
    if lane == low:
        return "├" if below else "╰"
    if lane == high:
        return "┤" if below else "╯"
    return "┼" if below else "┴"


def encodable(text: str) -> str:
    """Return `text` with each glyph replaced by its ASCII twin, if standard output knows only
    ASCII.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    if encoding.lower().replace("-", "").replace("_", "") == "utf8":
        return text
    return text.translate(ASCII)
