"""The limits of the machine: float32 operations, bytes moved, and hand-overs between threads.

A kernel's share of these says how much there is left to gain.  All is measured by native loops that
do nothing else, and the best of several counts, by CPU time.
Vectors are as wide as those that kernels are compiled for (`FLOWVM_TARGET`).
"""

from __future__ import annotations

import ctypes
import functools
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flowvm.compiler import jit
from flowvm.compiler.native import Intrinsic
from flowvm.compiler.target import target
from flowvm.vm.machine.lang import address_of, load_acquire, store_release, words_at

__all__ = ["Level", "bytes_per_second", "flops_per_second", "hand_over", "levels", "vector_name"]

ROUNDS = 1 << 19
UNROLLED = 8  # vectors that a round of a memory loop moves
LARGEST = 1 << 27  # bytes that a measurement of memory touches at most
SECONDS = 0.1  # each measurement takes so long, at least
FLOAT = 4
LEVELS = ("L1", "L2", "L3")


def lanes() -> int:
    """float32 numbers of a vector register."""
    return 16 if target().has("avx512f") else 8 if target().has("avx") else 4


def vector_name() -> str:
    """The instructions that the loops are made of: "AVX-512"."""
    return {16: "AVX-512", 8: "AVX2", 4: "128 bits"}[lanes()]


def chains() -> int:
    """Multiply-adds in flight: more than latency times throughput of any core we know, and no more
    than its registers hold.
    """
    return 24 if lanes() == 16 else 12


def _vector() -> Any:
    from llvmlite import ir

    return ir.VectorType(ir.FloatType(), lanes())


