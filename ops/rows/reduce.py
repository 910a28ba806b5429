"""Sums, products, extremes and truth over dimensions.

Each public function is one autograd node, whatever number of instructions it issues.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.autocast import autocast_dtype
from flowvm.eager.native.trace_cache import steady
from flowvm.eager.tensor import Tensor, alias, method
from flowvm.errors import ArgumentTypeError, DTypeError, OutOfRangeError
from flowvm.launch import Launch
from flowvm.meta.dtype import DType, as_dtype, bool_, float32, float64, uint8
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.composite import Recorded, need_tensor, record, wrap_dims
from flowvm.ops.declare.halves import gradient_in_float32
from flowvm.ops.declare.letters import fold
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.registry import Sample, op, samples
from flowvm.ops.pointwise.compare import ne, where
from flowvm.ops.rows.parts.fold_walk import shape_without
from flowvm.ops.rows.parts.folds import (
    add_up,
    count_up,
    every,
    largest,
    multiply_up,
    smallest,
    some,
)
from flowvm.ops.rows.scan import as_asked, others_product
from flowvm.ops.shapes.complex_parts import by_parts
from flowvm.ops.shapes.join import cat
from flowvm.vm.callers.hot import hot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowvm.eager.nodes import Node
    from flowvm.meta.arrays import Array
    from flowvm.ops.rows.parts.folds import Fold


Dims = int | tuple[int, ...] | list[int] | None


def dims_of(name: str, x: Any, dim: Any) -> tuple[int, ...]:
    """The dimensions to reduce, ascending: all of them for None and ()."""
    need_tensor(name, "input", x)
    if dim.__class__ is int and -x._meta.ndim <= dim < x._meta.ndim:
        return (dim if dim >= 0 else dim + x._meta.ndim,)
    if dim is None or (isinstance(dim, (tuple, list)) and len(dim) == 0):
        return tuple(range(x._meta.ndim))
    if x._meta.ndim == 0:
        wrap_dims(name, dim, 0)
        return ()
    return tuple(sorted(wrap_dims(name, dim, x._meta.ndim)))


def spread(g: Tensor, meta: TensorMeta, dims: tuple[int, ...]) -> Tensor:
    """`g`, a result reduced over `dims`, kept or not, broadcast back over `meta`'s shape."""
    reduced_shape = shape_without(meta.shape, dims, True)
    if g._meta.shape != reduced_shape:
        g = g.reshape(reduced_shape)
    wide: Tensor = g.expand(meta.shape)
    return wide


# --- sums -------------------------------------------------------------------------------------


def _sum_grad(c: Node, g: Tensor) -> tuple[Tensor]:
    dims, divisor = c.attrs
    meta = c.metas[0]
    g = g if divisor == 1.0 else g / divisor
    if (
        g._meta.numel == 1 and g._node is None and g._meta.dtype is meta.dtype and meta.numel > 0
        and g._meta.device is meta.device
    ):  # fmt: skip
        return (alias(g, _spread_metas.get(meta) or _spread_meta(meta)),)
    return (spread(g.to(c.metas[0].dtype), c.metas[0], dims),)


def _sum_whole_grad(c: Node, g: Tensor) -> tuple[Tensor]:
    meta = c.metas[0]
    if g._node is None and g._meta.device is meta.device:
        return (alias(g, _spread_metas.get(meta) or _spread_meta(meta)),)
    return (spread(g, meta, tuple(range(meta.ndim))),)


_spread_metas: dict[TensorMeta, TensorMeta] = {}


def _spread_meta(meta: TensorMeta) -> TensorMeta:
    wide = TensorMeta.of(meta.shape, meta.dtype, meta.device, (0,) * meta.ndim)
    _spread_metas[meta] = wide
    return wide


@op(
    "x -> out",
    name="sum",
    grad=_sum_whole_grad,
    cuda="reductions:fold_sum",
    letters=fold(adds=True, linear=True),
)
def _sum_whole(x: TensorMeta) -> Launch:
    return add_up.launch(x, tuple(range(x.ndim)), False)


_sum_node = Recorded("sum", _sum_grad, ("x",))
mean_node = Recorded("mean", _sum_grad, ("x",))


