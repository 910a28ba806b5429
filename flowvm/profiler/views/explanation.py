"""`flow.explain(tensor)`: where it comes from, where it is, and who waits for it.

From the flight recorder, which is always on, so nothing has to be switched on before, and nothing
is waited for: a tensor that is not computed yet says what it waits for.  A tree of instructions:
the one that wrote the tensor last, what that read, who wrote that, four levels down.  What the
recorder has forgotten says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from flowvm.eager.tensor import Fields, Tensor
from flowvm.errors import ArgumentTypeError, Status
from flowvm.profiler.grammar import ACCESS, Line, Screen, Span, View, cropped, ms, size
from flowvm.profiler.run.collect import collect
from flowvm.profiler.views.spots import Spot, spot_of
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import CTL, INS, KIND, OPERAND, STO
from flowvm.vm.watch.in_flight import InFlight, pending
from flowvm.vm.watch.pending import poison_of, writer_within

DEPTH = 4
MOST = 6  # operands, or users, that are named


@dataclass(frozen=True)
class Source:
    """An operand that had contents before: `made` wrote them last, or `note` says why not."""

    name: str
    access: int  # 0 const, 1 mut, 2 mut2
    what: str
    made: Made | None
    note: str


@dataclass(frozen=True)
class Made:
    """An instruction.  `task`: which of a graph's Plan wrote the tensor.  `run` is ns."""

    seq: int
    op: str
    task: str
    stream: str
    line: str
    spot: Spot
    state: str
    run: int
    sources: tuple[Source, ...]
    more: int  # sources that are not named


@dataclass(frozen=True)
class User:
    """A later instruction that uses the tensor."""

    seq: int
    op: str
    how: str
    state: str
    line: str


@dataclass(frozen=True, repr=False)
class Explanation(View):
    """See the module."""

    what: str
    place: str
    made: Made | None
    note: str
    users: tuple[User, ...]
    more_users: int
    failure: str

    def screen(self, width: int) -> Screen:
        """See View."""
        screen = Screen()
        screen.add((self.what, "verdict"), f"  {self.place}")
        if self.failure:
            screen.add((f" failed: {cropped(self.failure, width - 9)}", "bad"))
        first, rest = ("├─ ", "│  ") if self.users else ("╰─ ", "   ")
        if self.made is None:
            screen.add(first + self.note)
        else:
            _branch(screen, [(first + "made by ", "")], self.made, rest, width, set())
        for k, user in enumerate(self.users):
            more = f" and {self.more_users} more" if self.more_users else ""
            end = k + 1 == len(self.users)
            screen.add("╰─ " if end else "├─ ", (f"{user.how} ", "head"),
                       f"#{user.seq} {user.op}  ", (user.state, _state_style(user.state)),
                       (f"  {user.line}{more if end else ''}", "line"))  # fmt: skip
        return screen.cut(width)


def _state_style(state: str) -> str:
    return "head" if state == "done" else "bad" if state.startswith(("fail", "pois")) else "dep"


def _branch(
    screen: Screen, head: Line, maker: Made, rest: str, width: int, shown: set[int]
) -> None:
    """The lines of an instruction behind `head`, and of what it read behind `rest`."""
    ran = f"  {ms(maker.run)} ms" if maker.run else ""
    known = "  (above)" if maker.seq in shown else ""
    spans: list[str | Span] = [*head, (f"#{maker.seq} {maker.op}", "id")]
    if maker.task:
        spans.append(f"  task {maker.task}")
    spans.append(f"  {maker.stream}{ran}")
    if maker.state != "done":
        spans.append((f"  {maker.state}", _state_style(maker.state)))
    screen.add(*spans, (f"  {maker.line}{known}", "line"))
    if known:
        return
    shown.add(maker.seq)
    bar = "│" if maker.sources else " "
    for text in maker.spot.lines(0, max(20, width - len(rest) - 5)):
        screen.lines.append([(f"{rest}{bar}    ", ""), *text])
    for k, source in enumerate(maker.sources):
        end = k + 1 == len(maker.sources)
        glyph, _, style = ACCESS[source.access]
        branch: Line = [(rest + ("╰" if end else "├"), ""), (glyph[0] + " ", style),
                        (f"{source.name} {source.what}".strip(), style)]  # fmt: skip
        if source.made is None:
            screen.add(*branch, (f"  {source.note}", "head"))
        else:
            below = rest + ("   " if end else "│  ")
            _branch(screen, [*branch, (f" ◄{glyph[0]} ", style)], source.made, below, width, shown)
    if maker.more:
        screen.add((f"{rest}   and {maker.more} more", "head"))


