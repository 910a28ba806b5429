"""Results that go into tensors that are there: `out=`, and tensors that become others.

`become` is the one place where a tensor's memory and shape are exchanged for another's; its
identity, by which modules, optimizers and hooks know it, stays.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from flowvm.eager.modes import current_trace_recorder, grad_enabled, note_change
from flowvm.eager.native.trace_cache import steady
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, AutogradError, DTypeError, ShapeError
from flowvm.meta.dtype import DType, as_dtype, can_cast
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.composite import empty_of
from flowvm.ops.declare.core import copy_
from flowvm.return_types import Results

_PLACE = "_storage", "_ref", "_meta"

Result = TypeVar("Result")

# where PyTorch wants out's dtype to be the result's, and where out may not be an argument's memory
EXACT = {"aminmax", "complex", "gather", "index_select", "kthvalue", "multinomial", "take"}
APART = {"bernoulli", "cat", "gather", "index_select", "kthvalue", "masked_select", "take"}


def become(tensor: Tensor, data: Tensor) -> Tensor:
    """Let `tensor` be `data` from now on: same object, other storage, shape, dtype or device."""
    if (trace := current_trace_recorder()) is not None:
        trace.refuse()
    tensor.storage()  # so that the old memory has an owner that goes when the last alias does
    # all or nothing: one call, of C code
    any(map(setattr, (tensor,) * 3, _PLACE, (data.storage(), data._ref, data._meta)))
    note_change()
    return tensor


def need_out(name: str, out: Any) -> Tensor:
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


def fitted(name: str, out: Tensor, meta: TensorMeta) -> None:
    """Give `out` the shape of `meta` and new memory, with a warning unless it was empty."""
    if out._meta.numel:
        warnings.warn(
            f"{name}: out of shape {tuple(out.shape)} is resized to {tuple(meta.shape)}; give an "
            f"empty tensor, or one of that shape",
            stacklevel=4,
        )
    become(out, empty_of(TensorMeta.of(meta.shape, out._meta.dtype, out._meta.device)))


def dtype_for(name: str, out: Tensor | None, dtype: Any) -> Any:
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


def _check_apart(name: str, args: Any, out: Any) -> None:
    if (trace := current_trace_recorder()) is not None:
        trace.apart = True
    outs = out if isinstance(out, (tuple, list)) else (out,)
    given = [a for arg in args for a in (arg if isinstance(arg, (tuple, list)) else (arg,))]
    for o in outs:
        for a in given:
            if isinstance(o, Tensor) and isinstance(a, Tensor) and o.storage() is a.storage():
                raise ArgumentError(f"{name}: out shares memory with an argument; clone() it")


def with_out(function: Callable[..., Result]) -> Callable[..., Result]:
    """The function with `out=`: a tensor, or a tuple of them where it has several results.  It is
    `steady`, as far as it is called with tensors.
    """
    name = function.__name__.removesuffix("_method")

    def call(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        if out is None:
            return function(*args, **kwargs)
        if name in APART:
            _check_apart(name, args, out)
        result: Any = function(*args, **kwargs)
        if isinstance(result, tuple):
            if not isinstance(out, (tuple, list)) or len(out) != len(result):
                raise ArgumentTypeError(f"{name}: out is a tuple of {len(result)} tensors")
            given = [written(name, o, r) for o, r in zip(out, result, strict=True)]
            return result.into(given) if isinstance(result, Results) else tuple(given)
        return written(name, out, result)

    functools.update_wrapper(call, function)
    return steady(call)


def replaced(function: Callable[..., Tensor], name: str = "") -> Callable[..., Tensor]:
    """The method that puts `function(x, ...)`, of `x`'s shape, in place of the values of `x`."""
    name = name or function.__name__ + "_"

    def method_(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
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
