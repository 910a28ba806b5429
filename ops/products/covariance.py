"""Covariance and correlation of variables: `cov`, `corrcoef`."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentError, DTypeError, ShapeError
from flowvm.ops.declare.composite import need_tensor
from flowvm.ops.declare.halves import in_float32
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.pointwise.complex_numbers import conj
from flowvm.ops.products.matmul import matmul
from flowvm.ops.shapes.complex_parts import complex, imag, real
from flowvm.ops.shapes.fill import scalar_tensor


def _weights(argument: str, weights: object, count: int, whole: bool) -> Tensor:
    w = need_tensor("cov", argument, weights)
    if w._meta.ndim > 1 or w._meta.numel != count:
        raise ShapeError(
            f"cov: {argument} has a number for each of {count} observations, got shape "
            f"{tuple(w.shape)}"
        )
    if w._meta.dtype.is_floating_point is whole:
        raise DTypeError(
            f"cov: {argument} are {'integers' if whole else 'floats'}, got {w.dtype.name}"
        )
    if (w < 0).any():
        raise ArgumentError(f"cov: {argument} are not negative")
    return w


# public: flow
@method()
@in_float32
def cov(
    input: Tensor,
    *,
    correction: int = 1,
    fweights: Tensor | None = None,
    aweights: Tensor | None = None,
) -> Tensor:
    """The covariances of the rows of `input`, (variables, observations), or the variance of a
    vector: (variables, variables).

    correction   what is taken off the number of observations
    fweights     how often each observation came, integers
    aweights     how important each is, floats

    >>> flow.cov(flow.tensor([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]]))
    tensor([[ 1., -1.],
            [-1.,  1.]])
    """
    x: Tensor = need_tensor("cov", "input", input)
    if x.ndim > 2:
        raise ShapeError(f"cov: input has at most 2 dimensions, got shape {tuple(x.shape)}")
    if x.dtype.is_bool:
        raise DTypeError("cov of a bool tensor is not defined")
    rows = x if x.ndim == 2 else x.reshape((1, -1))
    count = rows.shape[1]
    w: Tensor | None = None
    if fweights is not None:
        w = _weights("fweights", fweights, count, True)
    if aweights is not None:
        importance = _weights("aweights", aweights, count, False)
        w = importance if w is None else w * importance
    total = scalar_tensor(count, dtype=x.dtype, device=x.device) if w is None else w.sum()
    if w is not None and float(total) == 0:
        raise ArgumentError("cov: the weights sum to 0")
    if not rows.dtype.inexact:
        rows = rows * 1.0
    mean = (rows if w is None else rows * w).sum(1) / total
    if w is None:
        norm: float | Tensor = count - correction
    elif aweights is None or correction == 0:
        norm = total - correction
    else:
        norm = total - correction * (w * aweights).sum() / total
    if float(norm) <= 0:
        norm = 0
    centered = rows - mean.unsqueeze(1)
    weighted = centered if w is None else centered * w
    sums = matmul(centered, conj(weighted.t()))
    out = sums / norm
    return out.squeeze()  # type: ignore[no-any-return]


# public: flow
@method()
@in_float32
def corrcoef(input: Tensor) -> Tensor:
    """The correlations of the rows of `input`, (variables, observations): their covariances over
    the roots of their variances, between -1 and 1, as are both parts of complex ones.

    >>> flow.corrcoef(flow.tensor([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]]))
    tensor([[ 1., -1.],
            [-1.,  1.]])
    """
    x = need_tensor("corrcoef", "input", input)
    if x._meta.ndim > 2:
        raise ShapeError(f"corrcoef: input has at most 2 dimensions, got {tuple(x.shape)}")
    c: Any = cov(x)
    if c.ndim == 0:
        return c / c  # type: ignore[no-any-return]
    spread = c.diagonal().sqrt()
    out: Any = c / spread.unsqueeze(-1) / spread.unsqueeze(-2)
    if out._meta.dtype.is_complex:
        first, second = (part(out).clamp(-1, 1) for part in (real, imag))
        both: Tensor = complex(first, second)
        return both
    within: Tensor = out.clamp(-1, 1)
    return within


samples(
    cov,
    lambda rng: [
        Sample((rng.standard_normal((3, 5)),)),
        Sample((rng.standard_normal(5),), {"correction": 0}),
        Sample((rng.standard_normal((2, 4)),), {"fweights": np.array([1, 3, 2, 1])}),
    ],
    lambda x, correction=1, fweights=None: np.cov(x, ddof=correction, fweights=fweights),
    errors=(
        (lambda flow: flow.cov(flow.ones(2, 2, 2)), RuntimeError),
        (lambda flow: flow.cov(flow.ones(3), fweights=flow.ones(3)), RuntimeError),
        (lambda flow: flow.cov(flow.ones(3), aweights=flow.ones(2)), RuntimeError),
    ),
)
samples(
    corrcoef,
    lambda rng: [Sample((rng.standard_normal((3, 5)),))],
    np.corrcoef,
    floats=("float64", "float32"),
)
