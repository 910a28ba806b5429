"""Views that keep every element: other shapes, other orders of dimensions, dimensions added and
repeated.

A view is a meta and an offset on the same memory; no instruction is issued.  Writing through it
changes the tensor it was made of, and both count the same version.  The gradient of a view is the
opposite view, or a sum where elements were repeated, so it is differentiable again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.keywords import spelled
from flowvm.eager.modes import recording
from flowvm.eager.native.trace_cache import steady
from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentError, DeviceError, ShapeError
from flowvm.guards.lru_cache import lru_cached
from flowvm.meta.batched_meta import in_elements
from flowvm.meta.device import cpu
from flowvm.meta.dtype import DType, as_dtype
from flowvm.meta.meta import Size, TensorMeta, as_shape
from flowvm.ops.declare.composite import need_tensor, whole, wrap_dim, wrap_dims
from flowvm.ops.declare.core import contiguous, sum_to, view_of
from flowvm.ops.declare.registry import Sample, broadcast_shapes, samples
from flowvm.vm.machine.words import OPERAND

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node
    from flowvm.meta.dtype import DTypeLike


# public: flow


def _dims_of(dims: tuple[Any, ...]) -> tuple[int, ...]:
    """Dimensions written one by one or as one tuple, list or Size."""
    if len(dims) == 1 and isinstance(dims[0], (tuple, list)):
        dims = tuple(dims[0])
    for d in dims:
        if type(d) is not int:
            break
    else:
        return dims
    return tuple(whole("shape", "a size", d) for d in dims)


# --- reshape ------------------------------------------------------------------------------------


def _inferred(name: str, meta: TensorMeta, shape: tuple[int, ...]) -> Size:
    """Return `shape` without -1; ShapeError unless it has as many elements as `meta`."""
    if -1 in shape:
        product = math.prod(d for d in shape if d != -1)
        if shape.count(-1) > 1:
            raise ArgumentError(f"{name}: only one dimension can be -1, got {shape}")
        if product == 0 or meta.numel % product:
            raise ShapeError(
                f"{name}: {meta.numel} elements (shape {tuple(meta.shape)}) do not fill shape "
                f"{shape}"
            )
        shape = tuple(meta.numel // product if d == -1 else d for d in shape)
    size = as_shape(shape)
    if size.numel() != meta.numel:
        raise ShapeError(
            f"{name}: shape {tuple(meta.shape)} has {meta.numel} elements, shape {shape} has "
            f"{size.numel()}"
        )
    return size


def _restride(meta: TensorMeta, shape: Size) -> tuple[int, ...] | None:
    """The strides that show `meta`'s elements as `shape`, or None where only a copy can.

    Runs of dimensions that lie without gaps are matched, from the last, with dimensions of `shape`.
    """
    stride = [1] * len(shape)
    j = len(shape) - 1
    run, step = 1, 0  # elements in the run of old dimensions so far, and the stride of its last
    old = [(d, s) for d, s in zip(meta.shape, meta.stride, strict=True) if d != 1]
    for i in range(len(old) - 1, -1, -1):
        d, s = old[i]
        if run == 1:
            step = s
        run *= d
        if i > 0 and old[i - 1][1] == d * s:
            continue
        filled = 1
        while j >= 0 and (filled < run or shape[j] == 1):
            stride[j] = step * filled
            filled *= shape[j]
            j -= 1
        if filled != run:
            return None
        run = 1
    return tuple(stride)


@lru_cached("views")
def _reshaped(meta: TensorMeta, shape: tuple[int, ...]) -> tuple[Size, TensorMeta | None]:
    """The shape without -1, and the view's meta if a view can do it."""
    size = _inferred("reshape", meta, shape)
    if meta.contiguous:
        return size, TensorMeta.of(size, meta.dtype, meta.device)
    stride = _restride(meta, size)
    return size, None if stride is None else TensorMeta.of(size, meta.dtype, meta.device, stride)


