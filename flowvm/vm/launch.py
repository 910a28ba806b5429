"""Replaying a Plan: what the worker does with a LaunchPlan instruction.

`flowvm.graph.plan` writes the words that are read here.
"""

from __future__ import annotations

from flowvm.vm.allocator import allocate, class_of, release
from flowvm.vm.lang import Words, load_word, store_word
from flowvm.vm.layout import (
    A_SCRATCH,
    ALLOCATE,
    ARG,
    ARG_HEADER,
    ARG_WORDS,
    DETAILS,
    E_LAYOUT,
    E_SCRATCH,
    K_COUNT,
    K_GRAIN,
    K_KERNEL,
    K_LAYOUT,
    K_MORE,
    K_OPERANDS,
    K_PHASES,
    K_SCALARS,
    K_SCRATCH,
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
    T_TASK,
)
from flowvm.vm.machine import access_of, count_of, operand_of
from flowvm.vm.owning import out_of_memory, own
from flowvm.vm.ranges import run_phases


def run_launch(m: Words, stream: int, slot: int, entry: int) -> int:
    """LaunchPlan: allocate the outputs and the chunk, then run the Plan's tasks in their order.

    The chunk begins with the addresses that the tasks' operands start from: the rest of the chunk,
    then each operand of the launch.
    """
    plan, chunk_bytes = m[entry + E_LAYOUT], m[entry + E_SCRATCH]
    count = load_word(plan + 8 * P_OPERANDS)
    args = ARG + stream * ARG_WORDS
    chunk = allocate(m, stream, chunk_bytes)
    if chunk == 0:
        return out_of_memory(m, args, chunk_bytes)
    status, task, at = 0, 0, plan + 8 * load_word(plan + 8 * P_FIRST)
    store_word(chunk, chunk + (8 * count + 8 + 63) // 64 * 64)
    for k in range(count):
        word = operand_of(m, slot, entry, k)
        storage = word & STORAGE_MASK
        if access_of(m, slot, entry, k) & ALLOCATE != 0 and status == 0:
            size = load_word(plan + 8 * (load_word(plan + 8 * P_SIZES) + k))
            if not own(m, stream, storage, size):
                status = out_of_memory(m, args, size)
        pointer = m[STO + storage * STO_WORDS + S_POINTER] + (word >> STORAGE_BITS)
        store_word(chunk + 8 + 8 * k, pointer)
    scalars = m[RING + slot * RECORD_WORDS + OPERANDS] + 16 * count
    while status == 0 and task < load_word(plan + 8 * P_TASKS):
        m[STR + stream * STR_WORDS + T_TASK] = task
        status = run_task(m, stream, args, at, chunk, scalars)
        at += 8 * load_word(at)
        task += 1
    release(m, stream, chunk, class_of(chunk_bytes))
    return status


def run_task(m: Words, stream: int, args: int, at: int, chunk: int, scalars: int) -> int:
    """One task of a Plan, whose words are at address `at`."""
    count = load_word(at + 8 * K_COUNT)
    word_at = at + 8 * K_OPERANDS
    for k in range(count):
        word = load_word(word_at)
        base = load_word(chunk + 8 * (word & SOURCE_MASK))
        m[args + ARG_HEADER + k] = base + (word >> (SOURCE_BITS + 1))
        word_at += 8
    for k in range(load_word(at + 8 * K_SCALARS)):
        number, value = load_word(word_at), load_word(word_at + 8)
        m[args + ARG_HEADER + count + k] = value if number < 0 else load_word(scalars + 8 * number)
        word_at += 16
    scratch = load_word(at + 8 * K_SCRATCH)
    m[args + A_SCRATCH] = 0 if scratch < 0 else load_word(chunk) + scratch
    for i in range(DETAILS):
        m[args + i] = 0
    return run_phases(
        m, stream, args, load_word(at + 8 * K_KERNEL), load_word(at + 8 * K_LAYOUT),
        load_word(at + 8 * K_UNITS), load_word(at + 8 * K_GRAIN), load_word(at + 8 * K_PHASES),
        load_word(at + 8 * K_MORE),
    )  # fmt: skip


def poison_launch(m: Words, stream: int, slot: int, entry: int, cause: int) -> None:
    """Poison what a failed launch leaves without a value: its outputs, and what the failed task
    was writing.

    Variables that later tasks would have written keep their values, as if the step had not been.
    """
    for k in range(count_of(m, slot, entry)):
        if access_of(m, slot, entry, k) & ALLOCATE != 0:
            storage = operand_of(m, slot, entry, k) & STORAGE_MASK
            m[STO + storage * STO_WORDS + S_POISON] = cause
    plan = m[entry + E_LAYOUT]
    at = plan + 8 * load_word(plan + 8 * P_FIRST)
    for _ in range(m[STR + stream * STR_WORDS + T_TASK]):
        at += 8 * load_word(at)
    for k in range(load_word(at + 8 * K_COUNT)):
        word = load_word(at + 8 * (K_OPERANDS + k))
        if (word >> SOURCE_BITS) & 1 != 0 and word & SOURCE_MASK != 0:
            storage = operand_of(m, slot, entry, (word & SOURCE_MASK) - 1) & STORAGE_MASK
            m[STO + storage * STO_WORDS + S_POISON] = cause
