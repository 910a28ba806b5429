"""Recording a piece of code, and what one may ask of the record."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flowvm.config import config, record_count
from flowvm.errors import ArgumentError
from flowvm.guards.regions import Switched
from flowvm.loading.lazy import lazy
from flowvm.meta.arrays import Array
from flowvm.profiler.analysis import host_time, paths, tables
from flowvm.profiler.analysis.across import Tied
from flowvm.profiler.analysis.census import held_of, purposes_of
from flowvm.profiler.analysis.host_time import Spent
from flowvm.profiler.analysis.moments import Moments
from flowvm.profiler.analysis.paths import Floor, Segment, WhatIf
from flowvm.profiler.analysis.tables import Memory, Row
from flowvm.profiler.analysis.waits import Lane, Order, Waits, lanes, order, waits
from flowvm.profiler.grammar import Drawn, Link, Node
from flowvm.profiler.run.collect import collect
from flowvm.profiler.run.run import Run
from flowvm.profiler.run.samples import BEFORE
from flowvm.profiler.run.spaces import spaces_of
from flowvm.profiler.terminal import WIDE
from flowvm.profiler.views.memory.holders import Holdings, holdings
from flowvm.profiler.views.summary.summary import SORTS, Summary, summarize
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import CTL, KIND, REC
from flowvm.vm.watch import cores
from flowvm.vm.watch.archive import Keeping
from flowvm.vm.watch.flight import Snapshot
from flowvm.vm.watch.spaces import HOST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowvm.eager.tensor import Tensor
    from flowvm.meta.device import Device
    from flowvm.profiler import export as exporting
    from flowvm.profiler.analysis import verifier
    from flowvm.profiler.export import tabular
    from flowvm.profiler.front import widget as widgets
    from flowvm.profiler.front.widget import Widget
    from flowvm.profiler.views import (
        critical,
        dag,
        dag_groups,
        diff,
        flame,
        instruction,
        moment,
        query,
        replays,
        roofline,
        timeline,
        tree,
        why,
    )
    from flowvm.profiler.views import edges as edging
    from flowvm.profiler.views import sql as sqling
    from flowvm.profiler.views.critical import Critical
    from flowvm.profiler.views.dag import Dag
    from flowvm.profiler.views.dag_groups import Collapsed
    from flowvm.profiler.views.diff import Diff
    from flowvm.profiler.views.flame import Flame
    from flowvm.profiler.views.instruction import Instrs
    from flowvm.profiler.views.memory import memory
    from flowvm.profiler.views.memory.memory import MemoryView
    from flowvm.profiler.views.moment import Moment
    from flowvm.profiler.views.plan import PlanView
    from flowvm.profiler.views.query import Query
    from flowvm.profiler.views.roofline import RooflinePlot
    from flowvm.profiler.views.sql import Rows
    from flowvm.profiler.views.timeline import Timeline
    from flowvm.profiler.views.tree import ModuleTree
    from flowvm.profiler.views.why import Why
    from flowvm.vm.watch.verify import Verified
else:
    exporting = lazy("flowvm.profiler.export")
    widgets = lazy("flowvm.profiler.front.widget")
    tabular = lazy("flowvm.profiler.export.tabular")
    verifier = lazy("flowvm.profiler.analysis.verifier")
    dag_groups = lazy("flowvm.profiler.views.dag_groups")
    critical = lazy("flowvm.profiler.views.critical")
    dag = lazy("flowvm.profiler.views.dag")
    diff = lazy("flowvm.profiler.views.diff")
    flame = lazy("flowvm.profiler.views.flame")
    instruction = lazy("flowvm.profiler.views.instruction")
    memory = lazy("flowvm.profiler.views.memory.memory")
    moment = lazy("flowvm.profiler.views.moment")
    query = lazy("flowvm.profiler.views.query")
    replays = lazy("flowvm.profiler.views.replays")
    roofline = lazy("flowvm.profiler.views.roofline")
    timeline = lazy("flowvm.profiler.views.timeline")
    tree = lazy("flowvm.profiler.views.tree")
    edging = lazy("flowvm.profiler.views.edges")
    sqling = lazy("flowvm.profiler.views.sql")
    why = lazy("flowvm.profiler.views.why")

WHOLE = ("lost", "raised")  # of `info`: what is said of a whole run and not of a part


def _drawing(ending: str, nodes: list[Node], links: list[Link]) -> str:
    """The file of a view's graph."""
    return exporting.WRITERS[ending](nodes, links)


