"""A row program (`parts.row_program`) as a `Plan`: what threads do with the elements they hold."""

from __future__ import annotations

import functools

from flowvm.ops.rows.cuda.held import Plan, Round
from flowvm.ops.rows.cuda.row_functions import Lines, arrays_of, begin_of, inside, notes_of
from flowvm.ops.rows.parts.row_program import RowProgram, Sweep, names_in, spelled


@functools.cache
def held_plan(p: RowProgram, grouped: bool) -> Plan:
    """What a thread does with the elements that it holds; `grouped`: several rows have a row of
    weights.
    """
    outputs, inputs, numbers = arrays_of(p)
    ofs = [fold.of for fold in p.folds]
    found = names_in(*ofs, *(expr for _, expr in p.maps_for(*ofs)))
    places = {name: f"{name}[w + @]" for name in p.weights}
    held = {name: f"{name}#" for name in (*p.rows, *(m for m, _ in p.maps))}
    held |= {name: f"{name}#" for name in p.weights if name in found}
    absent = "-kind(inf)" if p.absent == "-inf" else p.absent
    begin = ["w = m % period * n + lane" if grouped else "w = lane"] if p.weights else []
    load = [f"{name}# = {name}[at + @] if in# else {absent}" for name in p.rows]
    load += [f"{name}# = {places[name]} if in# else zero" for name in p.weights if name in found]
    load += _held_maps(p.sweeps[0], held)
    if p.folds[0].join == "moments":
        x = p.folds[0].of
        begin += [f"begin = {x}[first]", "if not abs(begin) < inf:", "    begin = zero"]
        load = [f"{x}# = {x}[at + @] - begin if in# else zero"]
        held["apart"] = f"{x}#"
    rounds: list[tuple[Round, tuple[str, ...]]] = []
    for k, sweep in enumerate(p.sweeps):
        rounds += _rounds(sweep, held, _held_maps(sweep, held) if k else [])
    last, after = rounds[-1]
    notes = ("if inside and lane == 0:", *inside(notes_of(p))) if notes_of(p) else ()
    rounds[-1] = last, (*after, *notes)
    return Plan(
        outputs, inputs, numbers, (*begin, *begin_of(p)), tuple(load), tuple(rounds),
        spelled(p.result, places | held),
    )  # fmt: skip


def _held_maps(sweep: Sweep, held: dict[str, str]) -> Lines:
    return [f"{name}# = {spelled(expr, held)}" for name, expr in sweep.maps]


def _rounds(sweep: Sweep, held: dict[str, str], maps: Lines) -> list[tuple[Round, tuple[str, ...]]]:
    after = tuple(f"{name} = {spelled(expr, {'count': 'kind(n)'})}" for name, expr in sweep.after)
    fold = sweep.folds[0]
    name, of = fold.name, spelled(fold.of, held)
    if fold.join == "moments":  # of distances from the row's first element, then from the mean
        mean = "off /= kind(n)", f"{name} = begin + off"
        apart = f"{of} = {of} - off if in# else zero\nsquares += {of} * {of}"
        return [
            (Round(("off",), "zero", f"off += {of}", "sum"), mean),
            (Round(("squares",), "zero", apart, "sum"), after),
        ]
    if fold.join == "largest":
        larger = f"{name} = {of} if {of} > {name} else {name}"
        return [(Round((name,), "lowest", "\n".join([*maps, larger]), "largest"), after)]
    sums = [f"{f.name} += {spelled(f.of, held)}" for f in sweep.folds]
    names = tuple(f.name for f in sweep.folds)
    join = "sum" if len(names) == 1 else "sums"
    return [(Round(names, "zero", "\n".join([*maps, *sums]), join), after)]
