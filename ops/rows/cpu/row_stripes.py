"""Kernel bodies made of row programs, for rows side by side and for rows in parts.

    stripes   rows side by side, `width` of them together, so that memory is read along its lines
    parts     rows too long for the cache: parts of rows, in three phases (what each part gives;
              what the rows do; the result), which also lets several workers share one row

Where rows go together, a number of theirs is an array, called by its name and `_`.

Invariant: what a unit does depends on the consts alone, so no split of the units changes a bit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from flowvm.launch import PHASE_BITS
from flowvm.ops.rows.cpu.row_bodies import (
    Lines,
    arrays_of,
    each,
    elements,
    inside,
    maps_of,
    operands_of,
    runs_of,
    stored,
    written,
)
from flowvm.ops.rows.parts.row_program import RowProgram, spelled

# --- rows side by side: each of these works on n elements of neighbouring rows --------------------


@functools.cache
def _stripe_sweep(p: RowProgram, which: int) -> tuple[Callable[..., Any], str]:
    """The function of a sweep over a stripe, and a call of it: folds have arrays `top_`, and what
    maps keep is stored in the output.

    A largest number is at least the lowest finite one: the exponentials of a part that is -inf
    alone are then 0 next to others that are not, and 0 / 0 in a row of nothing else.  NaN is passed
    over; the exponentials find it.
    """
    folds = p.sweeps[which].folds
    ofs = [fold.of for fold in folds]
    keeps = p.kept in dict(p.sweeps[which].maps)
    arrays, numbers = [*arrays_of(p, *ofs), *["out"] * keeps], p.row_numbers(*ofs)
    names = elements(p, "i", **{number: f"{number}_[i]" for number in numbers})
    names |= {name: f"{name}[j]" for name in p.weights}
    own = [f"{fold.name}_" for fold in folds]
    start = {"sum": "0", "largest": f"np.finfo({own[0]}.dtype).min"}
    first = [f"{to}[i] = {start[fold.join]}" for fold, to in zip(folds, own, strict=True)]
    loop = maps_of(p, names, *ofs)
    loop += [f"out_[i] = {p.kept}"] * keeps
    for fold, to in zip(folds, own, strict=True):
        of = spelled(fold.of, names)
        loop.append(
            f"{to}[i] += {of}"
            if fold.join == "sum"
            else f"{to}[i] = {of} if {of} > {to}[i] else {to}[i]"
        )
    given = [*own, *(f"{number}_" for number in numbers), *arrays]
    lines = [
        f"def sweep({', '.join(given)}, at, n, inner):",
        f"    width = len({own[0]})",
        *inside(each("width", first, "i")),
        *inside(each("n", [
            "here = at + j * inner",
            *(f"{a}_ = {a}[here : here + width]" for a in arrays if a not in p.weights),
            *each("width", loop, "i"),
        ])),
    ]  # fmt: skip
    return written("sweep", lines, {}), f"sweep{which}({', '.join(given)}, at, n, inner)"


def _row_arrays(p: RowProgram) -> list[str]:
    """The numbers of rows that are arrays where rows go together."""
    return [*(f"{fold.name}_" for fold in p.folds), *(f"{name}_" for name, _ in p.after)]


def _row_names(p: RowProgram) -> dict[str, str]:
    return {array[:-1]: f"{array}[i]" for array in _row_arrays(p)}


def _after(p: RowProgram) -> Lines:
    """Lines that compute what follows from the folds of rows that go together."""
    width, names = f"len({_row_arrays(p)[0]})", _row_names(p)
    after = [f"{name}_[i] = {spelled(expr, names)}" for name, expr in p.after]
    return [line for one in after for line in each(width, [one], "i")]


def _stripe_result(p: RowProgram) -> Lines:
    """Lines that store the result of n elements from `at` on."""
    kept = [p.kept] if p.kept else []
    arrays = [*arrays_of(p, p.result, but=kept), "out"]
    names = elements(p, "i", **_row_names(p)) | dict.fromkeys(kept, "out_[i]")
    loop = [*maps_of(p, names, p.result, but=kept), f"out_[i] = {spelled(p.result, names)}"]
    return [
        f"width = len({_row_arrays(p)[0]})",
        *each("n", [
            "here = at + j * inner",
            *(f"{a}_ = {a}[here : here + width]" for a in arrays),
            *each("width", loop, "i"),
        ]),
    ]  # fmt: skip


@functools.cache
def _stripe_results(p: RowProgram) -> tuple[Callable[..., Any], str]:
    given = [*(["out"] if p.result else []), *p.rows, *_row_arrays(p)]
    lines = [f"def result({', '.join(given)}, at, n, inner):", *inside(_stripe_result(p))]
    return written("result", lines, {}), f"result({', '.join(given)}, at, n, inner)"


@functools.cache
def stripe_of(p: RowProgram) -> Callable[..., None]:
    """stripe(out, rows, weights, arrays of heads, of folds, of what is after them, at, n, inner):
    what is done with n elements of neighbouring rows, `inner` apart, from `at` on.
    """
    scope: dict[str, Any] = {}
    heads = [f"{name}_" for name in p.heads]
    given = [*["out"] * bool(p.result), *p.rows, *p.weights, *heads, *_row_arrays(p)]
    lines = [f"real = {_row_arrays(p)[0]}.dtype.type", "one, count = real(1), real(n)"]
    for which in range(len(p.sweeps)):
        scope[f"sweep{which}"], call = _stripe_sweep(p, which)
        lines.append(call)
    lines += _after(p)
    if p.result:
        scope["result"], call = _stripe_results(p)
        lines.append(call)
    header = f"def stripe({', '.join(given)}, at, n, inner):"
    return written("stripe", [header, *inside(lines)], scope)


def _divided(arrays: Sequence[str], memory: str, size: str, count: str) -> Lines:
    """Lines that give each array `count` numbers of `size` from `memory`."""
    return [f"{a} = {memory}[{k} * {size} : {k} * {size} + {count}]" for k, a in enumerate(arrays)]


@functools.cache
def stripes_body(p: RowProgram) -> Callable[..., None]:
    """Stripes of rows are the units: body(operands, n, inner, width, arena, lo, hi)."""
    given, arrays = operands_of(p), _row_arrays(p)
    called = ["out"] * bool(p.result) + [*p.rows, *arrays]
    noted = [
        line
        for k, name in enumerate(p.notes)
        for line in each("some", [f"notes[{k} * rows + row + i] = {name}_[i]"], "i")
    ]
    lines = [
        f"def body({', '.join(given)}, n, inner, width, arena, lo, hi):",
        f"    stats, stripes = arena.view({p.rows[0]}.dtype), (inner + width - 1) // width",
        *[f"    rows = len(notes) // {len(p.notes)}"] * bool(noted),
        "    for unit in range(lo, hi):",
        "        first = unit % stripes * width",
        "        some, at = min(width, inner - first), unit // stripes * n * inner + first",
        *inside(_divided(arrays, "stats", "width", "some"), 2),
        f"        stripe({', '.join(called)}, at, n, inner)",
        *["        row = unit // stripes * inner + first"] * bool(noted),
        *inside(noted, 2),
    ]
    return written("body", lines, {"stripe": stripe_of(p)})


# --- parts of rows --------------------------------------------------------------------------------


def _joined_parts(p: RowProgram) -> Lines:
    """Lines that join what the parts have found: `tops` of part k of these rows at `at`."""
    lines = ["width = len(" + _row_arrays(p)[0] + ")"]
    for fold in p.folds:
        to, of = f"{fold.name}_", "p_[i]"
        top, factor = p.folds[0].name, ""
        if fold.moved:
            factor = " * " + spelled(fold.moved, {top: "q_[i]", "to": f"{top}_[i]"})
        start = "0" if fold.join == "sum" else f"np.finfo({to}.dtype).min"
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
def _joining(p: RowProgram) -> tuple[Callable[..., Any], str]:
    given = [*(f"{fold.name}_" for fold in p.folds), *(f"{fold.name}_parts" for fold in p.folds)]
    lines = [f"def joined({', '.join(given)}, at, parts, inner):", *inside(_joined_parts(p))]
    return written("joined", lines, {}), f"joined({', '.join(given)}, at, parts, inner)"


def _part_found(p: RowProgram, scope: dict[str, Any]) -> Lines:
    """Lines that find what a part of some rows gives."""
    stripes: Lines = []
    for which in range(len(p.sweeps)):
        scope[f"sweep{which}"], call = _stripe_sweep(p, which)
        stripes.append(call.replace(", n, inner", ", height, inner"))
    runs = [f"{a}_ = {a}[at : at + height]" for a in p.rows]
    runs += ["kept_ = out[at : at + height]"] * bool(p.kept)
    for lines, sweep in zip(runs_of(p, scope), p.sweeps, strict=True):
        runs += lines
        runs += [f"{fold.name}_[0] = {fold.name}" for fold in sweep.folds]
    return ["if inner == 1:", *inside(runs), "else:", *inside(stripes)]


def _part_result(p: RowProgram, scope: dict[str, Any]) -> Lines:
    """Lines that store a part's results.  What is kept was made with the part's own largest number:
    one factor, which joins the number it is multiplied by, corrects it.
    """
    lines: Lines = []
    moved = [fold for fold in p.folds if fold.moved]
    if p.kept:
        (fold,), top = moved, p.folds[0].name
        factor = p.result.removeprefix(f"{p.kept} * ")
        assert fold.of == p.kept
        assert factor in dict(p.after)
        names = {top: f"{top}_parts[here + i]", "to": f"{top}_[i]"}
        lines += [
            f"own = {fold.name}_parts[here : here + some]",
            *each("some", [f"own[i] = {spelled(fold.moved, names)} * {factor}_[i]"], "i"),
            f"{factor}_ = own",
        ]
    scope["result"], call = _stripe_results(p)
    wanted = p.row_numbers(p.result, but=[p.kept] if p.kept else ())
    run = [
        *(f"{a}_ = {a}[at : at + height]" for a in [*p.rows, "out"]),
        *(f"{name} = {name}_[0]" for name in wanted),
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
    scope: dict[str, Any] = {"PHASE_BITS": PHASE_BITS}
    scope["joined"], joined = _joining(p)
    arrays = _row_arrays(p)
    folds = arrays[: len(p.folds)]
    of_parts = [f"{array}parts" for array in folds]
    of_rows = [f"{array}rows" for array in arrays]
    lines = [
        "real = out.dtype.type",
        "one, count = real(1), real(n)",
        "least = np.finfo(real).min",
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
                *_after(p),
                "continue",
            ]),
            "part = unit // stripes % parts",
            "outer = unit // stripes // parts",
            "height, at = min(tall, n - part * tall), (outer * n + part * tall) * inner + first",
            "here = (outer * parts + part) * inner + first",
            "if phase == 0:",
            *inside([
                *(f"{a} = {a}parts[here : here + some]" for a in folds),
                *_part_found(p, scope),
            ]),
            "else:",
            *inside([
                "row = outer * inner + first",
                *(f"{a} = {a}rows[row : row + some]" for a in arrays),
                *_part_result(p, scope),
            ]),
        ]),
    ]  # fmt: skip
    given = f"{', '.join(operands_of(p))}, n, inner, width, tall, scratch, lo, hi"
    return written("body", [f"def body({given}):", *inside(lines)], scope)


def parts_bytes(p: RowProgram, rows: int, parts: int, itemsize: int) -> int:
    """Bytes of scratch."""
    return (len(p.folds) * rows * parts + len(_row_arrays(p)) * rows) * itemsize