def _loop(builder: Any, rounds: Any, carried: list[Any], body: Callable[..., list[Any]]) -> Any:
    """A loop of `rounds` rounds: `body(k, carried)` gives what the next one carries."""
    from llvmlite import ir

    before = builder.block
    loop, end = builder.append_basic_block("loop"), builder.append_basic_block("done")
    builder.branch(loop)
    builder.position_at_end(loop)
    k = builder.phi(ir.IntType(64))
    values = [builder.phi(value.type) for value in carried]
    more = body(k, values)
    after = builder.add(k, ir.IntType(64)(1))
    k.add_incoming(ir.IntType(64)(0), before)
    k.add_incoming(after, builder.block)
    for phi, first, following in zip(values, carried, more, strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(following, builder.block)
    builder.cbranch(builder.icmp_signed("<", after, rounds), loop, end)
    builder.position_at_end(end)
    return more


def _whole(builder: Any, vectors: list[Any]) -> Any:
    """An int64 that depends on all of the vectors."""
    from llvmlite import ir

    total = functools.reduce(builder.fadd, vectors)
    return builder.fptosi(builder.extract_element(total, ir.IntType(32)(0)), ir.IntType(64))


def _multiply_adds_define() -> Any:
    from llvmlite import ir
    from numba import types

    def typing(typingctx: Any, rounds: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            vector = _vector()
            kind = ir.FunctionType(vector, [vector] * 3)
            fma = ir.Function(builder.module, kind, f"llvm.fma.v{lanes()}f32")
            factor = ir.Constant(vector, [1.0000001] * lanes())
            first = [ir.Constant(vector, [float(i)] * lanes()) for i in range(chains())]
            more = _loop(
                builder, values[0], first,
                lambda k, carried: [builder.call(fma, [c, factor, factor]) for c in carried],
            )  # fmt: skip
            return _whole(builder, more)

        return types.int64(types.int64), codegen

    return typing


def _moves_define(copies: bool) -> Callable[[], Any]:
    """A loop over the vectors at an address, which are read and, if `copies`, stored at another."""

    def define() -> Any:
        from llvmlite import ir
        from numba import types

        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            vector = _vector()
            source, goal = (builder.inttoptr(v, vector.as_pointer()) for v in values[:2])

            def body(k: Any, carried: list[Any]) -> list[Any]:
                at = builder.mul(k, ir.IntType(64)(UNROLLED))
                sums = []
                for i, total in enumerate(carried):
                    place = builder.add(at, ir.IntType(64)(i))
                    value = builder.load(builder.gep(source, [place]), align=FLOAT * lanes())
                    if copies:
                        address = builder.gep(goal, [place])
                        builder.store(value, address, align=FLOAT * lanes())
                        sums.append(total)
                    else:
                        sums.append(builder.fadd(total, value))
                return sums

            zero = ir.Constant(vector, [0.0] * lanes())
            return _whole(builder, _loop(builder, values[2], [zero] * UNROLLED, body))

        def typing(typingctx: Any, source: Any, goal: Any, rounds: Any) -> Any:
            return types.int64(types.int64, types.int64, types.int64), codegen

        return typing

    return define


_multiply_adds = Intrinsic(lambda rounds: rounds, _multiply_adds_define)
_reads = Intrinsic(lambda source, goal, rounds: rounds, _moves_define(copies=False))
_copies = Intrinsic(lambda source, goal, rounds: rounds, _moves_define(copies=True))


def _spin(rounds: int) -> int:
    return int(_multiply_adds(rounds))


def _read(source: int, goal: int, rounds: int, repeats: int) -> int:
    total = 0
    for _ in range(repeats):
        total += _reads(source, goal, rounds)
    return total


def _copy(source: int, goal: int, rounds: int, repeats: int) -> int:
    total = 0
    for _ in range(repeats):
        total += _copies(source, goal, rounds)
    return total


def _native(function: Callable[..., int], count: int) -> Any:
    signature = f"int64({', '.join(['int64'] * count)})"
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * count)
    return kind(jit.native(function, signature))


def _rate(work: Sequence[Callable[[], Any]], amount: int) -> float:
    """`amount` for each call of each thread, a second of CPU time: the sum of the threads' best.

    A thread that waits for a core, which other programs have, takes none.
    """
    best = [0.0] * len(work)
    start = threading.Barrier(len(work))

    def repeat(k: int) -> None:
        work[k]()
        start.wait()
        until, calls = time.perf_counter() + SECONDS, 0
        while calls < 5 or time.perf_counter() < until:
            begun = time.thread_time()
            work[k]()
            calls += 1
            best[k] = max(best[k], amount / (time.thread_time() - begun))

    others = [threading.Thread(target=repeat, args=(k,)) for k in range(1, len(work))]
    for other in others:
        other.start()
    repeat(0)
    for other in others:
        other.join()
    return sum(best)


def flops_per_second(threads: int = 1) -> float:
    """float32 operations a second of so many cores, from multiply-adds in registers."""
    return _multiplied(threads)


@functools.cache
def _multiplied(threads: int) -> float:
    work = [functools.partial(_native(_spin, 1), ROUNDS)] * threads
    # a core may need a moment until it runs wide vectors at full speed
    return max(_rate(work, 2 * chains() * lanes() * ROUNDS) for _ in range(3))


@functools.cache
def _moved(power: int, threads: int) -> tuple[float, float]:
    """Bytes a second, read and copied, by loops over 2^power bytes a thread."""
    nbytes = 1 << power
    repeats = max(1, (1 << 21) >> power)
    rates = []
    for function, touched in ((_read, nbytes), (_copy, nbytes // 2)):
        native, work, blocks = _native(function, 4), [], []
        for _ in range(threads):
            block = np.ones(nbytes + 4096, np.uint8)
            blocks.append(block)
            start = -(-block.ctypes.data // 4096) * 4096
            rounds = touched // (FLOAT * lanes() * UNROLLED)
            # half a page from each other, or stores would wait for loads that look alike
            work.append(functools.partial(native, start, start + touched, rounds, repeats))
        rates.append(_rate(work, nbytes * repeats))
    return rates[0], rates[1]


def bytes_per_second(footprint: int, threads: int = 1) -> float:
    """Bytes a second that a loop moves which touches `footprint` bytes in all: the larger of those
    read by a loop that only reads, and those read and written by a copy.
    """
    share = max(1, int(footprint)) // threads
    return max(_moved(min(LARGEST.bit_length() - 1, max(13, share.bit_length() - 1)), threads))


class Level(NamedTuple):
    """A level of memory: bytes that it holds (0: unknown), and bytes a second read and copied."""

    name: str
    size: int
    read: float
    copied: float


def cache_sizes() -> dict[str, int]:
    """Bytes of the data caches that the first core reaches, as far as Linux says."""
    sizes = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        if (folder / "type").read_text().strip() != "Instruction":
            number, _, _ = (folder / "size").read_text().strip().partition("K")
            sizes["L" + (folder / "level").read_text().strip()] = int(number) << 10
    return sizes


def levels(threads: int = 1) -> list[Level]:
    """The caches and memory, each by loops over half of what it holds.

    A share of a third level that other machines use too is less than it says, so that is measured
    by eight times the second level.  Memory is measured by LARGEST bytes: with a larger third level
    some of them may lie there.
    """
    sizes = cache_sizes()
    rows = []
    for name in LEVELS:
        if name in sizes:
            some = sizes[name] // 2
            if name == "L3" and "L2" in sizes:
                some = min(some, 8 * sizes["L2"])
            rows.append(Level(name, sizes[name], *_moved(some.bit_length() - 1, threads)))
    return [*rows, Level("memory", 0, *_moved(LARGEST.bit_length() - 1, threads))]


def _rally(base: int, own: int, other: int, first: int, last: int, serves: int) -> int:
    """Play the numbers [first, last): set word `other` to each, and wait for it in word `own`, or
    the other way round.
    """
    words = words_at(base, 64)
    for k in range(first, last):
        if serves:
            store_release(words, other, k)
        while load_acquire(words, own) < k:
            pass
        if not serves:
            store_release(words, other, k)
    return 0


@functools.cache
def hand_over() -> float:
    """Seconds until another core sees a word that this one writes, both waiting in a loop.

    The best of short rallies: two threads on one core wait for each other's slices of time.
    """
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 6)
    play = kind(address_of(_rally, f"int64({', '.join(['int64'] * 6)})"))
    last, best = 2_000, float("inf")
    for _ in range(40):
        words = np.zeros(64, np.int64)  # words 16 and 40 lie in lines of their own
        base = words.ctypes.data
        other = threading.Thread(target=play, args=(base, 40, 16, 1, last, 0))
        other.start()
        play(base, 16, 40, 1, 2, 1)  # from now on both run
        started = time.perf_counter()
        play(base, 16, 40, 2, last, 1)
        best = min(best, (time.perf_counter() - started) / (2 * (last - 2)))
        other.join()
    return best
