"""Kernel bodies made of row programs (`parts.row_program`), for rows that are runs of memory.

A sweep of a row ends before the next begins; memory is read once, as a row stays in the cache.
Short rows of a softmax go together: an exponential is most of the work, and a row alone would not
fill the vector unit.  Rows that lie otherwise, or are too long, are in `row_stripes`.

Bodies are Python that is written here and then compiled like any other.  An array of the program is
called by its name, a run of it by the name and `_`.  Sums of runs are functions of their own, which
LLVM may reorder (as in `runs`), and nothing else may be.

Invariant: what a unit does depends on the consts alone, so no split of the units changes a bit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from flowvm.launch import PHASE_BITS
from flowvm.ops.rows.cpu.runs import RUN, moments_of, rank, ranked
from flowvm.ops.rows.parts.row_program import Fold, RowProgram, Sweep, names_in, spelled
from flowvm.ops.scalar.decay import decay
from flowvm.ops.scalar.functions import log

Array = Any
Lines = list[str]
FEW = 48  # elements of a row up to which it is short
SHORT = 2048  # elements of short rows whose exponentials are computed together
STRIPE = 256  # weights of a unit of the phase that adds up


def _inverse_root(spread: Any, eps: float) -> Any:
    return 1.0 / np.sqrt(spread + eps)


_CALLED = {"decay": decay, "log": log, "inverse_root": _inverse_root}


def written(name: str, lines: Sequence[str], scope: dict[str, Any]) -> Callable[..., Any]:
    space = {**_CALLED, "np": np, **scope}
    exec(compile("\n".join(lines), f"<{name} of a row program>", "exec"), space)
    made: Callable[..., Any] = space[name]
    return made


def inside(lines: Iterable[str], depth: int = 1) -> Lines:
    return ["    " * depth + line for line in lines]


def each(size: str, lines: Iterable[str], index: str = "j") -> Lines:
    return [f"for {index} in range({size}):", *inside(lines)]


def elements(p: RowProgram, index: str = "j", **numbers: str) -> dict[str, str]:
    """What a name is in a loop over runs: an element of its array; `numbers` are those of rows."""
    return {name: f"{name}_[{index}]" for name in (*p.rows, *p.weights)} | numbers


def maps_of(p: RowProgram, names: dict[str, str], *exprs: str, but: Iterable[str] = ()) -> Lines:
    return [f"{m} = {spelled(expr, names)}" for m, expr in p.maps_for(*exprs, but=but)]


def arrays_of(p: RowProgram, *exprs: str, but: Iterable[str] = ()) -> list[str]:
    """The inputs whose elements expressions need."""
    needed = names_in(*exprs, *(expr for _, expr in p.maps_for(*exprs, but=but))) - set(but)
    return [name for name in (*p.rows, *p.weights) if name in needed]


# --- sweeps of a run ------------------------------------------------------------------------------


@functools.cache
def _sweep(p: RowProgram, which: int, keeps: bool) -> tuple[Callable[..., Any], str]:
    """The function of a sweep's sums over runs, and a call of it; `keeps`: it stores the kept map.

    How a run is summed depends on its length alone.
    """
    sums = p.sweeps[which].folds
    ofs = [fold.of for fold in sums]
    arrays = arrays_of(p, *ofs)
    given = [*arrays, *["kept"] * keeps, *p.row_numbers(*ofs)]
    first, names = arrays[0], [fold.name for fold in sums]
    loop = maps_of(p, elements(p), *ofs)
    loop += [f"kept_[j] = {p.kept}"] * keeps
    loop += [f"{fold.name}_ += {spelled(fold.of, elements(p))}" for fold in sums]
    lines = [
        f"def sweep({', '.join(given)}):",
        f"    real = {first}.dtype.type",
        *(f"    {name} = real(0)" for name in names),
        f"    for start in range(0, len({first}), RUN):",
        *(f"        {a}_ = {a}[start : start + RUN]" for a in [*arrays, *["kept"] * keeps]),
        *(f"        {name}_ = real(0)" for name in names),
        *inside(each(f"len({first}_)", loop), 2),
        *(f"        {name} += {name}_" for name in names),
        f"    return {', '.join(names)}",
    ]
    called = [a if a in p.row_numbers(*ofs) else f"{a}_" for a in given]
    sweep = written("sweep", lines, {"REASSOCIATE": True, "RUN": RUN})
    return sweep, f"{', '.join(names)} = run{which}({', '.join(called)})"


def run_of(p: RowProgram) -> Callable[..., Any]:
    """The sums of a program that has no more than those: run(rows, weights, heads), of a run."""
    return _sweep(p, 0, False)[0]


def result_of(p: RowProgram) -> Callable[..., None]:
    """The result of a program that finds nothing: result(out, rows, heads), of runs."""
    given = ["out_", *(f"{name}_" for name in p.rows), *p.heads]
    loop = each("len(out_)", stored(p, p.result, "out_[j] ="))
    return written("result", [f"def result({', '.join(given)}):", *inside(loop)], {})


def _largest(x: Array) -> Any:
    """The largest element; x has one at least.  NaN counts as the largest or the smallest.

    Integers have one instruction for the larger of two, where floats need several for NaN.
    """
    top = rank(x[0])
    for j in range(len(x)):
        r = rank(x[j])
        top = r if r > top else top
    return ranked(top)


def runs_of(p: RowProgram, scope: dict[str, Any]) -> list[Lines]:
    """For each sweep lines that find what it does in the runs `x_`; `kept_` gets the kept map."""
    every = []
    for which, sweep in enumerate(p.sweeps):
        fold = sweep.folds[0]
        if fold.join == "sum":
            keeps = p.kept in dict(sweep.maps)
            scope[f"run{which}"], call = _sweep(p, which, keeps)
            every.append([call])
        elif fold.join == "moments":
            scope["moments_of"] = moments_of
            every.append([f"{fold.name}, squares = moments_of({fold.of}_)"])
        else:
            scope["largest"] = _largest
            every.append([f"{fold.name} = largest({fold.of}_)"])
            every[-1].append(f"{fold.name} = {fold.name} if {fold.name} > least else least")
    return every


# --- rows -----------------------------------------------------------------------------------------


def operands_of(p: RowProgram) -> list[str]:
    return [
        *["out"] * bool(p.result), *["notes"] * bool(p.notes), *(name for name, _ in p.down),
        *p.rows, *["heads"] * bool(p.heads), *p.weights,
    ]  # fmt: skip


def _row(p: RowProgram, scope: dict[str, Any]) -> Lines:
    """What is done with row r."""
    lines = ["at = r * n", *(f"{name}_ = {name}[at : at + n]" for name in p.rows)]
    lines += ["out_ = out[at : at + n]"] * bool(p.result) + ["kept_ = out_"] * bool(p.kept)
    if p.weights:
        lines += ["w = r % period * n", *(f"{name}_ = {name}[w : w + n]" for name in p.weights)]
    lines += [f"{name} = heads[{k} * rows + r]" for k, name in enumerate(p.heads)]
    lines += [f"{name} = real({expr})" for name, expr in p.begin]
    for sweep, run in zip(p.sweeps, runs_of(p, scope), strict=True):
        lines += run + [f"{name} = real({expr})" for name, expr in sweep.after]
    lines += [f"notes[{k} * rows + r] = {name}" for k, name in enumerate(p.notes)]
    if p.result:
        lines += each("n", stored(p, p.result, "out_[j] ="))
    return lines


def stored(p: RowProgram, expr: str, to: str, **numbers: str) -> Lines:
    """Lines that store `expr` of element j; the kept map is in the output."""
    names = elements(p, **numbers)
    kept = {p.kept: "out_[j]"} if p.kept else {}
    return [*maps_of(p, names, expr, but=kept), f"{to} {spelled(expr, names | kept)}"]


def short_map(p: RowProgram) -> str:
    """The map by which short rows go together: a function of another map alone, which is an input
    less a number of the sweep before; else "".
    """
    first = p.sweeps[0].folds[0]
    if not p.is_plain or len(p.sweeps) != 2 or first.join != "largest":
        return ""
    if first.name in names_in(*(expr for _, expr in p.after)):
        return ""  # it would have to be kept of every row
    (_, shift), (name, expr) = p.sweeps[1].maps
    assert shift == f"{p.rows[0]} - {first.name}"
    assert expr.endswith("(s)")
    return name


def _short_rows(p: RowProgram, scope: dict[str, Any]) -> Lines:
    """What is done with the rows [lo, hi), as many together as SHORT elements are."""
    x, top, (last, expr) = p.rows[0], p.sweeps[0].folds[0].name, p.sweeps[1].maps[1]
    total = p.sweeps[1].folds[0]
    assert total.of == last
    scope["sweep_short"], _ = _sweep(_sum_of(last), 0, False)
    shifts = "out" if p.result else "arena"
    stored = []
    if p.result:
        names = {"s": "s_[j]", last: f"{last}_[j]"}
        stored = each("n", [f"s_[j] = {spelled(p.result, names)}"])
    return [
        "tall = SHORT // n",
        "for first in range(lo, hi, tall):",
        *inside([
            "some = min(tall, hi - first)",
            f"xs = {x}[first * n : (first + some) * n]",
            f"es = arena.view({x}.dtype)[: some * n]",
            "ss = out[first * n : (first + some) * n]" if shifts == "out" else "ss = es",
            *each("some", [
                f"{x}_, s_ = xs[k * n : k * n + n], ss[k * n : k * n + n]",
                f"{top} = least",
                # a function finds the NaN that this passes over
                *each("n", [f"{top} = {x}_[j] if {x}_[j] > {top} else {top}"]),
                *each("n", [f"s_[j] = {x}_[j] - {top}"]),
                *(f"notes[{i} * rows + first + k] = {top}"
                  for i, name in enumerate(p.notes) if name == top),
            ], "k"),
            *each("some * n", [f"es[j] = {spelled(expr, {'s': 'ss[j]'})}"]),
            *each("some", [
                f"{last}_, s_ = es[k * n : k * n + n], ss[k * n : k * n + n]",
                f"{total.name} = sweep_short({last}_)",
                *(f"{name} = real({value})" for name, value in p.after),
                *(f"notes[{i} * rows + first + k] = {name}"
                  for i, name in enumerate(p.notes) if name != top),
                *stored,
            ], "k"),
        ]),
    ]  # fmt: skip


def _sum_of(name: str) -> RowProgram:
    return RowProgram((name,), (Sweep((Fold("total", "sum", name),)),))


def _start(p: RowProgram) -> Lines:
    lines = [f"real = {p.rows[0]}.dtype.type", "zero, one, count = real(0), real(1), real(n)"]
    if p.folds[0].join == "largest":
        lines += ["least = np.finfo(real).min"]
    if p.heads or p.notes:
        array, names = ("heads", p.heads) if p.heads else ("notes", p.notes)
        lines += [f"rows = len({array}) // {len(names)}"]
    return lines


@functools.cache
def rows_body(p: RowProgram) -> Callable[..., None]:
    """Rows of n neighbouring elements, which are the units: body(operands, n, [period], numbers,
    [arena], lo, hi).  With `down`, a unit is a block of `tall` rows, which leaves its part of the
    sums over rows in scratch, and a second phase adds the parts up, STRIPE weights a unit.
    """
    scope: dict[str, Any] = {"SHORT": SHORT, "PHASE_BITS": PHASE_BITS}
    wide, period = short_map(p), ["period"] * bool(p.weights)
    own, memory = ["tall"] * bool(p.down), ["scratch", "arena"] if p.down else ["arena"]
    given = [
        *operands_of(p), "n", *period, *own, *p.numbers, *(memory if wide or p.down else ()),
        "lo", "hi",
    ]  # fmt: skip
    lines = _start(p)
    row = _row(p, scope)
    if p.down:
        scope["add_parts"] = _add_parts
        lines += _blocks(p, row)
    else:
        if wide:
            lines += ["if n <= FEW:", *inside(_short_rows(p, scope)), "    return"]
        lines += each("hi - lo", ["r = lo + k", *row], "k")
    scope["FEW"] = FEW
    return written("body", [f"def body({', '.join(given)}):", *inside(lines)], scope)


def _blocks(p: RowProgram, row: Lines) -> Lines:
    sums = [name for name, _ in p.down]
    size, every = f"len({sums[0]})", len(sums)
    added = [f"{name}_ = own[{k} * size + w : {k} * size + w + n]" for k, name in enumerate(sums)]
    added += each(
        "n", [line for name, expr in p.down for line in stored(p, expr, f"{name}_[j] +=")]
    )
    return [
        f"size, parts = {size}, scratch.view(out.dtype)",
        "if lo >> PHASE_BITS == 1:",
        "    mask = (1 << PHASE_BITS) - 1",
        f"    add_parts({', '.join(sums)}, parts, (rows + tall - 1) // tall, arena, lo & mask,"
        " hi & mask)",
        "    return",
        "for block in range(lo, hi):",
        f"    own = parts[{every} * block * size : {every} * (block + 1) * size]",
        *inside(each("len(own)", ["own[j] = 0"])),
        "    for r in range(block * tall, min((block + 1) * tall, rows)):",
        *inside([*row, *added], 2),
    ]


def _add_parts(
    dw: Array, db: Array, parts: Array, blocks: int, arena: Array, lo: int, hi: int
) -> None:
    """Stripes [lo, hi) of the sums over blocks: a block's part of dw, then its part of db."""
    size = len(dw)
    for stripe in range(lo, hi):
        first, width = stripe * STRIPE, min(STRIPE, size - stripe * STRIPE)
        totals = arena.view(np.float64)[: 2 * width]
        ws, bs = totals[:width], totals[width:]
        for j in range(2 * width):
            totals[j] = 0
        for block in range(blocks):
            at = 2 * block * size + first
            slants, sums = parts[at : at + width], parts[at + size : at + size + width]
            for j in range(width):
                ws[j] += slants[j]
                bs[j] += sums[j]
        wide, shifts = dw[first : first + width], db[first : first + width]
        for j in range(width):
            wide[j] = ws[j]
            shifts[j] = bs[j]