Drawn.writers |= {ending: partial(_drawing, ending) for ending in (".svg", ".dot", ".mmd")}


class Part(NamedTuple):
    """One process in the run of a Profile: its instructions are those from `first` on."""

    name: str
    profile: Profile
    first: int


class Profile:
    """A recording of instructions, and all that follows from it.

    A value: it pickles, and needs no VM.  Everything is computed when first asked for.

    >>> x = flow.ones(2) + 1
    >>> p = flow.profiler.last()
    >>> isinstance(p, flow.profiler.Profile), len(p) > 0
    (True, True)
    """

    def __init__(self, run: Run | None = None) -> None:
        self.run = run or Run()
        self._number = 0  # the moment that `step` goes on from

    @property
    def parts(self) -> list[Part]:
        """The processes whose run it is: this one, or each rank in its turn."""
        return [Part("", self, 0)]

    @property
    def tied(self) -> Tied | None:
        """The collectives that ranks made together; None of one process."""
        return None

    @cached_property
    def order(self) -> Order:
        """The instructions that stood in front of each instruction."""
        return order(self.run)

    @cached_property
    def waits(self) -> Waits:
        """The waits of each instruction between its issue and its start."""
        return waits(self.run, self.order)

    @cached_property
    def lanes(self) -> list[Lane]:
        """The state of each stream at every moment."""
        return lanes(self.run, self.order)

    @cached_property
    def moments(self) -> Moments:
        """The events of all instructions, in the order of time."""
        return Moments(self.run)

    @cached_property
    def observed(self) -> list[Segment]:
        """The path that sums to the wall time."""
        return paths.observed(self.run, self.order)

    @cached_property
    def host(self) -> list[Spent]:
        """The host's work on that path, by line, most first: "python" (your own), "asleep",
        "loader", "capture", "import", "flowvm" (its dispatch); from level 2 on, else empty.
        """
        return host_time.spent(self.run, self.observed)

    @cached_property
    def floor(self) -> Floor:
        """The longest path through the data dependences."""
        return paths.floor(self.run)

    def memory_of(self, space: str = HOST) -> Memory:
        """Bytes over time of the host's memory or a device's, and who had them at the peak."""
        if space not in self._memories:
            self._memories[space] = tables.memory(self.run, space)
        return self._memories[space]

    @cached_property
    def _memories(self) -> dict[str, Memory]:
        return {}

    def holdings_of(self, space: str = HOST) -> Holdings:
        """Return the holders of a memory, at any moment."""
        if space not in self._holdings:
            known = tables.births(self.run, space)
            self._holdings[space] = holdings(self.run, self.memory_of(space), known, space)
        return self._holdings[space]

    @cached_property
    def _holdings(self) -> dict[str, Holdings]:
        return {}

    @property
    def bound(self) -> dict[str, float]:
        """Shares of the wall time by cause on the observed path, largest first; they sum to 1."""
        total = paths.totals(self.observed)
        wall = max(1, self.run.wall)
        return {c: t / wall for c, t in sorted(total.items(), key=lambda item: -item[1])}

    @property
    def busy(self) -> dict[str, float]:
        """The share of the wall time in which each stream ran something."""
        wall = max(1, self.run.wall)
        return {self.run.streams[lane.stream]: lane.total["run"] / wall for lane in self.lanes}

    @property
    def recording(self) -> float | None:
        """The share of the wall time that recording took at most; None if it is not known."""
        each = self.run.info.get("recording")
        if each is None:
            return None
        took = float(each[0] * len(self.run) + each[1] * len(self.run.tasks.launch))
        return took / max(1, self.run.wall)

    @property
    def overhead(self) -> dict[str, float]:
        """Nanoseconds that instructions waited for the VM alone: `median`, `p99`, `total`."""
        return tables.overhead(self.run, self.waits)

    def part(self, span: str, number: int = -1) -> Profile:
        """One of the spans of that name alone, by default the last.  ArgumentError: no such.

        It lasts from its beginning to the end of the last instruction that was issued inside, but
        for releases, for which nobody waits.
        """
        run = self.run
        named = [m for m in run.marks if m[0] == span and m[1] >= run.begun]
        if not -len(named) <= number < len(named):
            others = ", ".join(sorted({repr(m[0]) for m in run.marks})) or "none"
            raise ArgumentError(
                f"span {number} of {span!r}: there are {len(named)} in this run; names are {others}"
            )
        _, begun, until, _, first, last = named[number]
        ended, kind = run.time("ended")[first:last], run.kind[first:last]
        over = int(ended[kind != KIND.RELEASE].max(initial=until))
        part = run.part(first, last, begun, over)
        part.info = {k: v for k, v in run.info.items() if k not in WHOLE} | {"overwritten": 0}
        settled = max(over, int(ended.max(initial=over)))  # what it released is released
        part.info["live"] = dict(run.info.get("live", {}))
        for space in spaces_of(run):
            memory = self.memory_of(space)
            level = int(np.searchsorted(memory.time, settled, side="right")) - 1
            if level >= 0:
                part.info["live"][space] = int(memory.nbytes[level])
        return Profile(part)

    def table(self, by: str = "op") -> list[Row]:
        """Sums by "op", "line", "module" or "stream"."""
        return tables.table(self.run, self.waits, self.lanes, self.observed, by)

    def tree(self) -> ModuleTree:
        """The modules that ran, from level 2 on, each with the time, operations and bytes of all
        below it; `flow.summary(model, x)` has a model's shapes and parameters, too.
        """
        return tree.tree(self)

    def summary(self, by: str = "", sort: str = "path") -> Summary:
        """The screen that `print(p)` shows, with a table by "op", "line", "module" or "stream", by
        default by "op", or by "line" where it is Python that took the time; sorted by "path",
        "run", "host", "count", "dep", "sched", "gigabytes", "gigaflops", "roof",
        "name" or "hottest".  ArgumentError: neither.
        """
        if sort not in SORTS:
            raise ArgumentError(f"sort={sort!r}: a summary is sorted by one of {', '.join(SORTS)}")
        return summarize(self, by, sort)

    def what_if(self, op: str | Callable[[str], bool], factor: float = 0.0) -> WhatIf:
        """The floor, in ns, if an operator took `factor` times as long; it prints as a sentence.
        ArgumentError: no such operator.
        """
        if isinstance(op, str) and op not in self.run.names:
            raise ArgumentError(
                f"no operator {op!r} in this run; there are {', '.join(sorted(self.run.names))}"
            )
        chosen = op if callable(op) else op.__eq__
        what = op if isinstance(op, str) else "what was chosen"
        then = paths.what_if(self.run, chosen, factor)
        return paths.what_if_text(self.run, what, factor, self.floor.length, then)

    def verify(self) -> Verified:
        """Check that no instruction started before what it had to wait for had ended.

        ScheduleError names the first that did.
        """
        return verifier.verified(self.run, self.order)

    def graph(
        self,
        around: int | None = None,
        depth: int = 2,
        releases: bool = False,
        limit: int | None = 60,
        collapse: str | None = None,
        path: str = "observed",
    ) -> Dag | Collapsed:
        """The instruction DAG as lanes.

        around     the number of an instruction: only what is at most `depth` edges from it
        releases   ReleaseTensor instructions too
        limit      rows at most, None for all
        collapse   "line" or "module": one row for all instructions of a line, or of a module (at
                   level 1, and outside of modules: of the function that the line is in)
        path       which is marked as critical: "observed", what the run waited for, or "longest",
                   the longest chain of data, which is the floor
        `.save("x.svg")` writes what it shows; so do .dot and .mmd.
        ArgumentError: no such instruction, or another `collapse` or `path`.
        """
        if collapse is not None:
            return dag_groups.collapsed(self, collapse, around, depth, limit, path)
        return dag.dag(self, around, depth, releases, limit, path)

    def to_dict(self) -> dict[str, Any]:
        """The summary as plain values, for JSON."""
        return self.summary().to_dict()

    def why(self, what: int | str | Tensor, depth: int = 3) -> Why:
        """Explain the start of an instruction: its waits, the waits of its producers, and the
        instructions that wait for it.

        what   its number; an operator: the one of those that waited longest; or a tensor: the one
               that wrote it last
        depth  gating producers that are followed back
        """
        return why.why(self, what, depth)

    def query(self, text: str, limit: int | None = 20) -> Query:
        """The instructions that an expression is true of: "op == 'matmul' and wait.dep > 0.1".

        text    see `flowvm.profiler.views.query`, whose COLUMNS it may name; times are ms
        limit   rows at most, None for all
        ArgumentError: it is no such expression; a caret says where.
        """
        return query.query(self, text, limit)

    def sql(self, text: str) -> Rows:
        """The rows of a query over two tables: `instructions`, with the columns of `to_columns()`,
        and `edges`, with those of `to_edges()`; a point in a name is an underscore, `wait_dep`.  It
        prints as a table; `.rows` are tuples.  ArgumentError: SQLite does not understand it.
        """
        return sqling.sql(self, text)

    def to_columns(self) -> dict[str, Array]:
        """Every instruction as columns: NumPy arrays by the names of `flowvm.profiler.views.query`,
        times in milliseconds; behind them the tasks of graphs' replays.
        """
        return query.columns_of(self)

    def to_edges(self) -> dict[str, Array]:
        """Every edge as columns: `source` and `target` (numbers of instructions), `hazard`,
        `access`, `tensor`, `gating`.
        """
        return edging.edges_of(self)

    def to_pandas(self, of: str = "instructions") -> Any:
        """The "instructions" of `to_columns()`, or the "edges" of `to_edges()`, as a DataFrame of
        pandas.  ConfigError where that is not installed, ArgumentError: of neither.
        """
        if of not in ("instructions", "edges"):
            raise ArgumentError(f'to_pandas({of!r}): of "instructions" or "edges"')
        return tabular.pandas(self, of)

    def to_networkx(self) -> Any:
        """The DAG as a DiGraph of networkx, with the columns of both as attributes.  ConfigError
        where that is not installed.
        """
        return tabular.networkx(self)

    @property
    def instr(self) -> Instrs:
        """The instructions by number: `p.instr[311]` is one of them, with all that is known."""
        return instruction.Instrs(self)

    def at(
        self, t: float | None = None, *, instr: int | None = None, when: str = "waits"
    ) -> Moment:
        """The VM at a moment: what ran, what stood in queues, what waited for what, each storage's
        access list, Python, and actors with their mailboxes and credits.

        t      milliseconds from the start
        instr  instead: the number of an instruction, when it came to a stage:
        when   "issued", "received", "ready", "dispatched", "started", "ended", "released", or
               "waits", from where on it waited for others
        ArgumentError: no such instruction, or it never came there.
        """
        self._number, time = moment.resolve_moment(self, t, instr, when)
        return moment.moment(self, self._number, time)

    def step(self, steps: int = 1, to: str = "") -> Moment:
        """The moment so many events behind the one that was shown last (below 0: in front of it).

        to   count only those at which an instruction came to a stage: "started"; see `at`
        ArgumentError: there is no such stage.
        """
        self._number = moment.next_of(self, self._number, steps, to)
        return moment.moment(self, self._number)

    def flame(self, by: str = "time") -> Flame:
        """A flame graph, Python's stacks above and what they did and issued below; by "time" or
        "bytes".  It prints as a tree; `.folded()` are folded stacks, `.save("run.json")` is a file
        for speedscope.  ArgumentError: another `by`.
        """
        return flame.flame(self, by)

    def critical_path(self) -> Critical:
        """The segments of the observed path, which sum to the wall time, and the floor path."""
        return critical.critical(self)

    def timeline(
        self,
        t: tuple[float, float] | None = None,
        lanes: list[str] | None = None,
        follow: int | None = None,
    ) -> Timeline:
        """A lane for Python, the scheduler and every stream, and why lanes stood still.

        t       milliseconds from the start, by default all
        lanes   names of the lanes to show
        follow  the number of an instruction to mark
        """
        return timeline.timeline(self, t, lanes, follow, WIDE)

    def memory(self, device: str | Device | None = None) -> MemoryView:
        """Bytes over time, who had them at the peak, what waits to be released, what lives on.

        device  whose memory: "cpu", "cuda:1"; by default that of the first device on which
                something was made, else the host's.  ArgumentError: nothing of it is in the run
        """
        return memory.memory_view(self, device)

    def plan(self, name: str | None = None) -> PlanView:
        """Return a view of a graph's replays: by actor if it has several, else by task.

        name   of the Plan, by default the one whose launches took most.  ArgumentError: no such
        """
        return replays.plan_of(self, name)

    def roofline(self, by: str = "op") -> RooflinePlot:
        """Plot how fast each "op", "line", "module" or "stream" computed, over its operations a
        byte, below the roof that `flow.profiler.roofline()` measured.  `.save("roof.svg")` writes
        it.  ArgumentError: another `by`.
        """
        return roofline.roofline_plot(self, by)

    def diff(self, after: Profile, by: str = "op") -> Diff:
        """Compare with another run; the largest change comes first.

        by   "op", "line", "module" or "stream"
        """
        return diff.diff(self, after, by)

    def export(
        self, path: str | Path, edges: str = "gating", against: Profile | None = None
    ) -> Path:
        """Write it for another program; the name's ending says which: .html (one page,
        offline), .json or .json.gz (Perfetto), .speedscope.json (flame graphs), .svg, .dot, .mmd,
        .graphml, .csv, .edges.csv, .flowtrace.

        edges     of a Chrome trace: "gating", "all" or "none"
        against   an earlier run, which an .html page shows beside this one
        """
        return exporting.export(self, path, edges, against)

    def widget(self, height: int = 720, against: Profile | None = None) -> Widget:
        """The page that `export("x.html")` writes, in a cell of a notebook: as the last value of
        a cell, or by IPython's display().

        height    of the frame, in pixels
        against   an earlier run, which it shows beside this one
        ArgumentError: a height below 100.

        >>> with flow.profiler.profile() as p:
        ...     x = flow.ones(2) + 1
        >>> type(p.widget(height=500)).__name__
        'Widget'
        """
        return widgets.Widget(self, height, against)

    def save(self, path: str | Path) -> None:
        """Write the run to one file."""
        self.run.save(path)

    def __getstate__(self) -> Run:
        return self.run

    def __setstate__(self, run: Run) -> None:
        self.run, self._number = run, 0

    def __len__(self) -> int:
        return len(self.run)

    def __repr__(self) -> str:
        return repr(self.summary())

    def _repr_pretty_(self, printer: object, cycle: bool) -> None:
        self.summary()._repr_pretty_(printer, cycle)

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    def __rich__(self) -> Summary:
        return self.summary()


