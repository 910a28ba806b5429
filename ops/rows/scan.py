"""Running results along a dimension: sums, products, extremes, and differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm import return_types
from flowvm.eager.modes import grad_enabled
from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentError, DTypeError
from flowvm.launch import Launch
from flowvm.meta.dtype import DType, as_dtype, bool_, int64
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.composite import Recorded, need_tensor, record, whole, wrap_dim
from flowvm.ops.declare.kinds import Dim
from flowvm.ops.declare.letters import along_dim
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.registry import Sample, op, samples
from flowvm.ops.pointwise.math import exp
from flowvm.ops.rows.cpu.scan_launch import Scanned, scan_launch
from flowvm.ops.rows.parts import recurrence
from flowvm.ops.rows.parts.recurrence import later, recurrence_back
from flowvm.ops.rows.parts.scan_programs import exponentials, largest, products, smallest, sums
from flowvm.ops.shapes.complex_parts import by_parts
from flowvm.ops.shapes.fill import zeros_like
from flowvm.ops.shapes.join import cat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowvm.eager.nodes import Node
    from flowvm.meta.arrays import Array


# public: flow

# --- sums -------------------------------------------------------------------------------------


def _summed(dtype: DType) -> DType:
    return dtype if dtype.is_floating_point else int64


@op(
    "x -> out",
    name="cumsum",
    grad=lambda c, g: (_cumsum(g, c.attrs[0], not c.attrs[1]),),
    cuda="scan_kernels:run",
    letters=along_dim((0,)),
    amp="full",
)
def _cumsum(x: TensorMeta, dim: Dim, reverse: bool) -> Launch:
    return scan_launch(Scanned(sums, dim, reverse), (x.dense(_summed(x.dtype)),), x)


def _ready(name: str, input: Tensor, dim: int | Sequence[int], dtype: object) -> tuple[Tensor, int]:
    need_tensor(name, "input", input)
    d = wrap_dim(name, dim, input._meta.ndim)
    if dtype is not None and as_dtype(dtype) is bool_:
        raise DTypeError(f"{name}: no dtype bool; convert the result")
    return (input if dtype is None else input.to(as_dtype(dtype))), d


# not public
def as_asked(out: Tensor, dtype: object) -> Tensor:
    """Convert `out` to `dtype`, if one is given.

    Integers are folded in int64, whose lower bits are right for every smaller type.
    """
    if dtype is None or out._meta.dtype is as_dtype(dtype):
        return out
    return out.to(as_dtype(dtype))


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


def _cumprod_grad(c: Node, g: Tensor) -> tuple[Tensor]:
    x, out = c.saved
    (dim,) = c.attrs
    return (later(out, dim, 1) * recurrence_back(g, x, dim),)


@op(
    "x -> out",
    name="cumprod",
    saves="x, out",
    grad=_cumprod_grad,
    cuda="scan_kernels:run",
    letters=along_dim(),
    amp="full",
)
def _cumprod(x: TensorMeta, dim: Dim) -> Launch:
    return scan_launch(Scanned(products, dim), (x.dense(_summed(x.dtype)),), x)


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
    length, total = 1, x if x._meta.ndim else x.clone()
    while x._meta.ndim and length < x._meta.shape[dim]:
        rest = x._meta.shape[dim] - length
        longer = total.narrow(dim, length, rest) * total.narrow(dim, 0, rest)
        total = cat([total.narrow(dim, 0, length), longer], dim)
        length *= 2
    return total


# not public
def others_product(x: Tensor, dim: int) -> Tensor:
    """For each element the product of all others along `dim`, with its gradient where one is
    recorded.
    """
    if x._node is None or not grad_enabled():
        return recurrence.others_product(x, dim)  # type: ignore[no-any-return]
    before = later(_cumprod(x, dim), dim, 1)
    after: Tensor = later(_cumprod(x.flip(dim), dim), dim, 1).flip(dim)
    return before * after


# --- extremes ---------------------------------------------------------------------------------


@op("x -> values, indices", name="cummax", cuda="scan_kernels:run", letters=along_dim())
def _cummax(x: TensorMeta, dim: Dim) -> Launch:
    return scan_launch(Scanned(largest, dim), (x.dense(), x.dense(int64)), x)


@op("x -> values, indices", name="cummin", cuda="scan_kernels:run", letters=along_dim())
def _cummin(x: TensorMeta, dim: Dim) -> Launch:
    return scan_launch(Scanned(smallest, dim), (x.dense(), x.dense(int64)), x)


def _running_grad(c: Node, g: Tensor) -> tuple[Tensor]:
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


def _logcumsumexp_grad(c: Node, g: Tensor) -> tuple[Tensor]:
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
    cuda="scan_kernels:run",
    letters=along_dim(),
)
def _logcumsumexp(x: TensorMeta, dim: Dim) -> Launch:
    return scan_launch(Scanned(exponentials, dim), (x.dense(),), x)


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
        return x.clone()
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


def _running_reference(better: Any) -> Callable[[Any, int], Any]:
    def reference(x: Array, dim: int) -> Any:
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
