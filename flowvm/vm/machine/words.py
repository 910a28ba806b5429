"""The layout of the VM's memory: one int64 array `m`, cut into regions of records.

One array, because a compiled function then takes one argument, and because a debugger, a test or a
profiler can read the whole state of the VM from outside (`name_of`, `shown`).  The memory is
reserved, not used: the system hands out pages as they are touched.

Each record names its writer, and each field with another writer names that one; no other thread
writes it.  Words that are not in `m` are in `plan_words` and `device_words`.
"""

from __future__ import annotations

import enum
import platform
from collections.abc import Callable
from typing import TypeVar

from flowvm.vm.machine.record import LINE, Record, Region, field, fields_of, line, record

PAGE = 512  # words: where a region begins

SCHEDULER = "the scheduler"
MAIN = "the main thread"
ISSUER = "the issuing thread"
WORKER = "the stream's worker"
WORKERS = "any worker"

_SLOTS = 1 << 12
_STREAMS = 63  # at most: CTL.DEVICES has a bit each, and the sign is none of them
_STORAGE_BITS = 20
_STORAGES = 1 << _STORAGE_BITS
_ACCESSES = 1 << 18
_MAX_INLINE = 28

# --- what words say ---------------------------------------------------------------------------


class Kind(enum.IntEnum):
    """Instruction policies."""

    OP_CALL = 0
    RELEASE_TENSOR = 1
    BARRIER = 2
    TOUCH_TENSORS = 3
    CALLBACK = 4  # AccessBlobByCallback: Python code, on a host stream
    LAUNCH_PLAN = 5  # a captured graph, replayed: ENT.LAYOUT is the Plan's words
    RESTORE = 6  # lifts the poison of storages whose bytes are whole


class Access(enum.IntEnum):
    """The access to an operand: read, written, or written with a shape that only the kernel
    finds.
    """

    CONST = 0
    MUT = 1
    MUT2 = 2


class State(enum.IntEnum):
    """Life of an instruction; it is *lively* from PENDING until RELEASED."""

    FREE = 0
    PENDING = 1
    READY = 2
    DISPATCHED = 3
    DONE = 4
    RELEASED = 5


@record()
class KIND(Record):
    """`Kind` as numbers, for compiled code."""

    OP_CALL, RELEASE, BARRIER, TOUCH, CALLBACK, LAUNCH, RESTORE = (int(k) for k in Kind)


@record()
class STATE(Record):
    """`State` as numbers, for compiled code."""

    FREE, PENDING, READY, DISPATCHED, DONE, RELEASED = (int(s) for s in State)


@record()
class OPERAND(Record):
    """An operand is one word: storage id in the low bits, byte offset above.  `Access` likewise."""

    STORAGE_BITS = _STORAGE_BITS
    STORAGE_MASK = _STORAGES - 1
    CONST, MUT, MUT2 = (int(a) for a in Access)
    ALLOCATE = 4  # with MUT or MUT2: the storage gets its memory from this instruction
    RETURNED = 8  # with MUT, of a launch: an output is a view of this variable
    UNREAD = 8  # with CONST, of a launch: it is never read, so its poison does not matter
    UPDATED = 8  # with MUT, of an op: the new value depends on the old one
    ACCESS_BITS = 4
    ACCESSES_PER_WORD = 15  # of 4 bits: the top bits stay clear, so the word is never negative
    MAX = 1 << 15  # operands of one instruction, out of line


# --- the array --------------------------------------------------------------------------------

_Class = TypeVar("_Class", bound=Region)
REGIONS: list[type[Region]] = []  # in the order that they lie
_end = 0


def region(length: int, *, words: int, by: str) -> Callable[[type[_Class]], type[_Class]]:
    """The next part of `m`: `length` records of `words` words each."""

    def placed(declared: type[_Class]) -> type[_Class]:
        global _end
        table = record(words=words, by=by)(declared)
        table.AT, table.LENGTH = _end, length
        REGIONS.append(table)
        _end += (length * words + PAGE - 1) // PAGE * PAGE
        return table

    return placed


