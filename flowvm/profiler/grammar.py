"""The grammar of the profiler's screens: glyphs, colours, the form of numbers, and printing.

A screen is lines of spans, each a text with the name of a style (`Screen`).  That is all a renderer
needs: plain text joins them, rich colours them, and where the terminal knows no UTF-8 every glyph
has an ASCII twin.  A glyph never says less than its colour, so nothing is lost without colours.

A `View` is a frozen dataclass of what is to be shown, with all numbers chosen; `screen(width)` lays
it out.  So what is shown can be tested, and had as a dict, without any terminal.
"""

from __future__ import annotations

import dataclasses
import html
import io
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from flowvm.errors import ArgumentError
from flowvm.files.printable import printable
from flowvm.files.writer import put
from flowvm.profiler import markup, terminal
from flowvm.profiler.terminal import USUAL, WIDE, speaks_utf8, terminal_width, to_ascii

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

Span = tuple[str, str]  # text, name of a style
Line = list[Span]

# a cause of time -> (glyph, style, what it means)
CAUSES: dict[str, tuple[str, str, str]] = {
    "run": ("█", "run", "running"),
    "dep": ("░", "dep", "waits for an operand of another stream"),
    "queue": ("▫", "queue", "waits for what is in front in its stream"),
    "sched": ("▏", "sched", "waits for the VM"),
    "host": ("·", "host", "nothing issued yet: Python"),
    "sync": ("╳", "sync", "Python waits for a value"),
    "credit": ("$", "credit", "issuing waits for room in the queue"),
    "memory": ("▥", "memory", "waits for memory in flight"),
    "jit": ("▒", "jit", "a kernel is compiled or loaded"),
    "gil": ("▓", "gil", "Python waits for the GIL"),
    "core": ("▚", "core", "Python is ready and has no core"),
}
# access -> (line of an edge, glyph of an operand, style)
ACCESS: dict[int, tuple[str, str, str]] = {
    0: ("──", "", "const"),
    1: ("━━", "━", "mut"),
    2: ("══", "═", "mut2"),
}
# of rich, and of HTML; a name that is not here is no style.  Each colour has a contrast of 4.5 : 1
# or more on white and on black (WCAG's AA), since nobody says which a terminal has; `gil` is blue
# enough to be told from `critical` by who sees no red
STYLES: dict[str, str] = {
    "run": "#138830", "dep": "#1870ec", "queue": "#118097", "sched": "#757575", "host": "#757575",
    "sync": "#cf25b3", "credit": "#937008", "memory": "#6b7d0e", "jit": "#458417",
    "gil": "#8b56e7", "core": "#577992", "const": "#0b837f", "mut": "#af6209", "mut2": "#cf25b3",
    "critical": "bold #e12b2b", "head": "#757575", "id": "bold", "verdict": "bold",
    "advice": "bold", "line": "#757575", "bad": "#e12b2b", "good": "#138830",
}  # fmt: skip
_CSS = {
    name: ";".join(
        "font-weight:bold" if word == "bold" else f"color:{word}" for word in style.split()
    )
    for name, style in STYLES.items()
}
HEAD = 11  # columns of a name in front of what is said
_EIGHTHS = " ▏▎▍▌▋▊▉█"


# --- numbers --------------------------------------------------------------------------------------


def ms(nanoseconds: float) -> str:
    """Milliseconds with three digits that mean something: 412.6, 8.21, 0.038; 46,368 for many."""
    value = nanoseconds / 1e6
    if value and abs(value) < 0.0005:
        return "0.000"
    if abs(value) >= 10_000:
        return f"{value:,.0f}"
    return (
        f"{value:,.1f}"
        if abs(value) >= 100
        else f"{value:.2f}"
        if abs(value) >= 1
        else f"{value:.3f}"
    )


def size(nbytes: float) -> str:
    """Bytes: 61.3 MiB, 512 B."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(nbytes) >= scale:
            return f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes:.0f} B"


def percent(share: float) -> str:
    """46 %, with a digit more below one."""
    return f"{100 * share:.0f} %" if share >= 0.01 or not share else f"{100 * share:.1f} %"


def counted(count: int, what: str) -> str:
    """1 instruction, 2,048 instructions."""
    return f"{count:,} {what}" + "s" * (count != 1)


def rate(per_second: float) -> str:
    """A rate in billions a second, "" where there is none."""
    return f"{per_second:.1f}" if per_second >= 0.05 else "-" if per_second <= 0 else "<0.1"


def bar(share: float, width: int = 8) -> str:
    """A bar of at most `width` columns, in eighths of one."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    whole, part = divmod(eighths, 8)
    return "█" * whole + (_EIGHTHS[part] if part else "")


# --- layout ---------------------------------------------------------------------------------------


def cropped(text: str, width: int) -> str:
    """`text` in at most `width` columns."""
    text = printable(text)
    if len(text) <= width:
        return text
    return text[: width - 1] + "…" if width > 1 else text[:width]


