"""The flight recorder's Python half: its level, facts that only Python knows, and reading the ring.

`flowvm.vm.machine.recorder` keeps what the scheduler and the workers know of the last RECORDS
instructions. Here is added who issued them (the user's lines, copied every 256 instructions from
the short list that issuing keeps), and when the issuing threads waited (`sync`, `credit`,
`memory`), compiled (`jit`) or were kept from running (`core`, `gil`, see `flowvm.vm.watch.offcpu`).

What each level records:

    0   nothing
    1   each instruction's seven times, operator, operands, stream, status and user line; waits of
        issuing threads.  The scheduler may give eight instructions one time; a worker that has work
        waiting starts it when the last ended.  `issued` is when the scheduler saw the record; at
        every 256th, and wherever an issuing thread waits, the thread's own clock sets it right
    2   a time of its own for every event, each task of a graph's replay, which modules run
        (`flowvm.vm.callers.scopes`), the helpers that took part in a kernel, and issuing threads
        look at their clocks every 32 instructions (of such as take less than 4 us each, at up to
        256, so that it is every 100 to 200 us) and around every `sync`: what they lost is `gil`;
        what they are doing is seen a thousand times a second (`flowvm.vm.watch.sampling`)
    3   and at every instruction, whose Python stack is kept; of a device's, when it began and ended
        by the device's own clock (`flowvm.vm.workers.device_times`)

`Flight.look` is a snapshot: consistent whatever the threads do meanwhile, in nanoseconds of the
monotonic clock, with what was overwritten counted.
"""

from __future__ import annotations

import collections
import itertools
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from flowvm.config import config
from flowvm.guards.forks import held_at_fork
from flowvm.guards.regions import reverting
from flowvm.meta.arrays import Array
from flowvm.vm.callers.hot import CALL_STREAM, FRAMES, hot
from flowvm.vm.callers.interrupt import waiting
from flowvm.vm.callers.lines import is_internal
from flowvm.vm.callers.scopes import Scopes
from flowvm.vm.machine.recorder import INLINE
from flowvm.vm.machine.wait_words import WAIT
from flowvm.vm.machine.words import (
    CTL,
    ENT,
    HLP,
    INS,
    OPERAND,
    RAN,
    REC,
    RING,
    SHARE,
    SPL,
    STATE,
    STR,
    TSK,
)
from flowvm.vm.watch.cores import ready_by
from flowvm.vm.watch.offcpu import LEAST, OffCpu, Ran
from flowvm.vm.watch.protocol import VM
from flowvm.vm.watch.sampling import Sampling, StackNumber

EVERY = 256  # instructions between two copies of their lines
WAITS = 1 << 14  # waits of issuing threads that are remembered
TIMES = ("issued", "received", "ready", "dispatched", "started", "ended", "released")
READINGS = 4  # readings of two clocks; the closest one counts
# from level 2 on, instructions between two looks at the time they were issued at: the least; more
# where looks would be less than two LEAST apart: less than one off the processor is not noted
EXACT_EVERY = 32


def every(level: int) -> int:
    """Return the number of instructions that an issuing thread may issue between two of its
    notes.
    """
    return EVERY if level < 2 else EXACT_EVERY


def _no_devices(seqs: Array) -> DeviceTimes:
    return DeviceTimes(np.zeros((len(seqs), 2), np.int64), {})


class HostWait(NamedTuple):
    """A span from `begun` to `ended` (monotonic ns) in which an issuing thread ran none of the
    user's Python.

    By then it had issued `seq`, and whatever has a lower number was issued too; -1: nothing known.
    `since` is not 0 where only the length is known: it was at some time from then to `ended`.
    In `core` ns of it the thread was ready and had no core; 0: not known.
    """

    cause: str  # "sync", "credit", "memory", "jit", "gil"; and, of those that are placed, "core"
    begun: int
    ended: int
    thread: int
    seq: int = -1
    since: int = 0
    core: int = 0


class Mark(NamedTuple):
    """A stretch of time that the user named, and the instructions [first, last) issued in it."""

    name: str
    begun: int
    ended: int
    thread: int
    first: int
    last: int


class DeviceTimes(NamedTuple):
    """Times of instructions by the devices' own clocks: rows of began, ended (monotonic ns; 0 for
    unknown).  By the device's name, the accuracy of its clock: `within_ns` of the host's,
    `drift_ppm`, over `apart_ns`.
    """

    times: Array
    notes: dict[str, dict[str, Any]]


