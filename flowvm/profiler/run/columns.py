"""The columns of a recorded run: what each is, and what a file may have in it.

A run is indexed with by everything else in the profiler, so a file is held against all of this
before a Run is made of it: dtypes and lengths, every index against what it points into, edges that
point back in time, so that no path goes round.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from flowvm.errors import ArgumentError
from flowvm.files.schema import (
    anything,
    integer,
    mapping,
    maybe,
    number,
    options,
    record,
    row,
    several,
    text,
    wrong,
)
from flowvm.vm.machine.edges import HAZARDS
from flowvm.vm.watch.flight import TIMES

# why an issuing thread ran none of the user's Python
CAUSES = ("sync", "credit", "memory", "jit", "gil", "core")
# what an issuing thread was seen doing: the user's Python, nothing, a DataLoader's work or waiting
# for it, capturing a graph, flowvm's own Python, or one of the above
SAMPLED = ("python", "asleep", "loader", "capture", "flowvm", *CAUSES, "import")

# name -> (dtype, what it is).  Times are nanoseconds of the monotonic clock.
COLUMNS: dict[str, tuple[str, str]] = {
    "seq": ("int64", "instruction: its number in the VM"),
    "op": ("int32", "instruction: index into `names`"),
    "kind": ("int8", "instruction: a flowvm.vm.machine.words.Kind"),
    "stream": ("int16", "instruction: its stream, an index into `streams`"),
    "line": ("int32", "instruction: the user's line, an index into `lines`"),
    "spot": ("int32", "instruction: the expression in that line, an index into `spots`"),
    "module": ("int32", "instruction: its module, an index into `modules`"),
    "forward": (
        "int32",
        "instruction: of what backward issued, the line of the forward call, an "
        "index into `lines`; -2 where that is not known, -1 for all others",
    ),
    "forward_spot": ("int32", "instruction: the expression in that line, or -1"),
    "status": ("int64", "instruction: 0, or the status that its kernel returned"),
    "times": ("int64", f"instruction: {', '.join(TIMES)}; 0 for what has not happened"),
    "opened": ("int64", "instruction: of a device's, when it was handed over; 0 for the host's"),
    "clock": (
        "int8",
        "instruction: whose started and ended are: 0 its worker's, on the host; of a device's, 1 "
        "when the host saw it, 2 the device's own (`flowvm.vm.watch.device_times`)",
    ),
    "nbytes": ("int64", "instruction: bytes of its operands, read and written"),
    "flops": ("int64", "instruction: operations of products and convolutions"),
    "scratch": ("int64", "instruction: bytes that it takes while it runs"),
    "offsets": ("int64", "operands of instruction i are [offsets[i], offsets[i + 1])"),
    "tensor": ("int32", "operand: its tensor, in order of appearance"),
    "access": (
        "int8",
        "operand: a flowvm.vm.machine.words.Access, 4 added if it gets its memory here",
    ),
    "size": ("int64", "operand: bytes of it, 0 if not known"),
    "source": ("int32", "edge: instruction that is waited for"),
    "target": ("int32", "edge: instruction that waits; edges are sorted by it"),
    "hazard": ("int8", f"edge: index into {', '.join(HAZARDS)}"),
    "operand": ("int32", "edge: the target's operand that it is about"),
    "task_launch": ("int32", "task of a graph's replay: instruction that launched it"),
    "task_number": ("int32", "task: its number in the Plan"),
    "task_op": ("int32", "task: index into `names`"),
    "task_line": ("int32", "task: index into `lines`"),
    "task_module": ("int32", "task: index into `modules`"),
    "task_forward": ("int32", "task: of backward, the line of the forward call; -1 for others"),
    "task_stream": ("int16", "task: index into `streams`"),
    "task_times": ("int64", "task: started, ended"),
    "task_nbytes": ("int64", "task: bytes of its operands"),
    "task_flops": ("int64", "task: operations of products and convolutions"),
    "share_of": ("int32", "share of a helper in a kernel: index of the instruction"),
    "share_task": ("int32", "share: number of the task, -1 if the instruction is no launch"),
    "share_stream": ("int16", "share: index into `streams`"),
    "share_helper": ("int16", "share: number of the helper in its stream's team"),
    "share_times": ("int64", "share: started, ended"),
    "share_chunks": ("int64", "share: chunks of the kernel's work"),
    "use_of": ("int32", "use by a launch that may run beside others: index of the launch"),
    "use_tensor": ("int32", "use: its tensor"),
    "use_writes": ("bool", "use: whether it is written"),
    "use_times": ("int64", "use: first started, last ended; 0 if that was not recorded"),
    "wait_cause": ("int8", f"wait of an issuing thread: index into {', '.join(CAUSES)}"),
    "wait_times": ("int64", "wait: begun, ended"),
    "wait_thread": ("int64", "wait: the thread"),
    "sample_times": ("int64", "sample of an issuing thread: from, to; it stands for that time"),
    "sample_thread": ("int64", "sample: the thread"),
    "sample_state": ("int8", f"sample: index into {', '.join(SAMPLED)}"),
    "sample_line": ("int32", "sample: the user's line, an index into `lines`; -1: not known"),
    "sample_spot": ("int32", "sample: the expression in it, an index into `spots`; or -1"),
    "sample_stack": ("int32", "sample: index into `sample_stacks`"),
}
# what a row of a column is, where its name does not begin with it and it is no instruction
ROWS = dict.fromkeys(("tensor", "access", "size"), "operands")
ROWS |= dict.fromkeys(("source", "target", "hazard", "operand"), "edges")
WIDE = {"times": len(TIMES)}
WIDE |= dict.fromkeys(("task_times", "share_times", "use_times", "wait_times", "sample_times"), 2)

MOST_BYTES = 1 << 33  # of all columns
MOST_PACKED = 200  # bytes that one of the file may unpack to
FREE_BYTES = 1 << 26  # that a file may unpack to however small it is
_TEXTS = several(text(1 << 16))
_COUNT = integer(0, 1 << 60)
_CREDIT = integer(-(1 << 20), 1 << 60)
_PLAN = record(
    registers=_COUNT,
    chunk=_COUNT,
    regst_num=integer(1, 1 << 16),
    actors=several(
        row(integer(0, 1 << 14), _COUNT, _COUNT, several(_COUNT), several(row(_COUNT, _CREDIT)))
    ),
    tasks=several(row(text(), text(), _COUNT, integer(0, 1 << 14), integer(-1, 1 << 31))),
)
_NODE = row(_COUNT, text(), text(1 << 16), text(), text())
_DRAWN = row(text(), text(1 << 16), text(), text(), integer(0, 1))
_PASSES = record(
    captured=_COUNT,
    passes=several(row(text(), _COUNT, _COUNT, text(1 << 20))),
    idle=several(text()),
    left_out=several(text()),
    pairs=several(row(several(_NODE), maybe(_NODE), integer(-1, 1 << 24), text())),
)
_INFO = options(
    machine=text(),
    level=integer(0, 3),
    overwritten=_COUNT,
    lost=integer(),
    raised=text(),
    sources=mapping(text(1 << 16)),
    bare=_COUNT,
    live=mapping(integer(-(1 << 56), 1 << 56)),
    spaces=several(text(), 1 << 14),
    clocks=mapping(anything),
    plans=mapping(_PLAN),
    passes=mapping(_PASSES),
    # of a Plan: edges between its tasks; its graph as captured and behind each pass: a title, nodes
    # (operator, result, line, phase, whether it was made then), edges between them
    flows=mapping(several(row(_COUNT, _COUNT))),
    stages=mapping(several(row(text(1 << 20), several(_DRAWN), several(row(_COUNT, _COUNT))))),
    backward=mapping(several(_COUNT)),  # of a Plan, its actors that begin with a backward task
    cpu=text(),
    run_ahead_bytes=integer(0, 1 << 62),
    recording=maybe(row(number, number)),
    # who had the cores meanwhile (`flowvm.vm.watch.cores`)
    load=record(
        cores=integer(1, 1 << 16),
        wall=_COUNT,
        others=integer(-1, 1 << 60),
        threads=several(row(text(), text(20), _COUNT, _COUNT)),
    ),
    # other Python threads that ran while issuing ones did not: line, expression, name, ns
    ran=several(row(integer(-1, 1 << 31), integer(-1, 1 << 31), text(), _COUNT)),
    roofline=anything,  # whoever asks for it looks
    purposes=several(row(integer(0, 1 << 31), text(40), text(1 << 16))),
    held=several(row(integer(-1, 1 << 31), _COUNT, text(40), text(1 << 16), text())),
)
_HEADER = record(
    begun=integer(),
    ended=integer(),
    names=_TEXTS,
    lines=_TEXTS,
    streams=several(text(), 1 << 14),
    modules=_TEXTS,
    spots=several(row(text(1 << 16), integer(), integer(), text(1 << 16))),
    info=_INFO,
    stacks=several(several(integer(-1, 1 << 31), least=1)),
    sample_stacks=several(several(integer(-1, 1 << 31))),
    marks=several(row(text(1 << 16), integer(), integer(), integer(), integer(0), integer(0))),
)
# column -> (least, below which of the header's lists, or which rows, it is)
_POINTS: dict[str, tuple[int, str]] = {
    "op": (0, "names"), "task_op": (0, "names"),
    "stream": (0, "streams"), "task_stream": (0, "streams"), "share_stream": (0, "streams"),
    "line": (-1, "lines"), "forward": (-2, "lines"), "task_line": (-1, "lines"),
    "task_forward": (-2, "lines"),
    "spot": (-1, "spots"), "forward_spot": (-1, "spots"),
    "module": (-1, "modules"), "task_module": (-1, "modules"),
    "source": (0, "rows"), "target": (0, "rows"), "task_launch": (0, "rows"),
    "share_of": (0, "rows"), "use_of": (0, "rows"),
    "operand": (-1, "operands"),
    "sample_line": (-1, "lines"), "sample_spot": (-1, "spots"),
    "sample_stack": (0, "sample_stacks"),
}  # fmt: skip
_RANGES = {
    "kind": (0, 63), "clock": (0, 2), "access": (0, 15), "hazard": (0, len(HAZARDS) - 1),
    "wait_cause": (0, len(CAUSES) - 1), "sample_state": (0, len(SAMPLED) - 1),
    "task_number": (0, 1 << 24), "share_task": (-1, 1 << 24),
    "share_helper": (0, 1 << 12), "size": (0, 1 << 48), "nbytes": (0, 1 << 56),
    "flops": (0, 1 << 62), "scratch": (0, 1 << 48), "task_nbytes": (0, 1 << 56),
    "task_flops": (0, 1 << 62), "share_chunks": (0, 1 << 48), "seq": (0, 1 << 62),
}  # fmt: skip
_TIME = 1 << 62


def read_archive(path: str | Path) -> tuple[Any, dict[str, Any]]:
    """The header, as a text, and the columns of a file.  Memory is taken for what the file has
    packed, not for what it says: ArgumentError where that is not the same, or too much for a run.
    """
    with zipfile.ZipFile(path) as archive:
        members = {m.filename.removesuffix(".npy"): m for m in archive.infolist()}
        if len(members) != len(archive.infolist()) or "header" not in members:
            raise KeyError("an archive of other files")
        total = sum(member.file_size for member in members.values())
        if total > min(MOST_BYTES, max(FREE_BYTES, MOST_PACKED * Path(path).stat().st_size)):
            raise ArgumentError(f"the file unpacks to {total} bytes, more than any run has")
        arrays = {name: _array(archive, member, name) for name, member in members.items()}
    return str(arrays.pop("header")[()]), arrays


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> Any:
    """One array of an archive of NumPy's, of the dtype that it has to have."""
    with archive.open(member) as file:
        version = npy.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            wrong(name, f"an array of NumPy's version {version}", "one of 1.0 or 2.0")
        header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, backwards, dtype = header(file)
        text = name == "header"
        if text and (dtype.kind != "U" or shape != ()):
            wrong(name, f"{dtype} {shape}", "a text")
        if not text and name in COLUMNS and dtype != np.dtype(COLUMNS[name][0]):
            wrong(name, str(dtype), COLUMNS[name][0])
        size = member.file_size - file.tell()
        if dtype.hasobject or any(type(n) is not int or n < 0 for n in shape):
            wrong(name, f"{dtype} {shape}", "numbers")
        if math.prod(shape) * dtype.itemsize != size:
            wrong(name, f"{dtype} {shape} of {size} bytes", "as large as it says")
        data = file.read()
    if len(data) != size:
        wrong(name, f"{len(data)} bytes", f"{size} bytes")
    flat = np.frombuffer(bytearray(data), dtype)
    return flat.reshape(shape, order="F" if backwards else "C")