def padded(text: str, width: int, right: bool = False) -> str:
    """`text` in exactly `width` columns."""
    text = cropped(text, width)
    return text.rjust(width) if right else text.ljust(width)


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table: `drop` says which columns go first where there is no room (0: never)."""

    title: str
    right: bool = False
    style: str = ""
    drop: int = 0
    grow: bool = False  # takes the room that is left, and gives it
    least: int = 12  # that one that grows keeps
    spare: bool = False  # only where all others have all the room that they want
    where: bool = False  # file:line, which stays when all but the first column has gone


def table(
    columns: Sequence[Column], rows: Iterable[Sequence[str | Span]], width: int, indent: int = 1
) -> list[Line]:
    """Lines of a table that fits `width`: columns go, the highest `drop` first, then the widest of
    those that grow are cropped, to one width; where there is a file:line, the others go before it,
    the last one first.  A cell may bring a style of its own.
    """
    cells = [[_safe(c if isinstance(c, tuple) else (c, "")) for c in row] for row in rows]
    natural = [
        max([len(column.title), *(len(row[k][0]) for row in cells)])
        for k, column in enumerate(columns)
    ]
    least = [min(n, c.least) if c.grow else n for n, c in zip(natural, columns, strict=True)]

    def needed() -> int:
        return indent + sum(least[k] for k in shown) + 2 * (len(shown) - 1)

    shown = [k for k in range(len(columns)) if not columns[k].spare]
    whole = indent + sum(natural[k] + 2 for k in shown)
    shown = [k for k in range(len(columns)) if k in shown or whole + least[k] <= width]
    while needed() > width:
        going = [k for k in shown if columns[k].drop and not columns[k].where]
        if not going and any(columns[k].where for k in shown):
            going = [k for k in shown[:0:-1] if not columns[k].where]
        if not going:
            break
        shown.remove(max(going, key=lambda k: columns[k].drop))
    widths = {k: natural[k] for k in shown}
    over = indent + sum(widths.values()) + 2 * (len(shown) - 1) - width
    for _ in range(over):
        wide = [k for k in shown if widths[k] > least[k]]
        if wide:
            widths[max(wide, key=lambda k: (columns[k].spare, widths[k]))] -= 1
    lines: list[Line] = []
    head = [(columns[k].title, "head") for k in range(len(columns))]
    for row in [head, *cells]:
        line: Line = [(" " * indent, "")]
        for k in shown:
            text, style = row[k]
            if columns[k].where and len(text) > widths[k]:
                place = text.partition(" ")[0]  # without the code behind it
                text = place if len(place) <= widths[k] else "…" + place[1 - widths[k] :]
            gap = "" if k == shown[-1] else "  "
            line.append(
                (padded(text, widths[k], columns[k].right) + gap, style or columns[k].style)
            )
        lines.append(line)
    return lines


def advised(advice: Sequence[str], width: int) -> list[Line]:
    """Return the lines of advice, numbered, each broken to fit the width."""
    lines: list[Line] = []
    for k, one in enumerate(advice, 1):
        for n, part in enumerate(textwrap.wrap(one, max(20, width - 9), break_long_words=False)):
            head = f"next  {k}. " if k == 1 and not n else " " * 6 + ("   " if n else f"{k}. ")
            lines.append([(head, "advice"), (part, "")])
    return lines


def headed(name: str, text: str, width: int) -> list[Line]:
    """A name and its text, broken where it does not fit; none for "" to say."""
    room = max(20, width - HEAD)
    parts = textwrap.wrap(printable(text), room, break_on_hyphens=False)
    return [[(("" if k else name).ljust(HEAD), "head"), (part, "")] for k, part in enumerate(parts)]


def flowed(parts: Iterable[Span], width: int, gap: str = "   ", indent: str = " ") -> list[Line]:
    """The parts side by side, each whole, in as many lines as they need."""
    lines: list[Line] = [[]]
    room = width
    for text, style in map(_safe, parts):
        before = gap if lines[-1] else indent
        if lines[-1] and len(before) + len(text) > room:
            lines.append([])
            room, before = width, indent
        lines[-1] += [(before, ""), (text, style)]
        room -= len(before) + len(text)
    return lines


def _safe(span: Span) -> Span:
    """A span whose text does not command a terminal."""
    return printable(span[0]), span[1]


class Screen:
    """Lines of spans, laid out for a width.  What they hold of files and programs is made printable
    here, whatever it is shown on.
    """

    def __init__(self, lines: Iterable[Line] = ()) -> None:
        self.lines: list[Line] = list(lines)

    def __repr__(self) -> str:
        return self.plain()

    def add(self, *spans: str | Span) -> None:
        """A line of texts, with or without a style."""
        self.lines.append([s if isinstance(s, tuple) else (s, "") for s in spans])

    def fitted(self, width: int) -> Screen:
        """Crop the lines that are too long, and return this screen."""
        for line in self.lines:
            room = width
            for k, (text, style) in enumerate(line):
                line[k] = (text if len(text) <= room else cropped(text, max(0, room)), style)
                room -= len(text)
        return self

    def html(self) -> str:
        """As a <pre> of HTML with colours and no script, readable on light and dark."""
        return markup.pre("\n".join(self.rows()))

    def rows(self) -> list[str]:
        """The lines as HTML, each of its own."""
        lines = []
        for line in self.lines:
            parts = []
            for text, style in line:
                css = _CSS.get(style, "")
                shown = html.escape(printable(text))
                parts.append(f'<span style="{css}">{shown}</span>' if css else shown)
            lines.append("".join(parts).rstrip())
        return lines

    def cut(self, width: int) -> Screen:
        """Return a screen with long lines cut at their ends; a file:line there stays."""
        lines = []
        for line in self.lines:
            last: Line = []
            if line and line[-1][1] == "line" and len(line[-1][0]) < width - 8:
                last = line[-1:] if sum(len(text) for text, _ in line) > width else []
            lines.append(_cut(line[: len(line) - len(last)], width - sum(len(t) for t, _ in last)))
            lines[-1] += last
        return Screen(lines)

    def ascii(self) -> Screen:
        """Return a screen with the ASCII twin of every glyph."""
        return Screen([[(to_ascii(t), style) for t, style in line] for line in self.lines])

    def plain(self, ascii_only: bool = False) -> str:
        """Text without colours."""
        rows = ("".join(printable(t) for t, _ in line) for line in self.lines)
        text = "\n".join(row.rstrip() for row in rows)
        return to_ascii(text) if ascii_only else text

    def __rich__(self) -> Any:
        from rich.text import Text

        text = Text(no_wrap=True, overflow="ellipsis")
        for k, line in enumerate(self.lines):
            own = Text()
            for part, style in line:
                own.append(printable(part), STYLES.get(style, style if " " in style else ""))
            own.rstrip()
            text.append_text(own)
            if k + 1 < len(self.lines):
                text.append("\n")
        return text


def _cut(line: Line, width: int) -> Line:
    room, parts = width, []
    for text, style in line:
        if room > 0:
            parts.append((cropped(text, room), style))
        room -= len(text)
    if room < 0 and parts:
        parts[-1] = (parts[-1][0][:-1] + "…", parts[-1][1])
    return parts


class View:
    """Something that a screen can be made of.  `print` shows it as text, rich in colours.

    A subclass is a frozen dataclass, made with repr=False.
    """

    def screen(self, width: int) -> Screen:
        """Lay the view out for `width` columns."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain Python values, for JSON."""
        fields: dict[str, object] = _plain(dataclasses.asdict(self))  # type: ignore[call-overload]
        return fields

    def __repr__(self) -> str:
        return self.screen(terminal_width()).plain(not speaks_utf8())

    def coloured(self) -> str:
        """Return the view's text with the terminal's codes for colours."""
        from rich.console import Console

        width, out = terminal_width(), io.StringIO()
        screen = self.screen(width)
        console = Console(file=out, force_terminal=True, width=width)
        console.print(screen if speaks_utf8() else screen.ascii())
        return out.getvalue().rstrip("\n")

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """IPython's prompt."""
        printer.text(self.coloured() if terminal.has_colours() else repr(self))

    def _repr_html_(self) -> str:
        return self.screen(USUAL).html()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        screen = self.screen(min(options.max_width, WIDE))
        yield screen if options.encoding.lower().replace("-", "") == "utf8" else screen.ascii()


Node = tuple[str, str, str, bool]  # id, text, stream, critical
Link = tuple[str, str, str, str]  # ids, access, hazard


class Drawn(View):
    """A view that shows a graph, which other programs draw: `p.graph().save("x.svg")`."""

    # by ending: the text of a file, of nodes and links; entered by who can write them
    writers: ClassVar[dict[str, Callable[[list[Node], list[Link]], str]]] = {}

    def drawn(self) -> tuple[list[Node], list[Link]]:
        """Return the nodes and edges of the view."""
        raise NotImplementedError

    def save(self, path: str | Path) -> Path:
        """Write what it shows: the name ends in .svg, .dot (Graphviz) or .mmd (Mermaid).  All of a
        run, and every other format, is `p.export(path)`.  ArgumentError: another ending.
        """
        target = Path(path)
        if target.suffix not in self.writers:
            known = ", ".join(self.writers)
            raise ArgumentError(
                f"save({str(path)!r}): the ending says the format: {known}; p.export has more"
            )
        put(target, self.writers[target.suffix](*self.drawn()), "save")
        return target


def _plain(value: object) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.item() if isinstance(value, np.generic) else value
