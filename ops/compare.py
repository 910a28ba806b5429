"""Comparisons, logic, bits and choices, element by element; none but `where` has a gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowvm.dtype import bool_, float64
from flowvm.errors import ArgumentTypeError, DTypeError
from flowvm.ops.binary import _reversed
from flowvm.ops.elementwise import elementwise
from flowvm.ops.math import attach, back, in_place, require_tensor
from flowvm.ops.registry import Sample, samples
from flowvm.tensor import Tensor, method

__all__ = [
    "eq",
    "ge",
    "gt",
    "le",
    "lt",
    "ne",
    "where",
]

eq = elementwise("eq", "x == y", types="bool", doc="Whether x equals y.")
ne = elementwise("ne", "x != y", types="bool", doc="Whether x differs from y.")
lt = elementwise("lt", "x < y", types="bool", doc="Whether x is less than y.")
le = elementwise("le", "x <= y", types="bool", doc="Whether x is at most y.")
gt = elementwise("gt", "x > y", types="bool", doc="Whether x is greater than y.")
ge = elementwise("ge", "x >= y", types="bool", doc="Whether x is at least y.")

def _where_grad(c: Any, g: Tensor) -> tuple[Any, ...]:
    (chosen,) = c.saved
    return back(c, None, lambda: _where.call(chosen, g, 0), lambda: _where.call(chosen, 0, g))


_where = elementwise("where", "x if which else y", args="which: bool, x, y", saves="which", grad=_where_grad)


def where(condition: Tensor, input: Any = None, other: Any = None, *, out: Tensor | None = None) -> Any:
    """`input` where `condition` is true, `other` elsewhere; all broadcast, `input` and `other` promoted, numbers allowed.

    DTypeError unless `condition` is a bool tensor (uint8 will do).  `where(condition)` is
    `nonzero(condition, as_tuple=True)`.
    """
    require_tensor("where", condition)
    if input is None and other is None:
        return condition.nonzero(as_tuple=True)
    if input is None or other is None:
        raise ArgumentTypeError("where takes the condition alone, or it and both input and other")
    if condition._meta.dtype.name not in ("bool", "uint8"):
        raise DTypeError(
            f"where: condition must be a bool tensor, got {condition.dtype.name}; write condition != 0"
        )
    if out is None:
        return _where.call(condition, input, other)
    return _where(condition, input, other, out=out)


for _f in (eq, ne, lt, le, gt, ge):
    attach(_f, _f.name)
    setattr(Tensor, f"__{_f.name}__", _f.call)
@method("where")
def _where_method(x: Tensor, condition: Tensor, other: Any) -> Tensor:
    chosen: Tensor = where(condition, x, other)
    return chosen
