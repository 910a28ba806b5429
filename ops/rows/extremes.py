"""Extremes and where they are: max, min, argmax, argmin, aminmax, median.

The first of equal elements wins, and a NaN beats every number, as in PyTorch.  The gradient of a
value with an index goes to the element at that index; that of `max(x)` and `median(x)` without one
is shared by equal elements.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm import return_types
from flowvm.eager.tensor import Tensor, alias, method
from flowvm.errors import ArgumentTypeError
from flowvm.launch import Launch, View
from flowvm.meta.dtype import bool_, int64, uint8
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.composite import Recorded, filled_of, need_tensor, record, wrap_dim
from flowvm.ops.declare.kinds import Dim
from flowvm.ops.declare.letters import fold
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.registry import Sample, op, operator_of, samples
from flowvm.ops.places.sort import kthvalue
from flowvm.ops.pointwise.clamp import maximum, minimum
from flowvm.ops.pointwise.compare import where
from flowvm.ops.rows.cpu import search_kernels
from flowvm.ops.rows.cpu.fold_launch import fold_launch
from flowvm.ops.rows.parts.fold_walk import kernel_input, shape_without, walk_of
from flowvm.ops.rows.parts.orders import LARGEST, SMALLEST, Order
from flowvm.ops.rows.reduce import amax, amin, of_all, require_elements
from flowvm.ops.shapes.fill import zeros_like

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowvm.eager.nodes import Node
    from flowvm.meta.arrays import Array


# public: flow

_rows_body = functools.cache(search_kernels.rows_body)
_columns_body = functools.cache(search_kernels.columns_body)


def _launch(order: Order, x: TensorMeta, dim: int, keepdim: bool) -> Launch:
    """The launch, where there is a walk.  The values of reduced floats are float32."""
    walk = walk_of(x, (dim,))
    assert walk is not None
    kind = x.dtype.compute
    values = x.with_shape(shape_without(x.shape, (dim,), keepdim), kind)
    source, lift = kernel_input(x.dtype)
    numbers = uint8 if kind is bool_ else kind
    results = walk.results
    views = (View(numbers, (results,)), View(int64, (results,)), View(source, (walk.extent,)))
    outputs = (values, values.dense(int64))
    own: object = numbers.numpy.type
    bodies = _rows_body(order, own, lift), _columns_body(order, own, lift)
    return fold_launch(outputs, bodies, views, walk, 2)


@op(
    "x -> values, indices",
    name="max",
    dense=False,
    half="native",
    cuda="reductions:largest",
    letters=fold(),
)
def _largest(x: TensorMeta, dim: Dim, keepdim: bool) -> Launch:
    return _launch(LARGEST, x, dim, keepdim)


@op(
    "x -> values, indices",
    name="min",
    dense=False,
    half="native",
    cuda="reductions:smallest",
    letters=fold(),
)
def _smallest(x: TensorMeta, dim: Dim, keepdim: bool) -> Launch:
    return _launch(SMALLEST, x, dim, keepdim)


def _copied(search: Any) -> Callable[[Tensor, int, bool], Any]:
    """Return a fallback of `search` for an input that has no walk."""

    def fallback(x: Tensor, dim: int, keepdim: bool) -> object:
        return None if walk_of(x._meta, (dim,)) else search(x.contiguous(), dim, keepdim)

    return fallback


for _f in (_largest, _smallest):
    operator_of(_f).rules.fallback = _copied(_f)


def _selected_grad(c: Node, g: Tensor) -> tuple[Tensor]:
    (indices,) = c.saved
    dim, keepdim = c.attrs
    meta = c.metas[0]
    if not keepdim:
        g, indices = g.unsqueeze(dim), indices.unsqueeze(dim)
    start = zeros_like(g).expand(meta.shape)
    return (start.scatter(dim, indices, g),)


_max_node = Recorded("max", _selected_grad, ("x",), "indices")
_min_node = Recorded("min", _selected_grad, ("x",), "indices")


def _search(search: Any, x: Tensor, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    """Values and indices, outside the graph.  A 0-d tensor is a vector of one."""
    meta = x._meta
    if meta.ndim == 0:
        values, indices = _search(
            search, alias(x, TensorMeta.of((1,), meta.dtype, meta.device)), 0, False
        )
    elif meta.numel == 0:
        nothing = meta.with_shape(shape_without(meta.shape, (dim,), keepdim))
        values, indices = filled_of(nothing), filled_of(nothing, 0, int64)
    else:
        bare = x if x._node is None else alias(x, meta)
        values, indices = search(bare, dim, keepdim)
    return (values if values._meta.dtype is meta.dtype else values.to(meta.dtype)), indices


def _along(
    name: str, search: object, node: Recorded, x: Tensor, dim: int | Sequence[int], keepdim: bool
) -> tuple[Tensor, Tensor]:
    d = wrap_dim(name, dim, x._meta.ndim)
    if x._meta.ndim:
        require_elements(name, x, (d,))
    values, indices = _search(search, x, d, keepdim)
    if x._node is not None:
        record(node if x._meta.ndim else _same_node, (x,), values, (d, keepdim), (indices,))
    return values, indices


_same_node = Recorded("max", lambda c, g: (g,), ("x",), "indices")


def _dim_or_other(
    name: str, dim: object, keepdim: bool, options: dict[str, object]
) -> tuple[object, object]:
    """PyTorch's three forms in one: (dim, other)."""
    other = options.pop("other", None)
    if options:
        raise ArgumentTypeError(f"{name}() got an unknown argument {next(iter(options))!r}")
    if isinstance(dim, Tensor):
        dim, other = None, dim
    if other is not None and (dim is not None or keepdim):
        raise ArgumentTypeError(f"{name} takes dim, or a second tensor, not both")
    return dim, other


