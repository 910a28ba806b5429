"""The ratios of all ops and sizes as one table and one picture, so that no slow corner hides.

A cell is our time over that of the fastest peer: green below 1, grey around it, red above.
"""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from tools.bench.kernels import Timing

__all__ = ["print_over", "print_table", "save_svg"]

CELL_WIDTH, CELL_HEIGHT, LABEL = 46, 15, 260
COLUMNS = 3


def colour(ratio: float) -> str:
    """Return a colour from blue (4x faster) through grey (equal) to orange (4x slower), by powers.

    The two differ in brightness as well, for readers who do not see the colours.
    """
    at = max(-1.0, min(1.0, math.log2(ratio) / 2))
    far = (56, 139, 253) if at < 0 else (255, 190, 60)
    red, green, blue = (round(200 + (c - 200) * abs(at)) for c in far)
    return f"#{red:02x}{green:02x}{blue:02x}"


def _by_name(rows: list[Timing]) -> dict[tuple[str, str], dict[int, Timing]]:
    families: dict[tuple[str, str], dict[int, Timing]] = {}
    for row in rows:
        families.setdefault((row.family, row.name), {})[row.size] = row
    return dict(sorted(families.items(), key=lambda item: item[0][0]))


def _peers(rows: list[Timing]) -> str:
    names = sorted({name for row in rows for name in row.ratios})
    return names[0] if len(names) == 1 else "the fastest of " + ", ".join(names)


def _summary(rows: list[Timing]) -> str:
    ratios = [row.worst for row in rows if row.worst is not None]
    if not ratios:
        return "no peer"
    slower = sum(r > 1 for r in ratios)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return (
        f"{len(ratios)} cells: geometric mean {mean:.2f}x of the time of {_peers(rows)}, "
        f"{slower} slower than it, {sum(r > 2 for r in ratios)} of them more than 2x"
    )


def print_table(rows: list[Timing], powers: list[int]) -> None:
    """The heat map, and behind it each op's largest size: time, roofline, peers."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=150)
    table = Table(title="our time / the fastest peer's", title_justify="left", box=None)
    table.add_column("family")
    table.add_column("op", no_wrap=True)
    for power in powers:
        table.add_column(f"2^{power}", justify="right")
    for heading in ("largest: ours", "reaches", "torch", "jax", "numpy"):
        table.add_column(heading, justify="right", no_wrap=True)
    for (family, name), cells in _by_name(rows).items():
        line: list[Text | str] = [family, name]
        for power in powers:
            row = cells.get(1 << power)
            ratio = None if row is None else row.worst
            if ratio is None:
                line.append("")
            else:
                line.append(Text(f"{ratio:.2f}", style=f"black on {colour(ratio)}"))
        last = cells[max(cells)]
        line += [_duration(last.seconds["flowvm"]), _reached(last)]
        line += [
            f"{last.ratios[p]:.2f}" if p in last.ratios else "" for p in ("torch", "jax", "numpy")
        ]
        table.add_row(*line)
    console.print(table)
    console.print(_summary(rows))


def print_over(rows: list[Timing], most: float) -> None:
    """Print what takes more than `most` times as long as the fastest peer, the worst first."""
    over = [(row.worst, row) for row in rows if row.worst is not None and row.worst > most]
    known = sum(row.worst is not None for row in rows)
    print(f"{len(over)} of {known} take more than {most} times as long:")
    for ratio, row in sorted(over, key=lambda item: -item[0]):
        print(f"  {ratio:5.2f}  {row.name}, 2^{row.size.bit_length() - 1}")


def _reached(row: Timing) -> str:
    return f"{row.share:.0%} of {row.bound}" if row.share else ""


def _duration(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def save_svg(rows: list[Timing], powers: list[int], path: str) -> None:
    """The heat map as one picture, in columns of cases; hovering over a cell says its times."""
    named = list(_by_name(rows).items())
    per_column = -(-len(named) // COLUMNS)
    width = LABEL + CELL_WIDTH * len(powers) + 24
    height = 60 + CELL_HEIGHT * (per_column + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {COLUMNS * width} {height}" '
        'font-family="sans-serif" font-size="10.5" fill="#1f2328">',
        f'<rect width="{COLUMNS * width}" height="{height}" fill="white"/>',
        f'<text x="8" y="18" font-size="14">Our time over that of {_peers(rows)}, '
        "float32, one thread</text>",
        f'<text x="8" y="34">{html.escape(_summary(rows))}</text>',
    ]
    for place, ((family, name), cells) in enumerate(named):
        column, row = divmod(place, per_column)
        x, y = column * width + 8, 60 + row * CELL_HEIGHT
        if row == 0:
            for i, power in enumerate(powers):
                at = x + LABEL + (i + 0.5) * CELL_WIDTH
                parts.append(f'<text x="{at}" y="{y - 6}" text-anchor="middle">2^{power}</text>')
        parts.append(
            f'<text x="{x}" y="{y + 11}"><tspan fill="#6e7781">{family} </tspan>'
            f"{html.escape(name)}</text>"
        )
        for i, power in enumerate(powers):
            timing = cells.get(1 << power)
            if timing is None or timing.worst is None:
                continue
            at, ratio = x + LABEL + i * CELL_WIDTH, timing.worst
            durations = ", ".join(f"{k} {_duration(v)}" for k, v in timing.seconds.items())
            parts.append(
                f"<g><title>{html.escape(name)}, 2^{power}: {durations}</title>"
                f'<rect x="{at}" y="{y}" '
                f'width="{CELL_WIDTH - 1}" height="{CELL_HEIGHT - 1}" fill="{colour(ratio)}"/>'
                f'<text x="{at + CELL_WIDTH / 2}" y="{y + 11}" text-anchor="middle">'
                f"{ratio:.2f}</text></g>"
            )
    parts.append("</svg>")
    with open(path, "w") as file:
        file.write("\n".join(parts))