@region(1, words=64 * LINE, by=SCHEDULER)
class CTL(Region):
    """Control words, a cache line each; read by all.  CTL.AT is 0: they are their own index."""

    RECEIVED = line("sequence number of the next record it will take")
    HEAD = line("every instruction below is released")
    LIMIT = line("records may be issued below this sequence number")
    STOP = line("1 asks all threads to leave", by=MAIN)
    SCHEDULER_SLEEPS = line(
        "0 awake; ASLEEP: the scheduler sets, anybody clears and wakes; ABSENT: the main thread",
        by="see there",
    )
    ROOM_SLEEPS = line("issuing threads that wait for LIMIT: a futex word", by="they")
    READY_FIRST = line("ready instructions, first slot or -1")
    READY_LAST = line("the last of them")
    BARRIER_FIRST = line("barriers, in program order")
    BARRIER_LAST = line("the last of them")
    FREE_ACCESS = line("free list of ACC")
    FREE_EDGE = line("free list of EDG")
    ACCESS_TOP = line("nodes of ACC from here on were never used")
    EDGE_TOP = line("nodes of EDG likewise")
    LIVE_ACCESSES = line("accesses of lively instructions")
    IN_FLIGHT_BYTES = line("bytes that lively instructions allocate")
    BYTES_HIGH = line("mark above which issuing waits", by=MAIN)
    FREED = line("storage ids pushed to FRE")
    ERROR_COUNT = line("errors pushed to ERR", by=WORKERS)
    LIVE_BYTES = line("of tensors", by=WORKERS)
    PEAK_BYTES = line("the most that LIVE_BYTES was", by=WORKERS)
    RESERVED_BYTES = line("that allocators have of the system", by=WORKERS)
    LEVEL = line("what is recorded, 0 for nothing", by=MAIN)
    NOW = line("the last time it looked at the clock, in ticks")
    SEEN = line("records below were seen published")
    SPILLED = line("operands written to SPL")
    N_RAW = line("edges by hazard: a read after a write")
    N_WAR = line("a write after a read")
    N_WAW = line("a write after a write")
    N_PRESCHEDULED = line("edges that needed no wait because of stream order")
    N_DISPATCHED = line("instructions dispatched")
    N_DONE = line("instructions done")
    N_POISONED = line("instructions skipped because an operand had failed", by=WORKERS)
    N_FAILED = line("instructions failed", by=WORKERS)
    SPINS = line("polls before a thread sleeps", by=MAIN)
    TRIM = line("asks workers to give cached memory back", by=MAIN)
    N_TRIMMED = line("blocks given back", by=WORKERS)
    RUN_AHEAD = line("instructions in flight at which issuing waits", by=MAIN)
    DEVICES = line("bit s: stream s is a device's (see `flowvm.vm.workers.device`)", by=MAIN)
    LANES = line(
        "bit s: stream s waits for other ranks: who waits for it, where it is a device's, waits "
        "until it is done",
        by=MAIN,
    )
    USED_STREAMS = line("streams from here on were never made", by=MAIN)
    HOLD = line("1 asks the scheduler to take no records: it is to come to rest", by=MAIN)
    PEAK_RESERVED = line("the most that RESERVED_BYTES was", by=WORKERS)
    MOST_BYTES = line(
        "how many bytes may be reserved, of the host's or a device's; 0: what there is", by=MAIN
    )
    CANCEL = line("number + 1 of the last cancel: what it follows and has not started", by=MAIN)
    N_CANCELLED = line("instructions that a cancel has dropped", by=WORKERS)
    N_KEPT = line("tensors that persist and that a dropped one would have updated", by=WORKERS)
    TAKEN = line("1 while a thread is the scheduler: its own, or one that waits", by="who took it")
    SCHEDULE = line("address of the scheduler's loop, for threads that wait; 0: none", by=MAIN)
    WORK = line("address of a worker's loop, likewise", by=MAIN)
    SETTLE = line("address of `settle_soon`, likewise", by=MAIN)

    ASLEEP, ABSENT = (
        1,
        2,
    )  # of SCHEDULER_SLEEPS; ABSENT: no scheduler runs, issuing threads see to it


# until its MARK is stored; read by the scheduler, then by the slot's worker
@region(_SLOTS, words=32, by=ISSUER)
class RING(Region):
    """A slot with an instruction's record.  It is written upwards and ends with its MARK: a single
    `struct.pack_into` writes it, and its last store publishes it:

        ... scalar 1, scalar 0, operand n-1, ..., operand 1, operand 0, ENTRY, MARK

    Words that are equal for all calls (kernel, access kinds, sizes, layout) are in the record's
    *entry*, made once per (operator, metas, attributes).
    """

    OPERANDS = field("operand k is word OPERANDS - k; scalars follow", at=29)
    ENTRY = field("number of the entry, below the stream's")
    MARK = field("sequence number + 1, stored last: publishes the record")

    # instructions in flight; more would not fit the second-level cache: 0.1 us an instruction
    SLOTS = _SLOTS
    SLOT_MASK = SLOTS - 1
    MAX_INLINE = _MAX_INLINE  # operands and scalars that fit into a record
    # Whether stores become visible in the order of the program: then a record's last store, its
    # MARK, publishes it.  Elsewhere (aarch64) the mark is stored natively, with release.
    ORDERED_STORES = platform.machine() in ("x86_64", "AMD64")


