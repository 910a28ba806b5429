"""Ratios of the bench over time, a line a landing: `python -m tools.bench.history`.

    python -m tools.bench --json --groups eager,reading,graph > rows.jsonl
    python -m tools.bench.history --add rows.jsonl     append a line to tools/bench/history.jsonl
    --kind TEXT                 machines whose kind has this text
    --only TEXT                 rows whose name has this text
    --svg FILE                  each row as a curve

A line has the commit, the machine's kind and each row's ratio to its peer: times of one machine
mean nothing on another, and little on the same one an hour later.  Several runs in the files become
one line: the median of each row, and between which ratios it was.

A row is worse if its newest ratio is above the median of up to five lines before it, by more than
any of these runs differed among themselves, and by more than 5 %.  The command then exits with 1.
"""

from __future__ import annotations

import argparse
import datetime
import html
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from flowvm.profiler.run.roof import cpu_name
from tools.bench.ceilings import vector_name
from tools.bench.heatmap import colour

__all__ = ["Line", "Trend", "line_of", "load", "save_svg", "trends"]

FILE = Path(__file__).with_name("history.jsonl")
BEFORE = 5  # lines that the newest is compared with
LEAST = 1.05  # times the ratio before: less is never called a change
BARS = "▁▂▃▄▅▆▇█"


class Ratio(NamedTuple):
    """A row's ratio of ours to the peer's: the median of runs, and between what they were."""

    low: float
    usual: float
    high: float


class Line(NamedTuple):
    """The ratios of one landing on one kind of machine."""

    date: str
    commit: str
    kind: str
    rows: dict[str, Ratio]

    def text(self) -> str:
        """The line of the file."""
        rows = {name: [float(f"{x:.3g}") for x in row] for name, row in self.rows.items()}
        return json.dumps({**self._asdict(), "rows": rows}, ensure_ascii=False)


class Trend(NamedTuple):
    """A row's ratios on one kind of machine, the newest last, and how far it moved.

    `change` is the newest over the median before it, `noise` what a change has to be more than.
    """

    kind: str
    name: str
    ratios: list[float]
    change: float
    noise: float

    @property
    def verdict(self) -> str:
        """One of "worse", "better" and "" for no change beyond noise, or nothing to compare."""
        if len(self.ratios) < 2 or 1 / self.noise <= self.change <= self.noise:
            return ""
        return "worse" if self.change > 1 else "better"


