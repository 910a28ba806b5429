"""The ops that the others are written with.

Copying, converting, and summing a gradient back to a broadcast operand's shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flowvm.eager.declaration import Invocation, Kernel, Rules, Signature
from flowvm.eager.interpreter import Operator, call_into
from flowvm.eager.keywords import spelled
from flowvm.eager.modes import current_trace_recorder, grad_enabled
from flowvm.eager.native.trace_cache import steady
from flowvm.eager.nodes import Node
from flowvm.eager.tensor import Tensor, alias, base_of, method, refused
from flowvm.errors import ArgumentError, ArgumentTypeError, ShapeError
from flowvm.meta.batched_meta import differs_more, made_for
from flowvm.meta.device import Device, as_device
from flowvm.meta.dtype import DType, as_dtype, result_type
from flowvm.meta.formats import (
    MemoryFormat,
    accept,
    channels_last,
    channels_last_3d,
    contiguous_format,
    format_stride,
    is_dense,
    preserve_format,
)
from flowvm.meta.meta import Attrs, Size, TensorMeta
from flowvm.ops.declare.composite import Recorded, empty_of
from flowvm.ops.declare.elementwise import _apart, number_tensor, record_in_place
from flowvm.ops.declare.kinds import is_size
from flowvm.ops.declare.letters import broadcasting
from flowvm.ops.declare.rebase import remember_view, replaced_grad
from flowvm.ops.declare.registry import broadcast_shapes
from flowvm.ops.declare.scalar_launch import ScalarLaunch
from flowvm.ops.declare.transfers import moved
from flowvm.vm.callers.hot import hot

if TYPE_CHECKING:
    from flowvm.meta.dtype import DTypeLike


def _moved(out: TensorMeta, x: TensorMeta) -> ScalarLaunch:
    kind, expr = out.dtype, "x"
    if x.dtype.inexact and not (out.dtype.inexact or out.dtype.is_bool):
        # numbers that the integers do not have become what the processor makes of them
        kind, expr = x.dtype.compute.real, "whole(x)"
    return ScalarLaunch(
        (out,), (x,), expr, ("x",), (x.dtype.name,), (kind.name,),
        copy=out.dtype is x.dtype,
    )  # fmt: skip


def _check_dtype(name: str, dtype: DTypeLike) -> None:
    if not isinstance(dtype, DType):
        raise ArgumentTypeError(f"{name} needs a dtype, got {dtype!r}")


def _infer_cast(metas: tuple[TensorMeta, ...], attrs: Attrs) -> ScalarLaunch:
    (x,) = metas
    (dtype,) = attrs
    _check_dtype("cast", dtype)
    return _moved(x.dense(dtype), x)


def _infer_copy(metas: tuple[TensorMeta, ...], attrs: Attrs) -> ScalarLaunch:
    return _moved(metas[0], metas[1])


def _infer_arrange(metas: tuple[TensorMeta, ...], attrs: Attrs) -> ScalarLaunch:
    (x,) = metas
    dtype, stride = attrs
    _check_dtype("arrange", dtype)
    sizes = isinstance(stride, tuple) and len(stride) == x.ndim and all(map(is_size, stride))
    if not sizes or not is_dense(x.shape, stride):
        raise ArgumentError(f"arrange: {stride} are not strides of a dense tensor like {x!r}")
    return _moved(TensorMeta.of(x.shape, dtype, x.device, stride), x)


def _lower_arrange(metas: tuple[TensorMeta, ...], attrs: Attrs) -> Invocation:
    return _infer_arrange(metas, attrs).on_cpu()


def _lower_cast(metas: tuple[TensorMeta, ...], attrs: Attrs) -> Invocation:
    return _infer_cast(metas, attrs).on_cpu()


_CAST = Signature(("x",), ("out",), attrs=("dtype",))
_ARRANGEMENT = Signature(("x",), ("out",), attrs=("dtype", "stride"))

_cast = Operator(
    "cast",
    _CAST,
    Kernel(_lower_cast, _infer_cast, complex=True, minifloats=True),
    grad=lambda c, g: (cast(g, c.metas[0].dtype),),
    rules=Rules(letters=broadcasting),
)
_cast_away = Operator(
    "cast",
    _CAST,
    Kernel(_lower_cast, _infer_cast, complex=True, minifloats=True),
    rules=Rules(letters=broadcasting),
)
_arrange = Operator(
    "arrange",
    _ARRANGEMENT,
    Kernel(_lower_arrange, _infer_arrange, complex=True, minifloats=True),
    grad=lambda c, g: (cast(g, c.metas[0].dtype),),
    rules=Rules(letters=broadcasting),
)
_arrange_away = Operator(
    "arrange",
    _ARRANGEMENT,
    Kernel(_lower_arrange, _infer_arrange, complex=True, minifloats=True),
    rules=Rules(letters=broadcasting),
)


def _copy_grad(c: Node, g: Tensor) -> tuple[Tensor]:
    return (cast(sum_to(g, c.metas[0].shape), c.metas[0].dtype),)


def _copy_over_grad(c: Node, g: Tensor) -> tuple[object, ...]:
    over, meta = c.metas
    return (
        replaced_grad(over, g) if c.needs[0] else None,
        cast(sum_to(g, meta.shape), meta.dtype) if c.needs[1] else None,
    )


_copy_over = Recorded("copy", _copy_over_grad, ("over", "x"))


_copy = Operator(
    "copy",
    Signature(("x",), ("out",)),
    Kernel(
        lambda metas, attrs: _infer_copy(metas, attrs).on_cpu(),
        _infer_copy,
        complex=True,
        minifloats=True,
    ),
    grad=_copy_grad,
    rules=Rules(letters=broadcasting),
)
CASTS = (_cast, _cast_away)
COPIES = (*CASTS, _arrange, _arrange_away, _copy)  # which read an operand however it lies


def cast(x: Tensor, dtype: DType) -> Tensor:
    """A dense copy of `x` in `dtype`: floats to integers truncate, anything but zero is True.

    A complex number that becomes a real one leaves its real part.

    NaN or an infinity that meets an integer dtype is an error where the result is read.
    """
    op = _cast if dtype.inexact else _cast_away
    out: Tensor = op.call(x, dtype)
    return out


def arranged(x: Tensor, dtype: DType, stride: tuple[int, ...] | None) -> Tensor:
    """A copy of `x` in `dtype` with these strides, without gaps; None is C order."""
    if stride is None or x._meta.numel == 0:
        return cast(x, dtype)
    op = _arrange if dtype.inexact else _arrange_away
    out: Tensor = op.call(x, dtype, stride)
    return out


@method()
def clone(x: Tensor, *, memory_format: object = None) -> Tensor:
    """Return a copy of `x` without gaps; gradients flow through it.

    Its elements have the order of `x`'s, or of `memory_format`.

    >>> x = flow.zeros(2)
    >>> y = x.clone()
    >>> y[0] = 1
    >>> x, y
    (tensor([0., 0.]), tensor([1., 0.]))
    """
    try:
        stride = None
        if memory_format is not None or not x._meta.contiguous:
            stride = format_stride("clone", x._meta, memory_format)
        return arranged(x, x._meta.dtype, stride)
    except AttributeError as error:
        raise refused("clone", x, error) from None


def laid_as(out: Tensor, x: Tensor) -> Tensor:
    """Return `out`, a fresh tensor of `x`'s shape, or a copy that lies in memory as one of `x`."""
    if x._meta.contiguous and out._meta.contiguous:
        return out
    stride = format_stride("copy", x._meta, None)
    if out._meta.contiguous if stride is None else out._meta.stride == stride:
        return out
    return arranged(out, out._meta.dtype, stride)


