"""From the flight recorder's snapshot to a `Run`: names for numbers, sizes, edges.

What is the same for all calls of a kind (operator, bytes, operations) is worked out once an entry
of the VM, so a run of 65,536 instructions takes a few tenths of a second.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any, NamedTuple

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.profiler.run.columns import CAUSES
from flowvm.profiler.run.costs import recorded_ns
from flowvm.profiler.run.loss_places import placed, woken
from flowvm.profiler.run.roof import cpu_name
from flowvm.profiler.run.roof import known as known_roof
from flowvm.profiler.run.run import Run
from flowvm.profiler.run.samples import add_samples, mine, off_processor
from flowvm.vm.callers.lines import UNKNOWN, expression, short_position, source_line
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.edges import connect, tensors_of
from flowvm.vm.machine.words import CTL, ENT, KIND, OPERAND, REC
from flowvm.vm.watch.device_times import HOST, place_on_devices
from flowvm.vm.watch.flight import TIMES, Snapshot
from flowvm.vm.watch.sampling import Sample
from flowvm.vm.watch.spaces import space_of, spaces
from flowvm.vm.watch.uses import uses_of
from flowvm.vm.watch.work import flops_of

MOST_RAN = 16  # lines of other Python threads
_NAMES = {
    KIND.TOUCH: "wait",
    KIND.BARRIER: "barrier",
    KIND.RELEASE: "release",
    KIND.CALLBACK: "callback",
    KIND.RESTORE: "restore",
}


class _Call(NamedTuple):
    """The common facts of all instructions of an entry."""

    name: str
    kind: int
    nbytes: int
    flops: int
    scratch: int
    sizes: tuple[int, ...]  # of the operands, as far as they are known


def _call(entry: int) -> _Call:
    at = ENT.AT + entry * ENT.WORDS
    words = engine.words[at : at + ENT.WORDS].tolist()
    info = engine.entries.info[entry][0] if entry < len(engine.entries.info) else None
    kind = words[ENT.KIND]
    name = getattr(info, "name", None) or _NAMES.get(kind, str(info))
    metas = getattr(info, "metas", ())
    sizes = tuple(meta.nbytes for meta in metas) or tuple(getattr(info, "sizes", ()))
    return _Call(name, kind, sum(sizes), flops_of(name, metas), words[ENT.SCRATCH], sizes)


def _apart(calls: list[_Call]) -> list[_Call]:
    """Plans of one graph are told apart: those behind the first get a number."""
    numbers: dict[str, int] = {}
    parts = []
    for call in calls:
        if call.kind == KIND.LAUNCH:
            numbers[call.name] = number = numbers.get(call.name, 0) + 1
            call = call if number == 1 else call._replace(name=f"{call.name} ({number})")
        parts.append(call)
    return parts


class _Table:
    """Numbers things in order of appearance."""

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.numbers: dict[object, int] = {}

    def number(self, text: str) -> int:
        if text not in self.numbers:
            self.numbers[text] = len(self.rows)
            self.rows.append(text)
        return self.numbers[text]


class _Lines(_Table):
    """Lines, and expressions in them, by (code object, offset): the same one is looked up once."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: dict[str, str] = {}  # what stands in them
        self.spots: dict[tuple[str, int, int, str], int] = {}  # text, columns, function
        self.spot_numbers: dict[object, int] = {}

    def at(self, code: Any, last: int) -> int:
        key = (id(code), last)
        if key not in self.numbers:
            name = short_position(code, last)
            self.numbers[key] = self.number(name)
            number = name.rpartition(":")[2]
            if number.isdecimal():
                self.sources[name] = source_line(code.co_filename, int(number)).strip()
        return self.numbers[key]

    def spot(self, code: CodeType | None, last: int) -> int:
        """The number of the expression in the line."""
        key = (id(code), last)
        if key not in self.spot_numbers:
            where = (*expression(code, last), getattr(code, "co_qualname", ""))
            self.spot_numbers[key] = self.spots.setdefault(where, len(self.spots))
        return self.spot_numbers[key]