def _reshape_grad(c: Node, g: Tensor) -> tuple[Tensor]:
    return (reshape(g, c.metas[0].shape),)


@method("reshape")
@steady
@spelled(shape="*")
def _reshape_method(x: Tensor, *shape: Any) -> Tensor:
    """Return the elements in another shape, `x.reshape(2, -1)`; see `flow.reshape`.

    >>> flow.arange(6).reshape(2, -1)
    tensor([[0, 1, 2],
            [3, 4, 5]])
    """
    sizes = _dims_of(shape)
    try:
        size, meta = _reshaped(x._meta, sizes)
    except AttributeError:
        size, meta = _reshaped(need_tensor("reshape", "input", x)._meta, sizes)
    if meta is None:
        x = contiguous(x)
        _, meta = _reshaped(x._meta, size)
        assert meta is not None  # a contiguous tensor takes any shape
    return view_of(x, "reshape", meta, 0, _reshape_grad)


@steady
def reshape(input: Tensor, shape: Sequence[int]) -> Tensor:
    """The elements of `input` in C order as a tensor of `shape`; one dimension may be -1 and is
    worked out.

    A view where the strides allow it, else a copy.  ShapeError when the numbers of elements differ.

    >>> flow.reshape(flow.arange(6), (2, -1)).shape
    flow.Size([2, 3])
    """
    return _reshape_method(input, shape)


