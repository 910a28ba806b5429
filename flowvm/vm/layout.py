"""Where everything of the VM lies: one int64 array `m`, cut into regions.

One array, because a compiled function then takes one argument, and because a debugger, a test or a
profiler can read the whole state of the VM from outside.  The memory is reserved, not used: the
system hands out pages as they are touched.

Who may write what (nobody else ever does):

    CTL, each word       the thread named beside it below; read by all
    RING                 the issuing thread of that slot, until it stores the slot's MARK; read by
                         the scheduler, then by the slot's worker
    ENT                  issuing threads, before the first record that names the entry; read by all
    INS, DEP, ACC, EDG   the scheduler (tests and `dump()` look, without a promise)
    INS.STATUS, INS.T_*  the worker of the instruction's stream, before it counts the instruction
                         done; read by the scheduler
    STO                  the worker whose instruction the edges let run; the issuing thread before a
                         storage's first use
    QUE, STR.TAIL        the scheduler; read by the stream's worker
    STR, all else        the stream's worker

A record (one slot of RING) is written upwards and ends with its MARK, so a single
`struct.pack_into` writes it and its last store publishes it:

    ... scalar 1, scalar 0, operand n-1, ..., operand 1, operand 0, ENTRY | stream << 32, MARK

MARK is the sequence number + 1.

An operand is one word: storage id in the low 20 bits, byte offset above.  What is the same at every
call (kernel, access kinds, sizes, layout) is in the record's *entry*, made once per (operator,
metas, attributes).
"""

from __future__ import annotations

import enum
import platform

# Whether stores become visible in the order of the program: then a record's last store, its MARK,
# publishes it.  Elsewhere (aarch64) the mark is stored natively, with release.
ORDERED_STORES = platform.machine() in ("x86_64", "AMD64")

# --- sizes ------------------------------------------------------------------------------------
# instructions in flight; more would not fit the second-level cache, at 0.1 us an instruction
# instructions in flight; more would not fit the second-level cache: 0.1 us an instruction
CAPACITY = 1 << 12
SLOT_MASK = CAPACITY - 1
STORAGE_BITS = 20
STORAGES = 1 << STORAGE_BITS
STORAGE_MASK = STORAGES - 1
ENTRIES = 1 << 16
ENTRY_BITS = 32
ENTRY_MASK = (1 << ENTRY_BITS) - 1
STREAMS = 32
ACCESSES = 1 << 18
EDGES = 2 * ACCESSES  # an access is waited for at most once as reader's writer, once when displaced
ERRORS = 1 << 10
RECORDS = 1 << 16
MAX_INLINE = 28  # operands and scalars that fit into a record
MAX_OPERANDS = 1 << 15  # operands of one instruction, out of line
LINE = 8  # words of a cache line

# --- control words (a cache line each) -------------------------------------------------------
(
    RECEIVED,  # scheduler: sequence number of the next record it will take
    HEAD,  # scheduler: every instruction below is released
    LIMIT,  # scheduler: records may be issued below this sequence number
    STOP,  # main: 1 asks all threads to leave
    SCHEDULER_SLEEPS,  # 0 awake; ASLEEP: scheduler sets, anybody clears and wakes; ABSENT: main
    ROOM_SLEEPS,  # issuing threads that wait for LIMIT: a futex word
    READY_FIRST,  # scheduler: ready instructions, first slot or -1
    READY_LAST,
    BARRIER_FIRST,  # scheduler: barriers, in program order
    BARRIER_LAST,
    FREE_ACCESS,  # scheduler: free lists of the pools
    FREE_EDGE,
    ACCESS_TOP,
    EDGE_TOP,
    LIVE_ACCESSES,
    IN_FLIGHT_BYTES,  # scheduler
    BYTES_HIGH,  # main: mark above which issuing waits
    FREED,  # scheduler: storage ids pushed to the FRE ring
    ERROR_COUNT,  # workers: errors pushed to the ERR ring
    LIVE_BYTES,  # workers
    PEAK_BYTES,  # workers
    RESERVED_BYTES,  # workers
    RECORDING,  # main: 1 while a trace is recorded
    RECORDED,  # scheduler: instructions copied to REC
    TICKET,  # workers: order of starts and ends
    N_RAW,  # scheduler: edges by hazard
    N_WAR,
    N_WAW,
    N_PRESCHEDULED,  # scheduler: edges that needed no wait because of stream order
    N_DISPATCHED,
    N_DONE,
    N_POISONED,
    N_FAILED,
    MUTANT,  # tests: a hazard to leave out (see tests/vm/test_mutants.py); 0 in every real run
    SPINS,  # main: polls before a thread sleeps
    TRIM,  # main: asks workers to give cached memory back
    N_TRIMMED,
    RUN_AHEAD,  # main: instructions in flight at which issuing waits
) = range(0, 38 * LINE, LINE)
CTL_WORDS = 64 * LINE
ASLEEP, ABSENT = 1, 2  # of SCHEDULER_SLEEPS; ABSENT: no scheduler runs, issuing threads see to it

