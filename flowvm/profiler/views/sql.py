"""SQL over a run: `p.sql("select op, sum(run) from instructions group by op")`.

Two tables, in SQLite's memory: `instructions` has the columns of `flowvm.profiler.views.query` and
`edges` those of `flowvm.profiler.views.edges`, with an underscore for each point: `wait_dep`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flowvm.errors import ArgumentError
from flowvm.profiler.grammar import Column, Screen, View, counted, table
from flowvm.profiler.views.edges import edges_of
from flowvm.profiler.views.query import columns_of
from flowvm.profiler.views.summary.facts import ProfileLike

if TYPE_CHECKING:
    from flowvm.meta.arrays import Array


SHOWN = 40  # rows


@dataclass(frozen=True, repr=False)
class Rows(View):
    """Result of a query: names of columns, and all rows as tuples."""

    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def screen(self, width: int) -> Screen:
        """See View."""
        screen = Screen()
        numbers = [
            all(isinstance(row[k], (int, float, type(None))) for row in self.rows)
            for k in range(len(self.columns))
        ]
        columns = [
            Column(name, right=right, grow=not right)
            for name, right in zip(self.columns, numbers, strict=True)
        ]
        screen.lines += table(
            columns, [[_text(v) for v in row] for row in self.rows[:SHOWN]], width
        )
        if len(self.rows) > SHOWN:
            screen.add((f" {counted(len(self.rows) - SHOWN, 'more row')}: .rows has all", "head"))
        return screen.cut(width)


def _text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def sql(profile: ProfileLike, text: str) -> Rows:
    """The rows of a query.  ArgumentError: SQLite does not understand it."""
    tables = {"instructions": columns_of(profile), "edges": edges_of(profile)}
    with closing(sqlite3.connect(":memory:")) as base:
        for name, of in tables.items():
            names = ", ".join(f'"{column.replace(".", "_")}"' for column in of)
            base.execute(f"create table {name} ({names})")
            values = zip(*(_values(column) for column in of.values()), strict=True)
            base.executemany(f"insert into {name} values ({', '.join('?' * len(of))})", values)
        try:
            cursor = base.execute(text)
            rows = cursor.fetchall()
        except sqlite3.Error as error:
            raise ArgumentError(
                f"sql({text!r}): {error}; there are "
                + " and ".join(
                    f"{name} ({', '.join(c.replace('.', '_') for c in of)})"
                    for name, of in tables.items()
                )
            ) from error
    return Rows(tuple(column[0] for column in cursor.description or ()), tuple(rows))


def _values(column: Array) -> list[object]:
    """As SQLite has them: what never happened is null."""
    return [None if value != value else value for value in column.tolist()]
