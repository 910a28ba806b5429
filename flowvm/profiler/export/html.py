"""One HTML file that shows a run without anything else: no server, no network, no library.

The page is made of the files in `assets`; the run's columns go in as base64 of little-endian
arrays that were deflated together, everything else as JSON.  Only numbers and JSON enter the
page's source, and its program puts text on the page as text, so no name in a run can become markup.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import zlib
from collections.abc import Sequence
from importlib import resources
from typing import Any, Protocol

import numpy as np

from flowvm.files.printable import printable_tree
from flowvm.meta.arrays import Array
from flowvm.profiler.analysis.tables import births
from flowvm.profiler.analysis.waits import by_device
from flowvm.profiler.export.lanes import ALL_STATES, lanes_of, ranks_of
from flowvm.profiler.export.svg import svg_of
from flowvm.profiler.export.time_machine import rewinding
from flowvm.profiler.grammar import CAUSES, Screen, counted, ms
from flowvm.profiler.run.devices import TIMED, said_of
from flowvm.profiler.run.run import Run
from flowvm.profiler.run.spaces import spaces_of
from flowvm.profiler.views.diff import Diff
from flowvm.profiler.views.flame import BY, Flame
from flowvm.profiler.views.memory.holders import NEVER
from flowvm.profiler.views.memory.memory import MemoryView
from flowvm.profiler.views.memory.memory_parts import PARTS, course_of, in_words
from flowvm.profiler.views.plan import PlanView
from flowvm.profiler.views.roofline import roofline_plot
from flowvm.profiler.views.summary.facts import PartLike, ProfileLike
from flowvm.profiler.views.summary.summary import Summary
from flowvm.profiler.views.summary.verdict import WORDS
from flowvm.vm.machine.words import KIND

KINDS = {"f": "<f8", "i": "<i4", "b": "u1"}
# the page's program, in the order that its parts need each other
SCRIPTS = (
    "columns", "holders", "moments", "boxes", "page", "verdict", "timeline", "drawing", "dag",
    "machine", "detail", "flame", "memory", "plan", "tables", "beside", "begin",
)  # fmt: skip
LEVEL = 6  # of deflate
MOST_LINES = 400  # rows of a table
MOST_DRAWN = 300  # tasks or actors
MOMENTS = 600  # of a memory that are drawn


class PagePart(PartLike, Protocol):
    """A part of a profile, as far as the page goes."""

    @property
    def profile(self) -> PageProfile:
        """The profile of this process alone."""


class PageProfile(ProfileLike, Protocol):
    """A profile, as far as the page goes."""

    @property
    def parts(self) -> Sequence[PagePart]:
        """The processes of the run."""

    def summary(self, by: str = ..., sort: str = ...) -> Summary:
        """Return the profile's first screen."""

    def memory(self, device: str | None = ...) -> MemoryView:
        """Return the bytes of one memory over time."""

    def flame(self, by: str = ...) -> Flame:
        """Return a flame graph by time or bytes."""

    def plan(self, name: str | None = ...) -> PlanView:
        """Return a view of a graph's replays."""

    def diff(self, after: Any, by: str = ...) -> Diff:
        """Compare with another profile of the same class."""


def html(profile: PageProfile, against: PageProfile | None = None) -> str:
    """The page of a Profile, beside that of an earlier one where `against` is given."""
    page = _Page(profile, against)
    data = json.dumps(printable_tree(page.data() | page.packed()), separators=(",", ":"))
    # "</script>" or "<!--" inside a string would end or change the element that holds the data
    data = data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    program = "".join(_asset(f"{name}.js") for name in SCRIPTS)
    return _filled("report.html", CSS=_asset("report.css"), JS=program, DATA=data)


def live_html() -> str:
    """The page around it of a process that runs; `flowvm.profiler.front.server` answers it."""
    return _filled("live.html", CSS=_asset("report.css"), JS=_asset("live.js"))


def _filled(name: str, **parts: str) -> str:
    page = _asset(name)
    for mark, text in parts.items():
        before, after = page.split(f"/*{mark}*/", 1)
        page = before + text + after
    return page


def _asset(name: str) -> str:
    return (resources.files("flowvm.profiler.export") / "assets" / name).read_text("utf-8")


def _staged(title: str, rows: list[list[Any]], edges: list[list[int]]) -> str:
    """Draw the nodes of a graph behind a pass; a lane is a phase of training."""
    nodes = [
        (f"n{k}", f"{k} {op}\n{result} {line}", phase or "forward", bool(new))
        for k, (op, result, line, phase, new) in enumerate(rows)
    ]
    links = [(f"n{a}", f"n{b}", "const", "data") for a, b in edges]
    return svg_of(nodes, links, title.partition(":")[0], "made by this pass")


def _bound(profile: ProfileLike, summaries: list[Summary]) -> list[tuple[str, float, str]]:
    """List the owners of the path: a word, its share, and the cause whose colour it has; for one
    process as finely as its summary, for several by cause.
    """
    if len(summaries) > 1:
        return [(cause, share, cause) for cause, share in profile.bound.items()]
    return [
        (WORDS[part.cause][0], part.share, part.cause if part.cause in CAUSES else "host")
        for part in summaries[0].parts
    ]


