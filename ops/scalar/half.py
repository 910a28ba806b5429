"""The 16-bit floats as LLVM code: their form in memory, and their reading and writing by kernels.

Kernels compute in float32: `widened` is exact, `narrowed` rounds once, to nearest even; a NaN stays
one and is quiet.  float16 is LLVM's half, for which processors have instructions.  bfloat16 is the
upper half of a float32, taken by integer operations: those are vectors on every processor, where
LLVM's own type becomes a call of a library for each number.

`widened` and `narrowed` work on values and on vectors of an IRBuilder, `widened_text` and
`narrowed_text` on LLVM text, by `new`, which names what a line computes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowvm.private.code_types import Builder, Value


STORED = {"float16": "half", "bfloat16": "i16"}  # LLVM's types in memory
_EVEN, _QUIET = 0x7FFF, 0x40  # what rounds to nearest, less the last bit kept; the bit of quiet NaN


def stored_type(dtype: str) -> Any:
    """The type in memory."""
    from llvmlite import ir

    return ir.HalfType() if dtype == "float16" else ir.IntType(16)


def _like(value: Any, kind: Any) -> Any:
    """Return `kind`, or a vector of it with as many lanes as `value`."""
    from llvmlite import ir

    known = isinstance(value.type, ir.VectorType)
    return ir.VectorType(kind, value.type.count) if known else kind


def _number(value: Any, kind: Any, number: int) -> Any:
    from llvmlite import ir

    whole = _like(value, kind)
    return ir.Constant(whole, number if whole is kind else [number] * value.type.count)


def widened(builder: Builder, value: Value, dtype: str) -> Value:
    """The float32 of a value as stored, or of its bits."""
    from llvmlite import ir

    if dtype == "float16":
        half = builder.bitcast(value, _like(value, ir.HalfType()))
        return builder.fpext(half, _like(value, ir.FloatType()))
    word = ir.IntType(32)
    high = builder.shl(builder.zext(value, _like(value, word)), _number(value, word, 16))
    return builder.bitcast(high, _like(value, ir.FloatType()))


def narrowed(builder: Builder, value: Value, dtype: str) -> Value:
    """A float32 as it is stored."""
    from llvmlite import ir

    if dtype == "float16":
        return builder.fptrunc(value, _like(value, ir.HalfType()))
    word = ir.IntType(32)
    bits = builder.bitcast(value, _like(value, word))
    high = builder.lshr(bits, _number(value, word, 16))
    last = builder.and_(high, _number(value, word, 1))
    nearest = builder.add(bits, builder.add(last, _number(value, word, _EVEN)))
    nearest = builder.lshr(nearest, _number(value, word, 16))
    quiet = builder.or_(high, _number(value, word, _QUIET))
    chosen = builder.select(builder.fcmp_unordered("uno", value, value), quiet, nearest)
    return builder.trunc(chosen, _like(value, ir.IntType(16)))


def widened_text(new: Callable[[str], str], value: str, dtype: str) -> str:
    """`widened`, as text."""
    if dtype == "float16":
        return new(f"fpext half {value} to float")
    high = new(f"shl i32 {new(f'zext i16 {value} to i32')}, 16")
    return new(f"bitcast i32 {high} to float")


def narrowed_text(new: Callable[[str], str], value: str, dtype: str) -> str:
    """`narrowed`, as text."""
    if dtype == "float16":
        return new(f"fptrunc float {value} to half")
    bits = new(f"bitcast float {value} to i32")
    high = new(f"lshr i32 {bits}, 16")
    even = new(f"add i32 {new(f'and i32 {high}, 1')}, {_EVEN}")
    nearest = new(f"lshr i32 {new(f'add i32 {bits}, {even}')}, 16")
    quiet = new(f"or i32 {high}, {_QUIET}")
    isnan = new(f"fcmp uno float {value}, {value}")
    chosen = new(f"select i1 {isnan}, i32 {quiet}, i32 {nearest}")
    return new(f"trunc i32 {chosen} to i16")
