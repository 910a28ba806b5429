"""A row program (`parts.row_program`) as a `Plan`: the work of threads on held elements."""

from __future__ import annotations

import functools
from typing import NamedTuple

from flowvm.ops.rows.cuda.register_rows import Plan, Round
from flowvm.ops.rows.cuda.row_functions import Lines, arrays_of, begin_of, inside, notes_of
from flowvm.ops.rows.parts.row_program import Definitions, RowProgram, Sweep, names_in, spelled


class Around(NamedTuple):
    """Programs of elements that the kernel of a row program calls, in front of it and behind it.

    outputs, inputs, numbers   what the kernel then gets
    definitions  inputs of the row program that are made, and expressions of their elements
    side_outputs  outputs that get something of each element that is made
    behind    what the program behind makes of an element; "" if there is none
    stored    outputs that get something of each element of the result
    programs  the functions that are called, as `Plan` has them

    An expression's `place` is where its element is in the rows, `m` and `first` are its row's
    number and first place; `result` is what the row program makes, `last` what `behind` says.
    """

    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    numbers: tuple[str, ...]
    definitions: Definitions
    side_outputs: Definitions
    behind: str
    stored: Definitions
    programs: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...]

    @property
    def loads(self) -> tuple[str, ...]:
        """Lines behind the loads of an element."""
        lines = (f"    {name}[at + @] = {_at_place(expr)}" for name, expr in self.side_outputs)
        return tuple(line for own in lines for line in ("if in# and inside:", own))

    def stores(self, result: str) -> tuple[str, ...]:
        """Return lines that store the results of an element."""
        last = (f"last# = {_at_place(self.behind)}",) if self.behind else ()
        stored = (f"{name}[at + @] = {_at_place(expr)}" for name, expr in self.stored)
        return (f"result# = {result}", *last, *stored)


def _at_place(expr: str) -> str:
    return spelled(expr, {"place": "(at + @)", "result": "result#", "last": "last#"})


@functools.cache
def held_plan(p: RowProgram, grouped: bool, around: Around | None = None) -> Plan:
    """Return the Plan of a thread for the elements that it holds.

    With `grouped`, several rows have one row of weights.
    """
    plans = dict(around.definitions) if around else {}

    def read(name: str, place: str) -> str:
        """An input's element."""
        return (
            spelled(plans[name], {"place": f"({place})"}) if name in plans else f"{name}[{place}]"
        )

    ofs = [fold.of for fold in p.folds]
    needed = names_in(*ofs, *(expr for _, expr in p.maps_for(*ofs)))
    places = {name: read(name, "w + @") for name in p.weights}
    held = {name: f"{name}#" for name in (*p.rows, *(m for m, _ in p.maps))}
    held |= {name: f"{name}#" for name in p.weights if name in needed}
    absent = "-kind(inf)" if p.absent == "-inf" else p.absent
    begin = ["w = m % period * n + lane" if grouped else "w = lane"] if p.weights else []
    load = [f"{name}# = {read(name, 'at + @')} if in# else {absent}" for name in p.rows]
    load += [f"{name}# = {places[name]} if in# else zero" for name in p.weights if name in needed]
    load += _held_maps(p.sweeps[0], held)
    if p.folds[0].join == "moments":
        x = p.folds[0].of
        begin += [f"begin = {read(x, 'first')}", "if not abs(begin) < inf:", "    begin = zero"]
        load = [f"{x}# = {read(x, 'at + @')} - begin if in# else zero"]
        held["apart"] = f"{x}#"
    rounds: list[tuple[Round, tuple[str, ...]]] = []
    for k, sweep in enumerate(p.sweeps):
        rounds += _rounds(sweep, held, _held_maps(sweep, held) if k else [])
    last, after = rounds[-1]
    notes = ("if inside and lane == 0:", *inside(notes_of(p))) if notes_of(p) else ()
    rounds[-1] = last, (*after, *notes)
    result = spelled(p.result, places | held)
    plan = Plan(*arrays_of(p), (*begin, *begin_of(p)), tuple(load), tuple(rounds), result)
    if around is None:
        return plan
    return plan._replace(
        outputs=around.outputs,
        inputs=around.inputs,
        numbers=around.numbers,
        load=(*load, *around.loads),
        stores=around.stores(result),
        programs=around.programs,
    )


def _held_maps(sweep: Sweep, held: dict[str, str]) -> Lines:
    return [f"{name}# = {spelled(expr, held)}" for name, expr in sweep.maps]


def _rounds(sweep: Sweep, held: dict[str, str], maps: Lines) -> list[tuple[Round, tuple[str, ...]]]:
    after = tuple(f"{name} = {spelled(expr, {'count': 'kind(n)'})}" for name, expr in sweep.after)
    fold = sweep.folds[0]
    name, of = fold.name, spelled(fold.of, held)
    if fold.join == "moments":  # of distances from the row's first element, then from the mean
        mean = "off /= kind(n)", f"{name} = begin + off"
        apart = f"{of} = {of} - off if in# else zero\nsquares += float64({of}) * {of}"
        return [
            (Round(("off",), "zero", f"off += {of}", "sum"), mean),
            (Round(("squares",), "0.0", apart, "sum", True), after),
        ]
    if fold.join == "squares":
        return [(Round((name,), "0.0", f"{name} += float64({of}) * {of}", "sum", True), after)]
    if fold.join == "largest":
        larger = f"{name} = {of} if {of} > {name} else {name}"
        return [(Round((name,), "lowest", "\n".join([*maps, larger]), "largest"), after)]
    sums = [f"{f.name} += {spelled(f.of, held)}" for f in sweep.folds]
    names = tuple(f.name for f in sweep.folds)
    join = "sum" if len(names) == 1 else "sums"
    return [(Round(names, "zero", "\n".join([*maps, *sums]), join), after)]