def load(path: Path = FILE) -> list[Line]:
    """The lines of a file, the oldest first; ValueError names a line that is none."""
    lines = []
    for number, text in enumerate(path.read_text().splitlines() if path.exists() else [], 1):
        try:
            line = Line(**json.loads(text))
            rows = {name: Ratio(*row) for name, row in line.rows.items()}
        except (TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{path}:{number} is no line of a history: {error}") from error
        lines.append(line._replace(rows=rows))
    return lines


def line_of(texts: Iterable[str], date: str, commit: str, kind: str) -> Line:
    """A line of the rows that `python -m tools.bench --json` printed, in one or several runs.

    ValueError if no row has a ratio.
    """
    ratios: dict[str, list[float]] = {}
    for text in filter(str.strip, texts):
        row = json.loads(text)
        if row["ratio"] is not None:
            ratios.setdefault(f"{row['name']} / {row['peer_name']}", []).append(row["ratio"])
    if not ratios:
        raise ValueError("no row has a ratio: run the bench with --json and with its peers")
    rows = {n: Ratio(min(r), statistics.median(r), max(r)) for n, r in ratios.items()}
    return Line(date, commit, kind, rows)


def trends(lines: list[Line]) -> list[Trend]:
    """The trend of each row that the newest line of its kind of machine has, worst first."""
    rows = []
    for kind in dict.fromkeys(line.kind for line in lines):
        own = [line for line in lines if line.kind == kind]
        for name in own[-1].rows:
            known = [line.rows[name] for line in own if name in line.rows]
            recent = known[-1 - BEFORE :]
            before = statistics.median(r.usual for r in recent[:-1] or recent)
            noise = max(max(r.high / r.usual, r.usual / r.low) for r in recent)
            change = known[-1].usual / before
            usual = [r.usual for r in known]
            rows.append(Trend(kind, name, usual, change, max(LEAST, noise)))
    return sorted(rows, key=lambda t: (t.kind, -t.change))


def _bars(ratios: list[float]) -> str:
    logs = [math.log(r) for r in ratios]
    low, span = min(logs), max(max(logs) - min(logs), math.log(1.2))
    return "".join(BARS[int((x - low) / span * (len(BARS) - 1))] for x in logs)


def print_trends(rows: list[Trend]) -> None:
    """Print a table: each row over time, and what changed beyond noise."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    console = console if console.is_terminal else Console(width=130)
    for kind in dict.fromkeys(t.kind for t in rows):
        table = Table(title=kind, title_justify="left", box=None, pad_edge=False)
        for head in ("row", "over time", "now", "change", "noise", ""):
            right = head in ("now", "change", "noise")
            table.add_column(head, justify="right" if right else "left", no_wrap=True)
        for t in rows:
            if t.kind == kind:
                now, change = f"{t.ratios[-1]:.2f}", f"{t.change - 1:+.0%}"
                style = {"worse": "red", "better": "green"}.get(t.verdict, "")
                bars = Text(_bars(t.ratios[-30:]))
                noise = f"{t.noise - 1:.0%}"
                table.add_row(Text(t.name), bars, now, change, noise, Text(t.verdict, style))
        console.print(table)
    worse = sum(t.verdict == "worse" for t in rows)
    better = sum(t.verdict == "better" for t in rows)
    console.print(f"{len(rows)} rows: {worse} worse, {better} better beyond noise")


def save_svg(rows: list[Trend], path: str) -> None:
    """Draw each row as a curve of its ratio, one below the other; the line in grey is 1."""
    height, label, width = 26, 430, 360
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {label + width + 90} '
        f'{height * (len(rows) + 1) + 10}" font-family="sans-serif" font-size="11" '
        'fill="#1f2328">',
        '<rect width="100%" height="100%" fill="white"/>',
        '<text x="8" y="18" font-size="13">Our time over the peer\'s, a point a landing</text>',
    ]
    for i, t in enumerate(rows):
        top = height * (i + 1) + 4
        logs = [math.log(r) for r in t.ratios]
        low, high = min(*logs, 0.0), max(*logs, 0.0)
        span = max(high - low, 0.1)

        def y(value: float, top: int = top, low: float = low, span: float = span) -> float:
            return top + (height - 6) * (1 - (value - low) / span)

        step = width / max(1, len(logs) - 1)
        points = " ".join(f"{label + k * step:.1f},{y(x):.1f}" for k, x in enumerate(logs))
        line, fill = "#9198a1", colour(t.ratios[-1])
        verdict = f" ({t.verdict})" if t.verdict else ""
        parts.append(
            f"<g><title>{html.escape(f'{t.kind}: {t.name}')}</title>"
            f'<text x="8" y="{top + 14}">{html.escape(t.name)}</text>'
            f'<line x1="{label}" x2="{label + width}" y1="{y(0):.1f}" y2="{y(0):.1f}" '
            f'stroke="{line}" stroke-dasharray="2 3"/>'
            f'<polyline points="{points}" fill="none" stroke="#0969da" stroke-width="1.5"/>'
            f'<circle cx="{label + (len(logs) - 1) * step:.1f}" cy="{y(logs[-1]):.1f}" r="4" '
            f'fill="{fill}" stroke="#1f2328" stroke-width="0.5"/>'
            f'<text x="{label + width + 10}" y="{top + 14}">'
            f"{t.ratios[-1]:.2f}{verdict}</text></g>"
        )
    parts.append("</svg>")
    Path(path).write_text("\n".join(parts))


def _commit() -> str:
    """The commit of this checkout, with "+" if it was changed since."""
    ask = ["git", "-C", str(FILE.parent)]
    revision = subprocess.run(
        [*ask, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True
    )
    dirty = subprocess.run([*ask, "diff", "--quiet", "HEAD"], capture_output=True)
    return revision.stdout.strip() + "+" * (dirty.returncode == 1)


def main() -> int:
    """Append a line if told to, and draw; 1 if a row became worse."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.history",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--add", nargs="+", default=[], metavar="ROWS", help="files; - for stdin")
    parser.add_argument("--file", type=Path, default=FILE, help="the history")
    parser.add_argument("--kind", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--svg", default="")
    options = parser.parse_args()
    if options.add:
        texts: list[Any] = []
        for name in options.add:
            texts += (sys.stdin.read() if name == "-" else Path(name).read_text()).splitlines()
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        line = line_of(texts, today, _commit(), f"{cpu_name()}, {vector_name()}")
        with options.file.open("a") as file:
            file.write(line.text() + "\n")
    lines = [line for line in load(options.file) if options.kind in line.kind]
    rows = [t for t in trends(lines) if options.only in t.name]
    print_trends(rows)
    if options.svg:
        save_svg(rows, options.svg)
    return int(any(t.verdict == "worse" for t in rows))


if __name__ == "__main__":
    sys.exit(main())
