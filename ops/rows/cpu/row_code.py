"""The code of kernel bodies of row programs (`parts.row_program`): lines, functions of runs.

Bodies are Python that is written here and then compiled like any other.  An array of the program is
called by its name, a run of it by the name and `_`.  Sums of runs are functions of their own, which
LLVM may reorder (as in `runs`), and nothing else may be.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.ops.rows.cpu.runs import (
    RUN,
    float64_variance,
    lowest,
    moments_of,
    rank,
    ranked,
    squares_of,
)
from flowvm.ops.rows.parts.norm_rules import lifting
from flowvm.ops.rows.parts.row_program import RowProgram, names_in, spelled
from flowvm.ops.scalar.decay import decay
from flowvm.ops.scalar.functions import log

if TYPE_CHECKING:
    from flowvm.meta.arrays import Number

Lines = list[str]


# --- lines ----------------------------------------------------------------------------------------


def _inverse_root(spread: Number, eps: float) -> object:
    return 1.0 / np.sqrt(spread + eps)


def _lifting(spread: Number, eps: float) -> float:
    return lifting(np.float64(spread) + eps)


_CALLED = {"decay": decay, "log": log, "inverse_root": _inverse_root, "lowest": lowest,
           "float64_variance": float64_variance, "lifting": _lifting}  # fmt: skip


def written(name: str, lines: Sequence[str], scope: dict[str, Any]) -> Callable[..., Any]:
    space = {**_CALLED, "np": np, **scope}
    text = "\n".join(lines)
    exec(compile(text, f"<{name} of a row program>", "exec"), space)
    function: Callable[..., object] = space[name]
    vars(function)["source"] = text  # for flowvm.compiler.bodies
    return function


def inside(lines: Iterable[str], depth: int = 1) -> Lines:
    return ["    " * depth + line for line in lines]


def each(size: str, lines: Iterable[str], index: str = "j") -> Lines:
    return [f"for {index} in range({size}):", *inside(lines)]


def elements(p: RowProgram, index: str = "j", **numbers: str) -> dict[str, str]:
    """Return the expression of each name in a loop over runs: an element of its array.

    `numbers` are the expressions of a row's numbers.
    """
    return {name: f"{name}_[{index}]" for name in (*p.rows, *p.weights)} | numbers


def maps_of(p: RowProgram, names: dict[str, str], *exprs: str, but: Iterable[str] = ()) -> Lines:
    return [f"{m} = {spelled(expr, names)}" for m, expr in p.maps_for(*exprs, but=but)]


def arrays_of(p: RowProgram, *exprs: str, but: Iterable[str] = ()) -> list[str]:
    """The inputs whose elements expressions need."""
    needed = names_in(*exprs, *(expr for _, expr in p.maps_for(*exprs, but=but))) - set(but)
    return [name for name in (*p.rows, *p.weights) if name in needed]


def stored(p: RowProgram, expr: str, to: str, **numbers: str) -> Lines:
    """Lines that store `expr` of element j; the kept map is in the output."""
    names = elements(p, **numbers)
    stored_map = {p.stored_map: "out_[j]"} if p.stored_map else {}
    return [*maps_of(p, names, expr, but=stored_map), f"{to} {spelled(expr, names | stored_map)}"]


def operands_of(p: RowProgram) -> list[str]:
    return [
        *["out"] * bool(p.result), *["notes"] * bool(p.notes), *(name for name, _ in p.down),
        *p.rows, *["heads"] * bool(p.heads), *p.weights,
    ]  # fmt: skip


# --- sweeps of a run ------------------------------------------------------------------------------


@functools.cache
def _sweep(p: RowProgram, which: int, keeps: bool) -> tuple[Callable[..., Any], str]:
    """The function of a sweep's sums over runs, and a call of it; `keeps`: it stores the kept map.

    How a run is summed depends on its length alone.
    """
    sums = p.sweeps[which].folds
    ofs = [fold.of for fold in sums]
    arrays = arrays_of(p, *ofs)
    parameters = [*arrays, *["kept"] * keeps, *p.row_numbers(*ofs)]
    first, names = arrays[0], [fold.name for fold in sums]
    loop = maps_of(p, elements(p), *ofs)
    loop += [f"kept_[j] = {p.stored_map}"] * keeps
    loop += [f"{fold.name}_ += {spelled(fold.of, elements(p))}" for fold in sums]
    lines = [
        f"def sweep({', '.join(parameters)}):",
        f"    real = {first}.dtype.type",
        *(f"    {name} = real(0)" for name in names),
        f"    for start in range(0, len({first}), RUN):",
        *(f"        {a}_ = {a}[start : start + RUN]" for a in [*arrays, *["kept"] * keeps]),
        *(f"        {name}_ = real(0)" for name in names),
        *inside(each(f"len({first}_)", loop), 2),
        *(f"        {name} += {name}_" for name in names),
        f"    return {', '.join(names)}",
    ]
    called = [a if a in p.row_numbers(*ofs) else f"{a}_" for a in parameters]
    sweep = written("sweep", lines, {"REASSOCIATE": True, "RUN": RUN})
    return sweep, f"{', '.join(names)} = run{which}({', '.join(called)})"


def run_of(p: RowProgram) -> Callable[..., Any]:
    """Return the sums of a program that has only sums: run(rows, weights, heads), of a run."""
    return _sweep(p, 0, False)[0]


@functools.cache
def result_of(p: RowProgram) -> Callable[..., None]:
    """The result of a program that finds nothing: result(out, rows, weights, heads, numbers), of
    runs.
    """
    parameters = ["out_", *(f"{name}_" for name in (*p.rows, *p.weights)), *p.heads, *p.numbers]
    lines = ["real = out_.dtype.type", *(f"{h} = real({h})" for h in p.heads if h not in p.wide)]
    lines += [f"{name} = real({expr})" for name, expr in p.begin]
    lines += each("len(out_)", stored(p, p.result, "out_[j] ="))
    return written("result", [f"def result({', '.join(parameters)}):", *inside(lines)], {})


@functools.cache
def short_results_of(p: RowProgram) -> Callable[..., None]:
    """Return a function of the results of short rows from `first` on, together.

    Its arguments are (out, rows, weights, arrays of heads, first, n).  A function of one map is
    called for all elements of the output at once.
    """
    (shift, apart), (called, call) = p.maps
    names = elements(p, **{head: f"{head}_[k]" for head in p.heads})
    arrays = [f"{name}_ = all_{name}[k * n : k * n + n]" for name in (*p.rows, "out")]
    parameters = ["out", *p.rows, *(f"{name}_" for name in (*p.weights, *p.heads))]
    lines = [
        f"rows = len({p.heads[0]}_)",
        *(f"all_{name} = {name}[first * n : (first + rows) * n]" for name in (*p.rows, "out")),
        *each("rows", [*arrays, *each("n", [f"out_[j] = {spelled(apart, names)}"])], "k"),
        *each("len(all_out)", [f"all_out[j] = {spelled(call, {shift: 'all_out[j]'})}"]),
        *each("rows", [
            arrays[-1],
            *each("n", [f"out_[j] = {spelled(p.result, names | {called: 'out_[j]'})}"]),
        ], "k"),
    ]  # fmt: skip
    header = f"def results({', '.join(parameters)}, first, n):"
    return written("results", [header, *inside(lines)], {})


def _largest(x: Array) -> object:
    """The largest element; x has one at least.  NaN counts as the largest or the smallest.

    Integers have one instruction for the larger of two, where floats need several for NaN.
    """
    top = rank(x[0])
    for j in range(len(x)):
        r = rank(x[j])
        top = r if r > top else top
    return ranked(top)


def runs_of(p: RowProgram, scope: dict[str, Any]) -> list[Lines]:
    """Return, for each sweep, its lines for the runs `x_`; `kept_` gets the kept map."""
    every = []
    for which, sweep in enumerate(p.sweeps):
        fold = sweep.folds[0]
        if fold.join == "sum":
            keeps = p.stored_map in dict(sweep.maps)
            scope[f"run{which}"], call = _sweep(p, which, keeps)
            every.append([call])
        elif fold.join == "moments":
            scope["moments_of"] = moments_of
            every.append([f"wide, squares = moments_of({fold.of}_)", f"{fold.name} = real(wide)"])
        elif fold.join == "squares":
            scope["squares_of"] = squares_of
            every.append([f"{fold.name} = squares_of({fold.of}_)"])
        else:
            scope["largest"] = _largest
            every.append([f"{fold.name} = largest({fold.of}_)"])
            every[-1].append(f"{fold.name} = {fold.name} if {fold.name} > least else least")
    return every
