"""Random choices and counts: bernoulli, multinomial, poisson, dropout."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flowvm.eager.batched import all_examples, check_refill, spread_to_draw
from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from flowvm.meta.dtype import bool_, float64
from flowvm.ops.declare.composite import filled_of, need_tensor
from flowvm.ops.declare.core import laid_as
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.registry import Sample, broadcast_shapes, samples
from flowvm.ops.places.scatter import changed
from flowvm.ops.places.search import searchsorted
from flowvm.ops.random.generator import Generator, drawn_from
from flowvm.ops.random.parts.philox import (
    bernoulli_into,
    bernoulli_words,
    chosen_words,
    dropout_words,
    exponential_words,
)
from flowvm.ops.random.parts.poisson import poisson_counts
from flowvm.ops.random.parts.weights import checked_weights
from flowvm.ops.random.random import DRAWN, uniform_of
from flowvm.ops.shapes.ranges import arange
from flowvm.ops.shapes.views import expand

# --- choices ----------------------------------------------------------------------------------


def _check_p(name: str, p: float) -> float:
    if isinstance(p, bool) or not isinstance(p, (int, float, np.number)):
        raise ArgumentTypeError(f"{name}: p is a number, got {type(p).__name__}")
    if not 0 <= p <= 1:
        raise ArgumentError(f"{name}: p is a probability, from 0 to 1, got {p}")
    return float(p)


# public: flow
@with_out
def bernoulli(
    input: Tensor, p: float | None = None, *, generator: Generator | None = None
) -> Tensor:
    """Draw 1 with the probability that each element of `input` (or `p` for all) gives, else 0.

    The result has `input`'s dtype.  InvalidValueError for an element that is no probability, at the
    next sync.

    >>> flow.bernoulli(flow.tensor([0.0, 1.0]))
    tensor([0., 1.])
    """
    input = spread_to_draw(need_tensor("bernoulli", "input", input))
    meta = input._meta
    if p is None and not meta.dtype.is_floating_point:
        raise DTypeError(f"bernoulli: probabilities are floats, got {meta.dtype.name}")
    kind = meta.dtype.compute
    drawn = drawn_from(generator)
    hits: Tensor
    if p is None:
        hits = chosen_words(input.detach(), kind, *drawn)
    else:
        hits = bernoulli_words(meta.dense(kind), _check_p("bernoulli", p), *drawn)
    out: Tensor = hits.to(meta.dtype)
    return out


# public: flow
@with_out
def multinomial(
    input: Tensor,
    num_samples: int,
    replacement: bool = False,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """`num_samples` indices drawn from each row of weights (which need not sum to 1), as int64.

    Without `replacement` an index comes once at most, so `num_samples` is limited by the number of
    weights.  InvalidValueError at the next sync where a weight is negative or not finite, or a row
    has none above 0.

    >>> flow.multinomial(flow.tensor([0.0, 3.0, 0.0]), 2, replacement=True)
    tensor([1, 1])
    """
    x = spread_to_draw(need_tensor("multinomial", "input", input).detach())
    meta = x._meta
    if meta.ndim not in (1, 2) or meta.shape[-1] == 0:
        raise ShapeError(
            f"multinomial: weights are a vector or a matrix with columns, "
            f"got shape {tuple(meta.shape)}"
        )
    if not meta.dtype.is_floating_point:
        raise DTypeError(f"multinomial: weights are floats, got {meta.dtype.name}")
    if num_samples <= 0 or (not replacement and num_samples > meta.shape[-1]):
        raise ArgumentError(
            f"multinomial: cannot draw {num_samples} of {meta.shape[-1]} without replacement"
            if num_samples > 0
            else f"multinomial: num_samples must be positive, got {num_samples}"
        )
    weights = checked_weights(x.contiguous())
    if replacement:
        sums = weights.cumsum(-1)
        draws = meta.with_shape((*meta.shape[:-1], num_samples), float64)
        places = uniform_of(draws, generator) * sums[..., -1:]
        drawn: Tensor = searchsorted(sums, places, right=True).clamp(max=meta.shape[-1] - 1)
        return drawn
    # the first of exponential waiting times with these rates
    times = exponential_words(meta.dense(float64), 1.0, *drawn_from(generator)) / weights
    order: Tensor = times.topk(num_samples, -1, False, True)[1]
    return order


# --- dropout ----------------------------------------------------------------------------------


# public: F
def dropout(
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """Set elements of `input` to 0 with probability `p`, and divide the others by 1 - p.

    Unless `training`, return `input` itself.  Random words come from `generator`, or from the
    default one.

    No mask is kept: the gradient makes the same random words again.

    >>> F.dropout(flow.ones(4), p=0.5, training=False)
    tensor([1., 1., 1., 1.])
    >>> bool(F.dropout(flow.ones(100), p=0.5).unique().eq(flow.tensor([0.0, 2.0])).all())
    True
    """
    x = need_tensor("dropout", "input", input)
    chance = _check_p("dropout", p)
    if not training or chance == 0.0:
        return x
    x = spread_to_draw(x)
    if not x._meta.dtype.is_floating_point:
        raise DTypeError(f"dropout is for floats, got {x.dtype.name}")
    dropped: Tensor = dropout_words(x, chance, *drawn_from(generator))
    if not inplace:
        return laid_as(dropped, x)
    whole: Tensor = x.copy_(dropped)
    return whole


@method()
def bernoulli_(x: Tensor, p: Any = 0.5, *, generator: Generator | None = None) -> Tensor:
    """Fill `x` with 1 with probability `p` (a number, or a tensor that broadcasts), else 0.

    >>> flow.empty(3).bernoulli_(1.0)
    tensor([1., 1., 1.])
    """
    meta = need_tensor("bernoulli_", "input", x)._meta
    if isinstance(p, Tensor):
        chances = spread_to_draw(expand(p.detach(), meta.shape))
        filled: Tensor = x.copy_(chosen_words(chances, bool_, *drawn_from(generator)))
        return filled
    check_refill("bernoulli_", x)
    numbers = (_check_p("bernoulli_", p), *drawn_from(generator))
    return changed(DRAWN, x, (), (), lambda out: bernoulli_into(out, *numbers))


# public: flow
def poisson(input: Tensor, generator: Generator | None = None) -> Tensor:
    """Counts of events whose mean number each element of `input` gives, in its dtype.

    InvalidValueError when the result is read, for a mean that is negative or no number.

    >>> flow.poisson(flow.tensor([0.0, 0.0]))
    tensor([0., 0.])
    """
    input = spread_to_draw(need_tensor("poisson", "input", input))
    meta = input._meta
    if not meta.dtype.is_floating_point:
        raise DTypeError(f"poisson: means are floats, got {meta.dtype.name}")
    counts: Tensor = poisson_counts(input.detach(), *drawn_from(generator))
    return counts


_MOST = 1 << 10  # trials whose numbers are there at once, for each element


# public: flow
@with_out
def binomial(count: Tensor, prob: Tensor, generator: Generator | None = None) -> Tensor:
    """Draw how many of `count` trials succeed with probability `prob`.

    The arguments are broadcast; the result has their dtype, which is a float.  One number is drawn
    for each trial.  ArgumentError for a count that is negative, and for a `prob` that is no
    probability.

    >>> flow.binomial(flow.tensor([10.0, 10.0]), flow.tensor([0.0, 1.0]))
    tensor([ 0., 10.])
    """
    n: Any = spread_to_draw(need_tensor("binomial", "count", count).detach())
    p: Any = need_tensor("binomial", "prob", prob).detach()
    if not n.dtype.is_floating_point or n.dtype is not p.dtype:
        raise DTypeError(
            f"binomial: count and prob are floats of one dtype, got {n.dtype.name} and "
            f"{p.dtype.name}"
        )
    shape = broadcast_shapes(n.shape, p.shape)
    total = filled_of(n._meta.with_shape(shape), 0)
    if not total.numel():
        return total
    counts, chances = all_examples(n), all_examples(p)
    if not bool((counts >= 0).all()) or not bool(((chances >= 0) & (chances <= 1)).all()):
        raise ArgumentError("binomial: counts are not negative, probabilities from 0 to 1")
    most = math.ceil(counts.max().item())
    for first in range(0, most, _MOST):
        trials = min(_MOST, most - first)
        # an element's numbers are side by side: so a map draws what a call on its batch draws
        meta = n._meta.with_shape((*shape, trials), float64)
        hits = uniform_of(meta, generator) < p.unsqueeze(-1)
        numbers = arange(first, first + trials, device=n.device)
        total = total + (hits & (numbers < n.unsqueeze(-1))).sum(-1).to(n.dtype)
    return total


method()(bernoulli)
method()(multinomial)

samples(
    dropout,
    lambda rng: [Sample((rng.standard_normal((3, 4)), 0.5, False)), Sample((np.ones((2, 3)), 0.0))],
    lambda x, p, training=True: x,
    errors=(
        (lambda flow: flow.dropout(flow.ones(2), 1.5), ValueError),
        (lambda flow: flow.dropout([1.0]), TypeError),
        (lambda flow: flow.multinomial(flow.ones(2), 3), ValueError),
        (lambda flow: flow.bernoulli(flow.arange(2)), RuntimeError),
    ),
)