def collect(
    snapshot: Snapshot,
    begun: int = 0,
    samples: Sequence[Sample] = (),
    load: Mapping[str, object] | None = None,
) -> Run:
    """A Run of what was seen, from `begun`, by default the first event, to the last event; with
    `samples` of what issuing threads were doing, and `load`: who had the cores.
    """
    names, lines, modules = _Table(), _Lines(), _Table()
    modules.number("")
    entries, which = np.unique(snapshot.entry, return_inverse=True)
    calls = _apart([_call(int(e)) for e in entries])
    counts = np.diff(snapshot.offsets)
    owner = np.repeat(np.arange(len(snapshot.seq)), counts)

    def of_calls(values: list[int]) -> Array:
        return np.array(values, np.int64)[which] if values else np.zeros(0, np.int64)

    kind = of_calls([c.kind for c in calls])
    tensor = tensors_of(owner, snapshot.storage, kind == KIND.RELEASE)
    edges = connect(owner, tensor, snapshot.access & 3 != OPERAND.CONST)
    times = _issued_in_time(snapshot)
    times, opened, clock = place_on_devices(
        times, snapshot.stream, kind, edges, int(engine.words[CTL.DEVICES]), snapshot.devices.times
    )
    arrivals = times[np.isin(kind, (KIND.TOUCH, KIND.BARRIER)), TIMES.index("ended")]
    waits = woken(snapshot.waits, arrivals)
    waits = placed(waits, times[:, TIMES.index("issued")], off_processor(samples))
    happened = times[times > 0]
    run = Run(
        begun=begun or (int(happened.min()) if len(happened) else 0),
        ended=int(times.max(initial=begun)),
        seq=snapshot.seq,
        op=of_calls([names.number(c.name) for c in calls]).astype(np.int32),
        kind=kind.astype(np.int8),
        stream=snapshot.stream.astype(np.int16),
        line=np.array(list(map(lines.at, snapshot.codes, snapshot.lasts)), np.int32),
        spot=np.array(list(map(lines.spot, snapshot.codes, snapshot.lasts)), np.int32),
        status=snapshot.status,
        times=times,
        opened=opened,
        clock=clock,
        nbytes=of_calls([c.nbytes for c in calls]),
        flops=of_calls([c.flops for c in calls]),
        scratch=of_calls([c.scratch for c in calls]),
        offsets=snapshot.offsets,
        tensor=tensor.astype(np.int32),
        access=snapshot.access.astype(np.int8),
        size=_sizes(snapshot, calls, which, owner, tensor),
        source=edges.source.astype(np.int32),
        target=edges.target.astype(np.int32),
        hazard=edges.hazard.astype(np.int8),
        operand=edges.operand.astype(np.int32),
        wait_cause=np.array([CAUSES.index(wait.cause) for wait in waits], np.int8),
        wait_times=np.array([(wait.begun, wait.ended) for wait in waits], np.int64).reshape(-1, 2),
        wait_thread=np.array([wait.thread for wait in waits], np.int64),
    )
    _add_modules(run, snapshot, modules)
    for i, (code, last) in snapshot.forward.items():
        known = code is not None
        run.forward[i] = lines.at(code, last) if known else UNKNOWN
        run.forward_spot[i] = lines.spot(code, last) if known else -1
    _add_tasks(run, snapshot, names, lines, modules)
    _add_shares(run, snapshot)
    plans, backward = _plans(calls, entries, lines)
    infos = [engine.entries.info[e][0] if e < len(engine.entries.info) else None for e in entries]
    uses = uses_of(snapshot, [infos[k] for k in which])
    run.use_of, run.use_tensor = uses[:, 0].astype(np.int32), run.tensor[uses[:, 1]]
    run.use_writes, run.use_times = uses[:, 2].astype(bool), uses[:, 3:]
    for seq, frames in snapshot.stacks.items():
        place = int(np.searchsorted(snapshot.seq, seq))
        run.stacks.append([place, *(lines.at(code, last) for code, last in frames)])
    run.marks = [[*m[:4], *np.searchsorted(snapshot.seq, m[4:]).tolist()] for m in snapshot.marks]
    if samples:
        add_samples(run, samples, lines)
    ran = _ran(run, snapshot, lines)
    run.names, run.lines, run.modules = names.rows, lines.rows, modules.rows
    run.spots = [list(spot) for spot in lines.spots]
    run.streams = [engine.streams.name(s) for s in range(engine.streams.count)]
    run.info = {
        "machine": platform.machine(),
        "level": int(engine.words[CTL.LEVEL]),
        "overwritten": snapshot.overwritten,
        "sources": lines.sources,
        "bare": int(snapshot.bare.sum()),
        "live": {space.name: space.live for space in spaces(engine)},
        "spaces": [space_of(engine, s) for s in range(engine.streams.count)],
        "clocks": snapshot.devices.notes,
        "plans": plans,
        "passes": _passes(calls, entries),
        "flows": _of_plans(calls, entries, "flows"),
        "stages": _of_plans(calls, entries, "stages"),
        "backward": backward,
        "cpu": cpu_name(),
        "recording": recorded_ns(),
        "run_ahead_bytes": int(engine.words[CTL.BYTES_HIGH]),
        "ran": ran,
    }
    if load is not None:
        run.info["load"] = dict(load)
    if (roof := known_roof()) is not None:
        run.info["roofline"] = roof.to_dict()
    return run


