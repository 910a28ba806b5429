"""Functions of a stripe: n elements, `inner` apart and from `at` on, of each of neighbouring rows.
So memory is read along its lines.  The functions are made of row programs (`parts.row_program`).

Where rows go together, a number of theirs is an array, called by its name and `_`.  The width of a
stripe is how long these arrays are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.ops.rows.cpu.row_code import Lines, arrays_of, each, elements, inside, maps_of, written
from flowvm.ops.rows.cpu.runs import holds
from flowvm.ops.rows.parts.row_program import RowProgram, names_in, spelled


@functools.cache
def stripe_sweep(p: RowProgram, which: int) -> tuple[Callable[..., object], str]:
    """Return the function of a sweep over a stripe, and a call of it.

    Folds have arrays `top_`; kept maps are stored in the output.

    A largest number is at least the lowest finite one: the exponentials of a part that is -inf
    alone are then 0 next to others that are not, and 0 / 0 in a row of nothing else.  NaN is passed
    over; the exponentials find it.
    """
    folds = p.sweeps[which].folds
    ofs = [fold.of for fold in folds]
    keeps = p.stored_map in dict(p.sweeps[which].maps)
    arrays, numbers = [*arrays_of(p, *ofs), *["out"] * keeps], p.row_numbers(*ofs)
    names = elements(p, "i", **{number: f"{number}_[i]" for number in numbers})
    names |= {name: f"{name}[j]" for name in p.weights}
    own = [f"{fold.name}_" for fold in folds]
    start = {"sum": "0", "largest": f"lowest({own[0]})"}
    first = [f"{to}[i] = {start[fold.join]}" for fold, to in zip(folds, own, strict=True)]
    loop = maps_of(p, names, *ofs)
    loop += [f"out_[i] = {p.stored_map}"] * keeps
    for fold, to in zip(folds, own, strict=True):
        of = spelled(fold.of, names)
        loop.append(
            f"{to}[i] += {of}"
            if fold.join == "sum"
            else f"{to}[i] = {of} if {of} > {to}[i] else {to}[i]"
        )
    parameters = [*own, *(f"{number}_" for number in numbers), *arrays]
    lines = [
        f"def sweep({', '.join(parameters)}, at, n, inner):",
        f"    width = len({own[0]})",
        *inside(each("width", first, "i")),
        *inside(each("n", [
            "here = at + j * inner",
            *(f"{a}_ = {a}[here : here + width]" for a in arrays if a not in p.weights),
            *each("width", loop, "i"),
        ])),
    ]  # fmt: skip
    return written("sweep", lines, {}), f"sweep{which}({', '.join(parameters)}, at, n, inner)"


def row_arrays(p: RowProgram) -> list[str]:
    """The numbers of rows that are arrays where rows go together."""
    return [*(f"{fold.name}_" for fold in p.folds), *(f"{name}_" for name, _ in p.after)]


def _row_names(p: RowProgram) -> dict[str, str]:
    return {array[:-1]: f"{array}[i]" for array in row_arrays(p)}


def after_of(p: RowProgram) -> Lines:
    """Return lines that compute the numbers behind the folds of rows that go together."""
    width, names = f"len({row_arrays(p)[0]})", _row_names(p)
    after = [f"{name}_[i] = {spelled(expr, names)}" for name, expr in p.after]
    return [line for one in after for line in each(width, [one], "i")]


@functools.cache
def stripe_result(p: RowProgram) -> tuple[Callable[..., object], str]:
    """The function that stores the result of a stripe, given the arrays of `row_numbers`, and a
    call of it.
    """
    stored_map = [p.stored_map] if p.stored_map else []
    numbers = p.row_numbers(p.result, but=stored_map)
    arrays = [*arrays_of(p, p.result, but=stored_map), "out"]
    names = elements(p, "i", **{number: f"{number}_[i]" for number in numbers})
    names |= {name: f"{name}[j]" for name in p.weights} | dict.fromkeys(stored_map, "out_[i]")
    loop = [*maps_of(p, names, p.result, but=stored_map), f"out_[i] = {spelled(p.result, names)}"]
    parameters = ["out", *p.rows, *p.weights, *(f"{number}_" for number in numbers)]
    lines = [
        f"def result({', '.join(parameters)}, at, n, inner):",
        f"    width = len({numbers[0]}_)",
        *inside(each("n", [
            "here = at + j * inner",
            *(f"{a}_ = {a}[here : here + width]" for a in arrays if a not in p.weights),
            *each("width", loop, "i"),
        ])),
    ]  # fmt: skip
    scope = {"INLINE_ALWAYS": True}  # a call costs as much as a short line
    return written("result", lines, scope), f"result({', '.join(parameters)}, at, n, inner)"


@functools.cache
def stripe_of(p: RowProgram) -> Callable[..., None]:
    """Return the function of a stripe.

    Its arguments are (out, rows, weights, arrays of heads, of folds, of numbers behind them, at, n,
    inner).  It processes n elements of neighbouring rows, `inner` apart, from `at` on.
    """
    scope = {}
    heads = [f"{name}_" for name in p.heads]
    parameters = [*["out"] * bool(p.result), *p.rows, *p.weights, *heads, *row_arrays(p)]
    lines = [f"real = {row_arrays(p)[0]}.dtype.type", "one, count = real(1), real(n)"]
    for which in range(len(p.sweeps)):
        scope[f"sweep{which}"], call = stripe_sweep(p, which)
        lines.append(call)
    lines += after_of(p)
    if p.result:
        scope["result"], call = stripe_result(p)
        lines.append(call)
    header = f"def stripe({', '.join(parameters)}, at, n, inner):"
    return written("stripe", [header, *inside(lines)], scope)


# --- four elements of each row at a time: what a row gives is then read and written once for them -


@functools.cache
def sums_by_four(p: RowProgram) -> Callable[..., None]:
    """sums(arrays of folds and heads, rows, at, n, inner): as `stripe_sweep` of a program that
    has no more than sums.  A sum of one input takes four elements at once, one of several two.
    """
    numbers = p.row_numbers(*(fold.of for fold in p.folds))
    own = [f"{fold.name}_" for fold in p.folds]
    four: Lines = []
    rest: Lines = []
    for fold, to in zip(p.folds, own, strict=True):
        a, b, c, d = (spelled(fold.of, _of_element(p, k, numbers)) for k in range(4))
        together = [f"({a} + {b}) + ({c} + {d})"]
        if len(arrays_of(p, fold.of)) > 1:
            together = [f"{a} + {b}", f"{c} + {d}"]
        for value in together:
            four += each("width", [f"{to}[i] += {value}"], "i")
        rest += each("width", [f"{to}[i] += {a}"], "i")
    lines = [
        f"def sums({', '.join([*own, *(f'{name}_' for name in numbers), *p.rows])}, at, n, inner):",
        f"    width, whole = len({own[0]}), n // 4 * 4",
        *inside(each("width", [f"{to}[i] = 0" for to in own], "i")),
        "    for j in range(0, whole, 4):",
        *inside([*_lines_of(p, 4), *four], 2),
        "    for j in range(whole, n):",
        *inside([*_lines_of(p, 1), *rest], 2),
    ]
    return written("sums", lines, {})


def _of_element(p: RowProgram, k: int, numbers: Iterable[str]) -> dict[str, str]:
    """Return the expression of each name in a loop over the lines of element j + k."""
    rows = {name: f"{name}{k}_[i]" for name in p.rows}
    return rows | {number: f"{number}_[i]" for number in numbers}


def _lines_of(p: RowProgram, count: int) -> Lines:
    """Lines that take the lines of `count` elements from j on."""
    return [
        line
        for k in range(count)
        for line in (
            f"here = at + (j + {k}) * inner",
            *(f"{name}{k}_ = {name}[here : here + width]" for name in p.rows),
        )
    ]


def spreads_apart(means: Array, squares: Array, x: Array, at: int, n: int, inner: int) -> None:
    """Correct `moments_by_four` where squared distances have left the range of float32.

    Store the mean and, in place of the sum, minus its root, which has all digits.
    """
    for i in range(len(means) if x.itemsize == 4 else 0):
        flat = squares[i] == 0 and means[i] == x[at + i]
        if holds(squares[i], n, flat):
            continue
        mean, total = 0.0, 0.0
        for j in range(n):
            mean += np.float64(x[at + j * inner + i])
        mean /= n
        for j in range(n):
            d = np.float64(x[at + j * inner + i]) - mean
            total += d * d
        means[i], squares[i] = mean, -np.sqrt(total)


def squares_in(moments: Any) -> float:
    """The sum of squared distances that `moments_by_four` and `spreads_apart` have left."""
    wide = np.float64(moments)
    return wide * wide if wide < 0 else wide


def moments_by_four(means: Array, squares: Array, x: Array, at: int, n: int, inner: int) -> None:
    """Means, and sums of squared distances from them.

    Sums are of distances from the first element, which leave no error in a mean that is large
    against the spread.
    """
    width, count = len(means), means.dtype.type(n)
    firsts = x[at : at + width]
    for i in range(width):
        means[i] = 0
        squares[i] = 0
    whole = n // 4 * 4
    for j in range(0, whole, 4):
        a, b, c, d = _four(x, at + j * inner, inner, width)
        for i in range(width):
            f = firsts[i]
            means[i] += ((a[i] - f) + (b[i] - f)) + ((c[i] - f) + (d[i] - f))
    for j in range(whole, n):
        a = x[at + j * inner : at + j * inner + width]
        for i in range(width):
            means[i] += a[i] - firsts[i]
    for i in range(width):
        means[i] = firsts[i] + means[i] / count
    for j in range(0, whole, 4):
        a, b, c, d = _four(x, at + j * inner, inner, width)
        for i in range(width):
            m = means[i]
            p, q, u, v = a[i] - m, b[i] - m, c[i] - m, d[i] - m
            squares[i] += (p * p + q * q) + (u * u + v * v)
    for j in range(whole, n):
        a = x[at + j * inner : at + j * inner + width]
        for i in range(width):
            p = a[i] - means[i]
            squares[i] += p * p


def _four(x: Array, at: int, inner: int, width: int) -> tuple[Array, Array, Array, Array]:
    """The lines of four elements from `at` on."""
    b, c, d = at + inner, at + 2 * inner, at + 3 * inner
    return x[at : at + width], x[b : b + width], x[c : c + width], x[d : d + width]


# --- what follows from a row's own numbers --------------------------------------------------------


@functools.cache
def begin_of(p: RowProgram, name: str) -> Callable[..., None]:
    """begin(name's array, arrays of heads, numbers): one of the names in `begin`, for every row."""
    names = {head: f"{head}_[i]" for head in p.heads}
    stop = [number for number, _ in p.begin].index(name) + 1
    loop = [f"{number} = real({spelled(expr, names)})" for number, expr in p.begin[:stop]]
    heads = [head for head in p.heads if head in names_in(*(e for _, e in p.begin[:stop]))]
    lines = [
        f"def begin({', '.join([f'{name}_', *(f'{head}_' for head in heads), *p.numbers])}):",
        f"    real = {name}_.dtype.type",
        *inside(each(f"len({name}_)", [*loop, f"{name}_[i] = {name}"], "i")),
    ]
    return written("begin", lines, {})
