"""Modules as a tree, each with what all below it took: time, operations, bytes, parameters.

`p.tree()` is of a recorded run; `flow.summary(model, x)` runs a model once and knows parameters and
shapes, too.  Of what backward ran a module has its part, by the forward call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from flowvm.profiler import markup
from flowvm.profiler.analysis.tables import Row
from flowvm.profiler.grammar import Column, Screen, Span, View, ms, percent, size, table
from flowvm.profiler.run.roof import of_run
from flowvm.profiler.terminal import WIDE
from flowvm.profiler.views.summary.facts import ProfileLike

UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


class Known(NamedTuple):
    """A model's facts about a module: its class, the shape of its result, its own parameters, and
    the path by which runs know it, as `Net(2).fc` where another Net is alive.
    """

    kind: str
    shape: str
    parameters: int
    recorded: str


@dataclass(frozen=True)
class Branch:
    """A module at `path`, `depth` below the root.  `run` (ns), `flops` (of products and
    convolutions) and `nbytes` (read and written) are sums over it and all below; `parameters` too,
    where they are known; `roof` is the share of the roofline, 0 where that was not measured.
    """

    path: str
    depth: int
    kind: str
    shape: str
    parameters: int
    run: int
    flops: int
    nbytes: int
    roof: float


@dataclass(frozen=True, repr=False)
class ModuleTree(View):
    """See the module.  `total` is ns of all that ran, `outside` of what belongs to no module."""

    branches: tuple[Branch, ...]
    total: int
    outside: int

    def screen(self, width: int) -> Screen:
        """See View."""
        if not self.branches:
            return Screen([[(" no module ran in this run, or at level 1 only", "head")]])
        named = any(b.kind for b in self.branches)
        measured = any(b.roof for b in self.branches)
        rows: list[list[str | Span]] = [
            [
                ("  " * b.depth + b.path.rpartition(".")[2], "id" if not b.depth else ""),
                b.kind, b.shape, _many(b.parameters),
                ms(b.run) if b.run else "-",
                percent(b.run / max(1, self.total)) if b.run else "-", _many(b.flops),
                size(b.nbytes) if b.nbytes else "-",
                percent(b.roof) if b.roof else "-",
            ]
            for b in self.branches
        ]  # fmt: skip
        columns = [
            Column("module", grow=True), Column("class", drop=5), Column("gives", drop=4),
            Column("params", right=True, drop=1), Column("ms", right=True),
            Column("share", right=True, drop=3), Column("FLOP", right=True),
            Column("bytes", right=True, drop=2), Column("roof", right=True, drop=6),
        ]  # fmt: skip
        shown = [k for k in range(len(columns)) if k not in (1, 2, 3) or named]
        shown = [k for k in shown if k != 8 or measured]
        screen = Screen(
            table([columns[k] for k in shown], [[row[k] for k in shown] for row in rows], width)
        )
        if self.outside:
            screen.add((f" outside of modules {ms(self.outside)} ms", "head"))
        return screen.cut(width)

    def _repr_html_(self) -> str:
        if not self.branches:
            return super()._repr_html_()
        title, *rows = map(markup.Node, self.screen(WIDE).rows())
        count = len(self.branches)
        depths = (b.depth for b in self.branches)
        modules = markup.by_depth(zip(depths, rows[:count], strict=True))
        return markup.tree([title, *modules, *rows[count:]], indent=False)


def _many(count: float) -> str:
    for unit, letter in UNITS:
        if count >= unit:
            return f"{count / unit:.3g} {letter}"
    return f"{count:.0f}" if count else "-"


def tree(profile: ProfileLike, known: Mapping[str, Known] | None = None) -> ModuleTree:
    """The modules of a Profile; `known` what a model says of them, by the path in that model."""
    roof, known = of_run(profile.run), known or {}
    own = {k.recorded: path for path, k in known.items()}
    rows: dict[str, Row] = {own.get(r.name, r.name): r for r in profile.table("module")}
    outside = rows.pop("", None)
    paths: dict[str, list[Row]] = {path: [] for path in known}
    for name, row in rows.items():
        parts = name.split(".")
        for k in range(len(parts)):
            paths.setdefault(".".join(parts[: k + 1]), []).append(row)
    # a run has modules in the order of their times, a model in that of their definition
    order = sorted(paths, key=lambda p: _place(p, list(known))) if known else sorted(paths)
    branches = []
    for path in order:
        below = paths[path]
        run, flops, nbytes = (sum(getattr(r, c) for r in below) for c in ("run", "flops", "nbytes"))
        kind, shape, *_ = known.get(path, Known("", "", 0, ""))
        parameters = sum(k.parameters for p, k in known.items() if f"{p}.".startswith(f"{path}."))
        share = roof.share(nbytes, flops, run) if roof is not None else 0.0
        branches.append(
            Branch(path, path.count("."), kind, shape, parameters, run, flops, nbytes, share)
        )
    total = sum(r.run for r in rows.values()) + (outside.run if outside else 0)
    return ModuleTree(tuple(branches), total, outside.run if outside else 0)


def _place(path: str, order: list[str]) -> int:
    return order.index(path) if path in order else len(order)