def _ran(run: Run, snapshot: Snapshot, lines: _Lines) -> list[list[object]]:
    """Return the places at which other Python threads ran while issuing ones did not: line,
    expression, the thread's name, and nanoseconds, most first.
    """
    total: dict[tuple[int, int, str], int] = {}
    for one in snapshot.ran:
        if one.ended <= run.begun or one.begun >= run.ended:
            continue
        k = mine(one.frames)
        at = (lines.at(*one.frames[k]), lines.spot(*one.frames[k])) if k >= 0 else (UNKNOWN, -1)
        total[*at, one.name] = total.get((*at, one.name), 0) + one.used
    return [[*at, n] for at, n in sorted(total.items(), key=lambda item: -item[1])[:MOST_RAN]]


def _add_modules(run: Run, snapshot: Snapshot, modules: _Table) -> None:
    """The modules of eager instructions; a release belongs to none, whoever found it due."""
    number_of = np.array([modules.number(path) for path in snapshot.modules], np.int32)
    run.module = np.where(run.kind == KIND.RELEASE, 0, number_of[snapshot.module]).astype(np.int32)


def _issued_in_time(snapshot: Snapshot) -> Array:
    """The times, with `issued` no later than issuing threads know: the scheduler stamps it when it
    sees a record, which is late when it slept, but a thread that began to wait at some moment had
    issued by then whatever has a lower number.
    """
    times = snapshot.times.copy()
    known = sorted([(wait.seq, wait.begun) for wait in snapshot.waits] + snapshot.anchors)
    if known:
        seqs, moments = np.array(known, np.int64).T
        earliest = np.append(np.minimum.accumulate(moments[::-1])[::-1], np.iinfo(np.int64).max)
        bound = earliest[np.searchsorted(seqs, snapshot.seq)]
        times[:, 0] = np.minimum(times[:, 0], bound)
    return times


def _sizes(
    snapshot: Snapshot, calls: list[_Call], which: Array, owner: Array, tensor: Array
) -> Array:
    """Bytes of each operand; where its call does not say, the most that another says of it."""
    width = max((len(c.sizes) for c in calls), default=0)
    table = np.zeros((max(1, len(calls)), max(1, width)), np.int64)
    for i, call in enumerate(calls):
        table[i, : len(call.sizes)] = call.sizes
    k = np.arange(len(owner)) - snapshot.offsets[owner]
    known = np.minimum(k, table.shape[1] - 1)
    size = np.where(k < table.shape[1], table[which[owner], known], 0)
    most = np.zeros(int(tensor.max(initial=-1)) + 1, np.int64)
    np.maximum.at(most, tensor, size)
    return np.where(size == 0, most[tensor], size)


