"""Two runs beside each other: what takes longer, what is there more often, what waits more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flowvm.profiler.analysis.tables import Row
from flowvm.profiler.grammar import CAUSES, Column, Screen, Span, View, flowed, ms, percent, table
from flowvm.profiler.views.summary.facts import ProfileLike

MOST_ROWS = 15


@dataclass(frozen=True)
class Change:
    """An operator, line, module or stream in both runs.  Times are ns, of the whole runs."""

    name: str
    count: tuple[int, int]
    run: tuple[int, int]
    path: tuple[int, int]
    wait: tuple[int, int]


@dataclass(frozen=True, repr=False)
class Diff(View):
    """See the module; each pair is (before, after)."""

    by: str
    wall: tuple[int, int]
    floor: tuple[int, int]
    instructions: tuple[int, int]
    bound: tuple[tuple[str, float, float], ...]
    changes: tuple[Change, ...]

    def screen(self, width: int) -> Screen:
        """See View."""
        screen = Screen()
        before, after = self.wall
        how = "faster" if after <= before else "slower"
        factor = before / max(1, after) if after <= before else after / max(1, before)
        screen.lines += flowed([
            (f"{factor:.2f}x {how}", "verdict"), (f"wall {ms(before)} → {ms(after)} ms", ""),
            (f"floor {ms(self.floor[0])} → {ms(self.floor[1])} ms", ""),
            (f"instructions {self.instructions[0]:,} → {self.instructions[1]:,}", ""),
        ], width)  # fmt: skip
        changed = [(f"{cause} {ms(a)} → {ms(b)} ms", CAUSES[cause][1])
                   for cause, a, b in self.bound if max(a, b) >= 0.01]  # fmt: skip
        screen.lines += flowed([("observed path", "head"), *changed], width)
        rows: list[list[str | Span]] = []
        for c in self.changes[:MOST_ROWS]:
            delta = c.run[1] - c.run[0]
            sign = "+" if delta > 0 else "-" if delta < 0 else " "
            style = "bad" if delta > 0 else "good" if delta < 0 else ""
            rows.append([
                (c.name or "(no module)", "id"), f"{c.count[0]:,} → {c.count[1]:,}",
                f"{ms(c.run[0])} → {ms(c.run[1])}", (f"{sign}{ms(abs(delta))}", style),
                percent(abs(delta) / c.run[0]) if c.run[0] else "-" if c.count[0] else "new",
                f"{ms(c.path[0])} → {ms(c.path[1])}", f"{ms(c.wait[0])} → {ms(c.wait[1])}",
            ])  # fmt: skip
        columns = [
            Column(self.by, grow=True), Column("n", right=True, drop=3),
            Column("run ms", right=True), Column("change", right=True),
            Column("of it", right=True, drop=5), Column("on path", right=True, drop=2),
            Column("waits", right=True, drop=4),
        ]  # fmt: skip
        screen.lines += table(columns, rows, width)
        if len(self.changes) > MOST_ROWS:
            screen.add((f"  and {len(self.changes) - MOST_ROWS} that changed less", "head"))
        return screen


def diff(before: ProfileLike, after: ProfileLike, by: str = "op") -> Diff:
    """Compare two Profiles, the largest change of running time first.

    by   "op", "line", "module" or "stream"
    """
    old = {row.name: row for row in before.table(by)}
    new = {row.name: row for row in after.table(by)}
    changes = [
        Change(
            name,
            _pair(old, new, name, lambda r: r.count),
            _pair(old, new, name, lambda r: r.run),
            _pair(old, new, name, lambda r: r.path),
            _pair(old, new, name, lambda r: r.dep + r.sched),
        )
        for name in dict.fromkeys([*old, *new])
    ]
    changes.sort(key=lambda c: (-abs(c.run[1] - c.run[0]), c.name))
    walls = before.run.wall, after.run.wall
    causes = dict.fromkeys([*before.bound, *after.bound])
    bound = [
        (c, before.bound.get(c, 0.0) * walls[0], after.bound.get(c, 0.0) * walls[1]) for c in causes
    ]
    return Diff(
        by, walls, (before.floor.length, after.floor.length),
        (len(before.run), len(after.run)), tuple(bound), tuple(changes),
    )  # fmt: skip


def _pair(
    old: dict[str, Row], new: dict[str, Row], name: str, value: Callable[[Row], int]
) -> tuple[int, int]:
    return (value(old[name]) if name in old else 0, value(new[name]) if name in new else 0)
