"""The BLAS library that SciPy carries, as LAPACK's routines call it: on one thread.

The VM splits work itself, and two pools of threads would fight for the cores: a system of 500
equations then takes several times as long.  How many threads the library uses is one number for the
whole process, and not ours: it is 1 from the first `enter` to the last `leave`, and what it was
before otherwise.  Who calls SciPy on another thread meanwhile gets the same numbers, on one thread.

Matrix products do not use it; theirs is `ops/products/cpu/gemm.py`.

Invariant: whoever holds LOCK is in neither Python nor LAPACK, so nobody waits long for it.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from flowvm.compiler.native import Intrinsic
from flowvm.private.scipy import openblas_threads
from flowvm.vm.machine.lang import compare_exchange, sched_yield, store_release, words_at

if TYPE_CHECKING:
    from flowvm.meta.arrays import Array
    from flowvm.private.code_types import (
        Builder,
        CodeContext,
        Signature,
        Type,
        TypingContext,
        Value,
    )


# words of the block at `threads()`
LOCK, USERS, BEFORE, GET, SET, WORDS = 0, 1, 2, 3, 4, 5
_INT = (1 << 31) - 1


@functools.cache
def threads() -> int:
    """The address of the block that `enter` and `leave` take; 0 where there is nothing to set."""
    functions = openblas_threads()
    return 0 if functions is None else int(_block(*functions).ctypes.data)


@functools.cache
def _block(get: int, put: int) -> Array:
    block = np.zeros(WORDS, np.int64)
    block[GET], block[SET] = get, put
    return block


def _call_python(address: int, arguments: tuple[int, ...]) -> int:
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(arguments))
    return int(kind(int(address))(*map(int, arguments)))


def _call_define() -> Callable[..., object]:
    from llvmlite import ir
    from numba import types

    def typing(typingctx: TypingContext, address: object, arguments: Type) -> object:
        count = len(arguments)

        def codegen(
            context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
        ) -> Value:
            word = ir.IntType(64)
            kind = ir.FunctionType(word, [word] * count).as_pointer()
            passed = [builder.extract_value(values[1], k) for k in range(count)]
            return builder.call(builder.inttoptr(values[0], kind), passed)

        return types.int64(types.int64, types.UniTuple(types.int64, count)), codegen

    return typing


# call(address, arguments): a tuple of integers and pointers.  A function without a result leaves
# anything in its place.
call = Intrinsic(_call_python, _call_define)


def enter(block: int) -> None:
    """Let the library run on one thread, until all threads that entered have left."""
    if block == 0:
        return
    words = words_at(block, WORDS)
    while not compare_exchange(words, LOCK, 0, 1):
        sched_yield()
    if words[USERS] == 0:
        words[BEFORE] = call(words[GET], ()) & _INT
        if words[BEFORE] != 1:
            call(words[SET], (1,))
    words[USERS] += 1
    store_release(words, LOCK, 0)


def leave(block: int) -> None:
    """The last to leave gives the library the threads that it had."""
    if block == 0:
        return
    words = words_at(block, WORDS)
    while not compare_exchange(words, LOCK, 0, 1):
        sched_yield()
    words[USERS] -= 1
    if words[USERS] == 0 and words[BEFORE] != 1:
        call(words[SET], (words[BEFORE],))
    store_release(words, LOCK, 0)
