"""`scatter_reduce`: several elements for one place, reduced to one; with the gradient of each
reduction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentError
from flowvm.meta.dtype import iinfo
from flowvm.ops.declare.composite import Recorded, filled_of, need_tensor
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.places.cpu.index_kernels import ADD
from flowvm.ops.places.gather import aligned, gather, narrowed_to
from flowvm.ops.places.scatter import (
    MODES,
    apart,
    changed,
    fresh,
    number_tensor,
    same_dtype,
    scatter,
    scatter_add,
    write_elements,
)
from flowvm.ops.pointwise.compare import eq, ne
from flowvm.ops.shapes.padding import pad

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node
    from flowvm.meta.arrays import Array


def _reduce_into(
    out: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool
) -> None:
    if not include_self:
        write_elements(out, dim, index, number_tensor(out, _identity(out, reduce)), None)
    mode = ADD if reduce == "mean" else MODES[reduce]
    write_elements(out, dim, index, source, mode)
    if reduce == "mean":
        count = _counts(out, dim, index, include_self)
        average = out / count if out._meta.dtype.is_floating_point else out // count
        out.copy_(average)


def _counts(x: Tensor, dim: int, index: Tensor, include_self: bool) -> Tensor:
    """Return the number of elements of which each place is the mean."""
    count = filled_of(x._meta, 1)
    one = number_tensor(x, 1)
    if not include_self:
        write_elements(count, dim, index, number_tensor(x, 0), None)
    write_elements(count, dim, index, one, ADD)
    return count


def _identity(x: Tensor, reduce: str) -> float:
    if reduce in ("sum", "mean"):
        return 0
    if reduce == "prod":
        return 1
    if x._meta.dtype.is_floating_point:
        return float("-inf") if reduce == "amax" else float("inf")
    if x._meta.dtype.is_bool:
        return int(reduce == "amin")
    limits = iinfo(x._meta.dtype)
    return limits.min if reduce == "amax" else limits.max


def _scatter_reduce_grad(c: Node, g: Tensor) -> tuple[object, ...]:
    dim, reduce, include_self = c.attrs
    x, index, src = c.saved
    whole = src
    src = narrowed_to(src, index._meta.shape, None) if index._meta.numel else src
    if reduce in ("sum", "mean"):
        share = g if reduce == "sum" else g / _counts(x.detach(), dim, index, include_self)
        gx, gs = share, gather(share, dim, index)
    elif reduce == "prod":
        gx, gs = _prod_grads(g, x, dim, index, src, include_self)
    else:
        result = scatter_reduce(x, dim, index, src, reduce, include_self=include_self).detach()
        mine: Tensor = eq(x, result).to(g._meta.dtype)
        if not include_self:
            mine = scatter(mine, dim, index, 0)
        theirs: Tensor = eq(src, gather(result, dim, index)).to(g._meta.dtype)
        share = g / scatter_add(mine, dim, index, theirs)
        gx, gs = share * mine, gather(share, dim, index) * theirs
    if not include_self:
        gx = scatter(gx, dim, index, 0)
    if gs._meta.shape != whole._meta.shape:
        sizes = zip(whole._meta.shape, gs._meta.shape, strict=True)
        gs = pad(gs, [w for n, m in reversed(list(sizes)) for w in (0, n - m)])
    return gx, None, gs


def _prod_grads(
    g: Tensor, x: Tensor, dim: int, index: Tensor, src: Tensor, include_self: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradients of factors: the product of the others, by way of the non-zero ones."""
    own_zero, src_zero = eq(x, 0), eq(src, 0)
    if not include_self:
        own_zero = scatter(own_zero, dim, index, 0)
    base = x.masked_fill(own_zero, 1)
    factors = src.masked_fill(src_zero, 1)
    product = scatter_reduce(base, dim, index, factors, "prod", include_self=include_self)
    own, theirs = own_zero.to(g._meta.dtype), src_zero.to(g._meta.dtype)
    zeros = scatter_add(own, dim, index, theirs)  # of each place; a factor's own does not count
    others_x = (product / base).masked_fill(ne(zeros, own), 0)
    others_src = gather(product, dim, index) / factors
    others_src = others_src.masked_fill(ne(gather(zeros, dim, index), theirs), 0)
    return g * others_x, gather(g, dim, index) * others_src


