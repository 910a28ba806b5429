"""The state of a policy that is compiled: words, and lists among them.

A policy's attributes lie in one int64 array, so what it is asked can run on a thread without the
GIL: `flowvm.lab.native_policy` turns `self.tasks.append(task)` into `grow` and a store.  A number
is a word, a float by its bits.  An array is LIST.WORDS words: its address and its two lengths.  A
list has as many: its address, how many elements it has, how many there is room for, and where the
first stands.  An element is one word, or several where it is a tuple.

What Python raises is raised here, too: compiled code answers that it failed.
"""

from __future__ import annotations

from typing import Protocol

from flowvm.compiler.native import Overloaded
from flowvm.lab.loops import INFINITE, Floats, Ints, arrival, pop, push
from flowvm.ops.scalar.intrinsics import bits, from_bits
from flowvm.vm.machine.lang import call_kernel, load_word, store_word
from flowvm.vm.machine.words import POL


class Words(Protocol):
    """The state: an int64 array."""

    def __getitem__(self, i: int, /) -> int: ...
    def __setitem__(self, i: int, value: int, /) -> None: ...


# words of the state: what `pick` answered, the time, the worker whose task ended last; behind them
# the attributes
RESULT, NOW, BY, FIRST = 0, 1, 2, 3
HEADER = 4  # words of an array or a list
READY, PICK, ENDED = POL.HEAR, POL.PICK, POL.END  # what a policy is asked
MOST = 1 << 40  # `words_at` needs a length; the compiled policy knows its own


def _whole(x: int) -> int:
    return int(x)


# a float is refused when it is compiled, where Python would have made the attribute a float
whole = Overloaded("whole", {"int64": _whole}, "An integer, or a bool as one.")


def number(word: int) -> float:
    """The float of a word's bits."""
    return float(from_bits(word, 1.0))


def word_of(x: float) -> int:
    """The bits of a float."""
    return int(bits(float(x)))


# --- arrays -------------------------------------------------------------------------------------


def place(m: Words, at: int, i: int) -> int:
    """The address of an array's element `i`."""
    if i < 0:
        i += m[at + 1]
    if i < 0 or i >= m[at + 1]:
        raise IndexError("array")
    return m[at] + 8 * i


def place_of_pair(m: Words, at: int, i: int, j: int) -> int:
    """The address of element (`i`, `j`) of an array of two dimensions."""
    if i < 0:
        i += m[at + 1]
    if j < 0:
        j += m[at + 2]
    if i < 0 or j < 0 or i >= m[at + 1] or j >= m[at + 2]:
        raise IndexError("array")
    return m[at] + 8 * (i * m[at + 2] + j)


# --- lists --------------------------------------------------------------------------------------


def row(m: Words, at: int, i: int) -> int:
    """The place of list `i` of a list of lists, whose words stand behind its own."""
    if i < 0:
        i += m[at + 1]
    if i < 0 or i >= m[at + 1]:
        raise IndexError("list")
    return at + HEADER * (i + 1)


def element(m: Words, at: int, width: int, i: int) -> int:
    """The address of element `i` of a list."""
    if i < 0:
        i += m[at + 1]
    if i < 0 or i >= m[at + 1]:
        raise IndexError("list")
    return m[at] + 8 * width * (m[at + 3] + i)


def copy(source: int, target: int, width: int) -> None:
    """Copy an element."""
    for k in range(width):
        store_word(target + 8 * k, load_word(source + 8 * k))


def grow(m: Words, at: int, width: int) -> int:
    """Make room for one more element at the end; its address.  IndexError: the list is full."""
    if m[at + 3] + m[at + 1] + 1 >= m[at + 2]:  # one more is kept free, for what `take` takes out
        if m[at + 3] == 0:
            raise IndexError("list is full")
        first = m[at + 3]
        m[at + 3] = 0
        for k in range(m[at + 1]):
            copy(m[at] + 8 * width * (first + k), m[at] + 8 * width * k, width)
    m[at + 1] += 1
    return element(m, at, width, -1)


