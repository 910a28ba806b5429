"""The kernels of scans (`parts.scan_programs`), and how the work of one is cut.

A scan joins states in order; the tensor is (outer, n, inner).  Where inner is 1 a team
goes through a row tile by tile: each lane has EACH neighbours, the lanes' states are scanned by
shuffles, and what came before the tile is carried along.  Elsewhere a thread goes down one column,
next to the threads of the columns beside it.

Few long rows (or columns) are cut into segments, in three launches: the state of each segment,
those joined in their order, and the segments again with what comes before them.  How the work is
cut follows from sizes alone, so a result depends neither on the device nor on scheduling.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from numba import cuda

from flowvm.cuda.compiler.compilation import threads
from flowvm.cuda.launch import Const, CudaLaunch, KernelStep, Operand, Param, blocks_for
from flowvm.launch import Launch
from flowvm.meta.arrays import Array
from flowvm.meta.dtype import DType
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.rows.cpu.scan_launch import Scanned
from flowvm.ops.rows.cuda.fold_kernels import power_above, state_arrays
from flowvm.ops.rows.cuda.operands import each_step
from flowvm.ops.rows.cuda.reductions import load_of, memory_of, number_type
from flowvm.ops.rows.cuda.teams import EVERY_LANE, MOST, WARP, place_of, team
from flowvm.ops.rows.parts.recurrence import split
from flowvm.ops.rows.parts.scan_programs import Scan
from flowvm.ops.rows.parts.states import State, stored_of

Metas = tuple[TensorMeta, ...]
EACH = 4  # neighbours of a lane
TILES = 8  # of a segment at least
BLOCKS = 1024  # enough to keep a large device busy
COLUMN = 64  # elements of a column's segment at least
ALONE = 1 << 15  # columns that keep a large device busy


class Rows(NamedTuple):
    """`rows` rows of n elements, `segments` of `length` each, of `lanes` threads."""

    rows: int
    n: int
    length: int
    segments: int
    lanes: int


class Columns(NamedTuple):
    """`inner` columns of n elements side by side, in `segments` of `length`: `units` in all."""

    units: int
    n: int
    inner: int
    length: int
    segments: int


@functools.cache
def _ready(scan: Scan) -> Scan:
    """With a `join` to which nothing may come from either side: lanes may have no element."""
    if scan.real is None:
        return scan
    real, after = scan.real, scan.join

    def join(a: State, b: State) -> State:
        if real(b):
            return after(a, b)
        return a

    return scan._replace(join=join)


# --- lanes ----------------------------------------------------------------------------------------


def _up_1(state: State, offset: int) -> State:
    return (cuda.shfl_up_sync(EVERY_LANE, state[0], offset),)


def _up_2(state: State, offset: int) -> State:
    return (
        cuda.shfl_up_sync(EVERY_LANE, state[0], offset),
        cuda.shfl_up_sync(EVERY_LANE, state[1], offset),
    )


def _from_1(state: State, lane: int) -> State:
    return (cuda.shfl_sync(EVERY_LANE, state[0], lane),)


def _from_2(state: State, lane: int) -> State:
    return (cuda.shfl_sync(EVERY_LANE, state[0], lane), cuda.shfl_sync(EVERY_LANE, state[1], lane))


@functools.cache
def _lanes(rule: Scan) -> tuple[Callable[[], Any], Callable[..., Any]]:
    """(shared, scan): `scan` gives each lane the states of the lanes before it joined, and all
    lanes' joined.
    """
    neutral, join = rule.nothing, rule.join
    up, source = ((_up_1, _from_1), (_up_2, _from_2))[len(rule.kinds) - 1]
    shared, _, stored, loaded = team(join, rule.kinds, False)

    def scan(state: State, arrays: object, lane: int, lanes: int) -> tuple[State, State]:
        near, offset = min(lanes, WARP), 1
        lane_in_row = lane % near
        while offset < near:
            other = up(state, offset)
            if lane_in_row >= offset:
                state = join(other, state)
            offset *= 2
        total = source(state, cuda.threadIdx.x % WARP - lane_in_row + near - 1)
        before = up(state, 1)
        if lane_in_row == 0:
            before = neutral()
        if lanes > WARP:
            cuda.syncthreads()  # the arrays may still be read
            if lane_in_row == 0:
                stored(arrays, lane // WARP, total)
            cuda.syncthreads()
            warps, total = neutral(), neutral()
            for w in range(lanes // WARP):
                part = loaded(arrays, w)
                if w < lane // WARP:
                    warps = join(warps, part)
                total = join(total, part)
            before = join(warps, before)
        return before, total

    return shared, scan


# --- kernels --------------------------------------------------------------------------------------


@functools.cache
def _rows(
    rule: Scan, source: DType, reverse: bool, carried: bool, totals: bool
) -> Callable[[Any, Any, Any, Any, Any, Rows], None]:
    """Return the kernel that scans rows.

    `totals`: it leaves the state of each segment in s; `carried`: it reads the state before it
    there.
    """
    neutral, of, join, results = rule.nothing, rule.of, rule.join, rule.results
    load, put = load_of(source), stored_of(rule.outputs)
    shared, scan = _lanes(rule)
    _, _, stored, loaded = team(join, rule.kinds, False)

    def kernel(first: Array, second: Array, x: Array, s0: Array, s1: Array, t: Rows) -> None:
        rows, n, length, segments, lanes = t.rows, t.n, t.length, t.segments, t.lanes
        lane, row, segment = place_of(lanes, segments, False)
        arrays = shared()
        inside = row < rows
        if not inside:  # it goes through the motions
            row = rows - 1
        end = min((segment + 1) * length, n)
        step, origin = 1, row * n
        if reverse:
            step, origin = -1, row * n + n - 1
        carry = loaded((s0, s1), row * segments + segment) if carried else neutral()
        for start in range(segment * length, end, lanes * EACH):
            begin = start + lane * EACH
            stop = min(begin + EACH, end)
            own = neutral()
            for k in range(begin, stop):
                own = join(own, of(load(x[origin + step * k]), k))
            before, total = scan(own, arrays, lane, lanes)
            if not totals and inside:
                run = join(carry, before)
                for k in range(begin, stop):
                    run = join(run, of(load(x[origin + step * k]), k))
                    put((first, second), origin + step * k, results(run))
            carry = join(carry, total)
        if totals and inside and lane == 0:
            stored((s0, s1), row * segments + segment, carry)

    return kernel


@functools.cache
def _columns(
    rule: Scan, source: DType, reverse: bool, carried: bool, totals: bool
) -> Callable[[Any, Any, Any, Any, Any, Columns], None]:
    """A thread for each segment of each column."""
    neutral, of, join, results = rule.nothing, rule.of, rule.join, rule.results
    load, put = load_of(source), stored_of(rule.outputs)
    _, _, stored, loaded = team(join, rule.kinds, False)

    def kernel(first: Array, second: Array, x: Array, s0: Array, s1: Array, t: Columns) -> None:
        n, inner, length, segments = t.n, t.inner, t.length, t.segments
        unit = cuda.grid(1)
        if unit < t.units:
            rest = unit // inner
            column = unit - rest * inner
            outer = rest // segments
            segment = rest - outer * segments
            step, at = inner, outer * n * inner + column
            if reverse:
                step, at = -inner, at + (n - 1) * inner
            slot = (outer * inner + column) * segments + segment
            state = loaded((s0, s1), slot) if carried else neutral()
            at += segment * length * step
            for k in range(segment * length, min((segment + 1) * length, n)):
                state = join(state, of(load(x[at]), k))
                if not totals:
                    put((first, second), at, results(state))
                at += step
            if totals:
                stored((s0, s1), slot, state)

    return kernel


@functools.cache
def _befores(rule: Scan) -> Callable[[Array, Array, int, int], None]:
    """Return the kernel that replaces a segment's state by all before; a row has a warp."""
    neutral, join = rule.nothing, rule.join
    shared, scan = _lanes(rule)
    _, _, stored, loaded = team(join, rule.kinds, False)

    def kernel(s0: Array, s1: Array, rows: int, segments: int) -> None:
        lane, row, _ = place_of(WARP, 1, False)
        inside = row < rows
        if not inside:
            row = rows - 1
        begin, end = segments * lane // WARP, segments * (lane + 1) // WARP
        own = neutral()
        for s in range(begin, end):
            own = join(own, loaded((s0, s1), row * segments + s))
        run, _ = scan(own, shared(), lane, WARP)
        if inside:
            for s in range(begin, end):
                more = join(run, loaded((s0, s1), row * segments + s))
                stored((s0, s1), row * segments + s, run)
                run = more

    return kernel


