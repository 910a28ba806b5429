"""float16 and bfloat16 through float32, where something is computed in several steps.

One kernel computes numbers of 16 bits in float32 and rounds what it stores.  A function of several
kernels would round between them, and lose what leaves the range of 16 bits on the way, such as the
squares of a norm.  These two let it compute in float32 from end to end and round once:

    @in_float32                       a function of tensors
    gradient_in_float32(grad)         a gradient, `grad(c, *gradients)`
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from flowvm.eager.tensor import Tensor
from flowvm.meta.dtype import DType, result_type_of
from flowvm.vm.callers.hot import hot

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node


Function = TypeVar("Function", bound=Callable[..., Any])


def _is_half(value: object) -> bool:
    if not isinstance(value, Tensor):
        return False
    dtype = value._meta.dtype
    return dtype.reduced and not dtype.minifloat


def _halves_in(values: Iterable[object]) -> bool:
    for value in values:
        if _is_half(value):
            return True
        if isinstance(value, (tuple, list)) and _halves_in(value):
            return True
    return False


def wide(value: Any) -> Any:
    """Return `value` with 16-bit tensors as float32, also inside a tuple or a list.

    >>> flow.ops.declare.halves.wide(flow.tensor([1.0], dtype=flow.float16)).dtype
    flow.float32
    """
    if _is_half(value):
        return value.to(value._meta.dtype.compute)
    if isinstance(value, (tuple, list)) and _halves_in(value):
        return type(value)(wide(v) for v in value)
    return value


def _floats_in(values: Iterable[object]) -> list[tuple[DType, bool]]:
    floats: list[tuple[DType, bool]] = []
    for value in values:
        if isinstance(value, Tensor):
            if value._meta.dtype.inexact:
                floats.append((value._meta.dtype, value._meta.ndim == 0))
        elif isinstance(value, (tuple, list)):
            floats += _floats_in(value)
    return floats


def _rounded(result: Any, dtype: DType) -> Any:
    if isinstance(result, Tensor):
        return result.to(dtype) if result._meta.dtype is dtype.compute else result
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        return type(result)(*(_rounded(r, dtype) for r in result))
    if isinstance(result, (tuple, list)):
        return type(result)(_rounded(r, dtype) for r in result)
    return result


def in_float32(function: Function) -> Function:
    """Return the function for which tensors of 16 bits are float32 on the way in, and which rounds
    its results once, to the dtype that they would have had.

    A call that says a `dtype`, and one in a region of autocast, is left as it is: those say
    themselves in what is computed.

    >>> @flow.ops.declare.halves.in_float32
    ... def length(x):
    ...     return (x * x).sum().sqrt()
    >>> length(flow.tensor([300.0, 400.0], dtype=flow.float16))
    tensor(500., dtype=float16)
    """

    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> Any:
        if not (_halves_in(args) or (kwargs and _halves_in(kwargs.values()))):
            return function(*args, **kwargs)
        if hot["autocast"] or kwargs.get("dtype") is not None:
            return function(*args, **kwargs)
        dtype = result_type_of(*_floats_in((*args, *kwargs.values())))
        result = function(*map(wide, args), **{name: wide(v) for name, v in kwargs.items()})
        return _rounded(result, dtype) if dtype.reduced else result

    return call  # type: ignore[return-value]


class _Wide:
    """The `c` of a gradient function, with saved values in float32."""

    def __init__(self, c: Node, saved: tuple[object, ...]) -> None:
        self.saved = tuple(map(wide, saved))
        self.metas, self.needs = c.metas, c.needs
        self.attrs, self.out_metas = c.attrs, c.out_metas


def gradient_in_float32(grad: Callable[..., Any]) -> Callable[..., Any]:
    """Return the gradient function that computes 16-bit values in float32.

    Each gradient is rounded once, to its input's dtype.
    """

    @functools.wraps(grad)
    def computed(c: Node, *gradients: Any) -> Any:
        saved = c.saved
        if not (_halves_in(gradients) or _halves_in(saved)):
            return grad(c, *gradients)
        results = grad(_Wide(c, saved), *map(wide, gradients))
        return tuple(
            r if r is None or meta is None or r._meta.dtype is meta.dtype else r.to(meta.dtype)
            for r, meta in zip(results, c.metas, strict=True)
        )

    return computed
