"""The order in which a policy takes ready instructions, where `flow.vm.schedule` has one.

Without a policy (POL.KIND is 0) ready instructions go to their streams at once, first come, first
served, and nothing here is called.  With one they stay in the ready list until their stream has
room (POL.DEPTH), and of those whose stream has, the one with the least key goes.  Streams in
POL.POOL share their work: an instruction of one goes to whichever has room.  So no order follows
from a stream there: an edge within the pool holds until its source is done.

Pure, as the machine is: tests play the policy, too.
"""

from __future__ import annotations

from flowvm.vm.machine.lang import Words, load_word, store_word
from flowvm.vm.machine.words import CTL, ENT, INS, KIND, POL, PRI, REC, RING, STR

FAR = 1 << 60  # the key of what no table knows: behind all others, by its number


def enter(m: Words, slot: int) -> None:
    """An instruction was received: its number among those that do work (waits and releases have
    none), and by the table its key and the stream that it is bound to.
    """
    at, kind = PRI.AT + slot * PRI.WORDS, m[INS.AT + slot * INS.WORDS + INS.KIND]
    m[at + PRI.NUMBER], m[at + PRI.BOUND], m[at + PRI.HEARD] = -1, -1, 0
    if kind in (KIND.TOUCH, KIND.BARRIER):
        m[POL.WAITERS] += 1
    elif kind != KIND.RELEASE:
        number = m[POL.WORKED]
        m[POL.WORKED] = number + 1
        row = number
        if m[POL.WRAPS] != 0 and m[POL.ROWS] > 0:
            row = number % m[POL.ROWS]
        m[at + PRI.NUMBER], m[at + PRI.KEY] = number, FAR + number
        m[PRI.AT + (number & RING.SLOT_MASK) * PRI.WORDS + PRI.SLOT] = slot
        if row < m[POL.ROWS]:
            m[at + PRI.KEY] = load_word(m[POL.TABLE] + 16 * row)
            m[at + PRI.BOUND] = load_word(m[POL.TABLE] + 16 * row + 8)


def news(m: Words) -> int:
    """A number that grows whenever something became ready, was done, or somebody began to wait."""
    return 2 * (m[POL.ARRIVED] + m[CTL.N_DONE]) + m[POL.WAITERS]


def arrive(m: Words, slot: int) -> bool:
    """An instruction is ready: its key where that is when it came; whether it computes something
    (waits and releases do not).
    """
    m[POL.ARRIVED] += 1
    m[PRI.AT + slot * PRI.WORDS + PRI.AFTER] = m[POL.ENDED_ON]
    if m[POL.KIND] == POL.ARRIVAL:
        m[PRI.AT + slot * PRI.WORDS + PRI.KEY] = m[POL.ARRIVED]
    elif m[POL.KIND] == POL.LATEST:
        m[PRI.AT + slot * PRI.WORDS + PRI.KEY] = -m[POL.ARRIVED]
    if m[PRI.AT + slot * PRI.WORDS + PRI.NUMBER] < 0:
        return False
    m[STR.AT + m[INS.AT + slot * INS.WORDS + INS.STREAM] * STR.WORDS + STR.HELD] += 1
    return True


def is_shared(m: Words, stream: int) -> bool:
    """Return True if a stream's work may go to others."""
    return (m[POL.POOL] >> stream) & 1 != 0


def has_room(m: Words, stream: int) -> bool:
    """Return True if a stream may get another instruction."""
    at = STR.AT + stream * STR.WORDS
    return m[POL.DEPTH] == 0 or m[at + STR.TAIL] - m[at + STR.COLLECTED] < m[POL.DEPTH]


def is_still(m: Words) -> bool:
    """Return True if no instruction is in flight."""
    return m[CTL.N_DISPATCHED] == m[CTL.N_DONE]


def is_room(m: Words) -> bool:
    """Return True if any ready instruction that computes may go to a stream now."""
    if m[POL.DEPTH] == 0:
        return is_still(m)
    room = requested = False  # of the pool
    for stream in range(m[CTL.USED_STREAMS]):
        held = m[STR.AT + stream * STR.WORDS + STR.HELD] > 0
        if is_shared(m, stream):
            room = room or has_room(m, stream)
            requested = requested or held
        if held and has_room(m, stream):
            return True
    return room and requested


def lane_of(m: Words, slot: int) -> int:
    """The stream that a ready instruction may go to now, or -1."""
    ins = INS.AT + slot * INS.WORDS
    stream, kind = m[ins + INS.STREAM], m[ins + INS.KIND]
    if m[POL.DEPTH] == 0 and not is_still(m):
        return -1
    if is_shared(m, stream) and kind == KIND.OP_CALL:
        bound = m[PRI.AT + slot * PRI.WORDS + PRI.BOUND]
        if bound >= 0:
            return bound if has_room(m, bound) else -1
        if m[POL.PULLED] != 0:  # whoever passes is awake; others may have to wait for a core
            passer = m[POL.PASSER]
            pulls = passer >= 0 and is_shared(m, passer) and has_room(m, passer)
            return passer if pulls else -1
        for other in range(m[CTL.USED_STREAMS]):
            if is_shared(m, other) and has_room(m, other):
                return other
        return -1
    return stream if has_room(m, stream) else -1


