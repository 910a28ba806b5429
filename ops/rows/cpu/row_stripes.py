"""Kernel bodies made of row programs, for rows side by side and for rows in parts.

    stripes   rows side by side, `width` of them together (`stripes`)
    parts     rows too long for the cache: parts of rows, in three phases (what each part gives;
              what the rows do; the result), which also lets several workers share one row

Invariant: what a unit does depends on the consts alone, so no split of the units changes a bit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from flowvm.launch import PHASE_BITS
from flowvm.ops.rows.cpu.row_code import Lines, each, inside, operands_of, runs_of, stored, written
from flowvm.ops.rows.cpu.stripes import after_of, row_arrays, stripe_of, stripe_result, stripe_sweep
from flowvm.ops.rows.parts.row_program import RowProgram, spelled


def _divided(arrays: Sequence[str], memory: str, size: str, count: str) -> Lines:
    """Lines that give each array `count` numbers of `size` from `memory`."""
    return [f"{a} = {memory}[{k} * {size} : {k} * {size} + {count}]" for k, a in enumerate(arrays)]


@functools.cache
def stripes_body(p: RowProgram) -> Callable[..., None]:
    """Stripes of rows are the units: body(operands, n, inner, width, arena, lo, hi)."""
    parameters, arrays = operands_of(p), row_arrays(p)
    called = ["out"] * bool(p.result) + [*p.rows, *arrays]
    note_lines = [
        line
        for k, name in enumerate(p.notes)
        for line in each("some", [f"notes[{k} * rows + row + i] = {name}_[i]"], "i")
    ]
    lines = [
        f"def body({', '.join(parameters)}, n, inner, width, arena, lo, hi):",
        f"    stats, stripes = arena.view({p.rows[0]}.dtype), (inner + width - 1) // width",
        *[f"    rows = len(notes) // {len(p.notes)}"] * bool(note_lines),
        "    for unit in range(lo, hi):",
        "        first = unit % stripes * width",
        "        some, at = min(width, inner - first), unit // stripes * n * inner + first",
        *inside(_divided(arrays, "stats", "width", "some"), 2),
        f"        stripe({', '.join(called)}, at, n, inner)",
        *["        row = unit // stripes * inner + first"] * bool(note_lines),
        *inside(note_lines, 2),
    ]
    return written("body", lines, {"stripe": stripe_of(p)})


# --- parts of rows --------------------------------------------------------------------------------


def _joined_parts(p: RowProgram) -> Lines:
    """Return lines that join the results of the parts: `tops` of part k of these rows at `at`."""
    lines = ["width = len(" + row_arrays(p)[0] + ")"]
    for fold in p.folds:
        to, of = f"{fold.name}_", "p_[i]"
        top, factor = p.folds[0].name, ""
        if fold.moved:
            factor = " * " + spelled(fold.moved, {top: "q_[i]", "to": f"{top}_[i]"})
        start = "0" if fold.join == "sum" else f"lowest({to})"
        one = f"{to}[i] += {of}{factor}"
        if fold.join == "largest":
            one = f"{to}[i] = {of} if {of} > {to}[i] else {to}[i]"
        lines += each("width", [f"{to}[i] = {start}"], "i")
        lines += each("parts", [
            "here = at + k * inner",
            f"p_ = {fold.name}_parts[here : here + width]",
            *[f"q_ = {top}_parts[here : here + width]"] * bool(fold.moved),
            *each("width", [one], "i"),
        ], "k")  # fmt: skip
    return lines


@functools.cache
def _joining(p: RowProgram) -> tuple[Callable[..., object], str]:
    parameters = [
        *(f"{fold.name}_" for fold in p.folds),
        *(f"{fold.name}_parts" for fold in p.folds),
    ]
    lines = [f"def joined({', '.join(parameters)}, at, parts, inner):", *inside(_joined_parts(p))]
    return written("joined", lines, {}), f"joined({', '.join(parameters)}, at, parts, inner)"


def _part_folds(p: RowProgram, scope: dict[str, object]) -> Lines:
    """Lines that find what a part of some rows gives."""
    stripes: Lines = []
    for which in range(len(p.sweeps)):
        scope[f"sweep{which}"], call = stripe_sweep(p, which)
        stripes.append(call.replace(", n, inner", ", height, inner"))
    runs = [f"{a}_ = {a}[at : at + height]" for a in p.rows]
    runs += ["kept_ = out[at : at + height]"] * bool(p.stored_map)
    for lines, sweep in zip(runs_of(p, scope), p.sweeps, strict=True):
        runs += lines
        runs += [f"{fold.name}_[0] = {fold.name}" for fold in sweep.folds]
    return ["if inner == 1:", *inside(runs), "else:", *inside(stripes)]


def _part_result(p: RowProgram, scope: dict[str, object]) -> Lines:
    """Return lines that store a part's results.

    A kept map was computed with the part's own largest number.  A factor corrects it, together with
    the number by which it is multiplied.
    """
    lines: Lines = []
    moved = [fold for fold in p.folds if fold.moved]
    if p.stored_map:
        (fold,), top = moved, p.folds[0].name
        factor = p.result.removeprefix(f"{p.stored_map} * ")
        assert fold.of == p.stored_map
        assert factor in dict(p.after)
        names = {top: f"{top}_parts[here + i]", "to": f"{top}_[i]"}
        lines += [
            f"own = {fold.name}_parts[here : here + some]",
            *each("some", [f"own[i] = {spelled(fold.moved, names)} * {factor}_[i]"], "i"),
            f"{factor}_ = own",
        ]
    scope["result"], call = stripe_result(p)
    inputs = p.row_numbers(p.result, but=[p.stored_map] if p.stored_map else ())
    run = [
        *(f"{a}_ = {a}[at : at + height]" for a in [*p.rows, "out"]),
        *(f"{name} = {name}_[0]" for name in inputs),
        *each("height", stored(p, p.result, "out_[j] =")),
    ]
    stripe = call.replace(", n, inner", ", height, inner")
    return [*lines, "if inner == 1:", *inside(run), "else:", f"    {stripe}"]


@functools.cache
def parts_body(p: RowProgram) -> Callable[..., None]:
    """body(operands, n, inner, width, tall, scratch, lo, hi): a part is `tall` elements of `width`
    neighbouring rows, and parts are numbered (outer, part, stripe).  Phase 0 has parts as units,
    phase 1 stripes of rows, phase 2 parts.

    scratch: what each part gives, fold by fold; then each row's folds, and what is after them.
    """
    scope: dict[str, object] = {"PHASE_BITS": PHASE_BITS}
    scope["joined"], joined = _joining(p)
    arrays = row_arrays(p)
    folds = arrays[: len(p.folds)]
    of_parts = [f"{array}parts" for array in folds]
    of_rows = [f"{array}rows" for array in arrays]
    lines = [
        "real = out.dtype.type",
        "one, count = real(1), real(n)",
        "least = lowest(out)",
        "phase, first_unit = lo >> PHASE_BITS, lo & ((1 << PHASE_BITS) - 1)",
        "stripes, parts = (inner + width - 1) // width, (n + tall - 1) // tall",
        "stats = scratch.view(out.dtype)",
        f"rows = len({p.rows[0]}) // n",
        "every = rows * parts",
        *_divided(of_parts, "stats", "every", "every"),
        f"stats = stats[{len(folds)} * every :]",
        *_divided(of_rows, "stats", "rows", "rows"),
        "for k in range(hi - lo):",
        *inside([
            "unit = first_unit + k",
            "first = unit % stripes * width",
            "some = min(width, inner - first)",
            "if phase == 1:",
            *inside([
                "outer = unit // stripes",
                "row = outer * inner + first",
                *(f"{a} = {a}rows[row : row + some]" for a in arrays),
                joined.replace(", at,", ", outer * parts * inner + first,"),
                *after_of(p),
                "continue",
            ]),
            "part = unit // stripes % parts",
            "outer = unit // stripes // parts",
            "height, at = min(tall, n - part * tall), (outer * n + part * tall) * inner + first",
            "here = (outer * parts + part) * inner + first",
            "if phase == 0:",
            *inside([
                *(f"{a} = {a}parts[here : here + some]" for a in folds),
                *_part_folds(p, scope),
            ]),
            "else:",
            *inside([
                "row = outer * inner + first",
                *(f"{a} = {a}rows[row : row + some]" for a in arrays),
                *_part_result(p, scope),
            ]),
        ]),
    ]  # fmt: skip
    parameters = f"{', '.join(operands_of(p))}, n, inner, width, tall, scratch, lo, hi"
    return written("body", [f"def body({parameters}):", *inside(lines)], scope)


def parts_bytes(p: RowProgram, rows: int, parts: int, itemsize: int) -> int:
    """Bytes of scratch."""
    return (len(p.folds) * rows * parts + len(row_arrays(p)) * rows) * itemsize
