"""Kernels made of row programs (`parts.row_program`), and how the work of a call is cut.

    held       a row in the registers of a team (`held`): memory is read once
    teams      longer rows: a team visits its row twice, for what is found and for the result, and
               the second visit finds it in the cache
    segments   few long rows: each is found in segments, as any reduction is (`reducing`), and a
               last launch writes the result; so many teams share a row

Kernels are Python that is written here; an element's number is computed by functions made of the
program's expressions (`row_functions`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from flowvm.cuda.launch import Const, CudaLaunch, KernelStep, Param, Scratch, blocks_for
from flowvm.launch import Launch
from flowvm.meta.dtype import DType
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.declare.cuda.steps import written
from flowvm.ops.rows.cpu.row_launch import Rows
from flowvm.ops.rows.cuda.fold_kernels import Cut, Reduction, cut_of, reduction_steps, three
from flowvm.ops.rows.cuda.operands import flat, part
from flowvm.ops.rows.cuda.reductions import number_type
from flowvm.ops.rows.cuda.register_plans import held_plan
from flowvm.ops.rows.cuda.register_rows import held_step, hold_of
from flowvm.ops.rows.cuda.row_functions import (
    arrays_of,
    begin_of,
    function_of,
    inside,
    maps_of,
    noted_of,
    notes_of,
    reduction_of,
    result_of,
    row_lines,
    scope_of,
    tuple_of,
    visit_of,
    wanted_of,
)
from flowvm.ops.rows.cuda.sums import pair_of
from flowvm.ops.rows.cuda.teams import place_of, team
from flowvm.ops.rows.parts.fold_walk import Walk
from flowvm.ops.rows.parts.row_program import RowProgram, spelled

Metas = tuple[TensorMeta, ...]


# --- kernels --------------------------------------------------------------------------------------


@functools.cache
def teams_kernel(p: RowProgram, dtype: DType, side: bool) -> Callable[..., None]:
    """kernel(outputs, inputs, numbers, results, n, inner, lanes): both visits."""
    kind, visit = number_type(dtype), visit_of(p, dtype)
    reduction = visit.reduction
    shared, together, _, _ = team(reduction.join, reduction.kinds, side)
    result, arguments = result_of(p, kind)
    places = {name: f"{name}[at]" for name in p.rows} | {name: f"{name}[w]" for name in p.weights}
    values = [spelled(value, places) for value in visit.values]
    parameters = [*p.rows, *p.weights, *p.row_numbers(*visit.values)]
    lines = [*maps_of(p, places, *visit.values), f"return {tuple_of(values)}"]
    fetch = function_of(kind, [*parameters, "at", "w"], lines)
    outputs, inputs, numbers = arrays_of(p)

    def fetched(k: int) -> str:
        return f"fetch({', '.join(parameters)}, at + {k} * step, w + e + {k} * lanes)"

    notes = notes_of(p)
    lines = [
        f"lane, m, _ = place_of(lanes, 1, {side})",
        "arrays = shared()",
        "inside = m < results",
        "if not inside:",  # it goes through the motions
        "    m = results - 1",
        "outer = m // inner if inner > 1 else m",
        "first = outer * n * inner + m - outer * inner",
        "w = m % period * n" if p.weights else "w = 0",
        *begin_of(p),
        f"state = begin({p.rows[0]}[first], 0)",
        "at, e, step, taken = first + lane * inner, lane, lanes * inner, 0",
        "while e + 3 * lanes < n:",
        *inside([
            *(f"{name} = {fetched(k)}" for k, name in enumerate("abcd")),
            "state = take_4(state, a, b, c, d, e, lanes)",
            "at += 4 * step",
            "e += 4 * lanes",
            "taken += 4",
        ]),
        "while e < n:",
        *inside([f"state = take(state, {fetched(0)}, e)", "at += step", "e += lanes",
                  "taken += 1"]),
        "state = together(close(state, taken), arrays, lane, lanes)",
        *row_lines(p, visit, "kind(n)"),
        "if inside:",
        *inside(["if lane == 0:", *inside(notes)] if notes else []),
        *inside([
            "at = first + lane * inner",
            "for e in range(lane, n, lanes):",
            f"    out[at] = result({', '.join(arguments)}, at, w + e)",
            "    at += step",
        ]),
    ]  # fmt: skip
    names = [*outputs, *inputs, *numbers, "results", "n", "inner", "lanes"]
    scope = scope_of(kind) | {
        "place_of": place_of, "shared": shared, "together": together, "fetch": fetch,
        "result": result, "begin": reduction.begin, "take": reduction.take,
        "take_4": reduction.take_4, "close": reduction.close,
    }  # fmt: skip
    text = "\n".join([f"def teams({', '.join(names)}):", *inside(lines)])
    return written(text, "teams", scope, f"{__name__}:teams_kernel", p, dtype, side)


@functools.cache
def _segments_kernel(p: RowProgram, dtype: DType, side: bool) -> Callable[..., None]:
    """The second visit, of segments, with two numbers of each row in memory."""
    result, arguments = result_of(p, number_type(dtype))
    first, last = wanted_of(p)
    rows = ", ".join(p.rows)
    text = "\n".join([
        f"def segments(out, {rows}, ps, qs, results, n, inner, length, segments, lanes):",
        *inside([
            f"lane, m, segment = place_of(lanes, segments, {side})",
            "if m < results:",
            *inside([
                f"{first} = ps[m]",
                f"{last} = qs[m]",
                "outer = m // inner if inner > 1 else m",
                "begin, end = segment * length + lane, min((segment + 1) * length, n)",
                "at = (outer * n + begin) * inner + m - outer * inner",
                "for _ in range(begin, end, lanes):",
                f"    out[at] = result({', '.join(arguments)}, at, 0)",
                "    at += lanes * inner",
            ]),
        ]),
    ])  # fmt: skip
    scope = {"place_of": place_of, "result": result}
    return written(text, "segments", scope, f"{__name__}:_segments_kernel", p, dtype, side)


# --- the rule -------------------------------------------------------------------------------------


def run(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """The launch of any op whose plan is `Rows`."""
    rows: Rows = launch.plan
    p, outer, n, inner, period, numbers = rows
    outputs, x = launch.outputs, metas[0]
    if x.numel == 0:
        return CudaLaunch(outputs, ())
    results, side, dtype = outer * inner, inner > 1, x.dtype
    if not p.result:
        return _numbers(rows, launch, metas)
    noted = Scratch(0, dtype.name, (len(noted_of(p)) * results,))
    params = _params(p, launch, metas, results, noted)
    consts = (*[Const(period)] * bool(p.weights), *map(Const, numbers))
    cut = cut_of(results, n, side, inner)
    hold = None if side else hold_of(results, n, dtype.itemsize, len(p.rows))
    if hold is not None:
        plan = held_plan(p, period > 1)
        step = held_step(plan, number_type(dtype), hold, results, n, (*params, *consts))
    elif cut.segments == 1 or not p.is_plain:
        step = KernelStep(
            teams_kernel(p, dtype, side),
            (*params, *consts, *map(Const, (results, n, inner, cut.lanes))),
            blocks_for(results, cut.columns),
            (cut.block, 1, 1),
        )
    else:
        return _in_segments(rows, launch, dtype, cut, params)
    if not p.down:
        return CudaLaunch(outputs, (step,))
    more, scratch = _down_steps(rows, launch, dtype, noted)
    return CudaLaunch(outputs, (step, *more), scratch)


def _walk(rows: Rows) -> Walk:
    return Walk(
        ((rows.outer, rows.n * rows.inner), (rows.inner, 1)), ((1, 0), (rows.n, rows.inner))
    )


def _numbers(rows: Rows, launch: Launch, metas: Metas) -> CudaLaunch:
    """Lower a program that has notes and no result: it is a reduction."""
    p, (out,), results = rows.program, launch.outputs, rows.outer * rows.inner
    notes = [part(0, out, k * results, results) for k in range(len(p.notes))]
    inputs = tuple(flat(1 + k, meta) for k, meta in enumerate(metas))
    reduction, goal = reduction_of(p, metas[0].dtype), (notes[0], notes[-1])
    steps, scratch = reduction_steps(reduction, _walk(rows), three(inputs), goal, float(rows.n))
    return CudaLaunch(launch.outputs, steps, scratch)


def _params(
    p: RowProgram, launch: Launch, metas: Metas, results: int, noted: Param
) -> tuple[Param, ...]:
    """The arrays of kernels that have rows whole."""
    outputs = launch.outputs
    at, first = len(outputs), len(outputs) + len(p.rows)
    outs: list[Param] = [flat(0, outputs[0])]
    outs += [part(1, outputs[1], k * results, results) for k in range(len(p.notes))]
    outs += [noted] * bool(p.down)
    ins: list[Param] = [flat(at + k, metas[k]) for k in range(len(p.rows))]
    ins += [part(first, metas[len(p.rows)], k * results, results) for k in range(len(p.heads))]
    weights = range(first + bool(p.heads), at + len(metas))
    return (*outs, *ins, *(flat(k, metas[k - at]) for k in weights))


def _in_segments(
    rows: Rows, launch: Launch, dtype: DType, cut: Cut, params: tuple[Param, ...]
) -> CudaLaunch:
    p, outer, n, inner, *_ = rows
    results = outer * inner
    halves = [Scratch(8 * results * i, dtype.name, (results,)) for i in range(2)]
    at, goal = 16 * results, (halves[0], halves[1])
    reduction = reduction_of(p, dtype)
    steps, scratch = reduction_steps(reduction, _walk(rows), three(params[1:]), goal, float(n), at)
    sizes = map(Const, (results, n, inner, cut.length, cut.segments, cut.lanes))
    last = KernelStep(
        _segments_kernel(p, dtype, inner > 1),
        (*params, *goal, *sizes),
        blocks_for(-(-results // cut.columns) * cut.segments, 1),
        (cut.block, 1, 1),
    )
    return CudaLaunch(launch.outputs, (*steps, last), at + scratch)


@functools.cache
def _down(p: RowProgram, kind: object, n: int, period: int) -> Reduction:
    """Return two sums over rows, `period` of which lie in a row of weights; n is 1 if period is."""
    noted = noted_of(p)
    names = {name: f"a{k}[at]" for k, name in enumerate(p.rows)}
    names |= {name: f"noted[{len(noted)} * r + {k}]" for k, name in enumerate(noted)}
    exprs = [expr for _, expr in p.down]
    row = "r = e" if period == 1 else f"r = e * {period} + m // {n}"
    values = [spelled(expr, names) for expr in exprs]
    lines = [row, *maps_of(p, names, *exprs), f"return {tuple_of(values)}"]
    return pair_of(function_of(kind, ["a0", "a1", "noted", "at", "m", "e"], lines), kind)


def _down_steps(
    rows: Rows, launch: Launch, dtype: DType, noted: Scratch
) -> tuple[tuple[KernelStep, ...], int]:
    p, outer, n, _, period, _ = rows
    outputs, kind, width = launch.outputs, number_type(dtype), n * period
    walk = Walk(((1, 0), (width, 1)), ((1, 0), (outer // period, width)))
    reduction = _down(p, kind, n if period > 1 else 1, period)
    inputs = (*(flat(len(outputs) + k, outputs[0]) for k in range(len(p.rows))), noted)
    start = -(-len(noted_of(p)) * outer * dtype.itemsize // 8) * 8
    to = flat(1, outputs[1]), flat(2, outputs[2])
    steps, scratch = reduction_steps(reduction, walk, three(inputs), to, 1.0, start)
    return steps, start + scratch