# --- a slot of RING ---------------------------------------------------------------------------
RECORD_WORDS = 32
MARK, ENTRY, OPERANDS = 31, 30, 29  # operand k is word OPERANDS - k; scalars follow


class Kind(enum.IntEnum):
    """Instruction policies."""

    OP_CALL = 0
    RELEASE_TENSOR = 1
    BARRIER = 2
    TOUCH_TENSORS = 3
    CALLBACK = 4  # AccessBlobByCallback: Python code, on a host stream
    LAUNCH_PLAN = 5  # a captured graph, replayed: E_LAYOUT is the Plan's words


OP_CALL, RELEASE, BARRIER, TOUCH, CALLBACK, LAUNCH = (int(k) for k in Kind)


class Access(enum.IntEnum):
    """How an operand is accessed."""

    CONST = 0
    MUT = 1
    MUT2 = 2


CONST, MUT, MUT2 = (int(a) for a in Access)
ALLOCATE = 4  # with MUT or MUT2: the storage gets its memory from this instruction
ACCESS_BITS = 4
ACCESSES_PER_WORD = 15  # of 4 bits: the top bits stay clear, so the word is never negative

# --- an entry of ENT --------------------------------------------------------------------------
ENTRY_WORDS = 48
E_KIND, E_KERNEL, E_LAYOUT, E_COUNT, E_SCALARS = 0, 1, 2, 3, 4
E_ACCESS, E_UNITS, E_GRAIN, E_SCRATCH = 5, 8, 9, 10
# output bytes; operands out of line; kernel sizes its mut2 outputs
E_BYTES, E_OUTLINE, E_PREPARE = 11, 12, 13
E_PHASES, E_MORE = 14, 15  # address of (units, grain) of each further phase; how many
E_SIZES = 16  # bytes to allocate for operand k

# --- INS: what the scheduler knows of the instruction in a slot -------------------------------
INS_WORDS = 16
I_SEQ, I_STATE, I_WAITING, I_STREAM, I_KIND = 0, 1, 2, 3, 4
I_AT_DISPATCH, I_AT_DONE = 5, 6  # edge lists: dependents released when this is dispatched / done
I_ACCESSES, I_NEXT, I_CONNECTED, I_COUNT = 7, 8, 9, 10
I_STATUS, I_STARTED, I_ENDED, I_T_START, I_T_END = 11, 12, 13, 14, 15


class State(enum.IntEnum):
    """Life of an instruction; it is *lively* from PENDING until RELEASED."""

    FREE = 0
    PENDING = 1
    READY = 2
    DISPATCHED = 3
    DONE = 4
    RELEASED = 5


PENDING, READY, DISPATCHED, DONE, RELEASED = 1, 2, 3, 4, 5

# --- DEP: the access list of a storage; invariant: [one writer]? readers* -----------------------
DEP_WORDS = 2
D_FIRST, D_LAST = 0, 1  # node + 1, so that zeroed memory is an empty list

# --- ACC: one access of one instruction ---------------------------------------------------------
ACC_WORDS = 6
A_SLOT, A_STORAGE, A_WRITES, A_NEXT, A_PREVIOUS, A_CHAIN = 0, 1, 2, 3, 4, 5

# --- EDG ----------------------------------------------------------------------------------------
EDG_WORDS = 2
G_TARGET, G_NEXT = 0, 1

# --- STO: a storage ------------------------------------------------------------------------------
STO_WORDS = 8
S_POINTER, S_BYTES, S_POISON, S_ROWS, S_STREAM, S_CLASS = 0, 1, 2, 3, 4, 5