@lru_cached("views")
def _seen_as(meta: TensorMeta, dtype: DType, offset: int) -> TensorMeta:
    """Return `meta` seen as `dtype`, if its bytes lie so.

    `offset` is the position of its first byte, or 0 if the dtype may begin there.
    """
    old, new = meta.dtype.itemsize, dtype.itemsize
    shape, stride = tuple(meta.shape), meta.stride
    if old != new:
        what = f"view: {meta.dtype.name} cannot be seen as {dtype.name}, of another size"
        if not shape:
            raise ShapeError(f"{what}, in a 0-d tensor; give it a dimension with reshape(1)")
        *rows, step = stride
        if step != 1:
            raise ShapeError(f"{what}: the last dimension has stride {step}; use contiguous()")
        if shape[-1] * old % new or offset % new or any(s * old % new for s in rows):
            raise ShapeError(
                f"{what}: rows of shape {shape}, strides {stride} and storage offset "
                f"{offset // old} are not multiples of {new} bytes"
            )
        shape = (*shape[:-1], shape[-1] * old // new)
        stride = (*(s * old // new for s in rows), 1)
    return TensorMeta.of(Size(shape), dtype, in_elements(meta.device, old, new), stride)


def _of_dtype(x: Tensor, dtype: DType) -> Tensor:
    if dtype.is_complex and x._meta.device.type != cpu.type:
        raise DeviceError(f"complex tensors are not on CUDA, and this one is on {x._meta.device}")
    offset = x._ref >> OPERAND.STORAGE_BITS
    meta = _seen_as(x._meta, dtype, offset if offset % dtype.itemsize else 0)
    with recording(False):
        return view_of(x, "view_dtype", meta, 0, None)


@method("view")
@steady
def _view(x: Tensor, *shape: Any, size: Any = None, dtype: DTypeLike | None = None) -> Tensor:
    """A view of the same memory in another shape, or as another dtype; ShapeError where only a copy
    could have it (use reshape).

    Of a dtype of another size the last dimension becomes longer or shorter: it lies without gaps,
    and the bytes of every row fill elements.  Such a view is outside the graph.

    >>> flow.arange(6).view(2, 3)
    tensor([[0, 1, 2],
            [3, 4, 5]])
    >>> flow.tensor([1.0, -2.0]).view(flow.int32)
    tensor([ 1065353216, -1073741824], dtype=int32)
    """
    if dtype is not None or (len(shape) == 1 and isinstance(shape[0], DType)):
        return _of_dtype(x, shape[0] if dtype is None else as_dtype(dtype))
    if size is not None:
        shape = (size,)
    size, meta = _reshaped(x._meta, _dims_of(shape))
    if meta is None:
        raise ShapeError(
            f"view: shape {tuple(x.shape)} with strides {x.stride()} cannot be seen as "
            f"{tuple(size)} "
            f"without a copy; use reshape"
        )
    return view_of(x, "reshape", meta, 0, _reshape_grad)


# not public
@method()
@steady
def view_as(x: Tensor, other: Tensor) -> Tensor:
    """`x.view(other.shape)`.

    >>> flow.arange(6).view_as(flow.ones(2, 3))
    tensor([[0, 1, 2],
            [3, 4, 5]])
    """
    return _view(x, other._meta.shape)


# not public
@method()
@steady
def reshape_as(x: Tensor, other: Tensor) -> Tensor:
    """`x.reshape(other.shape)`."""
    return reshape(x, other._meta.shape)


@method()
@steady
def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Dimensions `start_dim` to `end_dim` made one; a 0-d tensor becomes 1-d.

    >>> flow.ones(2, 3, 4).flatten(1).shape
    flow.Size([2, 12])
    """
    shape = need_tensor("flatten", "input", input)._meta.shape
    start = wrap_dim("flatten", start_dim, len(shape))
    end = wrap_dim("flatten", end_dim, len(shape))
    if start > end:
        raise ArgumentError(f"flatten: start_dim {start_dim} comes after end_dim {end_dim}")
    if start == end and shape:
        return input
    middle = math.prod(shape[start : end + 1])
    return reshape(input, (*shape[:start], middle, *shape[end + 1 :]))


@method()
@steady
def unflatten(input: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """Return a view in which dimension `dim` is split into `sizes`, one of which may be -1.

    >>> flow.unflatten(flow.ones(6), 0, (2, -1)).shape
    flow.Size([2, 3])
    """
    shape = need_tensor("unflatten", "input", input)._meta.shape
    at = wrap_dim("unflatten", dim, len(shape))
    sizes = _dims_of((sizes,))
    product = math.prod(d for d in sizes if d != -1)
    fits = shape[at] == product if -1 not in sizes else product > 0 and shape[at] % product == 0
    if not fits or sizes.count(-1) > 1 or not sizes:
        raise ShapeError(f"unflatten: dimension {dim} of size {shape[at]} cannot become {sizes}")
    sizes = tuple(shape[at] // product if d == -1 else d for d in sizes)
    return reshape(input, (*shape[:at], *sizes, *shape[at + 1 :]))


@method()
@steady
def ravel(input: Tensor) -> Tensor:
    """All elements in one dimension: a view if the tensor is contiguous.

    >>> flow.ravel(flow.tensor([[1, 2], [3, 4]]))
    tensor([1, 2, 3, 4])
    """
    need_tensor("ravel", "input", input)
    return reshape(input, (-1,)) if input.numel() else reshape(input, (0,))


# --- the order of dimensions --------------------------------------------------------------------


@lru_cached("views")
def _permuted(meta: TensorMeta, dims: tuple[int, ...]) -> tuple[TensorMeta, tuple[int, ...]]:
    if len(dims) != meta.ndim:
        raise ShapeError(
            f"permute: {dims} names {len(dims)} dimensions of a tensor with {meta.ndim} "
            f"(shape {tuple(meta.shape)})"
        )
    order = wrap_dims("permute", dims, meta.ndim) if dims else ()
    shape = Size(meta.shape[d] for d in order)
    stride = tuple(meta.stride[d] for d in order)
    back = tuple(order.index(d) for d in range(meta.ndim))
    return TensorMeta.of(shape, meta.dtype, meta.device, stride), back


def _permute_grad(c: Node, g: Tensor) -> tuple[Tensor]:
    return (_permute(g, c.attrs[0]),)


def _permute(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    meta, back = _permuted(x._meta, dims)
    return view_of(x, "permute", meta, 0, _permute_grad, (back,))


@method("permute")
@steady
@spelled(dims="*")
def _permute_method(x: Tensor, *dims: object) -> Tensor:
    """The dimensions in the order `dims`: `x.permute(0, 2, 1)` or `x.permute((0, 2, 1))`.

    >>> flow.ones(2, 3, 4).permute(2, 0, 1).shape
    flow.Size([4, 2, 3])
    """
    return _permute(x, _dims_of(dims))


@steady
def permute(input: Tensor, dims: Sequence[int]) -> Tensor:
    """A view with the dimensions in the order `dims`, each named once.

    >>> flow.permute(flow.ones(2, 3, 4), (2, 0, 1)).shape
    flow.Size([4, 2, 3])
    """
    return _permute(need_tensor("permute", "input", input), _dims_of((dims,)))


@lru_cached("views")
def _swapped(ndim: int, dim0: int, dim1: int) -> tuple[int, ...]:
    a, b = wrap_dim("transpose", dim0, ndim), wrap_dim("transpose", dim1, ndim)
    order = list(range(ndim))
    if order:
        order[a], order[b] = b, a
    return tuple(order)


@method()
@steady
@spelled(axis0="dim0", axis1="dim1")
def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """A view with dimensions `dim0` and `dim1` exchanged.

    >>> flow.swapaxes(flow.ones(2, 3, 4), 0, 2).shape
    flow.Size([4, 3, 2])
    """
    x = need_tensor("transpose", "input", input)
    return _permute(x, _swapped(x._meta.ndim, dim0, dim1))


swapaxes = swapdims = transpose  # public: flow
method("swapaxes")(transpose)
method("swapdims")(transpose)


@method()
@steady
def t(input: Tensor) -> Tensor:
    """The transpose of a matrix; a vector or a 0-d tensor as it is.

    >>> flow.t(flow.tensor([[1, 2], [3, 4]]))
    tensor([[1, 3],
            [2, 4]])
    """
    ndim = need_tensor("t", "input", input)._meta.ndim
    if ndim > 2:
        raise ShapeError(f"t() is for at most 2 dimensions, got {ndim}; use transpose or permute")
    return transpose(input, 0, 1) if ndim == 2 else input


@method()
@steady
def movedim(input: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """A view with the dimensions `source` moved to the places `destination`, the others in their
    order.

    >>> flow.moveaxis(flow.ones(2, 3, 4), 0, -1).shape
    flow.Size([3, 4, 2])
    """
    x = need_tensor("movedim", "input", input)
    ndim = x._meta.ndim
    sources, places = wrap_dims("movedim", source, ndim), wrap_dims("movedim", destination, ndim)
    if len(sources) != len(places):
        raise ShapeError(
            f"movedim: {source} and {destination} name different numbers of dimensions"
        )
    if ndim == 0:
        return x
    moved = dict(zip(places, sources, strict=True))
    rest = iter(d for d in range(ndim) if d not in sources)
    return _permute(x, tuple(moved[d] if d in moved else next(rest) for d in range(ndim)))


moveaxis = movedim  # public: flow
method("moveaxis")(movedim)


@steady
def _reversed(x: Tensor) -> Tensor:
    """The dimensions in reverse order: the transpose of a matrix.

    >>> flow.tensor([[1, 2], [3, 4]]).T
    tensor([[1, 3],
            [2, 4]])
    """
    return _permute(x, tuple(range(x._meta.ndim))[::-1])


@steady
def _matrix_transpose(x: Tensor) -> Tensor:
    """The last two dimensions exchanged.

    >>> flow.ones(2, 3, 4).mT.shape
    flow.Size([2, 4, 3])
    """
    if x._meta.ndim < 2:
        raise ShapeError(f"mT needs at least 2 dimensions, got shape {tuple(x.shape)}")
    return transpose(x, -2, -1)


for _name, _property in (("T", _reversed), ("mT", _matrix_transpose)):
    setattr(Tensor, _name, property(_property))


# --- dimensions repeated, removed and added -----------------------------------------------------


@lru_cached("views")
def _expanded(meta: TensorMeta, sizes: tuple[int, ...]) -> TensorMeta:
    lead = len(sizes) - meta.ndim
    if lead < 0:
        raise ShapeError(
            f"expand: {sizes} has fewer dimensions than the tensor's shape {tuple(meta.shape)}"
        )
    shape, stride = [], []
    for i, size in enumerate(sizes):
        d, s = (meta.shape[i - lead], meta.stride[i - lead]) if i >= lead else (1, 0)
        if size == -1 and i >= lead:
            size = d
        if size < 0 or (size != d and d != 1):
            raise ShapeError(
                f"expand: shape {tuple(meta.shape)} cannot be expanded to {sizes}: at dimension "
                f"{i}, "
                f"{d} is not 1"
                + (" and a new dimension cannot be -1" if size < 0 and i < lead else "")
            )
        shape.append(size)
        stride.append(s if size == d and i >= lead else 0)
    return TensorMeta.of(Size(shape), meta.dtype, meta.device, tuple(stride))


def _expand_grad(c: Node, g: Tensor) -> tuple[Tensor]:
    return (sum_to(g, c.metas[0].shape),)


# not public
@method()
@steady
@spelled(size="*")
def expand(x: Tensor, *sizes: Any, implicit: bool = False) -> Tensor:
    """A view in which dimensions of size 1 are repeated to `sizes` (-1: as it is); new ones come in
    front.  PyTorch's `implicit` changes nothing.

    >>> flow.tensor([[1], [2]]).expand(-1, 3)
    tensor([[1, 1, 1],
            [2, 2, 2]])
    """
    return view_of(x, "expand", _expanded(x._meta, _dims_of(sizes)), 0, _expand_grad)


@method()
@steady
@spelled(size="shape")
def broadcast_to(input: Tensor, shape: Sequence[int]) -> Tensor:
    """`input.expand(shape)`."""
    x = need_tensor("broadcast_to", "input", input)
    return expand(x, shape)


# not public
@method()
@steady
def expand_as(x: Tensor, other: Tensor) -> Tensor:
    """`x.expand(other.shape)`.

    >>> flow.tensor([[1], [2]]).expand_as(flow.ones(2, 3))
    tensor([[1, 1, 1],
            [2, 2, 2]])
    """
    return expand(x, other._meta.shape)


def broadcast_like(
    input: Tensor, like_tensor: Tensor, broadcast_axes: Sequence[int] = ()
) -> Tensor:
    """OneFlow's: `input` seen in the shape of `like_tensor`, without a copy.

    broadcast_axes   the dimensions of `like_tensor` that `input` lacks, or has of size 1; without
                     them it lacks the first ones

    ShapeError where that is no such view, OutOfRangeError for an axis that is not there.

    >>> x = flow.tensor([1, 2])
    >>> flow.broadcast_like(x, flow.ones(2, 3), broadcast_axes=[1])
    tensor([[1, 1, 1],
            [2, 2, 2]])
    """
    x: Tensor = need_tensor("broadcast_like", "input", input)
    shape = need_tensor("broadcast_like", "like_tensor", like_tensor)._meta.shape
    axes = {wrap_dim("broadcast_like", axis, len(shape)) for axis in broadcast_axes or ()}
    if axes and x.ndim == len(shape) - len(axes):
        for axis in sorted(axes):
            x = unsqueeze(x, axis)
    return expand(x, *shape)


def broadcast_tensors(*tensors: Any) -> tuple[Tensor, ...]:
    """The tensors expanded to the shape that they have together.

    >>> a, b = flow.broadcast_tensors(flow.ones(3), flow.ones(2, 1))
    >>> a.shape, b.shape
    (flow.Size([2, 3]), flow.Size([2, 3]))
    """
    if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)):
        tensors = tuple(tensors[0])
    shape = broadcast_shapes(
        *(need_tensor("broadcast_tensors", "tensors", t).shape for t in tensors)
    )
    return tuple(expand(t, shape) for t in tensors)


@lru_cached("views")
def _squeezed(meta: TensorMeta, dims: tuple[int, ...] | None) -> TensorMeta:
    drop = set(range(meta.ndim) if dims is None else wrap_dims("squeeze", dims, meta.ndim))
    keep = [i for i in range(meta.ndim) if not (i in drop and meta.shape[i] == 1)]
    shape, stride = Size(meta.shape[i] for i in keep), tuple(meta.stride[i] for i in keep)
    return TensorMeta.of(shape, meta.dtype, meta.device, stride)


@method()
@steady
def squeeze(input: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """Return a view without the dimensions of size 1: all, or only the ones among `dim`.

    >>> flow.squeeze(flow.ones(1, 3, 1)).shape
    flow.Size([3])
    """
    x = need_tensor("squeeze", "input", input)
    dims = None if dim is None else tuple(dim) if isinstance(dim, (tuple, list)) else (dim,)
    return view_of(x, "reshape", _squeezed(x._meta, dims), 0, _reshape_grad)


@lru_cached("views")
def _unsqueezed(meta: TensorMeta, dim: int) -> TensorMeta:
    at = wrap_dim("unsqueeze", dim, meta.ndim + 1)
    step = meta.stride[at] * meta.shape[at] if at < meta.ndim else 1
    shape = Size((*meta.shape[:at], 1, *meta.shape[at:]))
    stride = (*meta.stride[:at], step, *meta.stride[at:])
    return TensorMeta.of(shape, meta.dtype, meta.device, stride)


@method()
@steady
def unsqueeze(input: Tensor, dim: int) -> Tensor:
    """A view with a dimension of size 1 at `dim`.

    >>> flow.unsqueeze(flow.tensor([1, 2]), 1)
    tensor([[1],
            [2]])
    """
    x = need_tensor("unsqueeze", "input", input)
    return view_of(x, "reshape", _unsqueezed(x._meta, dim), 0, _reshape_grad)


# --- samples ------------------------------------------------------------------------------------


def _xs(rng: np.random.Generator, *calls: tuple[Any, ...]) -> list[Sample]:
    """A sample for each (shape, arguments...)."""
    return [Sample((np.asarray(rng.standard_normal(shape)), *rest)) for shape, *rest in calls]


samples(
    reshape,
    lambda rng: _xs(
        rng,
        ((2, 3, 4), (4, -1)),
        ((2, 6), (2, 2, 3)),
        ((), (1, 1)),
        ((0, 3), (3, 0, 2)),
        ((1,), ()),
    ),
    np.reshape,
    errors=(
        (lambda flow: flow.reshape(flow.ones(4), (3,)), RuntimeError),
        (lambda flow: flow.reshape(flow.ones(4), (-1, -1)), ValueError),
        (lambda flow: flow.reshape(flow.ones(4), (-1, 3)), RuntimeError),
        (lambda flow: flow.reshape([1.0], (1,)), TypeError),
        (lambda flow: flow.ones(2, 3).T.view(6), RuntimeError),
        (lambda flow: flow.ones(2, 3).reshape(2.5), TypeError),
    ),
)
samples(
    flatten,
    lambda rng: _xs(
        rng, ((2, 3, 2),), ((2, 3, 2), 1), ((2, 3, 2), 0, -2), ((),), ((0, 3),), ((3,),)
    ),
    lambda x, start=0, end=-1: x.reshape(
        *x.shape[:start], -1 if x.size else 0, *x.shape[x.ndim + end + 1 if end < 0 else end + 1 :]
    ),
    errors=(
        (lambda flow: flow.flatten(flow.ones(2, 2), 1, 0), ValueError),
        (lambda flow: flow.flatten(flow.ones(2, 2), 2), IndexError),
    ),
)
samples(
    unflatten,
    lambda rng: _xs(rng, ((2, 6), 1, (2, 3)), ((2, 6), -1, (-1, 2)), ((4, 1), 0, (2, 2))),
    lambda x, dim, sizes: x.reshape(*x.shape[: dim % x.ndim], *sizes, *x.shape[dim % x.ndim + 1 :]),
    errors=((lambda flow: flow.unflatten(flow.ones(2, 6), 1, (4, 2)), RuntimeError),),
)
samples(ravel, lambda rng: _xs(rng, ((2, 3),), ((),), ((0, 2),)), np.ravel)
samples(
    permute,
    lambda rng: _xs(rng, ((2, 3, 4), (2, 0, 1)), ((2, 3), (-1, 0)), ((), ()), ((3,), (0,))),
    np.transpose,
    errors=(
        (lambda flow: flow.permute(flow.ones(2, 2), (0,)), RuntimeError),
        (lambda flow: flow.permute(flow.ones(2, 2), (0, 0)), IndexError),
    ),
)
samples(
    transpose,
    lambda rng: _xs(rng, ((2, 3, 4), 0, 2), ((2, 3), -1, -2), ((0, 3), 0, 1), ((), 0, -1)),
    lambda x, a, b: np.swapaxes(x, a, b) if x.ndim else x,
    errors=((lambda flow: flow.transpose(flow.ones(2, 2), 0, 2), IndexError),),
)
samples(
    t,
    lambda rng: _xs(rng, ((2, 3),), ((3,),), ((),)),
    np.transpose,
    errors=((lambda flow: flow.t(flow.ones(2, 2, 2)), RuntimeError),),
)
samples(
    movedim,
    lambda rng: _xs(rng, ((2, 3, 4), 0, 2), ((2, 3, 4), (0, 1), (-1, 0)), ((2, 3, 4), -1, 0)),
    np.moveaxis,
    errors=((lambda flow: flow.movedim(flow.ones(2, 2), (0, 1), 0), RuntimeError),),
)
samples(
    broadcast_to,
    lambda rng: _xs(rng, ((3, 1), (2, 3, 4)), ((), (2, 2)), ((1, 2), (0, 2)), ((2,), (2,))),
    np.broadcast_to,
    errors=(
        (lambda flow: flow.broadcast_to(flow.ones(3), (2,)), RuntimeError),
        (lambda flow: flow.broadcast_to(flow.ones(2, 1), (3,)), RuntimeError),
        (lambda flow: flow.ones(2).expand(-1, 2), RuntimeError),
    ),
)
samples(
    broadcast_tensors,
    lambda rng: [
        Sample((rng.standard_normal((3, 1)), rng.standard_normal((1, 2)))),
        Sample((np.array(0.5), rng.standard_normal((2, 2)))),
    ],
    np.broadcast_arrays,
    errors=((lambda flow: flow.broadcast_tensors(flow.ones(3), flow.ones(2)), RuntimeError),),
)
samples(
    squeeze,
    lambda rng: _xs(rng, ((1, 3, 1),), ((1, 3, 1), 0), ((1, 3, 1), (0, -1)), ((),), ((1, 0),)),
    np.squeeze,
    errors=((lambda flow: flow.squeeze(flow.ones(2), 1), IndexError),),
)
samples(
    unsqueeze,
    lambda rng: _xs(rng, ((2, 3), 0), ((2, 3), -1), ((2, 3), 1), ((), 0)),
    np.expand_dims,
    errors=((lambda flow: flow.unsqueeze(flow.ones(2), 3), IndexError),),
)
