"""The rooms in layers, and their imports: computed from the files' imports.

Rooms stand in groups; a group stands above those that it imports. An arrow says that files of one
import files of the other when they are loaded; it is left out where a longer way of arrows says so
already. Where two import each other, the arrow of the fewer imports is dashed. What `__init__`
files import is not counted: they collect public names.
"""

from __future__ import annotations

import ast
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from tools.drawings.canvas import Canvas, width_of

__all__ = ["rooms"]

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {"flowvm": "flowvm", "ops": "flowvm.ops", "autograd": "flowvm.autograd",
           "graph": "flowvm.graph"}  # fmt: skip
SPLIT = ("vm", "ops", "graph", "nn", "profiler", "cuda")  # groups that are drawn room by room
BASE = "flowvm"  # the files that stand in no room
Arrows = Counter[tuple[str, str]]


def modules() -> dict[str, Path]:
    """Files by dotted name, without the collecting `__init__`."""
    return {
        ".".join([package, *path.relative_to(ROOT / folder).with_suffix("").parts]): path
        for folder, package in FOLDERS.items()
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.name != "__init__.py"
    }


def place_of(module: str) -> tuple[str, str]:
    """Group and room of a module, such as ("ops", "rows"); a group's own files are its `.`."""
    parts = module.split(".")[1:]
    if len(parts) == 1:
        return BASE, parts[0]
    return parts[0], parts[1] if parts[0] in SPLIT and len(parts) > 2 else "."


def imported(path: Path, known: Iterable[str]) -> Iterator[str]:
    """Modules that are imported when a file is loaded."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else node.module


def grounded(files: dict[str, Path]) -> set[str]:
    """Return the files in no room that import no room either: the base of all rooms."""
    base = {m for m in files if place_of(m)[0] == BASE}
    while higher := {m for m in base if any(
        t in files and t not in base for t in imported(files[m], files)
    )}:  # fmt: skip
        base -= higher
    return base


def arrows_between() -> tuple[Arrows, dict[str, Arrows], dict[str, set[str]]]:
    """Imports between groups, between the rooms of each group, and each group's rooms."""
    files = modules()
    base = grounded(files)
    files = {m: p for m, p in files.items() if place_of(m)[0] != BASE or m in base}
    outer: Arrows = Counter()
    inner: dict[str, Arrows] = {}
    members: dict[str, set[str]] = {}
    for module, path in files.items():
        group, room = place_of(module)
        members.setdefault(group, set()).add(room)
        for target in imported(path, files):
            if target not in files:
                continue
            group2, room2 = place_of(target)
            if group != group2:
                outer[group, group2] += 1
            elif room != room2:
                inner.setdefault(group, Counter())[room, room2] += 1
    return outer, inner, members


def settled(arrows: Arrows) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """Return the arrows that make layers, and the ones against them: the rarest of each circle."""
    arrows_left = set(arrows)
    against: set[tuple[str, str]] = set()
    while circle := _circle(arrows_left):
        rarest = min(circle, key=lambda pair: (arrows[pair], pair))
        arrows_left.discard(rarest)
        against.add(rarest)
    return arrows_left, against


def _circle(arrows: set[tuple[str, str]]) -> list[tuple[str, str]]:
    """The arrows of some circle, or none."""
    for first, second in sorted(arrows):
        if way := _way(arrows, second, first):
            return [(first, second), *way]
    return []


def _way(arrows: set[tuple[str, str]], start: str, end: str) -> list[tuple[str, str]]:
    """The shortest way along arrows."""
    ways: dict[str, list[tuple[str, str]]] = {start: []}
    front = [start]
    while front:
        following = []
        for at in front:
            for pair in sorted(p for p in arrows if p[0] == at and p[1] not in ways):
                ways[pair[1]] = [*ways[at], pair]
                following.append(pair[1])
        front = following
    return ways.get(end, [])