@with_out
def max(input: Tensor, dim: Any = None, keepdim: bool = False, **options: Any) -> Any:
    """Three forms: `max(x)`, the largest element; `max(x, dim)`, (values, indices) along `dim`;
    `max(x, other)`, `maximum`.

    >>> flow.max(flow.tensor([[1.0, 5.0], [7.0, 2.0]]), 1)
    flow.return_types.max(
    values=tensor([5., 7.]),
    indices=tensor([1, 0]))
    """
    need_tensor("max", "input", input)
    dim, other = _dim_or_other("max", dim, keepdim, options)
    if other is not None:
        return maximum(input, other)
    if dim is None:
        return of_all("max", input, amax(input.detach()))
    return return_types.max(_along("max", _largest, _max_node, input, dim, keepdim))


@with_out
def min(input: Tensor, dim: Any = None, keepdim: bool = False, **options: Any) -> Any:
    """Three forms: `min(x)`, the smallest element; `min(x, dim)`, (values, indices) along `dim`;
    `min(x, other)`, `minimum`.

    >>> flow.min(flow.tensor([3, 1, 2]))
    tensor(1)
    >>> flow.min(flow.tensor([[3, 1], [2, 4]]), dim=1).indices
    tensor([1, 0])
    """
    need_tensor("min", "input", input)
    dim, other = _dim_or_other("min", dim, keepdim, options)
    if other is not None:
        return minimum(input, other)
    if dim is None:
        return of_all("min", input, amin(input.detach()))
    return return_types.min(_along("min", _smallest, _min_node, input, dim, keepdim))


