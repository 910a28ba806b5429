"""The loops of the lab: topological order, ranks, list scheduling, static heuristics, bounds.

Plain Python functions on float64 and int64 arrays that allocate nothing: `flowvm.lab.native` runs
them compiled.  Graphs are two lists of edges by task: `into` and `out` have offsets, `source` is
sorted by target, `follower` and `edge` by source.  `near` is 1 / link from worker to worker, in a
row a worker; it is empty where edges take no time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class Floats(Protocol):
    """A one-dimensional float64 array."""

    def __getitem__(self, i: int, /) -> float: ...
    def __setitem__(self, i: int, value: float, /) -> None: ...
    def __len__(self) -> int: ...


class Ints(Protocol):
    """A one-dimensional int64 array."""

    def __getitem__(self, i: int, /) -> int: ...
    def __setitem__(self, i: int, value: int, /) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[int]: ...


KEYED, ARRIVAL, LATEST = 0, 1, 2  # what a ready list is sorted by
MIN_MIN, MAX_MIN, SUFFERAGE, ETF = 0, 1, 2, 3
INFINITE = 1e300


def push(keys: Floats, items: Ints, base: int, size: int, key: float, item: int) -> int:
    """Add to the heap of `size` elements at `base`, the least (key, item) first; its new size."""
    k = size
    while k > 0:
        up = (k - 1) >> 1
        above = keys[base + up]
        if above < key or (above == key and items[base + up] < item):
            break
        keys[base + k], items[base + k] = above, items[base + up]
        k = up
    keys[base + k], items[base + k] = key, item
    return size + 1


def pop(keys: Floats, items: Ints, base: int, size: int) -> int:
    """Take the first off the heap, which whoever calls has read; its new size."""
    size -= 1
    key, item = keys[base + size], items[base + size]
    k = 0
    while True:
        down = 2 * k + 1
        if down >= size:
            break
        right = down + 1
        if right < size and (
            keys[base + right] < keys[base + down]
            or (
                keys[base + right] == keys[base + down] and items[base + right] < items[base + down]
            )
        ):
            down = right
        below = keys[base + down]
        if key < below or (key == below and item < items[base + down]):
            break
        keys[base + k], items[base + k] = below, items[base + down]
        k = down
    keys[base + k], items[base + k] = key, item
    return size


def by_key(
    out: Ints, follower: Ints, waits: Ints, key: Floats, keys: Floats, items: Ints, order: Ints
) -> int:
    """A topological order that takes the least (key, number) of what is ready; how many tasks came
    into it.  `waits` has the number of predecessors, and is used up.
    """
    n = len(waits)
    size = count = 0
    for t in range(n):
        if waits[t] == 0:
            size = push(keys, items, 0, size, key[t], t)
    while size > 0:
        t = items[0]
        size = pop(keys, items, 0, size)
        order[count] = t
        count += 1
        for k in range(out[t], out[t + 1]):
            u = follower[k]
            waits[u] -= 1
            if waits[u] == 0:
                size = push(keys, items, 0, size, key[u], u)
    return count


def levels(order: Ints, into: Ints, source: Ints, level: Ints) -> int:
    """The most edges on a path to each task; how many levels there are."""
    most = 0
    for t in order:
        deepest = 0
        for k in range(into[t], into[t + 1]):
            deepest = max(deepest, level[source[k]] + 1)
        level[t] = deepest
        most = max(most, deepest + 1)
    return most


def upward(
    order: Ints, out: Ints, follower: Ints, edge: Ints, cost: Floats, comm: Floats, rank: Floats
) -> int:
    """The longest way from each task to an end, its own cost included."""
    for i in range(len(order) - 1, -1, -1):
        t = order[i]
        longest = 0.0
        for k in range(out[t], out[t + 1]):
            longest = max(longest, rank[follower[k]] + comm[edge[k]])
        rank[t] = cost[t] + longest
    return 0


def downward(
    order: Ints, into: Ints, source: Ints, cost: Floats, comm: Floats, own: int, rank: Floats
) -> int:
    """The longest way from a start to each task: with the costs of those in front of it, or if
    `own`, of it and those in front but the first.
    """
    for t in order:
        longest = 0.0
        for k in range(into[t], into[t + 1]):
            s = source[k]
            longest = max(longest, rank[s] + comm[k] + (cost[t] if own != 0 else cost[s]))
        rank[t] = longest
    return 0


def arrival(
    t: int, w: int, into: Ints, source: Ints, size: Floats, near: Floats, workers: int,
    release: Floats, end: Floats, worker: Ints,
) -> float:  # fmt: skip
    """Return the time at which all operands of task `t` are on worker `w`."""
    when = release[t]
    for k in range(into[t], into[t + 1]):
        s = source[k]
        arrival_time = end[s]
        if len(near) > 0 and worker[s] != w:
            arrival_time += size[k] * near[worker[s] * workers + w]
        when = max(when, arrival_time)
    return when


def put(
    mode: int, key: Floats, c: int, base: Ints, ready: Ints, first: Ints, keys: Floats,
    items: Ints, t: int,
) -> int:  # fmt: skip
    """Add a task to the ready list of kind `c`; how long that is."""
    if mode == KEYED:
        ready[c] = push(keys, items, base[c], ready[c], key[t], t)
    else:
        items[base[c] + first[c] + ready[c]] = t
        ready[c] += 1
    return ready[c]


def take(
    mode: int, c: int, base: Ints, ready: Ints, first: Ints, keys: Floats, items: Ints
) -> int:  # fmt: skip
    """Take the next task off the ready list of kind `c`."""
    if mode == KEYED:
        t = items[base[c]]
        ready[c] = pop(keys, items, base[c], ready[c])
        return t
    ready[c] -= 1
    if mode == ARRIVAL:
        first[c] += 1
        return items[base[c] + first[c] - 1]
    return items[base[c] + ready[c]]


def list_schedule(
    mode: int, key: Floats, cost: Floats, kind: Ints, into: Ints, source: Ints, size: Floats,
    out: Ints, follower: Ints, release: Floats, waits: Ints, speed: Floats, rank: Ints,
    sort: Ints, near: Floats, cores: int, python: float, wake: float, patience: float,
    handover: float, base: Ints, ready: Ints,
    first: Ints, keys: Floats, items: Ints, spare: Ints, spares: Ints, idle: Floats,
    idle_items: Ints, since: Floats, finish: Floats, done_items: Ints, late: Floats,
    late_items: Ints, start: Floats, end: Floats, worker: Ints,
) -> int:  # fmt: skip
    """List scheduling, event by event: whenever a worker is free it takes the first of the ready
    list of its kind.  How many tasks ran.

    Task t has kind[t], worker w is of sort[w], and takes only tasks of that kind; `rank` is the
    order in which free workers take.  Python has one of the cores until time `python`.  `base` is
    where a kind's ready list begins, `ready` how long it is, `first` how many of it were taken, of
    one by arrival; `spare` and `spares` are the same of free workers.
    """
    n, workers, kinds = len(cost), len(speed), len(base)
    started = busy = waiting = 0
    now = dispatcher = 0.0
    if python > 0.0:
        busy = push(finish, done_items, 0, busy, python, -1)
    for w in range(workers):
        c = sort[w]
        spares[c] = push(idle, idle_items, spare[c], spares[c], float(rank[w]), w)
    for t in range(n):
        if waits[t] == 0:
            if release[t] > 0.0:
                waiting = push(late, late_items, 0, waiting, release[t], t)
            else:
                put(mode, key, kind[t], base, ready, first, keys, items, t)
    while True:
        for c in range(kinds):
            while ready[c] > 0 and spares[c] > 0 and busy < cores:
                t = take(mode, c, base, ready, first, keys, items)
                w = idle_items[spare[c]]
                spares[c] = pop(idle, idle_items, spare[c], spares[c])
                begin = max(
                    now, arrival(t, w, into, source, size, near, workers, release, end, worker)
                )
                if handover > 0.0:
                    dispatcher = max(dispatcher, now) + handover
                    begin = max(begin, dispatcher)
                if wake > 0.0 and since[w] + patience < now:
                    begin = max(begin, now + wake)
                start[t], worker[t] = begin, w
                end[t] = begin + cost[t] / speed[w]
                busy = push(finish, done_items, 0, busy, end[t], w)
                started += 1
                since[w] = float(t)  # while it runs: what it runs
        if busy == 0 and waiting == 0:
            return started
        now = INFINITE
        if busy > 0:
            now = finish[0]
        if waiting > 0 and late[0] < now:
            now = late[0]
        while busy > 0 and finish[0] <= now:
            w = done_items[0]
            busy = pop(finish, done_items, 0, busy)
            if w < 0:
                continue
            t = int(since[w])
            since[w] = now
            c = sort[w]
            spares[c] = push(idle, idle_items, spare[c], spares[c], float(rank[w]), w)
            for k in range(out[t], out[t + 1]):
                u = follower[k]
                waits[u] -= 1
                if waits[u] == 0:
                    if release[u] > now:
                        waiting = push(late, late_items, 0, waiting, release[u], u)
                    else:
                        put(mode, key, kind[u], base, ready, first, keys, items, u)
        while waiting > 0 and late[0] <= now:
            u = late_items[0]
            waiting = pop(late, late_items, 0, waiting)
            put(mode, key, kind[u], base, ready, first, keys, items, u)


def gap(
    w: int, begin: float, takes: float, first: Ints, following: Ints, last: Ints,
    start: Floats, end: Floats,
) -> float:  # fmt: skip
    """The first time from `begin` on at which worker `w` is free for so long."""
    t = first[w]
    if t < 0 or begin + takes <= start[t]:
        return begin
    u = following[t]
    while u >= 0:
        if begin >= end[t]:
            if begin + takes <= start[u]:
                return begin
        elif end[t] + takes <= start[u]:
            return end[t]
        t = u
        u = following[t]
    return max(begin, end[last[w]])


def place(
    t: int, w: int, first: Ints, following: Ints, last: Ints, start: Floats, end: Floats
) -> int:
    """Put a task with its times into the list of its worker, which is in order of time."""
    before, after = -1, first[w]
    if last[w] >= 0 and start[last[w]] < start[t]:
        before, after = last[w], -1
    while after >= 0 and (
        start[after] < start[t] or (start[after] == start[t] and end[after] < end[t])
    ):
        before, after = after, following[after]
    following[t] = after
    if before >= 0:
        following[before] = t
    else:
        first[w] = t
    if after < 0:
        last[w] = t
    return 0


def insertion(
    order: Ints, pinned: Ints, bias: Floats, cost: Floats, kind: Ints, sort: Ints, into: Ints,
    source: Ints, size: Floats, release: Floats, speed: Floats, near: Floats, append: int,
    first: Ints, following: Ints, last: Ints, start: Floats, end: Floats, worker: Ints,
) -> int:  # fmt: skip
    """Place tasks in an order, each on the worker where it ends first, in the first gap that is
    long enough; or if `append`, behind what the worker has.

    `pinned` is a worker for each task, or -1; `bias` is added to the ends that are compared, for
    each task and worker, or is empty.
    """
    workers = len(speed)
    for t in order:
        best, least, at = -1, INFINITE, 0.0
        for w in range(workers):
            if sort[w] != kind[t] or (pinned[t] >= 0 and pinned[t] != w):
                continue
            takes = cost[t] / speed[w]
            begin = arrival(t, w, into, source, size, near, workers, release, end, worker)
            if append != 0:
                if last[w] >= 0:
                    begin = max(begin, end[last[w]])
            else:
                begin = gap(w, begin, takes, first, following, last, start, end)
            value = begin + takes
            if len(bias) > 0:
                value += bias[t * workers + w]
            if value < least:
                best, least, at = w, value, begin
        start[t], end[t], worker[t] = at, at + cost[t] / speed[best], best
        place(t, best, first, following, last, start, end)
    return 0


def next_available(
    order: Ints, cost: Floats, kind: Ints, sort: Ints, into: Ints, source: Ints, size: Floats,
    release: Floats, speed: Floats, near: Floats, free: Floats, start: Floats, end: Floats,
    worker: Ints,
) -> int:  # fmt: skip
    """Place tasks in an order, each on the worker that is free first."""
    workers = len(speed)
    for t in order:
        best = -1
        for w in range(workers):
            if sort[w] == kind[t] and (best < 0 or free[w] < free[best]):
                best = w
        when = arrival(t, best, into, source, size, near, workers, release, end, worker)
        start[t], worker[t] = max(free[best], when), best
        end[t] = start[t] + cost[t] / speed[best]
        free[best] = end[t]
    return 0


def batch(
    mode: int, level: Floats, cost: Floats, kind: Ints, sort: Ints, into: Ints, source: Ints,
    size: Floats, out: Ints, follower: Ints, release: Floats, waits: Ints, speed: Floats,
    near: Floats, comes: Floats, now: Ints, later: Ints, free: Floats, start: Floats, end: Floats,
    worker: Ints,
) -> int:  # fmt: skip
    """Place what is ready, one task after the other, by what its best worker would make of it.

    MIN_MIN takes the task that would end first, MAX_MIN the one that would end last, SUFFERAGE the
    one that loses most on its second best worker; what becomes ready is looked at when all that was
    ready is placed.  ETF takes the task that can start first, of these the one of the highest
    `level`, and looks at what became ready at once.
    """
    workers = len(speed)
    count = after = 0
    for t in range(len(waits)):
        if waits[t] == 0:
            now[count] = t
            count += 1
            for w in range(workers):
                comes[t * workers + w] = release[t]
    placed = 0
    while count > 0:
        place_of, target, value, tie = -1, -1, INFINITE, 0.0
        for i in range(count):
            t = now[i]
            best, least, second, soonest = -1, INFINITE, INFINITE, INFINITE
            for w in range(workers):
                if sort[w] != kind[t]:
                    continue
                begin = max(free[w], comes[t * workers + w])
                ends = begin + cost[t] / speed[w]
                # of ETF the time of the start counts, and ends decide between equal ones
                if mode == ETF and (begin < soonest or (begin == soonest and ends < least)):
                    best, soonest, least = w, begin, ends
                elif mode != ETF and ends < least:
                    best, second, least = w, least, ends
                elif mode != ETF and ends < second:
                    second = ends
            compared = least
            if mode == MAX_MIN:
                compared = -least
            elif mode == SUFFERAGE:
                compared = least - second if second < INFINITE else 0.0
            elif mode == ETF:
                compared = soonest
            equal = mode == ETF and compared == value and level[t] > tie
            if place_of < 0 or compared < value or equal:
                place_of, target, value, tie = i, best, compared, level[t]
        t, w = now[place_of], target
        start[t], worker[t] = max(free[w], comes[t * workers + w]), w
        end[t] = start[t] + cost[t] / speed[w]
        free[w] = end[t]
        placed += 1
        count -= 1
        for i in range(place_of, count):
            now[i] = now[i + 1]
        for k in range(out[t], out[t + 1]):
            u = follower[k]
            waits[u] -= 1
            if waits[u] == 0:
                for v in range(workers):
                    comes[u * workers + v] = arrival(
                        u, v, into, source, size, near, workers, release, end, worker
                    )
                if mode == ETF:
                    now[count] = u
                    count += 1
                else:
                    later[after] = u
                    after += 1
        if count == 0:
            # in the order of their numbers
            for i in range(after):
                k = i
                while k > 0 and now[k - 1] > later[i]:
                    now[k] = now[k - 1]
                    k -= 1
                now[k] = later[i]
            count, after = after, 0
    return placed


def execute(
    order: Ints, cost: Floats, into: Ints, source: Ints, size: Floats, release: Floats,
    speed: Floats, near: Floats, cores: int, python: float, wake: float, patience: float,
    handover: float, free: Floats, core: Floats, core_items: Ints, start: Floats, end: Floats,
    worker: Ints,
) -> int:  # fmt: skip
    """Run a static schedule: each worker takes its tasks in this order, which is topological, as
    soon as they can start.  Python has one of the cores until time `python`.
    """
    workers = len(speed)
    cores_known = 0
    dispatcher = 0.0
    short = cores < workers or (python > 0.0 and cores == workers)
    if python > 0.0 and short:
        cores_known = push(core, core_items, 0, cores_known, python, -1)
    for t in order:
        w = worker[t]
        came = arrival(t, w, into, source, size, near, workers, release, end, worker)
        begin = max(free[w], came)
        if handover > 0.0:
            dispatcher = max(dispatcher, came) + handover
            begin = max(begin, dispatcher)
        if wake > 0.0 and free[w] + patience < came:
            begin = max(begin, came + wake)
        if short and cores_known == cores:
            begin = max(begin, core[0])
            cores_known = pop(core, core_items, 0, cores_known)
        start[t], end[t] = begin, begin + cost[t] / speed[w]
        free[w] = end[t]
        if short:
            cores_known = push(core, core_items, 0, cores_known, end[t], t)
    return 0


def costs_to_go(
    order: Ints, out: Ints, follower: Ints, edge: Ints, cost: Floats, comm: Floats, speed: Floats,
    table: Floats,
) -> int:  # fmt: skip
    """PEFT's optimistic cost table: how long the way from the end of a task on a worker to an end
    is at least, if each following task has the worker that is best for it.
    """
    workers = len(speed)
    for i in range(len(order) - 1, -1, -1):
        t = order[i]
        for w in range(workers):
            longest = 0.0
            for k in range(out[t], out[t + 1]):
                u = follower[k]
                least = INFINITE
                for v in range(workers):
                    total = table[u * workers + v] + cost[u] / speed[v]
                    if v != w:
                        total += comm[edge[k]]
                    least = min(least, total)
                longest = max(longest, least)
            table[t * workers + w] = longest
    return 0


def earliest(
    order: Ints, into: Ints, source: Ints, cost: Floats, comm: Floats, work: Floats, items: Ints,
    least: Floats,
) -> int:  # fmt: skip
    """The earliest start of each task whatever the number of workers: what it reads comes over a
    link, but for those that are computed where it runs, which take one after the other.
    """
    for t in order:
        a, b = into[t], into[t + 1]
        size = 0
        for k in range(a, b):  # those whose data come last, first
            size = push(work, items, 0, size, -(least[source[k]] + cost[source[k]] + comm[k]), k)
        best = INFINITE
        alone = began = longest = 0.0  # of those that run where `t` does
        count = 0
        while True:
            ends = max(longest, began + alone)
            comes = -work[0] if size > 0 else 0.0
            best = min(best, max(ends, comes))
            if size == 0 or ends >= comes:
                break
            s = source[items[0]]
            size = pop(work, items, 0, size)
            began = least[s] if count == 0 else min(began, least[s])
            alone += cost[s]
            longest = max(longest, least[s] + cost[s])
            count += 1
        least[t] = best if b > a else 0.0
    return 0
