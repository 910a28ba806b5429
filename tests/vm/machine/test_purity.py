"""The state machine and the allocator are pure, and compiled they are what they are in Python.

The first is what makes every other test here possible: no thread, lock, clock or sleep, so a test
can be the workers.  The second is what makes those tests say something about the VM that runs.
"""

from __future__ import annotations

import ast
import builtins
import ctypes
import inspect
import random

import numpy as np
import pytest

from flowvm.compiler import jit
from flowvm.compiler.native import Intrinsic
from flowvm.vm.machine import lang, machine, policy, recorder, texts
from flowvm.vm.machine.lang import store_release, words_at
from flowvm.vm.machine.machine import complete, dispatch, next_ready, ready_barrier, receive
from flowvm.vm.machine.words import (
    ACC,
    ARRAY,
    CTL,
    DEP,
    EDG,
    ENT,
    FRE,
    INS,
    KIND,
    QUE,
    REC,
    RING,
    SPL,
    STO,
    STR,
    name_of,
)
from flowvm.vm.workers import allocator
from flowvm.vm.workers.allocator import allocate, class_of, release
from flowvm.vm.workers.shell import step
from tests.vm.bench import Bench, random_program

PURE = {"Words", "load_acquire", "store_release", "load_word", "store_word"}
ATOMIC = {"fetch_add", "compare_exchange"}  # workers of several streams count into the same words
SYSTEM = {"advise_huge", "aligned_alloc", "free", "address_in", "call_address", "words_at"}
SYSTEM |= {"futex_wait", "sched_yield"}  # for another worker of the device, if memory is short


@pytest.mark.parametrize(
    ("module", "allowed"),
    [(machine, PURE), (policy, PURE), (recorder, PURE), (allocator, PURE | ATOMIC | SYSTEM)],
    ids=["machine", "policy", "recorder", "allocator"],
)
def test_the_source_reaches_nothing_but_the_array(module, allowed):
    """No import but the layout and some primitives: there is no clock, lock or sleep to use."""
    tree = ast.parse(inspect.getsource(module))
    known = set(dir(builtins))
    for node in ast.walk(tree):
        assert not isinstance(node, ast.Import), f"line {node.lineno}: import"
        if isinstance(node, ast.ImportFrom):
            names = {alias.name for alias in node.names}
            if node.module == "flowvm.vm.machine.lang":
                assert names <= allowed, f"line {node.lineno}: {names - allowed}"
            else:
                pure = ("words", "device_words", "policy", "recorder")
                allowed_modules = {"__future__", *(f"flowvm.vm.machine.{name}" for name in pure)}
                if module is allocator:
                    allowed_modules.add("flowvm.vm.workers.zones")  # the memory check
                assert node.module in allowed_modules, f"imports {node.module}"
            known |= names
        if isinstance(node, ast.FunctionDef):
            known |= {node.name} | {argument.arg for argument in node.args.args}
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            known.add(node.id)
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    assert used <= known, f"uses {used - known}"
    forbidden = {"open", "print", "input", "exec", "eval", "__import__", "globals", "locals"}
    assert not used & forbidden
    assert not any(
        isinstance(n, ast.Global | ast.Nonlocal | ast.Await | ast.With) for n in ast.walk(tree)
    )


def test_every_primitive_has_both_meanings():
    """Each primitive of `lang` is Python here and LLVM's text in `texts`, under one name."""
    primitives = {name: value for name, value in vars(lang).items() if type(value) is Intrinsic}
    assert len(primitives) > 10
    assert all(value.text is getattr(texts, name) for name, value in primitives.items())


# --- compiled and uncompiled --------------------------------------------------------------------


def run_script(base: int, script: int, count: int) -> int:
    """Drive the machine: a word of the script is a move, and a stream above the low 3 bits."""
    m = words_at(base, ARRAY.WORDS)
    moves = words_at(script, count)
    total = 0
    for k in range(count):
        move, stream = moves[k] & 7, moves[k] >> 3
        at = STR.AT + stream * STR.WORDS
        m[CTL.NOW] += m[CTL.LEVEL]  # a clock for the recorder
        if move == 0:
            total += step(m)
        elif move == 1:
            receive(m)
        elif move == 2:
            slot = next_ready(m)
            if slot >= 0:
                dispatch(m, slot)
                if m[INS.AT + slot * INS.WORDS + INS.KIND] == KIND.TOUCH:
                    complete(m, slot)
        elif move == 3:
            slot = ready_barrier(m)
            if slot >= 0:
                complete(m, slot)
        elif move == 5:
            if m[at + STR.COLLECTED] < m[at + STR.DONE]:
                collected = m[at + STR.COLLECTED]
                m[at + STR.COLLECTED] = collected + 1
                complete(m, m[QUE.AT + stream * RING.SLOTS + (collected & RING.SLOT_MASK)])
        elif m[at + STR.DONE] < m[at + STR.TAIL]:  # the stream's worker finishes one
            store_release(m, at + STR.DONE, m[at + STR.DONE] + 1)
    return total