_scatter_reduce_op = Recorded(
    "scatter_reduce", _scatter_reduce_grad, ("x", "index", "src"), "x, index, src"
)


def _scatter_reduce(
    apply: Any, x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool
) -> Tensor:
    name = "scatter_reduce"
    same_dtype(name, need_tensor(name, "input", x), need_tensor(name, "src", src), "src")
    at, positions = aligned(name, x, dim, index, src)
    if reduce not in ("sum", "prod", "mean", "amax", "amin"):
        raise ArgumentError(
            f"{name}: reduce is 'sum', 'prod', 'mean', 'amax' or 'amin', not {reduce!r}"
        )
    plain = apart(x, src)

    def write(out: Tensor) -> None:
        _reduce_into(out, at, positions, plain, reduce, include_self)

    out: Tensor = apply(_scatter_reduce_op, x, (positions, src), (at, reduce, include_self), write)
    return out


# public: flow
@method()
@with_out
def scatter_reduce(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """A copy of `input` in which each place that `index` names is reduced with the elements of
    `src` for it.

    reduce         "sum", "prod", "mean", "amax" or "amin"
    include_self   whether what `input` has there takes part

    >>> index, src = flow.tensor([0, 1, 0]), flow.tensor([1.0, 2.0, 3.0])
    >>> flow.scatter_reduce(flow.zeros(2), 0, index, src, "amax")
    tensor([3., 2.])
    """
    return _scatter_reduce(fresh, input, dim, index, src, reduce, include_self)


@method()
def scatter_reduce_(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """`scatter_reduce` in place."""
    return _scatter_reduce(changed, x, dim, index, src, reduce, include_self)


# --- samples ------------------------------------------------------------------------------------


def _reference(
    x: Array, dim: int, index: Array, src: Any, reduce: str, include_self: bool = True
) -> Array:
    groups: dict[tuple[int, ...], list[object]] = {}
    for at in np.ndindex(*index.shape):
        to = list(at)
        to[dim] = int(index[at])
        groups.setdefault(tuple(to), []).append(src[at])
    rules: dict[str, Any] = {
        "sum": np.sum,
        "prod": np.prod,
        "mean": np.mean,
        "amax": np.max,
        "amin": np.min,
    }
    out = np.array(x)
    for place, values in groups.items():
        out[place] = rules[reduce]([*([x[place]] if include_self else []), *values])
    return out


def _reductions(rng: np.random.Generator) -> list[Sample]:
    cases = []
    for reduce in ("sum", "prod", "mean", "amax", "amin"):
        for include_self in (True, False):
            x, src = rng.standard_normal((3, 2)), rng.standard_normal((4, 2))
            index = np.array([[0, 2], [0, 0], [1, 2]])
            cases.append(Sample((x, 0, index, src, reduce), {"include_self": include_self}))
    return cases


samples(
    scatter_reduce,
    _reductions,
    _reference,
    errors=(
        (
            lambda flow: flow.scatter_reduce(
                flow.ones(2), 0, flow.tensor([0]), flow.ones(1), "max"
            ),
            ValueError,
        ),
    ),
)
samples(
    scatter_reduce,
    lambda rng: [
        Sample(
            (
                np.array([2.0, 0.0, 3.0]),
                0,
                np.array([0, 0, 2, 2]),
                np.array([0.0, 1.5, 0.0, 2.0]),
                "prod",
            )
        )
    ],
    _reference,
    grad2=False,  # with a zero among the factors, only the first derivative takes all the others
)
