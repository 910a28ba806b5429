"""The scheduler's logic: a state machine on the array `m`, without thread, lock, clock or sleep.

An instruction goes pending -> ready -> dispatched -> done -> released:

    receive     takes the next record of the ring, builds its edges, and makes it ready if it waits
                for nothing
    dispatch    hands the first ready instruction to its stream's queue
    complete    an instruction is done: lets its dependents go, takes its accesses off the lists,
                releases the slot

Every storage has a Dependence: the list of accesses in flight, always `[one writer]? readers*`.  A
const access waits for the writer in front.  A mut or mut2 access waits for every access in front,
takes them off the list and is then its only member.

Prescheduling: a stream runs what it is handed in order, so an edge between two instructions of one
stream is satisfied when the first is *dispatched*; only edges across streams wait for *done*.
One that is ready counts as dispatched, because ready instructions go first come, first served.  So
a stream keeps program order where nothing else is waited for, and a ReleaseTensor is not overtaken
by allocations that were issued after it.

Between two streams of devices the device itself can wait, for an event.  So such an edge is also
satisfied when its source is dispatched, and WAI tells the target's worker what is to be launched
before it: a stream, and a place in its queue.  Only a ReleaseTensor waits for done: its block goes
to whoever asks next.

What an instruction did when is noted by `flowvm.vm.machine.recorder`, in a time that is given:
m[NOW].

Only the scheduler thread calls these functions (tests call them in its place and play the workers,
in any order).

Long because the state machine is one piece, and the names of the words it works on are imported one
by one: more than a hundred lines.
"""

from __future__ import annotations

from flowvm.vm.machine.lang import Words, load_acquire, load_word, store_release
from flowvm.vm.machine.layout import (
    A_CHAIN,
    A_NEXT,
    A_PREVIOUS,
    A_SLOT,
    A_STORAGE,
    A_WRITES,
    ACC,
    ACC_WORDS,
    ACCESS_BITS,
    ACCESS_TOP,
    ACCESSES,
    ACCESSES_PER_WORD,
    BARRIER,
    BARRIER_FIRST,
    BARRIER_LAST,
    BYTES_HIGH,
    CAPACITY,
    CONST,
    D_FIRST,
    D_LAST,
    DEP,
    DEP_WORDS,
    DEVICES,
    DISPATCHED,
    DONE,
    E_ACCESS,
    E_BYTES,
    E_COUNT,
    E_KIND,
    E_OUTLINE,
    EDG,
    EDG_WORDS,
    EDGE_TOP,
    ENT,
    ENTRY,
    ENTRY_BITS,
    ENTRY_MASK,
    ENTRY_WORDS,
    FRE,
    FREE_ACCESS,
    FREE_EDGE,
    FREED,
    G_NEXT,
    G_TARGET,
    HEAD,
    I_ACCESSES,
    I_AT_DISPATCH,
    I_AT_DONE,
    I_CONNECTED,
    I_COUNT,
    I_KIND,
    I_NEXT,
    I_SEQ,
    I_STATE,
    I_STATUS,
    I_STREAM,
    I_T_DISPATCHED,
    I_T_READY,
    I_WAITING,
    IN_FLIGHT_BYTES,
    INS,
    INS_WORDS,
    LAUNCH,
    LEVEL,
    LIMIT,
    LIVE_ACCESSES,
    MARK,
    MUTANT,
    N_DISPATCHED,
    N_DONE,
    N_PRESCHEDULED,
    N_RAW,
    N_WAR,
    N_WAW,
    NOTED,
    NOW,
    OP_CALL,
    OPERANDS,
    PENDING,
    PLACE_BITS,
    QUE,
    READY,
    READY_FIRST,
    READY_LAST,
    RECEIVED,
    RECORD_WORDS,
    RELEASE,
    RELEASED,
    RING,
    RUN_AHEAD,
    SLOT_MASK,
    STORAGE_MASK,
    STORAGES,
    STR,
    STR_WORDS,
    T_TAIL,
    TOUCH,
    WAI,
)
from flowvm.vm.machine.recorder import begin, end