def compiled(function, arguments):
    """The C function made of `function`, through ctypes."""
    signature = f"int64({', '.join(['int64'] * arguments)})"
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *([ctypes.c_int64] * arguments))
    return kind(jit.native(function, signature))


REGIONS = {
    "CTL": (CTL.AT, CTL.WORDS),
    "RING": (RING.AT, RING.SLOTS * RING.WORDS),
    "INS": (INS.AT, RING.SLOTS * INS.WORDS),
    "STR": (STR.AT, STR.LENGTH * STR.WORDS),
    "QUE": (QUE.AT, 8 * RING.SLOTS),
    "DEP": (DEP.AT, 4096),
    "STO": (STO.AT, 4096),
    "ACC": (ACC.AT, 64_000),
    "EDG": (EDG.AT, 64_000),
    "FRE": (FRE.AT, 4096),
    "REC": (REC.AT, 1000 * REC.WORDS),
    "SPL": (SPL.AT, 4096),
}


@pytest.mark.parametrize("level", [0, 1])
def test_the_compiled_machine_equals_the_python_one(level, seed):
    """Word for word, after each of several random scripts over one random program.

    While something is recorded, `step` would look at the clock: the script does what it does.
    """
    choice = (5, 5, 1, 1, 2, 2, 3, 4, 4, 4) if level else (0, 1, 1, 2, 2, 3, 4, 4, 4)
    native, rng = compiled(run_script, 3), random.Random(seed)
    benches = [Bench(), Bench()]
    for bench in benches:
        bench.m[CTL.LEVEL] = level
    for ins in random_program(rng, 600, 9, 4):
        benches[0].issue(ins)
    entries = (len(benches[0].entries) + 1) * ENT.WORDS
    for at, size in (
        REGIONS["RING"],
        (ENT.AT, entries),
    ):  # the same records, operands out of line too
        benches[1].array[at : at + size] = benches[0].array[at : at + size]
    for _ in range(6):
        moves = [rng.choice(choice) | rng.randrange(4) << 3 for _ in range(400)]
        script = np.array(moves, np.int64)
        results = [
            function(bench.array.ctypes.data, script.ctypes.data, len(script))
            for function, bench in zip((run_script, native), benches, strict=True)
        ]
        assert results[0] == results[1]
        for name, (at, size) in REGIONS.items():
            python, machine_code = (bench.array[at : at + size] for bench in benches)
            different = np.flatnonzero(python != machine_code)
            assert not different.size, (
                f"{name}: {[name_of(at + i) for i in different[:10].tolist()]} differ"
            )
    assert benches[0].m[CTL.N_DONE] > 100


def run_allocations(base: int, script: int, count: int, blocks: int) -> int:
    """Word k of the script: the size to allocate into blocks[k], or -1 - j to release blocks[j]."""
    m = words_at(base, ARRAY.WORDS)
    moves, actual = words_at(script, 2 * count), words_at(blocks, count)
    for k in range(count):
        stream, size = moves[2 * k], moves[2 * k + 1]
        if size >= 0:
            actual[k] = allocate(m, stream, size)
        else:
            release(m, stream, actual[-1 - size], class_of(moves[2 * (-1 - size) + 1]))
    return 0


def test_the_compiled_allocator_equals_the_python_one(seed):
    """The two allocators have the same accounting and pattern of reuse: equal blocks are equal in
    both.
    """
    native, rng, live, moves = compiled(run_allocations, 4), random.Random(seed), [], []
    for k in range(300):
        if live and rng.random() < 0.45:
            j = live.pop(rng.randrange(len(live)))
            moves.append((moves[j][0], -1 - j))
        else:
            moves.append((rng.randrange(3), rng.choice((8, 100, 5000, 70_000, 3 << 20))))
            live.append(k)
    script = np.array(moves, np.int64)
    outcomes = []
    for function in (run_allocations, native):
        m, blocks = Bench().array, np.zeros(len(moves), np.int64)
        function(m.ctypes.data, script.ctypes.data, len(moves), blocks.ctypes.data)
        _, pattern = np.unique(blocks, return_inverse=True)
        first_seen = {int(b): k for k, b in reversed(list(enumerate(pattern)))}
        words = [
            int(m[i]) for i in (CTL.LIVE_BYTES, CTL.PEAK_BYTES, CTL.RESERVED_BYTES, CTL.N_TRIMMED)
        ]
        outcomes.append(([first_seen[int(b)] for b in pattern], words))
        for j in live:
            release(m, moves[j][0], int(blocks[j]), class_of(moves[j][1]))
        for stream in range(3):
            allocator.trim(m, stream)
    assert outcomes[0] == outcomes[1]
