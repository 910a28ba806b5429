"""Moments, norms and sums of exponentials over dimensions, made of sums and elementwise ops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flowvm.dtype import DType, as_dtype
from flowvm.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from flowvm.ops.compare import isinf, ne, where
from flowvm.ops.core import cast
from flowvm.ops.elementwise import elementwise
from flowvm.ops.math import abs as abs_of
from flowvm.ops.math import exp, log, square
from flowvm.ops.recording import need_tensor
from flowvm.ops.reduce import amax, amin, dims_of, mean, sum
from flowvm.ops.registry import Sample, samples
from flowvm.ops.unary import back
from flowvm.tensor import Tensor, method

__all__ = [
    "logsumexp",
    "norm",
    "std",
    "std_mean",
    "trace",
    "var",
    "var_mean",
    "vector_norm",
]

Dims = int | tuple[int, ...] | list[int] | None


def _root_grad(c: Any, g: Tensor) -> tuple[Any, ...]:
    """As in PyTorch, no gradient where the root is 0: the norm of zeros has gradient 0."""
    x, degree, out = c.saved
    slope = where(out == 0, 0, out / (where(x == 0, 1, x) * degree))
    return back(c, lambda: g * slope, None)


_root = elementwise("root", "pow(x, 1 / y)", types="float", saves="x, y, out", grad=_root_grad)
_sqrt = elementwise(
    "sqrt",
    "sqrt(x)",
    types="float",
    saves="out",
    grad=lambda c, g: (g * where(c.saved[0] == 0, 0, 0.5 / where(c.saved[0] == 0, 1, c.saved[0])),),
)


def _floats(name: str, input: Any) -> Tensor:
    if not need_tensor(name, "input", input)._meta.dtype.is_floating_point:
        raise DTypeError(
            f"{name} is for floats, got {input.dtype.name}; convert with .to(flow.float32)"
        )
    return input  # type: ignore[no-any-return]


# --- variance ---------------------------------------------------------------------------------


def _moments(
    name: str,
    input: Tensor,
    dim: Any,
    unbiased: bool | None,
    correction: float | None,
    keepdim: bool,
) -> tuple[Tensor, Tensor]:
    """Variance and mean."""
    if isinstance(dim, bool):  # PyTorch's var(x, unbiased)
        dim, unbiased = None, dim
    if unbiased is not None and correction is not None:
        raise ArgumentTypeError(f"{name} takes unbiased or correction, not both")
    if correction is None:
        correction = 0 if unbiased is False else 1
    x = _floats(name, input)
    dims = dims_of(name, x, dim)
    count = math.prod(x._meta.shape[d] for d in dims)
    center = mean(x, dims, True)
    squares = sum(square(x - center), dims, keepdim)
    freedom = max(0.0, count - correction)
    # through a product, so that no degrees of freedom give NaN, as 0 / 0 does
    variance = squares / freedom
    shape = squares._meta.shape
    return variance, (center if center._meta.shape == shape else center.reshape(shape))


def var(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Tensor:
    """The variance over `dim` (one or several; None: all), with `correction` (1) fewer degrees of
    freedom than elements.

    `unbiased=False` is `correction=0`.  NaN where no degree of freedom is left.  DTypeError for
    integers.
    """
    return _moments("var", input, dim, unbiased, correction, keepdim)[0]


def std(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Tensor:
    """The standard deviation over `dim`: the root of `var`, with the same arguments."""
    root: Tensor = _sqrt.call(_moments("std", input, dim, unbiased, correction, keepdim)[0])
    return root


def var_mean(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The variance and the mean over `dim`; arguments as `var`."""
    return _moments("var_mean", input, dim, unbiased, correction, keepdim)


