"""The kernels of reductions, and how the work of one is cut.

A *reduction* is a family of small functions (`Reduction`) on states (`teams`).  Its first kernel
goes over elements: a team takes a segment of one result's elements.  Where there are few results of
many elements each, these have several segments, whose states go to scratch, and the second kernel
joins them.  How the work is cut follows from sizes alone, and states are joined in their order, so
a result depends neither on the device nor on scheduling.

The walk is `fold_walk`'s: result m begins at m // inner * outer_stride + m % inner * inner_stride;
its element e is at e // n * far + e % n * near from there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from flowvm.cuda.compiler.compilation import threads
from flowvm.cuda.launch import Const, KernelStep, Param, Scratch, blocks_for
from flowvm.meta.arrays import Array
from flowvm.ops.declare.registry import power_below
from flowvm.ops.rows.cuda.teams import MOST, WARP, place_of, team
from flowvm.ops.rows.parts.fold_walk import Walk

BLOCKS = 1024  # enough to keep a large device busy
EACH = 32  # elements of a lane from which on a result is worth another segment
AHEAD = 4  # elements that a lane reads before it uses them


class Reduction(NamedTuple):
    """The functions of a reduction.  `extra` is the launch's one number.

    kinds   NumPy's types of the state's numbers
    fetch   (x, y, z, at, m, e) -> element e of result m, `at` being its place in memory
    begin   (element, e) -> running state that holds no element, or element e
    take    (running, element, e) -> running
    take_4  (running, four elements, e, step) -> running, where elements are `step` apart
    close   (running, how many it took) -> state
    join    (state, state) -> state
    put     (first output, second output, m, state, extra): writes result m
    """

    kinds: tuple[Any, ...]
    fetch: Callable[..., Any]
    begin: Callable[..., Any]
    take: Callable[..., Any]
    take_4: Callable[..., Any]
    close: Callable[..., Any]
    join: Callable[..., Any]
    put: Callable[..., None]


class Walked(NamedTuple):
    """A walk and its cut; `extra` is the launch's one number."""

    extra: float
    results: int
    inner: int
    outer_stride: int
    inner_stride: int
    n: int
    far: int
    near: int
    elements: int
    length: int
    segments: int
    lanes: int


class Joined(NamedTuple):
    """`segments` states of each of `results`, which `lanes` threads join."""

    extra: float
    results: int
    segments: int
    lanes: int


# --- kernels --------------------------------------------------------------------------------------


@functools.cache
def elements_kernel(
    reduction: Reduction, side: bool, flat: bool, whole: bool
) -> Callable[..., None]:
    """Reduces segments of elements.  `flat`: n is all of a result's elements; `whole`: there is one
    segment, and the outputs are the results; otherwise states, where `slots` said.
    """
    kinds, fetch, begin, take, take_4, close, join, put = reduction
    shared, together, stored, _ = team(join, kinds, side)

    def kernel(
        first: Array, second: Array, third: Array, x: Array, y: Array, z: Array, t: Walked
    ) -> None:
        results, inner, n, far, near = t.results, t.inner, t.n, t.far, t.near
        length, segments, lanes = t.length, t.segments, t.lanes
        lane, m, segment = place_of(lanes, segments, side)
        arrays = shared()
        inside = m < results
        if not inside:  # it goes through the motions
            m = results - 1
        outer = m // inner if inner > 1 else m
        base = outer * t.outer_stride + (m - outer * inner) * t.inner_stride
        e = segment * length
        end = min(e + length, t.elements)
        if flat:
            state = begin(fetch(x, y, z, base + e * near, m, e), e)
            e += lane
            at, step, count = base + e * near, lanes * near, 0
            while e + (AHEAD - 1) * lanes < end:
                a = fetch(x, y, z, at, m, e)
                b = fetch(x, y, z, at + step, m, e + lanes)
                c = fetch(x, y, z, at + 2 * step, m, e + 2 * lanes)
                d = fetch(x, y, z, at + 3 * step, m, e + 3 * lanes)
                state = take_4(state, a, b, c, d, e, lanes)
                at += AHEAD * step
                e += AHEAD * lanes
                count += AHEAD
            while e < end:
                state = take(state, fetch(x, y, z, at, m, e), e)
                at += step
                e += lanes
                count += 1
        else:
            row = e // n
            at = base + row * far + (e - row * n) * near
            state = begin(fetch(x, y, z, at, m, e), e)
            e += lane
            row = e // n
            place, count = e - row * n, 0
            rows = lanes // n
            places = lanes - rows * n
            while e < end:
                at = base + row * far + place * near
                state = take(state, fetch(x, y, z, at, m, e), e)
                row += rows
                place += places
                if place >= n:
                    place -= n
                    row += 1
                e += lanes
                count += 1
        total = together(close(state, count), arrays, lane, lanes)
        if inside and lane == 0:
            if whole:
                put(first, second, m, total, t.extra)
            else:
                stored((first, second, third), m * segments + segment, total)

    return kernel


