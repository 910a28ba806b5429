"""The order that a policy gives the VM's ready instructions: `flow.vm.schedule`, `flow.vm.replay`.

    with flow.vm.schedule("random", seed=7) as sched:
        step()
    sched.order                     # the instructions in the order that they went
    with flow.vm.replay(sched.order):
        step()

A policy comes down to a `Rule`: how the scheduler compares ready instructions, with a table of keys
by number, or an object that it asks.  Numbers count the instructions that compute something from
the beginning of the block; waits and releases have none.  What a policy by name is, the lab knows
(`flowvm.lab`), and is told here by `flowvm.loading.providers`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flowvm.errors import ArgumentError, ModeError, ScheduleError
from flowvm.files.schema import integer, read_json, record, several, text
from flowvm.files.writer import writing
from flowvm.guards.regions import Switched
from flowvm.meta.arrays import Array
from flowvm.vm.callers.hot import CALL_STREAM, FIRST_USER_STREAM
from flowvm.vm.machine.policy import has_room, is_shared, is_still
from flowvm.vm.machine.record import fields_of
from flowvm.vm.machine.words import CTL, ENT, INS, POL, PRI, STR
from flowvm.vm.watch.narrate import NAMES

SCHEMA = "flowvm-order-1"
LOG_ROWS = 1 << 20  # instructions of a block whose order is kept
ASK_SECONDS = 2e-5  # between two looks whether the scheduler asks
_MOST = 1 << 24
_FILE = record(
    schema=text(40), numbers=several(integer(0, 1 << 40), _MOST), ops=several(text(1000), _MOST)
)


class Rule(NamedTuple):
    """Rule by which the scheduler compares ready instructions.

    kind     a number of POL: ARRIVAL, LATEST, KEYED, ORDER or ASKED
    table    (key, stream or -1) of instructions by number, an int64 array of two columns
    wraps    behind its end the table begins anew
    policy   of ASKED: has `begin()`, `ready(task, now)` and `pick(worker, now)`
    native   of ASKED: (address, state) of these compiled, see POL.NATIVE
    why      of ASKED: why it is asked in Python, if it is
    """

    name: str
    kind: int
    table: Array | None = None
    wraps: bool = False
    policy: object = None
    native: tuple[int, Array] | None = None
    why: str = ""


# (policy, seed, like, streams) -> Rule; set by whoever knows policies by name
planners: list[Callable[[object, int | None, object, Sequence[int]], Rule]] = []


class Order:
    """The order in which the instructions of a block went: `numbers` (of those that compute
    something, counted as they were issued) and what each is, `ops`.

    >>> with flow.vm.schedule("lifo") as sched:
    ...     x = flow.ones(2) + 1
    >>> len(sched.order)
    2
    """

    def __init__(self, numbers: Sequence[int], ops: Sequence[str]) -> None:
        if len(numbers) != len(ops) or len(set(numbers)) != len(numbers):
            raise ArgumentError("Order: each instruction once, and a name for each")
        self.numbers, self.ops = [int(n) for n in numbers], [str(op) for op in ops]

    def __len__(self) -> int:
        return len(self.numbers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Order) and (self.numbers, self.ops) == (other.numbers, other.ops)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = " ".join(
            f"#{n} {op}" for n, op in list(zip(self.numbers, self.ops, strict=True))[:12]
        )
        return f"<Order of {len(self)} instructions: {shown}{' ...' if len(self) > 12 else ''}>"

    def save(self, path: str | Path) -> None:
        """Write it as JSON, for a bug report."""
        whole = {"schema": SCHEMA, "numbers": self.numbers, "ops": self.ops}
        with writing(path, "Order.save") as file:
            file.write(json.dumps(whole).encode())

    @staticmethod
    def load(path: str | Path) -> Order:
        """Read what `save` wrote.  ArgumentError: it is no such file."""
        whole = read_json(Path(path).read_bytes(), f"the order {path}")
        _FILE(whole, f"the order {path}")
        if whole["schema"] != SCHEMA:
            raise ArgumentError(f"{path} is of {whole['schema']}, and this flowvm reads {SCHEMA}")
        return Order(whole["numbers"], whole["ops"])


class Scheduling(Switched):
    """`with flow.vm.schedule(...) as sched:`, see there; `sched.order` is known when it is left."""

    def __init__(
        self, vm: Any, rule: Rule, streams: Sequence[int], depth: int, gather: bool
    ) -> None:
        self.vm, self.rule, self.streams = vm, rule, list(streams)
        self.depth, self.gather = depth, gather
        self.astray = 0  # of a replay: how often what came next in the order could not come
        self._order: Order | None = None
        self._log = np.zeros((LOG_ROWS, 2), np.int64)
        self._asking: Asking | None = None
        self._is_on = False

    @property
    def order(self) -> Order:
        """Return the order in which instructions went.  ModeError: the block is not over."""
        if self._order is None:
            raise ModeError(
                "sched.order: read it behind the block of flow.vm.schedule, when the order is known"
            )
        return self._order

    def _switch(self) -> Scheduling:
        vm = self.vm
        if vm.threads.vetoes:
            raise ModeError(
                "schedule: the sequential engine runs what is issued in program order; leave "
                "flow.vm.sequential() first"
            )
        if vm.words[POL.KIND] != 0:
            raise ModeError("schedule: another policy is on; leave its block first")
        vm.threads.compile_all()
        vm.threads.start()
        vm.storages.release_dead()
        vm.waits.at_rest(self._begin)
        self._is_on = True
        return self

    def _begin(self) -> None:
        vm, words, rule = self.vm, self.vm.words, self.rule
        for field in fields_of(POL):
            words[field.at] = 0
        if rule.table is not None:
            self._table = np.ascontiguousarray(rule.table, np.int64)
            words[POL.TABLE], words[POL.ROWS] = self._table.ctypes.data, len(self._table)
        words[POL.WRAPS] = int(rule.wraps)
        words[POL.LAST] = len(self._table) if rule.kind == POL.ORDER else 0
        words[POL.LOG], words[POL.LOG_ROWS] = self._log.ctypes.data, LOG_ROWS
        words[POL.DEPTH], words[POL.GATHERED] = self.depth, int(self.gather)
        words[POL.POOL] = sum(1 << stream for stream in self.streams)
        words[POL.TOLD] = words[POL.ENDED_ON] = words[POL.PASSER] = -1
        at_once = rule.kind in (POL.ARRIVAL, POL.LATEST, POL.KEYED) and not self.gather
        words[POL.PULLED] = int(at_once and words[CTL.SCHEDULE] != 0)
        ranks = (words[STR.AT + k * STR.WORDS + STR.PRIORITY] for k in range(vm.streams.count))
        words[POL.RANKED] = int(any(ranks))
        if rule.native is not None:
            address, self._state = rule.native
            lanes = lanes_of(vm, self.streams)
            self._table = np.array([(lane, -1) for lane in lanes], np.int64)
            words[POL.TABLE], words[POL.ROWS] = self._table.ctypes.data, len(self._table)
            words[POL.NATIVE], words[POL.STATE] = address, self._state.ctypes.data
            words[POL.BEGUN] = time.monotonic_ns()
        elif rule.policy is not None:
            self._asking = Asking(self.vm, rule.policy, self.streams)
            self._asking.start()
        words[POL.KIND] = rule.kind  # last: from here on it counts

    def _on_exit(self, *error: object) -> None:
        if not self._is_on:
            return
        self.vm.storages.release_dead()
        self.vm.waits.wait_idle()
        count = min(int(self.vm.words[POL.LOGGED]), LOG_ROWS)
        self.astray = int(self.vm.words[POL.ASTRAY])
        rows = self._log[:count]
        named = {int(e): _name(self.vm, int(e)) for e in np.unique(rows[:, 1] & ENT.MASK)}
        ops = [named[e] for e in (rows[:, 1] & ENT.MASK).tolist()]
        self._order = Order(rows[:, 0].tolist(), ops)
        self.lanes = (rows[:, 1] >> ENT.BITS).tolist()

    def _undo(self) -> None:
        failed = wrong = 0
        if self._is_on:
            self.vm.waits.at_rest(self._end)
            failed, wrong = int(self.vm.words[POL.FAILED]), int(self.vm.words[POL.WRONG])
        self._is_on = False
        if self._asking is not None:
            self._asking.close()
            asking, self._asking = self._asking, None
            if asking.error is not None:
                raise asking.error
        if failed:
            raise ScheduleError(f"policy {self.rule.name} {_WRONG[failed].format(wrong)}")

    def _end(self) -> None:
        words = self.vm.words
        words[POL.KIND] = words[POL.GATHERED] = words[POL.NATIVE] = words[POL.PULLED] = 0

    @property
    def asked(self) -> str:
        """Return "compiled", or "in Python" and why, of a policy with `pick`; else ""."""
        if self.rule.kind != POL.ASKED:
            return ""
        return "compiled" if self.rule.native is not None else f"in Python: {self.rule.why}"


_WRONG = {
    POL.RAISED: "raises where Python would (it was compiled); with `is_compiled = False` in its "
    "class it is stepped in Python, which says what and where",
    POL.UNREADY: "picks task {0}, which is not ready",
    POL.IDLE: "picks none of the ready tasks, and nothing runs",
}


def lanes_of(vm: Any, streams: Sequence[int]) -> list[int]:
    """The streams that are workers to a policy that is asked."""
    return list(streams) or [CALL_STREAM, *range(FIRST_USER_STREAM, vm.streams.count)]


class Replay(Scheduling):
    """`with flow.vm.replay(order):`, see there."""

    def __init__(self, vm: object, order: Order, streams: Sequence[int]) -> None:
        rows = max(order.numbers, default=-1) + 1
        table = np.full((rows, 2), -1, np.int64)
        table[:, 0] = len(order) + np.arange(rows)
        table[order.numbers, 0] = np.arange(len(order))
        rule = Rule("replay", POL.ORDER, table)
        super().__init__(vm, rule, streams, depth=1, gather=False)
        self.target = order

    def _begin(self) -> None:
        super()._begin()
        self.vm.words[POL.LAST] = len(self.target)

    def _on_exit(self, *error: object) -> None:
        super()._on_exit(*error)
        if error[:1] == (None,) and (self.astray or self._order != self.target):
            mine, other = self.order, self.target
            pairs = enumerate(zip(mine.numbers, mine.ops, other.numbers, other.ops, strict=False))
            at = next((k for k, (a, b, c, d) in pairs if (a, b) != (c, d)),
                      min(len(mine), len(other)))  # fmt: skip
            raise ScheduleError(
                f"replay: the program issued other instructions than the order has: at place {at} "
                f"{_at(mine, at)} went, and the order has {_at(other, at)}"
            )


def _at(order: Order, place: int) -> str:
    if place >= len(order):
        return "nothing"
    return f"#{order.numbers[place]} {order.ops[place]}"


def _name(vm: Any, entry: int) -> str:
    info = vm.entries.info[entry][0] if entry < len(vm.entries.info) else None
    kind = int(vm.words[ENT.AT + entry * ENT.WORDS + ENT.KIND])
    return str(getattr(info, "name", None) or NAMES.get(kind, str(info)))


class Asking(threading.Thread):
    """The thread that a policy of Python's runs on: it answers the scheduler, which waits for it,
    so the ready list stands still meanwhile.
    """

    def __init__(self, vm: Any, policy: Any, streams: Sequence[int]) -> None:
        super().__init__(name="flowvm-policy", daemon=True)
        self.vm, self.policy = vm, policy
        self.lanes = lanes_of(vm, streams)
        self.closed, self.begun = False, time.monotonic()
        self.error: BaseException | None = None

    def run(self) -> None:
        words = self.vm.words
        while not self.closed:
            question = words[POL.ASK]
            if question == words[POL.ANSWER]:
                time.sleep(ASK_SECONDS)
                continue
            slot, lane = self._answer()
            words[POL.CHOICE], words[POL.LANE] = slot, lane
            words[POL.ANSWER] = question

    def close(self) -> None:
        """Leave; nobody asks any more."""
        self.closed = True
        self.join()

    def _answer(self) -> tuple[int, int]:
        ready = self._ready()
        if self.error is None:
            try:
                chosen = self._chosen(ready)
                if chosen is not None:
                    return chosen
                if not is_still(self.vm.words) or self.vm.words[POL.WAITERS] == 0:
                    return -1, -1
                raise ScheduleError(
                    f"policy {type(self.policy).__name__} picks none of {len(ready)} ready tasks, "
                    "and nothing runs"
                )
            except BaseException as error:  # raised where the block is left
                self.error = error
        slot = next(iter(ready.values()))  # from then on, first come, first served
        return slot, int(self.vm.words[INS.AT + slot * INS.WORDS + INS.STREAM])

    def _chosen(self, ready: dict[int, int]) -> tuple[int, int] | None:
        words, now = self.vm.words, time.monotonic() - self.begun
        for number, slot in ready.items():
            at = PRI.AT + slot * PRI.WORDS + PRI.HEARD
            if words[at] == 0:
                words[at] = 1
                self.policy.ready(number, now)
        for worker, stream in enumerate(self.lanes):
            if not has_room(words, stream):
                continue
            number = int(self.policy.pick(worker, now))
            if number < 0:
                continue
            if number not in ready:
                raise ScheduleError(
                    f"policy {type(self.policy).__name__} picks task {number}, which is not ready"
                )
            slot = ready[number]
            own = int(words[INS.AT + slot * INS.WORDS + INS.STREAM])
            return slot, stream if is_shared(words, own) else own
        return None

    def _ready(self) -> dict[int, int]:
        words, slots = self.vm.words, {}
        slot = int(words[CTL.READY_FIRST])
        while slot >= 0:
            number = int(words[PRI.AT + slot * PRI.WORDS + PRI.NUMBER])
            if number >= 0:
                slots[number] = slot
            slot = int(words[INS.AT + slot * INS.WORDS + INS.NEXT])
        return slots
