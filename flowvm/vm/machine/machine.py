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

When an edge is satisfied depends on whom it is between:

    one stream           its source is ready (then no edge is made) or dispatched.  This is
                         prescheduling: a stream runs what it is handed in order, and the ready list
                         is first come, first served.  So a ReleaseTensor is not overtaken by
                         allocations issued after it
    two streams          its source is done
    two device streams   its source is dispatched.  The device itself waits, for an event: WAI tells
                         the target's worker what is to be launched before it, a stream and a place
                         in its queue.  Only a ReleaseTensor waits for done: its block goes to
                         whoever asks next

`flowvm.vm.machine.recorder` records the instructions' times, by a clock that is passed in: m[NOW].

Only the scheduler thread calls these functions (tests call them in its place and play the workers,
in any order).
"""

from __future__ import annotations

from flowvm.vm.machine.lang import Words, load_acquire, load_word, store_release
from flowvm.vm.machine.policy import arrive, choose, enter, is_shared
from flowvm.vm.machine.recorder import begin, end
from flowvm.vm.machine.words import (
    ACC,
    CTL,
    DEP,
    EDG,
    ENT,
    FRE,
    INS,
    KIND,
    OPERAND,
    POL,
    QUE,
    RING,
    STATE,
    STO,
    STR,
    WAI,
)

MARGIN = 512  # records that threads may still write after one of them has seen LIMIT

RAW, WAR, WAW = 1, 2, 3  # hazards


def start(m: Words) -> None:
    """Make zeroed memory an idle machine."""
    m[CTL.READY_FIRST] = m[CTL.READY_LAST] = -1
    m[CTL.BARRIER_FIRST] = m[CTL.BARRIER_LAST] = -1
    m[CTL.FREE_ACCESS] = m[CTL.FREE_EDGE] = -1
    m[CTL.LIMIT] = m[CTL.RUN_AHEAD] = RING.SLOTS - MARGIN
    m[CTL.BYTES_HIGH] = 1 << 62


def operand_of(m: Words, slot: int, entry: int, k: int) -> int:
    """Operand word `k` of the record in `slot`."""
    at = RING.AT + slot * RING.WORDS + RING.OPERANDS
    if m[entry + ENT.OUTLINE] == 0:
        return m[at - k]
    return load_word(m[at] + 8 * k)


def access_of(m: Words, slot: int, entry: int, k: int) -> int:
    """Return the access of operand `k`: an `Access`, perhaps with ALLOCATE."""
    if m[entry + ENT.OUTLINE] == 0:
        word = m[entry + ENT.ACCESS + k // OPERAND.ACCESSES_PER_WORD]
        return (word >> (k % OPERAND.ACCESSES_PER_WORD * OPERAND.ACCESS_BITS)) & 15
    at = RING.AT + slot * RING.WORDS + RING.OPERANDS
    return load_word(m[at] + 8 * (m[at - 1] + k))


def count_of(m: Words, slot: int, entry: int) -> int:
    """Return the number of operands of the record in `slot`."""
    if m[entry + ENT.OUTLINE] == 0:
        return m[entry + ENT.COUNT]
    return m[RING.AT + slot * RING.WORDS + RING.OPERANDS - 1]


def entry_of(m: Words, slot: int) -> int:
    """Return the index in `m` of the entry of the record in `slot`."""
    return ENT.AT + (m[RING.AT + slot * RING.WORDS + RING.ENTRY] & ENT.MASK) * ENT.WORDS


def may_receive(m: Words) -> bool:
    """Return True if a record is marked and may be taken.  The scheduler must not be held, and the
    pools must have room.  The record must not exceed the bytes allowed in flight, unless none are
    in flight.
    """
    seq = m[CTL.RECEIVED]
    slot = seq & RING.SLOT_MASK
    if load_acquire(m, RING.AT + slot * RING.WORDS + RING.MARK) != seq + 1:
        return False
    entry = entry_of(m, slot)
    if m[CTL.LIVE_ACCESSES] + count_of(m, slot, entry) > ACC.LENGTH:
        return False
    in_flight, more = m[CTL.IN_FLIGHT_BYTES], m[entry + ENT.BYTES]
    if in_flight > 0 and more > 0 and in_flight + more > m[CTL.BYTES_HIGH]:
        return False
    return m[CTL.HOLD] == 0


def receive(m: Words) -> bool:
    """Take one record, if allowed, and build its edges.  Return True if it was taken."""
    if not may_receive(m):
        return False
    seq = m[CTL.RECEIVED]
    slot = seq & RING.SLOT_MASK
    entry = entry_of(m, slot)
    count = count_of(m, slot, entry)
    kind = m[entry + ENT.KIND]
    ins = INS.AT + slot * INS.WORDS
    m[ins + INS.SEQ] = seq
    m[ins + INS.STATE] = STATE.PENDING
    m[ins + INS.WAITING] = 0
    m[ins + INS.STREAM] = m[RING.AT + slot * RING.WORDS + RING.ENTRY] >> ENT.BITS
    m[ins + INS.KIND] = kind
    m[ins + INS.AT_DISPATCH] = m[ins + INS.AT_DONE] = m[ins + INS.ACCESSES] = m[ins + INS.NEXT] = -1
    m[ins + INS.CONNECTED] = -1
    m[ins + INS.COUNT] = count
    m[ins + INS.STATUS] = 0
    m[CTL.LIVE_ACCESSES] += count
    m[CTL.IN_FLIGHT_BYTES] += m[entry + ENT.BYTES]
    if m[POL.KIND] != 0:
        enter(m, slot)
    for k in range(count):  # writes first, so that reading one's own output adds nothing
        if access_of(m, slot, entry, k) & 3 != OPERAND.CONST:
            connect_write(m, slot, operand_of(m, slot, entry, k) & OPERAND.STORAGE_MASK)
    for k in range(count):
        if access_of(m, slot, entry, k) & 3 == OPERAND.CONST:
            connect_read(m, slot, operand_of(m, slot, entry, k) & OPERAND.STORAGE_MASK)
    if m[CTL.LEVEL] != 0:
        begin(m, slot, seq, entry, count)
    store_release(m, CTL.RECEIVED, seq + 1)  # who reads this sees its accesses (`is_settled`)
    if kind == KIND.BARRIER:
        append_barrier(m, slot)
    elif m[ins + INS.WAITING] == 0:
        make_ready(m, slot)
    set_limit(m)
    return True


def connect_read(m: Words, slot: int, storage: int) -> None:
    """Wait for the writer in front, and join the list's readers."""
    dep = DEP.AT + storage * DEP.WORDS
    first = m[dep + DEP.FIRST] - 1
    if first >= 0:
        node = ACC.AT + first * ACC.WORDS
        if m[node + ACC.WRITES] != 0:
            if m[node + ACC.SLOT] == slot:
                return  # the instruction writes it too: that access already stands for both
            add_edge(m, m[node + ACC.SLOT], slot, RAW)
    append_access(m, slot, storage, 0)


