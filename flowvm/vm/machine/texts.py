"""The primitives of `flowvm.vm.machine.lang` as LLVM's text, for code without Numba.

Each takes the names of its result and of its arguments (`flowvm.compiler.native.Intrinsic`).
"""

from __future__ import annotations

import platform

from flowvm.vm.machine.clocks import ticks_are_tsc
from flowvm.vm.machine.device_words import CALL

_FUTEX = {"x86_64": 202, "aarch64": 98}[platform.machine()]
_WAIT_PRIVATE, _WAKE_PRIVATE = 128, 129
_MONOTONIC = 1
_MADV_HUGEPAGE = 14


def c_call(
    name: str, returns: str, takes: tuple[str, ...], result: str, values: tuple[str, ...]
) -> str:
    """A call of a C function with words, which its parameters and its result are made of."""
    passed, lines = [], [f"declare {returns} @{name}({', '.join(takes)})"]
    for k, (kind, value) in enumerate(zip(takes, values, strict=True)):
        if kind == "i32":
            lines.append(f"{result}.a{k} = trunc i64 {value} to i32")
            value = f"{result}.a{k}"
        passed.append(f"{kind} {value}")
    call = f"call {returns} @{name}({', '.join(passed)})"
    if returns == "void":
        return "\n".join([*lines, call])
    if returns == "i32":
        return "\n".join([*lines, f"{result}.s = {call}", f"{result} = sext i32 {result}.s to i64"])
    return "\n".join([*lines, f"{result} = {call}"])


def load_acquire(result: str, m: str, i: str) -> str:
    return f"""
{result}.at = getelementptr i64, ptr {m}, i64 {i}
{result} = load atomic i64, ptr {result}.at acquire, align 8
"""


def store_release(result: str, m: str, i: str, value: str) -> str:
    return f"""
{result}.at = getelementptr i64, ptr {m}, i64 {i}
store atomic i64 {value}, ptr {result}.at release, align 8
"""


def fetch_add(result: str, m: str, i: str, value: str) -> str:
    return f"""
{result}.at = getelementptr i64, ptr {m}, i64 {i}
{result} = atomicrmw add ptr {result}.at, i64 {value} seq_cst
"""


def compare_exchange(result: str, m: str, i: str, expected: str, value: str) -> str:
    return f"""
{result}.at = getelementptr i64, ptr {m}, i64 {i}
{result}.pair = cmpxchg ptr {result}.at, i64 {expected}, i64 {value} seq_cst seq_cst
{result}.done = extractvalue {{i64, i1}} {result}.pair, 1
{result} = zext i1 {result}.done to i64
"""


def call_kernel(result: str, address: str, *values: str) -> str:
    return f"""
{result}.f = inttoptr i64 {address} to ptr
{result}.s = call i32 {result}.f({", ".join(f"i64 {value}" for value in values)})
{result} = sext i32 {result}.s to i64
"""


def call_address(result: str, address: str, arguments: str) -> str:
    lines = [f"{result}.p = inttoptr i64 {arguments} to ptr"]
    for k in range(CALL.WORDS):
        lines.append(f"{result}.p{k} = getelementptr i64, ptr {result}.p, i64 {k}")
        lines.append(f"{result}.a{k} = load i64, ptr {result}.p{k}, align 8")
    passed = [f"{result}.a{k}" for k in range(CALL.WORDS)]
    return "\n".join(lines) + call_kernel(result, address, *passed)


def words_at(result: str, address: str, count: str) -> str:
    return f"{result} = inttoptr i64 {address} to ptr"


def load_word(result: str, address: str) -> str:
    return f"""
{result}.p = inttoptr i64 {address} to ptr
{result} = load i64, ptr {result}.p, align 8
"""


def store_word(result: str, address: str, value: str) -> str:
    return f"""
{result}.p = inttoptr i64 {address} to ptr
store i64 {value}, ptr {result}.p, align 8
"""


def address_in(result: str, m: str, i: str) -> str:
    return f"""
{result}.at = getelementptr i64, ptr {m}, i64 {i}
{result} = ptrtoint ptr {result}.at to i64
"""


def aligned_alloc(result: str, alignment: str, size: str) -> str:
    return c_call("aligned_alloc", "i64", ("i64", "i64"), result, (alignment, size))


def advise_huge(result: str, address: str, size: str) -> str:
    values = address, size, str(_MADV_HUGEPAGE)
    return c_call("madvise", "i32", ("i64", "i64", "i32"), result, values)


def free(result: str, address: str) -> str:
    return c_call("free", "void", ("i64",), result, (address,))


def copy_bytes(result: str, target: str, source: str, count: str) -> str:
    return c_call("memcpy", "i64", ("i64", "i64", "i64"), result, (target, source, count))


def clock(result: str) -> str:
    return f"""
declare i32 @clock_gettime(i32, ptr)
{result}.pair = alloca [2 x i64], align 8
{result}.done = call i32 @clock_gettime(i32 {_MONOTONIC}, ptr {result}.pair)
{result}.seconds = load i64, ptr {result}.pair, align 8
{result}.second = getelementptr i64, ptr {result}.pair, i64 1
{result}.rest = load i64, ptr {result}.second, align 8
{result}.whole = mul i64 {result}.seconds, 1000000000
{result} = add i64 {result}.whole, {result}.rest
"""


def ticks(result: str) -> str:
    if not ticks_are_tsc():
        return clock(result)
    return f"""
declare i64 @llvm.readcyclecounter()
{result} = call i64 @llvm.readcyclecounter()
"""


def ticks_after(result: str) -> str:
    if not ticks_are_tsc():
        return clock(result)  # which the system orders
    return f"""
declare void @llvm.x86.sse2.lfence()
call void @llvm.x86.sse2.lfence()
{ticks(result)}
"""


def sched_yield(result: str) -> str:
    return c_call("sched_yield", "i32", (), result, ())


def futex_wait(result: str, m: str, i: str, value: str, microseconds: str) -> str:
    return f"""
{result}.pair = alloca [2 x i64], align 8
{result}.seconds = sdiv i64 {microseconds}, 1000000
store i64 {result}.seconds, ptr {result}.pair, align 8
{result}.rest = srem i64 {microseconds}, 1000000
{result}.nanoseconds = mul i64 {result}.rest, 1000
{result}.second = getelementptr i64, ptr {result}.pair, i64 1
store i64 {result}.nanoseconds, ptr {result}.second, align 8
{result}.timeout = ptrtoint ptr {result}.pair to i64
{_futex(result, m, i, _WAIT_PRIVATE, value, f"{result}.timeout")}
"""


def futex_wake(result: str, m: str, i: str, count: str) -> str:
    return _futex(result, m, i, _WAKE_PRIVATE, count, "0")


def _futex(result: str, m: str, i: str, operation: int, value: str, timeout: str) -> str:
    passed = str(_FUTEX), f"{result}.word", str(operation), value, timeout, "0", "0"
    return f"""
{result}.at = getelementptr i64, ptr {m}, i64 {i}
{result}.word = ptrtoint ptr {result}.at to i64
{c_call("syscall", "i64", ("i64",) * 7, result, passed)}
"""
