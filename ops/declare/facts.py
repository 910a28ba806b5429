"""Facts of ops that one room alone needs, kept with the op's declaration.

    PRICE: Fact[Rate] = Fact()

    PRICE.say(rate, all_reduce_of, all_reduce_into)     beside what needs it, once
    PRICE.of(node.operator)                             None where nobody said it

What every op has, its declaration says itself (`letters=`, `amp=`).  A room above the op's, whose
types the op may not know, names the declaration: a name that is gone is an ImportError, and another
op of that name has no part in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

from flowvm.eager.interpreter import Operator
from flowvm.ops.declare.elementwise import Elementwise
from flowvm.ops.declare.registry import operator_of

Value = TypeVar("Value")


class Fact(Generic[Value]):
    """A kind of fact: say it of declarations, ask it of operators."""

    def say(self, value: Value, *declarations: object) -> None:
        """Keep `value` with declarations: functions made by `op`, `elementwise` or `update`,
        Operators, and functions decorated by `maker`.
        """
        for declaration in declarations:
            facts_of(declaration)[self] = value

    def __call__(self, *declarations: object) -> Callable[[Value], Value]:
        """Decorate the value itself, a function, with the declarations that it is a fact of."""

        def decorate(value: Value) -> Value:
            self.say(value, *declarations)
            return value

        return decorate

    def of(self, operator: Operator | Elementwise) -> Value | None:
        """Return what was said of the operator's declaration, None if nothing was."""
        return cast("Value | None", operator.facts.get(self))


def facts_of(declaration: Any) -> dict[Any, Any]:
    """Return the facts of a declaration, which all operators that come of it share."""
    if isinstance(declaration, (Operator, Elementwise)):
        return declaration.facts
    facts: dict[Any, Any] | None = getattr(declaration, "facts", None)
    return operator_of(declaration).facts if facts is None else facts