def connect_write(m: Words, slot: int, storage: int) -> None:
    """Wait for every access in front, take them off the list, and be its only member."""
    dep = DEP.AT + storage * DEP.WORDS
    index = m[dep + DEP.FIRST] - 1
    while index >= 0:
        node = ACC.AT + index * ACC.WORDS
        other = m[node + ACC.SLOT]
        if other != slot:
            add_edge(m, other, slot, WAW if m[node + ACC.WRITES] != 0 else WAR)
        m[node + ACC.STORAGE] = -1  # off the list; its owner frees it
        index = m[node + ACC.NEXT]
    m[dep + DEP.LAST] = 0  # FIRST names the old first until it names the new one: see `is_settled`
    append_access(m, slot, storage, 1)


def append_access(m: Words, slot: int, storage: int, writes: int) -> None:
    """Append an access to the storage's list; invariant: `[one writer]? readers*`."""
    index = m[CTL.FREE_ACCESS]
    if index >= 0:
        m[CTL.FREE_ACCESS] = m[ACC.AT + index * ACC.WORDS + ACC.NEXT]
    else:
        index = m[CTL.ACCESS_TOP]
        m[CTL.ACCESS_TOP] = index + 1
    node = ACC.AT + index * ACC.WORDS
    dep = DEP.AT + storage * DEP.WORDS
    last = m[dep + DEP.LAST] - 1
    m[node + ACC.SLOT] = slot
    m[node + ACC.STORAGE] = storage
    m[node + ACC.WRITES] = writes
    m[node + ACC.NEXT] = -1
    m[node + ACC.PREVIOUS] = last
    m[node + ACC.CHAIN] = m[INS.AT + slot * INS.WORDS + INS.ACCESSES]
    m[INS.AT + slot * INS.WORDS + INS.ACCESSES] = index
    if last >= 0:
        m[ACC.AT + last * ACC.WORDS + ACC.NEXT] = index
    else:
        store_release(m, dep + DEP.FIRST, index + 1)
    m[dep + DEP.LAST] = index + 1


