"""Variance, standard deviation and mean over dimensions, by one kernel."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.native.trace_cache import steady
from flowvm.eager.tensor import Tensor, alias, method
from flowvm.errors import ArgumentTypeError, DTypeError
from flowvm.launch import Launch, View
from flowvm.meta.dtype import float64
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.composite import Recorded, filled_of, need_tensor, record
from flowvm.ops.declare.elementwise import elementwise
from flowvm.ops.declare.halves import wide
from flowvm.ops.declare.kinds import Dims
from flowvm.ops.declare.letters import fold
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.registry import Sample, op, operator_of, samples
from flowvm.ops.pointwise.compare import where
from flowvm.ops.pointwise.parts.unary import back
from flowvm.ops.pointwise.ternary import hypot
from flowvm.ops.rows.cpu import moment_kernels
from flowvm.ops.rows.cpu.fold_launch import fold_launch
from flowvm.ops.rows.parts.fold_programs import DEVIATION, MOMENTS
from flowvm.ops.rows.parts.fold_walk import kernel_input, shape_without, walk_of
from flowvm.ops.rows.reduce import dims_of, mean_node, spread
from flowvm.ops.shapes.complex_parts import complex, imag, real

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node
    from flowvm.meta.arrays import Array


root_of = elementwise(
    "sqrt",
    "sqrt(x)",
    types="float",
    saves="out",
    grad=lambda c, g: (g * where(c.saved[0] == 0, 0, 0.5 / where(c.saved[0] == 0, 1, c.saved[0])),),
)


def floats_only(name: str, input: Any) -> Tensor:
    if not need_tensor(name, "input", input)._meta.dtype.is_floating_point:
        raise DTypeError(
            f"{name} is for floats, got {input.dtype.name}; convert with .to(flow.float32)"
        )
    return input  # type: ignore[no-any-return]


# --- variance ---------------------------------------------------------------------------------

_rows_body = functools.cache(moment_kernels.rows_body)
_columns_body = functools.cache(moment_kernels.columns_body)


@op(
    "x -> spread, mean",
    name="moments",
    dense=False,
    half="native",
    cuda="reductions:moments",
    letters=fold(),
)
def _moments_of(
    x: TensorMeta, dims: Dims, keepdim: bool, freedom: float, root: bool, wide: bool
) -> Launch:
    """Variance, or its root, and mean, where there is a walk: of float64 if `wide`, else of the
    dtype that x computes in.
    """
    walk = walk_of(x, dims)
    assert walk is not None
    kind = float64 if wide else x.dtype.compute
    out = x.with_shape(shape_without(x.shape, dims, keepdim), kind)
    source, lift = kernel_input(x.dtype)
    results = walk.results
    views = (View(kind, (results,)), View(kind, (results,)), View(source, (walk.extent,)))
    p = DEVIATION if root else MOMENTS
    bodies = _rows_body(p, lift), _columns_body(p, lift)
    return fold_launch((out, out), bodies, views, walk, 3, freedom)


def _moved(
    x: Tensor, dims: tuple[int, ...], keepdim: bool, freedom: float, root: bool, wide: bool
) -> Any:
    """The moments of a tensor that has no walk: with the reduced dimensions moved to the end."""
    meta = x._meta
    if walk_of(meta, dims) is not None:
        return None
    other_dims = [d for d in range(meta.ndim) if d not in dims]
    last = x.permute(*other_dims, *dims).contiguous()
    results = _moments_of(
        last, tuple(range(len(other_dims), meta.ndim)), False, freedom, root, wide
    )
    return tuple(t.reshape(shape_without(meta.shape, dims, keepdim)) for t in results)


operator_of(_moments_of).rules.fallback = _moved

# float64 inside, whatever x is: a distance from the mean loses no digit, and no square its range
_apart = elementwise(
    "apart",
    "(x - y) * z",
    types="first",
    saves="x, y, z",
    grad=lambda c, g: back(
        c, lambda: g * c.saved[2], lambda: -g * c.saved[2], lambda: g * (c.saved[0] - c.saved[1])
    ),
)


def _variance_grad(c: Node, g: Tensor) -> tuple[Tensor]:
    x, center = c.saved
    dims, freedom = c.attrs
    slope = g * (2 / freedom if freedom else math.inf)
    return (_apart.call(x, spread(center, x._meta, dims), spread(slope, x._meta, dims)),)


def _deviation_grad(c: Node, g: Tensor) -> tuple[Tensor]:
    """Return the gradient of a deviation: as in PyTorch, 0 where there is no deviation."""
    x, center, out = c.saved
    dims, freedom = c.attrs
    none = out == 0
    slope = where(none, 0, g * (1 / freedom if freedom else math.inf) / where(none, 1, out))
    return (_apart.call(x, spread(center, x._meta, dims), spread(slope, x._meta, dims)),)


_variance_node = Recorded("var", _variance_grad, ("x",), "x, center")
_deviation_node = Recorded("std", _deviation_grad, ("x",), "x, center, out", ("out",))


def _moments(
    name: str,
    input: Tensor,
    dim: object,
    unbiased: bool | None,
    correction: float | None,
    keepdim: bool,
    root: bool = False,
) -> tuple[Tensor, Tensor]:
    """Variance, or its root, and mean."""
    if isinstance(dim, bool):  # PyTorch's var(x, unbiased)
        dim, unbiased = None, dim
    if unbiased is not None and correction is not None:
        raise ArgumentTypeError(f"{name} takes unbiased or correction, not both")
    if correction is None:
        correction = 0 if unbiased is False else 1
    if need_tensor(name, "input", input)._meta.dtype.is_complex:
        # a variance is a sum over the parts, and a mean has a mean of each
        sizes, centers = zip(
            *(
                _moments(name, p, dim, None, correction, keepdim, root)
                for p in (real(input), imag(input))
            ),
            strict=True,
        )
        whole: Tensor = complex(*centers)
        return (hypot.call(*sizes) if root else sizes[0] + sizes[1]), whole
    x = floats_only(name, input)
    dims = dims_of(name, x, dim)
    count = math.prod(x._meta.shape[d] for d in dims)
    freedom = max(0.0, float(count - correction))
    if x._meta.numel == 0:
        nothing = x._meta.with_shape(shape_without(x._meta.shape, dims, keepdim))
        return filled_of(nothing, math.nan), filled_of(nothing, math.nan)
    recorded = x._node is not None
    if recorded and x._meta.dtype.reduced:  # whose gradients are summed up before they are rounded
        both = _moments(name, wide(x), dim, None, correction, keepdim, root)
        return both[0].to(x._meta.dtype), both[1].to(x._meta.dtype)
    bare = alias(x, x._meta) if recorded else x
    parts: Any = _moments_of(bare, dims, keepdim, freedom, root, recorded)
    if recorded:
        size, center = parts
        record(mean_node, (x,), center, (dims, float(count)))
        saved = (x, center, size.detach()) if root else (x, center)
        record(_deviation_node if root else _variance_node, (x,), size, (dims, freedom), saved)
    size, center = (t.to(x._meta.dtype) for t in parts)
    return size, center


# public: flow
@with_out
def var(
    input: Tensor,
    dim: object = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Tensor:
    """The variance over `dim` (one or several; None: all), with `correction` (1) fewer degrees of
    freedom than elements.

    `unbiased=False` is `correction=0`.  NaN where no degree of freedom is left.  DTypeError for
    integers.

    >>> flow.var(flow.tensor([1.0, 3.0, 5.0])), flow.var(flow.tensor([1.0, 3.0]), correction=0)
    (tensor(4.), tensor(1.))
    """
    return _moments("var", input, dim, unbiased, correction, keepdim)[0]


# public: flow
@with_out
def std(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Tensor:
    """The standard deviation over `dim`: the root of `var`, with the same arguments.

    >>> flow.std(flow.tensor([1.0, 3.0, 5.0]))
    tensor(2.)
    """
    return _moments("std", input, dim, unbiased, correction, keepdim, True)[0]


# public: flow
@steady
def var_mean(
    input: Tensor,
    dim: object = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The variance and the mean over `dim`; arguments as `var`.

    >>> flow.var_mean(flow.tensor([1.0, 3.0, 5.0]))
    (tensor(4.), tensor(3.))
    """
    return _moments("var_mean", input, dim, unbiased, correction, keepdim)


