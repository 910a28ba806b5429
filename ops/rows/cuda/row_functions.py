"""The functions of kernels for row programs (`parts.row_program`), and the names of arrays.

There are functions of an element and of a row, and of the results of one visit.  A visit makes one
state of all results: sums and squares, in float64; mean and squared distances; or the largest
number and the sum that moves with it, in the kernel's own type.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.meta.dtype import DType
from flowvm.ops.rows.cuda.fold_kernels import Reduction
from flowvm.ops.rows.cuda.reductions import moments_of, number_type
from flowvm.ops.rows.cuda.sums import element, pair_of, sum_of, unchanged
from flowvm.ops.rows.parts.norm_rules import lifting
from flowvm.ops.rows.parts.row_program import RowProgram, spelled
from flowvm.ops.rows.parts.states import State
from flowvm.ops.scalar.decay import decay
from flowvm.ops.scalar.functions import log, sqrt

if TYPE_CHECKING:
    from flowvm.meta.arrays import Number

Lines = list[str]


def inside(lines: Iterable[str], depth: int = 1) -> Lines:
    """The lines, further in."""
    return ["    " * depth + line for line in lines]


# --- functions of an element and of a row ---------------------------------------------------------


@functools.cache
def scope_of(kind: Any) -> dict[str, Any]:
    one = kind(1)

    def inverse_root(spread: Number, eps: float) -> object:
        return kind(1.0 / sqrt(np.float64(spread) + eps))

    def lift(spread: Number, eps: float) -> object:
        return kind(lifting(np.float64(spread) + eps))

    return {
        "lifting": lift, "kind": kind, "float64": np.float64, "zero": kind(0), "one": one,
        "decay": decay, "log": log,
        "inverse_root": inverse_root, "INLINE_ALWAYS": True,
    }  # fmt: skip


def function_of(kind: object, arguments: Sequence[str], lines: Lines) -> Callable[..., Any]:
    """A function of numbers and arrays, whose body these lines are."""
    space = dict(scope_of(kind))
    text = "\n".join([f"def computed({', '.join(arguments)}):", *inside(lines)])
    exec(compile(text, "<computed for a row program>", "exec"), space)
    function: Callable[..., object] = space["computed"]
    return function


def maps_of(p: RowProgram, names: dict[str, str], *exprs: str) -> Lines:
    return [f"{name} = {spelled(expr, names)}" for name, expr in p.maps_for(*exprs)]


def tuple_of(values: Sequence[str]) -> str:
    return values[0] if len(values) == 1 else ", ".join(values)


# --- what a visit finds ---------------------------------------------------------------------------


class Visit(NamedTuple):
    """The visit of a row that computes all folds.

    `values` are taken of each element; `places` are the positions in the state of the numbers of
    these names.
    """

    reduction: Reduction
    values: tuple[str, ...]
    places: dict[str, int]


@functools.cache
def visit_of(p: RowProgram, dtype: DType) -> Visit:
    kind, folds = number_type(dtype), p.folds
    joins = {fold.join for fold in folds}
    names = {fold.name: k for k, fold in enumerate(folds)}
    if joins == {"sum"} and len(folds) <= 2:
        sums = (sum_of, pair_of)[len(folds) - 1](element, kind)
        return Visit(sums, tuple(fold.of for fold in folds), names)
    if joins == {"squares"}:
        return Visit(
            sum_of(element, np.float64), (f"float64({folds[0].of}) * {folds[0].of}",), names
        )
    if joins == {"moments"}:
        places = {folds[0].name: 1, "squares": 2}
        return Visit(moments_of(dtype, kind, kind), (folds[0].of,), places)
    top, total = folds
    assert (top.join, total.join) == ("largest", "sum")
    assert total.moved
    return Visit(_moving(p, kind), (top.of,), names)


@functools.cache
def _moving(p: RowProgram, kind: Any) -> Reduction:
    """The largest number, and the sum that moves with it.

    -inf counts as the lowest finite number, so that a row of nothing else gives 0 / 0.  A distance
    from +inf is NaN there, as is one of NaN.
    """
    top_fold, total = p.folds
    lowest, zero = np.finfo(kind).min, kind(0)
    of = function_of(
        kind, [top_fold.of, top_fold.name], [*maps_of(p, {}, total.of), f"return {total.of}"]
    )
    moved = function_of(kind, [top_fold.name, "to"], [f"return {total.moved}"])

    def begin(v: object, e: int) -> State:
        return lowest, zero

    def take(state: State, v: object, e: int) -> State:
        top = v if v > state[0] else state[0]
        return top, state[1] * moved(state[0], top) + of(v, top)

    def take_4(
        state: State, a: object, b: Number, c: Number, d: Number, e: int, step: int
    ) -> State:
        top = state[0]
        top = a if a > top else top
        top = b if b > top else top
        top = c if c > top else top
        top = d if d > top else top
        more = (of(a, top) + of(b, top)) + (of(c, top) + of(d, top))
        return top, state[1] * moved(state[0], top) + more

    def join(a: State, b: State) -> State:
        top = a[0] if a[0] > b[0] else b[0]
        return top, a[1] * moved(a[0], top) + b[1] * moved(b[0], top)

    return Reduction((kind, kind), element, begin, take, take_4, unchanged, join, _no_put)


def _no_put(first: Array, second: Array, m: int, state: State, extra: float) -> None:
    raise NotImplementedError


def row_lines(p: RowProgram, visit: Visit, count: str) -> Lines:
    """Return lines that compute the numbers behind a visit's `state`."""
    numbers = [
        f"{name} = {f'state[{k}]' if name == 'squares' else f'kind(state[{k}])'}"
        for name, k in visit.places.items()
    ]
    return [*numbers, *(f"{name} = {spelled(expr, {'count': count})}" for name, expr in p.after)]