@functools.cache
def states_kernel(reduction: Reduction) -> Callable[..., None]:
    """Joins the `segments` states of each result; there are no fewer than lanes."""
    join, put = reduction.join, reduction.put
    shared, together, _, loaded = team(join, reduction.kinds, False)

    def kernel(first: Array, second: Array, s0: Array, s1: Array, s2: Array, t: Joined) -> None:
        results, segments, lanes = t.results, t.segments, t.lanes
        lane, m, _ = place_of(lanes, 1, False)
        arrays = shared()
        inside = m < results
        if not inside:
            m = results - 1
        at, begin = m * segments, segments * lane // lanes
        state = loaded((s0, s1, s2), at + begin)
        for s in range(begin + 1, segments * (lane + 1) // lanes):
            state = join(state, loaded((s0, s1, s2), at + s))
        total = together(state, arrays, lane, lanes)
        if inside and lane == 0:
            put(first, second, m, total, t.extra)

    return kernel


# --- how the work is cut --------------------------------------------------------------------------


class Cut(NamedTuple):
    """`lanes` threads for each result, whose elements are `segments` of `length`."""

    side: bool
    block: int
    lanes: int
    length: int
    segments: int

    @property
    def columns(self) -> int:
        return self.block // self.lanes


def power_above(number: int) -> int:
    """The smallest power of two that is not smaller, 1 at least."""
    return 1 << max(0, number - 1).bit_length()


def cut_of(results: int, count: int, side: bool, neighbours: int) -> Cut:
    """Return the cut of `results` of `count` elements; `neighbours` of them lie side by side."""
    block = threads(MOST)
    lanes = power_above(-(-count // AHEAD))
    if side:
        lanes = min(max(lanes, block // power_above(results)), block // min(WARP, block))
        lanes = max(lanes, block // power_above(neighbours))
    else:
        lanes = min(lanes, WARP if count <= WARP * EACH else block)
    lanes = min(lanes, block)
    blocks = -(-results // (block // lanes))
    segments = max(1, min(-(-count // (lanes * EACH)), BLOCKS // blocks))
    length = -(-count // segments)
    if segments > 1:
        length = -(-length // (lanes * AHEAD)) * lanes * AHEAD
    return Cut(side, block, lanes, length, -(-count // length))


def cut_of_walk(walk: Walk) -> Cut:
    """The cut of a reduction's walk."""
    (_, (inner, inner_stride)), (_, (_, near)) = walk
    side = inner_stride == 1 and near != 1 and inner > 1
    return cut_of(walk.results, walk.elements, side, inner)


def state_bytes(cut: Cut, results: int, reduction: Reduction) -> int:
    """Bytes of scratch that the states need."""
    return 8 * len(reduction.kinds) * results * cut.segments if cut.segments > 1 else 0


def slots(cut: Cut, results: int, reduction: Reduction, at: int) -> tuple[Scratch, ...]:
    """The arrays of a reduction's states, from byte `at` of scratch on."""
    return state_arrays(reduction.kinds, results * cut.segments, at)


def state_arrays(kinds: tuple[Any, ...], size: int, at: int) -> tuple[Scratch, ...]:
    """Arrays of `size` states, three always, from byte `at` of scratch on."""
    names = [np.dtype(kind).name for kind in kinds]
    return three(tuple(Scratch(at + 8 * size * i, name, (size,)) for i, name in enumerate(names)))


def three(params: tuple[object, ...]) -> tuple[Any, ...]:
    """Return three parameters: the first one stands for those that a kernel ignores."""
    return (*params, *params[:1] * (3 - len(params)))


def reduction_steps(
    reduction: Reduction,
    walk: Walk,
    inputs: tuple[Param, ...],
    outputs: tuple[Param, Param],
    extra: float = 1.0,
    at: int = 0,
) -> tuple[tuple[KernelStep, ...], int]:
    """The steps that reduce up to three inputs, and the bytes of scratch that they need from byte
    `at` on.
    """
    cut, results = cut_of_walk(walk), walk.results
    (_, outer_stride), (inner, inner_stride) = walk.free
    (rows, far), (n, near) = walk.reduced
    sizes = Walked(
        float(extra), results, inner, outer_stride, inner_stride, n, far, near, walk.elements,
        cut.length, cut.segments, cut.lanes,
    )  # fmt: skip
    goal = slots(cut, results, reduction, at) if cut.segments > 1 else (*outputs, outputs[0])
    first = KernelStep(
        elements_kernel(reduction, cut.side, rows == 1, cut.segments == 1),
        (*goal, *three(inputs), Const(sizes)),
        blocks_for(-(-results // cut.columns) * cut.segments, 1),
        (cut.block, 1, 1),
    )
    if cut.segments == 1:
        return (first,), 0
    return (
        first,
        states_step(reduction, goal, outputs, extra, results, cut.segments),
    ), state_bytes(cut, results, reduction)


def states_step(
    reduction: Reduction,
    states: tuple[Param, ...],
    outputs: tuple[Param, Param],
    extra: float,
    results: int,
    segments: int,
) -> KernelStep:
    """The step that joins states."""
    block = threads(MOST)
    lanes = min(power_below(segments), WARP if segments <= WARP * EACH else block)
    sizes = Const(Joined(float(extra), results, segments, lanes))
    return KernelStep(
        states_kernel(reduction),
        (*outputs, *states, sizes),
        blocks_for(results, block // lanes),
        (block, 1, 1),
    )