def insert(m: Words, at: int, width: int, i: int) -> int:
    """Make room for one more element in front of element `i`; its address."""
    if i < 0:
        i = max(0, i + m[at + 1])
    i = min(i, m[at + 1])
    if i == 0 and m[at + 3] > 0:
        m[at + 3] -= 1
        m[at + 1] += 1
        return element(m, at, width, 0)
    grow(m, at, width)
    for k in range(m[at + 1] - 1, i, -1):
        copy(element(m, at, width, k - 1), element(m, at, width, k), width)
    return element(m, at, width, i)


def take(m: Words, at: int, width: int, i: int) -> int:
    """Take element `i` out; the address of a copy, which holds until the list changes."""
    address = element(m, at, width, i)
    if i == 0:
        m[at + 3] += 1
        m[at + 1] -= 1
        return address
    spare = m[at] + 8 * width * (m[at + 3] + m[at + 1])
    copy(address, spare, width)
    for k in range(i if i >= 0 else i + m[at + 1], m[at + 1]):  # the copy moves down with the rest
        copy(m[at] + 8 * width * (m[at + 3] + k + 1), m[at] + 8 * width * (m[at + 3] + k), width)
    m[at + 1] -= 1
    return m[at] + 8 * width * (m[at + 3] + m[at + 1])


def find(m: Words, at: int, value: int) -> int:
    """The first place of a word in a list of such, or -1."""
    for k in range(m[at + 1]):
        if load_word(element(m, at, 1, k)) == value:
            return k
    return -1


def remove(m: Words, at: int, value: int) -> None:
    """Take the first element of this word out.  ValueError: there is none."""
    k = find(m, at, value)
    if k < 0:
        raise ValueError("list.remove")
    take(m, at, 1, k)


def clear(m: Words, at: int) -> None:
    """Take everything out."""
    m[at + 1] = m[at + 3] = 0


# --- heaps: lists whose least element is the first ------------------------------------------------


def less(a: int, b: int, width: int, floats: int) -> bool:
    """Return True if the element at address `a` is below that at `b`; bit k of `floats`: word k is
    a float.
    """
    for k in range(width):
        x, y = load_word(a + 8 * k), load_word(b + 8 * k)
        if (floats >> k) & 1 != 0:
            if number(x) != number(y):
                return number(x) < number(y)
        elif x != y:
            return x < y
    return False


def swap(a: int, b: int, width: int) -> None:
    """Exchange two elements."""
    for k in range(width):
        x = load_word(a + 8 * k)
        store_word(a + 8 * k, load_word(b + 8 * k))
        store_word(b + 8 * k, x)


def rise(m: Words, at: int, width: int, floats: int) -> None:
    """Let the last element rise to its place: what `heappush` does."""
    k = m[at + 1] - 1
    while k > 0:
        a, b = element(m, at, width, k), element(m, at, width, (k - 1) >> 1)
        if not less(a, b, width, floats):
            break
        swap(a, b, width)
        k = (k - 1) >> 1


def sink(m: Words, at: int, width: int, floats: int) -> int:
    """Take the least element out, as `heappop` does: the address of a copy."""
    count = m[at + 1] - 1
    spare = element(m, at, width, -1)
    swap(element(m, at, width, 0), spare, width)
    m[at + 1] = count
    k = 0
    while 2 * k + 1 < count:
        down = 2 * k + 1
        if down + 1 < count and less(
            element(m, at, width, down + 1), element(m, at, width, down), width, floats
        ):
            down += 1
        if not less(element(m, at, width, down), element(m, at, width, k), width, floats):
            break
        swap(element(m, at, width, down), element(m, at, width, k), width)
        k = down
    return spare


# --- simulation ---------------------------------------------------------------------------------

RAISED, UNREADY, OTHER_KIND = 1, 2, 3  # how a policy is wrong