def std_mean(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The standard deviation and the mean over `dim`; arguments as `var`."""
    variance, center = _moments("std_mean", input, dim, unbiased, correction, keepdim)
    return _sqrt.call(variance), center


# --- norms ------------------------------------------------------------------------------------


def vector_norm(
    input: Tensor,
    ord: float = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """The norm of order `ord` over `dim` (one or several; None: all) of the elements as one vector.

    inf and -inf are the largest and smallest magnitude, 0 the number of elements that are not 0.
    """
    if isinstance(ord, bool) or not isinstance(ord, (int, float)):
        raise ArgumentTypeError(f"norm: the order is a number, got {ord!r}")
    x = _floats(
        "norm", input if dtype is None else need_tensor("norm", "input", input).to(as_dtype(dtype))
    )
    dims = dims_of("norm", x, dim)
    if ord == 2:
        root: Tensor = _sqrt.call(sum(square(x), dims, keepdim))
        return root
    if ord == 0:
        return sum(cast(ne.call(x, 0), x._meta.dtype), dims, keepdim)
    size = abs_of.call(x)
    if ord == math.inf:
        return amax(size, dims, keepdim)
    if ord == -math.inf:
        return amin(size, dims, keepdim)
    if ord == 1:
        return sum(size, dims, keepdim)
    power: Tensor = _root.call(sum(size**ord, dims, keepdim), float(ord))
    return power


def norm(
    input: Tensor,
    p: float | str | None = "fro",
    dim: Dims = None,
    keepdim: bool = False,
    out: Tensor | None = None,
    dtype: DType | None = None,
) -> Tensor:
    """The norm of order `p` over `dim`: "fro" and 2 are the root of the sum of squares; see
    `vector_norm`.

    ArgumentError for "nuc", which is a matter of singular values.
    """
    if p not in ("fro", None) and isinstance(p, str):
        raise ArgumentError(f'norm: p is "fro" or a number, got {p!r}')
    order = 2 if p is None or isinstance(p, str) else p
    length = vector_norm(input, order, dim, keepdim, dtype=dtype)
    if out is None:
        return length
    copied: Tensor = out.copy_(length)
    return copied


# --- sums of exponentials, traces ---------------------------------------------------------------


def logsumexp(input: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    """log(sum(exp(input))) over `dim` (one or several) without overflow; -inf of nothing."""
    x = need_tensor("logsumexp", "input", input)
    if not x._meta.dtype.is_floating_point:
        x = x / 1
    dims = dims_of("logsumexp", x, dim)
    if any(x._meta.shape[d] == 0 for d in dims):
        empty: Tensor = log.call(sum(x, dims, keepdim))
        return empty
    top = amax(x.detach(), dims, True)
    top = where(isinf.call(top), 0, top)  # an infinity would become NaN
    total = log.call(sum(exp.call(x - top), dims, keepdim))
    shift: Tensor = total + (top if keepdim else top.reshape(total._meta.shape))
    return shift


def trace(input: Tensor) -> Tensor:
    """The sum of the diagonal of a matrix.  Integers and bools sum to int64."""
    if need_tensor("trace", "input", input)._meta.ndim != 2:
        raise ShapeError(f"trace needs a matrix, got shape {tuple(input.shape)}")
    return sum(input.diagonal())


for _f in (var, std, norm, logsumexp, trace):
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
        x: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, correction: Any = None
    ) -> Any:
        freedom = (0 if unbiased is False else 1) if correction is None else correction
        return f(x, axis=dim, ddof=freedom, keepdims=keepdim)

    return reference


def _and_mean(f: Any) -> Any:
    def reference(x: Any, dim: Any = None, *more: Any, keepdim: bool = False, **others: Any) -> Any:
        spread = _moment(f)(x, dim, *more, keepdim=keepdim, **others)
        return spread, np.mean(x, axis=dim, keepdims=keepdim)

    return reference


def _norm_reference(x: Any, p: Any = 2, dim: Any = None, keepdim: bool = False) -> Any:
    size = np.abs(x)
    if p in (math.inf, -math.inf):
        return (np.max if p > 0 else np.min)(size, axis=dim, keepdims=keepdim)
    if p == 0:
        return np.sum(x != 0, axis=dim, keepdims=keepdim).astype(x.dtype)
    p = 2 if p == "fro" else p
    return np.sum(size**p, axis=dim, keepdims=keepdim) ** (1 / p)


def _norm_samples(rng: np.random.Generator) -> list[Sample]:
    x = rng.uniform(0.5, 2.0, (3, 4)) * rng.choice([-1.0, 1.0], (3, 4))
    return [
        Sample((x,)),
        Sample((x, 1, 1)),
        Sample((x, math.inf, 0, True)),
        Sample((x, -math.inf)),
        Sample((x, 3, (0, 1))),
        Sample((x, 0.5)),
    ]


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
samples(
    norm,
    _norm_samples,
    _norm_reference,
    errors=(
        (lambda flow: flow.norm(flow.ones(2, 2), "nuc"), ValueError),
        (lambda flow: flow.norm(flow.arange(3)), RuntimeError),
    ),
)
samples(vector_norm, _norm_samples, _norm_reference)
samples(
    norm,
    lambda rng: [Sample((np.array([[1.0, 0.0], [2.0, 3.0]]), 0, 1))],
    _norm_reference,
    name="norm zero",
    grad=False,
)
samples(
    logsumexp,
    lambda rng: [
        Sample((rng.standard_normal((3, 4)), 1)),
        Sample((rng.standard_normal((3, 4, 2)) * 50, (0, 2), True)),
    ],
    lambda x, dim, keepdim=False: np.logaddexp.reduce(
        np.moveaxis(x, dim, list(range(-len(dim), 0))).reshape(*[x.shape[1]], -1)
        if isinstance(dim, tuple)
        else x,
        axis=-1,
    ).reshape((1, 4, 1) if keepdim else -1),
)
samples(
    trace,
    lambda rng: [Sample((rng.standard_normal((3, 4)),)), Sample((rng.standard_normal((2, 2)),))],
    np.trace,
    errors=((lambda flow: flow.trace(flow.ones(2)), RuntimeError),),
)
