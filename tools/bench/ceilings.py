"""The limits of the machine for one core: bytes moved and float32 operations a second.

A kernel's share of these says how much there is left to gain.  Memory is measured as a copy of the
same number of bytes, which for a small one is a copy in cache.
"""

from __future__ import annotations

import functools
import statistics
import time
from typing import Any

import numpy as np

from flowvm.compiler import jit
from flowvm.compiler.native import Intrinsic

__all__ = ["bytes_per_second", "flops_per_second"]

CHAINS = 24  # multiply-adds in flight: more than latency times throughput of any core we know
LANES = 16
ROUNDS = 1 << 20


def _multiply_adds_define() -> Any:
    from llvmlite import ir
    from numba import types

    vector = ir.VectorType(ir.FloatType(), LANES)

    def typing(typingctx: Any, rounds: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            kind = ir.FunctionType(vector, [vector] * 3)
            fma = ir.Function(builder.module, kind, f"llvm.fma.v{LANES}f32")
            before = builder.block
            loop, done = builder.append_basic_block("loop"), builder.append_basic_block("done")
            builder.branch(loop)
            builder.position_at_end(loop)
            k = builder.phi(ir.IntType(64))
            chains = [builder.phi(vector) for _ in range(CHAINS)]
            factor = ir.Constant(vector, [1.0000001] * LANES)
            more = [builder.call(fma, [c, factor, factor]) for c in chains]
            after = builder.add(k, ir.IntType(64)(1))
            k.add_incoming(ir.IntType(64)(0), before)
            k.add_incoming(after, loop)
            for i, (c, m) in enumerate(zip(chains, more, strict=True)):
                c.add_incoming(ir.Constant(vector, [float(i)] * LANES), before)
                c.add_incoming(m, loop)
            builder.cbranch(builder.icmp_signed("<", after, values[0]), loop, done)
            builder.position_at_end(done)
            total = functools.reduce(builder.fadd, more)
            first = builder.extract_element(total, ir.IntType(32)(0))
            return builder.fptosi(first, ir.IntType(64))

        return types.int64(types.int64), codegen

    return typing


_multiply_adds = Intrinsic(lambda rounds: rounds, _multiply_adds_define)


def _spin(rounds: int) -> int:
    return int(_multiply_adds(rounds))


@functools.cache
def flops_per_second() -> float:
    """float32 operations a second of one core, from a loop of multiply-adds in registers."""
    import ctypes

    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(jit.native(_spin, "int64(int64)"))
    function(ROUNDS)
    seconds = []
    for _ in range(9):
        start = time.perf_counter()
        function(ROUNDS)
        seconds.append(time.perf_counter() - start)
    return 2.0 * CHAINS * LANES * ROUNDS / statistics.median(seconds)


@functools.cache
def _copy(power: int) -> float:
    source, target = np.ones(1 << power, np.uint8), np.empty(1 << power, np.uint8)
    repeats = max(1, (1 << 24) >> power)
    seconds = []
    for _ in range(7):
        start = time.perf_counter()
        for _ in range(repeats):
            np.copyto(target, source)
        seconds.append((time.perf_counter() - start) / repeats)
    return 2.0 * (1 << power) / statistics.median(seconds)


def bytes_per_second(footprint: int) -> float:
    """Bytes read and written a second by a copy that touches `footprint` bytes in all."""
    return _copy(min(28, max(12, int(footprint // 2).bit_length() - 1)))