# --- how the work is cut --------------------------------------------------------------------------


def run(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """The launch of any op whose plan is `Scanned`."""
    plan: Scanned = launch.plan
    x, reverse = metas[0], plan.reverse
    if x.numel == 0:
        return CudaLaunch(launch.outputs, ())
    rule = _ready(plan.scan(number_type(x.dtype)))
    outer, n, inner = split(x, plan.dim)
    outputs = [Operand(k, memory_of(m, m.numel)) for k, m in enumerate(launch.outputs)]
    arrays = (outputs[0], outputs[-1], Operand(len(outputs), memory_of(x, x.numel)))
    cut = _row_steps if inner == 1 else _column_steps
    results = outer * inner
    kernels, step, segments = cut(rule, arrays, outer, n, inner)
    states = state_arrays(rule.kinds, results * segments, 0)[:2]
    if segments == 1:
        return CudaLaunch(
            launch.outputs, (step(kernels(rule, x.dtype, reverse, False, False), arrays[:2]),)
        )
    scratch = 8 * len(rule.kinds) * results * segments
    block = threads(MOST)
    joined = KernelStep(
        _befores(rule), (*states, Const(results), Const(segments)),
        blocks_for(results, block // WARP), (block, 1, 1),
    )  # fmt: skip
    return CudaLaunch(
        launch.outputs,
        (
            step(kernels(rule, x.dtype, reverse, False, True), states),
            joined,
            step(kernels(rule, x.dtype, reverse, True, False), states),
        ),
        scratch,
    )


Steps = tuple[Callable[..., Any], Callable[[Any, tuple[Param, ...]], KernelStep], int]


def _row_steps(rule: Scan, arrays: tuple[Param, ...], rows: int, n: int, inner: int) -> Steps:
    block = threads(MOST)
    lanes = min(power_above(-(-n // EACH)), WARP if n <= WARP * EACH * TILES else block)
    blocks = -(-rows // (block // lanes))
    segments = max(1, min(-(-n // (lanes * EACH * TILES)), BLOCKS // blocks))
    tiles = -(-n // (segments * lanes * EACH))
    length = tiles * lanes * EACH
    segments = -(-n // length)
    sizes = Const(Rows(rows, n, length, segments, lanes))

    def step(kernel: Callable[..., object], states: tuple[Param, ...]) -> KernelStep:
        params = (*arrays, *states, sizes)
        return KernelStep(kernel, params, blocks_for(blocks * segments, 1), (block, 1, 1))

    return _rows, step, segments


def _column_steps(rule: Scan, arrays: tuple[Param, ...], outer: int, n: int, inner: int) -> Steps:
    columns = outer * inner
    segments = max(1, min(-(-n // COLUMN), ALONE // columns))
    length = -(-n // segments)
    segments = -(-n // length)
    count = columns * segments
    sizes = Const(Columns(count, n, inner, length, segments))

    def step(kernel: Callable[..., object], states: tuple[Param, ...]) -> KernelStep:
        return each_step(kernel, count, *arrays, *states, sizes)

    return _columns, step, segments
