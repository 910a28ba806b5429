"""Tensors made by calling a class: `flow.Tensor(2, 3)`, `flow.FloatTensor([1, 2])`, and the names
of types that PyTorch had before dtypes.

A typed class, such as `flow.LongTensor`, makes tensors of its dtype and device type, and
`isinstance(t, flow.LongTensor)` asks whether `t` is one of them; no tensor is an instance of it in
any other sense.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.global_calls import Globals
from flowvm.eager.tensor import Tensor, alias, method
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.meta.device import cpu as _cpu
from flowvm.meta.device import set_default_device
from flowvm.meta.dtype import (
    ALL_DTYPES,
    MINIFLOATS,
    DType,
    as_dtype,
    dtype_named,
    get_default_dtype,
    set_default_dtype,
)
from flowvm.meta.meta import Size
from flowvm.ops.shapes.create import tensor
from flowvm.ops.shapes.fill import empty

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowvm.meta.device import DeviceLike
    from flowvm.meta.dtype import DTypeLike


_KINDS = {
    "BFloat16": "bfloat16",
    "Bool": "bool",
    "Byte": "uint8",
    "Char": "int8",
    "Double": "float64",
    "Float": "float32",
    "Half": "float16",
    "Int": "int32",
    "Long": "int64",
    "Short": "int16",
}
_WORDS = {dtype: word for word, dtype in _KINDS.items()}
_WORDS |= {  # names without a class
    "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
    "uint16": "UInt16",
    "uint32": "UInt32",
    "uint64": "UInt64",
    **{dtype.name: dtype.name.capitalize() for dtype in MINIFLOATS},
}


class TensorType(type):
    """The class of `flow.FloatTensor` and its kin: a dtype and a device type."""

    dtype: DType
    place: str

    def __instancecheck__(cls, instance: object) -> bool:
        return (
            isinstance(instance, Tensor)
            and instance._meta.dtype is cls.dtype
            and instance._meta.device.type == cls.place
        )

    def __call__(cls, *args: Any, device: object = None, **kwargs: Any) -> Tensor:
        return made_of(cls.__name__, args, cls.dtype, device or cls.place, **kwargs)

    def __repr__(cls) -> str:
        return f"<class '{cls.__module__}.{cls.__qualname__}'>"


def _typed(word: str, place: str) -> TensorType:
    dtype, module = dtype_named(_KINDS[word]), "flowvm" if place == "cpu" else "flowvm.cuda"
    doc = (
        f"{word}Tensor(*sizes), {word}Tensor(sequence), {word}Tensor(): a tensor of dtype\n"
        f"{dtype.name} on the {place} device, uninitialized if sizes are given, else with a copy\n"
        f"of the numbers. `isinstance(t, {word}Tensor)` asks for that dtype and device."
    )
    if place == "cpu":
        doc += f"\n\n>>> flow.{word}Tensor([1, 0]).dtype\nflow.{dtype.name}"
    body = {"dtype": dtype, "place": place, "__doc__": doc, "__module__": module}
    return TensorType(f"{word}Tensor", (), body)


BFloat16Tensor = _typed("BFloat16", "cpu")  # public: flow
BoolTensor = _typed("Bool", "cpu")  # public: flow
ByteTensor = _typed("Byte", "cpu")  # public: flow
CharTensor = _typed("Char", "cpu")  # public: flow
DoubleTensor = _typed("Double", "cpu")  # public: flow
FloatTensor = _typed("Float", "cpu")  # public: flow
HalfTensor = _typed("Half", "cpu")  # public: flow
IntTensor = _typed("Int", "cpu")  # public: flow
LongTensor = _typed("Long", "cpu")  # public: flow
ShortTensor = _typed("Short", "cpu")  # public: flow

on_cuda = {f"{word}Tensor": _typed(word, "cuda") for word in _KINDS}


def made_of(
    name: str, args: tuple[Any, ...], dtype: DType, device: Any = None, size: Any = None
) -> Tensor:
    """Make a tensor from the arguments of a class's call.

    They are nothing, sizes, a Size, numbers in a sequence or an array, or a tensor of that dtype,
    whose memory is shared.
    """
    if size is not None:
        if args:
            raise ArgumentTypeError(f"{name}() takes sizes or size=, not both")
        args = (Size(size),)
    if not args:
        return empty(0, dtype=dtype, device=device)
    (first, *rest) = args
    if not rest:
        if isinstance(first, Tensor):
            if first._meta.dtype is not dtype:
                raise ArgumentTypeError(
                    f"{name}() of a {first.dtype.name} tensor; use .to(flow.{dtype.name})"
                )
            shared: Tensor = first.detach()
            return shared
        if isinstance(first, Size):
            return empty(first, dtype=dtype, device=device)
        if isinstance(first, (list, tuple, range, np.ndarray)):
            data = first if isinstance(first, (list, tuple)) else np.asarray(first)
            return tensor(data, dtype=dtype, device=device)
    if not all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in args):
        listed = ", ".join(type(a).__name__ for a in args)
        raise ArgumentTypeError(
            f"{name}() takes sizes, a sequence of numbers, a tensor or nothing, got ({listed}); "
            f"flow.tensor(...) makes a tensor of a number"
        )
    return empty(*args, dtype=dtype, device=device)


def _construct(
    cls: type[Tensor],
    *args: object,
    device: DeviceLike | None = None,
    size: Sequence[int] | None = None,
    placement: object = None,
    sbp: object = None,
) -> Tensor:
    """`flow.Tensor(...)`: of the default dtype, but a tensor keeps its own; a subclass likewise."""
    if placement is not None or sbp is not None:
        options = {"device": device, "size": size}
        return Globals.factory(partial(_construct, cls), args, placement, sbp, options)
    if not isinstance(cls, type):
        raise ArgumentTypeError(f"Tensor.__new__ needs a class, got {type(cls).__name__}")
    dtype = get_default_dtype()
    if len(args) == 1 and isinstance(args[0], Tensor):
        dtype = args[0]._meta.dtype
    tensor = made_of(cls.__name__, args, dtype, device, size)
    return tensor if cls is Tensor else alias(tensor, tensor._meta, 0, cls)


Tensor.__new__ = _construct  # type: ignore[method-assign,assignment]


@method()
def as_subclass(x: Tensor, cls: type[Tensor]) -> Tensor:
    """`x` as an instance of `cls`, a subclass of Tensor: one memory, one place in the graph.

    >>> class Named(flow.Tensor):
    ...     pass
    >>> type(flow.ones(2).as_subclass(Named)).__name__
    'Named'
    """
    if not (isinstance(cls, type) and issubclass(cls, Tensor)):
        raise ArgumentTypeError(f"as_subclass: expected a subclass of Tensor, got {cls!r}")
    same = alias(x, x._meta, 0, cls)
    same._node = x._node
    return same


@method()
def new(
    x: Tensor, *args: object, device: DeviceLike | None = None, size: Iterable[int] | None = None
) -> Tensor:
    """Call `x`'s typed class with the arguments: sizes, numbers, a tensor, or nothing.

    >>> flow.ones(2).new([1, 2]), flow.ones(2).new(2, 3).shape
    (tensor([1., 2.]), flow.Size([2, 3]))
    """
    return made_of("new", args, x._meta.dtype, device or x._meta.device, size)


# --- names of types -------------------------------------------------------------------------------

root = ["flowvm"]  # in front of names: what a program imports, where that is PyTorch or OneFlow


def type_name(x: Tensor) -> str:
    """The name of its typed class: "flowvm.FloatTensor", "flowvm.cuda.LongTensor"."""
    module = root[0] if x._meta.device is _cpu else f"{root[0]}.cuda"
    return f"{module}.{_WORDS[x._meta.dtype.name]}Tensor"


def _parsed(name: str, dtype: object) -> tuple[DType, Any]:
    """The dtype and device type that a typed class, its name, or a dtype means."""
    if isinstance(dtype, TensorType):
        return dtype.dtype, dtype.place
    if isinstance(dtype, str):
        *module, word = dtype.split(".")
        place = "cuda" if module[1:] == ["cuda"] else "cpu"
        kind = _KINDS.get(word.removesuffix("Tensor"))
        if kind and word.endswith("Tensor") and len(module) <= 2:
            return dtype_named(kind), place
        raise ArgumentError(
            f"{name}: no type is called {dtype!r}; write one such as 'flowvm.FloatTensor', or "
            f"give a dtype"
        )
    return as_dtype(dtype), None


@method("type")
def type_(
    x: Tensor, dtype: DTypeLike | None = None, non_blocking: bool = False, **kwargs: object
) -> Any:
    """The name of `x`'s type, "flowvm.FloatTensor"; or `x` in another: a dtype, a typed class, or
    the name of one, "flowvm.cuda.HalfTensor" (or with `torch` or `oneflow` in front).

    >>> flow.ones(2).type(), flow.ones(2).type(flow.int64)
    ('flowvm.FloatTensor', tensor([1, 1]))
    """
    if kwargs.keys() - {"async"}:  # what PyTorch called non_blocking first
        raise ArgumentTypeError(f"type() got an unknown argument {next(iter(kwargs))!r}")
    if dtype is None:
        return type_name(x)
    kind, place = _parsed("type", dtype)
    return x.to(kind) if place is None else x.to(device=place, dtype=kind)


# public: flow
def set_default_tensor_type(t: Any, /) -> None:
    """Let new tensors of floats have the dtype, and all new tensors the device, of a typed class
    or of its name; ArgumentTypeError unless it is a floating-point one.

    >>> flow.set_default_tensor_type(flow.DoubleTensor)
    >>> flow.tensor(1.0).dtype
    flow.float64
    >>> flow.set_default_tensor_type(flow.FloatTensor)
    """
    if isinstance(t, DType):
        raise ArgumentTypeError("set_default_tensor_type takes no dtype; use set_default_dtype")
    kind, place = _parsed("set_default_tensor_type", t)
    set_default_dtype(kind)
    set_default_device(place)


# public: flow
def typename(obj: object, /) -> str:
    """Return the name of a tensor's type, as `obj.type()` does.

    For other objects, return the name of the class, or of the object itself, with its module.

    >>> flow.typename(flow.ones(2)), flow.typename(1)
    ('flowvm.FloatTensor', 'int')
    """
    if isinstance(obj, Tensor):
        return type_name(obj)
    named = obj if hasattr(obj, "__qualname__") else type(obj)
    module = getattr(named, "__module__", None)
    prefix = f"{module}." if module not in (None, "builtins") else ""
    return f"{prefix}{named.__qualname__}"


assert {kind.name for kind in (*ALL_DTYPES, *MINIFLOATS)} >= set(_WORDS)