def clone_for(x: Tensor, others: Sequence[Tensor], c_order: bool = False) -> Tensor:
    """Return a copy of `x` outside of the graph, to be changed by the others: inside `vmap` with
    memory for each example that these differ in.  It lies as `x`, or in `c_order`.
    """
    metas = [t._meta for t in others]
    if not differs_more(x._meta, *metas):
        plain = x.detach()
        return cast(plain, x._meta.dtype) if c_order else clone(plain)
    out = empty_of(made_for(x._meta, *metas))
    return copy_(out, alias(x, x._meta))


@method()
def contiguous(x: Tensor, memory_format: Any = None) -> Tensor:
    """Return `x` if its elements are in C order, or in that of `memory_format`; else return a copy.

    >>> x = flow.ones(2, 3).t()
    >>> x.is_contiguous(), x.contiguous().is_contiguous()
    (False, True)
    """
    try:
        if memory_format is not None and memory_format is not contiguous_format:
            if memory_format is preserve_format:
                raise ArgumentError(
                    "contiguous: preserve_format names no order of elements; use clone()"
                )
            stride = format_stride("contiguous", x._meta, memory_format)
            is_laid_out = x.is_contiguous(memory_format=memory_format)
            return x if is_laid_out else arranged(x, x._meta.dtype, stride)
        return x if x._meta.contiguous else cast(x, x._meta.dtype)
    except AttributeError as error:
        raise refused("contiguous", x, error) from None


@method()
def detach(x: Tensor) -> Tensor:
    """`x` outside the autograd graph: the same memory, no gradient.

    >>> x = flow.ones(2, requires_grad=True) * 2
    >>> x.requires_grad, x.detach().requires_grad
    (True, False)
    """
    try:
        return alias(x, x._meta)
    except AttributeError as error:
        raise refused("detach", x, error) from None


