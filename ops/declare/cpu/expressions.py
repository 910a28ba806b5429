"""Scalar expressions as functions for Numba: the calls in them, the types of their numbers.

An expression's names are its arguments and the functions of `flowvm.ops.scalar`; a program of them
is lines that name intermediate values, then the expression.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from flowvm.compiler.native import LoweredFunction, lower
from flowvm.loading.lazy import lazy
from flowvm.ops.declare.cpu.text import IN_MEMORY, PARTS, WIDENED
from flowvm.ops.scalar import functions as scalar
from flowvm.ops.scalar.bits import Guarded
from flowvm.ops.scalar.complex_numbers import complex_functions

llvm = lazy("llvmlite.binding")  # for a compilation only

# what Numba sees instead
PASSED = {
    "uint8": "int16",
    "uint16": "int32",
    "uint32": "int64",
    **dict.fromkeys(WIDENED, "float32"),
}


def expression_function(
    expr: str, args: tuple[str, ...], compute: tuple[str, ...]
) -> tuple[Callable[..., object], list[str]]:
    """`expr` as a Python function of `args`, to be compiled, and the dtypes that it is to get."""
    return _expression_in(scope_of(expr), expr, args, compute)


def _expression_in(
    scope: dict[str, object], expr: str, args: tuple[str, ...], compute: tuple[str, ...]
) -> tuple[Callable[..., object], list[str]]:
    passed = [PASSED.get(name, name) for name in compute]
    reals = [PARTS.get(name, name) for name in passed]
    literal = next((d for d in ("float64", "float32", "uint64") if d in reals), "")
    *steps, result = ast.unparse(TypedLiterals(literal).visit(ast.parse(expr))).split("\n")
    source = "".join(f"    {line}\n" for line in (*steps, f"return {result}"))
    return _function_of(source, expr, args, scope), passed


def _function_of(
    source: str, expr: str, args: tuple[str, ...], scope: dict[str, Any]
) -> Callable[..., Any]:
    source = f"def expression({', '.join(args)}):\n{source}\n"
    space = dict(scope)
    exec(compile(source, f"<{expr}>", "exec"), space)
    function: Callable[..., Any] = space["expression"]
    return function


def scope_of(expr: str) -> dict[str, object]:
    """Return the functions that `expr` calls; for a `Guarded` also `<name>_fits` and `<name>_near`.

    No other functions: the key of a kernel covers those here.
    """
    scope = {name: getattr(np, name) for name in ("float32", "float64", "int64", "uint64")}
    for name in sorted(_functions().keys() & set(re.findall(r"\w+", expr))):
        function = scope[name] = _functions()[name]
        if isinstance(function, Guarded):
            scope |= {f.__name__: f for f in (function.fits, function.near)}
    return scope


@functools.cache
def _functions() -> dict[str, object]:
    return {**scalar.functions(), **complex_functions()}


class TypedLiterals(ast.NodeTransformer):
    """Turn numbers into `float32(number)` if the expression computes in float32.

    Numbers with uint64 become uint64, since Numba makes float64 of uint64 and int64.
    """

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if (
            not self.dtype
            or isinstance(node.value, bool)
            or not isinstance(node.value, int | float)
        ):
            return node
        number = ast.Constant(node.value if self.dtype == "uint64" else float(node.value))
        return ast.Call(ast.Name(self.dtype, ast.Load()), [number], [])


def is_long(expr: str) -> bool:
    """Return True if one element is a chain of operations: a program, or a polynomial."""
    return "\n" in expr or any(isinstance(n, ast.Call) for n in ast.walk(ast.parse(expr)))


def lowered_expression(
    expr: str, args: tuple[str, ...], compute: tuple[str, ...], scope: dict[str, object]
) -> LoweredFunction:
    return _lowered_plain(expr, args, compute) or _lower_typed(
        *_expression_in(scope, expr, args, compute)
    )


class _Type(NamedTuple):
    """A type of Numba's, as far as its name goes."""

    name: str


_PLAIN = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul"}
_FLAGS = {"float": "f{} contract", "double": "f{} contract", "i64": "{} nsw"}


def _lowered_plain(
    expr: str, args: tuple[str, ...], compute: tuple[str, ...]
) -> LoweredFunction | None:
    """Lower an argument, or a sum, difference or product of two, as Numba would, but without it: a
    session's first answer needs no more of it.  Return None for other expressions.
    """
    kind = IN_MEMORY[compute[0]] if len({*compute}) == 1 else ""
    if kind not in _FLAGS or compute[0] == "uint64":
        return None
    match ast.parse(expr).body:
        case [ast.Expr(ast.Name(name))] if name in args:
            code, value = "", f"%{name}"
        case [ast.Expr(ast.BinOp(ast.Name(a), op, ast.Name(b)))] if (
            type(op) in _PLAIN and a in args and b in args
        ):
            operation = _FLAGS[kind].format(_PLAIN[type(op)])
            code, value = f"%.sum = {operation} {kind} %{a}, %{b}", "%.sum"
        case _:
            return None
    parameters = "".join(f", {kind} %{name}" for name in args)
    text = f"""define i32 @plain(ptr %.r, ptr %.e{parameters}) {{
  {code}
  store {kind} {value}, ptr %.r
  ret i32 0
}}"""
    modules = [llvm.parse_assembly(text)]
    return LoweredFunction(
        "plain", modules, _Type(compute[0]), kind, [kind] * len(args), frozenset()
    )


def lowered_guarded(
    expr: str, args: tuple[str, ...], compute: tuple[str, ...], scope: dict[str, object]
) -> tuple[LoweredFunction, ...]:
    """Lower an expression that is one call of a `Guarded`; return nothing for other expressions.

    The first function raises where the rare case is; the second is the expression where it is not.
    """
    *steps, last = ast.parse(expr).body
    call = last.value if isinstance(last, ast.Expr) and not steps else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        return ()
    function, passed = scope[call.func.id], [PASSED.get(c, c) for c in compute]
    if not isinstance(function, Guarded) or not all(isinstance(a, ast.Name) for a in call.args):
        return ()
    if (
        function.choose(passed)[0] not in function.fits.implementations
    ):  # integers have no such case
        return ()
    arguments = ", ".join(ast.unparse(a) for a in call.args)
    check = (
        f"    if not {call.func.id}_fits({arguments}):\n        raise ValueError\n    return True"
    )
    near = f"    return {call.func.id}_near({arguments})"
    functions = (_function_of(s, expr, args, scope) for s in (check, near))
    return tuple(_lower_typed(f, passed) for f in functions)


def _lower_typed(function: Callable[..., object], passed: list[str]) -> LoweredFunction:
    from numba import types

    kinds = tuple(getattr(types, "boolean" if p == "bool" else p) for p in passed)
    return lower(function, kinds)
