"""The grammar of a scalar program whose text comes from a file.

A program is what `codegen` compiles: assignments `t0 = ...`, `t1 = ...`, then the result, or
several in parentheses.  It is compiled as Python, so a text that was read is code: it is held
against this grammar before that, and nothing else is in it than

    names        of the arguments, and of assignments that stand further up
    numbers      finite ones
    operators    + - * / // % ** & | ^ << >> ~, comparisons, and, or, not, `a if b else c`
    calls        of the functions of `flowvm.ops.scalar.functions`, with plain arguments

so no attribute, subscript, comprehension, lambda, string, keyword, or other name.
"""

from __future__ import annotations

import ast
import functools
import math
import re
from collections.abc import Collection

from flowvm.errors import ArgumentError
from flowvm.ops.scalar import functions as scalar

MOST_CHARACTERS = 1 << 16
MOST_PARENTHESES = 40  # open at one place
_CHARACTERS = re.compile(r"[A-Za-z0-9_ .,()+\-*/%<>=!&|^~\n]*")
_MOST_INT = 1 << 63
_OPERATORS = (
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.BitAnd, ast.BitOr,
    ast.BitXor, ast.LShift, ast.RShift, ast.UAdd, ast.USub, ast.Not, ast.Invert, ast.And, ast.Or,
    ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE,
)  # fmt: skip


def check_program(text: str, arguments: Collection[str], results: int, where: str) -> None:
    """Raise ArgumentError unless `text` is a program of `arguments` with `results` results."""
    try:
        _check(text, set(arguments), results)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        shown = text if len(text) <= 80 else text[:77] + "..."
        raise ArgumentError(
            f"{where} is {shown!r}, which is not a program of scalars ({error}): flowvm does "
            "not compile it; "
            f"capture the graph anew and save it again"
        ) from None


def _check(text: str, names: set[str], results: int) -> None:
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"the program has more than {MOST_CHARACTERS} characters")
    if _CHARACTERS.fullmatch(text) is None:
        raise ValueError("the program has characters that are not allowed")
    depth = most = 0
    for character in text:
        depth += (character == "(") - (character == ")")
        most = max(most, depth)
    if most > MOST_PARENTHESES:
        raise ValueError(f"its parentheses are more than {MOST_PARENTHESES} deep")
    *steps, last = ast.parse(text).body or [ast.Pass()]
    for k, step in enumerate(steps):
        target = step.targets[0] if isinstance(step, ast.Assign) else None
        if not isinstance(step, ast.Assign) or len(step.targets) != 1:
            raise ValueError("the program has a line that assigns nothing")
        if not isinstance(target, ast.Name) or target.id != f"t{k}":
            raise ValueError(f"its line {k + 1} does not assign t{k}")
        _check_expression(step.value, names)
        names.add(target.id)
    if not isinstance(last, ast.Expr):
        raise ValueError("the program's last line is not a result")
    if isinstance(last.value, ast.Tuple):
        values = list(last.value.elts)
    else:
        values = [last.value]
    if len(values) != results or (isinstance(last.value, ast.Tuple) and results < 2):
        raise ValueError(f"the program gives {len(values)} results, and not {results}")
    for item in values:
        _check_expression(item, names)


def _check_expression(node: ast.expr, names: Collection[str]) -> None:
    match node:
        case ast.Name(id=name):
            if name not in names:
                raise ValueError(f"no argument or variable of the program is called {name!r}")
        case ast.Constant(value=value):
            _check_number(value)
        case ast.BinOp(left=a, op=op, right=b):
            _check_operators([op])
            _check_all([a, b], names)
        case ast.UnaryOp(op=op, operand=a):
            _check_operators([op])
            _check_expression(a, names)
        case ast.BoolOp(op=op, values=values):
            _check_operators([op])
            _check_all(values, names)
        case ast.Compare(left=a, ops=ops, comparators=others):
            _check_operators(ops)
            _check_all([a, *others], names)
        case ast.IfExp(test=a, body=b, orelse=c):
            _check_all([a, b, c], names)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            if name not in _functions() or name in names:
                raise ValueError(f"{name!r} is not a function of programs")
            _check_all(arguments, names)
        case _:
            raise ValueError(f"a {type(node).__name__} is not a part of a program")


def _check_all(nodes: list[ast.expr], names: Collection[str]) -> None:
    for node in nodes:
        _check_expression(node, names)


def _check_operators(
    operators: list[ast.operator] | list[ast.unaryop] | list[ast.cmpop] | list[ast.boolop],
) -> None:
    for operator in operators:
        if not isinstance(operator, _OPERATORS):
            raise ValueError(f"{type(operator).__name__} is not an operator of programs")


def _check_number(value: object) -> None:
    if type(value) is float and math.isfinite(value):
        return
    if type(value) is bool or (type(value) is int and abs(value) < _MOST_INT):
        return
    raise ValueError(f"{value!r} cannot be a number in a program")


@functools.cache
def _functions() -> frozenset[str]:
    return frozenset(scalar.functions())
