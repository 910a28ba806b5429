"""A roofline plot: how fast each operator computed, over its operations a byte.

An operator below the slope is bound by memory, one below the flat part by products.  Both axes are
logarithms.  What only moves bytes has no operations a byte: the table alone shows it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from xml.sax import saxutils

from flowvm.errors import ArgumentError
from flowvm.files.printable import printable
from flowvm.files.writer import put
from flowvm.profiler.analysis.tables import BY, Row
from flowvm.profiler.grammar import Column, Screen, Span, View, ms, percent, rate, table
from flowvm.profiler.run.roof import Roofline, of_run
from flowvm.profiler.views.summary.facts import ProfileLike, roof_share

MOST = 26  # operators, each with a letter
HIGH, WIDEST = 14, 72  # lines and columns of the plot in a terminal
PICTURE = (720, 420, 64, 40)  # width, height and margins of the picture
UNKNOWN = "the roof is not known: flow.profiler.roofline() measures it once"


@dataclass(frozen=True)
class Point:
    """An operator: its sums while it ran; `share` of the roof, 0 where that is not known."""

    name: str
    count: int
    run: int
    nbytes: int
    flops: int
    share: float

    @property
    def intensity(self) -> float:
        """Operations a byte; 0 for what computes nothing."""
        return self.flops / self.nbytes if self.nbytes else 0.0

    @property
    def gigaflops(self) -> float:
        """Operations a second, in billions."""
        return self.flops / self.run if self.run else 0.0


@dataclass(frozen=True, repr=False)
class RooflinePlot(View):
    """See the module; the operator with the longest time comes first."""

    by: str
    roof: Roofline | None
    points: tuple[Point, ...]

    @property
    def drawn(self) -> list[tuple[str, Point]]:
        """Points that have a place in the plot, each with its letter."""
        letters = zip("abcdefghijklmnopqrstuvwxyz", self.points, strict=False)
        return [(k, p) for k, p in letters if p.intensity > 0 and p.run > 0]

    def bounds(self) -> tuple[float, float, float, float]:
        """Return the powers of ten at the edges: of operations a byte, then of GFLOP/s."""
        wide = [math.log10(p.intensity) for _, p in self.drawn]
        high = [math.log10(p.gigaflops) for _, p in self.drawn]
        if self.roof is not None:
            wide.append(math.log10(self.roof.ridge))
            high.append(math.log10(self.roof.gigaflops))
        if not wide:
            return -1, 2, -1, 2
        left, right = math.floor(min(wide) - 0.3), math.ceil(max(wide) + 0.3)
        return left, right, math.floor(min(high) - 0.3), math.ceil(max(high) + 0.1)

    def limit(self, intensity: float) -> float:
        """Return the roof at so many operations a byte, in GFLOP/s; the roof is known."""
        assert self.roof is not None
        return min(self.roof.gigaflops, intensity * self.roof.gigabytes)

    def screen(self, width: int) -> Screen:
        """See View."""
        screen = Screen()
        if self.roof is None:
            screen.add((" roofline", "verdict"), f"  {UNKNOWN}")
        else:
            screen.lines += self.roof.screen(width).lines
        if self.drawn:
            self._plot(screen, min(width, WIDEST + 12))
        rows: list[list[str | Span]] = []
        letters = {id(p): k for k, p in self.drawn}
        for p in self.points:
            bound = "-"
            if self.roof is not None and p.share:
                bound = "products" if p.intensity > self.roof.ridge else "memory"
            rows.append([
                letters.get(id(p), ""), p.name or "-", f"{p.count:,}", ms(p.run),
                f"{p.intensity:.3g}" if p.intensity else "-", rate(p.gigaflops),
                rate(p.nbytes / p.run if p.run else 0.0), percent(p.share) if p.share else "-",
                bound,
            ])  # fmt: skip
        columns = [
            Column("", style="id"), Column(self.by, grow=True), Column("n", right=True, drop=1),
            Column("run ms", right=True), Column("op/byte", right=True),
            Column("GFLOP/s", right=True), Column("GB/s", right=True),
            Column("roof", right=True), Column("bound by", drop=2),
        ]  # fmt: skip
        screen.lines += table(columns, rows, width)
        return screen.cut(width)

    def _plot(self, screen: Screen, width: int) -> None:
        left, right, low, high = self.bounds()
        across = width - 12
        grid = [[" "] * across for _ in range(HIGH)]

        def put_at(x: float, y: float, sign: str) -> None:
            column = round((x - left) / (right - left) * (across - 1))
            line = round((high - y) / (high - low) * (HIGH - 1))
            if 0 <= column < across and 0 <= line < HIGH:
                grid[line][column] = sign

        if self.roof is not None:
            for k in range(across):
                x = left + k / (across - 1) * (right - left)
                put_at(x, math.log10(self.limit(10**x)), "·")
        for letter, p in reversed(self.drawn):
            put_at(math.log10(p.intensity), math.log10(p.gigaflops), letter)
        powers = {
            round((high - power) / (high - low) * (HIGH - 1)): power
            for power in range(int(low), int(high) + 1)
        }
        for k, line in enumerate(grid):
            label = f"{10.0 ** powers[k]:8g}" if k in powers else " " * 8
            screen.add((f" {label} │", "head"), ("".join(line), ""))
        screen.add((f" GFLOP/s  └{'─' * across}", "head"))
        ends = f"{10**left:.3g}", "operations a byte", f"{10**right:.3g}"
        gap = max(1, (across - sum(map(len, ends))) // 2)
        screen.add((" " * 11 + (" " * gap).join(ends), "head"))

    def svg(self) -> str:
        """Return the plot as an SVG picture."""
        width, height, aside, below = PICTURE
        left, right, low, high = self.bounds()

        def at(x: float, y: float) -> tuple[float, float]:
            return (
                aside + (x - left) / (right - left) * (width - aside - 20),
                20 + (high - y) / (high - low) * (height - below - 20),
            )

        out = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img">',
            f"<title>flowvm: roofline by {self.by}</title><style>{_CSS}</style>",
            f'<rect class="bg" width="{width}" height="{height}"/>',
        ]
        for power in range(int(left), int(right) + 1):
            x, y = at(power, low)
            out.append(f'<path class="grid" d="M{x:.1f} 20V{y:.1f}"/>')
            out.append(
                f'<text class="quiet" x="{x - 8:.1f}" y="{y + 16:.1f}">{10.0**power:g}</text>'
            )
        for power in range(int(low), int(high) + 1):
            x, y = at(left, power)
            out.append(f'<path class="grid" d="M{x:.1f} {y:.1f}H{width - 20}"/>')
            out.append(f'<text class="quiet" text-anchor="end" x="{x - 6:.1f}" y="{y + 4:.1f}">'
                       f"{10.0**power:g}</text>")  # fmt: skip
        out.append(f'<text class="quiet" text-anchor="end" x="{width - 22}" y="{height - 8}">'
                   "operations a byte</text>")  # fmt: skip
        out.append('<text class="quiet" x="8" y="13">GFLOP/s</text>')
        if self.roof is not None:
            ridge = min(max(math.log10(self.roof.ridge), left), right)
            top = math.log10(self.roof.gigaflops)
            start = math.log10(self.limit(10**left))
            x0, y0 = at(left + max(0.0, low - start), max(start, low))
            (x1, y1), (x2, y2) = at(ridge, top), at(right, top)
            out.append(f'<path class="roof" d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}'
                       f'L{x2:.1f} {y2:.1f}"/>')  # fmt: skip
            out.append(f'<text text-anchor="end" x="{x2 - 4:.1f}" y="{y2 - 6:.1f}">'
                       f"{self.roof.gigaflops:.0f} GFLOP/s, "
                       f"{self.roof.gigabytes:.1f} GB/s</text>")  # fmt: skip
        most = max((p.run for _, p in self.drawn), default=1)
        label_places: list[tuple[float, float]] = []
        for letter, p in self.drawn:
            x, y = at(math.log10(p.intensity), math.log10(p.gigaflops))
            size = 3 + 9 * math.sqrt(p.run / max(1, most))
            title = f"{p.name}: {ms(p.run)} ms, {rate(p.gigaflops)} GFLOP/s"
            title += f", {percent(p.share)} of the roof" if p.share else ""
            out.append(f'<circle class="op" cx="{x:.1f}" cy="{y:.1f}" r="{size:.1f}">'
                       f"<title>{_escape(title)}</title></circle>")  # fmt: skip
            label_y = y + 4
            near = [b for a, b in label_places if abs(a - x) < 110]
            while any(abs(label_y - b) < 12 for b in near):  # below the names that stand there
                label_y += 12
            label_places.append((x, label_y))
            out.append(f'<text x="{x + size + 4:.1f}" y="{label_y:.1f}">'
                       f"{_escape(p.name or letter)}</text>")  # fmt: skip
        return "\n".join([*out, "</svg>", ""])

    def save(self, path: str | Path) -> Path:
        """Write the plot; the name ends in .svg.  ArgumentError: another ending."""
        target = Path(path)
        if target.suffix != ".svg":
            raise ArgumentError(f"save({str(path)!r}): a roofline plot is written as .svg")
        put(target, self.svg(), "save")
        return target


_CSS = """
text { font: 11.5px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #1f2328 }
.bg { fill: #ffffff } .quiet { fill: #59636e } path { fill: none }
.grid { stroke: #d1d9e0; stroke-width: .6 } .roof { stroke: #dc2626; stroke-width: 2 }
.op { fill: #3b82f6; fill-opacity: .65; stroke: #1d4ed8 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .bg { fill: #0d1117 } .quiet { fill: #9198a1 }
  .grid { stroke: #3d444d } .op { stroke: #93c5fd }
}
"""


def _escape(text: str) -> str:
    return saxutils.escape(printable(text))


def roofline_plot(profile: ProfileLike, by: str = "op") -> RooflinePlot:
    """Return the plot of a profile's operators, lines or modules; what ran on a device has no place
    below the host's roof.  ArgumentError: `by` is none of the tables.
    """
    if by not in BY:
        raise ArgumentError(f"by={by!r}: a roofline plot is by one of {', '.join(BY)}")
    roof = of_run(profile.run)
    rows: list[Row] = [r for r in profile.table(by) if r.run and r.nbytes and not r.devices]
    rows.sort(key=lambda r: (-r.run, r.name))
    points = [
        Point(r.name, r.count, r.run, r.nbytes, r.flops, roof_share(roof, r)) for r in rows[:MOST]
    ]
    return RooflinePlot(by, roof, tuple(points))
