"""Algebraic clean-up: operations whose result exists already, or has a cheaper form.

Every rule keeps every bit, of -0.0, infinities and NaN too:

    x * 1, x / 1, x - 0, x + -0.0, -(-x), x * ones      a copy of x, which `copies` then removes
    x / c, c a power of two                             x * (1 / c), which is exact and faster
    a conversion of a conversion that lost nothing      one conversion
    a copy of a fill                                    a fill
    a fill with 1 or 0 converted                        a fill in that dtype

x + 0.0 (which is +0.0 for -0.0), x * 0, x - x and (x * a) * b are left alone: their bits differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import Operand, OpNode, is_pure
from flowvm.graph.logical.rewriting import Accesses, rebuilt, together
from flowvm.meta.dtype import DType, finfo
from flowvm.ops.declare.composite import _fill
from flowvm.ops.declare.core import _cast, _cast_away
from flowvm.ops.pointwise.arithmetic import _add, _div, _sub, mul

if TYPE_CHECKING:
    from flowvm.ops.declare.elementwise import Elementwise


Rule = Callable[["_Facts", int, OpNode], OpNode | None]


def simplify(graph: LogicalGraph) -> LogicalGraph:
    """Apply the rules of this module wherever they hold."""
    facts = _Facts(graph)
    nodes = facts.nodes
    for place, node in enumerate(graph.nodes):
        for rule in _RULES if is_pure(node) else ():
            replacement = rule(facts, place, nodes[place])
            if replacement is not None and _gives_the_same(replacement, node):
                nodes[place] = replacement
    if all(a is b for a, b in zip(nodes, graph.nodes, strict=True)):
        return graph
    return rebuilt(graph, nodes)


class _Facts:
    """The graph as rewritten so far, and the makers of its values."""

    def __init__(self, graph: LogicalGraph) -> None:
        self.accesses = Accesses(graph)
        self.nodes = list(graph.nodes)

    def source(self, operand: Operand, place: int) -> OpNode | None:
        """Return the node that makes the operand read at `place`, if it can be left out.

        Then its own operands are the same at `place`.
        """
        at = self.accesses.maker(operand.buffer)
        if at < 0 or operand != self.nodes[at].outputs[0]:
            return None
        node = self.nodes[at]
        same = all(self.accesses.unchanged(o.buffer, at + 1, place) for o in node.inputs)
        return node if same and together(node, self.accesses.nodes[place]) else None


def _gives_the_same(replacement: OpNode, node: OpNode) -> bool:
    metas = tuple(operand.meta for operand in replacement.inputs)
    return replacement.operator.kernel.lower(metas, replacement.attrs).outputs == (
        node.outputs[0].meta,
    )


def _copy_of(node: OpNode, operand: Operand) -> OpNode:
    return _converted(node, operand, operand.meta.dtype)


def _converted(node: OpNode, operand: Operand, dtype: DType) -> OpNode:
    operator = _cast if dtype.inexact else _cast_away
    return replace(node, operator=operator, inputs=(operand,), attrs=(dtype,), scalars=())


def _number(node: OpNode) -> int | float | None:
    """Return the one plain number among a node's arguments; None for none, or if it may change."""
    value = node.scalars[0] if len(node.scalars) == 1 else None
    return value if type(value) in (int, float) else None


def _is_form(node: OpNode, function: Elementwise, pattern: str) -> bool:
    form = node.operator.origin.form
    return form is not None and form[0] is function and form[1] == pattern


# --- rules --------------------------------------------------------------------------------------


def _neutral(facts: _Facts, place: int, node: OpNode) -> OpNode | None:
    """x * 1, 1 * x, x / 1, x - 0, x + -0.0, and x + 0 of integers."""
    value = _number(node)
    if value is None or len(node.inputs) != 1:
        return None
    (x,) = node.inputs
    minus_zero = value == 0 and (
        math.copysign(1, value) < 0 or not node.outputs[0].meta.dtype.is_floating_point
    )
    plus_zero = value == 0 and math.copysign(1, value) > 0
    neutral = (
        (value == 1 and (_is_form(node, mul, "ts") or _is_form(node, mul, "st")))
        or (value == 1 and _is_form(node, _div, "ts"))
        or (plus_zero and _is_form(node, _sub, "ts"))
        or (minus_zero and (_is_form(node, _add, "ts") or _is_form(node, _add, "st")))
    )
    return _copy_of(node, x) if neutral else None