# --- STR: a stream and its worker ---------------------------------------------------------------
STR_WORDS = 256
(
    T_TAIL,  # scheduler: instructions dispatched
    T_DONE,  # worker: instructions done
    T_SLEEPS,  # futex word of the worker
    T_COLLECTED,  # scheduler: instructions it has completed
    T_JOB,  # leader: (job << 32) | next chunk
    T_LEFT,  # chunks of the job not finished yet
    T_TEAM_SLEEPS,  # helpers that sleep
    T_TEAM,  # helpers
    T_NEWS,  # counts jobs; helpers that sleep on it are in T_TEAM_SLEEPS
) = range(0, 9 * LINE, LINE)
T_KERNEL, T_LAYOUT, T_UNITS, T_GRAIN, T_CHUNKS, T_STATUS = 72, 73, 74, 75, 76, 77
T_FIRST, T_ARENA = 78, 79  # number of the job's first unit; the leader's private memory
T_CLASSES = 80  # caching allocator: free list of each size class
N_CLASSES = 168
T_SLAB, T_SLAB_LEFT, T_CACHED = 250, 251, 252
T_TRIMMED = 253  # the last request of TRIM that the worker has answered
T_TASK = 254  # of a LaunchPlan: number of the task that runs
SIGNED_OFF = (1 << 31) - 1  # chunk index of a job whose fields are being written

ARENA_BYTES = 1 << 21  # private memory of a worker or helper, for a kernel's use during a chunk
PHASE_BITS = 40  # units of phase p are numbered from p << PHASE_BITS
MAX_TEAM = 255  # helpers of a stream

# --- a Plan's words (see `flowvm.graph.plan`, which writes them) ----------------------------------
P_TASKS, P_OPERANDS, P_SIZES, P_FIRST = 0, 1, 2, 3  # counts; where tables begin in the words
# a task: its length in words, kernel, layout, units, grain, further phases, scratch, counts
K_LENGTH, K_KERNEL, K_LAYOUT, K_UNITS, K_GRAIN, K_PHASES, K_MORE = 0, 1, 2, 3, 4, 5, 6
K_SCRATCH, K_COUNT, K_SCALARS, K_OPERANDS = 7, 8, 9, 10
# an operand of a task: source | written << 20 | byte offset << 21; source 0 is the chunk of the
# launch, source k its operand k - 1.  A scalar: number of the launch's live scalar or -1, value.
SOURCE_BITS = 20
SOURCE_MASK = (1 << SOURCE_BITS) - 1

# --- ARG: argument block of a stream's worker --------------------------------------------------
ARG_HEADER = 8  # error details 0..5, scratch address, stream
ARG_WORDS = ARG_HEADER + MAX_OPERANDS + MAX_INLINE
A_SCRATCH = 6
DETAILS = 6

# --- ERR: an error that a kernel reported ------------------------------------------------------
ERR_WORDS = 12
R_SEQ, R_STATUS, R_DETAILS, R_ENTRY, R_MARK = 0, 1, 2, 8, 9
R_TASK = 11  # of a LaunchPlan: number of the task that failed
R_POISONED = 10  # in row (seq % ERRORS): instructions skipped because of failed instruction `seq`

# --- REC: a recorded instruction -----------------------------------------------------------------
REC_WORDS = 48
C_SEQ, C_ENTRY, C_STREAM, C_STARTED, C_ENDED = 0, 1, 2, 3, 4
C_T_START, C_T_END, C_STATUS, C_COUNT = 5, 6, 7, 8
C_OPERANDS = 9

NO_STATUS_POISONED = 1 << 20  # I_STATUS of an instruction skipped because an operand was poisoned


def _regions() -> dict[str, int]:
    sizes = {
        "CTL": CTL_WORDS,
        "RING": CAPACITY * RECORD_WORDS,
        "INS": CAPACITY * INS_WORDS,
        "STR": STREAMS * STR_WORDS,
        "QUE": STREAMS * CAPACITY,
        "ERR": ERRORS * ERR_WORDS,
        "ENT": ENTRIES * ENTRY_WORDS,
        "DEP": STORAGES * DEP_WORDS,
        "STO": STORAGES * STO_WORDS,
        "ACC": ACCESSES * ACC_WORDS,
        "EDG": EDGES * EDG_WORDS,
        "FRE": STORAGES,
        "REC": RECORDS * REC_WORDS,
        "ARG": STREAMS * ARG_WORDS,
    }
    places, at = {}, 0
    for name, size in sizes.items():
        places[name] = at
        at += (size + 511) // 512 * 512
    places["END"] = at
    return places


_places = _regions()
CTL, RING, INS, STR, QUE = (_places[n] for n in ("CTL", "RING", "INS", "STR", "QUE"))
ERR, ENT, DEP, STO, ACC = (_places[n] for n in ("ERR", "ENT", "DEP", "STO", "ACC"))
EDG, FRE, REC, ARG = (_places[n] for n in ("EDG", "FRE", "REC", "ARG"))
WORDS = _places["END"]
assert CTL == 0, "control words are addressed by their own index"
