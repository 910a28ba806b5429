"""Cheaper lowering of `range` and of `x[i]` in CUDA code.

Numba's own code asks each time for what kernels never need.  A `range` is counted by dividing, 64
bits wide, before it begins; here its next number is compared with the end.  An index is compared
with 0, to count from the end if it is less; here it is taken as it is, so **an index of a kernel is
never negative** (slices may have what Python's have).  A negative constant does not compile, and
`flowvm.cuda.simulator.grid` finds others where it looks for them (`run_grid(...,
order="reversed")`).

`range(a, b, step)` with a step of 0 is no loop that ends.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from flowvm.errors import CompileError
from flowvm.private.numba_cuda import NUMBA_CUDA

if TYPE_CHECKING:
    from flowvm.private.code_types import Builder, CodeContext, Signature, Type, Value


Lowered = Callable[..., object]


def special(context: CodeContext, function: object, signature: Signature) -> Lowered | None:
    """Return the lowering of `function` for `signature` if `context` has one of its own; else
    None.
    """
    from numba.cuda import types

    kinds = signature.args
    if isinstance(function, str):
        if function == "getiter" and isinstance(kinds[0], types.RangeType):
            return _Lowered(context, _range_begun(kinds[0]), signature)
        if function == "iternext" and isinstance(kinds[0], types.RangeIteratorType):
            return _Lowered(context, _range_went_on(kinds[0]), signature)
        return None
    named = getattr(function, "typing_key", None)
    if named not in (operator.getitem, operator.setitem) or not isinstance(kinds[0], types.Array):
        return None
    if all(isinstance(part, types.Integer) for part in _parts(kinds[1])):
        if len(_parts(kinds[1])) == kinds[0].ndim:
            access = _read if named is operator.getitem else _written
            return _Lowered(context, access, signature)
        if named is operator.getitem:
            return _Lowered(context, _part_of, signature)
    return _sliced(context, named, signature)


class _Lowered:
    """An implementation for one signature, as `BaseContext.get_function` answers it."""

    def __init__(self, context: object, implementation: Any, signature: Signature) -> None:
        self.context, self.implementation, self.signature = context, implementation, signature

    def __call__(self, builder: Builder, values: Sequence[Value], loc: Value = None) -> Value:
        return self.implementation(self.context, builder, self.signature, values)


# --- indices --------------------------------------------------------------------------------------


def _parts(kind: object) -> tuple[object, ...]:
    from numba.cuda import types

    return tuple(kind.types) if isinstance(kind, types.BaseTuple) else (kind,)


def _read(
    context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
) -> Value:
    place = _place(context, builder, signature, values)
    return NUMBA_CUDA.arrays.load_item(context, builder, signature.args[0], place)


def _written(
    context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
) -> Value:
    kind, _, value_kind = signature.args
    value = context.cast(builder, values[2], value_kind, kind.dtype)
    place = _place(context, builder, signature, values)
    NUMBA_CUDA.arrays.store_item(context, builder, kind, value, place)
    return context.get_dummy_value()


def _part_of(
    context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
) -> Value:
    cgutils, arrays = NUMBA_CUDA.cgutils, NUMBA_CUDA.arrays
    kind, index = signature.args
    array, count = arrays.make_array(kind)(context, builder, values[0]), len(_parts(index))
    place = _place(context, builder, signature, values)
    sizes, steps = (cgutils.unpack_tuple(builder, v)[count:] for v in (array.shape, array.strides))
    result = signature.return_type
    view = arrays.make_view(context, builder, kind, array, result, place, sizes, steps)
    return view._getvalue()


def _place(
    context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
) -> Value:
    """Return a pointer to the first element.  It is derived from a pointer, so NVVM knows that it
    is global memory.
    """
    from llvmlite import ir

    cgutils = NUMBA_CUDA.cgutils
    kind, index = signature.args[:2]
    array, parts = NUMBA_CUDA.arrays.make_array(kind)(context, builder, values[0]), _parts(index)
    index_values = cgutils.unpack_tuple(builder, values[1]) if _is_tuple(index) else [values[1]]
    numbers = [
        _plain_value(context, builder, *pair) for pair in zip(parts, index_values, strict=True)
    ]
    if kind.layout == "C" and len(numbers) == kind.ndim:
        at, sizes = ir.IntType(64)(0), cgutils.unpack_tuple(builder, array.shape)
        for number, size in zip(numbers, sizes, strict=True):
            at = builder.add(builder.mul(at, size), number)
        return builder.gep(array.data, [at])
    at, strides = ir.IntType(64)(0), cgutils.unpack_tuple(builder, array.strides)
    for number, stride in zip(numbers, strides, strict=False):  # maybe fewer than dimensions
        at = builder.add(at, builder.mul(number, stride))
    place = builder.gep(builder.bitcast(array.data, ir.IntType(8).as_pointer()), [at])
    return builder.bitcast(place, array.data.type)


def _is_tuple(kind: object) -> bool:
    from numba.cuda import types

    return isinstance(kind, types.BaseTuple)


def _sliced(context: CodeContext, named: object, signature: Signature) -> Lowered | None:
    """Return Numba's own lowering for indices with slices; their unsigned integers are converted
    first.
    """
    from numba.cuda import types

    cgutils = NUMBA_CUDA.cgutils
    array, index, *rest = signature.args
    kinds = [_plain(part) for part in _parts(index)]
    if all(a is b for a, b in zip(kinds, _parts(index), strict=True)):
        return None
    plain = types.Tuple(kinds) if _is_tuple(index) else kinds[0]
    inner = context.get_function(named, signature.replace(args=(array, plain, *rest)))

    def lowered(builder: Builder, values: Sequence[Value], loc: object = None) -> Value:
        index_values = cgutils.unpack_tuple(builder, values[1]) if _is_tuple(index) else [values[1]]
        elements = [
            _plain_value(context, builder, *pair)
            for pair in zip(_parts(index), index_values, strict=True)
        ]
        passed = context.make_tuple(builder, plain, elements) if _is_tuple(index) else elements[0]
        return inner(builder, (values[0], passed, *values[2:]))

    return lowered


def _plain(kind: object) -> object:
    """An integer's type without a sign."""
    from numba.cuda import types

    return types.uint64 if isinstance(kind, types.Integer) and kind.signed else kind


