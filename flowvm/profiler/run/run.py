"""A recorded run as columns: what everything else in the profiler is computed from.

A `Run` is a value: NumPy arrays and a few lists of names, no tensor, frame or code object, so it
pickles, is saved to one file, and means the same when the VM is gone.  Instructions are in program
order and named by their index; an instruction's number in the VM is `seq`.

The file (`save`, `load`) is an .npz whose arrays are the columns of COLUMNS, and `header`, a JSON
text with SCHEMA, the names, and `info`.
"""

from __future__ import annotations

import json
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from flowvm.errors import ArgumentError
from flowvm.files.schema import read_json, wrong
from flowvm.files.writer import writing
from flowvm.meta.arrays import Array
from flowvm.profiler.run.columns import (
    COLUMNS,
    ROWS,
    WIDE,
    check_columns,
    check_header,
    read_archive,
)
from flowvm.version import VERSION
from flowvm.vm.watch.flight import TIMES

SCHEMA = "flowvm.trace/4"


def _place_of(name: str) -> tuple[str, str]:
    """Return the table of a column, "" for a Run's own, and the column's name there."""
    head, _, rest = name.partition("_")
    return (TABLES[head], rest) if rest and head in TABLES else ("", name)


def _empty(name: str) -> Array:
    rows = 1 if name == "offsets" else 0
    shape = (0, WIDE[name]) if name in WIDE else (rows,)
    return np.zeros(shape, COLUMNS[name][0])


# the tables beside that of instructions: how the names of their columns begin, the field of Run
TABLES = {"task": "tasks", "share": "shares", "use": "uses", "wait": "waits", "sample": "samples"}


@dataclass
class Tasks:
    """The tasks of graphs' replays.  Columns: `task_...` of COLUMNS."""

    launch: Array = field(default_factory=partial(_empty, "task_launch"))
    number: Array = field(default_factory=partial(_empty, "task_number"))
    op: Array = field(default_factory=partial(_empty, "task_op"))
    line: Array = field(default_factory=partial(_empty, "task_line"))
    module: Array = field(default_factory=partial(_empty, "task_module"))
    forward: Array = field(default_factory=partial(_empty, "task_forward"))
    stream: Array = field(default_factory=partial(_empty, "task_stream"))
    times: Array = field(default_factory=partial(_empty, "task_times"))
    nbytes: Array = field(default_factory=partial(_empty, "task_nbytes"))
    flops: Array = field(default_factory=partial(_empty, "task_flops"))

    def __post_init__(self) -> None:
        if not len(self.forward):  # who makes a run may know nothing of backward
            self.forward = np.full(len(self.line), -1, np.int32)


@dataclass
class Shares:
    """The shares of helpers in kernels.  Columns: `share_...` of COLUMNS."""

    of: Array = field(default_factory=partial(_empty, "share_of"))
    task: Array = field(default_factory=partial(_empty, "share_task"))
    stream: Array = field(default_factory=partial(_empty, "share_stream"))
    helper: Array = field(default_factory=partial(_empty, "share_helper"))
    times: Array = field(default_factory=partial(_empty, "share_times"))
    chunks: Array = field(default_factory=partial(_empty, "share_chunks"))


@dataclass
class Uses:
    """Uses of tensors by launches that may run beside others.  Columns: `use_...` of COLUMNS."""

    of: Array = field(default_factory=partial(_empty, "use_of"))
    tensor: Array = field(default_factory=partial(_empty, "use_tensor"))
    writes: Array = field(default_factory=partial(_empty, "use_writes"))
    times: Array = field(default_factory=partial(_empty, "use_times"))


@dataclass
class Waits:
    """The waits of issuing threads.  Columns: `wait_...` of COLUMNS."""

    cause: Array = field(default_factory=partial(_empty, "wait_cause"))
    times: Array = field(default_factory=partial(_empty, "wait_times"))
    thread: Array = field(default_factory=partial(_empty, "wait_thread"))


@dataclass
class Samples:
    """The samples of issuing threads.  Columns: `sample_...` of COLUMNS."""

    times: Array = field(default_factory=partial(_empty, "sample_times"))
    thread: Array = field(default_factory=partial(_empty, "sample_thread"))
    state: Array = field(default_factory=partial(_empty, "sample_state"))
    line: Array = field(default_factory=partial(_empty, "sample_line"))
    spot: Array = field(default_factory=partial(_empty, "sample_spot"))
    stack: Array = field(default_factory=partial(_empty, "sample_stack"))


