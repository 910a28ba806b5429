"""The ops that the others are written with.

Copying, converting, and summing a gradient back to a broadcast operand's shape.
"""

from __future__ import annotations

from typing import Any

from flowvm.device import Device, as_device
from flowvm.dtype import DType, as_dtype, float16
from flowvm.errors import ArgumentTypeError, ShapeError, Status
from flowvm.interpreter import Invocation, Node, Operator, call_into, grad_enabled
from flowvm.meta import Size, TensorMeta
from flowvm.ops import codegen
from flowvm.ops.elementwise import _apart, broadcast_stride, record_in_place
from flowvm.ops.plan import plan_of
from flowvm.ops.rebase import remember_view
from flowvm.ops.registry import broadcast_shapes
from flowvm.ops.walk import copy_kernel
from flowvm.tensor import Tensor, alias, method

__all__ = ["cast", "clone", "contiguous", "detach", "sum_to", "view_of"]


def _copy_kernel(out: TensorMeta, x: TensorMeta) -> Invocation:
    strides = [out.stride, broadcast_stride(x, out.shape)]
    sizes = [out.dtype.itemsize, x.dtype.itemsize]
    if out.dtype is x.dtype:
        plan = plan_of(out.shape, strides, sizes, copy=True)
        return Invocation((out,), copy_kernel(), *plan)
    to, source = [out.dtype.name], [x.dtype.name]
    if x.dtype.is_floating_point and not (out.dtype.is_floating_point or out.dtype.is_bool):
        kind = ["float32" if x.dtype is float16 else x.dtype.name]
        raises = int(Status.NAN_TO_INTEGER)
        kernel = codegen.elementwise_kernel("finite(x)", ["x"], source, to, kind, raises=raises)
    else:
        kernel = codegen.elementwise_kernel("x", ["x"], source, to, to)
    return Invocation((out,), kernel, *plan_of(out.shape, strides, sizes))


def _lower_cast(metas: tuple[TensorMeta, ...], attrs: tuple[Any, ...]) -> Invocation:
    (x,) = metas
    (dtype,) = attrs
    return _copy_kernel(x.dense(dtype), x)


_cast = Operator(
    "cast",
    ("x",),
    ("out",),
    _lower_cast,
    attrs=("dtype",),
    grad=lambda c, g: (cast(g, c.metas[0].dtype),),
)
_cast_away = Operator("cast", ("x",), ("out",), _lower_cast, attrs=("dtype",))
_copy = Operator(
    "copy",
    ("x",),
    ("out",),
    lambda metas, attrs: _copy_kernel(metas[0], metas[1]),
    grad=lambda c, g: (cast(sum_to(g, c.metas[0].shape), c.metas[0].dtype),),
)


def cast(x: Tensor, dtype: DType) -> Tensor:
    """A dense copy of `x` in `dtype`: floats to integers truncate, anything but zero is True.

    NaN or an infinity that meets an integer dtype is an error where the result is read.
    """
    op = _cast if dtype.is_floating_point else _cast_away
    out: Tensor = op.call(x, dtype)
    return out


@method()
def clone(x: Tensor) -> Tensor:
    """A copy of `x`, dense, that gradients flow through."""
    return cast(x, x._meta.dtype)


@method()
def contiguous(x: Tensor) -> Tensor:
    """`x` itself if its elements lie in C order, else a copy in which they do."""
    return x if x._meta.contiguous else cast(x, x._meta.dtype)


@method()
def detach(x: Tensor) -> Tensor:
    """`x` outside the autograd graph: the same memory, no gradient."""
    return alias(x, x._meta)


@method()
def copy_(x: Tensor, source: Tensor) -> Tensor:
    """Write `source`, broadcast to `x`'s shape and converted to its dtype, into `x`."""
    if not isinstance(source, Tensor):
        raise ArgumentTypeError(f"copy_: source must be a Tensor, got {type(source).__name__}")
    if broadcast_shapes(x._meta.shape, source._meta.shape) != tuple(x._meta.shape):
        raise ShapeError(
            f"copy_: source of shape {tuple(source.shape)} does not broadcast to {tuple(x.shape)}"
        )
    source = _apart(x, source)
    pending = record_in_place("copy_", _copy, x, (source,), ())
    call_into(_copy, (x,), (source,))
    x.bump()
    if pending is not None:
        pending.finish(x)
    return x


@method()
def to(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`x` in another dtype, on another device, or both.

    `x.to(flow.float64)`, `x.to("cpu")`, `x.to(other)`.

    `x` itself if nothing changes and `copy` is not True.
    """
    dtype, device = kwargs.pop("dtype", None), kwargs.pop("device", None)
    copy = kwargs.pop("copy", False)
    kwargs.pop("non_blocking", None)
    if kwargs:
        raise ArgumentTypeError(f"to() got an unknown argument {next(iter(kwargs))!r}")
    for arg in args:
        if isinstance(arg, Tensor):
            dtype, device = arg._meta.dtype, arg._meta.device
        elif isinstance(arg, (str, Device, int)) and not isinstance(arg, bool):
            device = arg
        elif arg is not None:
            dtype = arg
    wanted = x._meta.dtype if dtype is None else as_dtype(dtype)
    if device is not None:
        as_device(device)
    return x if wanted is x._meta.dtype and not copy else cast(x, wanted)


class _ViewOperator:
    """Stands for the operator of a view in autograd nodes; no instruction belongs to it."""

    def __init__(self, name: str, grad: Any) -> None:
        self.name = name
        self.grad = grad


_views: dict[str, _ViewOperator] = {}


def view_of(
    x: Tensor,
    name: str,
    meta: TensorMeta,
    offset: int,
    grad: Any,
    attrs: tuple[Any, ...] = (),
) -> Tensor:
    """A view of `x`: `meta` on the same memory, `offset` elements further on.

    `grad(c, g)` gives the gradient of `x`, with `c.metas` (x's meta) and `c.attrs`; always the same
    function for a `name`.
    """
    out = alias(x, meta, offset * meta.dtype.itemsize)
    base = x
    if x._storage is not None:
        try:
            base = x._extra.get("base", x)
        except AttributeError:
            base = x
    out._extra = {"base": base}
    if grad_enabled():
        if x._node is not None:
            op = _views.get(name)
            if op is None:
                op = _views[name] = _ViewOperator(name, grad)
            out._node = Node(op, (x._node,), (), (), (x._meta,), attrs, (meta,))
        if base._node is None or not base._node.is_leaf:
            remember_view(base, out)
    return out


def sum_to(g: Tensor, shape: Size) -> Tensor:
    """`g` summed over the dimensions in which an operand of `shape` was broadcast.

    `g` itself if there are none.
    """
    if g._meta.shape == shape:
        return g
    lead = g._meta.ndim - len(shape)
    dims = [*range(lead)]
    dims += [i for i, d in enumerate(shape, lead) if d == 1 and g._meta.shape[i] != 1]
    summed = g.sum(dims, keepdim=True) if dims else g
    out: Tensor = summed.reshape(shape)
    return out