def check_header(header: Any) -> None:
    """ArgumentError unless these are the names and marks of a run."""
    _HEADER(header, "the header")
    info, lines, streams = header["info"], len(header["lines"]), len(header["streams"])
    if len(info.get("spaces", header["streams"])) != streams:
        wrong("the header.info.spaces", len(info["spaces"]), f"one for each of {streams} streams")
    for name, plan in info.get("plans", {}).items():
        used = [actor[0] for actor in plan["actors"]] + [task[3] for task in plan["tasks"]]
        last = max([0, *(task[4] for task in plan["tasks"])])
        if max([0, *used]) >= max(1, streams) or last >= max(1, lines):
            wrong(f"the plan {name[:80]}", max([last, *used]), "a place in streams or lines")
    for line, spot, *_ in info.get("ran", ()):
        if line >= lines or spot >= len(header["spots"]):
            wrong("the header.info.ran", max(line, spot), "a place in lines and spots")
    for stack in header["stacks"]:
        if any(line >= lines for line in stack[1:]):
            wrong("the header.stacks", max(stack[1:]), f"a place in {lines} lines")
    spots = len(header["spots"])
    for stack in header["sample_stacks"]:
        if len(stack) % 2 or max(stack[::2], default=0) >= max(1, lines):
            wrong("the header.sample_stacks", len(stack), f"pairs of a place in {lines} lines")
        if max(stack[1::2], default=0) >= max(1, spots):
            wrong("the header.sample_stacks", max(stack[1::2]), f"a place in {spots} spots")