# tests and `dump()` look, without a promise
@region(_SLOTS, words=16, by=SCHEDULER)
class INS(Region):
    """The scheduler's record of the instruction in a slot."""

    SEQ = field("its sequence number")
    STATE = field("a `State`")
    WAITING = field("edges that it waits for")
    STREAM = field("number of its stream")
    KIND = field("a `Kind`")
    AT_DISPATCH = field("edges to dependents that are let go when this is dispatched")
    AT_DONE = field("when this is done")
    ACCESSES = field("its accesses, a list by ACC.CHAIN")
    NEXT = field("in the list of ready ones or barriers; then its place in the stream's queue, + 1")
    CONNECTED = field("the last instruction that an edge goes to: to each only one")
    COUNT = field("operands")
    STATUS = field("0, or what it failed with; before it counts as done", by=WORKER)
    T_READY = field("when it was ready, in ticks")
    T_DISPATCHED = field("when it was dispatched")
    T_START = field("when it started", by=WORKER)
    T_END = field("when it ended", by=WORKER)

    POISONED = 1 << 20  # STATUS of an instruction skipped because an operand was poisoned


@region(_STREAMS, words=36 * LINE, by=WORKER)
class STR(Region):
    """A stream and its worker, which is the *leader* of the stream's helpers."""

    TAIL = line("instructions dispatched", by=SCHEDULER)
    DONE = line("instructions done")
    SLEEPS = line("futex word of the worker", by="the worker, and who wakes it")
    COLLECTED = line("instructions that the scheduler has completed", by=SCHEDULER)
    JOB = line("(job << 32) | next chunk", by="the worker, and helpers that take a chunk")
    LEFT = line("chunks of the job not finished yet", by="the worker and its helpers")
    TEAM_SLEEPS = line("helpers that sleep", by="helpers")
    TEAM = line("helpers", by=MAIN)
    NEWS = line("counts jobs; helpers that sleep on it are in TEAM_SLEEPS")
    KERNEL = field("of the job: the kernel's address")
    LAYOUT = field("its layout words")
    UNITS = field("its work units")
    GRAIN = field("units of a chunk")
    CHUNKS = field("how many chunks that are")
    STATUS = field("what a chunk failed with", by="the worker and its helpers")
    FIRST = field("number of the job's first unit")
    ARENA = field("the leader's private memory", by=MAIN)
    CLASSES = field("caching allocator: free list of each size class", words=168)
    LAUNCH = field("recorder, from level 2 on: what runs, or the launch whose tasks do")
    TASK_AT = field("recorder: when the last task ended")
    SLAB = field("allocator: where the slab goes on that blocks are cut from")
    SLAB_LEFT = field("bytes left of it")
    CACHED = field("bytes in free lists")
    TRIMMED = field("the last request of CTL.TRIM that the worker has answered")
    TASK = field("of a LaunchPlan: number of the task that runs, -1 for none")
    STAMP = field("recorder: when the last instruction ended, if the next was waiting, else 0")
    BLOCK = field("of a device's stream: its block's address", by=MAIN)
    MEMORY = field("what memory its allocator gives", by=MAIN)
    COUNTERS = field("where that is counted", by=MAIN)
    LOCK = field("of its allocator: whether a worker uses it", by="any worker that takes it")
    SLABS = field("slabs that were cut: next, end of what was cut, bytes", by="who has the lock")
    STOPPABLE = field("number + 1 of the kernel, if a cancel may end it between chunks; else 0")
    PRIORITY = field("of a policy: streams with a lower number go first", by=MAIN)
    HELD = field("of a policy: ready instructions of it that compute something", by=SCHEDULER)
    RETURNED = line("blocks of its allocator that other workers released", by="any worker")
    LAUNCHED = line("instructions that were handed to the device")
    TAKEN = line("1 while a thread is the worker: its own, or one that waits", by="who took it")

    N_CLASSES = 168
    SIGNED_OFF = (1 << 31) - 1  # chunk index of a job whose fields are being written
    HOST_MEMORY, DEVICE_MEMORY, PINNED_MEMORY = 0, 1, 2  # MEMORY
    STOPPED = 1 << 21  # the result of a kernel that a cancel has stopped
    MAX_TEAM = 255  # helpers of a stream


