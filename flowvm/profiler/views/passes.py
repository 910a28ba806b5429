"""A graph before and after its passes, side by side, and what each pass did.

At the left the nodes as they were captured, at the right those that run.  Nodes that were merged
stand together, bracketed to the one that does their work; one that was removed names the pass.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from flowvm.profiler.grammar import Column, Line, Screen, Span, View, cropped, padded, table

MOST = 4  # operators that a line of the summary names


@dataclass(frozen=True)
class NodeText:
    """A node of a graph in words."""

    number: int
    op: str
    result: str
    scope: str
    line: str
    phase: str


@dataclass(frozen=True)
class PassText:
    """A pass: nodes before and after, and in words what it made (of what) and removed."""

    name: str
    before: int
    after: int
    made: tuple[tuple[str, tuple[str, ...]], ...]
    removed: tuple[str, ...]
    moved: bool

    @property
    def did(self) -> str:
        """All that in one line."""
        parts = [f"{name} ← {_counted(of)}" if of else f"added {name}" for name, of in self.made]
        texts = [f"{n}× {text}" if n > 1 else text for text, n in Counter(parts).most_common()]
        if self.removed:
            texts.append(f"removed {_counted(self.removed)}")
        if self.moved:
            texts.append("another order")
        return "; ".join(texts)


@dataclass(frozen=True)
class Pair:
    """Captured nodes, and the one that does their work: None if `why`, a pass, removed them; no
    captured ones if a pass added it.
    """

    before: tuple[NodeText, ...]
    after: NodeText | None
    why: str


@dataclass(frozen=True, repr=False)
class PassesView(View):
    """See the module."""

    name: str
    before: int
    after: int
    passes: tuple[PassText, ...]
    idle: tuple[str, ...]  # passes that found nothing to do
    left_out: tuple[str, ...]
    pairs: tuple[Pair, ...]

    def screen(self, width: int) -> Screen:
        """See View."""
        screen = Screen()
        screen.add((f"{self.name}: {self.before} nodes captured, {self.after} after the passes",
                    "verdict"))  # fmt: skip
        if self.passes:
            rows = [[p.name, str(p.before), str(p.after), p.did] for p in self.passes]
            screen.lines += table(_COLUMNS, rows, width)
        for title, names in (("nothing to do", self.idle), ("switched off", self.left_out)):
            if names:
                screen.add((cropped(f" {title}: {', '.join(names)}", width), "head"))
        if not self.passes and not self.idle:
            screen.add((" no pass ran here: what it was captured as is not known", "head"))
        screen.add("")
        left = (width - 4) // 2
        right = width - 4 - left
        screen.add((padded(" captured", left), "head"), "    ", ("runs", "head"))
        for pair in self.pairs:
            screen.lines += _beside(pair, left, right)
        return screen.cut(width)


_COLUMNS = [
    Column("pass", style="id"),
    Column("before", right=True),
    Column("after", right=True),
    Column("what it did", grow=True),
]


def _counted(names: tuple[str, ...]) -> str:
    counts = [f"{n}× {name}" if n > 1 else name for name, n in Counter(names).items()]
    more = [f"{len(counts) - MOST} more"] if len(counts) > MOST else []
    return " + ".join(counts[:MOST] + more)


def _beside(pair: Pair, left: int, right: int) -> list[Line]:
    """The lines of a pair."""
    count = max(1, len(pair.before))
    middle = (count - 1) // 2
    lines: list[Line] = []
    for k in range(count):
        one = pair.before[k] if pair.before else None
        cells = _node(one, left, "") if one else [(" " * left, "")]
        if count == 1:
            joint = "─► " if pair.before and pair.after else " + " if pair.after else " × "
        else:
            joint = "┐" if k == 0 else "┘" if k == count - 1 else "┤" if k == middle else "│"
            joint += "► " if k == middle and pair.after else "  "
            if k == middle and not pair.after:
                joint = joint[0] + "× "
        style = "head" if pair.after is not None and len(pair.before) == 1 else "critical"
        rest: Line = []
        if k == middle:
            gone = [(cropped(f"removed: {pair.why}", right), "bad")]
            new = "good" if len(pair.before) != 1 else ""
            rest = _node(pair.after, right, new) if pair.after else list(gone)
        lines.append([*cells, (" " + joint, style if pair.after else "bad"), *rest])
    return lines


def _node(node: NodeText, width: int, style: str) -> list[Span]:
    head = f" {node.number:>3} {node.op}"
    result = f"  {node.result}"
    rest = " ".join(filter(None, (node.scope, node.line)))
    # the operator is what matters: then the result, then where it is from
    room = width - len(head)
    if room < 0:
        return [(padded(head, width), style)]
    result = cropped(result, room) if room > 6 else ""
    where = f"  {rest}" if rest and room - len(result) > 8 else ""
    return [(head, style), (result, "const"),
            (padded(where, width - len(head) - len(result)), "line")]  # fmt: skip