def simulate(
    entry: int, state: int, m: Ints, ends: int, cost: Floats, kind: Ints, into: Ints, source: Ints,
    size: Floats, out: Ints, follower: Ints, release: Floats, waits: Ints, speed: Floats,
    order: Ints, sort: Ints, near: Floats, cores: int, python: float, wake: float, patience: float,
    handover: float, free: Ints,
    is_ready: Ints, running: Ints, since: Floats, finish: Floats, done_items: Ints, late: Floats,
    late_items: Ints, start: Floats, end: Floats, worker: Ints, problem: Ints,
) -> int:  # fmt: skip
    """Schedule by a compiled policy, event by event: whenever workers are free they are asked in
    `order`.  How many tasks ran; `problem` has how the policy was wrong, and with which task.

    The policy is called at `entry` with `state`, the address of `m`; `ends`: it hears when tasks
    end.  The twin of `flowvm.lab.simulation._stepped`.
    """
    n, workers = len(cost), len(speed)
    started = busy = waiting = 0
    now = dispatcher = 0.0
    m[NOW] = word_of(now)
    if python > 0.0:
        busy = push(finish, done_items, 0, busy, python, -1)
    for w in range(workers):
        free[w], since[w] = 1, -1.0
    for t in range(n):
        if waits[t] == 0:
            if release[t] > 0.0:
                waiting = push(late, late_items, 0, waiting, release[t], t)
            else:
                is_ready[t] = 1
                if call_kernel(entry, state, READY, t, -1, -1) != 0:
                    problem[0] = RAISED
                    return started
    while True:
        for w in order:
            if busy >= cores:
                break
            if free[w] == 0:
                continue
            if call_kernel(entry, state, PICK, w, -1, -1) != 0:
                problem[0] = RAISED
                return started
            t = m[RESULT]
            if t < 0:
                continue
            if t >= n or is_ready[t] == 0:
                problem[0], problem[1] = UNREADY, t
                return started
            if kind[t] != sort[w]:
                problem[0], problem[1], problem[2] = OTHER_KIND, t, w
                return started
            is_ready[t] = 0
            begin = max(now, arrival(t, w, into, source, size, near, workers, release, end, worker))
            if handover > 0.0:
                dispatcher = max(dispatcher, now) + handover
                begin = max(begin, dispatcher)
            if wake > 0.0 and since[w] + patience < now:
                begin = max(begin, now + wake)
            start[t], worker[t] = begin, w
            end[t] = begin + cost[t] / speed[w]
            busy = push(finish, done_items, 0, busy, end[t], w)
            free[w], running[w] = 0, t
            started += 1
        if busy == 0 and waiting == 0:
            return started
        now = INFINITE
        if busy > 0:
            now = finish[0]
        if waiting > 0 and late[0] < now:
            now = late[0]
        m[NOW] = word_of(now)
        while busy > 0 and finish[0] <= now:
            w = done_items[0]
            busy = pop(finish, done_items, 0, busy)
            if w < 0:
                continue
            t = running[w]
            since[w], free[w], m[BY] = now, 1, w
            if ends != 0 and call_kernel(entry, state, ENDED, t, w, -1) != 0:
                problem[0] = RAISED
                return started
            for k in range(out[t], out[t + 1]):
                u = follower[k]
                waits[u] -= 1
                if waits[u] == 0:
                    if release[u] > now:
                        waiting = push(late, late_items, 0, waiting, release[u], u)
                    else:
                        is_ready[u] = 1
                        if call_kernel(entry, state, READY, u, w, -1) != 0:
                            problem[0] = RAISED
                            return started
        while waiting > 0 and late[0] <= now:
            u = late_items[0]
            waiting = pop(late, late_items, 0, waiting)
            is_ready[u] = 1
            if call_kernel(entry, state, READY, u, int(m[BY]), -1) != 0:
                problem[0] = RAISED
                return started
