"""Expressions over columns: a small part of Python's syntax, evaluated here.

Parsed by Python, and nothing is run but what this module has: comparisons (chains of them), and,
or, not, in, arithmetic, numbers, texts, and names of columns.  So an expression can neither call
nor reach anything.  What is wrong is an ArgumentError with a caret under it.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from flowvm.errors import ArgumentError
from flowvm.meta.arrays import Array

LONGEST = 2000  # letters of an expression: nobody writes more, and Python cannot parse any depth
_ARITHMETIC: dict[type[ast.operator], Callable[[object, object], object]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Mod: operator.mod,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Pow: operator.pow,
}  # fmt: skip
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip


def true_of(text: str, names: Collection[str], column: Callable[[str], Array], count: int) -> Array:
    """For each of `count` rows, whether an expression is true of it.

    `column` gives the column of one of `names`.  ArgumentError: it is no such expression.
    """
    if len(text) > LONGEST:
        raise ArgumentError(f"query: {len(text):,} letters; at most {LONGEST:,}")
    return _Expression(text, names, column, count).rows()


class _Expression:
    """One expression over columns of `count` rows."""

    def __init__(
        self, text: str, names: Collection[str], column: Callable[[str], Array], count: int
    ) -> None:
        self.text, self.names, self.column, self.count = text, names, column, count
        self.known: dict[str, Array] = {}

    def wrong(self, what: str, node: ast.AST | None = None, at: int = 0, to: int = 1) -> object:
        """ArgumentError with a caret under what is wrong."""
        if node is not None:
            line = self.text.encode()
            at = len(line[: getattr(node, "col_offset", 0)].decode(errors="replace"))
            to = len(line[: getattr(node, "end_col_offset", 0)].decode(errors="replace"))
        raise ArgumentError(f"{what}\n    {self.text}\n    {' ' * at}{'^' * max(1, to - at)}")

    def rows(self) -> Array:
        """True for each row that it is true of."""
        try:
            tree = ast.parse(self.text, mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            at = min((getattr(error, "offset", None) or len(self.text) + 1) - 1, len(self.text))
            why = getattr(error, "msg", error)
            hint = "; to compare, use ==" if self.text[at : at + 1] == "=" else ""
            self.wrong(f"query is no expression: {why}{hint}", at=max(0, at), to=at + 1)
        try:
            value = self.value(tree.body)
        except RecursionError:
            self.wrong("query: too many parts within each other; use fewer", to=len(self.text))
        if not _is_truth(value):
            self.wrong("query: this is no question; compare it with something", tree.body)
        return np.broadcast_to(np.asarray(value, bool), self.count)

    def value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant) and type(node.value) in (bool, int, float, str):
            return node.value
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self._column(node)
        if isinstance(node, ast.BoolOp):
            parts = [self._truth(v) for v in node.values]
            join = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
            return join.reduce(np.broadcast_arrays(*parts))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return np.logical_not(self._truth(node.operand))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self._number(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            return self._computed(node)
        if isinstance(node, ast.Compare):
            return self._compared(node)
        return self.wrong(
            f"query knows no {type(node).__name__}: there are columns, numbers, strings, "
            "comparisons, in, and, or, not, and arithmetic", node)  # fmt: skip

    def _column(self, node: ast.Name | ast.Attribute) -> Array:
        name = ast.unparse(node)
        if name not in self.names:
            names = ", ".join(self.names)
            self.wrong(f"query: there is no column {name!r}; there are {names}", node)
        if name not in self.known:
            self.known[name] = self.column(name)
        return self.known[name]

    def _truth(self, node: ast.expr) -> Any:
        value = self.value(node)
        if not _is_truth(value):
            self.wrong("query: this is neither true nor false; compare it with something", node)
        return value

    def _number(self, node: ast.expr) -> Any:
        value = self.value(node)
        if _is_text(value):
            self.wrong("query: this is a text, and a number is needed", node)
        return np.asarray(value, np.int64) if _is_truth(value) else value

    def _computed(self, node: ast.BinOp) -> object:
        left, right = self._number(node.left), self._number(node.right)
        if isinstance(node.op, ast.Pow):
            left, right = np.float64(left), np.float64(right)  # a float has no million digits
        with np.errstate(all="ignore"):
            try:
                return _ARITHMETIC[type(node.op)](left, right)
            except (ZeroDivisionError, OverflowError) as error:
                return self.wrong(f"query: {error}", node)

    def _compared(self, node: ast.Compare) -> bool:
        value: bool = True
        before = node.left
        for how, after in zip(node.ops, node.comparators, strict=True):
            value = np.logical_and(value, self._pair(node, before, how, after))
            before = after
        return value

    def _pair(self, node: ast.Compare, before: ast.expr, how: ast.cmpop, after: ast.expr) -> Any:
        if isinstance(how, (ast.In, ast.NotIn)):
            inside = self._inside(before, after)
            return inside if isinstance(how, ast.In) else np.logical_not(inside)
        if type(how) not in _COMPARED:
            self.wrong("query: `is` compares objects; use ==", node)
        left, right = self.value(before), self.value(after)
        if _is_text(left) != _is_text(right):
            kinds = ["a text" if _is_text(v) else "a number" for v in (left, right)]
            self.wrong(f"query: compares {kinds[0]} with {kinds[1]}", node)
        return np.asarray(_COMPARED[type(how)](left, right), bool)

    def _inside(self, before: ast.expr, after: ast.expr) -> bool | Array:
        left = self.value(before)
        if isinstance(after, (ast.Tuple, ast.List, ast.Set)):
            mask: bool = False
            for one in after.elts:
                value = self.value(one)
                if _is_text(value) != _is_text(left):
                    self.wrong("query: this is of another kind than what is looked for", one)
                mask = np.logical_or(mask, np.asarray(left == value, bool))
            return mask
        right = self.value(after)
        if not (_is_text(left) and _is_text(right)):
            self.wrong("query: `in` looks for a text in a text, or for a value in (...)", after)
        if isinstance(left, str) and isinstance(right, str):
            return left in right
        parts, wholes = np.broadcast_arrays(np.asarray(left, object), np.asarray(right, object))
        # there are few different texts
        answers: dict[tuple[str, str], bool] = {}
        for pair in zip(parts.tolist(), wholes.tolist(), strict=True):
            if pair not in answers:
                answers[pair] = pair[0] in pair[1]
        return np.array([answers[pair] for pair in zip(parts, wholes, strict=True)], bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, np.ndarray) and value.dtype == object)


def _is_truth(value: object) -> bool:
    return isinstance(value, (bool, np.bool_)) or getattr(value, "dtype", None) == np.bool_
