"""Operations on floats that Python cannot express: LLVM's own functions, and a number's bits.

Each is an `Intrinsic` and has a Python twin.  All vectorize.  `bits` and `from_bits`
give and take integers of Python's kind; what is done to them in between is narrowed to 32 bits
where the number has 32, if no bit above those can matter: adding, subtracting, shifting left,
masking, and shifting the bits themselves right.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.compiler.native import Intrinsic
from flowvm.errors import CompileError
from flowvm.loading.lazy import lazy
from flowvm.meta.arrays import Number
from flowvm.meta.dtype import dtype_named
from flowvm.ops.scalar.half import narrowed, widened

if TYPE_CHECKING:
    import fractions

    from flowvm.private.code_types import (
        Builder,
        CodeContext,
        Generator,
        Signature,
        Type,
        TypingContext,
        Value,
    )
else:
    fractions = lazy("fractions")


def float_intrinsic(
    build: Callable[..., object],
    python: Callable[..., object],
    arity: int,
    cuda: Callable[..., object] | None = None,
) -> Intrinsic:
    """An intrinsic on `arity` floats of one dtype, made by `build(builder, values, bits)`.

    `cuda` is such a function for CUDA kernels, where `build` is not for them.
    """

    def define() -> Any:
        return _define_float(build, arity)

    def define_cuda() -> Any:
        return _define_float(cuda or build, arity)

    def build_words(builder: Builder, values: list[Value], dtypes: list[str]) -> tuple[Value, str]:
        if len(set(dtypes)) > 1:
            raise CompileError(f"{python.__name__} of {', '.join(dtypes)}: give one dtype")
        return build(builder, values, 32 if dtypes[0] == "float32" else 64), dtypes[0]

    return Intrinsic(python, define, define if cuda is None else define_cuda, build=build_words)


def _define_float(build: Callable[..., object], arity: int) -> Any:
    from numba import types

    def typed(kind: Any) -> tuple[Any, Callable[..., Any]]:
        def codegen(
            context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
        ) -> Value:
            return build(builder, list(values), 32 if kind == types.float32 else 64)

        return kind(*([kind] * arity)), codegen

    def one(typingctx: TypingContext, x: Type) -> tuple[Signature, Generator]:
        return typed(x)

    def two(typingctx: TypingContext, x: Type, y: Type) -> tuple[Signature, Generator]:
        return typed(x)

    def three(typingctx: TypingContext, x: Type, y: Type, z: Type) -> tuple[Signature, Generator]:
        return typed(x)

    return (one, two, three)[arity - 1]


def declared(builder: Builder, name: str, values: list[Value]) -> Value:
    """A call of the function `name`, which takes and gives numbers of one dtype."""
    from llvmlite import ir

    kinds = [v.type for v in values]
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(kinds[0], kinds), name)
    return builder.call(function, values)


def llvm_intrinsic(
    name: str,
    python: Callable[..., object],
    arity: int = 1,
    cuda: Callable[..., object] | None = None,
) -> Intrinsic:
    """The function that LLVM calls llvm.<name>.f32 and .f64."""
    return float_intrinsic(
        lambda builder, values, bits: declared(builder, f"llvm.{name}.f{bits}", values),
        python,
        arity,
        cuda,
    )


def _copysign_bits(builder: Builder, values: list[Value], bits: int) -> Value:
    """Emit copysign by integers: NVVM has no such function."""
    from llvmlite import ir

    word, sign = ir.IntType(bits), 1 << (bits - 1)
    size, signed = (builder.bitcast(v, word) for v in values)
    joined = builder.or_(builder.and_(size, word(sign - 1)), builder.and_(signed, word(sign)))
    return builder.bitcast(joined, values[0].type)


def _fma(x: Number, y: Number, z: Number) -> Number:
    """x * y + z, rounded once: for float32 by way of float64, which is that but for rare ties."""
    if isinstance(x, np.float32):
        return np.float32(float(x) * float(y) + float(z))
    exact = fractions.Fraction
    try:
        total = exact(float(x)) * exact(float(y)) + exact(float(z))
        if total:
            return type(x)(total)
    except (OverflowError, ValueError):  # an infinity or NaN, which nothing needs to round
        pass
    return x * y + z  # a zero has a sign here


fabs = llvm_intrinsic("fabs", abs)
floor = llvm_intrinsic("floor", np.floor)
ceil = llvm_intrinsic("ceil", np.ceil)
trunc = llvm_intrinsic("trunc", np.trunc)
rint = llvm_intrinsic("rint", np.rint)
sqrt = llvm_intrinsic("sqrt", np.sqrt)
copysign = llvm_intrinsic("copysign", np.copysign, 2, _copysign_bits)
fma = llvm_intrinsic("fma", _fma, 3)


def _held_as(name: str) -> Intrinsic:
    """x as the dtype `name`, a reduced float, would hold it."""

    def build(builder: Builder, values: list[Value], bits: int) -> Value:
        from llvmlite import ir

        single = values[0] if bits == 32 else builder.fptrunc(values[0], ir.FloatType())
        number = widened(builder, narrowed(builder, single, name), name)
        return number if bits == 32 else builder.fpext(number, values[0].type)

    def python(x: Number) -> Number:
        dtype = dtype_named(name)
        return type(x)(dtype.loaded(dtype.stored(np.array(np.float32(x))))[()])

    return float_intrinsic(build, python, 1)


half = _held_as("float16")
bfloat = _held_as("bfloat16")


# --- bits -------------------------------------------------------------------------------------


def _bits_python(x: Number) -> int:
    code = "<f<i" if isinstance(x, np.float32) else "<d<q"
    return int(struct.unpack(code[2:], struct.pack(code[:2], float(x)))[0])


def _define_bits() -> Callable[..., object]:
    from llvmlite import ir
    from numba import types

    def bits_of(typingctx: TypingContext, x: Type) -> tuple[Signature, Generator]:
        def codegen(
            context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
        ) -> Value:
            narrow = x == types.float32
            word = builder.bitcast(values[0], ir.IntType(32 if narrow else 64))
            return builder.sext(word, ir.IntType(64)) if narrow else word

        return types.int64(x), codegen

    return bits_of


def _from_bits_python(word: int, like: Number) -> Number:
    if isinstance(like, np.float32):
        return np.uint32(word & 0xFFFFFFFF).view(np.float32)
    return type(like)(np.uint64(word & 0xFFFFFFFFFFFFFFFF).view(np.float64))


def _define_from_bits() -> Callable[..., object]:
    from llvmlite import ir
    from numba import types

    def number_of(typingctx: TypingContext, word: Type, like: Type) -> tuple[Signature, Generator]:
        def codegen(
            context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
        ) -> Value:
            value = values[0]
            if like == types.float32:
                value = builder.trunc(value, ir.IntType(32))
            return builder.bitcast(value, context.get_value_type(like))

        return like(types.int64, like), codegen

    return number_of


def _build_bits(builder: Builder, values: list[Value], dtypes: list[str]) -> tuple[Value, str]:
    from llvmlite import ir

    if dtypes == ["float32"]:
        word = builder.bitcast(values[0], ir.IntType(32))
        return builder.sext(word, ir.IntType(64)), "int64"
    return builder.bitcast(values[0], ir.IntType(64)), "int64"


def _build_from_bits(builder: Builder, values: list[Value], dtypes: list[str]) -> tuple[Value, str]:
    from llvmlite import ir

    word = values[0]
    if dtypes[1] == "float32":
        word = builder.trunc(word, ir.IntType(32))
    return builder.bitcast(word, values[1].type), dtypes[1]


bits = Intrinsic(_bits_python, _define_bits, build=_build_bits)
from_bits = Intrinsic(_from_bits_python, _define_from_bits, build=_build_from_bits)