def comes_before(m: Words, slot: int, other: int) -> bool:
    """Return True if a ready instruction goes before another: by their streams' priorities, the
    lower number first, then by their keys, then by their numbers.
    """
    a, b = INS.AT + slot * INS.WORDS, INS.AT + other * INS.WORDS
    p = m[STR.AT + m[a + INS.STREAM] * STR.WORDS + STR.PRIORITY]
    q = m[STR.AT + m[b + INS.STREAM] * STR.WORDS + STR.PRIORITY]
    if p != q and m[POL.KIND] != POL.ORDER:
        return p < q
    j, k = m[PRI.AT + slot * PRI.WORDS + PRI.KEY], m[PRI.AT + other * PRI.WORDS + PRI.KEY]
    if j != k:
        return j < k
    return m[a + INS.SEQ] < m[b + INS.SEQ]


def unlink(m: Words, slot: int, before: int) -> int:
    """Take an instruction off the ready list, which stands behind `before` there; its slot."""
    following = m[INS.AT + slot * INS.WORDS + INS.NEXT]
    if before >= 0:
        m[INS.AT + before * INS.WORDS + INS.NEXT] = following
    else:
        m[CTL.READY_FIRST] = following
    if following < 0:
        m[CTL.READY_LAST] = before
    return slot


def bind(m: Words, slot: int, stream: int) -> None:
    """Let a ready instruction go to a stream; the log and the recorder hear of it."""
    ins = INS.AT + slot * INS.WORDS
    m[STR.AT + m[ins + INS.STREAM] * STR.WORDS + STR.HELD] -= 1
    log(m, slot, stream)
    if m[ins + INS.STREAM] != stream:
        set_stream(m, slot, stream)


def move_release(m: Words, slot: int) -> None:
    """Let the worker that makes this pass run a release of the pool.  In another stream's queue it
    would take the room of an instruction until that worker wakes up.
    """
    ins, passer = INS.AT + slot * INS.WORDS, m[POL.PASSER]
    if m[ins + INS.KIND] != KIND.RELEASE or passer < 0:
        return
    if is_shared(m, passer) and is_shared(m, m[ins + INS.STREAM]):
        set_stream(m, slot, passer)


def set_stream(m: Words, slot: int, stream: int) -> None:
    """Set the stream that an instruction goes to, in its recorder's row as well."""
    ins = INS.AT + slot * INS.WORDS
    m[ins + INS.STREAM] = stream
    at = REC.AT + (m[ins + INS.SEQ] & REC.MASK) * REC.WORDS
    if m[at + REC.SEQ] == m[ins + INS.SEQ] + 1:
        m[at + REC.WHAT] = (m[at + REC.WHAT] & ENT.MASK) | stream << ENT.BITS


def choose(m: Words) -> int:
    """Take the instruction that goes next off the ready list: its slot, or -1.

    Waits and releases, which compute nothing, go at once.  POL.ORDER keeps to its table: what
    comes next there is waited for, unless that cannot come, since nothing is in flight and somebody
    waits; then it is left out, and counted.
    """
    before, slot = -1, m[CTL.READY_FIRST]
    if slot >= 0 and m[PRI.AT + slot * PRI.WORDS + PRI.NUMBER] < 0:
        move_release(m, slot)
        return unlink(m, slot, -1)  # these stand in front of all others
    if m[POL.KIND] == POL.ASKED or not is_room(m):
        return -1
    if m[POL.GATHERED] != 0 and m[POL.WAITERS] == 0 and m[POL.STALLED] == 0:
        return -1
    best, front, lane = -1, -1, -1
    by_list = m[POL.KIND] == POL.ARRIVAL and m[POL.RANKED] == 0
    while slot >= 0:
        stream = lane_of(m, slot)
        if stream >= 0 and (best < 0 or comes_before(m, slot, best)):
            best, front, lane = slot, before, stream
            if by_list:
                break
        before, slot = slot, m[INS.AT + slot * INS.WORDS + INS.NEXT]
    if best < 0:
        return -1
    if m[POL.KIND] == POL.ORDER:
        key = m[PRI.AT + best * PRI.WORDS + PRI.KEY]
        if key > m[POL.PLACE] and m[POL.PLACE] < m[POL.LAST]:
            if not is_still(m) or (m[POL.WAITERS] == 0 and m[POL.STALLED] == 0):
                return -1
            m[POL.ASTRAY] += 1
        if key < m[POL.LAST]:
            m[POL.PLACE] = key + 1
    m[POL.STALLED] = 0
    bind(m, best, lane)
    return unlink(m, best, front)


def take(m: Words, chosen: int, stream: int) -> int:
    """Take an instruction that somebody has chosen off the ready list, for a stream: its slot, or
    -1 if it is not there.
    """
    before, slot = -1, m[CTL.READY_FIRST]
    while slot >= 0:
        if slot == chosen:
            bind(m, slot, stream)
            return unlink(m, slot, before)
        before, slot = slot, m[INS.AT + slot * INS.WORDS + INS.NEXT]
    return -1


def log(m: Words, slot: int, stream: int) -> None:
    """Note that an instruction goes to a stream: its number, its entry and the stream."""
    number = m[PRI.AT + slot * PRI.WORDS + PRI.NUMBER]
    if m[POL.LOGGED] < m[POL.LOG_ROWS]:
        at = m[POL.LOG] + 16 * m[POL.LOGGED]
        what = m[RING.AT + slot * RING.WORDS + RING.ENTRY] & ENT.MASK
        store_word(at, number)
        store_word(at + 8, what | stream << ENT.BITS)
    m[POL.LOGGED] += 1