def _plain_value(context: CodeContext, builder: Builder, kind: Type, value: Value) -> Value:
    """`value` of `kind` as one of `_plain(kind)`, and of 64 bits if it is an integer."""
    from llvmlite import ir
    from numba.cuda import types

    if not isinstance(kind, types.Integer):
        return value
    if isinstance(value, ir.Constant) and value.constant < 0:
        raise CompileError(
            f"a kernel indexes an array with {value.constant}, counting from its end"
        )
    return context.cast(builder, value, kind, types.int64 if kind.signed else types.uint64)


# --- range ----------------------------------------------------------------------------------------


def _range_begun(kind: object) -> Callable[..., object]:
    cgutils, imputils = NUMBA_CUDA.cgutils, NUMBA_CUDA.imputils

    def begun(
        context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
    ) -> Value:
        state = cgutils.create_struct_proxy(kind)(context, builder, values[0])
        struct = cgutils.create_struct_proxy(signature.return_type)(context, builder)
        struct.iter = cgutils.alloca_once_value(builder, state.start)
        struct.stop, struct.step = state.stop, state.step
        struct.count = struct.iter  # Numba's other fields need none
        result = signature.return_type
        return imputils.impl_ret_untracked(context, builder, result, struct._getvalue())

    return begun


def _range_went_on(kind: Any) -> Any:
    """Lower the test of a range's end.  Downwards, numbers are compared with all bits inverted,
    which reverses their order.
    """
    cgutils, imputils = NUMBA_CUDA.cgutils, NUMBA_CUDA.imputils

    signed = kind.yield_type.signed

    def went_on(
        context: CodeContext,
        builder: Builder,
        signature: Signature,
        values: Sequence[Value],
        result: Value,
    ) -> None:
        at = cgutils.create_struct_proxy(kind)(context, builder, values[0])
        value = builder.load(at.iter)
        if signed:
            bits = value.type(value.type.width - 1)
            down = builder.ashr(at.step, bits)
            fine = builder.icmp_signed("<", builder.xor(value, down), builder.xor(at.stop, down))
        else:
            fine = builder.icmp_unsigned("<", value, at.stop)
        result.set_valid(fine)
        with builder.if_then(fine):
            result.yield_(value)
            flags = ["nsw"] if signed else []
            builder.store(builder.add(value, at.step, flags=flags), at.iter)

    return imputils.iternext_impl(imputils.RefType.BORROWED)(went_on)