@region(_STREAMS, words=_SLOTS, by=SCHEDULER)
class QUE(Region):
    """A stream's queue: the slots of instructions dispatched, number n at n & RING.SLOT_MASK."""


@region(1 << 10, words=12, by="the worker that has claimed the row")
class ERR(Region):
    """An error that a kernel reported."""

    SEQ = field("the instruction's sequence number")
    STATUS = field("what it failed with")
    DETAILS = field("what the kernel said of it", words=6)
    ENTRY = field("its entry, as a place in `m`")
    MARK = field("number of the error + 1, written last")
    POISONED = field(
        "in row (seq % LENGTH): instructions skipped because of failed instruction `seq`",
        by=WORKERS,
    )
    TASK = field("of a LaunchPlan: number of the task that failed")


# before the first record that names the entry; read by all
@region(1 << 16, words=48, by=ISSUER)
class ENT(Region):
    """An entry: the words that all calls of a kind share."""

    KIND = field("a `Kind`")
    KERNEL = field("address of the kernel")
    LAYOUT = field("address of its layout words")
    COUNT = field("operands")
    SCALARS = field("scalars behind them")
    ACCESS = field("how operands are accessed, ACCESSES_PER_WORD in a word", words=3)
    UNITS = field("work units")
    GRAIN = field("units of a chunk, at least")
    SCRATCH = field("bytes of memory that the kernel gets for the call")
    BYTES = field("output bytes")
    OUTLINE = field("whether operands are out of line")
    PREPARE = field("whether the kernel sizes its mut2 outputs")
    PHASES = field("address of (units, grain) of each further phase")
    MORE = field("how many further phases")
    BRIEF = field("whether the kernel is over so soon that a thread that waits may run it")
    SIZES = field("bytes to allocate for operand k", words=_MAX_INLINE + 3)

    BITS = 32  # of RING.ENTRY: the entry's number; above it the stream's
    MASK = (1 << BITS) - 1


@region(_STORAGES, words=2, by=SCHEDULER)
class DEP(Region):
    """The access list of a storage; invariant: [one writer]? readers*.  Nodes of ACC, + 1, so that
    zeroed memory is an empty list.
    """

    FIRST = field("its first node + 1")
    LAST = field("its last node + 1")


# the worker whose instruction may run by the edges; the issuing thread before a storage's first use
@region(_STORAGES, words=8, by=WORKER)
class STO(Region):
    """A storage: memory of a tensor."""

    POINTER = field("its address, 0 for none")
    BYTES = field("how many")
    POISON = field("sequence number + 1 of the failed instruction that would have written it, or 0")
    ROWS = field("rows that a mut2 access has found")
    STREAM = field("the stream whose allocator it is of")
    CLASS = field("its size class")
    KEEP = field("CTL.CANCEL, if updates that it drops leave it as it is; negative: of launches")
    TORN = field(
        "0: its bytes are the last whole value, poisoned or not; else number + 1 of what has left "
        "them half written; negative: of what gave it no first value"
    )


@region(_ACCESSES, words=6, by=SCHEDULER)
class ACC(Region):
    """One access of one instruction, in the list of its storage."""

    SLOT = field("the instruction's")
    STORAGE = field("its storage, -1 when it is off the list")
    WRITES = field("1 if it does")
    NEXT = field("in the storage's list, or in the free list; -1 at the end")
    PREVIOUS = field("in the storage's list")
    CHAIN = field("the instruction's next access")


# an access is waited for at most once as reader's writer, once when displaced
@region(2 * _ACCESSES, words=2, by=SCHEDULER)
class EDG(Region):
    """An edge, in a list of the instruction that is waited for; or a node of WAI."""

    TARGET = field(
        "the target's slot, with NOTED where it is to be told the place in a queue; in WAI: a "
        "stream above WAI.PLACE_BITS, and how many instructions of it must have been launched"
    )
    NEXT = field("in its list, -1 at the end")

    NOTED = 1 << 20


@region(_STORAGES, words=1, by=SCHEDULER)
class FRE(Region):
    """A ring of storage ids that may name new storages."""


