"""Replaying a Plan: what a worker does with a LaunchPlan instruction.

`flowvm.graph.plan.plan` writes the words that are read here.
"""

from __future__ import annotations

from flowvm.vm.machine.lang import Words, load_word, store_word
from flowvm.vm.machine.layout import (
    A_SCRATCH,
    ALLOCATE,
    ARG,
    ARG_HEADER,
    ARG_WORDS,
    DETAILS,
    DEVICE_MEMORY,
    E_LAYOUT,
    E_SCRATCH,
    K_COUNT,
    K_GRAIN,
    K_KERNEL,
    K_LAYOUT,
    K_LENGTH,
    K_MORE,
    K_OPERANDS,
    K_PHASES,
    K_REPEAT,
    K_SCALARS,
    K_SCRATCH,
    K_SECTION,
    K_STEPS,
    K_UNITS,
    OPERANDS,
    P_FIRST,
    P_OPERANDS,
    P_SIZES,
    P_TASKS,
    RECORD_WORDS,
    RING,
    S_POINTER,
    S_POISON,
    SOURCE_BITS,
    SOURCE_MASK,
    STO,
    STO_WORDS,
    STORAGE_BITS,
    STORAGE_MASK,
    STR,
    STR_WORDS,
    T_ARENA,
    T_MEMORY,
    T_TASK,
)
from flowvm.vm.machine.machine import access_of, count_of, operand_of
from flowvm.vm.machine.stamps import stamp_task, stamp_tasks
from flowvm.vm.workers.allocator import allocate, class_of, release
from flowvm.vm.workers.owning import OUT_OF_MEMORY, out_of_memory, own
from flowvm.vm.workers.ranges import run_phases


def run_launch(m: Words, stream: int, slot: int, entry: int) -> int:
    """LaunchPlan: take memory, then run the Plan's tasks in their order, all on this stream."""
    plan = m[entry + E_LAYOUT]
    chunk = take_chunk(m, stream, slot, entry)
    if chunk == 0:
        return OUT_OF_MEMORY
    stamp_tasks(m, stream, slot)
    status = run_tasks(
        m, stream, plan + 8 * load_word(plan + 8 * P_FIRST), 0, load_word(plan + 8 * P_TASKS),
        chunk, scalars_of(m, slot, entry),
    )  # fmt: skip
    release(m, stream, chunk, class_of(m[entry + E_SCRATCH]))
    return status


