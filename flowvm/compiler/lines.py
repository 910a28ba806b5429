"""Faster lowering, by Numba's front end, of operations on arrays of one dimension without gaps: an
element, a slice, a view as another dtype.

Numba's own answers are for any number of dimensions, any strides and any step, written as branches
and small structures in memory, which take it and LLVM as much time as all the rest of a kernel.
Here are a dozen operations without a branch for the same.  They mean the same, to a negative index,
a slice that ends beyond the array and the error of a view that does not fit; all else is Numba's.

Private to Numba are the selectors that this stands in for, and the order of a slice's parts.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from flowvm.private.numba import overloads_of

if TYPE_CHECKING:
    from flowvm.private.code_types import Builder, CodeContext, Signature, Value


Find = Callable[[object], Any]  # a function from argument types to the lowering of an operation
Way = tuple[object, str, object]  # an object of Numba's, its attribute, and flowvm's replacement


def _is_line(kind: object) -> bool:
    from numba import types

    simple = (types.Number, types.Boolean)
    return (
        isinstance(kind, types.Array)
        and kind.ndim == 1
        and kind.layout == "C"
        and kind.aligned
        and isinstance(kind.dtype, simple)
    )


def _field(context: CodeContext, kind: object, name: str) -> int:
    """Return the index of the part `name` in LLVM's structure of an array."""
    place: int = context.data_model_manager[kind].get_field_position(name)
    return place


def _length(context: CodeContext, builder: Builder, kind: object, array: Value) -> Value:
    return builder.extract_value(array, [_field(context, kind, "shape"), 0])


def _with_length(
    context: CodeContext, builder: Builder, kind: object, array: Value, data: Value, count: Value
) -> Value:
    for name, value in (("data", data), ("nitems", count)):
        array = builder.insert_value(array, value, _field(context, kind, name))
    return builder.insert_value(array, count, [_field(context, kind, "shape"), 0])


def _wrapped(builder: Builder, index: Value, length: Value) -> Value:
    """A negative index counts from the end."""
    negative = builder.icmp_signed("<", index, length.type(0))
    return builder.select(negative, builder.add(index, length), index)


def _limit(builder: Builder, which: str, a: Value, b: Value) -> Value:
    from llvmlite import ir

    kind = ir.FunctionType(a.type, [a.type, a.type])
    return builder.call(builder.module.declare_intrinsic(f"llvm.{which}", [a.type], kind), [a, b])


def _element(
    context: CodeContext, builder: Builder, kind: object, array: Value, place: Value, index: Value
) -> Value:
    """The address of the element at `index`, of Numba's type `place`."""
    from numba import types

    if place.signed:
        index = context.cast(builder, index, place, types.intp)
        index = _wrapped(builder, index, _length(context, builder, kind, array))
    else:
        index = context.cast(builder, index, place, types.uintp)
    return builder.gep(builder.extract_value(array, _field(context, kind, "data")), [index])


def _read(
    context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
) -> Value:
    kind, place = signature.args
    pointer = _element(context, builder, kind, values[0], place, values[1])
    return context.unpack_value(builder, kind.dtype, pointer)


def _write(
    context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
) -> None:
    kind, place, kind_of_value = signature.args
    pointer = _element(context, builder, kind, values[0], place, values[1])
    value = context.cast(builder, values[2], kind_of_value, kind.dtype)
    context.pack_value(builder, kind.dtype, value, pointer)


def _slice(
    context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
) -> Value:
    """array[start:stop]"""
    kind, (array, bounds) = signature.args[0], values
    length = _length(context, builder, kind, array)
    zero = length.type(0)
    start, stop = (
        _limit(builder, "smin", _limit(builder, "smax", _wrapped(builder, b, length), zero), length)
        for b in (builder.extract_value(bounds, k) for k in (0, 1))
    )
    count = _limit(builder, "smax", builder.sub(stop, start), zero)
    data = builder.gep(builder.extract_value(array, _field(context, kind, "data")), [start])
    return _with_length(context, builder, kind, array, data, count)


def _bounds(
    context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
) -> Value:
    """slice(start, stop) without a step, and what stands for None."""
    from llvmlite import ir
    from numba import types

    offsets = [None if t is types.none else v for t, v in zip(signature.args, values, strict=True)]
    start, stop = offsets if len(offsets) == 2 else (None, offsets[0])
    whole = context.get_value_type(types.intp)
    last = (1 << (whole.width - 1)) - 1
    bounds = ir.Constant(context.get_value_type(signature.return_type), ir.Undefined)
    for k, (value, default) in enumerate(((start, 0), (stop, last), (None, 1))):
        bounds = builder.insert_value(bounds, whole(default) if value is None else value, k)
    return bounds


def _view(
    context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
) -> Value:
    """array.view(dtype)"""
    old, new = signature.args[0], signature.return_type
    array = values[0]
    before, after = (context.get_abi_sizeof(context.get_data_type(k.dtype)) for k in (old, new))
    count = _length(context, builder, old, array)
    whole = count.type
    if before != after:
        size = builder.mul(count, whole(before), flags=["nsw", "nuw"])
        rest = builder.urem(size, whole(after))
        with builder.if_then(builder.icmp_unsigned("!=", rest, whole(0)), likely=False):
            why = f"elements of {after} bytes do not fill an array"
            context.call_conv.return_user_exc(builder, ValueError, (why,))
        count = builder.udiv(size, whole(after), flags=["exact"])
    view = context.make_array(new)(context, builder)
    for name in ("meminfo", "parent"):
        setattr(view, name, builder.extract_value(array, _field(context, old, name)))
    data = builder.extract_value(array, _field(context, old, "data"))
    view.data = builder.bitcast(data, view.data.type)
    view.nitems, view.itemsize = count, whole(after)
    view.shape = builder.insert_value(view.shape, count, 0)
    view.strides = builder.insert_value(view.strides, whole(after), 0)
    return view._getvalue()


# --- which of them an operation is ----------------------------------------------------------------


def ways(context: object) -> list[Way]:
    """Return the replacements for Numba's own functions while flowvm compiles."""
    known = ((operator.getitem, _reading), (operator.setitem, _writing), (slice, _slicing))
    selectors = [(overloads_of(context, of), finder) for of, finder in known]
    selectors.append((overloads_of(context, "array.view"), _viewing))
    return [(selector, "find", finder(selector.find)) for selector, finder in selectors]


def _reading(plain: Find) -> Find:
    """Return a selector for `array[place]`."""
    from numba import types

    def find(kinds: Any) -> Any:
        array, place = kinds
        if _is_line(array):
            if isinstance(place, types.Integer):
                return _read
            if isinstance(place, types.SliceType) and not place.has_step:
                return _slice
        return plain(kinds)

    return find


def _writing(plain: Find) -> Find:
    """Return a selector for `array[place] = value`."""
    from numba import types

    def find(kinds: Any) -> object:
        array, place, value = kinds
        one = isinstance(place, types.Integer) and isinstance(value, (types.Number, types.Boolean))
        return _write if one and _is_line(array) else plain(kinds)

    return find


def _slicing(plain: Find) -> Find:
    """Return a selector for `start:stop`."""
    from numba import types

    def find(kinds: Any) -> object:
        known = all(isinstance(k, (types.Integer, types.NoneType)) for k in kinds)
        return _bounds if known and len(kinds) in (1, 2) else plain(kinds)

    return find


def _viewing(plain: Find) -> Find:
    """Return a selector for `array.view(dtype)`."""

    def find(kinds: Any) -> object:
        return _view if _is_line(kinds[0]) else plain(kinds)

    return find
