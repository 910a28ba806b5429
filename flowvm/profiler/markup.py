"""HTML for notebooks: trees that open and close, in monospace, that scroll where they are long.

It brings no script, no style sheet and no colours of its own, so it is readable on light and dark
and stays where a notebook is shown without being trusted.  Text is escaped here.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass, field

from flowvm.files.printable import printable

SCROLLS = "font-size:12px;line-height:1.25;overflow:auto;max-height:60em;text-align:left"
VISIBLE = 40  # rows that are open at first
MOST = 500  # rows of one branch


@dataclass
class Node:
    """A row of a tree, and the rows below it; `markup` is HTML already."""

    markup: str
    below: list[Node] = field(default_factory=list)


def row(text: str, below: Iterable[Node] = ()) -> Node:
    """A row of plain text, of one line or several."""
    return Node(html.escape(printable(text, lines=True)), list(below))


def pre(markup: str) -> str:
    """Lines of HTML as they stand."""
    return f'<pre style="{SCROLLS}">{markup}</pre>'


def tree(nodes: list[Node], indent: bool = True) -> str:
    """The rows, those that have others below them with something to click on; few are all open.

    indent   move what is below to the right; without, the rows do that themselves
    """
    depth, level = 0, nodes
    count = len(level)
    while level:
        level = [node for above in level for node in above.below[:MOST]]
        count += len(level)
        if depth and count > VISIBLE:
            break
        depth += 1
    look = f"font-family:monospace;white-space:pre;padding-left:1.5em;{SCROLLS}"
    return f'<div style="{look}">{_rows(nodes, depth, "1.5em" if indent else "0")}</div>'


def _rows(nodes: list[Node], depth: int, margin: str) -> str:
    """`depth` is how many levels are open."""
    parts = []
    for node in nodes[:MOST]:
        if not node.below:
            parts.append(f"<div>{node.markup}</div>")
            continue
        inside = _rows(node.below, depth - 1, margin)
        parts.append(
            f"<details{' open' * (depth > 0)}>"
            f'<summary style="cursor:pointer;list-style-position:outside">{node.markup}</summary>'
            f'<div style="margin-left:{margin}">{inside}</div></details>'
        )
    if len(nodes) > MOST:
        parts.append(f"<div>… and {len(nodes) - MOST:,} more</div>")
    return "".join(parts)


def by_depth(rows: Iterable[tuple[int, Node]]) -> list[Node]:
    """Rows in order, each below the last one before it that is less deep."""
    top: list[Node] = []
    open_: list[tuple[int, Node]] = []
    for depth, node in rows:
        while open_ and open_[-1][0] >= depth:
            open_.pop()
        (open_[-1][1].below if open_ else top).append(node)
        open_.append((depth, node))
    return top


def indented(rows: Iterable[str]) -> str:
    """Rows of text that are indented below what they belong to, as a tree."""
    return tree(by_depth((len(s) - len(s.lstrip()), row(s.strip())) for s in rows if s.strip()))
