"""Native code: functions that may be compiled, and the cache of a warm start without Numba."""

import ctypes
import gc
import hashlib
import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

from flowvm.compiler import jit, record
from flowvm.compiler.native import Intrinsic, Overloaded, intrinsic
from flowvm.errors import CompileError

FACTOR = 3


def call(address, *args, result=ctypes.c_int64):
    return ctypes.CFUNCTYPE(result, *([ctypes.c_int64] * len(args)))(address)(*args)


def triple(x):
    return x * FACTOR


def six_times_plus(x, y):
    return triple(x) + triple(x) + y


def double_first(out, x):
    return 2.0 * out + x


def raising(x):
    if x > 10:
        raise ValueError("too large")
    return x


def allocating(x):
    return np.zeros(x).size


def _define_load():
    from llvmlite import ir
    from numba import types

    def typing(typingctx, address):
        def codegen(context, builder, signature, values):
            return builder.load(builder.inttoptr(values[0], ir.IntType(64).as_pointer()))

        return types.int64(types.int64), codegen

    return typing


@intrinsic(_define_load)
def load_word(address):
    return ctypes.c_int64.from_address(address).value


def _define_getpid():
    from numba import types

    return types.ExternalFunction("getpid", types.int32())


getpid = Intrinsic(os.getpid, _define_getpid)


def word_and_pid(address):
    return load_word(address) + getpid()


def _twice(x):
    return x * 2


def _half(x):
    return x * 0.5


pick = Overloaded("pick", {"int64": _twice, "float64": _half})


def picks(x):
    return pick(x) + int(pick(float(x)))


@pytest.fixture
def cache(tmp_path):
    jit.set_cache_dir(tmp_path)
    yield tmp_path
    jit.set_cache_dir(None)


def test_plain_functions_and_their_globals_compile(cache):
    address = jit.native(six_times_plus, "int64(int64, int64)", facts="globals")
    assert call(address, 7, 1) == six_times_plus(7, 1)


def test_intrinsics_and_c_functions(cache):
    word = ctypes.c_int64(41)
    address = jit.native(word_and_pid, "int64(int64)", facts="intrinsics")
    assert call(address, ctypes.addressof(word)) == 41 + os.getpid()
    assert word_and_pid(ctypes.addressof(word)) == 41 + os.getpid()


def test_overloaded_picks_by_dtype_compiled_and_not(cache):
    address = jit.native(picks, "int64(int64)", facts="overloaded")
    assert call(address, 8) == picks(8) == 20


def test_floats_void_and_failure(cache):
    address = jit.native(double_first, "float64(float64, float64)", facts="floats")
    function = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double, ctypes.c_double)(address)
    assert function(1.5, 0.25) == 3.25
    raises = jit.native(raising, "int64(int64)", facts="raising")
    assert [call(raises, 3), call(raises, 11)] == [3, -1]


def test_what_needs_the_runtime_is_refused_by_name(cache):
    with pytest.raises(CompileError, match="NRT_"):
        jit.native(allocating, "int64(int64)", facts="allocating")
    with pytest.raises(CompileError, match="untypable"):
        jit.native(untypable, "int64(int64)", facts="untypable")


def untypable(x):
    return x.nothing


def test_uncompiled_mode_still_compiles(cache, monkeypatch):
    from numba.core import config

    monkeypatch.setattr(config, "DISABLE_JIT", 1)
    assert call(jit.native(triple, "int64(int64)", facts="disabled"), 5) == 15
    assert config.DISABLE_JIT == 1


def test_numba_users_see_no_change(cache):
    import numba

    jit.native(triple, "int64(int64)", facts="others")
    with pytest.raises(numba.TypingError):
        numba.njit(six_times_plus)(1, 2)


