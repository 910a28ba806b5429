"""Scans, said once for every device: running sums and products, running extremes and where they
are, logarithms of running sums of exponentials.

A scan keeps a *state* (`states`) of the elements up to a place, and stores what follows from it.  A
new one is one more `Scan`; both devices make their kernels of it:

    flowvm.ops.rows.cpu.scan_launch     rows, eight elements at a time where they may be; columns
    flowvm.ops.rows.cuda.scan_kernels   teams along rows, threads down columns, segments of both

Which of those a call takes is a *schedule*, which follows from sizes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flowvm.ops.rows.parts.exponential_sums import element_sum, joined, logarithm, nothing
from flowvm.ops.rows.parts.fold_rules import ADD, MULTIPLY, Rule, choose
from flowvm.ops.rows.parts.orders import LARGEST, SMALLEST, Order
from flowvm.ops.rows.parts.states import State

if TYPE_CHECKING:
    from flowvm.meta.arrays import Number

INLINE_ALWAYS = True  # for flowvm.compiler.native: they stand in loops that become vectors


class Scan(NamedTuple):
    """The functions of a scan.

    kinds    NumPy's types of the state's numbers, one or two
    nothing  () -> the state of no element; joined to one of elements behind it, it changes nothing
    of       (element, k) -> the state of element k alone
    join     (state, state) -> the state of both, the first one's elements before the other's
    results  state -> what is stored of it, a number for each of the `outputs`
    rule     of sums and products: elements may be joined eight at a time
    real     state -> whether it is of any element, where `nothing` behind others would count; None
             where it changes nothing there, too
    idle     (state, element) -> whether an element certainly changes nothing: a jump, which is
             foreseen; None where none is known to
    """

    kinds: tuple[Any, ...]
    nothing: Callable[[], State]
    of: Callable[[Any, Any], State]
    join: Callable[[State, State], State]
    results: Callable[[State], tuple[Any, ...]]
    outputs: int = 1
    rule: Rule | None = None
    real: Callable[[State], Any] | None = None
    idle: Callable[[State, Any], object] | None = None


Maker = Callable[[Any], Scan]  # of NumPy's type of the elements, as a kernel reckons with them


# --- sums and products ----------------------------------------------------------------------------


def _first(state: State) -> tuple[object, ...]:
    return (state[0],)


@functools.cache
def _total(rule: Rule) -> Scan:
    keep, wide = rule.keep, np.dtype(rule.wide).type
    start = wide(rule.neutral)

    def neutral() -> State:
        return (start,)

    def of(v: object, k: object) -> State:
        return (wide(v),)

    def join(a: State, b: State) -> State:
        return (keep(a[0], b[0]),)

    return Scan((wide,), neutral, of, join, _first, rule=rule)


def _is_float(kind: Any) -> bool:
    return bool(np.issubdtype(kind, np.floating))


def sums(kind: object) -> Scan:
    """Running sums, in float64 or int64, so each result is rounded once."""
    return _total(ADD[not _is_float(kind)])


def products(kind: object) -> Scan:
    """Running products, likewise."""
    return _total(MULTIPLY[not _is_float(kind)])


# --- extremes -------------------------------------------------------------------------------------


@functools.cache
def _extreme(order: Order, largest: bool, kind: Any) -> Scan:
    """Place -1 is nothing's, and every element follows its number."""
    follows, ahead = order.follows, order.ahead
    info = np.finfo(kind) if _is_float(kind) else np.iinfo(kind)
    last = kind(-np.inf if largest else np.inf) if _is_float(kind) else (
        kind(info.min if largest else info.max)
    )  # fmt: skip

    def neutral() -> State:
        return last, np.int64(-1)

    def of(v: Number, k: Any) -> State:
        return kind(v), np.int64(k)

    def join(a: State, b: State) -> State:
        later = follows(a[0], b[0])
        return choose(later, b[0], a[0]), choose(later, b[1], a[1])

    def real(state: State) -> Any:
        return state[1] >= 0

    def idle(state: State, v: object) -> Any:
        return ahead(state[0], v)

    return Scan((kind, np.int64), neutral, of, join, _both, 2, real=real, idle=idle)


def _both(state: State) -> tuple[object, ...]:
    return state[0], state[1]


def largest(kind: object) -> Scan:
    """The largest element so far, and where it is; of equals the last."""
    return _extreme(LARGEST, True, kind)


def smallest(kind: object) -> Scan:
    """The smallest element so far, and where it is; of equals the last."""
    return _extreme(SMALLEST, False, kind)


# --- exponentials ---------------------------------------------------------------------------------


def _exponential(v: Number, k: object) -> State:
    return element_sum(np.float64(v))


def _logarithm(state: State) -> tuple[float]:
    return (logarithm(state),)


EXPONENTIALS = Scan((np.float64, np.float64), nothing, _exponential, joined, _logarithm)


def exponentials(kind: object) -> Scan:
    """The logarithm of the sum of exponentials so far."""
    return EXPONENTIALS