@dataclass
class Run:
    """A recorded run.  The columns are those of COLUMNS: of instructions, operands and edges here,
    the others in tables of their own.

    `begun` and `ended` bound it; `info` has, among others, `level`, `overwritten` (instructions
    that the ring had lost), `live` (bytes of tensors at the end, in each memory) and `spaces` (the
    memory of each of `streams`; none: "cpu").  `stacks` has, of what was
    recorded at level 3, an instruction's index and the lines of its Python stack, innermost first.
    `sample_stacks` are stacks that issuing threads were seen in, innermost first: of each frame
    that is not flowvm's, the line and the expression.
    `spots` are expressions: the text of a line, columns [first, last) in it, the function around.
    `marks` are the spans and marks that the user named: name, begun, ended, thread, and the
    instructions [first, last) issued inside.
    """

    begun: int = 0
    ended: int = 0
    names: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    streams: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    spots: list[list[Any]] = field(default_factory=list)
    info: dict[str, Any] = field(default_factory=dict)
    stacks: list[list[int]] = field(default_factory=list)
    sample_stacks: list[list[int]] = field(default_factory=list)
    marks: list[list[Any]] = field(default_factory=list)
    seq: Array = field(default_factory=partial(_empty, "seq"))
    op: Array = field(default_factory=partial(_empty, "op"))
    kind: Array = field(default_factory=partial(_empty, "kind"))
    stream: Array = field(default_factory=partial(_empty, "stream"))
    line: Array = field(default_factory=partial(_empty, "line"))
    spot: Array = field(default_factory=partial(_empty, "spot"))
    module: Array = field(default_factory=partial(_empty, "module"))
    forward: Array = field(default_factory=partial(_empty, "forward"))
    forward_spot: Array = field(default_factory=partial(_empty, "forward_spot"))
    opened: Array = field(default_factory=partial(_empty, "opened"))
    clock: Array = field(default_factory=partial(_empty, "clock"))
    status: Array = field(default_factory=partial(_empty, "status"))
    times: Array = field(default_factory=partial(_empty, "times"))
    nbytes: Array = field(default_factory=partial(_empty, "nbytes"))
    flops: Array = field(default_factory=partial(_empty, "flops"))
    scratch: Array = field(default_factory=partial(_empty, "scratch"))
    offsets: Array = field(default_factory=partial(_empty, "offsets"))
    tensor: Array = field(default_factory=partial(_empty, "tensor"))
    access: Array = field(default_factory=partial(_empty, "access"))
    size: Array = field(default_factory=partial(_empty, "size"))
    source: Array = field(default_factory=partial(_empty, "source"))
    target: Array = field(default_factory=partial(_empty, "target"))
    hazard: Array = field(default_factory=partial(_empty, "hazard"))
    operand: Array = field(default_factory=partial(_empty, "operand"))
    tasks: Tasks = field(default_factory=Tasks)
    shares: Shares = field(default_factory=Shares)
    uses: Uses = field(default_factory=Uses)
    waits: Waits = field(default_factory=Waits)
    samples: Samples = field(default_factory=Samples)

    def __post_init__(self) -> None:
        # who makes a run may know nothing of modules, forward calls and devices
        for name, none in (
            ("module", 0), ("forward", -1), ("forward_spot", -1), ("opened", 0), ("clock", 0),
        ):  # fmt: skip
            if not len(getattr(self, name)):
                setattr(self, name, np.full(len(self.seq), none, COLUMNS[name][0]))

    @staticmethod
    def of(columns: Mapping[str, Array], begun: int, ended: int, **header: Any) -> Run:
        """A run of columns by their names in COLUMNS, those that are known, and its other
        fields.
        """
        own = dict(header)
        tables: dict[str, dict[str, Array]] = {table: {} for table in TABLES.values()}
        for name, column in columns.items():
            table, rest = _place_of(name)
            (tables[table] if table else own)[rest] = column
        return Run(
            begun, ended, **own,
            tasks=Tasks(**tables["tasks"]), shares=Shares(**tables["shares"]),
            uses=Uses(**tables["uses"]), waits=Waits(**tables["waits"]),
            samples=Samples(**tables["samples"]),
        )  # fmt: skip

    def column(self, name: str) -> Array:
        """A column by its name in COLUMNS: `task_times` is `tasks.times`."""
        table, rest = _place_of(name)
        column: Array = getattr(getattr(self, table) if table else self, rest)
        return column

    def columns(self) -> dict[str, Array]:
        """All columns, by their names in COLUMNS."""
        return {name: self.column(name) for name in COLUMNS}

    def __len__(self) -> int:
        return len(self.seq)

    @property
    def wall(self) -> int:
        """Nanoseconds from begun to ended."""
        return self.ended - self.begun

    def time(self, name: str) -> Array:
        """One of TIMES for every instruction."""
        column: Array = self.times[:, TIMES.index(name)]
        return column

    @property
    def owner(self) -> Array:
        """Each operand's instruction."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    def index(self, seq: int) -> int:
        """The index of the instruction whose number in the VM is `seq`."""
        i = int(np.searchsorted(self.seq, seq))
        if i == len(self) or self.seq[i] != seq:
            raise ArgumentError(f"#{seq} is not in this run ({self._range()})")
        return i

    def part(self, first: int, last: int, begun: int, ended: int) -> Run:
        """The run of instructions [first, last) alone, from `begun` to `ended`.

        Edges to instructions outside are left out.
        """
        operands = slice(int(self.offsets[first]), int(self.offsets[last]))
        edges = (self.source >= first) & (self.target < last)
        tasks = (self.tasks.launch >= first) & (self.tasks.launch < last)
        shares = (self.shares.of >= first) & (self.shares.of < last)
        uses = (self.uses.of >= first) & (self.uses.of < last)
        waits = (self.waits.times[:, 1] > begun) & (self.waits.times[:, 0] < ended)
        samples = (self.samples.times[:, 1] > begun) & (self.samples.times[:, 0] < ended)
        rows: dict[str, slice | Array] = {
            "operands": operands, "edges": edges, "task": tasks, "share": shares, "use": uses,
            "wait": waits, "sample": samples,
        }  # fmt: skip
        columns = {}
        for name in COLUMNS:
            rows_of = ROWS.get(name, name.split("_")[0])
            columns[name] = self.column(name)[rows.get(rows_of, slice(first, last))]
        columns["offsets"] = self.offsets[first : last + 1] - self.offsets[first]
        for name in ("source", "target", "task_launch", "share_of", "use_of"):
            columns[name] = columns[name] - first
        columns["operand"] = columns["operand"] - operands.start
        for name in ("wait_times", "sample_times"):
            columns[name] = np.clip(columns[name], begun, ended)
        marks = [
            [
                *m[:4],
                min(max(m[4] - first, 0), last - first),
                min(max(m[5] - first, 0), last - first),
            ]
            for m in self.marks
            if m[1] < ended and m[2] > begun
        ]
        stacks = [[s[0] - first, *s[1:]] for s in self.stacks if first <= s[0] < last]
        shared = ("names", "lines", "streams", "modules", "spots", "info", "sample_stacks")
        names = {n: getattr(self, n) for n in shared}
        return Run.of(columns, begun, ended, **names, stacks=stacks, marks=marks)

    def _range(self) -> str:
        return f"#{self.seq[0]} to #{self.seq[-1]}" if len(self) else "which is empty"

    def save(self, path: str | Path) -> None:
        """Write the run to one file, named *.flowtrace by custom."""
        header = {"schema": SCHEMA, "version": VERSION}
        header |= {name: getattr(self, name) for name in _HEADER}
        columns: dict[str, Any] = {**self.columns()}
        with writing(path, "save") as file:
            np.savez_compressed(file, header=np.array(json.dumps(header)), **columns)

    @staticmethod
    def load(path: str | Path) -> Run:
        """A run that was saved.  ArgumentError if the file is none, or of another version."""
        with open(path, "rb") as opened:
            if not zipfile.is_zipfile(opened):
                raise ArgumentError(
                    f"{path} is not a saved run of {SCHEMA}: another kind of file, or one cut short"
                )
        try:
            text, columns = read_archive(path)
            header = read_json(text, f"the header of {path}", finite=False)
            if not isinstance(header, dict):
                wrong("the header", header, "a record")
            schema, version = header.pop("schema"), header.pop("version", "")
            if schema != SCHEMA:
                raise ArgumentError(_of_another(str(schema)[:40], str(version)[:40]))
            if columns.keys() != COLUMNS.keys():
                wrong("its list of columns", sorted(columns), "that of a run")
            check_header(header)
            check_columns(columns, header)
            return Run.of(columns, **header)
        except ArgumentError as error:
            raise ArgumentError(f"{path}: {error}") from None
        except _DAMAGES as error:
            raise ArgumentError(
                f"{path} is not a saved run of {SCHEMA}, or not whole: {error}"
            ) from error


# what NumPy and its archives raise of a file that is not whole
_DAMAGES = (
    KeyError, ValueError, TypeError, MemoryError, EOFError, OSError, RuntimeError,
    SyntaxError, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def _of_another(schema: str, version: str) -> str:
    """Return the message for a file that another version of flowvm wrote."""
    by = f"flowvm {version}" if version else "an older flowvm, before files said which"
    use = f"pip install flowvm=={version}" if version else "that version"
    return (
        f"it was written by {by} ({schema}), and flowvm {VERSION} reads {SCHEMA}: open it "
        f"with {use}, from which `flowvm export` makes a page or a trace that lasts, or record "
        f"it again"
    )


_HEADER = tuple(f.name for f in fields(Run) if f.name not in {*COLUMNS, *TABLES.values()})
