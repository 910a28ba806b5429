"""Reductions, said once for every device: sums, products, extremes and truth; where the largest
element is; number, mean and squared distances.

A reduction keeps a *state* (`states`) of the elements that it has seen.  How states are joined and
what is stored of one is a `Reduced`; what becomes of a run of elements is a device's own, since
there it is decided how much is added before it is widened, and what is vectors.

    flowvm.ops.rows.cpu.fold_launch      rows and columns of a walk, in segments; the second phase
    flowvm.ops.rows.cuda.fold_kernels    teams of threads, segments; the second launch
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from flowvm.ops.rows.parts.fold_rules import Rule, choose
from flowvm.ops.rows.parts.moment_rules import joined
from flowvm.ops.rows.parts.orders import Order
from flowvm.ops.rows.parts.states import State
from flowvm.ops.scalar.functions import sqrt

INLINE_ALWAYS = True  # for flowvm.compiler.native: they stand in loops that become vectors


class Reduced(NamedTuple):
    """The functions of a reduction.

    kinds    NumPy's types of the state's numbers
    join     (state, state) -> the state of both, the first one's elements before the other's
    results  (state, number of the call) -> what is stored, a number for each of the `outputs`
    """

    kinds: tuple[Any, ...]
    join: Callable[[State, State], State]
    results: Callable[[State, float], tuple[Any, ...]]
    outputs: int = 1


@functools.cache
def total_of(rule: Rule, kind: object, divided: bool) -> Reduced:
    """Return the Reduced of a rule for results of type `kind`; `divided`: by the call's number."""
    keep = rule.keep

    def join(a: State, b: State) -> State:
        return (keep(a[0], b[0]),)

    def whole(state: State, divisor: float) -> tuple[Any, ...]:
        return (state[0],)

    def quotient(state: State, divisor: float) -> tuple[object, ...]:
        return (state[0] / divisor,)

    wide = np.dtype(rule.wide).type if rule.wide else kind
    return Reduced((wide,), join, quotient if divided else whole)


@functools.cache
def place_of(order: Order, kind: object) -> Reduced:
    """The best element, of NumPy's type `kind`, and the first place where it is."""
    replaces = order.replaces

    def join(a: State, b: State) -> State:
        other = replaces(a[0], a[1], b[0], b[1])
        return choose(other, b[0], a[0]), choose(other, b[1], a[1])

    def results(state: State, extra: float) -> tuple[Any, ...]:
        return state[0], state[1]

    return Reduced((kind, np.int64), join, results, 2)


def _variance_and_mean(state: State, freedom: float) -> tuple[object, ...]:
    return state[2] / freedom, state[1]


def _deviation_and_mean(state: State, freedom: float) -> tuple[object, ...]:
    return sqrt(state[2] / freedom), state[1]


_THREE = (np.float64, np.float64, np.float64)
MOMENTS = Reduced(_THREE, joined, _variance_and_mean, 2)
DEVIATION = Reduced(
    _THREE, joined, _deviation_and_mean, 2
)  # the root of the variance, and the mean