@dataclass
class Snapshot:
    """Instructions [first, ...) that the ring holds, in the order issued; one array each.

    `times` has a column for each of TIMES, 0 where it has not come to that (or, for releases of a
    recorder that was switched on late, was not seen).  Operands are flat: those of instruction i
    are [offsets[i], offsets[i + 1]); an instruction whose operands were overwritten has none and is
    in `bare`.  A row of `tasks` is a task of a graph's replay: launch (its sequence number), task,
    repetition, stream, started, ended; those of one stream in the order that they ran.  A row of
    `shares` is a helper's part in a kernel: instruction, task or -1, stream, helper, started,
    ended, chunks.  `codes` to `modules` are the `Places` of `flowvm.vm.callers.scopes`.  Of a
    device's instructions started and ended are when its worker opened and closed them; `devices`
    has their own times, from level 3 on.
    """

    seq: Array
    entry: Array
    stream: Array
    status: Array
    times: Array
    offsets: Array
    storage: Array
    access: Array
    bare: Array
    codes: list[Any]
    lasts: list[int]
    forward: dict[int, tuple[Any, int]]
    module: Array
    modules: list[str]
    stacks: dict[int, tuple[tuple[Any, int], ...]]
    tasks: Array
    shares: Array
    overwritten: int
    waits: list[HostWait]
    marks: list[Mark]
    anchors: list[tuple[int, int]]  # (instruction, a moment at which it had been issued)
    ran: list[Ran]  # where other Python threads were while issuing ones did not run
    devices: DeviceTimes


class Looking(Protocol):
    """Listener that hears, now and then, of the instruction to be issued next
    (`flowvm.vm.watch.archive`).
    """

    def look(self, seq: int) -> None:
        """Called by issuing threads."""