MARGIN = 512  # records that threads may still write after one of them has seen LIMIT

# hazards, also the numbers a test gives to MUTANT to leave one out
RAW, WAR, WAW, BARRIER_ORDER = 1, 2, 3, 4


def start(m: Words) -> None:
    """Make zeroed memory an idle machine."""
    m[READY_FIRST] = m[READY_LAST] = -1
    m[BARRIER_FIRST] = m[BARRIER_LAST] = -1
    m[FREE_ACCESS] = m[FREE_EDGE] = -1
    m[LIMIT] = m[RUN_AHEAD] = CAPACITY - MARGIN
    m[BYTES_HIGH] = 1 << 62


def operand_of(m: Words, slot: int, entry: int, k: int) -> int:
    """Operand word `k` of the record in `slot`."""
    at = RING + slot * RECORD_WORDS + OPERANDS
    if m[entry + E_OUTLINE] == 0:
        return m[at - k]
    return load_word(m[at] + 8 * k)


def access_of(m: Words, slot: int, entry: int, k: int) -> int:
    """How operand `k` is accessed: an `Access`, perhaps with ALLOCATE."""
    if m[entry + E_OUTLINE] == 0:
        word = m[entry + E_ACCESS + k // ACCESSES_PER_WORD]
        return (word >> (k % ACCESSES_PER_WORD * ACCESS_BITS)) & 15
    at = RING + slot * RECORD_WORDS + OPERANDS
    return load_word(m[at] + 8 * (m[at - 1] + k))


def count_of(m: Words, slot: int, entry: int) -> int:
    """How many operands the record in `slot` has."""
    if m[entry + E_OUTLINE] == 0:
        return m[entry + E_COUNT]
    return m[RING + slot * RECORD_WORDS + OPERANDS - 1]


def entry_of(m: Words, slot: int) -> int:
    """Where the entry of the record in `slot` begins in `m`."""
    return ENT + (m[RING + slot * RECORD_WORDS + ENTRY] & ENTRY_MASK) * ENTRY_WORDS


def receive(m: Words) -> bool:
    """Take one record, if one is marked and the pools have room: build its edges; whether so."""
    seq = m[RECEIVED]
    slot = seq & SLOT_MASK
    if load_acquire(m, RING + slot * RECORD_WORDS + MARK) != seq + 1:
        return False
    entry = entry_of(m, slot)
    count = count_of(m, slot, entry)
    if m[LIVE_ACCESSES] + count > ACCESSES:
        return False
    kind = m[entry + E_KIND]
    ins = INS + slot * INS_WORDS
    m[ins + I_SEQ] = seq
    m[ins + I_STATE] = PENDING
    m[ins + I_WAITING] = 0
    m[ins + I_STREAM] = m[RING + slot * RECORD_WORDS + ENTRY] >> ENTRY_BITS
    m[ins + I_KIND] = kind
    m[ins + I_AT_DISPATCH] = m[ins + I_AT_DONE] = m[ins + I_ACCESSES] = m[ins + I_NEXT] = -1
    m[ins + I_CONNECTED] = -1
    m[ins + I_COUNT] = count
    m[ins + I_STATUS] = 0
    m[LIVE_ACCESSES] += count
    m[IN_FLIGHT_BYTES] += m[entry + E_BYTES]
    for k in range(count):  # writes first, so that reading one's own output adds nothing
        if access_of(m, slot, entry, k) & 3 != CONST:
            connect_write(m, slot, operand_of(m, slot, entry, k) & STORAGE_MASK)
    for k in range(count):
        if access_of(m, slot, entry, k) & 3 == CONST:
            connect_read(m, slot, operand_of(m, slot, entry, k) & STORAGE_MASK)
    if m[LEVEL] != 0:
        begin(m, slot, seq, entry, count)
    m[RECEIVED] = seq + 1
    if kind == BARRIER:
        append_barrier(m, slot)
    elif m[ins + I_WAITING] == 0:
        make_ready(m, slot)
    set_limit(m)
    return True


def connect_read(m: Words, slot: int, storage: int) -> None:
    """Wait for the writer in front, and join the list's readers."""
    dep = DEP + storage * DEP_WORDS
    first = m[dep + D_FIRST] - 1
    if first >= 0:
        node = ACC + first * ACC_WORDS
        if m[node + A_WRITES] != 0:
            if m[node + A_SLOT] == slot:
                return  # the instruction writes it too: that access already stands for both
            add_edge(m, m[node + A_SLOT], slot, RAW)
    append_access(m, slot, storage, 0)


def connect_write(m: Words, slot: int, storage: int) -> None:
    """Wait for every access in front, take them off the list, and be its only member."""
    dep = DEP + storage * DEP_WORDS
    index = m[dep + D_FIRST] - 1
    while index >= 0:
        node = ACC + index * ACC_WORDS
        other = m[node + A_SLOT]
        if other != slot:
            add_edge(m, other, slot, WAW if m[node + A_WRITES] != 0 else WAR)
        m[node + A_STORAGE] = -1  # off the list; its owner frees it
        index = m[node + A_NEXT]
    m[dep + D_FIRST] = m[dep + D_LAST] = 0
    append_access(m, slot, storage, 1)


def append_access(m: Words, slot: int, storage: int, writes: int) -> None:
    """A new access at the end of the storage's list; invariant: `[one writer]? readers*`."""
    index = m[FREE_ACCESS]
    if index >= 0:
        m[FREE_ACCESS] = m[ACC + index * ACC_WORDS + A_NEXT]
    else:
        index = m[ACCESS_TOP]
        m[ACCESS_TOP] = index + 1
    node = ACC + index * ACC_WORDS
    dep = DEP + storage * DEP_WORDS
    last = m[dep + D_LAST] - 1
    m[node + A_SLOT] = slot
    m[node + A_STORAGE] = storage
    m[node + A_WRITES] = writes
    m[node + A_NEXT] = -1
    m[node + A_PREVIOUS] = last
    m[node + A_CHAIN] = m[INS + slot * INS_WORDS + I_ACCESSES]
    m[INS + slot * INS_WORDS + I_ACCESSES] = index
    if last >= 0:
        m[ACC + last * ACC_WORDS + A_NEXT] = index
    else:
        m[dep + D_FIRST] = index + 1
    m[dep + D_LAST] = index + 1


def add_edge(m: Words, source: int, target: int, hazard: int) -> None:
    """`target` waits for `source`, once, unless stream order already says so."""
    if m[MUTANT] == hazard:
        return
    src = INS + source * INS_WORDS
    dst = INS + target * INS_WORDS
    if m[src + I_CONNECTED] == m[dst + I_SEQ]:
        return
    m[src + I_CONNECTED] = m[dst + I_SEQ]
    if hazard == RAW:
        m[N_RAW] += 1
    elif hazard == WAR:
        m[N_WAR] += 1
    else:
        m[N_WAW] += 1
    in_stream = m[src + I_STREAM] == m[dst + I_STREAM] and m[dst + I_KIND] != TOUCH
    in_stream = in_stream and m[src + I_KIND] != TOUCH
    if in_stream:
        m[N_PRESCHEDULED] += 1
        if m[src + I_STATE] >= READY:  # first come, first served: it is dispatched first
            return
    noted = m[DEVICES] != 0 and not in_stream and both_on_devices(m, src, dst)
    if noted and m[src + I_STATE] >= DISPATCHED:
        note(m, target, m[src + I_STREAM], m[src + I_NEXT])
        return
    index = new_edge(m)
    at = src + (I_AT_DISPATCH if in_stream or noted else I_AT_DONE)
    m[EDG + index * EDG_WORDS + G_TARGET] = target | NOTED if noted else target
    m[EDG + index * EDG_WORDS + G_NEXT] = m[at]
    m[at] = index
    m[dst + I_WAITING] += 1


def new_edge(m: Words) -> int:
    """A node of EDG."""
    index = m[FREE_EDGE]
    if index >= 0:
        m[FREE_EDGE] = m[EDG + index * EDG_WORDS + G_NEXT]
    else:
        index = m[EDGE_TOP]
        m[EDGE_TOP] = index + 1
    return index


def both_on_devices(m: Words, src: int, dst: int) -> bool:
    """Whether devices run both, so that one can wait for an event of the other."""
    streams = (m[DEVICES] >> m[src + I_STREAM]) & (m[DEVICES] >> m[dst + I_STREAM]) & 1
    a, b = m[src + I_KIND], m[dst + I_KIND]
    return streams != 0 and a in (OP_CALL, LAUNCH) and b in (OP_CALL, LAUNCH)


def note(m: Words, target: int, stream: int, place: int) -> None:
    """`target` is handed to its device when `place` instructions of `stream` were handed to
    theirs, and runs when these have run.
    """
    index = m[WAI + target] - 1
    while index >= 0:
        node = EDG + index * EDG_WORDS
        if m[node + G_TARGET] >> PLACE_BITS == stream:
            m[node + G_TARGET] = max(m[node + G_TARGET], stream << PLACE_BITS | place)
            return
        index = m[node + G_NEXT]
    index = new_edge(m)
    m[EDG + index * EDG_WORDS + G_TARGET] = stream << PLACE_BITS | place
    m[EDG + index * EDG_WORDS + G_NEXT] = m[WAI + target] - 1
    m[WAI + target] = index + 1


def drop_notes(m: Words, slot: int) -> None:
    """Free what `note` left for an instruction."""
    index = m[WAI + slot] - 1
    m[WAI + slot] = 0
    while index >= 0:
        following = m[EDG + index * EDG_WORDS + G_NEXT]
        m[EDG + index * EDG_WORDS + G_NEXT] = m[FREE_EDGE]
        m[FREE_EDGE] = index
        index = following


def make_ready(m: Words, slot: int) -> None:
    """Append to the ready list, first come first served."""
    m[INS + slot * INS_WORDS + I_STATE] = READY
    m[INS + slot * INS_WORDS + I_T_READY] = m[NOW]
    m[INS + slot * INS_WORDS + I_NEXT] = -1
    last = m[READY_LAST]
    if last >= 0:
        m[INS + last * INS_WORDS + I_NEXT] = slot
    else:
        m[READY_FIRST] = slot
    m[READY_LAST] = slot


def append_barrier(m: Words, slot: int) -> None:
    """Append to the barriers: the first one runs when it is the oldest lively instruction."""
    last = m[BARRIER_LAST]
    if last >= 0:
        m[INS + last * INS_WORDS + I_NEXT] = slot
    else:
        m[BARRIER_FIRST] = slot
    m[BARRIER_LAST] = slot


def satisfy(m: Words, at: int, stream: int, place: int) -> None:
    """One edge fewer for every target of the edge list at word `at`, whose source is the
    instruction at `place` of `stream`'s queue.
    """
    index = m[at]
    m[at] = -1
    while index >= 0:
        edge = EDG + index * EDG_WORDS
        target = m[edge + G_TARGET]
        if target & NOTED != 0:
            target ^= NOTED
            note(m, target, stream, place)
        m[INS + target * INS_WORDS + I_WAITING] -= 1
        if m[INS + target * INS_WORDS + I_WAITING] == 0:
            make_ready(m, target)
        following = m[edge + G_NEXT]
        m[edge + G_NEXT] = m[FREE_EDGE]
        m[FREE_EDGE] = index
        index = following


def next_ready(m: Words) -> int:
    """Take the first ready instruction off the list: its slot, or -1."""
    slot = m[READY_FIRST]
    if slot >= 0:
        m[READY_FIRST] = m[INS + slot * INS_WORDS + I_NEXT]
        if m[READY_FIRST] < 0:
            m[READY_LAST] = -1
    return slot


def dispatch(m: Words, slot: int) -> None:
    """Hand a ready instruction to its stream's queue; let go what stream order takes care of."""
    ins = INS + slot * INS_WORDS
    m[ins + I_STATE] = DISPATCHED
    m[ins + I_T_DISPATCHED] = m[NOW]
    m[N_DISPATCHED] += 1
    stream = m[ins + I_STREAM]
    if m[ins + I_KIND] != TOUCH:
        tail = STR + stream * STR_WORDS + T_TAIL
        m[QUE + stream * CAPACITY + (m[tail] & SLOT_MASK)] = slot
        m[ins + I_NEXT] = m[tail] + 1  # its place, now that it is in no list
        store_release(m, tail, m[tail] + 1)
    satisfy(m, ins + I_AT_DISPATCH, stream, m[ins + I_NEXT])


def ready_barrier(m: Words) -> int:
    """The first barrier's slot if everything before it is released, else -1."""
    slot = m[BARRIER_FIRST]
    if slot < 0 or (m[INS + slot * INS_WORDS + I_SEQ] != m[HEAD] and m[MUTANT] != BARRIER_ORDER):
        return -1
    m[BARRIER_FIRST] = m[INS + slot * INS_WORDS + I_NEXT]
    if m[BARRIER_FIRST] < 0:
        m[BARRIER_LAST] = -1
    m[INS + slot * INS_WORDS + I_STATE] = DISPATCHED
    m[INS + slot * INS_WORDS + I_T_READY] = m[INS + slot * INS_WORDS + I_T_DISPATCHED] = m[NOW]
    m[N_DISPATCHED] += 1
    return slot


def complete(m: Words, slot: int) -> None:
    """An instruction is done: let its dependents go and release it."""
    ins = INS + slot * INS_WORDS
    entry = entry_of(m, slot)
    m[ins + I_STATE] = DONE
    m[N_DONE] += 1
    m[IN_FLIGHT_BYTES] -= m[entry + E_BYTES]
    satisfy(m, ins + I_AT_DISPATCH, 0, 0)
    satisfy(m, ins + I_AT_DONE, 0, 0)
    if m[DEVICES] != 0:
        drop_notes(m, slot)
    if m[LEVEL] != 0:
        end(m, slot)
    drop_accesses(m, slot)
    if m[ins + I_KIND] == RELEASE:
        recycle_storages(m, slot, entry)
    m[LIVE_ACCESSES] -= m[ins + I_COUNT]
    m[ins + I_STATE] = RELEASED
    head = m[HEAD]
    while head < m[RECEIVED] and m[INS + (head & SLOT_MASK) * INS_WORDS + I_STATE] == RELEASED:
        head += 1
    store_release(m, HEAD, head)
    set_limit(m)


def drop_accesses(m: Words, slot: int) -> None:
    """Take what is left of an instruction's accesses off their lists, and free the nodes."""
    ins = INS + slot * INS_WORDS
    index = m[ins + I_ACCESSES]
    while index >= 0:
        node = ACC + index * ACC_WORDS
        storage = m[node + A_STORAGE]
        if storage >= 0:
            dep = DEP + storage * DEP_WORDS
            before, after = m[node + A_PREVIOUS], m[node + A_NEXT]
            if before >= 0:
                m[ACC + before * ACC_WORDS + A_NEXT] = after
            else:
                m[dep + D_FIRST] = after + 1
            if after >= 0:
                m[ACC + after * ACC_WORDS + A_PREVIOUS] = before
            else:
                m[dep + D_LAST] = before + 1
        following = m[node + A_CHAIN]
        m[node + A_NEXT] = m[FREE_ACCESS]
        m[FREE_ACCESS] = index
        index = following
    m[ins + I_ACCESSES] = -1


def recycle_storages(m: Words, slot: int, entry: int) -> None:
    """Ids that a ReleaseTensor has freed may name new storages: hand them back for issuing."""
    freed = m[FREED]
    for k in range(m[INS + slot * INS_WORDS + I_COUNT]):
        m[FRE + (freed & (STORAGES - 1))] = operand_of(m, slot, entry, k) & STORAGE_MASK
        freed += 1
    store_release(m, FREED, freed)


def set_limit(m: Words) -> None:
    """How far issuing may go: bounded in instructions, and in bytes once something is in flight."""
    if m[IN_FLIGHT_BYTES] > m[BYTES_HIGH] and m[RECEIVED] > m[HEAD]:
        store_release(m, LIMIT, m[HEAD])
    else:
        store_release(m, LIMIT, m[HEAD] + m[RUN_AHEAD])
