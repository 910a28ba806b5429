"""Declarations of records of words: a class lists its fields in the order of their words.

    @record(words=4, by="the stream's worker")
    class ROW(Record):
        MARK = field("number of the row + 1, written last")
        TIMES = field("when it began and ended", words=2)

Numbers follow from the order.  `line` begins a cache line, which the field has to itself: writes of
one thread do not take the line away from another.  `at` leaves words free.  Attributes that are no
fields are constants of the record.

The class becomes a module of its name.  Numba and the keys of compiled code take attributes of
modules as constants, each by itself, and Python looks them up fastest.  Type checkers see the
class, and know all of its names.

`fields_of(ROW)` are the fields with their descriptions, `shown(ROW, m, at)` their contents.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple, Protocol, TypeVar, cast

LINE = 8  # words of a cache line


class _Readable(Protocol):
    def __getitem__(self, i: int, /) -> int: ...


class Record:
    """Words in a row, at any address."""

    WORDS: int  # of one record, where all have the same


class Region(Record):
    """Records in a part of the array `m` (see `flowvm.vm.machine.words`)."""

    AT: int  # where it begins
    LENGTH: int  # how many records there are


class Field(NamedTuple):
    """One field of a record: words `at` to `at + words`, and who writes them."""

    name: str
    at: int
    words: int
    by: str
    meaning: str


@dataclass(frozen=True)
class _Declared:
    meaning: str
    by: str
    words: int
    at: int | None
    alone: bool


_Class = TypeVar("_Class", bound=Record)


def field(meaning: str, *, by: str = "", words: int = 1, at: int | None = None) -> int:
    """Declare a field behind the one before, or `at` a number of words.  It is written `by` the
    record's writer by default.
    """
    return cast(int, _Declared(meaning, by, words, at, False))


def line(meaning: str, *, by: str = "") -> int:
    """Declare a field that begins a cache line and has it to itself."""
    return cast(int, _Declared(meaning, by, 1, None, True))


def record(*, words: int = 0, by: str = "") -> Callable[[type[_Class]], type[_Class]]:
    """Number the fields of a class; `words` is the size of a record, where that is promised."""

    def numbered(declared: type[_Class]) -> type[_Class]:
        table = ModuleType(f"{declared.__module__}.{declared.__name__}", declared.__doc__)
        fields: list[Field] = []
        free = 0
        for name, value in vars(declared).items():
            if isinstance(value, _Declared):
                at = _rounded(free) if value.alone else free if value.at is None else value.at
                if at < free:
                    raise ValueError(f"{declared.__name__}.{name}: word {at} has another field")
                free = at + (LINE if value.alone else value.words)
                fields.append(Field(name, at, value.words, value.by or by, value.meaning))
                value = at
            if not name.startswith("__"):
                setattr(table, name, value)
        if words and free > words:
            raise ValueError(f"{declared.__name__}: {free} words do not fit into {words}")
        if words:
            vars(table)["WORDS"] = words
        vars(table)["__fields__"] = tuple(fields)
        sys.modules[table.__name__] = table  # as every module: found by its name
        return cast(type[_Class], table)

    return numbered


def _rounded(words: int) -> int:
    return (words + LINE - 1) // LINE * LINE


def fields_of(table: type[Record]) -> tuple[Field, ...]:
    """The fields of a record, in order."""
    fields: tuple[Field, ...] = cast(Any, table).__fields__
    return fields


def shown(table: type[Record], m: _Readable, at: int = 0) -> str:
    """The record that begins at word `at` of `m`, as text: each field, its words, its meaning."""
    rows = [
        (field.name, " ".join(str(m[at + field.at + k]) for k in range(field.words)), field.meaning)
        for field in fields_of(table)
    ]
    name, value = (max(len(row[k]) for row in rows) for k in (0, 1))
    return "\n".join(f"{row[0]:{name}s}  {row[1]:>{value}s}  {row[2]}" for row in rows)