def _times_ones(facts: _Facts, place: int, node: OpNode) -> OpNode | None:
    """Replace x * ones, in either order, by x: backward begins with it."""
    if not _is_form(node, mul, "tt"):
        return None
    for ones, x in (node.inputs, node.inputs[::-1]):
        at = facts.accesses.maker(ones.buffer)
        maker = facts.nodes[at] if at >= 0 else None
        if maker is not None and maker.operator is _fill and _number(maker) == 1:
            return _copy_of(node, x)
    return None


def _division_by_power_of_two(facts: _Facts, place: int, node: OpNode) -> OpNode | None:
    """x / c as x * (1 / c): both are rounded once, from the same real number."""
    value = _number(node)
    if value is None or not _is_form(node, _div, "ts"):
        return None
    dtype = node.outputs[0].meta.dtype
    if not node.inputs[0].meta.dtype.is_floating_point or value == 0 or not math.isfinite(value):
        return None
    mantissa, exponent = math.frexp(value)
    least = round(math.log2(finfo(dtype).tiny)) + 2  # beyond, 1 / c would not be a normal number
    if abs(mantissa) != 0.5 or not least < exponent < -least:
        return None
    return replace(node, operator=mul._variant("ts"), attrs=(float,), scalars=(1.0 / value,))


def _negation_twice(facts: _Facts, place: int, node: OpNode) -> OpNode | None:
    if not _is_negation(node):
        return None
    inner = facts.source(node.inputs[0], place)
    return _copy_of(node, inner.inputs[0]) if inner is not None and _is_negation(inner) else None


def _is_negation(node: OpNode) -> bool:
    form = node.operator.origin.form
    return form is not None and form[1] == "t" and form[0].expr == "-x"


def _conversion_twice(facts: _Facts, place: int, node: OpNode) -> OpNode | None:
    """Replace a conversion of a lossless conversion by one from the first's source."""
    if node.operator not in (_cast, _cast_away):
        return None
    inner = facts.source(node.inputs[0], place)
    if inner is None or inner.operator not in (_cast, _cast_away):
        return None
    (x,), final = inner.inputs, node.outputs[0].meta.dtype
    source, between = x.meta.dtype, inner.outputs[0].meta.dtype
    if source.is_complex or between.is_complex or final.is_complex:
        return None
    alike = source.is_floating_point == between.is_floating_point
    simple = alike or source.is_bool or source is final
    return _converted(node, x, final) if simple and _lossless(source, between) else None


def _lossless(source: DType, target: DType) -> bool:
    """Return True if `target` can represent every value of `source`."""
    if source is target:
        return True
    if source.is_floating_point:
        exact = target.is_floating_point and source.digits <= target.digits
        return exact and finfo(source).max <= finfo(target).max
    if target.is_floating_point:
        return source.is_bool or target.digits >= 8 * source.itemsize  # all digits of integers
    return bool(np.can_cast(source.numpy, target.numpy, "safe")) and not target.is_bool


def _copied_fill(facts: _Facts, place: int, node: OpNode) -> OpNode | None:
    if node.operator not in (_cast, _cast_away):
        return None
    at = facts.accesses.maker(node.inputs[0].buffer)
    maker = facts.nodes[at] if at >= 0 else None
    if maker is None or maker.operator is not _fill or _number(maker) is None:
        return None
    source, out, value = maker.outputs[0].meta.dtype, node.outputs[0].meta, maker.scalars[0]
    if source is not out.dtype and value not in (0, 1):
        return None
    kind = float if out.dtype.inexact else int
    return replace(node, operator=_fill, inputs=(), attrs=(out,), scalars=(kind(value),))


_RULES: tuple[Rule, ...] = (
    _conversion_twice,
    _copied_fill,
    _negation_twice,
    _times_ones,
    _neutral,
    _division_by_power_of_two,
)
