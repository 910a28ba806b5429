"""The primitives of `flowvm.vm.machine.lang` as LLVM code.

Imports Numba, so it is imported only to compile.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import TYPE_CHECKING

from llvmlite import ir
from numba import types

from flowvm.private.numba import NUMBA
from flowvm.vm.machine.clocks import ticks_are_tsc
from flowvm.vm.machine.device_words import CALL

if TYPE_CHECKING:
    from flowvm.private.code_types import (
        Builder,
        CodeContext,
        Generator,
        Signature,
        Type,
        TypingContext,
        Value,
    )


cgutils = NUMBA.cgutils
WORDS = types.Array(types.int64, 1, "C")
I32, I64 = ir.IntType(32), ir.IntType(64)
_FUTEX = {"x86_64": 202, "aarch64": 98}[platform.machine()]
_WAIT_PRIVATE, _WAKE_PRIVATE = 128, 129
_MONOTONIC = 1
_MADV_HUGEPAGE = 14


def _word(context: CodeContext, builder: Builder, array: object, index: object) -> object:
    data = context.make_array(WORDS)(context, builder, array).data
    return builder.gep(data, [index])


def load_acquire(typingctx: TypingContext, m: Type, i: Type) -> tuple[Signature, Generator]:
    def codegen(
        context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
    ) -> Value:
        return builder.load_atomic(_word(context, builder, *values), "acquire", 8)

    return types.int64(WORDS, types.int64), codegen


def store_release(
    typingctx: TypingContext, m: Type, i: Type, value: Type
) -> tuple[Signature, Generator]:
    def codegen(
        context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
    ) -> Value:
        m, i, value = values
        builder.store_atomic(value, _word(context, builder, m, i), "release", 8)
        return context.get_dummy_value()

    return types.void(WORDS, types.int64, types.int64), codegen


def fetch_add(
    typingctx: TypingContext, m: Type, i: Type, value: Type
) -> tuple[Signature, Generator]:
    def codegen(
        context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
    ) -> Value:
        m, i, value = values
        return builder.atomic_rmw("add", _word(context, builder, m, i), value, "seq_cst")

    return types.int64(WORDS, types.int64, types.int64), codegen


def compare_exchange(
    typingctx: TypingContext, m: Type, i: Type, expected: Type, value: Type
) -> tuple[Signature, Generator]:
    def codegen(
        context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
    ) -> Value:
        m, i, expected, value = values
        word = _word(context, builder, m, i)
        pair = builder.cmpxchg(word, expected, value, "seq_cst", "seq_cst")
        return builder.extract_value(pair, 1)

    return types.boolean(WORDS, types.int64, types.int64, types.int64), codegen


def call_kernel(
    typingctx: TypingContext,
    address: Type,
    args: Type,
    layout: Type,
    lo: Type,
    hi: Type,
    arena: Type,
) -> tuple[Signature, Generator]:
    def codegen(
        context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
    ) -> Value:
        kernel = ir.FunctionType(I32, [I64] * 5).as_pointer()
        return builder.sext(builder.call(builder.inttoptr(values[0], kernel), values[1:]), I64)

    return types.int64(*([types.int64] * 6)), codegen


def call_address(
    typingctx: TypingContext, address: Type, arguments: Type
) -> tuple[Signature, Generator]:
    def codegen(
        context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
    ) -> Value:
        function = ir.FunctionType(I32, [I64] * CALL.WORDS).as_pointer()
        words = builder.inttoptr(values[1], I64.as_pointer())
        passed = [builder.load(builder.gep(words, [I64(k)])) for k in range(CALL.WORDS)]
        return builder.sext(builder.call(builder.inttoptr(values[0], function), passed), I64)

    return types.int64(types.int64, types.int64), codegen


def words_at(typingctx: TypingContext, address: Type, count: Type) -> tuple[Signature, Generator]:
    def codegen(
        context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
    ) -> Value:
        address, count = values
        array = context.make_array(WORDS)(context, builder)
        eight = context.get_constant(types.intp, 8)
        NUMBA.populate_array(
            array,
            data=builder.inttoptr(address, I64.as_pointer()),
            shape=cgutils.pack_array(builder, [count]),
            strides=cgutils.pack_array(builder, [eight]),
            itemsize=eight,
            meminfo=None,
        )
        return array._getvalue()

    return WORDS(types.int64, types.int64), codegen


def load_word(typingctx: TypingContext, address: Type) -> tuple[Signature, Generator]:
    def codegen(
        context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
    ) -> Value:
        return builder.load(builder.inttoptr(values[0], I64.as_pointer()))

    return types.int64(types.int64), codegen


def store_word(typingctx: TypingContext, address: Type, value: Type) -> tuple[Signature, Generator]:
    def codegen(
        context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
    ) -> Value:
        builder.store(values[1], builder.inttoptr(values[0], I64.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


def address_in(typingctx: TypingContext, m: Type, i: Type) -> tuple[Signature, Generator]:
    def codegen(
        context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
    ) -> Value:
        return builder.ptrtoint(_word(context, builder, *values), I64)

    return types.int64(WORDS, types.int64), codegen


def clock(typingctx: TypingContext) -> tuple[Signature, Generator]:
    def codegen(
        context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
    ) -> Value:
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(I32, [I32, I64.as_pointer()]), "clock_gettime"
        )
        pair = cgutils.alloca_once(builder, I64, size=2)
        builder.call(function, [I32(_MONOTONIC), pair])
        seconds = builder.load(pair)
        rest = builder.load(builder.gep(pair, [I64(1)]))
        return builder.add(builder.mul(seconds, I64(1_000_000_000)), rest)

    return types.int64(), codegen


def ticks(typingctx: TypingContext) -> tuple[Signature, Generator]:
    if not ticks_are_tsc():
        return clock(typingctx)

    def codegen(
        context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
    ) -> Value:
        kind = ir.FunctionType(I64, [])
        counter = cgutils.get_or_insert_function(builder.module, kind, "llvm.readcyclecounter")
        return builder.call(counter, [])

    return types.int64(), codegen


def ticks_after(typingctx: TypingContext) -> tuple[Signature, Generator]:
    if not ticks_are_tsc():
        return clock(typingctx)  # which the system orders
    signature, read = ticks(typingctx)

    def codegen(
        context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
    ) -> Value:
        kind = ir.FunctionType(ir.VoidType(), [])
        fence = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.lfence")
        builder.call(fence, [])
        return read(context, builder, signature, values)

    return signature, codegen


def futex_wait(
    typingctx: TypingContext, m: Type, i: Type, value: Type, microseconds: Type
) -> tuple[Signature, Generator]:
    def codegen(
        context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
    ) -> Value:
        m, i, value, microseconds = values
        pair = cgutils.alloca_once(builder, I64, size=2)
        million = I64(1_000_000)
        builder.store(builder.sdiv(microseconds, million), pair)
        nanoseconds = builder.mul(builder.srem(microseconds, million), I64(1000))
        builder.store(nanoseconds, builder.gep(pair, [I64(1)]))
        address = builder.ptrtoint(_word(context, builder, m, i), I64)
        timeout = builder.ptrtoint(pair, I64)
        return _futex(builder, address, _WAIT_PRIVATE, value, timeout)

    return types.int64(WORDS, types.int64, types.int64, types.int64), codegen


def futex_wake(
    typingctx: TypingContext, m: Type, i: Type, count: Type
) -> tuple[Signature, Generator]:
    def codegen(
        context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
    ) -> Value:
        address = builder.ptrtoint(_word(context, builder, *values[:2]), I64)
        return _futex(builder, address, _WAKE_PRIVATE, values[2], I64(0))

    return types.int64(WORDS, types.int64, types.int64), codegen


def _futex(
    builder: Builder, address: Value, operation: int, value: Value, timeout: object
) -> object:
    syscall = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(I64, [I64] * 7), "syscall"
    )
    zero = I64(0)
    return builder.call(syscall, [I64(_FUTEX), address, I64(operation), value, timeout, zero, zero])


def advise_huge(typingctx: TypingContext, address: Type, size: Type) -> tuple[Signature, Generator]:
    def codegen(
        context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
    ) -> Value:
        kind = ir.FunctionType(I32, [I64, I64, I32])
        madvise = cgutils.get_or_insert_function(builder.module, kind, "madvise")
        answer = builder.call(madvise, [*values, I32(_MADV_HUGEPAGE)])
        return builder.sext(answer, I64)

    return types.int64(types.int64, types.int64), codegen


aligned_alloc = types.ExternalFunction("aligned_alloc", types.int64(types.int64, types.int64))
free = types.ExternalFunction("free", types.void(types.int64))
sched_yield = types.ExternalFunction("sched_yield", types.int32())
copy_bytes = types.ExternalFunction("memcpy", types.int64(types.int64, types.int64, types.int64))