# public: flow
@steady
def std_mean(
    input: Tensor,
    dim: object = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The standard deviation and the mean over `dim`; arguments as `var`.

    >>> flow.std_mean(flow.tensor([1.0, 3.0, 5.0]))
    (tensor(2.), tensor(3.))
    """
    return _moments("std_mean", input, dim, unbiased, correction, keepdim, True)


for _f in (var, std):
    method()(_f)


# --- samples ----------------------------------------------------------------------------------


def _moment_samples(rng: np.random.Generator) -> list[Sample]:
    x = rng.standard_normal((3, 4, 2))
    return [
        Sample((x,)),
        Sample((x, 1)),
        Sample((x, (0, 2)), {"keepdim": True, "correction": 0}),
        Sample((x, 1, False)),
    ]


def _moment(f: Any) -> Any:
    def reference(
        x: object,
        dim: int | None = None,
        unbiased: Any = None,
        keepdim: bool = False,
        correction: Any = None,
    ) -> Any:
        freedom = (0 if unbiased is False else 1) if correction is None else correction
        return f(x, axis=dim, ddof=freedom, keepdims=keepdim)

    return reference


def _and_mean(f: object) -> Any:
    def reference(
        x: Array, dim: Any = None, *more: Any, keepdim: bool = False, **others: Any
    ) -> Any:
        spread = _moment(f)(x, dim, *more, keepdim=keepdim, **others)
        return spread, np.mean(x, axis=dim, keepdims=keepdim)

    return reference


samples(
    var,
    _moment_samples,
    _moment(np.var),
    errors=(
        (lambda flow: flow.var(flow.arange(3)), RuntimeError),
        (lambda flow: flow.var(flow.ones(3), 0, True, correction=1), TypeError),
    ),
)
samples(std, _moment_samples, _moment(np.std))
samples(var_mean, _moment_samples, _and_mean(np.var))
samples(std_mean, _moment_samples, _and_mean(np.std))