class profile(Profile, Switched):  # noqa: N801 - used like a function, as PyTorch's is
    """`with flow.profiler.profile() as p:` records what is issued inside.

    `level` (1 to 3) is what to record, at least (see `flowvm.vm.watch.flight`), `record` how many
    instructions to remember, or bytes ("256M"), by default `flow.config.record`, which is the
    65,536 that the recorder has; with more, what it has is taken out before it is overwritten.

    `file` is where the run is written when the block is left, however that is; the name's ending
    says the format, as `export` has them.  All instructions are remembered then, unless `record`
    says how many, and lie in that folder meanwhile, not in memory.

    Leaving the block waits until everything inside has run; that wait is not part of the run.
    ArgumentError: another level, fewer than 1, or a file of no known format.

    >>> with flow.profiler.profile() as p:
    ...     x = flow.ones(2) + 1
    >>> sorted(row.name for row in p.table("op") if row.name != "release")
    ['add', 'fill']
    """

    def __init__(
        self, level: int = 2, record: int | str | None = None, file: str | Path | None = None
    ) -> None:
        super().__init__()
        try:
            known = None if record is None else record_count(record)
        except (TypeError, ValueError):
            raise ArgumentError(
                f"record={record!r}: how many instructions to remember, 1 or more, "
                'or how many bytes: "256M"'
            ) from None
        self._file = None if file is None else Path(file)
        if self._file is not None:
            exporting.ending_of(self._file)
            if not self._file.absolute().parent.is_dir():
                raise ArgumentError(f"file={str(file)!r}: there is no such folder")
        self._most = known or (config.record if file is None else 1 << 30)
        if level not in (1, 2, 3):
            raise ArgumentError(f"level={level!r}: what to record is 1, 2 or 3")
        self._level = engine.flight.at_least(level)
        self._keeping: Keeping | None = None

    def _switch(self) -> profile:
        engine.waits.wait_idle()
        self._uncompiled = engine.threads.uncompiled
        self._level._switch()
        self._since = int(engine.words[CTL.RECEIVED])
        if self._most > REC.LENGTH:
            folder = None if self._file is None else self._file.absolute().parent
            self._keeping = Keeping(engine.flight, self._since, self._most, folder)
            engine.flight.keeping = self._keeping
        engine.flight.begin_wait()  # what was lost until now is not the run's
        self._cores = cores.reading()
        self._begun = time.monotonic_ns()
        return self

    def _undo(self) -> None:
        if engine.flight.keeping is self._keeping:
            engine.flight.keeping = None
        self._level._undo()

    def _on_exit(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        engine.flight.begin_wait()  # what is lost from now on is not the run's
        until = time.monotonic_ns()
        engine.waits.wait_idle()
        issuing = engine.flight.issuing
        load = cores.between(self._cores, cores.reading(), issuing)
        snapshot = self._keeping.whole() if self._keeping is not None else None
        self.run = _collected(self._since, self._begun, until, load, snapshot)
        if (
            self._uncompiled or engine.threads.uncompiled
        ):  # the first instruction may have been inside
            self.run.info["uncompiled"] = True
        if kind is not None:
            self.run.info["raised"] = kind.__name__
        if self._keeping is not None:
            self._keeping.close()
        if self._file is not None:
            self.export(self._file)


def _collected(
    since: int,
    begun: int,
    until: int,
    load: Mapping[str, object] | None = None,
    snapshot: Snapshot | None = None,
) -> Run:
    """The run from `since` on, without the wait that came after the moment `until`.

    Where the recorder has lost instructions, it begins with the first that is left: of the time
    before nothing is known.
    """
    flight = engine.flight
    snapshot = snapshot or flight.look(since)
    first = begun or int(snapshot.times[:1, 0].min(initial=until))
    samples = flight.sampling.samples(first - BEFORE, until, set(snapshot.codes))
    run = collect(snapshot, begun, samples, load)
    run.info["held"] = held_of(run, snapshot)
    run.info["purposes"] = purposes_of(run, snapshot)
    if len(run) and run.kind[-1] == KIND.BARRIER and not np.diff(run.offsets[-2:])[0]:
        run = run.part(0, len(run) - 1, run.begun, run.ended)
    run.ended = max(until, int(run.time("ended").max(initial=0)))
    if run.info["overwritten"] and begun:
        issued = run.time("issued")
        run.begun = max(begun, int(issued[issued > 0].min(initial=run.ended)))
        run.info["lost"] = run.begun - begun
    inside = (run.waits.times[:, 1] > run.begun) & (run.waits.times[:, 0] < until)
    run.waits.times = np.clip(run.waits.times[inside], run.begun, run.ended)
    run.waits.cause, run.waits.thread = run.waits.cause[inside], run.waits.thread[inside]
    run.marks = [m for m in run.marks if m[2] >= run.begun and m[1] <= run.ended]
    return run


def last(count: int | None = None) -> Profile:
    """Return a Profile of the last `count` instructions that the recorder remembers, by default
    all.

    Waits until everything issued so far has run; ArgumentError for a count below 1.

    >>> x = flow.ones(2) + 1
    >>> flow.vm.sync()
    >>> p = flow.profiler.last(1)
    >>> len(p)
    1
    """
    if count is not None and count < 1:
        raise ArgumentError(f"last({count}): ask for at least one instruction")
    until = time.monotonic_ns()
    received = int(engine.words[CTL.RECEIVED])
    engine.waits.wait_idle()
    since = 0 if count is None else max(0, received - count)
    return Profile(_collected(since, 0, until))


def load(path: str | Path) -> Profile:
    """A profile that was saved.  ArgumentError if the file is none, or of another version.

    >>> import tempfile
    >>> with flow.profiler.profile() as p:
    ...     x = flow.ones(2) + 1
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     p.save(folder + "/run")
    ...     print(len(flow.profiler.load(folder + "/run")) == len(p))
    True
    """
    return Profile(Run.load(path))
