"""Programs that compute rows, said once for every device.

A *row* is what is reckoned together: the elements that a softmax divides, that a layer norm
averages.  A `RowProgram` says what a row's elements give (`Fold`), what follows from that once for
the row, and what is stored of each element.  A new row op is one program; both devices make their
kernels of it:

    flowvm.ops.rows.cpu.row_launch     loops over runs, short rows together, stripes, parts of rows
    flowvm.ops.rows.cuda.row_kernels   rows in registers, teams of threads, segments of rows

Which of those a call takes, how often memory is read and in which order elements are joined are
*schedules*: they follow from sizes, and no program mentions them.

Expressions are Python of names.  In a fold, a map and the result the name of an input means its
number at this element: of `rows` there is one for each element, of `weights` one for each place in
a row.  The other names are a row's own: `heads` and `numbers`, folds, what stands in `begin` and
`after`; `count` is the number of elements, `zero` and `one` are of the result's dtype.  `decay`,
`log`, `inverse_root` and `lifting` (`norm_rules`; of a number and an eps) may be called.

Invariants
- A name is defined once, and before it is used.
- What is computed of an element depends on other elements through folds alone, and a fold's result
  depends on the order of elements by rounding alone.
- A number that a function was called for is kept, in the output or in registers, if the result
  needs it; others are computed again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

Definitions = tuple[tuple[str, str], ...]  # names and their expressions


class Fold(NamedTuple):
    """A number that all elements of a row give.

    join   "sum" of the expression `of`; "largest", which is at least the lowest finite number and
           passes over NaN: what is computed with it has to find that; "squares" is the sum of the
           squares of an input; "moments" gives two numbers of an input, its mean `name` and the sum
           `squares` of the squared distances from it, and of each element its distance, `apart`.
           Sums of squares are float64, since squares leave the range that elements have.
    moved  of a sum in the sweep behind a "largest": the factor by which `of`, and so the sum,
           changes where that number becomes `to`.  Parts of a row are joined so, and one visit can
           do for both sweeps.
    """

    name: str
    join: str
    of: str
    moved: str = ""


class Sweep(NamedTuple):
    """A visit of all elements: `maps` are computed of each, then the folds.  `after` is computed
    once they are known.  Maps may be used in later sweeps and in the result.
    """

    folds: tuple[Fold, ...]
    maps: Definitions = ()
    after: Definitions = ()


class RowProgram(NamedTuple):
    """The computation of a row.

    The operands of a launch are out, notes, the outputs of `down`; then rows, heads, weights; only
    those that exist.

    rows     inputs that lie as the output does
    sweeps   the visits of a row and their folds; there may be none
    result   the expression to store for each element; "" if there is no output but notes
    weights  inputs of one number for each place in a row, or in several rows, after which they
             begin again
    heads    numbers of each row that one input has: all rows' first, then all rows' second
    numbers  parameters
    begin    definitions that follow from heads and numbers
    notes    numbers of each row that one output gets, in the order of heads
    wide     heads, and names in `after`, that are float64 whatever the elements are: variances
    down     outputs like the weights: sums over all rows of an expression at each place
    absent   the number of an element that leaves every fold as it is
    """

    rows: tuple[str, ...]
    sweeps: tuple[Sweep, ...]
    result: str = ""
    weights: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    begin: Definitions = ()
    notes: tuple[str, ...] = ()
    down: Definitions = ()
    absent: str = "zero"
    wide: tuple[str, ...] = ()

    @property
    def folds(self) -> tuple[Fold, ...]:
        """The folds of all sweeps."""
        return tuple(fold for sweep in self.sweeps for fold in sweep.folds)

    @property
    def maps(self) -> Definitions:
        """The maps of all sweeps, and the distances from a mean."""
        apart = tuple(("apart", f"{f.of} - {f.name}") for f in self.folds if f.join == "moments")
        return apart + tuple(m for sweep in self.sweeps for m in sweep.maps)

    @property
    def after(self) -> Definitions:
        """The definitions of all sweeps that follow from their folds."""
        return tuple(d for sweep in self.sweeps for d in sweep.after)

    @property
    def stored_map(self) -> str:
        """The map that is kept from a sweep with folds for the result, or ""."""
        maps = [m for sweep in self.sweeps if sweep.folds for m in sweep.maps]
        calls = [name for name, expr in maps if "decay(" in expr]
        return next((name for name in calls if name in names_in(self.result)), "")

    @property
    def is_plain(self) -> bool:
        """True if elements become elements, or a row numbers, and a row has nothing else.

        Then its elements may lie apart, and the number of its row does not matter.
        """
        return not (self.weights or self.heads or self.down or (self.notes and self.result))

    def maps_for(self, *exprs: str, but: Iterable[str] = ()) -> Definitions:
        """Return the maps that expressions need, in order, but `but` and the maps only for it."""
        needed = names_in(*exprs) - set(but)
        for name, expr in reversed(self.maps):
            if name in needed:
                needed |= names_in(expr) - set(but)
        return tuple(d for d in self.maps if d[0] in needed)

    def row_numbers(self, *exprs: str, but: Iterable[str] = ()) -> tuple[str, ...]:
        """The numbers of a row that expressions need, and the maps they need."""
        maps = self.maps_for(*exprs, but=but)
        needed = names_in(*exprs, *(expr for _, expr in maps))
        numbers = (*self.heads, *(name for name, _ in self.begin), *self._from_folds())
        return tuple(name for name in (*numbers, "count") if name in needed)

    def _from_folds(self) -> Iterator[str]:
        for sweep in self.sweeps:
            for fold in sweep.folds:
                yield fold.name
                if fold.join == "moments":
                    yield "squares"
            yield from (name for name, _ in sweep.after)


def names_in(*exprs: str) -> set[str]:
    """The names that stand in expressions."""
    return {name for expr in exprs for name in re.findall(r"[a-z_]\w*", expr)}


def spelled(expr: str, names: Mapping[str, str]) -> str:
    """`expr` with other texts for some names."""
    return re.sub(r"[a-z_]\w*", lambda match: names.get(match[0], match[0]), expr)
