"""Issuing a LaunchPlan: the lines of Python that do it, written for one Plan.

What all launches of a Plan have in common (its variables, how operands are accessed) stands in a
block of words; a launch packs outputs, inputs and live numbers into it and publishes a record that
has its address.  The lines are written out, as the interpreter does for an operator, because they
are what a call of a compiled graph costs.

Invariants:
- a block is not written while a launch that has it may be read: it is busy until its instruction is
  released, and there is a ring of blocks that grows when all are busy;
- a block is marked busy before its instruction has a number, and the interrupt handler puts off a
  Ctrl-C in between.  Between two bytecodes that are neither calls nor jumps back, CPython does not
  change threads: taking a block relies on it.
"""

from __future__ import annotations

import struct
import threading
import weakref
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from flowvm.eager.calls import generated, publishing
from flowvm.eager.interpreter import LARGE
from flowvm.eager.modes import current_recorder, placed
from flowvm.eager.tensor import Tensor
from flowvm.errors import CaptureError
from flowvm.graph.logical.nodes import Buffer, BufferKind, Operand
from flowvm.graph.plan.parts import PlanParts
from flowvm.guards.forks import held_at_fork
from flowvm.vm.callers.interrupt import protected
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import CTL, ENT, KIND, OPERAND

NEVER = 1 << 62  # the number of an instruction that has none yet
MOST_BLOCKS = 128  # in a ring; further launches in flight bring blocks of their own


class Launching:
    """The launch of a Plan; `function` carries it out.

    `lines` are the same for a caller that writes a larger function, with `own` for their names.
    """

    def __init__(self, plan: PlanParts, info: object) -> None:
        graph, outputs, kinds = plan.graph, plan.own_outputs, plan.live_kinds
        operands = [r.buffer for r in plan.registers.values() if r.operand >= 0]
        if len(operands) > OPERAND.MAX:
            raise CaptureError(
                f"{plan.name}: a graph has at most {OPERAND.MAX} inputs, variables and outputs, "
                f"not {len(operands)}"
            )
        written = {o.buffer for node in graph.nodes for o in node.written()}
        access = [OPERAND.MUT if b in written else OPERAND.CONST for b in operands]
        access[: len(outputs)] = [OPERAND.MUT | OPERAND.ALLOCATE] * len(outputs)
        returned = {o.buffer for o in graph.outputs} & written
        needed = {o.buffer for node in graph.nodes for o in node.read()}
        needed |= written | {o.buffer for o in graph.outputs}
        for k in range(len(outputs), len(operands)):
            access[k] |= 0 if operands[k] in needed else OPERAND.UNREAD
            access[k] |= OPERAND.RETURNED if operands[k] in returned else 0
        shown_count = len(outputs) + len(graph.inputs)
        held = [b.held.id for b in operands[shown_count:]]
        blocks = _Blocks(array("q", [*[0] * shown_count, *held, *access, *[0] * len(kinds)]))
        entry = _Entry(plan, info)
        writes = (graph.captured[0] if graph.captured else graph).writes()
        mutated = [(b.held, writes.get(b, 1)) for b in graph.mutated()]
        shown_buffers = [*outputs, *(o.buffer for o in graph.inputs)]
        large = plan.chunk_bytes + sum(b.nbytes for b in shown_buffers) >= LARGE
        counts = [f"held{k}.version += {count}" for k, (_, count) in enumerate(mutated)]
        counts += [
            f"x{k}.storage().version += {writes.get(graph.inputs[k].buffer, 1)}"
            for k in graph.written_inputs()
        ]
        source = _Source(plan, shown_count, len(operands), counts, large)
        self._source = source
        self.own: dict[str, object] = {
            "entry": entry.number,
            "make_entry": entry.make,
            "blocks": blocks.ring,
            "spare": blocks.spare,
            "put": struct.Struct("q" * shown_count).pack_into,
            "put_numbers": struct.Struct("".join(kinds)).pack_into,
            "_write": struct.Struct("qqqq").pack_into,
            "departing": _departing(plan.name, engine.streams.of_launches() if plan.actors else -1),
            **{f"held{k}": storage for k, (storage, _) in enumerate(mutated)},
            **source.own,
        }
        tensors = [f"x{k}" for k in range(len(graph.inputs))]
        numbers = [f"n{k}" for k in range(len(kinds))]
        lines = [
            f"def launch_plan({', '.join([*tensors, *numbers])}):",
            *self.lines(numbers, 1),
            f"    return ({''.join(f'o{k}, ' for k in range(len(graph.outputs)))})",
        ]
        self.function: Callable[..., tuple[Tensor, ...]] = protected(
            generated("\n".join(lines) + "\n", f"<flowvm launch {plan.name}>", self.own)
        )

    def lines(self, numbers: Sequence[str], depth: int) -> list[str]:
        """Lines that launch with the inputs x0, x1, ... and the numbers of `plan.live` under these
        names, and leave the outputs in o0, o1, ...

        The user's frame is looked for from `depth` frames up.
        """
        return self._source.lines(numbers, depth)


