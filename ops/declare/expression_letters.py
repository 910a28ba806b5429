"""The SBP letters of an elementwise call: its broadcast dimensions, and what its expression is
linear in.
"""

from __future__ import annotations

import ast
import functools
import itertools
from typing import Any

from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.letters import Letters, Metas


def pointwise(form: object, pattern: str, metas: Metas, outs: Metas) -> Letters:
    """Name the dimensions of a call of an `Elementwise`, broadcast as the last ones are one
    another's.  Where the op writes what it reads, that shape is the call's.
    """
    shape = max((m.shape for m in (*outs, *metas)), key=len)
    whole = (outs or metas)[0].shape
    shape = whole if len(whole) >= len(shape) else shape

    def names(meta: TensorMeta) -> tuple[Any, ...]:
        lead = len(shape) - meta.ndim
        return tuple(
            f"d{i + lead}" if d == shape[i + lead] else None for i, d in enumerate(meta.shape)
        )

    named = [names(m) for m in (*metas, *outs)]
    linear = tuple(_linear_in(form, pattern, metas, outs))
    return Letters(tuple(named[: len(metas)]), tuple(named[len(metas) :]), linear=linear)


def _linear_in(form: Any, pattern: str, metas: Metas, outs: Metas) -> list[tuple[int, ...]]:
    """The groups of inputs in which an elementwise call is linear."""
    tensors = [n for n, p in zip(form.args, pattern, strict=True) if p == "t"]
    result = outs[0].dtype if outs else metas[0].dtype
    if form.types in ("bool", "logical", "int") or result.is_bool or form.real:
        return []
    groups = _linear_groups(form.expr, tuple(tensors))
    # a summand must be converted as the sum is: integers to floats, and floats to others, are not
    return [g for g in groups if all(metas[k].dtype.inexact and result.inexact for k in g)] + [
        g
        for g in groups
        if all(metas[k].dtype is result and not result.inexact for k in g) and "/" not in form.expr
    ]


@functools.cache
def _linear_groups(expr: str, tensors: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    try:
        tree = ast.parse(expr.strip(), mode="eval").body
    except SyntaxError:
        return ()  # a program of several lines
    groups = []
    for count in range(1, len(tensors) + 1):
        for group in itertools.combinations(range(len(tensors)), count):
            if _degree(tree, {tensors[k] for k in group}) == 1:
                groups.append(group)
    return tuple(groups)


_NONE = 2  # of a part that is neither independent nor linear


def _degree(node: ast.expr, names: set[str]) -> int:
    """0: independent of `names`; 1: linear in them together; `_NONE`."""
    match node:
        case ast.Name(id=name):
            return int(name in names)
        case ast.Constant():
            return 0
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=a):
            return _degree(a, names)
        case ast.BinOp(left=a, op=op, right=b):
            left, right = _degree(a, names), _degree(b, names)
            if isinstance(op, (ast.Add, ast.Sub)):
                return left if left == right else _NONE
            if isinstance(op, ast.Mult):
                return min(left + right, _NONE)
            if isinstance(op, ast.Div) and right == 0:
                return left
            return 0 if left == right == 0 else _NONE
        case ast.IfExp(test=test, body=a, orelse=b):
            left, right = _degree(a, names), _degree(b, names)
            return left if left == right and _degree(test, names) == 0 else _NONE
    inner = [_degree(child, names) for child in _parts(node)]
    return 0 if not any(inner) else _NONE


def _parts(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Call):
        return list(node.args)
    return [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