# --- looking ----------------------------------------------------------------------------------


class _Past:
    """The flight recorder's instructions, with the last writer of each storage."""

    def __init__(self) -> None:
        # the pending first: what the recorder then does not know to be over is among them, however
        # much is completed in between
        self.now: dict[int, InFlight] = {one.seq: one for one in pending(engine)}
        self.snapshot = engine.flight.look()
        self.run = collect(self.snapshot)
        run = self.run
        self.owner = run.owner
        writes = (run.access & 3 != OPERAND.CONST) & (run.kind[self.owner] != KIND.RELEASE)
        flat = np.flatnonzero(writes)
        self.keys = run.tensor[flat].astype(np.int64) * (len(run) + 1) + self.owner[flat]
        order = np.argsort(self.keys, kind="stable")
        self.keys, self.flat = self.keys[order], flat[order]

    def writer(self, tensor: int, before: int) -> int:
        """The flat operand by which an instruction below `before` wrote a tensor last, or -1."""
        base = tensor * (len(self.run) + 1)
        k = int(np.searchsorted(self.keys, base + before)) - 1
        return int(self.flat[k]) if k >= 0 and self.keys[k] >= base else -1

    def lost(self) -> str:
        """Explain why the last writer of a storage is not known."""
        if int(engine.words[CTL.LEVEL]) == 0:
            return "unknown: the recorder is off (flow.profiler.level)"
        forgotten = self.snapshot.overwritten
        if forgotten or self.run.info["bare"]:
            return f"forgotten: the recorder has lost the first {forgotten:,} instructions"
        return "from Python: a number, a list or an array"

    def info(self, i: int) -> object:
        entry = int(self.snapshot.entry[i])
        return engine.entries.info[entry][0] if entry < len(engine.entries.info) else None

    def state(self, i: int) -> str:
        """done, failed, poisoned, or what it does now."""
        run = self.run
        if run.status[i] == INS.POISONED:
            return "poisoned: it needed what had failed"
        if run.status[i] == Status.CAPTURED:
            return "captured: a graph computes it, here it has no value"
        if run.status[i]:
            return f"failed with status {run.status[i]}"
        if run.time("released")[i] or run.time("ended")[i]:
            return "done"
        in_flight = self.now.get(int(run.seq[i]))
        if in_flight is None:  # another thread's, since
            return "issued"
        return in_flight.reason() or in_flight.state

    def origin(self, flat: int, depth: int) -> Made:
        """The instruction of a flat operand, and what it read."""
        run, i = self.run, int(self.owner[flat])
        first, last = int(run.offsets[i]), int(run.offsets[i + 1])
        info = self.info(i)
        metas, names = getattr(info, "metas", ()), getattr(info, "names", ())
        # of a tensor that it has twice, the operand that it writes
        by_access = sorted(range(first, last), key=lambda k: -(int(run.access[k]) & 3))
        known = {int(run.tensor[k]): k for k in reversed(by_access)}
        read = sorted(k for k in known.values() if not int(run.access[k]) & OPERAND.ALLOCATE)
        if run.status[i] == Status.CAPTURED:
            read = []
        sources = []
        for k in read[:MOST] if depth > 0 else ():
            n = k - first
            maker = self.writer(int(run.tensor[k]), i)
            sources.append(
                Source(
                    names[n] if n < len(names) else f"operand {n}",
                    int(run.access[k]) & 3,
                    repr(metas[n]) if n < len(metas) else "",
                    self.origin(maker, depth - 1) if maker >= 0 else None,
                    "" if maker >= 0 else self.lost(),
                )
            )
        return Made(
            int(run.seq[i]),
            run.names[run.op[i]],
            _task(info, flat - first),
            run.streams[run.stream[i]],
            run.lines[run.line[i]],
            spot_of(run, i),
            self.state(i),
            max(0, int(run.time("ended")[i] - run.time("started")[i])),
            tuple(sources),
            max(0, len(read) - MOST) if depth > 0 else 0,
        )

    def users(self, tensor: int, after: int) -> list[User]:
        """List the users of a tensor behind an instruction, those that are not done first."""
        run = self.run
        flat = np.flatnonzero((run.tensor == tensor) & (self.owner > after))
        users: dict[int, User] = {}
        for k in flat.tolist():
            i = int(self.owner[k])
            if run.kind[i] in (KIND.RELEASE, KIND.BARRIER):
                continue
            how = "written by" if int(run.access[k]) & 3 else "read by"
            users[i] = User(
                int(run.seq[i]), run.names[run.op[i]], how, self.state(i), run.lines[run.line[i]]
            )
        return sorted(users.values(), key=lambda user: (user.state == "done", user.seq))