class _Blocks:
    """Blocks of words for launches: [number of the instruction, words, address, next, previous].

    `ring[0]` is the one that was used longest ago.
    """

    count = 0  # until there is one: an error may end __init__ anywhere

    def __init__(self, words: array[int]) -> None:
        self.first = words
        block = self._new()
        block[3] = block[4] = block
        self.ring = [block]
        self.count = 1
        self._lock = held_at_fork(threading.Lock())

    def _new(self) -> list[Any]:
        words = self.first[:]
        return [-1, words, words.buffer_info()[0], None, None]

    def spare(self) -> list[object]:
        """A busy block more: the ring grows, up to a bound."""
        block = self._new()
        block[0] = NEVER
        with self._lock:
            if self.count < MOST_BLOCKS:
                self.count += 1
                after = self.ring[0]
                before = after[4]
                block[3], block[4] = after, before
                before[3] = after[4] = block
                return block
        engine.records.outline.append(block)
        _forget_released()
        return block

    @protected
    def __del__(self) -> None:  # the engine keeps what launches in flight still need
        block: Any = self.ring[0] if self.count else None
        for _ in range(self.count):
            if block[0] >= engine.words[CTL.HEAD]:
                engine.records.outline.append(block)
            following = block[3]
            block[3] = block[4] = None
            block = following
        _forget_released()


def _forget_released() -> None:
    """Let go of blocks that the engine kept and whose instructions are released."""
    outline = engine.records.outline
    try:
        first = outline.popleft()
        while first[0] < engine.words[CTL.HEAD]:
            first = outline.popleft()
        outline.appendleft(first)
    except IndexError:
        pass


class _Entry:
    """The VM's entry of a Plan, made at its first launch; `number[0]` is -1 before."""

    def __init__(self, plan: PlanParts, info: object) -> None:
        self.number = [-1]
        self.words, self.info = plan.words, info
        self.sizes = [max(1, b.nbytes) for b in plan.own_outputs]
        self.chunk_bytes, self.stream = plan.chunk_bytes, plan.stream
        with engine.lock:  # or who forgets them would see their number change
            _entries.add(self)

    def make(self) -> int:
        with engine.lock:  # one for all threads: what another has issued would lose its entry
            if self.number[0] < 0:
                self.number[0] = engine.entries.new(
                    KIND.LAUNCH,
                    [],
                    layout=self.words,
                    sizes=self.sizes,
                    scratch=self.chunk_bytes,
                    outline=True,
                    stream=self.stream,
                    info=self.info,
                )
            return self.number[0]


_entries: weakref.WeakSet[_Entry] = weakref.WeakSet()


def _forget_entries() -> None:
    with engine.lock:
        for entry in _entries:
            entry.number[0] = -1


engine.entries.on_full.append(_forget_entries)


def _departing(name: str, home: int) -> Callable[..., int]:
    """Return the function to call while some thread captures or issues to another stream.

    It is always called for a Plan on several streams, whose launches have `home` for their stream.
    """

    def departing(word: int, storages: tuple[int, ...]) -> int:
        if current_recorder() is not None:
            raise CaptureError(f"{name}: a compiled graph cannot be called inside a capture")
        word = placed(word) if home < 0 else word | home << ENT.BITS
        stream = word >> ENT.BITS
        if stream:
            for storage in storages:
                engine.storages.stream_of[storage] = stream
        return word

    return departing


