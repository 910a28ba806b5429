"""Functions of words translated without Numba mean what they mean in Python."""

from __future__ import annotations

import ctypes
import struct
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest

from flowvm.compiler import jit, words
from flowvm.errors import CompileError
from flowvm.ops.declare.cpu import expressions
from flowvm.ops.declare.cpu.moves import load_word, store_word
from flowvm.vm.machine.lang import words_at

SIGNATURE = "int64(int64, int64)"
LIMIT, MODULE = 7, [1]


class Places:
    """Constants, as those of the VM's words."""

    FIRST = 2
    LAST = 5


def whole(a: int, b: int) -> int:
    return a // b * 3 + a % b


def both(a: int, b: int) -> tuple[int, int]:
    return a // 3, min(a, b) - max(b, -5)


def conditions(a: int, b: int) -> int:
    """A condition of each kind."""
    count = 0
    if (a < b and not (a == 2 or b != 4)) or a > 30:
        count += 1
    if not a:
        count += 10
    elif a >= LIMIT:
        count += 100
    else:
        count -= 1 if b > 0 and a else 5
    return count * 2 + (a <= b)


def loops(a: int, b: int) -> int:
    total = last = k = 0
    for k in range(a % 9):
        if k == 5:
            break
        for j in range(b % 7, -3, -2):
            if j == 1:
                continue
            total += j * k
    for i in range(2, a % 11):
        k += i
        last = i
    while total < 40:
        total += 7
        if total == 21:
            pass
        if total > 30 and last:
            return -total
    return total + last * 1000 + k


def bits(a: int, b: int) -> int:
    first, second = both(a, b)
    first, second = second, first
    return ((first << 3) ^ (second & 12)) | (a >> 2) - -b


def named(a: int, b: int = 4, c: int = 100) -> int:
    return a - 2 * b + c


def numbers(a: int, b: int) -> int:
    """Cover `in`, values that conditions choose, defaults, names, counts and steps."""
    total = named(a) + named(b, c=7) * Places.LAST
    if a in (1, b, Places.FIRST):
        total += 1
    if b not in (3, a):
        total += 2
    total = (a and b) + (a or 9) + (not a) + total
    total += ~a ^ (1 if 0 <= a < b <= 40 else -3) + bool(b)
    for k in range(0, 10, 3 if a > b else 2):
        total += k
    for k in range(10, 0, -2 if a > b else -3):
        total -= k * k
    return total + max(a, b, 3, total) + abs(min(b, 2, a))


def reals(a: int, b: int) -> int:
    x = float(a) / b
    y = x * 2 - 0.5 if x > b or a > 3 else -x + 1.25
    z = max(x, y)
    return (y >= x) + 2 * (z != x) + 4 * (y == 1.25 or not x) + 8 * bool(x - y)


def factorial(a: int, b: int) -> int:
    return 1 if abs(a) < 2 else (abs(a) % 15) * factorial(abs(a) % 15 - 1, b)


def early(a: int, b: int) -> int:
    if a > b:
        return int(a)
    for _ in range(3):
        if whole(a, 5) > 2:
            return b
    return 0


FUNCTIONS = (whole, conditions, loops, bits, early, numbers, reals, factorial)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_a_function_means_what_it_does_in_python(rng, function):
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    compiled = kind(
        jit.load(lambda: jit.Lowered(*words.lowered(function, SIGNATURE)), function.__name__)
    )
    for a, b in [(0, 1), (-1, 2), (7, -7), *rng.integers(-50, 50, (300, 2)).tolist()]:
        if b:
            assert compiled(a, b) == function(a, b), (a, b)


def test_the_low_bits_and_nothing_are_results():
    def low(a: int) -> int:
        return a + 1

    def stores(address: int, value: int) -> None:
        store_word(address, 1, value + load_word(address, 0))

    one = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64)
    lowered = jit.Lowered(*words.lowered(low, "int32(int64)"))
    assert one(jit.load(lambda: lowered, "low", "low"))((5 << 32) + 3) == 4
    memory = np.array([30, 0], np.int64)
    two = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)
    lowered = jit.Lowered(*words.lowered(stores, "void(int64, int64)"))
    two(jit.load(lambda: lowered, "stores", "stores"))(memory.ctypes.data, 12)
    assert memory.tolist() == [30, 42]


def test_arrays_of_words_are_read_and_written_in_place():
    def swap(m, a: int, b: int) -> tuple[int, int]:
        m[a], m[b] = m[b], m[a]
        m[a + b] += 5
        return m[a], m[b]

    def change(address: int, count: int) -> int:
        m = words_at(address, count)
        first, second = swap(m, 0, 1)
        m[3] = m[3 + first - first] * 2
        return first * 1000 + second

    memory = np.array([30, 7, 0, 11], np.int64)
    call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    lowered = jit.Lowered(*words.lowered(change, SIGNATURE))
    assert call(jit.load(lambda: lowered, "change", "change"))(memory.ctypes.data, 4) == 7035
    assert memory.tolist() == [7, 35, 0, 22]