def _task(info: Any, operand: int) -> str:
    """Return the task of a Plan that writes an operand of its launch: 11 sum (model.fc2)."""
    number = getattr(info, "writers", {}).get(operand, -1)
    if number < 0:
        return ""
    name, scope, _, _ = info.recorded[number]
    return f"{number} {name}" + (f" ({scope})" if scope else "")


# public: flow (late)
def explain(tensor: Tensor) -> Explanation:
    """Explain a tensor: the instruction and line that made it, its inputs, its memory, its users.

    Nothing is waited for.  ArgumentTypeError for what is no tensor.

    >>> "made by" in str(flow.explain(flow.ones(2)))
    True
    """
    if not isinstance(tensor, Tensor):
        raise ArgumentTypeError(f"explain takes a tensor, got {type(tensor).__name__}")
    ref = tensor._ref
    writer_within(engine, ref, 0.0)  # what was just issued gets a moment to be received
    past = _Past()
    storage = ref & OPERAND.STORAGE_MASK
    flat = np.flatnonzero(past.snapshot.storage == storage)
    origin, users, note = None, list[User](), past.lost()
    if len(flat) and past.run.kind[past.owner[flat[-1]]] != KIND.RELEASE:
        number = int(past.run.tensor[flat[-1]])
        maker = past.writer(number, len(past.run))
        origin = past.origin(maker, DEPTH) if maker >= 0 else None
        users = past.users(number, int(past.owner[maker]) if maker >= 0 else -1)
    cause, failure = poison_of(engine, ref), ""
    engine.failures.collect()
    if cause is not None:
        failed = engine.failures.by_seq.get(cause)
        failure = repr(failed) if failed is not None else f"#{cause} failed"
        failure = "" if failed is not None and failed.captured else failure
    return Explanation(
        _what(tensor), _place(tensor, storage), origin, note, tuple(users[:MOST]),
        max(0, len(users) - MOST), failure,
    )  # fmt: skip


def _what(tensor: Tensor) -> str:
    try:
        meta = Fields.__dict__["_meta"].__get__(tensor)
    except AttributeError:  # of an operation that finds out how many elements there are
        return "tensor whose shape is not known yet"
    return f"tensor {meta!r}"


def _place(tensor: Tensor, storage: int) -> str:
    """Describe the memory of a tensor."""
    at = STO.AT + storage * STO.WORDS
    nbytes = int(engine.words[at + STO.BYTES])
    offset = tensor._ref >> OPERAND.STORAGE_BITS
    memory = size(nbytes) if engine.words[at + STO.POINTER] else "no memory yet"
    text = f"storage {storage}, {memory}"
    shared = tensor._storage
    if shared is not None:
        text += ", shared"
        text += f", changed in place {shared.version}×" if shared.version else ""
    return text + (f", begins at byte {offset}: a view" if offset else "")