def take_chunk(m: Words, stream: int, slot: int, entry: int) -> int:
    """Memory for a launch's outputs, and its chunk: the chunk's address, or 0 when there is none.

    Its table (`table_of`) has the addresses that the tasks' operands start from: the rest of the
    chunk, then each operand of the launch.
    """
    chunk_bytes = m[entry + E_SCRATCH]
    count = load_word(m[entry + E_LAYOUT] + 8 * P_OPERANDS)
    m[STR + stream * STR_WORDS + T_TASK] = -1
    chunk = allocate(m, stream, chunk_bytes)
    if chunk == 0:
        out_of_memory(m, stream, chunk_bytes)
        return 0
    table = table_of(m, stream, chunk)
    if not place_operands(m, stream, slot, entry, table):
        release(m, stream, chunk, class_of(chunk_bytes))
        return 0
    store_word(table, chunk + (8 * count + 8 + 63) // 64 * 64)
    return chunk


def place_operands(m: Words, stream: int, slot: int, entry: int, table: int) -> bool:
    """Write a launch's operands into its table, taking memory for its outputs; whether there was
    any.
    """
    plan = m[entry + E_LAYOUT]
    for k in range(load_word(plan + 8 * P_OPERANDS)):
        word = operand_of(m, slot, entry, k)
        storage = word & STORAGE_MASK
        if access_of(m, slot, entry, k) & ALLOCATE != 0:
            size = load_word(plan + 8 * (load_word(plan + 8 * P_SIZES) + k))
            if not own(m, stream, storage, size):
                out_of_memory(m, stream, size)
                return False
        pointer = m[STO + storage * STO_WORDS + S_POINTER] + (word >> STORAGE_BITS)
        store_word(table + 8 + 8 * k, pointer)
    return True


def table_of(m: Words, stream: int, chunk: int) -> int:
    """Where the addresses of a launch's table are: the chunk's beginning, or, where the host cannot
    write to the chunk, the arena, for a device's stream has done with it when it has launched.
    """
    at = STR + stream * STR_WORDS
    return m[at + T_ARENA] if m[at + T_MEMORY] == DEVICE_MEMORY else chunk


def scalars_of(m: Words, slot: int, entry: int) -> int:
    """The address of a launch's live scalars: behind its operands and their accesses."""
    return m[RING + slot * RECORD_WORDS + OPERANDS] + 16 * count_of(m, slot, entry)


def run_tasks(
    m: Words, stream: int, at: int, task: int, count: int, chunk: int, scalars: int
) -> int:
    """`count` tasks, the first of them number `task`, whose words are at address `at`."""
    status, end = 0, task + count
    running = STR + stream * STR_WORDS + T_TASK
    while status == 0 and task < end:
        times = load_word(at + 8 * K_REPEAT)
        if times == 1:
            m[running] = task
            status = run_task(m, stream, at, chunk, scalars, 0)
            at += 8 * load_word(at + 8 * K_LENGTH)
            task += 1
            continue
        first, section, number = at, load_word(at + 8 * K_SECTION), 0
        while status == 0 and number < times:
            at = first
            for k in range(section):
                if status == 0:
                    m[running] = task + k
                    status = run_task(m, stream, at, chunk, scalars, number)
                    at += 8 * load_word(at + 8 * K_LENGTH)
            number += 1
        task += section
    return status


def run_task(m: Words, stream: int, at: int, chunk: int, scalars: int, repetition: int) -> int:
    """One task of a Plan, whose words are at address `at`, for the n-th time of this launch."""
    args = ARG + stream * ARG_WORDS
    count = load_word(at + 8 * K_COUNT)
    steps = load_word(at + 8 * K_STEPS)
    word_at = at + 8 * K_OPERANDS
    for k in range(count):
        word = load_word(word_at)
        address = load_word(chunk + 8 * (word & SOURCE_MASK)) + (word >> (SOURCE_BITS + 1))
        if steps != 0:
            address += repetition * load_word(steps + 8 * k)
        m[args + ARG_HEADER + k] = address
        word_at += 8
    for k in range(load_word(at + 8 * K_SCALARS)):
        number, value = load_word(word_at), load_word(word_at + 8)
        if number >= 0:
            value = load_word(scalars + 8 * (number + repetition * value))
        m[args + ARG_HEADER + count + k] = value
        word_at += 16
    scratch = load_word(at + 8 * K_SCRATCH)
    m[args + A_SCRATCH] = 0 if scratch < 0 else load_word(chunk) + scratch
    for i in range(DETAILS):
        m[args + i] = 0
    status = run_phases(
        m, stream, args, load_word(at + 8 * K_KERNEL), load_word(at + 8 * K_LAYOUT),
        load_word(at + 8 * K_UNITS), load_word(at + 8 * K_GRAIN), load_word(at + 8 * K_PHASES),
        load_word(at + 8 * K_MORE),
    )  # fmt: skip
    stamp_task(m, stream, repetition)
    return status


def poison_launch(m: Words, stream: int, slot: int, entry: int, cause: int) -> None:
    """Poison what a failed launch leaves without a value: its outputs, and what the failed task
    was writing.

    Variables that later tasks would have written keep their values, as if the step had not been.
    """
    for k in range(count_of(m, slot, entry)):
        if access_of(m, slot, entry, k) & ALLOCATE != 0:
            storage = operand_of(m, slot, entry, k) & STORAGE_MASK
            m[STO + storage * STO_WORDS + S_POISON] = cause
    poison_task(m, slot, entry, m[STR + stream * STR_WORDS + T_TASK], cause)


def poison_task(m: Words, slot: int, entry: int, task: int, cause: int) -> None:
    """Poison the operands of a launch that its task of this number writes; -1 is none."""
    if task < 0:
        return
    plan = m[entry + E_LAYOUT]
    at = plan + 8 * load_word(plan + 8 * P_FIRST)
    for _ in range(task):
        at += 8 * load_word(at + 8 * K_LENGTH)
    for k in range(load_word(at + 8 * K_COUNT)):
        word = load_word(at + 8 * (K_OPERANDS + k))
        if (word >> SOURCE_BITS) & 1 != 0 and word & SOURCE_MASK != 0:
            storage = operand_of(m, slot, entry, (word & SOURCE_MASK) - 1) & STORAGE_MASK
            m[STO + storage * STO_WORDS + S_POISON] = cause