def test_threads_get_one_address(cache):
    results = []
    threads = [
        threading.Thread(
            target=lambda: results.append(jit.native(triple, "int64(int64)", facts="t"))
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(results)) == 1
    assert len(list(cache.glob("*.o"))) == 1


# --- the cache on disk, seen by other processes -------------------------------------------------

PROGRAM = """
import ctypes, sys
from flowvm.compiler import jit
from flowvm.compiler.objects import is_possible

def helper(x):
    return x * 3

def function(x):
    return helper(x) + 1

before = "numba" in sys.modules
address = jit.native(function, "int64(int64)")
assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)(5) == 16
counts = jit.stats()
llvm = is_possible() and "llvmlite" in sys.modules
print(counts.compiled, counts.loaded, int(before or "numba" in sys.modules), int(llvm))
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(PROGRAM))
    environment = {**os.environ, "FLOWVM_CACHE_DIR": str(tmp_path / "cache")}

    def start(**changes):
        return subprocess.Popen(
            [sys.executable, str(path)],
            env={**environment, **changes},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(**changes):
        out, err = start(**changes).communicate()
        assert not err
        *counts, run.llvm = (int(n) for n in out.split())
        return tuple(counts)

    run.start, run.path, run.cache = start, path, tmp_path / "cache"
    return run


COMPILED, LOADED = (1, 0, 1), (0, 1, 0)


def test_a_warm_start_does_not_import_numba_and_a_changed_source_is_compiled_again(program):
    assert program() == COMPILED
    assert program() == LOADED
    assert not program.llvm, "files of this form are loaded without LLVM"
    program.path.write_text(program.path.read_text().replace("x * 3", "3 * x"))
    assert program() == COMPILED
    assert program() == LOADED


def test_a_damaged_entry_is_compiled_again(program):
    assert program() == COMPILED
    (entry,) = program.cache.glob("*.o")
    whole = entry.read_bytes()
    body = whole[40:].replace(b'"imports": []', b'"imports": ["no_such_function"]')
    assert body != whole[40:]
    middle = len(whole) // 2
    damaged = {
        "truncated": whole[:-9],
        "flipped": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
        "empty": b"",
        "garbage": b"x" * 5000,
        # well formed, but it needs what is not here
        "foreign": whole[:8] + hashlib.sha256(body).digest() + body,
    }
    for what, data in damaged.items():
        entry.write_bytes(data)
        assert program() == COMPILED, what
        new = entry.read_bytes()
        assert new[:8] + hashlib.sha256(new[40:]).digest() == new[:40], what
        assert new[40:] != body, what
    assert program() == LOADED


def test_two_processes_at_once(program):
    running = [program.start() for _ in range(2)]
    results = [p.communicate() for p in running]
    assert all(not err and int(out.split()[0]) + int(out.split()[1]) == 1 for out, err in results)
    files = [p for p in program.cache.iterdir() if p.name != record.FILE]
    assert sorted({p.suffix for p in files} - {".cpu"}) == [".o"]
    assert len([p for p in files if p.suffix == ".o"]) == 1


def test_an_unwritable_cache_keeps_code_in_memory(program, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    blocked = str(tmp_path / "file" / "cache")
    assert program(FLOWVM_CACHE_DIR=blocked) == COMPILED


def test_without_compiling_python_can_step_through(program):
    assert program(NUMBA_DISABLE_JIT="1") == COMPILED


def test_the_cache_is_kept_below_its_limit_oldest_first(tmp_path):
    for k in range(20):
        path = tmp_path / f"{k}.o"
        path.write_bytes(bytes(100))
        os.utime(path, (k, k))
    (tmp_path / "notes.txt").write_bytes(bytes(5000))
    assert jit.prune(tmp_path, 2000) == 0
    assert jit.prune(tmp_path, 1600) == 8  # 20 entries of 100 bytes down to 3/4 of the limit
    assert sorted(int(p.stem) for p in tmp_path.glob("*.o")) == list(range(8, 20))
    assert (tmp_path / "notes.txt").exists()
    assert jit.prune(tmp_path / "missing", 1) == 0


def test_reading_an_entry_marks_it_as_used(cache):
    signature, key = "int64(int64)", "marks"
    first = jit.native(triple, signature, facts=key)
    (entry,) = cache.glob("*.o")
    os.utime(entry, (1, 1))
    jit._addresses.clear()
    again = jit.native(triple, signature, facts=key)
    assert call(first, 4) == call(again, 4) == 12
    assert entry.stat().st_mtime > 1


class Heap(ctypes.Structure):
    """The answer of glibc's mallinfo2: sizes in bytes."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
            "fordblks", "keepcost",
        )
    )  # fmt: skip


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="another C library")
def test_what_compiling_took_is_given_back(cache):
    """LLVM's pass managers stayed, and every program with them: half a MB for each kernel."""

    def used():
        gc.collect()
        return library.mallinfo2().uordblks

    def compiled(number):
        space = {"helper": helper}
        exec(f"def program(x): return helper(x + {number}) * {number}", space)
        jit.native(space["program"], "float64(float64)")

    def helper(x):
        return x * 0.5 if x > 3 else x - 1

    library = ctypes.CDLL(None)
    library.mallinfo2.restype = Heap
    for number in range(5):
        compiled(number)
    before = used()
    for number in range(5, 25):
        compiled(number)
    each = (used() - before) / 20
    assert each < 40_000
