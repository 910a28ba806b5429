"""Results that go into tensors that are there: `out=`, and methods that replace values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from flowvm.eager.modes import current_trace_recorder, grad_enabled
from flowvm.eager.native.trace_cache import steady
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, AutogradError, DTypeError, ShapeError
from flowvm.meta.dtype import DType, as_dtype, can_cast
from flowvm.ops.declare.core import copy_
from flowvm.ops.declare.renewal import fitted
from flowvm.return_types import Results

Result = TypeVar("Result")

# where PyTorch wants out's dtype to be the result's, and where out may not be an argument's memory
EXACT = {"aminmax", "complex", "gather", "index_select", "kthvalue", "multinomial", "take"}
APART = {"bernoulli", "cat", "gather", "index_select", "kthvalue", "masked_select", "take"}


def need_out(name: str, out: Tensor) -> Tensor:
    """Return `out` if it can take a result; raise if it is no Tensor, or wants a gradient."""
    if not isinstance(out, Tensor):
        raise ArgumentTypeError(f"{name}: out must be a Tensor, got {type(out).__name__}")
    if out._node is not None and grad_enabled():
        raise AutogradError(
            f"{name}(..., out=...) cannot be differentiated; leave out= away or use flow.no_grad()"
        )
    return out


def written(name: str, out: Tensor | None, result: Tensor) -> Tensor:
    """`result`, or `out` with its values: resized if it has another shape, with a warning unless
    it was empty, as in PyTorch.

    DTypeError if `out`'s dtype is of a lower category; AutogradError if gradients are recorded.
    """
    if out is None:
        return result
    need_out(name, out)
    if result._node is not None and grad_enabled():
        raise AutogradError(
            f"{name}(..., out=...) cannot be differentiated; leave out= away or use flow.no_grad()"
        )
    if not can_cast(result._meta.dtype, out._meta.dtype):
        raise DTypeError(
            f"{name}: the result is {result.dtype.name} and cannot go into a {out.dtype.name} "
            f"tensor"
        )
    if name in EXACT and out._meta.dtype is not result._meta.dtype:
        raise DTypeError(f"{name}: out is {result.dtype.name}, as the result, got {out.dtype.name}")
    if out._meta.shape != result._meta.shape:
        fitted(name, out, result._meta)
    if any(s == 0 and d > 1 for d, s in zip(out._meta.shape, out._meta.stride, strict=True)):
        raise ArgumentError(f"{name}: several elements of out are one place in memory; clone() it")
    copied: Tensor = copy_(out, result)
    return copied


def dtype_for(name: str, out: Tensor | None, dtype: object) -> Any:
    """The dtype to make for `out`; DTypeError if `dtype` is given and another."""
    if out is None:
        return dtype
    need_out(name, out)
    kind: DType = out._meta.dtype
    if dtype is not None and as_dtype(dtype) is not kind:
        raise DTypeError(
            f"{name}: dtype {as_dtype(dtype).name} is not that of out, which is {kind.name}"
        )
    return kind


def _check_apart(name: str, args: Any, out: object) -> None:
    if (trace := current_trace_recorder()) is not None:
        trace.apart = True
    outs = out if isinstance(out, (tuple, list)) else (out,)
    flat = [a for arg in args for a in (arg if isinstance(arg, (tuple, list)) else (arg,))]
    for o in outs:
        for a in flat:
            if isinstance(o, Tensor) and isinstance(a, Tensor) and o.storage() is a.storage():
                raise ArgumentError(f"{name}: out shares memory with an argument; clone() it")


def with_out(function: Callable[..., Result]) -> Callable[..., Result]:
    """The function with `out=`: a tensor, or a tuple of them where it has several results.  It is
    `steady`, as far as it is called with tensors.
    """
    name = function.__name__.removesuffix("_method")

    def call(*args: object, out: Any = None, **kwargs: object) -> Any:
        if out is None:
            return function(*args, **kwargs)
        if name in APART:
            _check_apart(name, args, out)
        result: Any = function(*args, **kwargs)
        if isinstance(result, tuple):
            if not isinstance(out, (tuple, list)) or len(out) != len(result):
                raise ArgumentTypeError(f"{name}: out is a tuple of {len(result)} tensors")
            outs = [written(name, o, r) for o, r in zip(out, result, strict=True)]
            return result.into(outs) if isinstance(result, Results) else tuple(outs)
        return written(name, out, result)

    functools.update_wrapper(call, function)
    return steady(call)


def replaced(function: Callable[..., Tensor], name: str = "") -> Callable[..., Tensor]:
    """The method that puts `function(x, ...)`, of `x`'s shape, in place of the values of `x`."""
    name = name or function.__name__ + "_"

    def method_(x: Tensor, *args: object, **kwargs: object) -> Tensor:
        recorded = x._node is not None and grad_enabled()
        # what is saved for the gradient is what was there before
        result = function(x.clone() if recorded else x, *args, **kwargs)
        if result._meta.shape != x._meta.shape:
            raise ShapeError(
                f"{name}: the result has shape {tuple(result.shape)}, and is to go into a tensor "
                f"of shape {tuple(x.shape)}"
            )
        if not can_cast(result._meta.dtype, x._meta.dtype):
            raise DTypeError(
                f"{name}: the result is {result.dtype.name} and cannot go into a {x.dtype.name} "
                f"tensor"
            )
        changed: Tensor = copy_(x, result)
        return changed

    method_.__name__ = method_.__qualname__ = name
    method_.__doc__ = f"In-place `{function.__name__}`: the result replaces the values of `x`; `x`."
    setattr(Tensor, name, method_)
    return method_
