"""SBP signatures: an op's results along one dimension of a placement, by its operands' sbp.

A signature is legal if the op, run on what each rank holds, gives what the signature says of its
results.  They follow from an op's *letters*, as an einsum's do: each dimension of each operand has
a letter, or none where nothing is known of it.

- a letter that an operand and the results have may be split: `abc -> ac` computes its a's apart;
- one that only operands have is summed over, so splitting it leaves partial sums, if the op says so
  (`sums`);
- an op that is linear in some operands together takes partial sums of these, the others whole, and
  gives partial sums (`linear`).

The letters of an elementwise op are its broadcast dimensions, and what it is linear in follows from
its expression.  Ops with bodies say theirs in `RULES`, a table by name.  An op that is not there
has one signature, which every op has: all of everything, everywhere.
"""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from flowvm.eager.interpreter import Operator
from flowvm.meta.meta import TensorMeta
from flowvm.meta.placements import broadcast, partial_sum, sbp, split
from flowvm.ops.placed.letters import RULES, Letters

Metas = tuple[TensorMeta, ...]


@dataclass(frozen=True)
class Signature:
    """The sbp of operands and results along one dimension of a placement."""

    inputs: tuple[sbp, ...]
    outputs: tuple[sbp, ...]

    def __repr__(self) -> str:
        left = ", ".join(s.short for s in self.inputs)
        return f"{left} -> {', '.join(s.short for s in self.outputs)}"


def signatures(
    op: Operator, metas: Metas, attrs: tuple[Any, ...], outs: Metas, parts: int
) -> list[Signature]:
    """Return the legal signatures of a call on `parts` ranks.

    The metas are local ones of the logical shapes.  The last one is legal for every op.  Operands
    that an op writes are among its inputs.
    """
    whole = Signature((broadcast,) * len(metas), (broadcast,) * len(outs))
    letters = letters_of(op, metas, attrs, outs)
    if letters is None:
        return [whole]
    uneven = {
        letter
        for names, m in zip((*letters.inputs, *letters.outputs), (*metas, *outs), strict=True)
        for letter, size in zip(names, m.shape, strict=True)
        if letter in letters.even and size % parts
    }
    splits = _splits(letters, uneven)
    return [*dict.fromkeys([*splits, *_partials(letters)]), whole]


def letters_of(op: Operator, metas: Metas, attrs: tuple[Any, ...], outs: Metas) -> Letters | None:
    """Return the letters of a call's dimensions, or None if nothing is known of them."""
    if isinstance(op.form, tuple) and hasattr(op.form[0], "expr"):
        return _pointwise(metas, outs, _linear_in(op, metas, outs))
    rule = RULES.get(op.name)
    return None if rule is None else rule(op, metas, attrs, outs)


# --- from letters ---------------------------------------------------------------------------------


def _splits(letters: Letters, but: set[str]) -> Iterable[Signature]:
    operands = (*letters.inputs, *letters.outputs)
    for letter in dict.fromkeys(x for names in operands for x in names if x):
        summed = not any(letter in names for names in letters.outputs)
        missing = any(letter not in names for names in letters.outputs)
        if missing and letter not in letters.sums:
            continue
        if letter in but:
            continue
        rest = partial_sum if missing else broadcast
        inputs = [
            split(names.index(letter))
            if letter in names
            else (rest if k in letters.added else broadcast)
            for k, names in enumerate(letters.inputs)
        ]
        outputs = [
            split(names.index(letter)) if letter in names else partial_sum
            for names in letters.outputs
        ]
        if summed or not missing or not letters.added:  # what is added, is to all results
            yield Signature(tuple(inputs), tuple(outputs))


def _partials(letters: Letters) -> Iterable[Signature]:
    for group in letters.linear:
        inputs = [partial_sum if k in group else broadcast for k in range(len(letters.inputs))]
        yield Signature(tuple(inputs), (partial_sum,) * len(letters.outputs))


# --- elementwise ----------------------------------------------------------------------------------


def _pointwise(metas: Metas, outs: Metas, linear: Sequence[tuple[int, ...]]) -> Letters:
    """Return the letters of dimensions that broadcast: the last dimensions correspond.

    An op that writes an operand has its shape.
    """
    shape = max((m.shape for m in (*outs, *metas)), key=len)
    whole = (outs or metas)[0].shape
    shape = whole if len(whole) >= len(shape) else shape

    def names(meta: TensorMeta) -> tuple[Any, ...]:
        lead = len(shape) - meta.ndim
        return tuple(i + lead if d == shape[i + lead] else None for i, d in enumerate(meta.shape))

    numbered = [names(m) for m in (*metas, *outs)]
    named = [tuple(None if x is None else f"d{x}" for x in one) for one in numbered]
    return Letters(tuple(named[: len(metas)]), tuple(named[len(metas) :]), linear=tuple(linear))


def _linear_in(op: Operator, metas: Metas, outs: Metas) -> list[tuple[int, ...]]:
    """The groups of inputs in which an elementwise call is linear."""
    form, pattern = op.form
    tensors = [n for n, p in zip(form.args, pattern, strict=True) if p == "t"]
    result = outs[0].dtype if outs else metas[0].dtype
    if form.types in ("bool", "logical", "int") or result.is_bool or getattr(form, "real", False):
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
    found = []
    for count in range(1, len(tensors) + 1):
        for group in itertools.combinations(range(len(tensors)), count):
            if _degree(tree, {tensors[k] for k in group}) == 1:
                found.append(group)
    return tuple(found)


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


Rule = Callable[[Operator, Metas, tuple[Any, ...], Metas], "Letters | None"]