def _plans(
    calls: list[_Call], entries: Array, lines: _Lines
) -> tuple[dict[str, object], dict[str, list[int]]]:
    """Return the facts about the Plans that were launched, by name, and their backward actors."""
    columns: dict[str, object] = {}
    backward: dict[str, list[int]] = {}
    for call, entry in zip(calls, entries.tolist(), strict=True):
        info = engine.entries.info[entry][0] if call.kind == KIND.LAUNCH else None
        if info is None or not hasattr(info, "described"):
            continue
        both = zip(info.recorded, info.nodes, info.described["tasks"], strict=True)
        tasks = [
            [name, scope, repeat, stream, lines.at(code, last)]
            for (name, scope, _, _), (_, code, last, _), (repeat, stream) in both
        ]
        columns[call.name] = {**info.described, "tasks": tasks}
        firsts = ((k, actor[1]) for k, actor in enumerate(info.described["actors"]))
        backward[call.name] = [k for k, task in firsts if info.recorded[task][2] == "backward"]
    return columns, backward


def _of_plans(calls: list[_Call], entries: Array, name: str) -> dict[str, object]:
    """Return a fact about the Plans that were launched, where it is known."""
    infos = (
        (call.name, engine.entries.info[entry][0])
        for call, entry in zip(calls, entries.tolist(), strict=True)
        if call.kind == KIND.LAUNCH
    )
    return {plan: fact for plan, info in infos if (fact := getattr(info, name, None))}


def _passes(calls: list[_Call], entries: Array) -> dict[str, object]:
    """Return the passes' reports on the graphs of these Plans, where they are known."""
    passes: dict[str, object] = {}
    for call, entry in zip(calls, entries.tolist(), strict=True):
        info = engine.entries.info[entry][0] if call.kind == KIND.LAUNCH else None
        report = info.passes() if info is not None and hasattr(info, "passes") else None
        if report is not None:
            passes[call.name] = report
    return passes


def _add_tasks(run: Run, snapshot: Snapshot, names: _Table, lines: _Lines, modules: _Table) -> None:
    """The tasks of graphs' replays, where their launches are in the run; not those of devices,
    which are launched and have no times of their own.
    """
    launch, number, _, stream, started, ended = snapshot.tasks.T
    place = np.searchsorted(snapshot.seq, launch)
    inside = place < len(snapshot.seq)
    inside[inside] = (snapshot.seq[place[inside]] == launch[inside]) & (
        run.clock[place[inside]] == HOST
    )
    rows = []
    for i, task in zip(place[inside].tolist(), number[inside].tolist(), strict=True):
        info = engine.entries.info[int(snapshot.entry[i])][0]
        name, scope, _, metas = info.recorded[task]
        _, code, last, _ = info.nodes[task]
        nbytes = sum(meta.nbytes for meta in metas)
        forward = lines.at(*info.forward[task]) if info.forward[task][0] is not None else -1
        rows.append((names.number(name), lines.at(code, last), modules.number(scope), nbytes,
                     flops_of(name, metas), forward))  # fmt: skip
    table = np.array(rows, np.int64).reshape(-1, 6)
    run.task_launch, run.task_number = (
        place[inside].astype(np.int32),
        number[inside].astype(np.int32),
    )
    run.task_op, run.task_line = table[:, 0].astype(np.int32), table[:, 1].astype(np.int32)
    run.task_module, run.task_forward = table[:, [2, 5]].T.astype(np.int32)
    run.task_nbytes, run.task_flops = table[:, 3], table[:, 4]
    run.task_stream = stream[inside].astype(np.int16)
    run.task_times = np.column_stack((started, ended))[inside]


def _add_shares(run: Run, snapshot: Snapshot) -> None:
    """Add the helpers' shares of the run's instructions."""
    launch, task, stream, helper, started, ended, chunks = snapshot.shares.T
    place = np.searchsorted(snapshot.seq, launch)
    inside = place < len(snapshot.seq)
    inside[inside] = snapshot.seq[place[inside]] == launch[inside]
    run.share_of, run.share_task = place[inside].astype(np.int32), task[inside].astype(np.int32)
    run.share_stream = stream[inside].astype(np.int16)
    run.share_helper, run.share_chunks = helper[inside].astype(np.int16), chunks[inside]
    run.share_times = np.column_stack((started, ended))[inside]


assert len(TIMES) == REC.RELEASED - REC.ISSUED + 1, "a column for each stamp"
