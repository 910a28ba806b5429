"""`flow._foreach_add` and the like: PyTorch's names for one op on each tensor of a list.

Programs call them in optimizers of their own and to clip gradients; here each tensor is an
instruction of its own, as if they were called one by one.  Made when named.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, MissingNameError
from flowvm.ops.linalg.norms import vector_norm

PREFIX: Final = "_foreach_"
# fmt: off
_UNARY: Final = (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor",
    "frac", "lgamma", "log", "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt",
    "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
)
_MORE: Final = (
    "add", "addcdiv", "addcmul", "clamp_max", "clamp_min", "div", "lerp", "maximum", "minimum",
    "mul", "pow", "sub",
)
# fmt: on
# PyTorch's names of what may be a list, in the order of the arguments
_COLUMNS: Final = (
    "other",
    "tensors1",
    "tensor1",
    "tensor2",
    "scalar",
    "scalars",
    "exponent",
    "weight",
    "weights",
    "mat2",
    "src",
)  # fmt: skip
NAMES: Final = frozenset(
    [f"{PREFIX}{name}{end}" for name in (*_UNARY, *_MORE) for end in ("", "_")]
    + [f"{PREFIX}{name}" for name in ("clone", "copy_", "max", "mm", "norm", "zero_")]
)


def __getattr__(name: str) -> Callable[..., Any]:
    if name in NAMES:
        return foreach(name)
    raise MissingNameError(f"flowvm has no {name!r}", name, lambda: NAMES)


@functools.cache
def foreach(name: str) -> Callable[..., Any]:
    """Return the function of this name, one of NAMES.

    Takes lists of as many tensors as the first, or a number or tensor for all of them, or a list of
    numbers.  ArgumentError: lists of different lengths, or an empty one.
    """
    one = _one(name.removeprefix(PREFIX))
    in_place = name.endswith("_")

    def call(self: Any, *args: object, **kwargs: object) -> object:
        columns = [kwargs.pop(key) for key in _COLUMNS if key in kwargs]
        rows = _rows(name, self, (*args, *columns))
        results = [one(*row, **kwargs) for row in rows]
        return list(self) if in_place else tuple(results)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"`{name.removeprefix(PREFIX)}` of each tensor of a list."
    return call


def _rows(name: str, tensors: object, args: Sequence[object]) -> list[tuple[object, ...]]:
    columns = [_column(argument) for argument in (tensors, *args)]
    lists = [len(column) for column in columns if isinstance(column, list)]
    if not lists or (not isinstance(columns[0], list) and name != f"{PREFIX}pow"):
        raise ArgumentTypeError(f"{name}: needs a list of tensors, got {type(tensors).__name__}")
    if not lists[0]:
        raise ArgumentError(f"{name}: the list of tensors is empty")
    if len(set(lists)) > 1:
        raise ArgumentError(f"{name}: lists of {lists} items; all need as many")
    full = [c if isinstance(c, list) else [c] * lists[0] for c in columns]
    return list(zip(*full, strict=True))


def _column(argument: object) -> object:
    if isinstance(argument, (list, tuple)):
        return list(argument)
    if isinstance(argument, Tensor) and argument.ndim == 1:  # a tensor of a number for each
        return list(argument.unbind())
    return argument


def _one(name: str) -> Callable[..., object]:
    if name.rstrip("_") in ("addcdiv", "addcmul"):
        method = getattr(Tensor, name)

        def with_value(x: Tensor, a: Tensor, b: Tensor, value: object = 1) -> object:
            return method(x, a, b, value=value)

        return with_value
    if name == "norm":
        return lambda x, ord=2, dtype=None: vector_norm(x, ord, dtype=dtype)
    if name == "pow":
        return ops.pow  # of a number by tensors, too
    tensor_method: Callable[..., object] = getattr(Tensor, name)
    return tensor_method
