"""A canvas that becomes an SVG: boxes, text and arrows, readable on light and dark pages.

Widths of text are estimated for a wide font, so that text fits whichever font a reader has. Nothing
is fetched; the ground is part of the drawing, so a page's colour does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

__all__ = ["Canvas", "width_of"]

# name -> colour on a light and on a dark ground
COLOURS = {
    "ground": ("#ffffff", "#14171c"),
    "ink": ("#1c2128", "#e6e9ee"),
    "dim": ("#5c6673", "#9aa5b3"),
    "box": ("#f3f5f8", "#20262e"),
    "rim": ("#b4bdc9", "#4a5563"),
    "empty": ("#fbfcfd", "#181c22"),
    "line": ("#7d8896", "#77828f"),
    "blue": ("#2563c9", "#6ea8ff"),
    "green": ("#1f7a3a", "#5fce82"),
    "orange": ("#b0560c", "#f2a65a"),
    "purple": ("#8238b8", "#cb92f5"),
    "red": ("#c0312f", "#ff8a84"),
}
FONT = 'ui-sans-serif, system-ui, "DejaVu Sans", "Helvetica Neue", Arial, sans-serif'
SIZES = {"title": 17, "text": 13, "small": 11}
HEAD = 7  # of an arrow


def width_of(text: str, size: str = "text") -> float:
    """Return the largest width of a text, in the drawing's units."""
    em = math.fsum(0.36 if c in "il.,:;|' " else 0.9 if c in "mwMW@" else 0.66 for c in text)
    return em * SIZES[size]


class Canvas:
    """The drawing's shapes, in order; `svg()` is the file."""

    def __init__(self, width: float, height: float, about: str) -> None:
        self.width = width
        self.height = height
        self.about = about
        self.parts: list[str] = []
        self.labels: list[tuple[float, float, float, float]] = []  # corners of labelled boxes

    def box(
        self, x: float, y: float, width: float, height: float, *, fill: str = "box",
        rim: str = "rim", radius: float = 5, dashed: bool = False,
    ) -> None:  # fmt: skip
        """A rectangle."""
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" '
            f'class="f-{fill} s-{rim}"{dash}/>'
        )

    def text(
        self, x: float, y: float, text: str, *, size: str = "text", colour: str = "ink",
        anchor: str = "start", bold: bool = False, room: float = 0,
    ) -> None:  # fmt: skip
        """One line of text on the base line `y`; ValueError if it is wider than `room`."""
        if room and width_of(text, size) > room:
            raise ValueError(f"{text!r} needs {width_of(text, size):.0f}, has {room:.0f}")
        weight = ' font-weight="bold"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{SIZES[size]}" text-anchor="{anchor}" '
            f'class="f-{colour}"{weight}>{escape(text)}</text>'
        )

    def labelled(
        self, x: float, y: float, width: float, height: float, lines: Sequence[str], *,
        fill: str = "box", rim: str = "rim", colour: str = "ink",
    ) -> None:  # fmt: skip
        """A box with lines in its middle, the first of them bold; ValueError where one is already
        and for text that does not fit.
        """
        for x0, y0, x1, y1 in self.labels:
            if x0 < x + width and x < x1 and y0 < y + height and y < y1:
                raise ValueError(f"{lines[0]!r} would lie on another box")
        self.labels.append((x, y, x + width, y + height))
        self.box(x, y, width, height, fill=fill, rim=rim)
        first = y + height / 2 - (len(lines) - 1) * 8 + 4.5
        for k, line in enumerate(lines):
            self.text(
                x + width / 2, first + 16 * k, line, anchor="middle", bold=k == 0,
                size="small" if k else "text", colour="dim" if k else colour, room=width - 6,
            )  # fmt: skip

    def arrow(
        self, points: Sequence[tuple[float, float]], *, colour: str = "line",
        dashed: bool = False, curved: str = "",
    ) -> None:  # fmt: skip
        """A line through points with a head at its end.  A `curved` one goes from the first to the
        last; it leaves and arrives "upright", or "sideways"; a "corner" leaves upright and arrives
        sideways.
        """
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        (x0, y0), (x1, y1) = points[0], points[-1]
        before = points[-2]
        path = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
        if curved:
            x, y = (x0 + x1) / 2, (y0 + y1) / 2
            by = {
                "upright": [(x0, y), (x1, y)],
                "sideways": [(x, y0), (x, y1)],
                "corner": [(x0, y1), (x0, y1)],
            }[curved]
            before = by[1]
            rest = " ".join(f"{x:g} {y:g}" for x, y in (*by, (x1, y1)))
            path = f"M{x0:g} {y0:g}C{rest}"
        self.parts.append(f'<path d="{path}" class="n s-{colour}"{dash}/>')
        length = ((x1 - before[0]) ** 2 + (y1 - before[1]) ** 2) ** 0.5 or 1
        dx, dy = (x1 - before[0]) / length * HEAD, (y1 - before[1]) / length * HEAD
        corners = [(x1, y1), (x1 - dx + dy / 2, y1 - dy - dx / 2),
                   (x1 - dx - dy / 2, y1 - dy + dx / 2)]  # fmt: skip
        shape = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
        self.parts.append(f'<polygon points="{shape}" class="f-{colour}"/>')

    def svg(self) -> str:
        """The drawing as a file."""
        light = "".join(_rules(name, pair[0]) for name, pair in COLOURS.items())
        dark = "".join(_rules(name, pair[1]) for name, pair in COLOURS.items())
        body = "\n".join(self.parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {self.height:g}" '
            f'font-family=\'{FONT}\' role="img" aria-label="{escape(self.about)}">\n'
            f"<style>.n{{fill:none}}{light}\n@media (prefers-color-scheme:dark){{{dark}}}</style>\n"
            f'<rect width="100%" height="100%" rx="8" class="f-ground"/>\n{body}\n</svg>\n'
        )


def _rules(name: str, colour: str) -> str:
    return f".f-{name}{{fill:{colour}}}.s-{name}{{stroke:{colour}}}"
