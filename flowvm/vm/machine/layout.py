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
    INS.STATUS,          the worker of the instruction's stream, before it counts the instruction
    INS.T_START, T_END   done; read by the scheduler
    REC, SPL             the scheduler; read by whoever looks back (see `vm/machine/recorder.py`)
    TSK                  the stream's worker; read likewise
    HLP                  each helper its own part; read likewise
    STO                  the worker whose instruction the edges let run; the issuing thread before a
                         storage's first use
    QUE, STR.TAIL        the scheduler; read by the stream's worker
    MBX                  any worker, each in the place that it has claimed; the stream's worker
    WAI                  the scheduler; read by the worker of the slot's stream
    STR, all else        the stream's worker

A record (one slot of RING) is written upwards and ends with its MARK, so a single
`struct.pack_into` writes it and its last store publishes it:

    ... scalar 1, scalar 0, operand n-1, ..., operand 1, operand 0, ENTRY | stream << 32, MARK

MARK is the sequence number + 1.

An operand is one word: storage id in the low 20 bits, byte offset above.  What is the same at every
call (kernel, access kinds, sizes, layout) is in the record's *entry*, made once per (operator,
metas, attributes).

Long because every region's words are named here, once.
"""

from __future__ import annotations

import enum
import platform

# Whether stores become visible in the order of the program: then a record's last store, its MARK,
# publishes it.  Elsewhere (aarch64) the mark is stored natively, with release.
ORDERED_STORES = platform.machine() in ("x86_64", "AMD64")

# --- sizes ------------------------------------------------------------------------------------
# instructions in flight; more would not fit the second-level cache: 0.1 us an instruction
CAPACITY = 1 << 12
SLOT_MASK = CAPACITY - 1
STORAGE_BITS = 20
STORAGES = 1 << STORAGE_BITS
STORAGE_MASK = STORAGES - 1
ENTRIES = 1 << 16
ENTRY_BITS = 32
ENTRY_MASK = (1 << ENTRY_BITS) - 1
STREAMS = 63  # at most: DEVICES has a bit each, and the sign is none of them
ACCESSES = 1 << 18
EDGES = 2 * ACCESSES  # an access is waited for at most once as reader's writer, once when displaced
ERRORS = 1 << 10
RECORDS = 1 << 16  # instructions that the flight recorder remembers
RECORD_MASK = RECORDS - 1
SPILLS = 1 << 19  # operands of theirs that did not fit into their records
SPILL_MASK = SPILLS - 1
TASKS = 1 << 13  # of a stream's tasks within launches, from level 2 on
TASK_MASK = TASKS - 1
SHARES = 1 << 12  # of a helper's shares of large kernels, from level 2 on
SHARE_MASK = SHARES - 1
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
    LEVEL,  # main: what is recorded, 0 for nothing
    NOW,  # scheduler: the last time it looked at the clock, in ticks
    SEEN,  # scheduler: records below were seen published
    SPILLED,  # scheduler: operands written to SPL
    N_RAW,  # scheduler: edges by hazard
    N_WAR,
    N_WAW,
    N_PRESCHEDULED,  # scheduler: edges that needed no wait because of stream order
    N_DISPATCHED,
    N_DONE,
    N_POISONED,
    N_FAILED,
    MUTANT,  # tests: a hazard to leave out (see test_mutants.py); 0 in every real run
    SPINS,  # main: polls before a thread sleeps
    TRIM,  # main: asks workers to give cached memory back
    N_TRIMMED,
    RUN_AHEAD,  # main: instructions in flight at which issuing waits
    DEVICES,  # main: bit s is set if stream s is a device's (see `flowvm.vm.workers.device`)
    USED_STREAMS,  # main: streams from here on were never made
    PEAK_RESERVED,  # workers
    MOST_BYTES,  # main: of a device's memory, how many bytes may be reserved; 0: what there is
) = range(0, 43 * LINE, LINE)
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
I_STATUS, I_T_READY, I_T_DISPATCHED, I_T_START, I_T_END = 11, 12, 13, 14, 15


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
G_TARGET, G_NEXT = 0, 1  # the target's slot, with NOTED where it is to be told the place in a queue
NOTED = 1 << 20

# --- WAI: for each slot, what its device is to wait for: a list of nodes of EDG, each with a stream
# and how many instructions of it must have been launched ------------------------------------------
PLACE_BITS = 48
PLACE_MASK = (1 << PLACE_BITS) - 1

# --- STO: a storage ------------------------------------------------------------------------------
STO_WORDS = 8
S_POINTER, S_BYTES, S_POISON, S_ROWS, S_STREAM, S_CLASS = 0, 1, 2, 3, 4, 5

# --- STR: a stream and its worker ---------------------------------------------------------------
STR_WORDS = 272
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
# recorder, from level 2 on: what runs, or the launch whose tasks do; when the last task ended
T_LAUNCH, T_TASK_AT = 248, 249
T_SLAB, T_SLAB_LEFT, T_CACHED = 250, 251, 252
T_TRIMMED = 253  # the last request of TRIM that the worker has answered
T_TASK = 254  # of a LaunchPlan: number of the task that runs, -1 for none
T_STAMP = 255  # recorder: when the last instruction ended, if the next was waiting, else 0
# of a device's stream: its block's address; what memory its allocator gives; where that is counted
T_BLOCK, T_MEMORY, T_COUNTERS = 256, 257, 258
# of its allocator: whether a worker uses it; slabs that were cut: next, end of what was cut, bytes
T_LOCK, T_SLABS = 259, 260
T_LAUNCHED = 264  # worker: instructions that were handed to the device
SIGNED_OFF = (1 << 31) - 1  # chunk index of a job whose fields are being written

ARENA_BYTES = 1 << 21  # private memory of a worker or helper, for a kernel's use during a chunk
PHASE_BITS = 40  # units of phase p are numbered from p << PHASE_BITS
MAX_TEAM = 255  # helpers of a stream

# --- a device stream's block: words that Python writes before the stream's first instruction ------
# what a stream's worker calls, by address, and its handles (see `flowvm.vm.workers.device`)
B_STREAM, B_CONTEXT, B_CUBLAS, B_LINES, B_EVENTS, B_CALL = 0, 1, 2, 3, 4, 5
B_RECORDED, B_PASSED, B_SINCE, B_WAIT_EVENT, B_FAILED, B_LINE = 6, 7, 8, 9, 10, 11
B_STAGES, B_STAGE_BYTES, B_STAGED, B_TWIN = 12, 13, 14, 15
(
    BF_LAUNCH,
    BF_SET_CONTEXT,
    BF_RECORD,
    BF_QUERY,
    BF_WAIT_EVENT,
    BF_SYNCHRONIZE,
    BF_ALLOCATE,
    BF_FREE,
    BF_ALLOCATE_HOST,
    BF_FREE_HOST,
    BF_COPY_IN,
    BF_COPY_OUT,
    BF_COPY_PEER,
    BF_SYNCHRONIZE_EVENT,
    BF_MEMCPY,
    BF_BEGIN_CAPTURE,
    BF_END_CAPTURE,
    BF_INSTANTIATE,
    BF_UPDATE,
    BF_LAUNCH_GRAPH,
    BF_DESTROY_GRAPH,
    BF_DESTROY_EXEC,
    BF_CLEAR,
    BF_COPY,
    BF_ELAPSED,
) = range(16, 41)
# from level 3 on: a ring of X_WORDS a record; the timed event that it counts from, and its own time
B_TIMES, B_BASE, B_BASE_NS = 41, 42, 43
B_REFUSED = 44  # what the driver last answered to the allocator's wish
BF_CAPTURE_MODE = 45
B_WORDS = 46
HOST_MEMORY, DEVICE_MEMORY, PINNED_MEMORY = 0, 1, 2  # T_MEMORY
LINE_WORDS = 8  # of B_LINES: error details 0 to 5, status; one line for each slot of the queue
LINE_STATUS = 6
DEVICE_EVENTS = 64  # places in B_EVENTS
EVENT_WORDS = 5
# event; how many instructions were launched before it; events with timing in front of and behind
# the one that has an event of its own; whether these were recorded, and stand for the first
V_EVENT, V_PLACE, V_BEGIN, V_END, V_TIMED = 0, 1, 2, 3, 4
X_WORDS = 3
X_MARK, X_BEGAN, X_ENDED = 0, 1, 2  # sequence number + 1; ns of the device's clock
STAGES = 4  # pairs in B_STAGES: address of a pinned buffer, event behind its last use
CALL_WORDS = 24  # arguments of a call by address
PARAM_WORDS = 512  # of a kernel: 4 KiB

# --- steps: the layout words of a device's instruction (see `flowvm.vm.workers.steps`)
# --------------------
STEP_LENGTH, STEP_KIND, STEP_COUNTS, STEP_FUNCTION, STEP_WORDS, STEP_PATCHES = 0, 1, 2, 3, 4, 5
STEP_GRID, STEP_BLOCK, STEP_SHARED = 6, 9, 12  # x, y, z each; bytes
STEP_FIRST = 13  # template words, then patches: position, source, what is added
STEP_KERNEL, STEP_CALL = 0, 1  # STEP_KIND
# sources, with a number k above: an operand's address or a scalar (in the order of ARG), scratch
# memory, the instruction's line, word k of the stream's block, the address of word k of the steps
SOURCE_ARG, SOURCE_SCRATCH, SOURCE_LINE, SOURCE_BLOCK, SOURCE_HERE = 0, 1, 2, 3, 4
SOURCE_SHIFT = 8

# --- a Plan's words (see `flowvm.graph.plan.plan`, which writes them)
# ----------------------------------
P_TASKS, P_OPERANDS, P_SIZES, P_FIRST = 0, 1, 2, 3  # counts; where tables begin in the words
P_MADE, P_INPUTS, P_ACTORS = 4, 5, 6  # operands: outputs, then inputs; address of the actors or 0
P_GRAPH = 7  # address of what is known of its graph on a device, or 0
P_HEAD = 8
# a task: its length in words, kernel, layout, units, grain, further phases, scratch, counts
K_LENGTH, K_KERNEL, K_LAYOUT, K_UNITS, K_GRAIN, K_PHASES, K_MORE = 0, 1, 2, 3, 4, 5, 6
K_SCRATCH, K_COUNT, K_SCALARS = 7, 8, 9
# how often the task runs in a launch; if more than once: tasks from this one to the end of those
# that run together as often, and the address of a step in bytes for each operand
K_REPEAT, K_SECTION, K_STEPS, K_OPERANDS = 10, 11, 12, 13
# an operand of a task: source | written << 20 | byte offset << 21; source 0 is the chunk of the
# launch, source k its operand k - 1.  A scalar: number of the launch's live scalar or -1; its
# value, or how far the live scalar's number moves from one repetition to the next.
SOURCE_BITS = 20
SOURCE_MASK = (1 << SOURCE_BITS) - 1

# --- a Plan's graph on a device (see `flowvm.vm.workers.device_graph`): its worker's words
# -----------
G_MODE, G_EXEC, G_CHANGES, G_CODE, G_LAUNCHES = 0, 1, 2, 3, 4
# which never change: operands of a launch, those that it makes, inputs, live scalars; the storage
# of the graph's own memory, and where in it the chunk is; the stream whose order that goes by
G_OPERANDS, G_MADE, G_INPUTS, G_SCALARS = 5, 6, 7, 8
G_STORAGE, G_CHUNK, G_STREAM = 9, 10, 11
# lines of tasks; where in the chunk they are, and the live scalars; steps that write those, and
# that look through the lines
G_LINES, G_LINES_AT, G_NUMBERS_AT, G_PUT, G_COLLECT = 12, 13, 14, 15, 16
# places in these words: of a description for each line, of the places of the branches, of the other
# lanes' blocks, and how many there are of these
G_REPORTERS_AT, G_BRANCHES_AT, G_BRANCHES, G_LANES_AT, G_LANES = 17, 18, 19, 20, 21
# then: for each operand where in that memory it is (-1: where it lies) and its bytes; the table
# that the graph was captured with; what the places above name
G_LISTS = 24
# of a line: its task, and where in these words are the operands that depend on it, and how many
REPORTER_TASK, REPORTER_FIRST, REPORTER_COUNT, REPORTER_WORDS = 0, 1, 2, 3
# a branch: its lane's block, the address of its first task's words, that task's number, how many
# tasks, the event recorded behind it or 0, how many events it waits for, and these
BRANCH_BLOCK, BRANCH_WORDS_AT, BRANCH_FIRST, BRANCH_COUNT = 0, 1, 2, 3
BRANCH_EVENT, BRANCH_WAITS, BRANCH_HEAD = 4, 5, 6
G_SETTLING, G_READY, G_DIRECT = 0, 1, 2  # G_MODE

# --- actors of a Plan on several streams (see `flowvm.vm.workers.actors`)
# --------------------------------- One array: these words, then a line for each launch in flight,
# then the actors, then their lists.
RT_DEPTH = 0  # launches in flight at most: `regst_num`, how many chunks there are at one time
RT_ACTORS, RT_FIRST = 1, 2  # how many; where the first actor's words begin
RT_HOME = 3  # the stream that launches are issued on: its worker opens and closes them
RT_STARTED = LINE  # home stream's worker: launches opened
RT_CLOSED = 2 * LINE  # any thread, once: no launch will follow
RT_FINISHED, RT_FAILED = 3 * LINE, 4 * LINE  # home: launches closed; actors: one in flight failed
RT_HEAD = 5 * LINE
L_CHUNK, L_SCALARS, L_STATUS, L_TASK, L_LEFT, L_SLOT, L_ENTRY, L_CAUSE = 0, 1, 2, 3, 4, 5, 6, 7
L_DETAILS, L_ALONE, L_WORDS = 8, 14, 16  # L_ALONE: no other launch may be in flight beside it
AC_ACTED = 0  # the actor's worker: launches it has acted for; its message to all whom it tells
AC_QUEUED, AC_ENDED = LINE, LINE + 1  # a message to it lies in a mailbox; it has passed EORD on
AC_PLAN, AC_STREAM, AC_WORDS_AT, AC_TASK, AC_TASKS = 16, 17, 18, 19, 20
AC_IN, AC_INS, AC_CREDIT, AC_CREDITS, AC_TELL, AC_TELLS = (
    21,
    22,
    23,
    24,
    25,
    26,
)  # lists: at, length
AC_WORDS = 4 * LINE

# --- MBX: a stream's mailbox: addresses of the actors that are to look whether they may act -------
MBX_TAIL, MBX_HEAD, MBX_FIRST = 0, LINE, 2 * LINE
MAILBOX = 1 << 12  # messages; an actor has one there at most
MBX_WORDS = MBX_FIRST + MAILBOX

# --- ARG: argument block of a stream's worker --------------------------------------------------
ARG_HEADER = 8  # error details 0..5, scratch address, address of a device stream's block
ARG_WORDS = ARG_HEADER + MAX_OPERANDS + MAX_INLINE
A_SCRATCH, A_BLOCK = 6, 7
DETAILS = 6

# --- ERR: an error that a kernel reported ------------------------------------------------------
ERR_WORDS = 12
R_SEQ, R_STATUS, R_DETAILS, R_ENTRY, R_MARK = 0, 1, 2, 8, 9
R_TASK = 11  # of a LaunchPlan: number of the task that failed
R_POISONED = 10  # in row (seq % ERRORS): instructions skipped because of failed instruction `seq`

# --- REC: a recorded instruction, in place (sequence number % RECORDS); times are ticks -----------
REC_WORDS = 16
C_SEQ, C_WHAT, C_COUNT = 0, 1, 2  # sequence number + 1; entry | stream << 32; operands
C_ISSUED, C_RECEIVED, C_READY, C_DISPATCHED, C_STARTED, C_ENDED, C_RELEASED = 3, 4, 5, 6, 7, 8, 9
C_STATUS, C_OPERANDS = 10, 11  # storages, PER_WORD in a word, or where they begin in SPL
PER_WORD = 3

# --- TSK: tasks that a stream's worker ran within launches ----------------------------------------
# launch, task, repetition, start, end; then how many came before, + 1, written last
TSK_WORDS = 8
Z_LAUNCH, Z_TASK, Z_REPETITION, Z_STARTED, Z_ENDED, Z_MARK = 0, 1, 2, 3, 4, 5
TSK_FIRST = LINE  # word 0 of a stream's region counts them
TSK_SIZE = TSK_FIRST + TASKS * TSK_WORDS

# --- HLP: the shares that a helper had of kernels -------------------------------------------------
# instruction, task of a launch or -1, start, end, chunks; then how many came before, + 1
HLP_WORDS = 8
Y_LAUNCH, Y_TASK, Y_STARTED, Y_ENDED, Y_CHUNKS, Y_MARK = 0, 1, 2, 3, 4, 5
HLP_JOB, HLP_FIRST = 1, LINE  # word 0 of a helper's part counts them; the job of the last one
HLP_SIZE = HLP_FIRST + SHARES * HLP_WORDS

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
        "SPL": SPILLS,
        "TSK": STREAMS * TSK_SIZE,
        "HLP": MAX_TEAM * HLP_SIZE,
        "ARG": STREAMS * ARG_WORDS,
        "MBX": STREAMS * MBX_WORDS,
        "WAI": CAPACITY,
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
EDG, FRE, ARG, MBX = (_places[n] for n in ("EDG", "FRE", "ARG", "MBX"))
WAI = _places["WAI"]
REC, SPL, TSK, HLP = (_places[n] for n in ("REC", "SPL", "TSK", "HLP"))
WORDS = _places["END"]
assert CTL == 0, "control words are addressed by their own index"