@region(1 << 16, words=16, by=SCHEDULER)
class REC(Region):
    """A recorded instruction, in place (sequence number & MASK); times are ticks.  Read by whoever
    looks back (see `flowvm.vm.machine.recorder`).
    """

    SEQ = field("sequence number + 1; 0 while it is written")
    WHAT = field("entry | stream << ENT.BITS")
    COUNT = field("operands")
    ISSUED = field("when it was issued")
    RECEIVED = field("received")
    READY = field("ready")
    DISPATCHED = field("dispatched")
    STARTED = field("started")
    ENDED = field("ended")
    RELEASED = field("released")
    STATUS = field("INS.STATUS")
    OPERANDS = field("storages, PER_WORD in a word, or where they begin in SPL", words=5)

    MASK = (1 << 16) - 1
    PER_WORD = 3


@region(1 << 19, words=1, by=SCHEDULER)
class SPL(Region):
    """A ring of operands that did not fit into their records in REC."""

    MASK = (1 << 19) - 1


_TASKS = 1 << 13


@region(_STREAMS, words=LINE + _TASKS * 8, by=WORKER)
class TSK(Region):
    """Tasks that a stream's worker ran within launches, from level 2 on: a ring of RAN."""

    COUNT = line("how many were written")
    ROWS = field("they", words=_TASKS * 8)

    ROWS_LENGTH = _TASKS
    MASK = _TASKS - 1


@record(words=8, by=WORKER)
class RAN(Record):
    """A task that a stream's worker ran: an element of TSK."""

    LAUNCH = field("the launch's sequence number")
    TASK = field("number of the task")
    REPETITION = field("for which time it ran")
    STARTED = field("when it started")
    ENDED = field("when it ended")
    MARK = field("how many came before, + 1, written last")


_SHARES = 1 << 12


@region(STR.MAX_TEAM, words=LINE + _SHARES * 8, by="the helper")
class HLP(Region):
    """Shares that a helper had of large kernels, from level 2 on: a ring of SHARE."""

    COUNT = field("how many were written")
    JOB = field("the job of the last one")
    ROWS = field("they", words=_SHARES * 8, at=LINE)

    ROWS_LENGTH = _SHARES
    MASK = _SHARES - 1


@record(words=8, by="the helper")
class SHARE(Record):
    """A share that a helper had: an element of HLP."""

    LAUNCH = field("the instruction's sequence number")
    TASK = field("task of a launch or -1")
    STARTED = field("when it started")
    ENDED = field("when it ended")
    CHUNKS = field("how many chunks it was")
    MARK = field("how many came before, + 1, written last")


@region(_STREAMS, words=8 + OPERAND.MAX + _MAX_INLINE, by=WORKER)
class ARG(Region):
    """The block that a kernel gets for its arguments."""

    DETAILS = field("what it says of an error", words=6, by="the kernel")
    SCRATCH = field("address of its memory for the call")
    BLOCK = field("address of a device stream's block", by=WORKER)
    HEADER = field("operands' addresses, then scalars", words=OPERAND.MAX + _MAX_INLINE)

    N_DETAILS = 6
    ARENA_BYTES = 1 << 21  # private memory of a worker or helper, for a kernel's use during a chunk
    PHASE_BITS = 40  # units of phase p are numbered from p << PHASE_BITS


_MESSAGES = 1 << 12


@region(_STREAMS, words=2 * LINE + _MESSAGES, by=WORKERS)
class MBX(Region):
    """A stream's mailbox: addresses of the actors that must check if they may act."""

    TAIL = line("places claimed")
    HEAD = line("messages taken", by=WORKER)
    FIRST = field("messages, each written by who has claimed its place", words=_MESSAGES)

    MESSAGES = _MESSAGES  # an actor has one there at most


@region(_SLOTS, words=1, by=SCHEDULER)
class WAI(Region):
    """For each slot, what its device is to wait for: the first of a list of nodes of EDG, + 1.
    Read by the worker of the slot's stream.
    """

    PLACE_BITS = 48
    PLACE_MASK = (1 << PLACE_BITS) - 1


@region(_STREAMS, words=LINE, by=WORKER)
class CHK(Region):
    """A stream's part of the memory check (`flowvm.vm.workers.zones`); unused without it."""

    SLOT = field("of the instruction, or the launch, that runs")
    FIRST = field("the oldest block in quarantine")
    LAST = field("the newest")
    BLOCKS = field("how many there are")
    BYTES = field("of theirs")
    COPIES = field("of memory that the instruction must leave as it is: the first")