@method()
@steady
@spelled(other="src")
def copy_(x: Tensor, src: object, non_blocking: bool = False) -> Tensor:
    """Write `src`, broadcast to `x`'s shape and converted to its dtype, into `x`; a number, too.

    Neither copies on a device nor between devices block, whatever is asked for.

    >>> flow.zeros(2).copy_(flow.tensor([1, 2]))
    tensor([1., 2.])
    """
    if isinstance(src, (bool, int, float, complex)):
        src = number_tensor(src, result_type(src))
    if not isinstance(src, Tensor):
        raise ArgumentTypeError(f"copy_: src must be a Tensor, got {type(src).__name__}")
    if broadcast_shapes(x._meta.shape, src._meta.shape) != tuple(x._meta.shape):
        raise ShapeError(
            f"copy_: src of shape {tuple(src.shape)} does not broadcast to {tuple(x.shape)}"
        )
    source = _apart(x, moved(src, x._meta.device))
    pending = record_in_place("copy_", _copy_over, x, (x, source), ())  # type: ignore[arg-type]
    seq = call_into(_copy, (x,), (source,), traced=pending is None)
    x.bump()
    if pending is not None:
        pending.node.seq = seq
        pending.finish(x)
    return x


def _format_of(x: Tensor) -> MemoryFormat:
    """The memory format that PyTorch takes a tensor to have: channels last, or else this."""
    for form in () if x._meta.contiguous else (channels_last, channels_last_3d):
        if x.is_contiguous(memory_format=form):
            return form
    return contiguous_format


@method()
def to(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`x` in another dtype, on another device, or both.

    `x.to(flow.float64)`, `x.to("cpu")`, `x.to("cpu", flow.float64)`, `x.to(other)`; behind them or
    by name `non_blocking` and `copy`, and by name `memory_format`.

    `x` itself if nothing changes and `copy` is not True.

    >>> x = flow.tensor([1.5, -1.5])
    >>> x.to(flow.int64), x.to("cpu") is x
    (tensor([ 1, -1]), True)
    """
    try:
        dtype, device = kwargs.pop("dtype", None), kwargs.pop("device", None)
        other, copy = kwargs.pop("other", None), kwargs.pop("copy", False)
        flags = []
        for arg in args if other is None else (other, *args):
            if isinstance(arg, Tensor):
                dtype, device = arg._meta.dtype, arg._meta.device
            elif isinstance(arg, bool):
                flags.append(arg)
            elif isinstance(arg, (str, Device, int)):
                device = arg
            elif hasattr(arg, "of_tensor"):  # OneFlow's: a tensor as a graph sees it
                return arg.of_tensor(x)  # type: ignore[no-any-return]
            elif arg is not None:
                dtype = arg
        if len(flags) > 1:
            copy = flags[1]
        form = kwargs.pop("memory_format", None)
        if kwargs or len(flags) > 2:
            accept("to", kwargs)
        target = x._meta.dtype if dtype is None else as_dtype(dtype)
        on_device = x if device is None else moved(x, as_device(device))
        converts = form is not None and form is not preserve_format
        if target is x._meta.dtype and not (copy and on_device is x):
            if not converts or form is _format_of(on_device):
                return on_device
        elif on_device._meta.contiguous and not converts:
            return cast(on_device, target)
        return arranged(on_device, target, format_stride("to", on_device._meta, form))
    except AttributeError as error:
        raise refused("to", x, error) from None


@method()
def to_device(x: Tensor, device: Device | str, /, *, stream: None = None) -> Tensor:
    """`x` on another device: the array API standard's name for `x.to(device)`.

    ArgumentError for a stream, since copies wait for nobody's.

    >>> flow.ones(2).to_device("cpu")
    tensor([1., 1.])
    """
    if stream is not None:
        raise ArgumentError(f"to_device: stream is None, got {stream!r}")
    return moved(x, as_device(device))


class _ViewOperator:
    """Stands for the operator of a view in autograd nodes; no instruction belongs to it."""

    def __init__(self, name: str, grad: object) -> None:
        self.name = name
        self.grad = grad


_views: dict[str, _ViewOperator] = {}


def view_of(
    x: Tensor, name: str, meta: TensorMeta, offset: int, grad: Any, attrs: Attrs = ()
) -> Tensor:
    """A view of `x`: `meta` on the same memory, `offset` elements further on.

    `grad(c, g)` gives the gradient of `x`, with `c.metas` (x's meta) and `c.attrs`; always the same
    function for a `name`.
    """
    out = alias(x, meta, offset * meta.dtype.itemsize)
    op = _views.get(name)
    if op is None:
        op = _views.setdefault(name, _ViewOperator(name, grad))
    if hot["departed"] and (trace := current_trace_recorder()) is not None:
        trace.named(out, op, attrs)
    base = out._kin = x if x._storage is None else base_of(x)
    if meta.parted:
        out.extra().update(hot["global_links"](x, out, meta, offset))
    if grad_enabled():
        if x._node is not None:
            out._node = Node(op, (x._node,), (), (), (x._meta,), attrs, (out._meta,))
        if base._node is None or not base._node.is_leaf:
            remember_view(base, out)
    return out


@steady
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
