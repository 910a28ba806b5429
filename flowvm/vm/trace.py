"""A recorded run: the instruction DAG of what was issued while it lasted.

The engine copies each finished instruction's operands and times to REC (`machine.record`).  The
edges here are computed from those operands by the rule itself, `[one writer]? readers*`, not copied
from the engine: so they are complete, also where the producer had finished long before, and
`verify` can hold the engine to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.errors import VMError
from flowvm.vm import layout as w
from flowvm.vm.engine import FRAMES, engine, hot
from flowvm.vm.lines import short_position

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Edge", "Trace", "Traced", "TracedOperand", "record", "trace"]

MOST_WAITS = 4  # instructions named in a row's "waits for"
_NAMES = {w.Kind.RELEASE_TENSOR: "release", w.Kind.TOUCH_TENSORS: "wait"}


@dataclass(frozen=True)
class TracedOperand:
    """One access: `tensor` numbers the storages of the trace in order of appearance."""

    tensor: int
    access: w.Access
    name: str  # the operator's name for it
    what: str  # dtype and shape


@dataclass(frozen=True)
class Edge:
    """Instruction `target`, an index into the trace, must wait for `source` because of `tensor`."""

    source: int
    target: int
    hazard: str  # RAW, WAR or WAW
    tensor: int


@dataclass(frozen=True)
class Traced:
    """One instruction.

    `started` and `ended` are tickets of one counter, `t_start` and `t_end` nanoseconds.
    """

    seq: int
    name: str
    kind: w.Kind
    stream: int
    operands: tuple[TracedOperand, ...]
    started: int
    ended: int
    t_start: int
    t_end: int
    status: int
    where: str  # "file.py:12" of the user's line, or ""

    @property
    def microseconds(self) -> float:
        """How long it ran."""
        return (self.t_end - self.t_start) / 1e3


@dataclass
class Trace:
    """The instructions of a recorded run in program order, and the edges between them."""

    instructions: list[Traced] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    result: Any = None
    dropped: int = 0

    def predecessors(self, index: int) -> list[Edge]:
        """What instruction `index` waits for."""
        return [e for e in self.edges if e.target == index]

    def __len__(self) -> int:
        return len(self.instructions)

    def __iter__(self) -> Iterator[Traced]:
        return iter(self.instructions)

    def __repr__(self) -> str:
        lost = f", {self.dropped} more not recorded" if self.dropped else ""
        return f"<Trace: {len(self.instructions)} instructions, {len(self.edges)} edges{lost}>"

    def rows(self) -> list[tuple[str, ...]]:
        """A row an instruction, under the titles of `heads`.

        A tensor's dtype and shape stand where it is written (or first read); `waits for` names the
        instructions in front.
        """
        waits: dict[int, list[str]] = {}
        for e in self.edges:
            waits.setdefault(e.target, []).append(f"#{self.instructions[e.source].seq} {e.hazard}")
        lanes = len({ins.stream for ins in self.instructions}) > 1
        known: set[int] = set()
        rows = []
        for i, ins in enumerate(self.instructions):
            reads = [_operand(o, known) for o in ins.operands if o.access == w.Access.CONST]
            writes = [_operand(o, known) for o in ins.operands if o.access != w.Access.CONST]
            if ins.kind == w.Kind.RELEASE_TENSOR:
                writes = ["free", *(f"t{o.tensor}" for o in ins.operands)]
            front = waits.get(i, [])
            if len(front) > MOST_WAITS:
                front = [*front[: MOST_WAITS - 1], f"{len(front) - MOST_WAITS + 1} more"]
            row = [f"#{ins.seq}", ins.name, " ".join(reads), " ".join(writes), ", ".join(front)]
            row += [str(ins.stream)] if lanes else []
            rows.append((*row, f"{ins.microseconds:.1f}", ins.where))
        return rows

    def heads(self) -> tuple[str, ...]:
        """Titles of the columns of `rows`; the stream only where there are several."""
        lanes = len({ins.stream for ins in self.instructions}) > 1
        stream = ("stream",) if lanes else ()
        return ("id", "op", "reads", "writes", "waits for", *stream, "us", "line")

    def __str__(self) -> str:
        rows = [self.heads(), *self.rows()]
        widths = [max(len(r[c]) for r in rows) for c in range(len(rows[0]))]
        padded = [[c.ljust(n) for c, n in zip(r, widths, strict=True)] for r in rows]
        return "\n".join("  ".join(r).rstrip() for r in padded)

    def __rich__(self) -> Table:
        from rich.table import Table

        styles = {"id": "bold", "reads": "cyan", "writes": "yellow"}
        styles |= {"waits for": "dim", "line": "dim"}
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for head in self.heads():
            title = {"reads": "reads (const)", "writes": "writes (━ mut ═ mut2)"}.get(head, head)
            whole = head in ("id", "op", "us", "stream", "line")
            justify: Any = "right" if head == "us" else "left"
            table.add_column(title, style=styles.get(head, ""), justify=justify, no_wrap=whole)
        for row in self.rows():
            table.add_row(*row)
        return table


def _operand(o: TracedOperand, known: set[int]) -> str:
    mark = {w.Access.CONST: "", w.Access.MUT: "━", w.Access.MUT2: "═"}[o.access]
    what = "" if o.tensor in known or not o.what else f":{o.what.replace(' ', '')}"
    known.add(o.tensor)
    return f"{mark}t{o.tensor}{what}"


@contextmanager
def record() -> Iterator[Trace]:
    """Record every instruction issued inside; the trace is complete when the block is left."""
    engine.wait_idle()
    if engine.words[w.RECORDING]:
        raise VMError("a trace is being recorded already; traces cannot be nested")
    found = Trace()
    engine.words[w.RECORDED] = 0
    issued = int(engine.words[w.RECEIVED])
    engine.words[w.RECORDING] = 1
    try:
        yield found
    finally:
        engine.release_dead()
        engine.wait_idle()
        engine.words[w.RECORDING] = 0
        _fill(found, issued)


def trace(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Trace:
    """Call `function(*args, **kwargs)`: the trace of what it issued, its result as `result`."""
    with record() as found:
        found.result = function(*args, **kwargs)
    return found


def _fill(found: Trace, issued: int) -> None:
    count = int(engine.words[w.RECORDED])
    table = engine.m[w.REC : w.REC + count * w.REC_WORDS].reshape(count, w.REC_WORDS).copy()
    table = table[np.argsort(table[:, w.C_SEQ])]
    done = int(engine.words[w.RECEIVED]) - issued
    found.dropped = max(0, done - count) if count == w.RECORDS else 0
    tensors: dict[tuple[int, int], int] = {}
    life: dict[int, int] = {}  # a storage id is used again after its release: which use is this
    lists: dict[int, list[tuple[int, bool]]] = {}
    for row in table.tolist():
        ins = _traced(row, tensors, life)
        if ins.kind == w.Kind.TOUCH_TENSORS and not ins.operands:
            continue
        if ins.kind == w.Kind.BARRIER:
            continue
        index = len(found.instructions)
        found.instructions.append(ins)
        _connect(found, index, ins, lists)


def _traced(row: list[int], tensors: dict[tuple[int, int], int], life: dict[int, int]) -> Traced:
    info = engine.entry_info[row[w.C_ENTRY]][0] if row[w.C_ENTRY] < len(engine.entry_info) else None
    kind = w.Kind(int(engine.words[w.ENT + row[w.C_ENTRY] * w.ENTRY_WORDS + w.E_KIND]))
    metas, names = getattr(info, "metas", ()), getattr(info, "names", ())
    operands = []
    for k in range(min(row[w.C_COUNT], w.MAX_INLINE)):
        word = row[w.C_OPERANDS + k]
        storage = word >> w.ACCESS_BITS
        number = tensors.setdefault((storage, life.get(storage, 0)), len(tensors))
        what = repr(metas[k]) if k < len(metas) else ""
        name = names[k] if k < len(names) else ""
        operands.append(TracedOperand(number, w.Access(word & 3), name, what))
    if kind == w.Kind.RELEASE_TENSOR:
        for k in range(min(row[w.C_COUNT], w.MAX_INLINE)):
            storage = row[w.C_OPERANDS + k] >> w.ACCESS_BITS
            life[storage] = life.get(storage, 0) + 1
    seq = row[w.C_SEQ]
    code, last = hot["codes"][seq & (FRAMES - 1)], hot["lasts"][seq & (FRAMES - 1)]
    name = getattr(info, "name", None) or _NAMES.get(kind, kind.name.lower())
    return Traced(
        seq,
        name,
        kind,
        row[w.C_STREAM],
        tuple(operands),
        row[w.C_STARTED],
        row[w.C_ENDED],
        row[w.C_T_START],
        row[w.C_T_END],
        row[w.C_STATUS],
        short_position(code, last),
    )


def _connect(
    found: Trace, index: int, ins: Traced, lists: dict[int, list[tuple[int, bool]]]
) -> None:
    """Edges of one instruction by the rule; `lists` has each tensor's `[one writer]? readers*`."""
    linked: set[int] = set()

    def link(source: int, hazard: str, tensor: int) -> None:
        if source != index and source not in linked:
            linked.add(source)
            found.edges.append(Edge(source, index, hazard, tensor))

    for o in ins.operands:
        if o.access != w.Access.CONST:
            for source, writes in lists.get(o.tensor, []):
                link(source, "WAW" if writes else "WAR", o.tensor)
            lists[o.tensor] = [(index, True)]
    for o in ins.operands:
        if o.access == w.Access.CONST:
            accesses = lists.setdefault(o.tensor, [])
            if accesses and accesses[0][1]:
                link(accesses[0][0], "RAW", o.tensor)
            if accesses != [(index, True)]:
                accesses.append((index, False))
