"""Checks of the form of data from outside, before anything uses it.

A `Check` is a function (value, where) that raises ArgumentError for a value of another form; checks
are combined as the data is.  `where` names the place: "nodes[3].offset".  JSON is read only by
`read_json`.  It refuses text that readers may understand differently (a repeated key), numbers that
are none (NaN, Infinity, unless they are asked for) and nesting so deep that reading it would end
the process.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from flowvm.errors import ArgumentError, FileError

Check = Callable[[object, str], None]
INT64 = 1 << 63
MOST_DEPTH = 100  # of lists and dicts in each other


def wrong(where: str, value: object, form: str) -> NoReturn:
    """Raise FileError: the value at `where` is not of this form."""
    shown = repr(value) if isinstance(value, (bool, int, float, str)) else type(value).__name__
    if len(shown) > 80:
        shown = shown[:77] + "..."
    raise FileError(f"{where} is {shown}, and has to be {form}: the file is damaged")


# --- JSON ---------------------------------------------------------------------------------------


def read_json(source: str | bytes, where: str, *, finite: bool = True) -> Any:
    """Return the value of a JSON text; ArgumentError if it is not JSON, or cannot be trusted.

    finite=False takes NaN and Infinity, which Python writes, for floats.
    """
    hooks: dict[str, Any] = {"object_pairs_hook": _once}
    if finite:
        hooks |= {"parse_constant": _no_number, "parse_float": _finite}
    try:
        value = json.loads(source, **hooks)
    except RecursionError:
        raise FileError(f"{where} is nested too deep: the file is damaged") from None
    except ValueError as error:
        raise FileError(f"{where} is damaged: {error}") from None
    check_depth(value, where)
    return value


def _once(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("an object has one key twice")
    return fields


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits[:40]} is too large for a float")
    return value


def check_depth(
    value: object, where: str, most: int = MOST_DEPTH, kind: type[ArgumentError] = FileError
) -> None:
    """Raise ArgumentError if lists, tuples and dicts are nested more than `most` deep."""
    layer, depth = [value], 0
    while layer:
        inner: list[object] = []
        for item in layer:
            if isinstance(item, dict):
                inner += item.values()
            elif isinstance(item, (list, tuple)):
                inner += item
        layer, depth = inner, depth + 1
        if depth > most + 1:
            damaged = ": the file is damaged" if kind is FileError else ""
            raise kind(f"{where} is nested more than {most} deep{damaged}")


# --- checks -------------------------------------------------------------------------------------


def anything(value: object, where: str) -> None:
    """Accept any value: its reader checks it."""


def integer(low: int = -INT64, high: int = INT64 - 1) -> Check:
    """An int of [low, high]; no bool."""

    def check(value: object, where: str) -> None:
        if type(value) is not int or not low <= value <= high:
            wrong(where, value, f"an integer of {low} to {high}")

    return check


def number(value: object, where: str) -> None:
    """A float, or an int of 64 bits."""
    if type(value) is not float and not (type(value) is int and -INT64 <= value < 2 * INT64):
        wrong(where, value, "a number")


def flag(value: object, where: str) -> None:
    """True or False."""
    if type(value) is not bool:
        wrong(where, value, "true or false")


def text(most: int = 4096, pattern: str = "") -> Check:
    """A check for a string of at most `most` characters, which `pattern` matches entirely if it is
    given.
    """
    compiled = re.compile(pattern, re.DOTALL) if pattern else None

    def check(value: object, where: str) -> None:
        if type(value) is not str or len(value) > most:
            wrong(where, value, f"a text of at most {most} characters")
        if compiled is not None and compiled.fullmatch(value) is None:
            wrong(where, value, f"a text like {pattern}")

    return check


def one_of(*values: object) -> Check:
    """A check for one of these values."""

    def check(value: object, where: str) -> None:
        if not any(type(value) is type(v) and value == v for v in values):
            wrong(where, value, f"one of {', '.join(map(repr, values))}")

    return check


def maybe(inner: Check) -> Check:
    """A check for None, or a value that `inner` accepts."""

    def check(value: object, where: str) -> None:
        if value is not None:
            inner(value, where)

    return check


def several(inner: Check, most: int = 1 << 20, least: int = 0, kind: type[Any] = list) -> Check:
    """A check for a list (or tuple, if that is the `kind`) of `least` to `most` items that `inner`
    accepts.
    """

    def check(value: Any, where: str) -> None:
        if value.__class__ is not kind or not least <= len(value) <= most:
            wrong(where, value, f"a {kind.__name__} of {least} to {most} items")
        for k, item in enumerate(value):
            inner(item, f"{where}[{k}]")

    return check


def row(*inner: Check, kind: type[Any] = list) -> Check:
    """A check for a list (or tuple, if that is the `kind`) with an item for each of the checks."""

    def check(value: Any, where: str) -> None:
        if value.__class__ is not kind or len(value) != len(inner):
            wrong(where, value, f"a {kind.__name__} of {len(inner)} items")
        _each(inner, value, where)

    return check


def _each(inner: Sequence[Check], value: Sequence[Any], where: str) -> None:
    for k, (check, item) in enumerate(zip(inner, value, strict=True)):
        check(item, f"{where}[{k}]")


def mapping(inner: Check, most: int = 1 << 20) -> Check:
    """A check for a dict of at most `most` texts, with values that `inner` accepts."""

    def check(value: object, where: str) -> None:
        if type(value) is not dict or len(value) > most:
            wrong(where, value, f"a record of at most {most} entries")
        for name, item in value.items():
            if type(name) is not str:
                wrong(where, name, "a text")
            inner(item, f"{where}.{name[:80]}")

    return check


def options(**inner: Check) -> Check:
    """A check for a dict with some of these keys."""

    def check(value: object, where: str) -> None:
        if type(value) is not dict or not value.keys() <= inner.keys():
            wrong(where, value, f"a record of {', '.join(inner)}")
        for name, item in value.items():
            inner[name](item, f"{where}.{name}")

    return check


def record(**inner: Check) -> Check:
    """A check for a dict with exactly these keys."""

    def check(value: object, where: str) -> None:
        if type(value) is not dict or value.keys() != inner.keys():
            wrong(where, value, f"a record of {', '.join(inner)}")
        for name, item in inner.items():
            item(value[name], f"{where}.{name}")

    return check
