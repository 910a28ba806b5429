"""Elements moved between two arrangements in memory, for copies, joins and the staging of kernels.

`move` writes `rows` by `columns` elements of 1, 2, 4, 8 or 16 bytes from anywhere to anywhere,
strides in bytes, of either sign, or 0.  It picks the way that the strides allow: whole rows as
bytes, one row repeated, square blocks transposed in vector registers, else a loop along the longer
dimension that LLVM vectorizes where the strides are small.

Invariants
- Nothing outside the given elements is read or written: a short row is two moves that overlap.
- The two sides are the same elements in the same places, or share no memory.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from flowvm.compiler.native import Intrinsic
from flowvm.private.numba import NUMBA

if TYPE_CHECKING:
    from flowvm.private.code_types import (
        Builder,
        CodeContext,
        Generator,
        Signature,
        Type,
        TypingContext,
        Value,
        ValueType,
    )


SQUARE = {1: 16, 2: 16, 4: 16, 8: 8}  # rows of a block that is transposed in registers
BLOCK = 256  # bytes that a loop of long rows copies in one turn: several vectors
LONG = 4096  # bytes: a row that is not worth repeating from its own copies
AHEAD = 512  # bytes: how far to prefetch where a loop reads more than the processor guesses

# --- intrinsics: memory by address ---------------------------------------------------------------


def _pointer(builder: Builder, address: Value, kind: ValueType, index: Value = None) -> Value:
    pointer = builder.inttoptr(address, kind.as_pointer())
    return pointer if index is None else builder.gep(pointer, [index])


def _prefetch(builder: Builder, address: Value) -> None:
    """Ask for the cache line at `address`, which need not be memory of ours."""
    from llvmlite import ir

    byte, number = ir.IntType(8), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), number, number, number])
    function = NUMBA.cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    builder.call(function, [_pointer(builder, address, byte), number(0), number(3), number(1)])


def _prefetch_define() -> Callable[..., object]:
    from numba import types

    def typing(typingctx: TypingContext, address: Type) -> tuple[Signature, Generator]:
        def codegen(
            context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
        ) -> Value:
            _prefetch(builder, values[0])
            return context.get_dummy_value()

        return types.void(types.int64), codegen

    return typing


def _load_define(size: int, single: bool = False) -> Callable[..., object]:
    """load(address, index): load an element as an int64.

    `single`: never as part of a vector, since a gather is slower than as many loads.
    """
    from llvmlite import ir
    from numba import types

    def typing(typingctx: TypingContext, address: Type, index: Type) -> tuple[Signature, Generator]:
        def codegen(
            context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
        ) -> Value:
            kind = ir.IntType(8 * size)
            place = _pointer(builder, values[0], kind, values[1])
            if single:
                value = builder.load_atomic(place, "monotonic", size)
            else:
                value = builder.load(place, align=1)
            return builder.zext(value, ir.IntType(64)) if size < 8 else value

        return types.int64(types.int64, types.int64), codegen

    return typing


def _store_define(size: int) -> Callable[..., object]:
    """store(address, index, value): the low bytes of an int64."""
    from llvmlite import ir
    from numba import types

    def typing(
        typingctx: TypingContext, address: Type, index: Type, value: Type
    ) -> tuple[Signature, Generator]:
        def codegen(
            context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
        ) -> Value:
            kind = ir.IntType(8 * size)
            value = builder.trunc(values[2], kind) if size < 8 else values[2]
            builder.store(value, _pointer(builder, values[0], kind, values[1]), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), codegen

    return typing


def _load_text(result: str, address: str, index: str) -> str:
    return f"""
{result}.p = inttoptr i64 {address} to ptr
{result}.at = getelementptr i64, ptr {result}.p, i64 {index}
{result} = load i64, ptr {result}.at, align 1
"""


def _store_text(result: str, address: str, index: str, value: str) -> str:
    return f"""
{result}.p = inttoptr i64 {address} to ptr
{result}.at = getelementptr i64, ptr {result}.p, i64 {index}
store i64 {value}, ptr {result}.at, align 1
"""


def _two_ends_define(size: int) -> Callable[..., object]:
    """two_ends(to, source, bytes): `size` to 2 * `size` bytes, as two vectors that may overlap."""
    from llvmlite import ir
    from numba import types

    def typing(
        typingctx: TypingContext, to: Type, source: Type, count: Type
    ) -> tuple[Signature, Generator]:
        def codegen(
            context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
        ) -> Value:
            to, source, count = values
            word = ir.IntType(8 * size) if size <= 8 else ir.VectorType(ir.IntType(8), size)
            last = builder.sub(count, ir.Constant(count.type, size))
            ends = [(to, source), (builder.add(to, last), builder.add(source, last))]
            loaded = [builder.load(_pointer(builder, s, word), align=1) for _, s in ends]
            for (t, _), value in zip(ends, loaded, strict=True):
                builder.store(value, _pointer(builder, t, word), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), codegen

    return typing


def _block_define() -> Callable[..., object]:
    """block(to, source): BLOCK bytes."""
    from llvmlite import ir
    from numba import types

    def typing(typingctx: TypingContext, to: Type, source: Type) -> tuple[Signature, Generator]:
        def codegen(
            context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
        ) -> Value:
            vector = ir.VectorType(ir.IntType(8), BLOCK)
            value = builder.load(_pointer(builder, values[1], vector), align=1)
            builder.store(value, _pointer(builder, values[0], vector), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    return typing


def _turn_define(size: int) -> Callable[..., object]:
    """turn(to, to_row, source, source_row): the transpose of a square block of unit strides, by
    exchanging the off-diagonal quarters of ever smaller squares (Eklundh, "A Fast Computer Method
    for Matrix Transposing", 1972).
    """
    from llvmlite import ir
    from numba import types

    n = SQUARE[size]

    def typing(
        typingctx: TypingContext, to: Type, to_row: Type, source: Type, source_row: Type
    ) -> tuple[Signature, Generator]:
        def codegen(
            context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
        ) -> Value:
            vector, word = ir.VectorType(ir.IntType(8 * size), n), ir.IntType(64)

            def line(start: object, step: object, i: int) -> Value:
                address = builder.add(start, builder.mul(step, ir.Constant(word, i)))
                return _pointer(builder, address, vector)

            rows = [builder.load(line(values[2], values[3], i), align=1) for i in range(n)]
            distance = n // 2
            while distance:
                for i in range(n):
                    if i & distance == 0:
                        pair = rows[i], rows[i + distance]
                        for half in (0, distance):
                            mask = ir.Constant(
                                ir.VectorType(ir.IntType(32), n), _picked(n, distance, half)
                            )
                            rows[i + half] = builder.shuffle_vector(*pair, mask)
                distance //= 2
            for i, row in enumerate(rows):
                builder.store(row, line(values[0], values[1], i), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64, types.int64), codegen

    return typing


def _picked(n: int, distance: int, half: int) -> list[int]:
    """Return a shuffle of two vectors: alternating lanes whose bit `distance` is as in `half`."""
    return [(i & ~distance) + half + (n if i & distance else 0) for i in range(n)]


def _pick_define(size: int, stride: int) -> Callable[..., object]:
    """pick(to, source): load SQUARE elements that lie `stride` apart, and the ones in between.

    LLVM would gather them one by one.
    """
    from llvmlite import ir
    from numba import types

    n = SQUARE[size]

    def typing(typingctx: TypingContext, to: Type, source: Type) -> tuple[Signature, Generator]:
        def codegen(
            context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
        ) -> Value:
            element = ir.IntType(8 * size)
            wide, vector = ir.VectorType(element, n * stride), ir.VectorType(element, n)
            value = builder.load(_pointer(builder, values[1], wide), align=1)
            mask = ir.Constant(ir.VectorType(ir.IntType(32), n), [i * stride for i in range(n)])
            for at in range(AHEAD, AHEAD + n * stride * size, 64):
                _prefetch(builder, builder.add(values[1], ir.Constant(values[1].type, at)))
            picked = builder.shuffle_vector(value, ir.Constant(wide, ir.Undefined), mask)
            builder.store(picked, _pointer(builder, values[0], vector), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    return typing


def _bytes_at(address: int, size: int) -> bytes:
    return ctypes.string_at(address, size)


def _load_python(size: int) -> Callable[[Any, Any], int]:
    return lambda address, index: int.from_bytes(_bytes_at(address + size * index, size), "little")


def _store_python(size: int) -> Callable[[int, int, int], None]:
    def store(address: int, index: int, value: int) -> None:
        data = (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")
        ctypes.memmove(address + size * index, data, size)

    return store


def _turn_python(size: int) -> Callable[[int, int, int, int], None]:
    def turn(to: int, to_row: int, source: int, source_row: int) -> None:
        n = SQUARE[size]
        lines = [_bytes_at(source + i * source_row, n * size) for i in range(n)]
        for i in range(n):
            ctypes.memmove(
                to + i * to_row, b"".join(k[i * size : (i + 1) * size] for k in lines), n * size
            )

    return turn


def _two_ends_python(to: int, source: int, count: int) -> None:
    ctypes.memmove(to, source, count)


def _pick_python(size: int, stride: int) -> Callable[[int, int], None]:
    def pick(to: int, source: int) -> None:
        for i in range(SQUARE[size]):
            ctypes.memmove(to + i * size, source + i * size * stride, size)

    return pick


def _picks(size: int) -> tuple[Intrinsic, Intrinsic, Intrinsic]:
    def intrinsic(stride: int) -> Intrinsic:
        return Intrinsic(_pick_python(size, stride), lambda: _pick_define(size, stride))

    return intrinsic(2), intrinsic(3), intrinsic(4)


def _sized(
    python: Any, define: Any, size: int, text: Callable[..., str] | None = None
) -> Intrinsic:
    return Intrinsic(python(size), lambda: define(size), text=text)


_prefetched = Intrinsic(lambda address: None, _prefetch_define)
_load1, _store1 = _sized(_load_python, _load_define, 1), _sized(_store_python, _store_define, 1)
_load2, _store2 = _sized(_load_python, _load_define, 2), _sized(_store_python, _store_define, 2)
_load4, _store4 = _sized(_load_python, _load_define, 4), _sized(_store_python, _store_define, 4)
load_word, store_word = (
    _sized(_load_python, _load_define, 8, _load_text),
    _sized(_store_python, _store_define, 8, _store_text),
)
_ends2, _ends4, _ends8 = (
    Intrinsic(_two_ends_python, functools.partial(_two_ends_define, size)) for size in (2, 4, 8)
)
_ends16, _ends32, _ends64 = (
    Intrinsic(_two_ends_python, functools.partial(_two_ends_define, size)) for size in (16, 32, 64)
)
_block = Intrinsic(lambda to, source: _two_ends_python(to, source, BLOCK), _block_define)
_turn1, _turn2 = _sized(_turn_python, _turn_define, 1), _sized(_turn_python, _turn_define, 2)
_turn4, _turn8 = _sized(_turn_python, _turn_define, 4), _sized(_turn_python, _turn_define, 8)

# --- one line -----------------------------------------------------------------------------------


def _liner(
    size: int, load: Intrinsic, store: Intrinsic
) -> Callable[[int, int, int, int, int], None]:
    """line(to, d, source, s, n): n elements, strides in elements."""
    pick2, pick3, pick4 = _picks(size)
    one = Intrinsic(_load_python(size), lambda: _load_define(size, single=True))
    lanes = SQUARE[size]

    def line(to: int, d: int, source: int, s: int, n: int) -> None:
        place = 0
        if d == 1 and 2 <= s <= 4:
            # what lies behind the last element is not read: a vector ends before another element
            while place + lanes < n:
                t, f = to + place * size, source + place * s * size
                if s == 2:
                    pick2(t, f)
                elif s == 3:
                    pick3(t, f)
                else:
                    pick4(t, f)
                place += lanes
        elif d == 1 and s == 0:
            value = load(source, 0)
            for i in range(n):
                store(to, i, value)
            place = n
        elif d == 1 and s == -1:
            for i in range(n):
                store(to, i, load(source, -i))
            place = n
        for i in range(place, n):
            store(to, d * i, one(source, s * i))

    return line


_line1, _line2 = _liner(1, _load1, _store1), _liner(2, _load2, _store2)
_line4, _line8 = _liner(4, _load4, _store4), _liner(8, load_word, store_word)


def _lines(
    size: int, to: int, d_row: int, d_col: int, source: int, s_row: int, s_col: int,
    rows: int, columns: int,
) -> None:  # fmt: skip
    """Row by row."""
    d, s = d_col // size, s_col // size
    for r in range(rows):
        t, f = to + r * d_row, source + r * s_row
        if s < 0 and r + 1 < rows:  # read backwards: not where a processor looks for the next row
            for at in range(0, AHEAD, 64):
                _prefetched(f + s_row - at)
        if size == 4:
            _line4(t, d, f, s, columns)
        elif size == 8:
            _line8(t, d, f, s, columns)
        elif size == 2:
            _line2(t, d, f, s, columns)
        elif size == 16:  # halves
            _line8(t, 2 * d, f, 2 * s, columns)
            _line8(t + 8, 2 * d, f + 8, 2 * s, columns)
        else:
            _line1(t, d, f, s, columns)


# --- rows of bytes ------------------------------------------------------------------------------


def _bytes(to: int, source: int, count: int) -> None:
    """Copy 64 bytes or more.  The C library's memcpy is slower for blocks larger than a cache."""
    place = 0
    while count - place >= BLOCK:
        _block(to + place, source + place)
        place += BLOCK
    while count - place >= 128:
        _ends64(to + place, source + place, 64)
        place += 64
    if count - place >= 64:
        _ends64(to + place, source + place, count - place)
    elif count > place:  # the last 64, some of them again
        _ends64(to + count - 64, source + count - 64, 64)


def _rows(to: int, d_row: int, source: int, s_row: int, rows: int, count: int) -> None:
    """`rows` rows of `count` bytes each, which lie side by side."""
    if count >= 64:
        for r in range(rows):
            _bytes(to + r * d_row, source + r * s_row, count)
    elif count >= 32:
        for r in range(rows):
            _ends32(to + r * d_row, source + r * s_row, count)
    elif count >= 16:
        for r in range(rows):
            _ends16(to + r * d_row, source + r * s_row, count)
    elif count >= 8:
        for r in range(rows):
            _ends8(to + r * d_row, source + r * s_row, count)
    elif count >= 4:
        for r in range(rows):
            _ends4(to + r * d_row, source + r * s_row, count)
    elif count >= 2:
        for r in range(rows):
            _ends2(to + r * d_row, source + r * s_row, count)
    else:
        for r in range(rows):
            _store1(to + r * d_row, 0, _load1(source + r * s_row, 0))


def _doubled(to: int, row: int, rows: int) -> None:
    """The first row repeated in the others, which lie behind it without gaps."""
    filled, whole = row, row * rows
    while filled < whole:
        more = min(filled, whole - filled)
        _rows(to + filled, 0, to, 0, 1, more)
        filled += more


# --- blocks -------------------------------------------------------------------------------------


def _squares(
    size: int, to: int, d_row: int, source: int, s_col: int, rows: int, columns: int
) -> None:
    """The transpose of a block whose sides are multiples of SQUARE."""
    n = 8 if size == 8 else 16
    for j in range(0, columns, n):
        for i in range(0, rows, n):
            t, f = to + i * d_row + j * size, source + i * size + j * s_col
            if size == 4:
                _turn4(t, d_row, f, s_col)
            elif size == 8:
                _turn8(t, d_row, f, s_col)
            elif size == 2:
                _turn2(t, d_row, f, s_col)
            else:
                _turn1(t, d_row, f, s_col)


def move(
    size: int, to: int, d_row: int, d_col: int, source: int, s_row: int, s_col: int,
    rows: int, columns: int,
) -> None:  # fmt: skip
    """Element [r, c] from source + r * s_row + c * s_col to to + r * d_row + c * d_col."""
    n = 8 if size == 8 else 16
    square = rows >= n and columns >= n and s_row != 0 and s_col != 0 and size < 16
    if columns == 1 and rows > 1:
        swap = True
    elif d_col == size and (s_col == size or (abs(s_row) == size and square)):
        swap = False
    elif d_row == size and (s_row == size or (abs(s_col) == size and square)):
        swap = True
    else:  # the long dimension is the inner loop; of two long ones that in which `to` is dense
        swap = rows > columns if columns < 8 else (d_row == size and d_col != size and rows >= 8)
    if swap:
        rows, columns = columns, rows
        d_row, d_col, s_row, s_col = d_col, d_row, s_col, s_row
    if s_row == -size and square:  # the last row first: then the source goes forwards
        source, to = source + (rows - 1) * s_row, to + (rows - 1) * d_row
        s_row, d_row = size, -d_row
    if d_col == size and s_col == size:
        count = columns * size
        if d_row == count and s_row == count:
            _rows(to, 0, source, 0, 1, count * rows)
        elif s_row == 0 and d_row == count and count < LONG:
            _rows(to, 0, source, 0, 1, count)
            _doubled(to, count, rows)
        else:
            _rows(to, d_row, source, s_row, rows, count)
    elif d_col == size and s_row == size and square:
        r, c = rows // n * n, columns // n * n
        _squares(size, to, d_row, source, s_col, r, c)
        if c < columns:
            _lines(
                size, to + c * d_col, d_col, d_row, source + c * s_col, s_col, s_row,
                columns - c, r,
            )  # fmt: skip
        if r < rows:
            _lines(
                size, to + r * d_row, d_row, d_col, source + r * s_row, s_row, s_col,
                rows - r, columns,
            )  # fmt: skip
    else:
        _lines(size, to, d_row, d_col, source, s_row, s_col, rows, columns)