def reduced(arrows: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the arrows without the ones that a longer way implies."""
    return {p for p in arrows if not _way(arrows - {p}, *p)}


def ranks(names: Iterable[str], arrows: set[tuple[str, str]]) -> dict[str, int]:
    """Count the layers below each name."""
    floors: dict[str, int] = {}

    def rank(name: str) -> int:
        if name not in floors:
            floors[name] = 1 + max((rank(b) for a, b in arrows if a == name), default=-1)
        return floors[name]

    for name in sorted(names):
        rank(name)
    return floors


class _Group:
    """A group's rooms in columns; a room is left of the rooms that it imports."""

    def __init__(self, name: str, rooms: set[str], arrows: Arrows) -> None:
        self.name = name
        arrows_left, self.against = settled(arrows)
        self.arrows = reduced(arrows_left)
        self.rooms = {r: f"{name}: its own files" if r == "." else r for r in rooms}
        if name == BASE:  # one box: its files import one another at will
            self.arrows, self.against = set(), set()
        if name == BASE or len(rooms) == 1:
            self.rooms = {}
        levels = ranks(self.rooms, arrows_left)
        self.columns = [
            sorted(r for r in self.rooms if levels[r] == k)
            for k in range(max(levels.values(), default=-1), -1, -1)
        ]
        for column, right in reversed([*zip(self.columns, self.columns[1:], strict=False)]):
            order = {r: k for k, r in enumerate(right)}
            means = {r: [order[b] for a, b in self.arrows if a == r and b in order] for r in column}
            column.sort(key=lambda r: math.fsum(means[r]) / len(means[r]) if means[r] else 99)
        self.widths = {r: width_of(text) + 20 for r, text in self.rooms.items()}
        wide = [max(self.widths[r] for r in column) + GAP for column in self.columns]
        self.width = max(math.fsum(wide) - GAP + 28, width_of(name) + 40)
        tallest = max((len(column) for column in self.columns), default=0)
        self.height = 34.0 + (STEP * tallest + 2 if tallest else 0)
        self.x = self.y = 0.0

    def places(self) -> dict[str, tuple[float, float]]:
        """Return the position at which each room's box begins."""
        places, x = {}, self.x + 14
        inside = self.height - 36
        for column in self.columns:
            wide = max(self.widths[r] for r in column)
            for k, room in enumerate(column):
                middle = self.y + 30 + inside * (k + 0.5) / len(column)
                places[room] = (x + (wide - self.widths[room]) / 2, middle - BOX / 2)
            x += wide + GAP
        return places

    def draw(self, canvas: Canvas, note: str = "") -> None:
        """The group's box, its rooms, and the arrows between them."""
        canvas.box(self.x, self.y, self.width, self.height, fill="empty", rim="blue", radius=8)
        canvas.text(self.x + 12, self.y + 22, self.name, bold=True, colour="blue")
        if note:
            canvas.text(self.x + 24 + width_of(self.name), self.y + 22, note, size="small",
                        colour="dim")  # fmt: skip
        places = self.places()
        column = {room: k for k, rooms in enumerate(self.columns) for room in rooms}
        for pairs in (self.arrows, self.against):
            for a, b in sorted(pairs):
                (xa, ya), (xb, yb) = places[a], places[b]
                ends = [(xa + self.widths[a], ya + BOX / 2), (xb, yb + BOX / 2)]
                curved = "sideways"
                if column[b] > column[a] + 1:  # below or above what stands between
                    ends[0] = (xa + self.widths[a] / 2, ya + BOX * (yb >= ya))
                    curved = "corner"
                if against := pairs is self.against:  # to the left, below the other arrow
                    ends = [(xa, ya + BOX - 5), (xb + self.widths[b], yb + BOX - 5)]
                canvas.arrow(ends, curved=curved, dashed=against)
        for room, (x, y) in places.items():
            canvas.labelled(x, y, self.widths[room], BOX, [self.rooms[room]])


GAP, BOX, STEP, WIDTH = 44, 28, 42, 1180


def rooms() -> Canvas:
    """Draw all rooms; each group is above the groups that it imports."""
    outer, inner, members = arrows_between()
    arrows_left, against = settled(outer)
    arrows, levels = reduced(arrows_left), ranks(members, arrows_left)
    apart = [g for g in members if not any(g in pair for pair in arrows_left if pair[1] != BASE)]
    for group in set(apart) - {BASE}:  # it imports when it is called: on top
        levels[group] = max(levels.values())
    groups = {g: _Group(g, members[g], inner.get(g, Counter())) for g in members}
    base = ", ".join(sorted(members[BASE]))
    groups[BASE].width += width_of(base, "small")
    y = 74.0
    for level in range(max(levels.values()), -1, -1):
        row = [groups[g] for g in sorted(groups) if levels[g] == level]
        spare = WIDTH - math.fsum(g.width for g in row)
        x, tall = 0.0, max(g.height for g in row)
        for box in row:
            x += spare / (len(row) + 1)
            box.x, box.y = x, y + (tall - box.height) / 2
            x += box.width
        y += tall + 44
    canvas = Canvas(WIDTH, y - 24, "The rooms of flowvm in layers, and what imports what")
    canvas.text(20, 32, "Rooms, and what imports what", size="title", bold=True)
    note = (
        "Imports point down and to the right; those that a longer way says are left out. Dashed: "
        "the rarer way of two. cpu, cuda and parts are in their room. Not shown: late imports."
    )
    canvas.text(20, 52, note, size="small", colour="dim", room=WIDTH - 30)
    above = max(groups, key=lambda g: (groups[g].y, g != BASE) if g != BASE else (0.0, False))
    for pairs in (arrows, against):
        for a, b in sorted(pairs):
            one, two = groups[a], groups[b]
            if pairs is against:
                xa, xb = one.x + one.width / 2 + 40, two.x + two.width / 2 + 40
                ends = [(xa, one.y), (xb, two.y + two.height)]
            elif b != BASE or a == above:  # that everything stands on it, one arrow says
                ends = _way_down(one, two, list(groups.values()))
            else:
                continue
            curved = "upright" if len(ends) == 2 else ""
            canvas.arrow(ends, curved=curved, dashed=pairs is against)
    for name, box in groups.items():
        box.draw(canvas, base if name == BASE else "")
    return canvas


def _way_down(one: _Group, two: _Group, groups: list[_Group]) -> list[tuple[float, float]]:
    """Return the points of an arrow down: straight past the groups between, or else around."""
    top, bottom = one.y + one.height, two.y
    between = [g for g in groups if one.y + one.height < g.y and g.y + g.height < two.y]
    middles = one.x + one.width / 2, two.x + two.width / 2
    low, high = max(one.x, two.x) + 12, min(one.x + one.width, two.x + two.width) - 12
    clear = [
        x for x in range(int(low), int(high))
        if all(not g.x - 10 < x < g.x + g.width + 10 for g in between)
    ]  # fmt: skip
    if not between:
        return [(middles[0], top), (middles[1], bottom)]
    if clear:
        near = min(clear, key=lambda x: abs(x - middles[0]))
        return [(near, top), (near, bottom)]
    sides = min(g.x for g in between) - 28, max(g.x + g.width for g in between) + 28
    side = min(sides, key=lambda x: abs(x - middles[0]) + abs(x - middles[1]))
    start = middles[0] - 14
    end = side if two.x + 12 < side < two.x + two.width - 12 else middles[1]
    lanes = min(g.y for g in between) - 30, bottom - 14  # in the gaps between rows
    return [(start, top), (start, lanes[0]), (side, lanes[0]), (side, lanes[1]), (end, lanes[1]),
            (end, bottom)]  # fmt: skip
