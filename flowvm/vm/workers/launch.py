"""Replay of a Plan: a worker's work for a LaunchPlan instruction.

`flowvm.graph.plan.plan` writes the words that are read here.
"""

from __future__ import annotations

from flowvm.vm.machine.lang import Words, load_word, store_word, words_at
from flowvm.vm.machine.machine import access_of, count_of, operand_of
from flowvm.vm.machine.plan_words import ACTOR, PLAN, RUNTIME, TASK
from flowvm.vm.machine.stamps import stamp_task, stamp_tasks
from flowvm.vm.machine.words import ARG, ENT, KIND, OPERAND, RING, STO, STR
from flowvm.vm.workers.allocation import OUT_OF_MEMORY, out_of_memory, own
from flowvm.vm.workers.allocator import allocate, class_of, release
from flowvm.vm.workers.ranges import run_phases
from flowvm.vm.workers.zones import (
    CHECKED,
    CHUNK_ZONE,
    begin_task,
    check_own_arena,
    check_task,
    on_host,
)

MOST = 1 << 40  # words_at needs a length; a Plan's lists know their own


def run_launch(m: Words, stream: int, slot: int, entry: int) -> int:
    """Run a LaunchPlan: take memory, then run the Plan's tasks in their order, all on this
    stream.
    """
    plan = m[entry + ENT.LAYOUT]
    chunk = take_chunk(m, stream, slot, entry)
    if chunk == 0:
        return OUT_OF_MEMORY
    stamp_tasks(m, stream, slot)
    status = run_tasks(
        m, stream, plan + 8 * load_word(plan + 8 * PLAN.FIRST), 0, load_word(plan + 8 * PLAN.TASKS),
        chunk, scalars_of(m, slot, entry),
    )  # fmt: skip
    release(m, stream, chunk, class_of(m[entry + ENT.SCRATCH]))
    return status