def is_settled(m: Words, storage: int, before: int, alone: bool) -> bool:
    """Return True if all instructions below `before` that write a storage are done, and with
    `alone` also those that read it.  Any thread may ask; False may be a moment out of date.

    A writer stays the first of the list until it is done, or until another writer, which waits for
    it, takes its place; so the list never looks empty between the two.
    """
    if load_acquire(m, CTL.RECEIVED) < before:
        return False
    first = load_acquire(m, DEP.AT + storage * DEP.WORDS + DEP.FIRST) - 1
    if first < 0:
        return True
    if alone or not RING.ORDERED_STORES:  # else an old word of a node could be read
        return False
    return load_acquire(m, ACC.AT + first * ACC.WORDS + ACC.WRITES) == 0


def add_edge(m: Words, source: int, target: int, hazard: int) -> None:
    """Let `target` wait for `source`, once, unless stream order already ensures it."""
    src = INS.AT + source * INS.WORDS
    dst = INS.AT + target * INS.WORDS
    if m[src + INS.CONNECTED] == m[dst + INS.SEQ]:
        return
    m[src + INS.CONNECTED] = m[dst + INS.SEQ]
    if hazard == RAW:
        m[CTL.N_RAW] += 1
    elif hazard == WAR:
        m[CTL.N_WAR] += 1
    else:
        m[CTL.N_WAW] += 1
    in_stream = m[src + INS.STREAM] == m[dst + INS.STREAM] and m[dst + INS.KIND] != KIND.TOUCH
    in_stream = in_stream and m[src + INS.KIND] != KIND.TOUCH
    if in_stream and m[POL.KIND] != 0:
        if is_shared(m, m[src + INS.STREAM]):
            in_stream = False  # who runs where is not known yet
        elif m[src + INS.STATE] >= STATE.DISPATCHED:
            m[CTL.N_PRESCHEDULED] += 1
            return
    elif in_stream:
        m[CTL.N_PRESCHEDULED] += 1
        if m[src + INS.STATE] >= STATE.READY:  # first come, first served: it is dispatched first
            return
    noted = m[CTL.DEVICES] != 0 and not in_stream and both_on_devices(m, src, dst)
    if noted and m[src + INS.STATE] >= STATE.DISPATCHED:
        note(m, target, m[src + INS.STREAM], m[src + INS.NEXT])
        return
    index = new_edge(m)
    at = src + (INS.AT_DISPATCH if in_stream or noted else INS.AT_DONE)
    m[EDG.AT + index * EDG.WORDS + EDG.TARGET] = target | EDG.NOTED if noted else target
    m[EDG.AT + index * EDG.WORDS + EDG.NEXT] = m[at]
    m[at] = index
    m[dst + INS.WAITING] += 1


def new_edge(m: Words) -> int:
    """Return a node of EDG."""
    index = m[CTL.FREE_EDGE]
    if index >= 0:
        m[CTL.FREE_EDGE] = m[EDG.AT + index * EDG.WORDS + EDG.NEXT]
    else:
        index = m[CTL.EDGE_TOP]
        m[CTL.EDGE_TOP] = index + 1
    return index


def both_on_devices(m: Words, src: int, dst: int) -> bool:
    """Return True if devices run both instructions, so that one can wait for an event of the other.

    Never wait on a device event of an exchange with other ranks.  The work queued behind the wait
    may be what the other ranks need: a deadlock.
    """
    waited = m[CTL.DEVICES] & ~m[CTL.LANES]
    streams = (waited >> m[src + INS.STREAM]) & (m[CTL.DEVICES] >> m[dst + INS.STREAM]) & 1
    a, b = m[src + INS.KIND], m[dst + INS.KIND]
    return streams != 0 and a in (KIND.OP_CALL, KIND.LAUNCH) and b in (KIND.OP_CALL, KIND.LAUNCH)


def note(m: Words, target: int, stream: int, place: int) -> None:
    """Note that `target` waits for the first `place` instructions of `stream`.  It is handed to its
    device after they are handed to theirs, and runs after they have run.
    """
    index = m[WAI.AT + target] - 1
    while index >= 0:
        node = EDG.AT + index * EDG.WORDS
        if m[node + EDG.TARGET] >> WAI.PLACE_BITS == stream:
            m[node + EDG.TARGET] = max(m[node + EDG.TARGET], stream << WAI.PLACE_BITS | place)
            return
        index = m[node + EDG.NEXT]
    index = new_edge(m)
    m[EDG.AT + index * EDG.WORDS + EDG.TARGET] = stream << WAI.PLACE_BITS | place
    m[EDG.AT + index * EDG.WORDS + EDG.NEXT] = m[WAI.AT + target] - 1
    m[WAI.AT + target] = index + 1