def _place(name: str, search: Any, input: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    need_tensor(name, "input", input)
    if dim is None:
        meta = input._meta
        flat = input.detach().contiguous()
        if meta.ndim != 1:
            flat = alias(flat, TensorMeta.of((meta.numel,), meta.dtype, flat._meta.device))
        require_elements(name, flat, (0,))
        place = _search(search, flat, 0, False)[1]
        shaped: Tensor = place.reshape((1,) * input._meta.ndim) if keepdim else place
        return shaped
    d = wrap_dim(name, dim, input._meta.ndim)
    if input._meta.ndim:
        require_elements(name, input, (d,))
    return _search(search, input, d, keepdim)[1]


@with_out
def argmax(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Return the index of the largest element along `dim`, int64; the first of equals.

    With `dim` None, the tensor is flattened.

    >>> x = flow.tensor([[1, 5, 3], [9, 2, 4]])
    >>> flow.argmax(x), flow.argmax(x, dim=1)
    (tensor(3), tensor([1, 0]))
    """
    return _place("argmax", _largest, input, dim, keepdim)


@with_out
def argmin(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Return the index of the smallest element along `dim`, int64; the first of equals.

    With `dim` None, the tensor is flattened.

    >>> x = flow.tensor([[1, 5, 3], [9, 2, 4]])
    >>> flow.argmin(x), flow.argmin(x, dim=1)
    (tensor(0), tensor([0, 1]))
    """
    return _place("argmin", _smallest, input, dim, keepdim)


@with_out
def aminmax(
    input: Tensor, *, dim: int | None = None, keepdim: bool = False
) -> return_types.aminmax:
    """The smallest and the largest element over `dim` (None: all): a pair (min, max).

    >>> low, high = flow.aminmax(flow.tensor([3, 1, 2]))
    >>> low, high
    (tensor(1), tensor(3))
    """
    dims: tuple[()] | int = () if dim is None else dim
    return return_types.aminmax((amin(input, dims, keepdim), amax(input, dims, keepdim)))


@with_out
def median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The median: `median(x)` of all elements, `median(x, dim)` as (values, indices).  The lower
    one of two; NaN if there is one.

    >>> flow.median(flow.tensor([5, 1, 3]))
    tensor(3)
    """
    need_tensor("median", "input", input)
    if dim is None:
        if input._meta.numel == 0 and input._meta.dtype.is_floating_point:
            return filled_of(input._meta.with_shape(()), math.nan)
        return of_all("median", input, _median(input.detach().reshape(-1), 0, False)[0])
    d = wrap_dim("median", dim, input._meta.ndim)
    if input._meta.ndim == 0:
        parts = _median(input.reshape(1), 0, False)
        return return_types.median(t.reshape(()) for t in parts)
    return return_types.median(_median(input, d, keepdim))


def _median(x: Tensor, d: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    require_elements("median", x, (d,))
    values, indices = kthvalue(x, (x._meta.shape[d] + 1) // 2, d, keepdim)
    if not x._meta.dtype.is_floating_point:
        return values, indices
    top, place = max(x, d, keepdim)  # NaN if there is one
    missing = top != top
    return where(missing, top, values), where(missing, place, indices)


for _f in (max, min, argmax, argmin, aminmax, median):
    method()(_f)


# --- samples ----------------------------------------------------------------------------------


def _distinct(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Numbers that no small change makes equal."""
    return rng.permutation(math.prod(shape)).reshape(shape) * 0.5 - 2.0


def _along_samples(rng: np.random.Generator) -> list[Sample]:
    x = _distinct(rng, (3, 4, 2))
    return [Sample((x,)), Sample((x, 1)), Sample((x, -1, True)), Sample((_distinct(rng, (5,)), 0))]


def _with_index(value: Any, place: Any) -> Callable[[Any, int | None, bool], Any]:
    def reference(x: Array, dim: int | None = None, keepdim: bool = False) -> object:
        if dim is None:
            return value(x)
        return value(x, axis=dim, keepdims=keepdim), place(x, axis=dim, keepdims=keepdim)

    return reference


def _median_reference(x: Array, dim: int | None = None, keepdim: bool = False) -> object:
    if dim is None:
        return np.sort(x, axis=None)[(x.size - 1) // 2]
    k = [(x.shape[dim] - 1) // 2]
    order = np.argsort(x, axis=dim, kind="stable").take(k, axis=dim)
    values = np.take_along_axis(x, order, dim)
    return (values, order) if keepdim else (values.squeeze(dim), order.squeeze(dim))


_errors = (
    (lambda flow: flow.max(flow.ones(2), 1), IndexError),
    (lambda flow: flow.max(flow.ones(0)), IndexError),
    (lambda flow: flow.max(flow.ones(2, 0), 1), IndexError),
    (lambda flow: flow.max(flow.ones(2), nonsense=1), TypeError),
)
samples(max, _along_samples, _with_index(np.max, np.argmax), errors=_errors)
samples(min, _along_samples, _with_index(np.min, np.argmin))
samples(
    argmax,
    _along_samples,
    lambda x, dim=None, keepdim=False: np.argmax(x, axis=dim, keepdims=keepdim),
    grad=False,
)
samples(
    argmin,
    _along_samples,
    lambda x, dim=None, keepdim=False: np.argmin(x, axis=dim, keepdims=keepdim),
    grad=False,
)
samples(
    aminmax,
    lambda rng: [
        Sample((_distinct(rng, (3, 4)),)),
        Sample((_distinct(rng, (3, 4)),), {"dim": 1, "keepdim": True}),
    ],
    lambda x, dim=None, keepdim=False: (
        np.min(x, axis=dim, keepdims=keepdim),
        np.max(x, axis=dim, keepdims=keepdim),
    ),
)
samples(median, _along_samples, _median_reference)