FACTOR = 0x2545F4914F6CDD1D


def hashed(a: int, b: int) -> int:
    number = (a ^ b) * FACTOR
    return (number ^ (number >> 29)) * FACTOR + number


def wrapped(number: int) -> int:
    """Return the signed number of the low 64 bits."""
    return (number & (1 << 64) - 1) - (number >> 63 & 1) * (1 << 64)


def test_integers_wrap_at_64_bits():
    lowered = jit.Lowered(*words.lowered(hashed, SIGNATURE))
    call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    compiled = call(jit.load(lambda: lowered, "hashed", "hashed"))
    assert not any("nsw" in str(module) for module in lowered.modules)
    for a, b in ((1, 2), (-1, 5), (1 << 62, 77), (123456789123456789, -3)):
        number = wrapped((a ^ b) * FACTOR)
        assert compiled(a, b) == wrapped(wrapped((number ^ (number >> 29)) * FACTOR) + number)


class Sizes(NamedTuple):
    rows: int
    scale: float
    columns: int


class Place(NamedTuple):
    x: int
    y: int


def moved(at: Place, by: int) -> Place:
    return Place(at.y, at.x + by)


def placed(p: Sizes, a: int) -> int:
    first, second = (p.rows, a) if a > 2 else (p.columns, -a)
    at = moved(Place(first, second), 3)
    return at.x * 100 + at.y + (1000 if p.scale * 2 > a else 0)


def test_records_are_read_where_they_lie_and_several_words_are_passed():
    fields = tuple(zip(Sizes._fields, "ifi", strict=True))
    lowered = jit.Lowered(*words.lowered_for(placed, "i64", [words.Record(fields), words.INT]))
    call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
    compiled = call(jit.load(lambda: lowered, "placed", "placed"))
    sizes = Sizes(4, 2.5, 7)
    for a in (-3, 2, 3, 5, 6):
        assert compiled(struct.pack("qdq", *sizes), a) == placed(sizes, a)


def real(a: int) -> float:
    return a // 2.0


def listed(a: int) -> int:
    return MODULE[a]


def mixed(a: int) -> int | tuple[int, int]:
    if a:
        return a, a
    return 0


def keeping(a: int) -> int:
    kept = [a]
    return len(kept)


def unknown(a: int) -> int:
    return nowhere(a)  # noqa: F821 - what is refused


def changing(a: int) -> int:
    a = a + 0.5
    return 1


def several(a: int) -> int:
    return both(a, a)


REFUSED = (real, listed, mixed, keeping, unknown, changing, several)


@pytest.mark.parametrize("function", REFUSED, ids=lambda f: f.__name__)
def test_what_is_no_code_of_words_is_refused_with_its_line(function):
    line = function.__code__.co_firstlineno
    with pytest.raises(CompileError, match=r"test_words\.py:(\d+): .* cannot be") as error:
        words.lowered(function, "int64(int64)")
    assert line <= int(str(error.value).split(":")[1]) <= line + 3


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("expr", ["x", "x + y", "y - x", "x * x"])
def test_plain_sums_and_products_need_no_numba(monkeypatch, expr, dtype):
    monkeypatch.setattr(expressions, "lower", None)
    scope = expressions.scope_of(expr)
    found = expressions.lowered_expression(expr, ("x", "y"), (dtype, dtype), scope)
    assert found.result.name == dtype


@pytest.mark.parametrize(
    ("expr", "compute"),
    [("x / y", ("float32",) * 2), ("x + 1", ("float32",) * 2), ("x + y", ("uint64",) * 2),
     ("x + y", ("float32", "float64")), ("x * y", ("int32",) * 2), ("x + y + x", ("int64",) * 2)],
)  # fmt: skip
def test_all_other_expressions_are_numbas(monkeypatch, expr, compute):
    asked = []
    monkeypatch.setattr(expressions, "lower", lambda function, kinds: asked.append(kinds))
    expressions.lowered_expression(expr, ("x", "y"), compute, expressions.scope_of(expr))
    assert len(asked) == 1


FIRST = """
import sys
import flowvm as flow
print(flow.ones(2, 2) + 1)
assert "numba" not in sys.modules
"""


def test_a_first_answer_comes_without_numba(tmp_path, monkeypatch):
    monkeypatch.setenv("FLOWVM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("FLOWVM_CHECK", raising=False)
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "2., 2." in done.stdout