def drop_notes(m: Words, slot: int) -> None:
    """Free the notes of an instruction."""
    index = m[WAI.AT + slot] - 1
    m[WAI.AT + slot] = 0
    while index >= 0:
        following = m[EDG.AT + index * EDG.WORDS + EDG.NEXT]
        m[EDG.AT + index * EDG.WORDS + EDG.NEXT] = m[CTL.FREE_EDGE]
        m[CTL.FREE_EDGE] = index
        index = following


def make_ready(m: Words, slot: int) -> None:
    """Append the instruction to the ready list, first come first served.  Under a policy, barriers
    and releases go in front.
    """
    m[INS.AT + slot * INS.WORDS + INS.STATE] = STATE.READY
    m[INS.AT + slot * INS.WORDS + INS.T_READY] = m[CTL.NOW]
    m[INS.AT + slot * INS.WORDS + INS.NEXT] = -1
    last = m[CTL.READY_LAST]
    if m[POL.KIND] != 0 and not arrive(m, slot) and last >= 0:
        m[INS.AT + slot * INS.WORDS + INS.NEXT] = m[CTL.READY_FIRST]
        m[CTL.READY_FIRST] = slot
        return
    if last >= 0:
        m[INS.AT + last * INS.WORDS + INS.NEXT] = slot
    else:
        m[CTL.READY_FIRST] = slot
    m[CTL.READY_LAST] = slot


def append_barrier(m: Words, slot: int) -> None:
    """Append the instruction to the barriers: the first one runs when it is the oldest lively
    instruction.
    """
    last = m[CTL.BARRIER_LAST]
    if last >= 0:
        m[INS.AT + last * INS.WORDS + INS.NEXT] = slot
    else:
        m[CTL.BARRIER_FIRST] = slot
    m[CTL.BARRIER_LAST] = slot


def satisfy(m: Words, at: int, stream: int, place: int) -> None:
    """Remove one edge from every target of the edge list at word `at`.  The source is the
    instruction at `place` of `stream`'s queue.
    """
    index = m[at]
    m[at] = -1
    while index >= 0:
        edge = EDG.AT + index * EDG.WORDS
        target = m[edge + EDG.TARGET]
        if target & EDG.NOTED != 0:
            target ^= EDG.NOTED
            note(m, target, stream, place)
        m[INS.AT + target * INS.WORDS + INS.WAITING] -= 1
        if m[INS.AT + target * INS.WORDS + INS.WAITING] == 0:
            make_ready(m, target)
        following = m[edge + EDG.NEXT]
        m[edge + EDG.NEXT] = m[CTL.FREE_EDGE]
        m[CTL.FREE_EDGE] = index
        index = following


def next_ready(m: Words) -> int:
    """Take the first ready instruction off the list, or the policy's choice.  Return its slot, or
    -1.
    """
    if m[POL.KIND] != 0:
        return choose(m)
    slot = m[CTL.READY_FIRST]
    if slot >= 0:
        m[CTL.READY_FIRST] = m[INS.AT + slot * INS.WORDS + INS.NEXT]
        if m[CTL.READY_FIRST] < 0:
            m[CTL.READY_LAST] = -1
    return slot


def dispatch(m: Words, slot: int) -> None:
    """Hand a ready instruction to its stream's queue, and satisfy the edges that stream order
    covers.
    """
    ins = INS.AT + slot * INS.WORDS
    m[ins + INS.STATE] = STATE.DISPATCHED
    m[ins + INS.T_DISPATCHED] = m[CTL.NOW]
    m[CTL.N_DISPATCHED] += 1
    stream = m[ins + INS.STREAM]
    if m[ins + INS.KIND] != KIND.TOUCH:
        tail = STR.AT + stream * STR.WORDS + STR.TAIL
        m[QUE.AT + stream * RING.SLOTS + (m[tail] & RING.SLOT_MASK)] = slot
        m[ins + INS.NEXT] = m[tail] + 1  # its place, now that it is in no list
        store_release(m, tail, m[tail] + 1)
    satisfy(m, ins + INS.AT_DISPATCH, stream, m[ins + INS.NEXT])