class _Page:
    """The data of the page's program."""

    def __init__(self, profile: PageProfile, against: PageProfile | None = None) -> None:
        self.profile = profile
        self.against = against
        self.run: Run = profile.run
        self.columns: dict[str, Array] = {}
        self.kinds: dict[str, str] = {}

    def put(self, name: str, kind: str, values: object) -> None:
        """A column, of kind f (float64), i (int32) or b (bytes)."""
        array = np.ascontiguousarray(values, KINDS[kind])
        self.columns[name] = array
        self.kinds[name] = kind

    def packed(self) -> dict[str, object]:
        """The columns as one text, behind each other as `counts` says.  First bytes of a column's
        numbers stand together, then second ones, and so on: neighbours are alike, which packs well.
        """
        parts = [
            np.ascontiguousarray(column.view(np.uint8).reshape(-1, column.itemsize).T).tobytes()
            for column in self.columns.values()
        ]
        packed = zlib.compress(b"".join(parts), LEVEL)
        return {
            "packed": base64.b64encode(packed).decode(),
            "counts": {name: len(column) for name, column in self.columns.items()},
        }

    def whole(self, name: str, values: object) -> None:
        """A column of whole numbers, as int32 where they are small enough."""
        array = np.asarray(values)
        small = not array.size or max(abs(int(array.min())), abs(int(array.max()))) < 1 << 31
        self.put(name, "i" if small else "f", array)

    def since(self, nanoseconds: Array) -> Array:
        """Times from the start of the run."""
        since: Array = nanoseconds - self.run.begun
        return since

    def data(self) -> dict[str, object]:
        run, profile = self.run, self.profile
        self._instructions()
        lanes = lanes_of(self)
        parts = profile.parts
        summaries = [part.profile.summary() for part in parts]
        named = [f"{part.name}: ".removeprefix(": ") for part in parts]
        tables = {
            by: [dataclasses.asdict(row) for row in profile.table(by)[:MOST_LINES]]
            for by in ("op", "line", *(["module"] if np.any(run.module) else []), "stream")
        }
        return {
            "title": f"{counted(len(run), 'instruction')} · wall {ms(run.wall)} ms · "
            f"recorder level {run.info.get('level', '?')}",
            "wall": max(1, run.wall),
            "floor": "; ".join(
                f"{name}{one.fastest}" for name, one in zip(named, summaries, strict=True)
            ),
            "bound": _bound(profile, summaries),
            "facts": [
                [fact, f"{name}{text}"]
                for name, one in zip(named, summaries, strict=True)
                for fact, text in one.facts
                if text
            ],
            "path": sum(s.end - s.begin for s in profile.observed),
            "advice": [
                f"{name}{line}"
                for name, one in zip(named, summaries, strict=True)
                for line in one.advice
            ],
            "wrong": [
                f"{name}{line}"
                for name, one in zip(named, summaries, strict=True)
                for line in Screen(one.wrong(MOST_LINES)).plain().splitlines()
            ],
            "parts": [
                {"name": p.name, "first": p.first, "last": p.first + len(p.profile)} for p in parts
            ],
            "roofline": self._roofline(),
            "ranks": ranks_of(self) if len(parts) > 1 or parts[0].name else None,
            "tables": tables,
            "names": run.names,
            "lines": run.lines,
            "streams": run.streams,
            "order": by_device(run, list(range(len(run.streams)))),
            "modules": run.modules,
            "sources": run.info.get("sources", {}),
            "states": ALL_STATES,
            "meaning": {name: meaning for name, (_, _, meaning) in CAUSES.items()},
            "lanes": lanes,
            "devices": said_of(run),
            "purposes": [[name, colour] for _, colour, name in PARTS],
            "memories": [
                self._memory(k, part.profile, space)
                for k, (part, space) in enumerate(
                    (part, space) for part in parts for space in spaces_of(part.profile.run)
                )
            ],
            "timed": [TIMED[k] for k in sorted(TIMED)],
            "plans": self._plans(),
            "machine": rewinding(self),
            "flames": self._flames(),
            "beside": self._beside(tables),
            "spans": [[m[0], m[4], m[5]] for m in run.marks if m[5] > m[4]],
            "kinds": self.kinds,
        }

    def _roofline(self) -> str:
        """Return the roofline plot as a picture, "" where nothing has a place in it."""
        plot = roofline_plot(self.profile)
        return plot.svg() if plot.drawn else ""

    def _memory(self, number: int, profile: PageProfile, space: str) -> dict[str, object]:
        """Return the uses of a memory over time, in as many columns as a screen has, and its
        holders at any moment; `profile` is of the process that it belongs to.
        """
        run, data = self.run, self.profile.memory_of(space)
        course = course_of(run, data, births(run, space), space, MOMENTS)
        parts = np.array(course.parts, np.int64).reshape(-1, len(PARTS))
        for k, (_, _, name) in enumerate(PARTS):
            self.whole(f"memory{number}.{name}", parts[:, k])
        own = self.profile.holdings_of(space)
        for name in ("kind", "label", "keeper", "size"):
            self.whole(f"holds{number}.{name}", getattr(own, name))
        for name in ("born", "freed", "died"):
            times = getattr(own, name)
            self.put(
                f"holds{number}.{name}", "f", np.where(times < NEVER, self.since(times), np.inf)
            )
        view = profile.memory(space)
        return {
            "space": space,
            "peak": data.peak,
            "peak_time": max(0, data.peak_time - run.begun),
            "said": in_words(view),
            "base": data.base,
            "at_peak": course.at_peak,
            "labels": own.labels,
            "keepers": own.keepers,
            "before": own.before,
            "advice": view.advice,
        }

    def _beside(self, tables: dict[str, Any]) -> dict[str, object] | None:
        """Return the changes since the earlier run, for each of the tables."""
        if self.against is None:
            return None
        diffs: dict[str, Any] = {by: self.against.diff(self.profile, by).to_dict() for by in tables}
        for one in diffs.values():
            del one["changes"][MOST_LINES:]
        return diffs

    def _flames(self) -> dict[str, object]:
        """Return the data of `p.flame`: each frame's name once, the stacks, the time of each."""
        names: dict[str, int] = {}
        flames: dict[str, object] = {}
        for by in BY:
            stacks = self.profile.flame(by).stacks
            flames[by] = [
                [[names.setdefault(name, len(names)) for name in stack], weight]
                for stack, weight in stacks
            ]
        return {"names": list(names), **flames}

    def _instructions(self) -> None:
        run, profile = self.run, self.profile
        self.whole("seq", run.seq)
        whole = ("op", "line", "stream", "status", "source", "target", "offsets", "tensor")
        for name in whole:
            self.put(name, "i", getattr(run, name))
        for name in ("module", "forward"):
            self.put(name, "i", getattr(run, name))
        self.whole("opened", np.where(run.clock > 0, self.since(run.opened), -1))
        self.put("clock", "b", run.clock)
        for name in ("dep", "queue", "sched"):
            self.whole(name, getattr(profile.waits, name))
        self.put("hazard", "b", run.hazard)
        self.put("access", "b", run.access[run.operand] & 3)
        self.put("opaccess", "b", run.access & 3)
        self.put("producer", "i", profile.order.producer)
        self.put("release", "b", np.isin(run.kind, (KIND.RELEASE, KIND.BARRIER)))
        critical = np.zeros(len(run), np.uint8)
        critical[[s.instruction for s in profile.observed if s.cause == "run"]] = 1
        self.put("observed", "b", critical)
        longest = np.zeros(len(run), np.uint8)
        longest[profile.floor.path] = 1
        self.put("longest", "b", longest)

    def _plans(self) -> list[dict[str, object]]:
        """List the tasks that each graph's launches ran; a device's tasks have no times."""
        run = self.run
        rows: dict[str, dict[int, list[int]]] = {}
        for k in range(len(run.tasks.launch)):
            name = run.names[run.op[run.tasks.launch[k]]]
            rows.setdefault(name, {}).setdefault(int(run.tasks.number[k]), []).append(k)
        for name in run.info.get("plans", {}):
            if name in run.names and run.clock[run.op == run.names.index(name)].any():
                rows.setdefault(name, {})
        return [self._plan(name, tasks) for name, tasks in rows.items()]

    def _plan(self, name: str, tasks: dict[int, list[int]]) -> dict[str, object]:
        run = self.run
        rows = []
        for number, own in sorted(tasks.items()):
            times = run.tasks.times[own]
            rows.append({
                "task": number, "op": run.names[run.tasks.op[own[0]]], "count": len(own),
                "time": int((times[:, 1] - times[:, 0]).sum()),
                "module": run.modules[run.tasks.module[own[0]]],
                "stream": run.streams[run.tasks.stream[own[0]]],
                "line": run.lines[run.tasks.line[own[0]]],
            })  # fmt: skip
        about: dict[str, object] = {"actors": [], "notes": []}
        launches = np.unique(run.tasks.launch[[k for own in tasks.values() for k in own]])
        if name in run.info.get("plans", {}):
            view = self.profile.plan(name)
            if not rows:
                launches = np.flatnonzero(run.op == run.names.index(name))
                rows = [
                    {"task": t.number, "op": t.op, "count": len(launches), "time": 0,
                     "module": t.module, "stream": t.stream, "line": t.line}
                    for t in view.tasks
                ]  # fmt: skip
            known = view.to_dict()
            about = {
                key: known[key] for key in ("actors", "notes", "regst_num", "registers", "chunk")
            }
            nodes, links = view.drawn()
            small = len(nodes) <= MOST_DRAWN
            about["drawing"] = svg_of(nodes, links, name, "longest") if small else ""
        stages = run.info.get("stages", {}).get(name, ())
        about["stages"] = [[title, _staged(title, *rest)] for title, *rest in stages]
        return {
            "name": name,
            "launches": len(launches),
            "tasks": rows,
            "time": sum(r["time"] for r in rows),
            "passes": run.info.get("passes", {}).get(name),
            **about,
        }