def take_chunk(m: Words, stream: int, slot: int, entry: int) -> int:
    """Take memory for a launch's outputs, and its chunk.  Return the chunk's address, or 0 if there
    is none.

    Its table (`table_of`) has the addresses that the tasks' operands start from: the rest of the
    chunk, then each operand of the launch.
    """
    chunk_bytes = m[entry + ENT.SCRATCH]
    count = load_word(m[entry + ENT.LAYOUT] + 8 * PLAN.OPERANDS)
    m[STR.AT + stream * STR.WORDS + STR.TASK] = -1
    chunk = allocate(m, stream, chunk_bytes)
    if chunk == 0:
        out_of_memory(m, stream, chunk_bytes)
        return 0
    table = table_of(m, stream, chunk)
    if not place_operands(m, stream, slot, entry, table):
        release(m, stream, chunk, class_of(chunk_bytes))
        return 0
    store_word(table, chunk + (8 * count + 8 + 63) // 64 * 64 + CHUNK_ZONE)
    return chunk


def place_operands(m: Words, stream: int, slot: int, entry: int, table: int) -> bool:
    """Write a launch's operands into its table, taking memory for its outputs; whether there was
    any.
    """
    plan = m[entry + ENT.LAYOUT]
    for k in range(load_word(plan + 8 * PLAN.OPERANDS)):
        word = operand_of(m, slot, entry, k)
        storage = word & OPERAND.STORAGE_MASK
        if access_of(m, slot, entry, k) & OPERAND.ALLOCATE != 0:
            size = load_word(plan + 8 * (load_word(plan + 8 * PLAN.SIZES) + k))
            if not own(m, stream, storage, size):
                out_of_memory(m, stream, size)
                return False
        pointer = m[STO.AT + storage * STO.WORDS + STO.POINTER] + (word >> OPERAND.STORAGE_BITS)
        store_word(table + 8 + 8 * k, pointer)
    return True


def table_of(m: Words, stream: int, chunk: int) -> int:
    """Return the address of a launch's table: the chunk's beginning.  On a device, whose chunk the
    host cannot write, it is the arena, which is free again after the launch.
    """
    at = STR.AT + stream * STR.WORDS
    return m[at + STR.ARENA] if m[at + STR.MEMORY] == STR.DEVICE_MEMORY else chunk


def scalars_of(m: Words, slot: int, entry: int) -> int:
    """The address of a launch's live scalars: behind its operands and their accesses."""
    return m[RING.AT + slot * RING.WORDS + RING.OPERANDS] + 16 * count_of(m, slot, entry)


def run_tasks(
    m: Words, stream: int, at: int, task: int, count: int, chunk: int, scalars: int
) -> int:
    """Run `count` tasks.  The first is number `task`, and its words are at address `at`."""
    status, end = 0, task + count
    running = STR.AT + stream * STR.WORDS + STR.TASK
    while status == 0 and task < end:
        times = load_word(at + 8 * TASK.REPEAT)
        if times == 1:
            m[running] = task
            status = run_task(m, stream, at, chunk, scalars, 0)
            at += 8 * load_word(at + 8 * TASK.LENGTH)
            task += 1
            continue
        first, section, number = at, load_word(at + 8 * TASK.SECTION), 0
        while status == 0 and number < times:
            at = first
            for k in range(section):
                if status == 0:
                    m[running] = task + k
                    status = run_task(m, stream, at, chunk, scalars, number)
                    at += 8 * load_word(at + 8 * TASK.LENGTH)
            number += 1
        task += section
    return status


def run_once(
    m: Words, stream: int, at: int, task: int, count: int, chunk: int, scalars: int, repetition: int
) -> int:
    """Run tasks for one of their repetitions."""
    status, end = 0, task + count
    while status == 0 and task < end:
        m[STR.AT + stream * STR.WORDS + STR.TASK] = task
        status = run_task(m, stream, at, chunk, scalars, repetition)
        at += 8 * load_word(at + 8 * TASK.LENGTH)
        task += 1
    return status


def run_task(m: Words, stream: int, at: int, chunk: int, scalars: int, repetition: int) -> int:
    """Run one task of a Plan, whose words are at address `at`, for the n-th time of this launch."""
    args = ARG.AT + stream * ARG.WORDS
    count = load_word(at + 8 * TASK.COUNT)
    steps = load_word(at + 8 * TASK.STEPS)
    word_at = at + 8 * TASK.OPERANDS
    for k in range(count):
        word = load_word(word_at)
        address = load_word(chunk + 8 * (word & TASK.SOURCE_MASK)) + (
            word >> (TASK.SOURCE_BITS + 1)
        )
        if steps != 0:
            step, turns = load_word(steps + 16 * k), load_word(steps + 16 * k + 8)
            address += repetition % turns * step
        m[args + ARG.HEADER + k] = address
        word_at += 8
    for k in range(load_word(at + 8 * TASK.SCALARS)):
        number, value = load_word(word_at), load_word(word_at + 8)
        if number >= 0:
            value = load_word(scalars + 8 * (number + repetition * value))
        m[args + ARG.HEADER + count + k] = value
        word_at += 16
    scratch = load_word(at + 8 * TASK.SCRATCH)
    m[args + ARG.SCRATCH] = 0 if scratch < 0 else load_word(chunk) + scratch
    for i in range(ARG.N_DETAILS):
        m[args + i] = 0
    if CHECKED and on_host(m, stream):
        begin_task(load_word(at + 8 * TASK.ZONES), load_word(chunk), repetition)
    status = run_phases(
        m, stream, args, load_word(at + 8 * TASK.KERNEL), load_word(at + 8 * TASK.LAYOUT),
        load_word(at + 8 * TASK.UNITS), load_word(at + 8 * TASK.GRAIN),
        load_word(at + 8 * TASK.PHASES), load_word(at + 8 * TASK.MORE),
    )  # fmt: skip
    if CHECKED and status == 0 and on_host(m, stream):
        status = check_task(m, stream, load_word(at + 8 * TASK.ZONES), load_word(chunk))
    if CHECKED:
        status = check_own_arena(m, stream, status)
    stamp_task(m, stream, repetition)
    return status


# --- failing ------------------------------------------------------------------------------------


def poison_launch(m: Words, stream: int, slot: int, entry: int, cause: int) -> None:
    """Poison the outputs of a launch that failed at the stream's task (-1: before the first), and
    its variables as `poison_rest` does.

    On a device no task stops at an error; `device_tasks.poison_behind` poisons the failed task's
    results.
    """
    poison_outputs(m, slot, entry, cause)
    task = m[STR.AT + stream * STR.WORDS + STR.TASK]
    end = load_word(m[entry + ENT.LAYOUT] + 8 * PLAN.TASKS)
    if task >= 0 and m[STR.AT + stream * STR.WORDS + STR.MEMORY] == STR.DEVICE_MEMORY:
        end = task + 1
    poison_rest(m, slot, entry, -1, max(0, task), end, task >= 0, cause)


def poison_outputs(m: Words, slot: int, entry: int, cause: int) -> None:
    """Poison the memory of a launch's outputs, which have no value."""
    for k in range(count_of(m, slot, entry)):
        if access_of(m, slot, entry, k) & OPERAND.ALLOCATE != 0:
            storage = operand_of(m, slot, entry, k) & OPERAND.STORAGE_MASK
            m[STO.AT + storage * STO.WORDS + STO.POISON] = cause
            m[STO.AT + storage * STO.WORDS + STO.TORN] = -cause


def poison_rest(
    m: Words, slot: int, entry: int, number: int, task: int, end: int, failed: bool, cause: int
) -> None:
    """Poison the outputs of the tasks from `task` to `end`, which do not run because the first has
    `failed`.  Outputs of that task are half written, as are outputs of tasks in front of it.  Tasks
    repeated together count as one.

    So a variable has the value that a whole launch gives it, or is poisoned; and then it is whole,
    as if the step had not been, if it was not begun.

    `number` is the number of a launch by actors, or -1: then the tasks in front have run.
    """
    plan = m[entry + ENT.LAYOUT]
    at, behind = first_task(plan), task
    if failed:
        behind = task + 1
        for _ in range(task):
            at += 8 * load_word(at + 8 * TASK.LENGTH)
        if load_word(at + 8 * TASK.REPEAT) > 1:
            behind = task + load_word(at + 8 * TASK.SECTION)
    at = first_task(plan)
    for k in range(end):
        together = failed and load_word(at + 8 * TASK.REPEAT) > 1
        if k >= task or (together and k + load_word(at + 8 * TASK.SECTION) == behind):
            for j in range(load_word(at + 8 * TASK.COUNT)):
                source = written_by(at, j)
                if source > 0:
                    word = operand_of(m, slot, entry, source - 1)
                    storage = STO.AT + (word & OPERAND.STORAGE_MASK) * STO.WORDS
                    m[storage + STO.POISON] = cause
                    if k < behind or has_written(plan, number, task, source):
                        m[storage + STO.TORN] = cause
        at += 8 * load_word(at + 8 * TASK.LENGTH)


def tear_begun(m: Words, slot: int, entry: int, number: int, cause: int) -> None:
    """Mark the variables that launch `number` by actors leaves half written.  It ended because one
    in front of it failed after some of its actors had acted.
    """
    plan = m[entry + ENT.LAYOUT]
    at, tasks = first_task(plan), load_word(plan + 8 * PLAN.TASKS)
    for k in range(tasks):
        if load_word(at + 8 * TASK.REPEAT) > 1 or not has_run(plan, number, k):
            for j in range(load_word(at + 8 * TASK.COUNT)):
                source = written_by(at, j)
                if source > 0 and has_written(plan, number, tasks, source):
                    storage = operand_of(m, slot, entry, source - 1) & OPERAND.STORAGE_MASK
                    m[STO.AT + storage * STO.WORDS + STO.TORN] = cause
        at += 8 * load_word(at + 8 * TASK.LENGTH)


def runtime_of(m: Words, entry: int) -> int:
    """The address of a LaunchPlan's actors; 0 if it has none, or is none."""
    if m[entry + ENT.KIND] != KIND.LAUNCH:
        return 0
    return load_word(m[entry + ENT.LAYOUT] + 8 * PLAN.ACTORS)


def first_task(plan: int) -> int:
    """Return the address of a Plan's first task."""
    return plan + 8 * load_word(plan + 8 * PLAN.FIRST)


def written_by(task: int, k: int) -> int:
    """Return the number + 1 of the launch's operand that operand `k` of a task writes; 0 for
    none.
    """
    word = load_word(task + 8 * (TASK.OPERANDS + k))
    return word & TASK.SOURCE_MASK if (word >> TASK.SOURCE_BITS) & 1 != 0 else 0


def has_written(plan: int, number: int, before: int, source: int) -> bool:
    """Return True if a task in front of this one has run and has written the launch's operand
    `source`.
    """
    at = first_task(plan)
    for k in range(before):
        for j in range(load_word(at + 8 * TASK.COUNT)):
            if written_by(at, j) == source and (number < 0 or has_run(plan, number, k)):
                return True
        at += 8 * load_word(at + 8 * TASK.LENGTH)
    return False


def has_run(plan: int, number: int, task: int) -> bool:
    """Return True if the actor of a task has run it for a launch.  Only for actors in front of the
    calling one.
    """
    runtime = words_at(load_word(plan + 8 * PLAN.ACTORS), MOST)
    actors = runtime[RUNTIME.ACTORS]
    ran = runtime[RUNTIME.RAN] + number % runtime[RUNTIME.DEPTH] * actors
    for k in range(actors):
        first = runtime[runtime[RUNTIME.FIRST] + k * ACTOR.WORDS + ACTOR.TASK]
        if first <= task < first + runtime[ran + k]:
            return True
    return False