@functools.cache
def reduction_of(p: RowProgram, dtype: DType, wide: bool = False, share: int = 1) -> Reduction:
    """Return the reduction over rows of neighbours or of columns.

    Inputs are rows, heads and weights, three at most.  The outputs are the notes, or the two
    numbers that the result needs of a row; `extra` is the number of its elements.  `wide`: the
    outputs are float64.  `share` results have the heads of one.
    """
    own, visit = number_type(dtype), visit_of(p, dtype)
    kind = np.float64 if wide else own
    head = "m" if share == 1 else f"m // {share}"
    inputs = [*((name, "at") for name in p.rows), *((name, head) for name in p.heads),
              *((name, "e") for name in p.weights)]  # fmt: skip
    places = {name: f"a{k}[{index}]" for k, (name, index) in enumerate(inputs)}
    places |= {name: f"kind({places[name]})" for name in p.heads if name not in p.wide}
    values = [spelled(value, places) for value in visit.values]
    lines = [*maps_of(p, places, *visit.values), f"return {tuple_of(values)}"]
    fetch = function_of(own, ["a0", "a1", "a2", "at", "m", "e"], lines)
    stores = [
        f"{to}[m] = {name}" for to, name in zip(("first", "second"), wanted_of(p), strict=True)
    ]
    put = function_of(
        kind,
        ["first", "second", "m", "state", "extra"],
        [*row_lines(p, visit, "kind(extra)"), *stores],
    )
    return visit.reduction._replace(fetch=fetch, put=put)


def wanted_of(p: RowProgram) -> tuple[str, str]:
    """Return the two numbers that a row leaves for its result, or as notes."""
    names = p.notes or p.row_numbers(p.result)
    first, last = names[0], names[-1]
    assert {first, last} == set(names)
    return first, last


def result_of(p: RowProgram, kind: object) -> tuple[Callable[..., object], Sequence[str]]:
    """The function of an element's result, and its arguments: arrays, numbers of the row, `at` and
    `w`.
    """
    places = {name: f"{name}[at]" for name in p.rows} | {name: f"{name}[w]" for name in p.weights}
    arguments = [*p.rows, *p.weights, *p.row_numbers(p.result)]
    lines = [*maps_of(p, places, p.result), f"return {spelled(p.result, places)}"]
    return function_of(kind, [*arguments, "at", "w"], lines), arguments


# --- arrays and their lines -----------------------------------------------------------------------


def arrays_of(p: RowProgram) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Names of outputs, of inputs and of numbers of kernels that have rows whole."""
    notes = tuple(f"notes_{k}" for k in range(len(p.notes)))
    heads = tuple(f"heads_{k}" for k in range(len(p.heads)))
    outputs = ("out", *notes, *["noted"] * bool(p.down))
    return outputs, (*p.rows, *heads, *p.weights), (*["period"] * bool(p.weights), *p.numbers)


def begin_of(p: RowProgram) -> Lines:
    heads = [
        f"{name} = {f'heads_{k}[m]' if name in p.wide else f'kind(heads_{k}[m])'}"
        for k, name in enumerate(p.heads)
    ]
    return heads + [f"{name} = {expr}" for name, expr in p.begin]


def noted_of(p: RowProgram) -> tuple[str, ...]:
    """Numbers of a row that the sums over rows need."""
    return p.row_numbers(*(expr for _, expr in p.down))


def notes_of(p: RowProgram) -> Lines:
    """Lines by which a row's first thread leaves its numbers."""
    noted = noted_of(p)
    return [
        *(f"notes_{k}[m] = {name}" for k, name in enumerate(p.notes)),
        *(f"noted[{len(noted)} * m + {k}] = {name}" for k, name in enumerate(noted)),
    ]