def check_columns(columns: Mapping[str, Any], header: Mapping[str, Any]) -> None:
    """ArgumentError unless the columns are as COLUMNS says, as long as each other, and point to
    what is there.
    """
    lengths: dict[str, int] = {}
    for name, (dtype, _) in COLUMNS.items():
        column, wide = columns[name], (WIDE[name],) if name in WIDE else ()
        if column.dtype != np.dtype(dtype) or column.shape[1:] != wide or column.ndim < 1:
            wrong(name, f"{column.dtype} {column.shape}", f"{dtype} with rows {wide}")
        rows = _rows_of(name)
        if name == "spot" and not len(column):
            continue  # a run that knows its lines and not the expressions in them
        if name != "offsets" and lengths.setdefault(rows, len(column)) != len(column):
            wrong(name, len(column), f"as long as its neighbours, {lengths[rows]}")
        if name.endswith("times"):
            _between(name, column, -1, _TIME)
    count = lengths["rows"]
    lists = ("names", "lines", "streams", "modules", "spots", "sample_stacks")
    sizes = {n: len(header[n]) for n in lists}
    sizes |= {"rows": count, "operands": lengths["operands"]}
    for name, (least, of) in _POINTS.items():
        _between(name, columns[name], least, sizes[of] - 1)
    for name, (least, most) in _RANGES.items():
        _between(name, columns[name], least, most)
    tensors = lengths["operands"] + lengths["use"]
    for name in ("tensor", "use_tensor"):
        _between(name, columns[name], 0, tensors)
    offsets = columns["offsets"]
    if len(offsets) != count + 1 or offsets[0] != 0 or offsets[-1] != lengths["operands"]:
        wrong("offsets", len(offsets), f"{count + 1} places from 0 to {lengths['operands']}")
    if (np.diff(offsets) < 0).any() or (np.diff(columns["seq"]) <= 0).any():
        wrong("offsets or seq", "unsorted", "in order")
    if (np.diff(columns["target"]) < 0).any() or (columns["source"] >= columns["target"]).any():
        wrong("target", "unsorted", "in order, each behind its source")
    for first, last in [mark[4:] for mark in header["marks"]]:
        if not first <= last <= count:
            wrong("a mark", last, f"a place in {count} instructions")
    for stack in header["stacks"]:
        if stack[0] >= count:
            wrong("a stack", stack[0], f"a place in {count} instructions")


def _rows_of(name: str) -> str:
    head = name.split("_")[0]
    parts = ("task", "share", "use", "wait", "sample")
    return ROWS.get(name) or (head if head in parts and "_" in name else "rows")


def _between(name: str, column: Any, least: int, most: int) -> None:
    if column.size and (column.min() < least or column.max() > most):
        worst = column.min() if column.min() < least else column.max()
        wrong(name, int(worst), f"at least {least} and at most {most}")