class _Source:
    """The source of a Plan's launches, and the objects that it names.

    `shown_count` of its `count` operands are packed; `changes` are lines that count what is
    changed; `large`: dead tensors are released first, for memory is what matters then.
    """

    def __init__(
        self, plan: PlanParts, shown_count: int, count: int, changes: Sequence[str], large: bool
    ) -> None:
        self.plan, self.shown_count, self.count = plan, shown_count, count
        self.changes, self.large = changes, large
        self.own: dict[str, object] = {}
        self.inputs = plan.graph.inputs
        self.shifts = [o.offset << OPERAND.STORAGE_BITS for o in self.inputs]
        self._output_lines = self._outputs()

    def lines(self, numbers: Sequence[str], depth: int) -> list[str]:
        refs = [f"s{k}" for k in range(len(self.plan.own_outputs))]
        storages = "".join(f"{s}, " for s in refs)
        refs += [f"x{k}._ref" + (f" - {s}" if s else "") for k, s in enumerate(self.shifts)]
        kinds = self.plan.live_kinds
        values = [f"int({n})" if k == "q" else n for n, k in zip(numbers, kinds, strict=True)]
        away = "True" if self.plan.actors else "departed"
        lines: list[str] = []
        for k in range(len(self.plan.own_outputs)):
            lines += [f"    try: s{k} = pop()", f"    except IndexError: s{k} = refill()"]
        lines += [
            *self._output_lines,
            "    word = kept = entry[0]",  # kept: the entry is there as long as that very word
            "    if word < 0: word = kept = make_entry()",
            f"    if {away}: word = departing(word, ({storages}))",
            *(["    if dead: release_dead()"] if self.large else []),
            f"    _f = getframe({depth}); _c = _f.f_code",
            "    if _c.co_filename in user_files: _last = _f.f_lasti",
            "    else: _c, _last = find_user(_f)",
            "    block = blocks[0]",
        ]
        busy = [
            f"    if block[0] >= control[{CTL.HEAD}]: block = spare()",
            f"    else: block[0] = {NEVER}; blocks[0] = block[3]",
        ]
        if self.shown_count:
            busy.append(f"    put(block[1], 0, {', '.join(refs)})")
        if numbers:
            busy.append(f"    put_numbers(block[1], {16 * self.count}, {', '.join(values)})")
        busy += publishing([f"{self.count}", "block[2]", "word"], "block[0] = _seq")
        return [
            *lines,
            "    try:",
            *[f"    {line}" for line in busy],
            "    except any_error:",
            f"        if block[0] == {NEVER}: block[0] = -1",  # no instruction has it
            "        raise",
            *[f"    {line}" for line in self.changes],
        ]

    def _outputs(self) -> list[str]:
        """Lines that make the outputs: tensors of their own where nothing else has their memory."""
        outputs = self.plan.graph.outputs
        lines: list[str] = []
        storage_of: dict[Buffer, str] = {}
        for k, operand in enumerate(outputs):
            buffer = operand.buffer
            placed: Any = self.plan.graph.placed.get(k)
            self.own[f"om{k}"] = placed.with_local(operand.meta) if placed else operand.meta
            if buffer not in storage_of:
                alone = operand.offset == 0 and [o.buffer for o in outputs].count(buffer) == 1
                name, line = self._storage(buffer, k, alone)
                storage_of[buffer] = name
                lines += [line] if line else []
            lines += [
                f"    o{k} = new(Tensor); o{k}._storage = {storage_of[buffer]}",
                f"    o{k}._ref = {self._ref(operand, k)}; o{k}._meta = om{k}; o{k}._node = None",
            ]
        return lines

    def _storage(self, buffer: Buffer, k: int, alone: bool) -> tuple[str, str]:
        """Return the name of an output's storage, and the line of code that makes it."""
        if buffer.kind is BufferKind.VARIABLE:
            self.own[f"ot{k}"] = buffer.held
            return f"ot{k}", ""
        if buffer.kind is BufferKind.INPUT:
            return f"ot{k}", f"    ot{k} = x{self._place(buffer)}.storage()"
        if alone:
            return "None", ""
        return f"ot{k}", f"    ot{k} = Storage(s{self.plan.own_outputs.index(buffer)}, 0)"

    def _ref(self, operand: Operand, k: int) -> str:
        buffer = operand.buffer
        if buffer.kind is BufferKind.INPUT:
            place = self._place(buffer)
            base, shift = f"x{place}._ref", operand.offset << OPERAND.STORAGE_BITS
            shift -= self.shifts[place]
        elif buffer.kind is BufferKind.VARIABLE:
            self.own[f"or{k}"] = buffer.held.id + (operand.offset << OPERAND.STORAGE_BITS)
            return f"or{k}"
        else:
            base = f"s{self.plan.own_outputs.index(buffer)}"
            shift = operand.offset << OPERAND.STORAGE_BITS
        return f"{base} + {shift}" if shift else base

    def _place(self, buffer: Buffer) -> int:
        return next(i for i, o in enumerate(self.inputs) if o.buffer is buffer)
