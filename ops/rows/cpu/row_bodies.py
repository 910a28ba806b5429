"""Kernel bodies made of row programs (`parts.row_program`), for rows that are runs of memory.

A sweep of a row ends before the next begins; memory is read once, as a row stays in the cache.
Short rows of a softmax go together: an exponential is most of the work, and a row alone would not
fill the vector unit.  Rows that lie otherwise, or are too long, are in `row_stripes`.

What they are written with is in `row_code`.

Invariant: what a unit does depends on the consts alone, so no split of the units changes a bit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from flowvm.launch import PHASE_BITS
from flowvm.meta.arrays import Array
from flowvm.ops.rows.cpu.row_code import (
    Lines,
    each,
    inside,
    operands_of,
    run_of,
    runs_of,
    stored,
    written,
)
from flowvm.ops.rows.parts.row_program import Fold, RowProgram, Sweep, names_in, spelled

FEW = 48  # elements of a row up to which it is short
SHORT = 2048  # elements of short rows whose exponentials are computed together
STRIPE = 256  # weights of a unit of the phase that adds up


# --- rows -----------------------------------------------------------------------------------------


def _row(p: RowProgram, scope: dict[str, object]) -> Lines:
    """Return the lines of code for row r."""
    lines = ["at = r * n", *(f"{name}_ = {name}[at : at + n]" for name in p.rows)]
    lines += ["out_ = out[at : at + n]"] * bool(p.result) + ["kept_ = out_"] * bool(p.stored_map)
    if p.weights:
        lines += ["w = r % period * n", *(f"{name}_ = {name}[w : w + n]" for name in p.weights)]
    for k, name in enumerate(p.heads):
        head = f"heads[{k} * rows + r]"
        lines.append(f"{name} = {head if name in p.wide else f'real({head})'}")
    lines += [f"{name} = real({expr})" for name, expr in p.begin]
    for sweep, run in zip(p.sweeps, runs_of(p, scope), strict=True):
        lines += run + [line for name, expr in sweep.after for line in _after(p, name, expr)]
    lines += [f"notes[{k} * rows + r] = {name}" for k, name in enumerate(p.notes)]
    if p.result:
        lines += each("n", stored(p, p.result, "out_[j] ="))
    return lines


def _after(p: RowProgram, name: str, expr: str) -> Lines:
    if name not in p.wide:
        return [f"{name} = real({expr})"]
    return [f"{name} = np.float64({expr})", f"{name} = float64_variance({name}, real({name}))"]


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
    """Return the lines of code for the rows [lo, hi), as many together as SHORT elements are."""
    x, top, (last, expr) = p.rows[0], p.sweeps[0].folds[0].name, p.sweeps[1].maps[1]
    total = p.sweeps[1].folds[0]
    assert total.of == last
    scope["sweep_short"] = run_of(_sum_of(last))
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
        lines += [f"least = lowest({p.rows[0]})"]
    if p.heads or p.notes:
        array, names = ("heads", p.heads) if p.heads else ("notes", p.notes)
        lines += [f"rows = len({array}) // {len(names)}"]
    return lines


@functools.cache
def rows_body(p: RowProgram) -> Callable[..., None]:
    """Rows of n neighbouring elements, which are the units: body(operands, n, [period], numbers,
    lo, hi).  With `down`, a unit is a block of `tall` rows, which leaves its part of the sums over
    rows in scratch, and a second phase adds the parts up, STRIPE weights a unit.
    """
    scope: dict[str, object] = {"PHASE_BITS": PHASE_BITS}
    own, memory = ["tall"] * bool(p.down), ["scratch", "arena"] * bool(p.down)
    period = ["period"] * bool(p.weights)
    parameters = [*operands_of(p), "n", *period, *own, *p.numbers, *memory, "lo", "hi"]
    lines = _start(p)
    row = _row(p, scope)
    if p.down:
        scope["add_parts"] = _add_parts
        lines += _blocks(p, row)
    else:
        lines += each("hi - lo", ["r = lo + k", *row], "k")
    return written("body", [f"def body({', '.join(parameters)}):", *inside(lines)], scope)


@functools.cache
def short_body(p: RowProgram) -> Callable[..., None]:
    """Short rows of n neighbouring elements, of a program with a `short_map`: body(operands, n,
    arena, lo, hi).
    """
    scope = {"SHORT": SHORT}
    parameters = [*operands_of(p), "n", "arena", "lo", "hi"]
    lines = [*_start(p), *_short_rows(p, scope)]
    return written("body", [f"def body({', '.join(parameters)}):", *inside(lines)], scope)


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
    """Stripes [lo, hi) of the sums over blocks."""
    size = len(dw)
    for stripe in range(lo, hi):
        first, width = stripe * STRIPE, min(STRIPE, size - stripe * STRIPE)
        ws, bs = pairs_of(parts, blocks, size, first, width, arena)
        wide, shifts = dw[first : first + width], db[first : first + width]
        for j in range(width):
            wide[j] = ws[j]
            shifts[j] = bs[j]


def pairs_of(
    parts: Array, blocks: int, size: int, first: int, width: int, arena: Array
) -> tuple[Array, Array]:
    """Two sums over blocks for each of `width` columns from `first` on, in float64 in the arena: of
    `size` columns a block has left one part each, then another.
    """
    totals = arena.view(np.float64)[: 2 * width]
    firsts, seconds = totals[:width], totals[width:]
    for j in range(2 * width):
        totals[j] = 0
    for block in range(blocks):
        at = 2 * block * size + first
        ones, others = parts[at : at + width], parts[at + size : at + size + width]
        for j in range(width):
            firsts[j] += ones[j]
            seconds[j] += others[j]
    return firsts, seconds