# public: flow
@with_out
def sum(
    input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """The sum over `dim` (one or several; None: all), which is gone from the shape, or 1 with
    `keepdim`.

    Integers and bools sum to int64.  With `dtype`, `input` is converted first; bool: whether any is
    not 0.

    >>> flow.sum(flow.ones(2, 3), 1)
    tensor([3., 3.])
    """
    if hot["autocast"] and dtype is None and input._meta.dtype is autocast_dtype():
        dtype = float32
    if type(input) is Tensor and dtype is None and input._meta.dtype in (float32, float64):
        meta = input._meta
        if dim is None and not keepdim and meta.contiguous and meta.numel > 0:
            whole: Tensor = _sum_whole(input)  # one call: what a loss ends with must be quick
            return whole
        dims = dims_of("sum", input, dim)
        out = add_up(input, dims, keepdim)
        return out if input._node is None else record(_sum_node, (input,), out, (dims, 1.0))
    if dtype is not None and as_dtype(dtype) is bool_:
        return any(input, dim, keepdim)
    if _is_complex("sum", input, dtype):
        parts: Tensor = by_parts(lambda part: sum(part, dim, keepdim), _in_dtype(input, dtype))
        return parts
    dims = dims_of("sum", input, dim)
    input, kind = _summand(input, dtype)
    out = add_up(input, dims, keepdim, 1.0, kind)
    if input._node is not None:
        record(_sum_node, (input,), out, (dims, 1.0))
    return as_asked(out, dtype)


def _is_complex(name: str, input: Tensor, dtype: DType | None) -> bool:
    """Return True if the numbers to reduce are complex; DTypeError if they would become real."""
    own_dtype = need_tensor(name, "input", input)._meta.dtype
    if dtype is None or not (own_dtype.is_complex or as_dtype(dtype).is_complex):
        return own_dtype.is_complex
    if not as_dtype(dtype).is_complex:
        raise DTypeError(
            f"{name}: {own_dtype.name} does not become {as_dtype(dtype).name}; take .real or abs()"
        )
    return True


def _in_dtype(input: Tensor, dtype: object) -> Tensor:
    converted: Tensor = input if dtype is None else input.to(as_dtype(dtype))
    return converted


def _summand(input: Tensor, dtype: object) -> tuple[Tensor, DType | None]:
    """Return the tensor to sum so that elements count as `dtype`, and the dtype for the kernel."""
    if dtype is None:
        return input, None
    kind = as_dtype(dtype)
    if kind is float64 or kind is float32:
        return input, kind
    return input.to(kind), None


# public: flow
@with_out
def mean(
    input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """The mean over `dim` (one or several; None: all).  DTypeError for integers: pass `dtype`, such
    as flow.float32.

    >>> flow.mean(flow.tensor([[1.0, 3.0], [5.0, 7.0]]), dim=1)
    tensor([2., 6.])
    """
    if _is_complex("mean", input, dtype):
        parts: Tensor = by_parts(lambda part: mean(part, dim, keepdim), _in_dtype(input, dtype))
        return parts
    dims = dims_of("mean", input, dim)
    input, kind = _summand(input, dtype)
    if kind is None and not input._meta.dtype.is_floating_point:
        raise DTypeError(
            f"mean is for floats, got {input.dtype.name}; pass dtype=flow.float32 to convert first"
        )
    count = 1
    for d in dims:
        count *= input._meta.shape[d]
    divisor = float(count)
    out = add_up(input, dims, keepdim, divisor, kind)
    if input._node is not None:
        record(mean_node, (input,), out, (dims, divisor))
    return out


# public: flow
@with_out
def nansum(
    input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """`sum` with NaN taken as 0.

    >>> flow.nansum(flow.tensor([1.0, flow.nan, 3.0]))
    tensor(4.)
    """
    need_tensor("nansum", "input", input)
    if not input._meta.dtype.is_floating_point:
        return sum(input, dim, keepdim, dtype=dtype)
    return sum(where(ne.call(input, input), 0, input), dim, keepdim, dtype=dtype)


# --- products ---------------------------------------------------------------------------------


@gradient_in_float32
def _prod_grad(c: Node, g: Tensor) -> tuple[Tensor]:
    (x,) = c.saved
    (dims,) = c.attrs
    if x._meta.ndim == 0:
        return (g,)
    if len(dims) == 1:
        return (spread(g, x._meta, dims) * others_product(x, dims[0]),)
    rest = others_product(x.reshape(-1), 0).reshape(x._meta.shape)
    return (spread(g, x._meta, dims) * rest,)


_prod_node = Recorded("prod", _prod_grad, ("x",), "x")


# public: flow
@with_out
def prod(
    input: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """The product over the dimension `dim` (None: of all elements).

    Integers and bools give int64.  With `dtype`, `input` is converted first; bool: whether all are
    not 0.

    >>> flow.prod(flow.tensor([[1, 2], [3, 4]]), dim=1)
    tensor([ 2, 12])
    """
    if hot["autocast"] and dtype is None and input._meta.dtype is autocast_dtype():
        dtype = float32
    if isinstance(dim, (tuple, list)):
        raise ArgumentTypeError(f"prod reduces one dimension or all, got dim={dim}")
    if dtype is not None and as_dtype(dtype) is bool_:
        return all(input, dim, keepdim)
    dims = dims_of("prod", input, dim)
    if dtype is not None:
        input = input.to(as_dtype(dtype))
    if input._meta.dtype.is_complex:
        return _halved(input, dims, keepdim)
    out = multiply_up(input, dims, keepdim)
    if input._node is not None:
        record(_prod_node, (input,), out, (dims,), (input,))
    return as_asked(out, dtype)


def _halved(x: Tensor, dims: tuple[int, ...], keepdim: bool) -> Tensor:
    """The product of complex numbers: the first half times the second, until one is left."""
    shape = shape_without(x._meta.shape, dims, keepdim)
    rest: Any = x
    d = dims[0] if len(dims) == 1 else 0
    if len(dims) != 1:
        rest = rest.reshape((-1,))
    if rest.shape[d] == 0:
        rest = rest.sum(d) + 1  # of which a gradient is none, and not missing
        return rest.reshape(shape)  # type: ignore[no-any-return]
    while rest.shape[d] > 1:
        n = rest.shape[d]
        product = rest.narrow(d, 0, n // 2) * rest.narrow(d, n // 2, n // 2)
        rest = product if n % 2 == 0 else cat([product, rest.narrow(d, n - 1, 1)], d)
    return rest.reshape(shape)  # type: ignore[no-any-return]


# --- extremes ---------------------------------------------------------------------------------


@gradient_in_float32
def _extreme_grad(c: Node, g: Tensor) -> tuple[Tensor]:
    """Shared evenly among the elements that equal the extreme."""
    x, out = c.saved
    (dims,) = c.attrs
    ties = (x == spread(out, x._meta, dims)).to(x._meta.dtype)
    share = ties / add_up(ties, dims, True)
    return (spread(g, x._meta, dims) * share,)


@gradient_in_float32
def _even_grad(c: Node, g: Tensor) -> tuple[Tensor]:
    """Shared evenly among the elements that equal the one number that came of all; NaN equals
    itself here.
    """
    x, out = c.saved
    ties = where(ne.call(out, out), ne.call(x, x), x == out).to(x._meta.dtype)
    return (g * ties / add_up(ties, tuple(range(x._meta.ndim)), False),)


_amax_node = Recorded("amax", _extreme_grad, ("x",), "x, out")
_amin_node = Recorded("amin", _extreme_grad, ("x",), "x, out")


def of_all(name: str, input: Tensor, out: Tensor) -> Tensor:
    """`out`, one of the elements of `input`, with a gradient that all that equal it share."""
    if input._node is not None:
        record(Recorded(name, _even_grad, ("x",), "x, out"), (input,), out, (), (input, out))
    return out


def _extreme(
    name: str, fold: Fold, node: Recorded, input: Tensor, dim: Any, keepdim: bool
) -> Tensor:
    dims = dims_of(name, input, dim)
    require_elements(name, input, dims)
    out: Tensor = fold(input, dims, keepdim)
    if input._node is not None:
        record(node, (input,), out, (dims,), (input, out.detach()))
    return out


def require_elements(name: str, input: Tensor, dims: tuple[int, ...]) -> None:
    """OutOfRangeError where a dimension to reduce is empty and the reduction has no neutral
    element.
    """
    for d in dims:
        if input._meta.shape[d] == 0:
            raise OutOfRangeError(
                f"{name}: dimension {d} of shape {tuple(input.shape)} is empty, "
                f"and {name} of nothing is not defined"
            )


# public: flow
@with_out
def amax(input: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    """The largest element over `dim` (one or several; none: all); NaN if there is one.

    Elements that are equally large share the gradient.

    >>> flow.amax(flow.tensor([[1, 5], [7, 2]]), dim=1)
    tensor([5, 7])
    """
    return _extreme("amax", largest, _amax_node, input, dim, keepdim)


# public: flow
@with_out
def amin(input: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    """The smallest element over `dim` (one or several; none: all); NaN if there is one.

    Elements that are equally small share the gradient.

    >>> flow.amin(flow.tensor([[1, 5], [7, 2]]), dim=1)
    tensor([1, 2])
    """
    return _extreme("amin", smallest, _amin_node, input, dim, keepdim)


# --- truth ------------------------------------------------------------------------------------


def _truth(x: Tensor) -> Any:
    """`x`, or of complex numbers whether they are not 0."""
    if isinstance(x, Tensor) and x._meta.dtype.is_complex:
        return ne.call(x, 0)
    return x


# public: flow
@with_out
def any(input: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """Test whether any element over `dim` (one or several; None: all) is not 0; of uint8, in uint8.

    >>> flow.any(flow.tensor([[0, 0], [0, 3]]), dim=1)
    tensor([False,  True])
    """
    return _as_told(input, some(_truth(input), dims_of("any", input, dim), keepdim))


# public: flow
@with_out
def all(input: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """Test whether all elements over `dim` (one or several; None: all) are not 0; True for no
    elements.  Of uint8, in uint8.

    >>> flow.all(flow.tensor([[True, False], [True, True]]), dim=1)
    tensor([False,  True])
    """
    return _as_told(input, every(_truth(input), dims_of("all", input, dim), keepdim))


def _as_told(input: Tensor, truth: Tensor) -> Tensor:
    """A truth as PyTorch gives it: of uint8, which was its bool, in uint8."""
    out: Tensor = truth.to(uint8) if input._meta.dtype is uint8 else truth
    return out


# public: flow
@steady
def count_nonzero(input: Tensor, dim: Dims = None) -> Tensor:
    """Count the elements over `dim` (one or several; None: all) that are not 0, as int64.

    >>> flow.count_nonzero(flow.tensor([[0, 1], [2, 3]]), dim=1)
    tensor([1, 2])
    """
    dims = dims_of("count_nonzero", input, dim)
    return count_up(_truth(input), dims, False)


for _f in (sum, mean, nansum, prod, amax, amin, any, all, count_nonzero):
    method()(_f)


# --- samples ----------------------------------------------------------------------------------


def _shapes(rng: np.random.Generator) -> list[Sample]:
    x = rng.uniform(0.5, 2.0, (3, 4, 2))
    return [
        Sample((x,)),
        Sample((x, 1)),
        Sample((x, -1, True)),
        Sample((rng.uniform(0.5, 2.0, ()),)),
    ]


def _several(rng: np.random.Generator) -> list[Sample]:
    x = rng.uniform(0.5, 2.0, (3, 4, 2))
    return [*_shapes(rng), Sample((x, (0, 2))), Sample((x, (0, 1), True))]


def _over(f: Any) -> Callable[..., Any]:
    def reference(
        x: Array, dim: int | Sequence[int] | None = None, keepdim: bool = False
    ) -> object:
        return f(x, axis=tuple(dim) if isinstance(dim, list) else dim, keepdims=keepdim)

    return reference


_bad_dims = (
    (lambda flow: flow.sum(flow.ones(2), 1), IndexError),
    (lambda flow: flow.sum(flow.ones(2, 2), (0, 0)), IndexError),
    (lambda flow: flow.sum(flow.ones(2), "x"), TypeError),
    (lambda flow: flow.sum([1.0]), TypeError),
)
samples(
    sum,
    lambda rng: [*_several(rng), Sample((np.zeros((2, 0, 3)), 1)), Sample((np.zeros((2, 0)),))],
    _over(np.sum),
    errors=_bad_dims,
)
samples(
    mean, _several, _over(np.mean), errors=((lambda flow: flow.mean(flow.arange(3)), RuntimeError),)
)
samples(nansum, lambda rng: _several(rng)[:3], _over(np.nansum))
samples(
    prod,
    lambda rng: [*_shapes(rng), Sample((np.array([[2.0, 0.0, 3.0], [0.0, 1.5, 0.0]]), 1))],
    _over(np.prod),
    errors=((lambda flow: flow.prod(flow.ones(2, 2), (0, 1)), TypeError),),
)
samples(
    amax,
    _several,
    _over(np.max),
    errors=((lambda flow: flow.amax(flow.ones(2, 0), 1), IndexError),),
)
samples(amin, _several, _over(np.min))
samples(any, _several, _over(np.any), grad=False)
samples(all, lambda rng: [*_several(rng), Sample((np.zeros((2, 0)), 1))], _over(np.all), grad=False)
samples(
    count_nonzero,
    lambda rng: [Sample((np.eye(3),)), Sample((np.eye(3), 1))],
    lambda x, dim=None: np.count_nonzero(x, axis=dim),
    grad=False,
)
