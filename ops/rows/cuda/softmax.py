"""softmax and log_softmax and their gradients: one kernel a call.  Rows of neighbouring elements
are held in registers where they fit (`held`); else a team visits its row twice, and the second
visit finds it in the cache.

The tensor is (outer, n, inner), and row m its n elements `inner` apart.  A forward visit keeps the
largest element so far and the sum of the exponentials of the distances from it; a backward one sums
g * y or g.  Few long rows are cut into segments as any reduction is (`reducing`): then it is three
launches, and many teams share a row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from flowvm.cuda.launch import Const, CudaLaunch, KernelStep, Operand, Param, Scratch, blocks_for
from flowvm.dtype import DType
from flowvm.launch import Launch, View
from flowvm.meta import TensorMeta
from flowvm.ops.rows.cuda.folding import number_type
from flowvm.ops.rows.cuda.held import Plan, Round, held_step, hold_of
from flowvm.ops.rows.cuda.reducing import Reduction, cut_of, reduction_steps, three
from flowvm.ops.rows.cuda.sums import element, sum_of, unchanged
from flowvm.ops.rows.cuda.teams import place_of, team
from flowvm.ops.rows.parts.fold_walk import Walk
from flowvm.ops.rows.softmax import rows_of
from flowvm.ops.scalar.decay import decay
from flowvm.ops.scalar.functions import log

__all__ = ["backward", "exponentials", "forward", "log_backward", "log_forward"]

Array = Any
State = Any
Metas = tuple[TensorMeta, ...]
Attrs = tuple[Any, ...]


# --- what a visit finds ---------------------------------------------------------------------------


def _product(x: Array, y: Array, z: Array, at: int, m: int, e: int) -> Any:
    return x[at] * y[at]


def _levels(state: State) -> tuple[Any, Any]:
    return state[0], log(state[1])


@functools.cache
def _scales(kind: Any) -> Callable[[State], tuple[Any, Any]]:
    one = kind(1)

    def scales(state: State) -> tuple[Any, Any]:
        return state[0], one / state[1]

    return scales


@functools.cache
def _sums(kind: Any) -> Callable[[State], tuple[Any, Any]]:
    def sums(state: State) -> tuple[Any, Any]:
        return kind(state[0]), kind(state[0])

    return sums


@functools.cache
def exponentials(dtype: DType, logarithm: bool) -> Reduction:
    """The largest element, and the sum of exp(x - it): its logarithm or its inverse as the result.

    -inf counts as the lowest finite number, so that a row of nothing else gives 0 / 0.  A distance
    from +inf is NaN there, as is one of NaN.
    """
    kind = number_type(dtype)
    lowest, zero = np.finfo(kind).min, kind(0)

    def begin(v: Any, e: int) -> State:
        return lowest, zero

    def take(state: State, v: Any, e: int) -> State:
        top = v if v > state[0] else state[0]
        return top, state[1] * decay(state[0] - top) + decay(v - top)

    def take_4(state: State, a: Any, b: Any, c: Any, d: Any, e: int, step: int) -> State:
        top = state[0]
        top = a if a > top else top
        top = b if b > top else top
        top = c if c > top else top
        top = d if d > top else top
        more = (decay(a - top) + decay(b - top)) + (decay(c - top) + decay(d - top))
        return top, state[1] * decay(state[0] - top) + more

    def join(a: State, b: State) -> State:
        top = a[0] if a[0] > b[0] else b[0]
        return top, a[1] * decay(a[0] - top) + b[1] * decay(b[0] - top)

    numbers = _levels if logarithm else _scales(kind)

    def put(tops: Array, totals: Array, m: int, state: State, extra: float) -> None:
        tops[m], totals[m] = numbers(state)

    return Reduction((kind, kind), element, begin, take, take_4, unchanged, join, put)


@functools.cache
def total_of(dtype: DType, product: bool) -> Reduction:
    """The sum of x, or of x * y."""
    return sum_of(_product if product else element, number_type(dtype))


# --- what becomes of an element -------------------------------------------------------------------


def _softmax(x: Array, y: Array, at: int, top: Any, scale: Any) -> Any:
    return decay(x[at] - top) * scale


def _log_softmax(x: Array, y: Array, at: int, top: Any, level: Any) -> Any:
    return (x[at] - top) - level


def _softmax_backward(g: Array, y: Array, at: int, total: Any, unused: Any) -> Any:
    return (g[at] - total) * y[at]


def _log_softmax_backward(g: Array, y: Array, at: int, total: Any, unused: Any) -> Any:
    return g[at] - decay(y[at]) * total


# --- kernels --------------------------------------------------------------------------------------


@functools.cache
def _rows(
    made: Reduction, numbers: Callable[..., Any], finish: Callable[..., Any], side: bool
) -> Any:
    """Both visits; `numbers` makes of the state what the second one needs."""
    kinds, fetch, begin, take, take_4, close, join, _ = made
    shared, together, _, _ = team(join, kinds, side)

    def kernel(
        out: Array, x: Array, y: Array, results: int, n: int, inner: int, lanes: int
    ) -> None:
        lane, m, _ = place_of(lanes, 1, side)
        arrays = shared()
        inside = m < results
        if not inside:
            m = results - 1
        outer = m // inner if inner > 1 else m
        first = outer * n * inner + m - outer * inner
        state = begin(fetch(x, y, x, first, m, 0), 0)
        at, e, step = first + lane * inner, lane, lanes * inner
        while e + 3 * lanes < n:
            a, b = fetch(x, y, x, at, m, e), fetch(x, y, x, at + step, m, e)
            c, d = fetch(x, y, x, at + 2 * step, m, e), fetch(x, y, x, at + 3 * step, m, e)
            state = take_4(state, a, b, c, d, e, lanes)
            at += 4 * step
            e += 4 * lanes
        while e < n:
            state = take(state, fetch(x, y, x, at, m, e), e)
            at += step
            e += lanes
        state = together(close(state, n), arrays, lane, lanes)
        p, q = numbers(state)
        if inside:
            at = first + lane * inner
            for _ in range(lane, n, lanes):
                out[at] = finish(x, y, at, p, q)
                at += step

    return kernel


@functools.cache
def _finished(finish: Callable[..., Any], side: bool) -> Any:
    """The second visit, of segments, with the numbers of rows in memory."""

    def kernel(
        out: Array, x: Array, y: Array, ps: Array, qs: Array, results: int, n: int, inner: int,
        length: int, segments: int, lanes: int,
    ) -> None:  # fmt: skip
        lane, m, segment = place_of(lanes, segments, side)
        if m < results:
            p, q = ps[m], qs[m]
            outer = m // inner if inner > 1 else m
            begin, end = segment * length + lane, min((segment + 1) * length, n)
            at = (outer * n + begin) * inner + m - outer * inner
            for _ in range(begin, end, lanes):
                out[at] = finish(x, y, at, p, q)
                at += lanes * inner

    return kernel


# --- rows in registers ----------------------------------------------------------------------------

_TOP = Round(("top",), "lowest", "top = v# if v# > top else top", "largest")
_HELD = ("v# = x[at + @] if in# else -kind(inf)",)
_PAIRS = ("g# = x[at + @] if in# else zero", "y# = y[at + @] if in# else zero")


def _plan(load: tuple[str, ...], rounds: Any, result: str) -> Plan:
    return Plan(("out",), ("x", "y"), (), (), load, rounds, result)


PLANS = {
    "softmax": _plan(_HELD, (
        (_TOP, ()),
        (Round(("total",), "zero", "v# = decay(v# - top)\ntotal += v#", "sum"),
         ("scale = one / total",)),
    ), "v# * scale"),
    "log_softmax": _plan(_HELD, (
        (_TOP, ()),
        (Round(("total",), "zero", "total += decay(v# - top)", "sum"), ("level = log(total)",)),
    ), "(v# - top) - level"),
    "softmax_backward": _plan(_PAIRS, (
        (Round(("total",), "zero", "total += g# * y#", "sum"), ()),
    ), "(g# - total) * y#"),
    "log_softmax_backward": _plan(_PAIRS, (
        (Round(("total",), "zero", "total += g#", "sum"), ()),
    ), "g# - decay(y#) * total"),
}  # fmt: skip


# --- rules ----------------------------------------------------------------------------------------


def _launch(
    launch: Launch, metas: Metas, attrs: Attrs, made: Reduction, numbers: Callable[..., Any],
    finish: Callable[..., Any], plan: Plan,
) -> CudaLaunch:  # fmt: skip
    x = metas[0]
    if x.numel == 0:
        return CudaLaunch(launch.outputs, ())
    outer, n, inner = rows_of("softmax", metas[-1], attrs[0])
    results, side = outer * inner, inner > 1
    cut = cut_of(results, n, side, inner)
    view = View(x.dtype, (x.numel,))
    out, *inputs = (Operand(k, view) for k in range(len(metas) + 1))
    arrays = (out, inputs[0], inputs[-1])
    hold = None if side else hold_of(results, n, x.dtype.itemsize, len(inputs))
    if hold is not None:
        step = held_step(plan, number_type(x.dtype), hold, results, n, arrays)
        return CudaLaunch(launch.outputs, (step,))
    if cut.segments == 1:
        step = KernelStep(
            _rows(made, numbers, finish, side),
            (*arrays, *map(Const, (results, n, inner, cut.lanes))),
            blocks_for(results, cut.columns),
            (cut.block, 1, 1),
        )
        return CudaLaunch(launch.outputs, (step,))
    walk = Walk(((outer, n * inner), (inner, 1)), ((1, 0), (n, inner)))
    halves = [Scratch(8 * results * i, x.dtype.name, (results,)) for i in range(2)]
    at, goal = 16 * results, (halves[0], halves[1])
    steps, scratch = reduction_steps(made, walk, three(tuple(inputs)), goal, 1.0, at)
    sizes = map(Const, (results, n, inner, cut.length, cut.segments, cut.lanes))
    params: tuple[Param, ...] = (*arrays, *goal, *sizes)
    grid = blocks_for(-(-results // cut.columns) * cut.segments, 1)
    last = KernelStep(_finished(finish, side), params, grid, (cut.block, 1, 1))
    return CudaLaunch(launch.outputs, (*steps, last), at + scratch)


def forward(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """softmax."""
    dtype = metas[0].dtype
    made = exponentials(dtype, False)
    numbers = _scales(number_type(dtype))
    return _launch(launch, metas, attrs, made, numbers, _softmax, PLANS["softmax"])


def log_forward(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """log_softmax."""
    made = exponentials(metas[0].dtype, True)
    return _launch(launch, metas, attrs, made, _levels, _log_softmax, PLANS["log_softmax"])


def backward(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """The gradient of softmax."""
    return _back(launch, metas, attrs, True, _softmax_backward, PLANS["softmax_backward"])


def log_backward(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """The gradient of log_softmax."""
    plan = PLANS["log_softmax_backward"]
    return _back(launch, metas, attrs, False, _log_softmax_backward, plan)


def _back(
    launch: Launch, metas: Metas, attrs: Attrs, product: bool, finish: Callable[..., Any],
    plan: Plan,
) -> CudaLaunch:  # fmt: skip
    made, sums = total_of(metas[0].dtype, product), _sums(number_type(metas[0].dtype))
    return _launch(launch, metas, attrs, made, sums, finish, plan)