def ready_barrier(m: Words) -> int:
    """Return the first barrier's slot if everything before it is released, else -1."""
    slot = m[CTL.BARRIER_FIRST]
    if slot < 0 or not is_oldest(m, slot):
        return -1
    m[CTL.BARRIER_FIRST] = m[INS.AT + slot * INS.WORDS + INS.NEXT]
    if m[CTL.BARRIER_FIRST] < 0:
        m[CTL.BARRIER_LAST] = -1
    m[INS.AT + slot * INS.WORDS + INS.STATE] = STATE.DISPATCHED
    m[INS.AT + slot * INS.WORDS + INS.T_READY] = m[INS.AT + slot * INS.WORDS + INS.T_DISPATCHED] = (
        m[CTL.NOW]
    )
    m[CTL.N_DISPATCHED] += 1
    return slot


def is_oldest(m: Words, slot: int) -> bool:
    """Return True if all instructions before this one are released."""
    return m[INS.AT + slot * INS.WORDS + INS.SEQ] == m[CTL.HEAD]


def complete(m: Words, slot: int) -> None:
    """Complete an instruction: satisfy its dependents' edges and release it."""
    ins = INS.AT + slot * INS.WORDS
    entry = entry_of(m, slot)
    m[ins + INS.STATE] = STATE.DONE
    m[CTL.N_DONE] += 1
    m[CTL.IN_FLIGHT_BYTES] -= m[entry + ENT.BYTES]
    satisfy(m, ins + INS.AT_DISPATCH, 0, 0)
    satisfy(m, ins + INS.AT_DONE, 0, 0)
    if m[CTL.DEVICES] != 0:
        drop_notes(m, slot)
    if m[CTL.LEVEL] != 0:
        end(m, slot)
    drop_accesses(m, slot)
    if m[ins + INS.KIND] == KIND.RELEASE:
        recycle_storages(m, slot, entry)
    m[CTL.LIVE_ACCESSES] -= m[ins + INS.COUNT]
    m[ins + INS.STATE] = STATE.RELEASED
    head = m[CTL.HEAD]
    while (
        head < m[CTL.RECEIVED]
        and m[INS.AT + (head & RING.SLOT_MASK) * INS.WORDS + INS.STATE] == STATE.RELEASED
    ):
        head += 1
    store_release(m, CTL.HEAD, head)
    set_limit(m)


def drop_accesses(m: Words, slot: int) -> None:
    """Remove an instruction's remaining accesses from their lists, and free the nodes."""
    ins = INS.AT + slot * INS.WORDS
    index = m[ins + INS.ACCESSES]
    while index >= 0:
        node = ACC.AT + index * ACC.WORDS
        storage = m[node + ACC.STORAGE]
        if storage >= 0:
            dep = DEP.AT + storage * DEP.WORDS
            before, after = m[node + ACC.PREVIOUS], m[node + ACC.NEXT]
            if before >= 0:
                m[ACC.AT + before * ACC.WORDS + ACC.NEXT] = after
            else:
                store_release(m, dep + DEP.FIRST, after + 1)
            if after >= 0:
                m[ACC.AT + after * ACC.WORDS + ACC.PREVIOUS] = before
            else:
                m[dep + DEP.LAST] = before + 1
        following = m[node + ACC.CHAIN]
        m[node + ACC.NEXT] = m[CTL.FREE_ACCESS]
        m[CTL.FREE_ACCESS] = index
        index = following
    m[ins + INS.ACCESSES] = -1


def recycle_storages(m: Words, slot: int, entry: int) -> None:
    """Hand ids freed by a ReleaseTensor back to issuing threads: they may name new storages."""
    freed = m[CTL.FREED]
    for k in range(m[INS.AT + slot * INS.WORDS + INS.COUNT]):
        m[FRE.AT + (freed & (STO.LENGTH - 1))] = (
            operand_of(m, slot, entry, k) & OPERAND.STORAGE_MASK
        )
        freed += 1
    store_release(m, CTL.FREED, freed)


def set_limit(m: Words) -> None:
    """Set the limit of issuing: in instructions, and in bytes once something is in flight.

    It stops at half of the bytes, since threads read the limit only now and then.  `may_receive`
    holds the instructions issued in the meantime to the whole.
    """
    if 2 * m[CTL.IN_FLIGHT_BYTES] > m[CTL.BYTES_HIGH] and m[CTL.RECEIVED] > m[CTL.HEAD]:
        store_release(m, CTL.LIMIT, m[CTL.HEAD])
    else:
        store_release(m, CTL.LIMIT, m[CTL.HEAD] + m[CTL.RUN_AHEAD])
