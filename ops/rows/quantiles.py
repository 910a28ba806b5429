"""Order statistics: `quantile`, and the kin of `mean` and `median` that leave NaN out.

All sort once and take from the sorted row what they ask for; the gradient goes where that came
from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm import return_types
from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentError, DTypeError, OutOfRangeError, ShapeError
from flowvm.meta.dtype import float32, float64, int64
from flowvm.ops.declare.composite import need_tensor, wrap_dim
from flowvm.ops.declare.halves import in_float32
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.places.sort import sort
from flowvm.ops.pointwise.compare import logical_not, where
from flowvm.ops.pointwise.math import ceil, floor, round
from flowvm.ops.rows.extremes import median
from flowvm.ops.rows.reduce import nansum, of_all
from flowvm.ops.shapes.create import tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowvm.meta.arrays import Array


# public: flow

WAYS = ("linear", "lower", "higher", "midpoint", "nearest")


def _quantile(
    name: str, input: Tensor, q: Any, dim: int | None, keepdim: bool, way: str, skip: bool
) -> Tensor:
    x: Tensor = need_tensor(name, "input", input)
    kind = x.dtype
    if kind not in (float32, float64):
        raise DTypeError(f"{name}: input is float32 or float64, got {kind.name}")
    if way not in WAYS:
        raise ArgumentError(f"{name}: interpolation is one of {', '.join(WAYS)}, got {way!r}")
    if not isinstance(q, Tensor):
        if not 0 <= q <= 1:
            raise ArgumentError(f"{name}: q is from 0 to 1, got {q}")
        q = tensor(q, dtype=kind, device=x.device)
    if q.ndim > 1:
        raise ShapeError(f"{name}: q is a number or a vector, got shape {tuple(q.shape)}")
    if q.dtype is not kind:
        raise DTypeError(f"{name}: q is {q.dtype.name} and input {kind.name}; they must be equal")
    if not x.numel():
        raise ArgumentError(f"{name}: input has no elements, shape {tuple(x.shape)}")
    shape = list(x.shape)
    if dim is None:
        rows, reduced_shape = x.reshape(-1), [1] * x.ndim
    else:
        at = wrap_dim(name, dim, x.ndim)
        rows = x.reshape(-1) if x.ndim == 0 else x.movedim(at, -1)
        reduced_shape = [1 if i == at else n for i, n in enumerate(shape)]
    gone = [n for i, n in enumerate(shape) if dim is not None and i != wrap_dim(name, dim, x.ndim)]
    ordered = sort(rows, -1)[0]
    nan = rows.isnan()
    if skip:
        last = (logical_not(nan).sum(-1, keepdim=True) - 1).clamp(min=0).to(kind)
        ranks = q.reshape(-1) * last
    else:
        last = float(rows.shape[-1] - 1)
        ranks = q.reshape(-1) * last
        # a row with NaN is NaN: it is its last element
        ranks = where(nan.any(-1, keepdim=True), last, ranks)
    result = _between(ordered, ranks.detach() if not q.requires_grad else ranks, way)
    result = result.movedim(-1, 0)
    out = result.reshape((q.numel(), *(reduced_shape if keepdim else gone)))
    return out if q.ndim else out[0]  # type: ignore[no-any-return]


def _between(ordered: Any, ranks: Tensor, way: str) -> Any:
    if way == "lower":
        ranks = floor(ranks)
    elif way == "higher":
        ranks = ceil(ranks)
    elif way == "nearest":
        ranks = round(ranks)
    ranks = ranks.broadcast_to((*ordered.shape[:-1], ranks.shape[-1]))
    low = ranks.detach().to(int64)
    below = ordered.gather(-1, low)
    if way not in ("linear", "midpoint"):
        return below
    weight = 0.5 if way == "midpoint" else ranks - low
    if way == "midpoint":
        whole = ranks.detach() == low
        weight = where(whole, 0.0, 0.5).to(ordered.dtype)
    high = ceil(ranks.detach()).to(int64)
    return below.lerp(ordered.gather(-1, high), weight)


@method()
@with_out
def quantile(
    input: Tensor,
    q: object,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Tensor:
    """The quantiles `q`, a number from 0 to 1 or a vector of them, of `input` along `dim` (None:
    of all elements).  A vector's quantiles are the first dimension of the result.  NaN where there
    is a NaN.

    interpolation   what is taken between two elements: "linear", "lower", "higher", "midpoint" or
                    "nearest"

    >>> flow.quantile(flow.arange(5.0), 0.6)
    tensor(2.4000)
    """
    return _quantile("quantile", input, q, dim, keepdim, interpolation, False)


@method()
@with_out
def nanquantile(
    input: Tensor,
    q: object,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Tensor:
    """Return `quantile` of the elements that are not NaN; NaN if all are.

    >>> flow.nanquantile(flow.tensor([1.0, flow.nan, 3.0]), 0.5)
    tensor(2.)
    """
    return _quantile("nanquantile", input, q, dim, keepdim, interpolation, True)


@method()
@with_out
@in_float32
def nanmean(
    input: Tensor, dim: object = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """Return the mean of the elements over `dim` that are not NaN; NaN if all are.

    >>> flow.nanmean(flow.tensor([1.0, flow.nan, 3.0]))
    tensor(2.)
    """
    x: Any = need_tensor("nanmean", "input", input)
    if not (x.dtype.is_floating_point or (dtype is not None and dtype.is_floating_point)):
        raise DTypeError(f"nanmean is for floats, got {x.dtype.name}; pass dtype=flow.float32")
    count = logical_not(x.isnan()).sum(dim, keepdim)
    out: Tensor = nansum(x, dim, keepdim, dtype=dtype) / count
    return out


@method()
@with_out
def nanmedian(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the median of the elements that are not NaN, the lower of two; NaN if all are.

    With `dim`, return (values, indices) along it.

    >>> flow.nanmedian(flow.tensor([1.0, flow.nan, 3.0, 2.0]))
    tensor(2.)
    """
    x: Tensor = need_tensor("nanmedian", "input", input)
    if not x.dtype.is_floating_point:
        return median(x) if dim is None else return_types.nanmedian(median(x, dim, keepdim))
    flat = x.reshape(-1) if dim is None or x.ndim == 0 else x
    at = -1 if dim is None else wrap_dim("nanmedian", dim, x.ndim)
    if flat.shape[at] == 0:
        if dim is None:
            return x.sum() * float("nan")
        raise OutOfRangeError(f"nanmedian: dimension {dim} of shape {tuple(x.shape)} is empty")
    flat = flat.detach() if dim is None else flat
    count = logical_not(flat.isnan()).sum(at, keepdim=True)
    middle = ((count - 1) // 2).clamp(min=0)
    values, indices = sort(flat, at)
    picked = values.gather(at, middle), indices.gather(at, middle)
    if dim is None:
        return of_all("nanmedian", x, picked[0][0])
    if x.ndim == 0 or not keepdim:
        picked = picked[0].squeeze(at), picked[1].squeeze(at)
    return return_types.nanmedian(picked)


def _with_gaps(rng: np.random.Generator) -> Array:
    x = rng.permutation(12).reshape(3, 4) + rng.uniform(0, 0.5, (3, 4))
    x[0, 1] = x[2, 3] = np.nan
    return x


def _numpy_quantile(f: Any) -> Any:
    def reference(
        x: Array,
        q: Array,
        dim: int | Sequence[int] | None = None,
        keepdim: bool = False,
        **how: Any,
    ) -> object:
        return f(x, q, dim, keepdims=keepdim, method=how.get("interpolation", "linear"))

    return reference


def _quantile_samples(rng: np.random.Generator) -> list[Sample]:
    x = rng.permutation(12).reshape(3, 4) + rng.uniform(0, 0.5, (3, 4))
    return [
        Sample((x, 0.3)),
        Sample((x, 0.9, 1, True)),
        *(Sample((x, 0.4, 0), {"interpolation": way}) for way in WAYS),
    ]


samples(
    quantile,
    _quantile_samples,
    _numpy_quantile(np.quantile),
    floats=("float64", "float32"),
    errors=(
        (lambda flow: flow.quantile(flow.ones(3), 1.5), ValueError),
        (lambda flow: flow.quantile(flow.arange(3), 0.5), RuntimeError),
        (lambda flow: flow.quantile(flow.ones(0), 0.5), ValueError),
        (lambda flow: flow.quantile(flow.ones(3), 0.5, interpolation="odd"), ValueError),
    ),
)
samples(
    nanquantile,
    lambda rng: [Sample((_with_gaps(rng), 0.4, 1)), Sample((_with_gaps(rng), 0.5))],
    _numpy_quantile(np.nanquantile),
    floats=("float64", "float32"),
    grad=False,
)
samples(
    nanmean,
    lambda rng: [Sample((_with_gaps(rng),)), Sample((_with_gaps(rng), 1, True))],
    lambda x, dim=None, keepdim=False: np.nanmean(x, dim, keepdims=keepdim),
    grad=False,
    errors=((lambda flow: flow.nanmean(flow.arange(3)), RuntimeError),),
)
samples(
    nanmedian,
    lambda rng: [Sample((_with_gaps(rng)[:, :3],))],
    lambda x: np.sort(x, axis=None)[(np.isfinite(x).sum() - 1) // 2],
    grad=False,
)
