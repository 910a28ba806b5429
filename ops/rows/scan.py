"""Running results along a dimension: sums, products, extremes, and differences.

Long because each has a kernel, a gradient and samples.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from flowvm import return_types
from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentError, DTypeError
from flowvm.launch import Launch, View
from flowvm.meta.dtype import DType, as_dtype, bool_, int64, uint8
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.recording import Recorded, need_tensor, record, whole, wrap_dim
from flowvm.ops.declare.registry import Sample, op, samples
from flowvm.ops.pointwise.math import exp
from flowvm.ops.rows.cpu import scan_kernels
from flowvm.ops.rows.parts.exponential_sums import element_sum, joined, logarithm, nothing
from flowvm.ops.rows.parts.fold_rules import ADD, MULTIPLY, Rule
from flowvm.ops.rows.parts.fold_walk import grain_of
from flowvm.ops.rows.parts.orders import LARGEST, SMALLEST, Order
from flowvm.ops.rows.parts.recurrence import later, line, recurrence_back, scan_launch, split
from flowvm.ops.shapes.complex_parts import by_parts
from flowvm.ops.shapes.fill import zeros_like
from flowvm.ops.shapes.join import cat

__all__ = ["cummax", "cummin", "cumprod", "cumsum", "diff", "logcumsumexp"]

Array = Any


# --- how the work is cut ------------------------------------------------------------------------

ROW_SEGMENT = 1 << 16  # elements
TILE = 512  # columns
_rows_body = functools.cache(scan_kernels.rows_body)
_columns_body = functools.cache(scan_kernels.columns_body)
_extreme_rows_body = functools.cache(scan_kernels.extreme_rows_body)
_extreme_columns_body = functools.cache(scan_kernels.extreme_columns_body)


def _summed(dtype: DType) -> DType:
    return dtype if dtype.is_floating_point else int64


def _total_launch(
    rules: tuple[Rule, Rule], x: TensorMeta, dim: int, reverse: bool = False
) -> Launch:
    kind = _summed(x.dtype)
    rule = rules[kind is int64]
    outer, n, inner = split(x, dim)
    views = (View(kind, (x.numel,)), View(uint8 if x.dtype is bool_ else x.dtype, (x.numel,)))
    out = (x.dense(kind),)
    if inner == 1:
        segments = max(1, -(-n // ROW_SEGMENT))
        length = ROW_SEGMENT if segments > 1 else n
        units, grain = outer * segments, grain_of(max(length, 1))
        return Launch(
            out,
            _rows_body(rule),
            views,
            (n, length, segments, reverse),
            units=units,
            grain=grain,
            scratch=8 * units if segments > 1 else 8,
            phases=((units, grain),) if segments > 1 else (),
        )
    tile = max(1, min(inner, TILE))
    return Launch(
        out,
        _columns_body(rule),
        views,
        (n, inner, tile, reverse),
        units=outer * -(-inner // tile),
        grain=grain_of(max(n * tile, 1)),
        arena=8 * tile,
    )


# --- sums -------------------------------------------------------------------------------------


@op(
    "x -> out",
    name="cumsum",
    grad=lambda c, g: (_cumsum(g, c.attrs[0], not c.attrs[1]),),
    cuda="scans:cumsum",
)
def _cumsum(x: TensorMeta, dim: int, reverse: bool) -> Launch:
    return _total_launch(ADD, x, dim, reverse)


def _ready(name: str, input: Tensor, dim: Any, dtype: Any) -> tuple[Tensor, int]:
    need_tensor(name, "input", input)
    d = wrap_dim(name, dim, input._meta.ndim)
    if dtype is not None and as_dtype(dtype) is bool_:
        raise DTypeError(f"{name}: no dtype bool; convert the result")
    return (input if dtype is None else input.to(as_dtype(dtype))), d


def as_asked(out: Tensor, dtype: Any) -> Tensor:
    """`out` of `dtype`, if one is given: integers are folded in int64, whose lower bits are those
    of every smaller one.
    """
    if dtype is None or out._meta.dtype is as_dtype(dtype):
        return out
    return out.to(as_dtype(dtype))  # type: ignore[no-any-return]


@with_out
def cumsum(input: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    """The sums of the elements up to each one along `dim`.  Integers and bools give int64.

    >>> flow.cumsum(flow.tensor([1, 2, 3, 4]), dim=0)
    tensor([ 1,  3,  6, 10])
    """
    x, d = _ready("cumsum", input, dim, dtype)
    if x._meta.dtype.is_complex:
        parts: Tensor = by_parts(lambda part: cumsum(part, dim), x)
        return parts
    if x._meta.ndim == 0:
        return as_asked(cumsum(x.reshape(1), 0).reshape(()), dtype)
    return as_asked(_cumsum(x, d, False), dtype)


# --- products ---------------------------------------------------------------------------------


def _cumprod_grad(c: Any, g: Tensor) -> tuple[Tensor]:
    x, out = c.saved
    (dim,) = c.attrs
    return (later(out, dim, 1) * recurrence_back(g, x, dim),)


@op("x -> out", name="cumprod", saves="x, out", grad=_cumprod_grad, cuda="scans:cumprod")
def _cumprod(x: TensorMeta, dim: int) -> Launch:
    return _total_launch(MULTIPLY, x, dim)


@with_out
def cumprod(input: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    """The products of the elements up to each one along `dim`.  Integers and bools give int64.

    >>> flow.cumprod(flow.tensor([1, 2, 3, 4]), dim=0)
    tensor([ 1,  2,  6, 24])
    """
    x, d = _ready("cumprod", input, dim, dtype)
    if x._meta.dtype.is_complex:
        return _doubled(x, d)
    if x._meta.ndim == 0:
        return as_asked(cumprod(x.reshape(1), 0).reshape(()), dtype)
    return as_asked(_cumprod(x, d), dtype)


def _doubled(x: Tensor, dim: int) -> Tensor:
    """The products of complex numbers so far: of 1, then 2, then 4 elements, and so on."""
    done, total = 1, x if x._meta.ndim else x.clone()
    while x._meta.ndim and done < x._meta.shape[dim]:
        rest = x._meta.shape[dim] - done
        longer: Any = total.narrow(dim, done, rest) * total.narrow(dim, 0, rest)
        total = cat([total.narrow(dim, 0, done), longer], dim)
        done *= 2
    return total


def others_product(x: Tensor, dim: int) -> Tensor:
    """For each element the product of all others along `dim`."""
    before = later(_cumprod(x, dim), dim, 1)
    after: Tensor = later(_cumprod(x.flip(dim), dim), dim, 1).flip(dim)
    return before * after


# --- extremes ---------------------------------------------------------------------------------


def _extreme_launch(order: Order, x: TensorMeta, dim: int) -> Launch:
    numbers = uint8 if x.dtype is bool_ else x.dtype
    outer, n, inner = split(x, dim)
    outputs = (x.dense(), x.dense(int64))
    views = tuple(View(dtype, (x.numel,)) for dtype in (numbers, int64, numbers))
    if inner == 1:
        body, units = _extreme_rows_body(order), outer if n else 0
        return Launch(outputs, body, views, (n,), units, grain_of(max(n, 1)))
    tile = max(1, min(inner, TILE))
    return Launch(
        outputs,
        _extreme_columns_body(order),
        views,
        (n, inner, tile),
        units=outer * -(-inner // tile) if n else 0,
        grain=grain_of(max(n * tile, 1)),
        arena=16 * tile,
    )


@op("x -> values, indices", name="cummax", cuda="scans:cummax")
def _cummax(x: TensorMeta, dim: int) -> Launch:
    return _extreme_launch(LARGEST, x, dim)


@op("x -> values, indices", name="cummin", cuda="scans:cummin")
def _cummin(x: TensorMeta, dim: int) -> Launch:
    return _extreme_launch(SMALLEST, x, dim)


def _running_grad(c: Any, g: Tensor) -> tuple[Tensor]:
    (indices,) = c.saved
    return (zeros_like(g).scatter_add(c.attrs[0], indices, g),)


_cummax_node = Recorded("cummax", _running_grad, ("x",), "indices")
_cummin_node = Recorded("cummin", _running_grad, ("x",), "indices")


def _run(name: str, call: Any, node: Recorded, input: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    x, d = _ready(name, input, dim, None)
    if x._meta.ndim == 0:
        values, indices = _run(name, call, node, x.reshape(1), 0)
        return values.reshape(()), indices.reshape(())
    bare = x.detach()
    kind = x._meta.dtype
    if kind.reduced:
        values, indices = call(bare.to(kind.compute), d)
        values = values.to(kind)
    else:
        values, indices = call(bare, d)
    if x._node is not None:
        record(node, (x,), values, (d,), (indices,))
    return values, indices


@with_out
def cummax(input: Tensor, dim: int) -> return_types.cummax:
    """The largest element so far along `dim`, and where it is (the last of equals): (values,
    indices).

    >>> flow.cummax(flow.tensor([1, 3, 2, 5]), dim=0).values
    tensor([1, 3, 3, 5])
    """
    return return_types.cummax(_run("cummax", _cummax, _cummax_node, input, dim))


@with_out
def cummin(input: Tensor, dim: int) -> return_types.cummin:
    """The smallest element so far along `dim`, and where it is (the last of equals): (values,
    indices).

    >>> flow.cummin(flow.tensor([4, 3, 5, 1]), dim=0).values
    tensor([4, 3, 3, 1])
    """
    return return_types.cummin(_run("cummin", _cummin, _cummin_node, input, dim))


# --- logcumsumexp -----------------------------------------------------------------------------


def _logcumsumexp_body(out: Array, x: Array, n: int, inner: int, lo: int, hi: int) -> None:
    for unit in range(lo, hi):
        at, step = line(unit, n, inner, False)
        state = nothing()
        for _ in range(n):
            state = joined(state, element_sum(np.float64(x[at])))
            out[at] = logarithm(state)
            at += step


def _logcumsumexp_grad(c: Any, g: Tensor) -> tuple[Tensor]:
    x, out = c.saved
    (dim,) = c.attrs
    # A[k] = sum over i >= k of g[i] * exp(out[k] - out[i]), whose every factor is at most 1
    decay = exp.call(later(out, dim, 0) - out)
    return (exp.call(x - out) * recurrence_back(g, decay, dim),)


@op(
    "x -> out",
    name="logcumsumexp",
    saves="x, out",
    grad=_logcumsumexp_grad,
    cuda="scans:logcumsumexp",
)
def _logcumsumexp(x: TensorMeta, dim: int) -> Launch:
    return scan_launch(_logcumsumexp_body, x, dim, (x.dtype, x.dtype), (x.dense(),))


@with_out
def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """log(cumsum(exp(input), dim)) without overflow.  DTypeError for integers.

    >>> flow.logcumsumexp(flow.tensor([0.0, 0.0]), 0)  # log 1, log 2
    tensor([0.0000, 0.6931])
    """
    x, d = _ready("logcumsumexp", input, dim, None)
    if not x._meta.dtype.is_floating_point:
        raise DTypeError(f"logcumsumexp is for floats, got {x.dtype.name}")
    if x._meta.ndim == 0:
        out: Tensor = logcumsumexp(x.reshape(1), 0).reshape(())
        return out
    return _logcumsumexp(x, d)  # type: ignore[no-any-return]


# --- differences ------------------------------------------------------------------------------


@with_out
def diff(
    input: Tensor,
    n: int = 1,
    dim: int = -1,
    prepend: Tensor | None = None,
    append: Tensor | None = None,
) -> Tensor:
    """The `n`-th differences along `dim`, of bools whether neighbours differ; n = 0: a copy.

    >>> flow.diff(flow.tensor([1, 4, 9, 16]))
    tensor([3, 5, 7])
    """
    x, d = _ready("diff", input, dim, None)
    n = whole("diff", "n", n)
    if n < 0:
        raise ArgumentError(f"diff: n must not be negative, got {n}")
    if n == 0:
        return x.clone()  # type: ignore[no-any-return]
    parts = [t for t in (prepend, x, append) if t is not None]
    x = cat(parts, d) if len(parts) > 1 else x
    for _ in range(n):
        size = x._meta.shape[d]
        if size == 0:
            break
        later, earlier = x.narrow(d, 1, size - 1), x.narrow(d, 0, size - 1)
        x = later != earlier if x._meta.dtype is bool_ else later - earlier
    return x


for _f in (cumsum, cumprod, cummax, cummin, logcumsumexp, diff):
    method()(_f)
for _f in (cumsum, cumprod):

    def _in_place(x: Tensor, dim: int, *, dtype: DType | None = None, f: Any = _f) -> Tensor:
        """The in-place form: the result replaces the values of `x`.

        >>> flow.tensor([1, 2, 3]).cumsum_(0)
        tensor([1, 3, 6])
        """
        changed: Tensor = x.copy_(f(x, dim, dtype=dtype))
        return changed

    setattr(Tensor, f"{_f.__name__}_", _in_place)


# --- samples ----------------------------------------------------------------------------------


def _lines(rng: np.random.Generator) -> list[Sample]:
    x = rng.uniform(0.5, 2.0, (3, 4, 2))
    return [Sample((x, 1)), Sample((x, -1)), Sample((rng.uniform(0.5, 2.0, (5,)), 0))]


def _running_reference(better: Any) -> Any:
    def reference(x: Any, dim: int) -> Any:
        x = np.moveaxis(x, dim, 0)
        values, places = x.copy(), np.zeros(x.shape, np.int64)
        for k in range(1, len(x)):
            won = better(x[k], values[k - 1])
            values[k] = np.where(won, x[k], values[k - 1])
            places[k] = np.where(won, k, places[k - 1])
        return np.moveaxis(values, 0, dim), np.moveaxis(places, 0, dim)

    return reference


_lines_errors = (
    (lambda flow: flow.cumsum(flow.ones(2), 1), IndexError),
    (lambda flow: flow.cumsum([1.0], 0), TypeError),
)
samples(
    cumsum,
    lambda rng: [*_lines(rng), Sample((np.zeros((2, 0)), 1)), Sample((np.array(2.0), 0))],
    lambda x, dim: np.cumsum(x, dim).reshape(x.shape),
    errors=_lines_errors,
)
samples(
    cumprod,
    lambda rng: [*_lines(rng), Sample((np.array([2.0, 0.0, 3.0, 0.0, 1.0]), 0))],
    np.cumprod,
)
samples(cummax, _lines, _running_reference(np.greater_equal))
samples(cummin, _lines, _running_reference(np.less_equal))
samples(
    logcumsumexp,
    _lines,
    lambda x, dim: np.log(np.cumsum(np.exp(x), dim)),
    errors=((lambda flow: flow.logcumsumexp(flow.arange(3), 0), RuntimeError),),
)
samples(
    diff,
    lambda rng: [
        Sample((rng.standard_normal((3, 4)),)),
        Sample((rng.standard_normal((4, 2)),), {"dim": 0, "n": 2}),
        Sample((rng.standard_normal((1,)),)),
    ],
    lambda x, n=1, dim=-1: np.diff(x, n, dim),
)
