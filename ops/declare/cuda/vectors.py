"""Memory as kernels see it: several elements at once.

`load_many[n](x, i)` is the tuple of x[i] to x[i + n - 1], `store_many[n](x, i, values)` writes
them; both move them as one access of up to 16 bytes, for which `aligned(x, n)` must be true.  x is
one-dimensional and in C order, i a multiple of n.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from flowvm.compiler.native import Intrinsic

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


MANY = (1, 2, 4, 8, 16)
WORD = 4  # bytes: what smaller elements are moved as


def _aligned_python(x: Any, n: int) -> bool:
    return bool(x.ctypes.data % (n * x.itemsize) == 0)


def _aligned_define() -> Callable[..., object]:
    from llvmlite import ir
    from numba import types

    def aligned_(typingctx: TypingContext, x: Type, n: Type) -> tuple[Signature, Generator]:
        def codegen(
            context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
        ) -> Value:
            array = context.make_array(x)(context, builder, values[0])
            address = builder.ptrtoint(array.data, ir.IntType(64))
            each = ir.IntType(64)(_size(context, x, 1))
            below = builder.sub(builder.mul(values[1], each), each.type(1))  # a power of 2 less 1
            return builder.icmp_unsigned("==", builder.and_(address, below), each.type(0))

        return types.boolean(x, types.int64), codegen

    return aligned_


# whether x[0] lies where n elements may be moved at once
aligned = Intrinsic(_aligned_python, _aligned_define)


def _packed(context: CodeContext, kind: Any, n: int) -> tuple[Any, Any, Any]:
    """A vector of n stored elements, the type that moves it, and how one element is stored."""
    from llvmlite import ir

    model = context.data_model_manager[kind]
    element = model.get_data_type()
    size = context.get_abi_sizeof(element)
    vector = ir.VectorType(element, n)
    if size >= WORD or n * size < WORD:
        return vector, vector, model
    return vector, ir.VectorType(ir.IntType(8 * WORD), n * size // WORD), model


def _place(
    context: CodeContext, builder: Builder, x: Value, array: Value, index: Value, moved: Value
) -> Value:
    data = context.make_array(x)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), moved.as_pointer())


def _size(context: CodeContext, x: Any, n: int) -> int:
    model = context.data_model_manager[x.dtype]
    return int(context.get_abi_sizeof(model.get_data_type())) * n


def _load_define(n: int) -> Callable[..., Any]:
    from llvmlite import ir
    from numba import types

    def load(typingctx: TypingContext, x: Type, i: object) -> tuple[Signature, Generator] | None:
        result = types.UniTuple(x.dtype, n)

        def codegen(
            context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
        ) -> object:
            vector, moved, model = _packed(context, x.dtype, n)
            place = _place(context, builder, x, values[0], values[1], moved)
            words = builder.load(place, align=_size(context, x, n))
            parts = [builder.extract_element(words, ir.IntType(32)(k)) for k in range(moved.count)]
            if moved != vector:
                parts = _taken_apart(builder, parts, n // moved.count, vector.element)
            read = [model.from_data(builder, part) for part in parts]
            return context.make_tuple(builder, result, read)

        return result(x, types.int64), codegen

    return load


def _taken_apart(builder: Builder, words: list[Value], each: int, kind: object) -> list[Value]:
    """The `each` small integers of each word; of a bitcast NVVM would make several loads."""
    word = words[0].type
    return [
        builder.trunc(builder.lshr(w, word(8 * WORD // each * k)), kind)
        for w in words
        for k in range(each)
    ]


def _joined(builder: Builder, parts: Sequence[object], each: int) -> list[Value]:
    """Words of `each` small integers; what a bitcast makes, NVVM would store piece by piece."""
    from llvmlite import ir

    word, words = ir.IntType(8 * WORD), []
    for first in range(0, len(parts), each):
        vector = word(0)
        for k, part in enumerate(parts[first : first + each]):
            wide = builder.zext(part, word)
            vector = builder.or_(vector, builder.shl(wide, word(8 * WORD // each * k)))
        words.append(vector)
    return words


def _store_define(n: int) -> Any:
    from llvmlite import ir
    from numba import types

    def store(typingctx: TypingContext, x: Type, i: object, elements: Type) -> object:
        def codegen(
            context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
        ) -> object:
            vector, moved, model = _packed(context, x.dtype, n)
            parts = []
            for k, kind in enumerate(elements.types):
                value = builder.extract_value(values[2], k)
                value = context.cast(builder, value, kind, x.dtype)
                parts.append(model.as_data(builder, value))
            if moved != vector:
                parts = _joined(builder, parts, n // moved.count)
            result = moved(ir.Undefined)
            for k, part in enumerate(parts):
                result = builder.insert_element(result, part, ir.IntType(32)(k))
            place = _place(context, builder, x, values[0], values[1], moved)
            builder.store(result, place, align=_size(context, x, n))
            return context.get_dummy_value()

        return types.void(x, types.int64, elements), codegen

    return store


def _loader(n: int) -> Intrinsic:
    def load(x: Any, i: int) -> tuple[Any, ...]:
        return tuple(x[i : i + n])

    return Intrinsic(load, lambda: _load_define(n))


def _storer(n: int) -> Intrinsic:
    def store(x: Any, i: int, elements: Any) -> None:
        for k in range(n):
            x[i + k] = elements[k]

    return Intrinsic(store, lambda: _store_define(n))


load_many = {n: _loader(n) for n in MANY}
store_many = {n: _storer(n) for n in MANY}