class Flight:
    """The recorder of one engine."""

    def __init__(self, vm: VM) -> None:
        self.vm = vm
        self.codes: list[Any] = [None] * REC.LENGTH
        self.lasts: list[int] = [0] * REC.LENGTH
        self.lines_end = 0  # lines of instructions below are in `codes` and `lasts`
        self.lock = held_at_fork(threading.Lock())
        self.first = 0  # instructions below are forgotten: their entries are
        self.waits: collections.deque[HostWait] = collections.deque(maxlen=WAITS)
        self.marks: collections.deque[Mark] = collections.deque(maxlen=WAITS)
        self.sampling = Sampling()
        self.ran: collections.deque[Ran] = collections.deque(maxlen=WAITS)
        self.offcpu = OffCpu(self._lost, self.sampling.watch, self.ran.extend)
        self.open: list[tuple[str, int]] = []  # spans not left yet, and their first instructions
        self.exact, self.noted = EXACT_EVERY, 0  # between two looks; when the last one was
        # an instruction, and a moment at which it had been issued
        self.anchors: collections.deque[tuple[int, int]] = collections.deque(maxlen=WAITS)
        self.stacks: dict[int, tuple[tuple[object, int], ...]] = {}
        self.keeping: Looking | None = None  # of a profile that wants more than the ring holds
        # each stack that was kept: by itself, and by its number, which is asked for once a level
        self.alike: dict[object, Any] = {}
        self.numbers: dict[int, tuple[tuple[object, int], ...]] = {}
        self.keep: Callable[[int], None] | None = None  # at level 3, `hot` has it as `make_room`
        self.due = [0]  # instructions below it need no note, at level 3 only their stacks
        self.outside: dict[object, bool] = {}  # code objects: whether they are not flowvm's own
        self.scopes = Scopes()
        self.on_level: list[Callable[[int], None]] = []  # called with a new level
        # set by the device rooms: the known times of instructions of these numbers
        self.device_times: Callable[[Array], DeviceTimes] = _no_devices
        self.zero = self.now = (0, 0)  # ticks and nanoseconds of one moment, and of another
        self.in_nanoseconds = 0  # the times of instructions below this one are
        vm.words[CTL.LEVEL] = config.profile

    # --- level --------------------------------------------------------------------------------

    def start(self) -> None:
        """Compare the clocks from now on; called when the VM starts."""
        if self.zero == (0, 0):
            self.zero = self.clocks()

    def change_clock(self) -> None:
        """Change the recorder's clock: the VM is native from now on.  Instructions recorded before
        have nanoseconds as `ticks`.
        """
        words = self.vm.words
        self.in_nanoseconds = int(words[CTL.RECEIVED])
        self.zero = self.clocks()
        for stream in range(self.vm.streams.count):
            words[STR.AT + stream * STR.WORDS + STR.STAMP] = 0
        words[CTL.NOW] = 0

    def set_level(self, level: int) -> None:
        """Set the level of recording."""
        vm = self.vm
        if vm.threads.running:
            vm.waits.wait_idle()  # afterwards no worker has a stamp in hand
        for stream in range(vm.streams.count):
            vm.words[STR.AT + stream * STR.WORDS + STR.STAMP] = 0
        vm.words[CTL.LEVEL] = level
        self.due[0], self.keep = 0, None
        self.offcpu.restart()
        if level >= 2:
            self.sampling.watch()
        else:
            self.sampling.stop()
        for listener in self.on_level:
            listener(level)
        hot["limit"] = 0  # the next instruction looks whether each one's stack is wanted

    def at_least(self, level: int) -> reverting:
        """Record at `level` or above inside the with statement."""
        before: list[int] = []

        def switch() -> None:
            before.append(int(self.vm.words[CTL.LEVEL]))
            self.set_level(max(before[0], level))

        def undo() -> None:
            for known in before:
                try:
                    self.set_level(known)
                except BaseException:  # no frames are left to wait, or it is Ctrl-C
                    self.vm.words[CTL.LEVEL] = known
                    raise

        return reverting(undo, switch)

    @property
    def level(self) -> int:
        """The present level of recording."""
        return int(self.vm.words[CTL.LEVEL])

    @property
    def every(self) -> int:
        """The number of instructions that may be issued between two calls of `note`."""
        level = self.vm.words[CTL.LEVEL]
        return self.exact if level >= 2 else every(level)

    def after_fork_in_child(self) -> None:
        """Note this thread's new number in a forked child."""
        self.sampling.after_fork_in_child()
        self.scopes.after_fork_in_child()
        self.offcpu = OffCpu(self._lost, self.sampling.watch, self.ran.extend)

    @property
    def issuing(self) -> set[int]:
        """The threads that were seen issuing, by their numbers in the system."""
        return set(self.offcpu.issuing)

    def forget(self, before: int) -> None:
        """Forget instructions before `before`: an entry's meaning was forgotten, and with it
        theirs.
        """
        self.first = max(self.first, before)

    # --- what only Python knows ---------------------------------------------------------------

    def note(self, seq: int) -> None:
        """Keep the lines of the instructions issued since the last note.  Issuing threads call this
        now and then.
        """
        level = self.vm.words[CTL.LEVEL]
        if level == 0:
            return
        if level >= 2:
            now = self.offcpu.look()
            since, self.noted = now - self.noted, now
            if since < 2 * LEAST:
                self.exact = min(2 * self.exact, EVERY)
            elif since > 4 * LEAST:
                self.exact = max(self.exact // 2, EXACT_EVERY)
        else:
            now = time.monotonic_ns()
        self.anchors.append((seq, now))
        if level >= 3:
            self._next_stacks(seq)
        # not `acquire` and `try`: a Ctrl-C between the two would leave it taken.  Not taken where a
        # finalizer issues while this thread has it
        if seq - self.lines_end >= EVERY and not self.lock.locked():
            with self.lock:
                self._keep_lines(seq)
        if self.keeping is not None and not self.lock.locked():
            self.keeping.look(seq)

    def _keep_lines(self, seq: int) -> None:
        """Copy the lines of all received instructions.  They are published, and so are their
        lines.
        """
        codes, lasts = hot["codes"], hot["lasts"]
        last = int(self.vm.words[CTL.RECEIVED])
        at = max(self.lines_end, last - REC.LENGTH)
        oldest = max(seq, last) - FRAMES  # of lines below, others were written over them
        while at < last:
            place, slot = at & REC.MASK, at & (FRAMES - 1)
            count = min(last - at, FRAMES - slot)  # RECORDS is a multiple of FRAMES
            if at < oldest:
                count = min(count, oldest - at)
                self.codes[place : place + count] = [None] * count
            else:
                self.codes[place : place + count] = codes[slot : slot + count]
                self.lasts[place : place + count] = lasts[slot : slot + count]
            at += count
        self.lines_end = last

    def _next_stacks(self, seq: int) -> None:
        """Keep the stack of an instruction, and make room for the stacks of those behind it."""
        self.due[0] = 0 if config.debug >= 2 else seq + self.every
        if self.keep is None and (number := self.sampling.stack_number()) is not None:
            self.keep = self._keeper(number, hot["make_room"])
        self.stacks[seq] = self._stack()
        if len(self.stacks) > 2 * REC.LENGTH:
            for old in list(itertools.islice(self.stacks, REC.LENGTH)):
                self.stacks.pop(old, None)

    def _keeper(
        self, number: StackNumber, otherwise: Callable[[int], None]
    ) -> Callable[[int], None]:
        """Return the function that level 3 calls with each instruction: it keeps its Python stack,
        and does what is to be done `otherwise` where more is due.

        A stack that was seen before is not walked again, but known by its number.  It is called
        for each instruction, so all that it needs is at hand.
        """
        function, cells, cell, most = number.function, number.cells, number.cell, CTL.LIMIT
        due, numbers, stacks, control = self.due, self.numbers, self.stacks, hot["control"]
        known = numbers.get

        @waiting
        def keep(seq: int) -> None:
            if seq >= due[0] or seq >= control[most]:
                otherwise(seq)
                return
            try:
                own = cells.own
            except AttributeError:
                own = cell()
            one = function(own)  # at this place only: it is a part of the stack
            stack = known(one)
            if stack is None:
                stack = self._stack()
                if one:
                    numbers[one] = stack
            stacks[seq] = stack

        return keep

    def _stack(self) -> tuple[tuple[Any, int], ...]:
        """Return the caller's frames outside of flowvm: code and place, the innermost first."""
        frames = []
        frame: Any = sys._getframe(2)
        outside = self.outside
        while frame is not None:
            code = frame.f_code
            known = outside.get(code)
            if known is None:
                known = outside[code] = not is_internal(code.co_filename)
            if known:
                frames.append((code, frame.f_lasti))
            frame = frame.f_back
        stack = tuple(frames)  # a loop's are alike: one is kept
        if len(self.alike) > REC.LENGTH:  # numbers are of code that is kept: both go
            self.alike.clear()
            self.numbers.clear()
        return self.alike.setdefault(stack, stack)  # type: ignore[no-any-return]

    def _lost(self, since: int, now: int, lost: int, core: int) -> None:
        """The calling thread was kept from running for `lost` ns at some time since then, `core` of
        these because it had none.
        """
        thread = threading.get_ident()
        self.waits.append(HostWait("gil", now - lost, now, thread, since=since, core=core))

    def begin_wait(self) -> int:
        """Note that an issuing thread begins to wait.  Return the time, for `waited`."""
        return self.offcpu.look() if self.vm.words[CTL.LEVEL] >= 2 else time.monotonic_ns()

    def waited(self, cause: str, begun: int, seq: int = -1, cell: Array | None = None) -> None:
        """Record that an issuing thread has waited from `begun`, of `time.monotonic_ns`, until now.

        From level 2 on: if what it waited for was there earlier, as its `cell` says (`WAIT`), it
        was kept from running since.
        """
        level = self.vm.words[CTL.LEVEL]
        if level == 0:
            return
        now, thread = time.monotonic_ns(), threading.get_ident()
        if level < 2:
            self.waits.append(HostWait(cause, begun, now, thread, seq))
            return
        over, ready = (0, 0) if cell is None else (int(cell[WAIT.OVER]), ready_by(cell))
        late = begun <= over <= now - LEAST
        core = self.offcpu.without_core(ready)
        self.waits.append(HostWait(cause, begun, over if late else now, thread, seq, core=core))
        if late:
            self.offcpu.late(over, now, ready)
        self.offcpu.begin(ready)

    # --- looking ------------------------------------------------------------------------------

    def clocks(self) -> tuple[int, int]:
        """Return `ticks` and nanoseconds of the monotonic clock at one moment.

        The closest of a few readings: a thread may lose its core between the two clocks.
        """
        return min(self._reading() for _ in range(READINGS))[1:]

    def _reading(self) -> tuple[int, int, int]:
        """Return the nanoseconds that it took to read both clocks, and the two values."""
        pair, begun = np.zeros(2, np.int64), time.monotonic_ns()
        self.vm.loops.function("read_clocks")(pair.ctypes.data)
        return time.monotonic_ns() - begun, int(pair[0]), int(pair[1])

    def look(self, since: int = 0, until: int | None = None) -> Snapshot:
        """Return a snapshot of the instructions from `since` to `until` (exclusive) that the ring
        has now.
        """
        vm, m = self.vm, self.vm.m
        self.start()
        self.now = self.clocks()
        received = int(vm.words[CTL.RECEIVED])
        oldest = max(self.first, received - REC.LENGTH)
        first = max(since, oldest)
        with self.lock:
            self._keep_lines(received)
        seqs = np.arange(first, received if until is None else min(received, until))
        ring = m[REC.AT : REC.AT + REC.LENGTH * REC.WORDS].reshape(REC.LENGTH, REC.WORDS)
        place = seqs & REC.MASK
        before = ring[place, REC.SEQ]
        released = ring[place, REC.RELEASED]  # written last: if it is set, so are the others
        rows = ring[place]
        rows[:, REC.RELEASED] = released
        valid = (before == seqs + 1) & (rows[:, REC.SEQ] == before)
        valid &= ring[place, REC.SEQ] == before
        seqs, rows, place = seqs[valid], rows[valid], place[valid]
        times = self._times(seqs, rows)
        stacks = {s: self.stacks[s] for s in seqs.tolist() if s in self.stacks}
        offsets, storage, access, bare = self._operands(seqs, rows)
        return Snapshot(
            seq=seqs,
            entry=rows[:, REC.WHAT] & ENT.MASK,
            stream=rows[:, REC.WHAT] >> ENT.BITS,
            status=rows[:, REC.STATUS],
            times=times,
            offsets=offsets,
            storage=storage,
            access=access,
            bare=bare,
            **self.scopes.places(self.codes, self.lasts, seqs, oldest),
            stacks=stacks,
            tasks=self._tasks(int(seqs[0]) if len(seqs) else received),
            shares=self._shares(int(seqs[0]) if len(seqs) else received),
            overwritten=first - since if since < first else 0,
            waits=list(self.waits),
            marks=list(self.marks),
            anchors=list(self.anchors),
            ran=list(self.ran),
            devices=self.device_times(seqs),
        )

    def _times(self, seqs: Array, rows: Array) -> Array:
        """Return the seven times in nanoseconds; for instructions in flight, the times known by
        now.
        """
        stamps = rows[:, REC.ISSUED : REC.RELEASED + 1].copy()
        in_flight = np.flatnonzero(stamps[:, -1] == 0)
        stamps[in_flight, 2:] = 0
        ins = self.vm.m[INS.AT : INS.AT + RING.SLOTS * INS.WORDS].reshape(-1, INS.WORDS)
        now = ins[seqs[in_flight] & RING.SLOT_MASK]
        state = now[:, INS.STATE]
        mine = now[:, INS.SEQ] == seqs[in_flight]
        for column, least, word in (
            (2, STATE.READY, INS.T_READY),
            (3, STATE.DISPATCHED, INS.T_DISPATCHED),
        ):
            stamps[in_flight, column] = np.where(mine & (state >= least), now[:, word], 0)
        # stamps of two threads may differ by the 50 ns that a store takes to another core
        np.maximum.accumulate(stamps[:, 4:], axis=1, out=stamps[:, 4:])
        return self._nanoseconds(stamps, seqs)

    def _nanoseconds(self, stamps: Array, seqs: Array) -> Array:
        """The `stamps` of instructions `seqs`, a row each."""
        (t0, n0), (t1, n1) = self.zero, self.now
        scale = (n1 - n0) / (t1 - t0) if t1 > t0 else 1.0
        known = (stamps == 0) | (seqs < self.in_nanoseconds)[:, None]
        return np.where(known, stamps, n1 + np.floor((stamps - t1) * scale).astype(np.int64))

    def _tasks(self, first: int) -> Array:
        """Return the tasks of launches `first` and later that are remembered."""
        tasks = []
        for stream in range(self.vm.streams.count):
            at = TSK.AT + stream * TSK.WORDS
            rows = self._rows(at, at + TSK.ROWS, TSK.ROWS_LENGTH, RAN.WORDS, RAN.MARK)
            rows = rows[rows[:, RAN.LAUNCH] >= first]
            what = rows[:, [RAN.LAUNCH, RAN.TASK, RAN.REPETITION]]
            times = self._nanoseconds(rows[:, [RAN.STARTED, RAN.ENDED]], rows[:, RAN.LAUNCH])
            tasks.append(np.column_stack((what, np.full(len(rows), stream), times)))
        return np.concatenate(tasks)

    def _shares(self, first: int) -> Array:
        """Return the shares of helpers in instructions `first` and later that are remembered."""
        shares = [np.zeros((0, 7), np.int64)]
        for helper in range(STR.MAX_TEAM):
            at = HLP.AT + helper * HLP.WORDS
            if self.vm.words[at] == 0:
                continue
            rows = self._rows(at, at + HLP.ROWS, HLP.ROWS_LENGTH, SHARE.WORDS, SHARE.MARK)
            rows = rows[rows[:, SHARE.LAUNCH] >= first]
            times = self._nanoseconds(rows[:, [SHARE.STARTED, SHARE.ENDED]], rows[:, SHARE.LAUNCH])
            who = np.broadcast_to([CALL_STREAM, helper], (len(rows), 2))  # no other has helpers
            what, chunks = rows[:, [SHARE.LAUNCH, SHARE.TASK]], rows[:, SHARE.CHUNKS]
            shares.append(np.column_stack((what, who, times, chunks)))
        return np.concatenate(shares)

    def _rows(self, count_at: int, at: int, most: int, words: int, mark: int) -> Array:
        """Return the rows of a ring at word `at`, the oldest first, that were whole while they were
        copied.  Each is marked with its number + 1; their count is at `count_at`.
        """
        count = int(self.vm.words[count_at])
        number = np.arange(max(0, count - most), count)
        region = self.vm.m[at : at + most * words].reshape(most, words)
        before = region[number % most, mark]
        rows = region[number % most]
        valid = (before == number + 1) & (rows[:, mark] == before)
        valid &= region[number % most, mark] == before
        kept_rows: Array = rows[valid]
        return kept_rows

    def _operands(self, seqs: Array, rows: Array) -> tuple[Array, Array, Array, Array]:
        """Return offsets, storages and accesses of all operands, and the instructions that have
        lost theirs.
        """
        m = self.vm.m
        counts = rows[:, REC.COUNT].copy()
        entries = rows[:, REC.WHAT] & ENT.MASK
        table = m[ENT.AT : ENT.AT + ENT.LENGTH * ENT.WORDS].reshape(-1, ENT.WORDS)
        outline = table[entries, ENT.OUTLINE] != 0
        spilled = (outline | (counts > INLINE)) & (counts > 0)
        written = int(self.vm.words[CTL.SPILLED])
        # an eighth is left for writes during this look
        lost = spilled & (rows[:, REC.OPERANDS] < written - SPL.LENGTH * 7 // 8)
        counts[lost] = 0
        offsets = np.concatenate(([0], np.cumsum(counts)))
        owner = np.repeat(np.arange(len(rows)), counts)
        k = np.arange(len(owner)) - offsets[owner]
        word = rows[owner, REC.OPERANDS + np.minimum(k, INLINE - 1) // REC.PER_WORD]
        storage = (word >> (k % REC.PER_WORD * OPERAND.STORAGE_BITS)) & OPERAND.STORAGE_MASK
        access = table[entries[owner], ENT.ACCESS + np.minimum(k, 44) // OPERAND.ACCESSES_PER_WORD]
        access = (access >> (k % OPERAND.ACCESSES_PER_WORD * OPERAND.ACCESS_BITS)) & 15
        from_ring = spilled[owner]
        place = rows[owner, REC.OPERANDS] + k
        spill = m[SPL.AT + (place[from_ring] & SPL.MASK)]
        outside = outline[owner][from_ring]
        storage[from_ring] = np.where(outside, spill >> OPERAND.ACCESS_BITS, spill)
        access[from_ring] = np.where(outside, spill & 15, access[from_ring])
        return offsets, storage, access, lost


class Recorded(VM, Protocol):
    """An engine with its recorder."""

    flight: Flight