@region(ENT.LENGTH, words=1, by=ISSUER)
class VEW(Region):
    """The memory check's: the address of the views that an entry's instructions write."""


@record(by=MAIN)
class POL(Record):
    """The policy that ready instructions are taken by (`flowvm.vm.machine.policy`): control words
    behind those of CTL, in its region, so they too are their own index.
    """

    KIND = field(
        "0: first come, first served, at once; else one of those below",
        at=fields_of(CTL)[-1].at + LINE,
    )
    DEPTH = field("instructions that a stream may have at once; 0: one in all streams")
    POOL = field("bit s: stream s shares its work with the others that have one")
    GATHERED = field("1: nothing goes until somebody waits, or nothing more may be issued")
    TABLE = field("address of (key, stream or -1) of instructions by their number")
    ROWS = field("how many it has")
    WRAPS = field("1: behind its end the table begins anew")
    RANKED = field("1: streams have priorities that differ")
    LAST = line("of ORDER: keys below are places in it")
    LOG = field("address of (number, entry | stream << ENT.BITS) of what was dispatched")
    LOG_ROWS = field("how many it has room for")
    NATIVE = field("of ASKED: address of a compiled policy; 0: its thread answers")
    STATE = field("of ASKED: address of the compiled policy's words; the first is its answer")
    BEGUN = field("of ASKED: when it began, in nanoseconds")
    CHOICE = field("of ASKED: the slot that was chosen, or -1", by="the policy's thread")
    LANE = field("of ASKED: the stream for it", by="the policy's thread")
    ANSWER = field("of ASKED: the last question that was answered", by="the policy's thread")
    ASK = line("of ASKED: questions so far", by=SCHEDULER)
    WAITERS = field("waits in flight", by=SCHEDULER)
    WORKED = field("instructions received that compute something", by=SCHEDULER)
    ARRIVED = field("instructions that became ready", by=SCHEDULER)
    PLACE = field("of ORDER: what comes next", by=SCHEDULER)
    ASTRAY = field("of ORDER: times that it could not come", by=SCHEDULER)
    LOGGED = field("of those that compute, how many were dispatched", by=SCHEDULER)
    STALLED = field("1: waited long enough for somebody to wait", by=SCHEDULER)
    FAILED = field("of a compiled policy: how it was wrong, one of those below", by=SCHEDULER)
    WRONG = field("of a compiled policy: the task that it was wrong about", by=SCHEDULER)
    ENDED_ON = field("the stream whose instruction is completed now", by=SCHEDULER)
    PULLED = field("1: the workers of the pool take their work in passes of their own")
    PASSER = field("the stream whose worker makes this pass, or -1", by=SCHEDULER)
    HEARD = field("of a compiled policy: what ARRIVED was when it heard of all", by=SCHEDULER)
    TOLD = line("of ASKED: what `news` was at the last answer that chose nothing", by=SCHEDULER)

    # by arrival, the first or the last first; by the table; in the table's order and no other; by
    # whom it asks
    ARRIVAL, LATEST, KEYED, ORDER, ASKED = 1, 2, 3, 4, 5
    RAISED, UNREADY, IDLE = 1, 2, 3  # of FAILED
    HEAR, PICK, END = 0, 1, 2  # what a compiled policy is asked


@region(_SLOTS, words=8, by=SCHEDULER)
class PRI(Region):
    """Words of a policy about the instruction in a slot."""

    NUMBER = field("among those that compute something; -1 of a wait or a release")
    KEY = field("the least goes first")
    BOUND = field("the stream of a pool that it must go to, or -1")
    HEARD = field("1: its policy was told that it is ready", by="the policy's thread")
    AFTER = field("the stream that made it ready, or -1")
    SLOT = field("by the number, not by the slot: the slot of the instruction with that number")


@record()
class ARRAY(Record):
    """The whole array `m`."""

    WORDS = _end


def name_of(word: int) -> str:
    """Return the name of word `word` of `m`, as text: STR[2].TAIL."""
    table = next(r for r in reversed(REGIONS) if r.AT <= word)
    number, inside = divmod(word - table.AT, table.WORDS)
    name = table.__name__.rpartition(".")[2]
    field = next((f for f in fields_of(table) if f.at <= inside < f.at + f.words), None)
    place = f"[{number}]" if table.LENGTH > 1 else ""
    if field is None:
        return f"{name}{place}" + (f"+{inside}" if inside else "")
    return f"{name}{place}.{field.name}" + (f"+{inside - field.at}" if inside > field.at else "")
