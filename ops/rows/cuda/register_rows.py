"""Rows that threads hold in registers: softmax, layer norm and their gradients read memory once.

A team of `lanes` threads has a row; lane t holds elements t, t + lanes and so on, `each` of them.
So the row is read once, what is found in it is joined by shuffles, and what becomes of an element
is made of what the thread still has: an exponential is computed once.  Longer rows are visited
twice (`row_kernels`).

A kernel is generated, as Python, for numbers of lanes and elements, from a `Plan`: its lines say
what is done with one element, `#` being the element's number and `@` how far it is from the first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flowvm.cuda.compiler.compilation import simulated, threads
from flowvm.cuda.launch import Const, KernelStep, Param, blocks_for
from flowvm.ops.declare.cpu.expressions import expression_function
from flowvm.ops.declare.cuda.steps import written
from flowvm.ops.rows.cuda.fold_kernels import power_above
from flowvm.ops.rows.cuda.row_functions import scope_of
from flowvm.ops.rows.cuda.sums import join_pair
from flowvm.ops.rows.cuda.teams import MOST, WARP, place_of, team

if TYPE_CHECKING:
    from flowvm.meta.arrays import Number

MOST_WORDS = 32  # of 4 bytes, that a thread holds
LONGEST = 512  # threads of a row; each may then have 128 registers
ROWS = 2048  # rows from which on a warp for each keeps a device busy
LEAST = 8  # elements, below which a row has fewer threads than a warp
GRAIN = 4  # what a thread holds is a multiple of it, so that there are fewer kernels
Lines = tuple[str, ...]


class Round(NamedTuple):
    """Something that is found in a row: each thread's own in a number of the kernel's type, all of
    a team's in the types that its join has.

    names    of the numbers
    start    what they are before any element
    line     changes them by an element; absent ones take part, too
    join     "largest", "sum" or "sums"
    wide     the numbers are float64 in each thread, too
    """

    names: Lines
    start: str
    line: str
    join: str
    wide: bool = False


class Plan(NamedTuple):
    """The code for a row; `first` is the place of its first element, `m` its number.

    outputs, inputs   arrays; the first output is rows like those of the inputs
    numbers           parameters behind the arrays
    begin             lines before anything is read
    load              lines that set the values held of an element; `in#` says whether it exists
    rounds            the reductions over all of the row, each with lines behind it
    result            an element of the first output
    stores            lines that store an element; without them, its result is stored
    programs          (name, expression, arguments, their dtypes) of functions that lines call
    """

    outputs: Lines
    inputs: Lines
    numbers: Lines
    begin: Lines
    load: Lines
    rounds: tuple[tuple[Round, Lines], ...]
    result: str
    stores: Lines = ()
    programs: tuple[tuple[str, str, Lines, Lines], ...] = ()


class Hold(NamedTuple):
    """The way in which threads hold rows: lanes of a team, elements of each."""

    lanes: int
    each: int


def hold_of(rows: int, n: int, itemsize: int, arrays: int) -> Hold | None:
    """Return how to hold rows of n elements of `arrays` arrays; None if the rows are too long."""
    most = MOST_WORDS * 4 // (itemsize * arrays)
    if simulated():
        most = min(most, LEAST)  # so that tests see both ways
    lanes = min(WARP, power_above(-(-n // LEAST)))
    if n > lanes * most or (rows < ROWS and n > lanes * LEAST):
        lanes = threads(MOST if n <= MOST * most else LONGEST)
    each = GRAIN * -(-n // (lanes * GRAIN))
    return Hold(lanes, each) if each <= most else None


def held_step(
    plan: Plan, kind: Any, hold: Hold, rows: int, n: int, params: Sequence[Param]
) -> KernelStep:
    """The launch for `rows` rows of n; `params` are the plan's outputs, inputs and numbers."""
    block = max(threads(MOST), hold.lanes)
    kernel = held_kernel(plan, np.dtype(kind).name, *hold)
    return KernelStep(
        kernel,
        (*params, Const(rows), Const(n)),
        blocks_for(rows, block // hold.lanes),
        (block, 1, 1),
    )


# --- kernels --------------------------------------------------------------------------------------


def _largest(a: Number, b: Number) -> tuple[object]:
    return (b[0] if b[0] > a[0] else a[0],)


def _sum(a: Number, b: Number) -> tuple[Number]:
    return (a[0] + b[0],)


_JOINS: dict[str, tuple[Callable[..., object], Lines]] = {
    "largest": (_largest, ("",)),
    "sum": (_sum, ("float64",)),
    "sums": (join_pair, ("float64", "float64")),
}


@functools.cache
def held_kernel(plan: Plan, dtype: str, lanes: int, each: int) -> Callable[..., None]:
    """kernel(outputs..., inputs..., numbers..., rows, n)."""
    own: object = np.dtype(dtype).type
    scope = scope_of(own) | {
        "place_of": place_of, "int32": np.int32, "float64": np.float64,
        "inf": np.inf, "lowest": np.finfo(dtype).min,
    }  # fmt: skip
    lines = [
        f"lane, m, _ = place_of({lanes}, 1, False)",
        "inside = m < rows",
        "if not inside:",  # it goes through the motions
        "    m = rows - 1",
        "first, rest, zero, one = m * n, int32(n - lane), kind(0), kind(1)",
        "at = first + lane",
        *plan.begin,
        *_for_each((f"in# = rest > {'@'}", *plan.load), lanes, each),
    ]
    for number, (visit, after) in enumerate(plan.rounds):
        join, wide = _JOINS[visit.join]
        kinds = tuple(np.dtype(w or dtype).type for w in wide)
        scope[f"shared{number}"], scope[f"together{number}"], _, _ = team(join, kinds, False)
        own = ", ".join(f"{w}({name})" for w, name in zip(wide, visit.names, strict=True))
        lines += [
            *(f"{name} = {visit.start}" for name in visit.names),
            *_for_each(visit.line.split("\n"), lanes, each),
            f"state = together{number}(({own},), shared{number}(), lane, {lanes})",
            *(
                f"{name} = {f'state[{k}]' if visit.wide else f'kind(state[{k}])'}"
                for k, name in enumerate(visit.names)
            ),
            *after,
        ]
    for called, expr, arguments, compute in plan.programs:
        scope[called], _ = expression_function(expr, arguments, compute)
        scope[called].__globals__["INLINE_ALWAYS"] = True
    stored = plan.stores or (f"{plan.outputs[0]}[at + @] = {plan.result}",)
    stores = ("if in#:", *(f"    {line}" for line in stored))
    lines += ["if inside:", *(f"    {line}" for line in _for_each(stores, lanes, each))]
    names = (*plan.outputs, *plan.inputs, *plan.numbers, "rows", "n")
    text = "\n".join([f"def held({', '.join(names)}):", *(f"    {line}" for line in lines)])
    return written(text, "held", scope, f"{__name__}:held_kernel", plan, dtype, lanes, each)


def _for_each(lines: Sequence[str], lanes: int, each: int) -> list[str]:
    return [
        line.replace("#", str(k)).replace("@", str(k * lanes))
        for k in range(each)
        for line in lines
    ]
