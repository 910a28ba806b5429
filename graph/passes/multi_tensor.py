"""An operator that is another one for several tensors at once; `updates` makes nodes of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from flowvm.eager.declaration import Invocation
from flowvm.eager.interpreter import Operator, call_into


class Merged(Operator):
    """`base`, issued for several tensors at once; made by `updates.merged_operator`."""

    base: Operator
    count: int
    ahead: int  # outputs of `base` that are given, in front of each member's inputs

    def __post_init__(self) -> None:
        self.lowered: dict[object, Invocation] = {}
        self.call = self._call_each

    def per_member(self, values: Sequence[object]) -> Iterable[Sequence[Any]]:
        """`values`, one for each operand, member by member."""
        each = self.ahead + len(self.base.signature.inputs)
        return (values[k * each : (k + 1) * each] for k in range(self.count))

    def operands_of(self, k: int) -> list[int]:
        """Return the positions of member k's operands among all, in the order of `base`."""
        each, outs = (
            self.ahead + len(self.base.signature.inputs),
            len(self.signature.outputs) // self.count,
        )
        first = len(self.signature.outputs) + k * each
        return [*range(k * outs, (k + 1) * outs), *range(first, first + each)]

    def _call_each(self, *args: Any) -> tuple[object, ...]:
        """Issue the members one by one: what a merged node means."""
        tensors, (all_attrs, numbers_of, *scalars) = (
            args[: len(self.signature.inputs)],
            args[len(self.signature.inputs) :],
        )
        kernels: list[object] = []
        for own, attrs, places in zip(self.per_member(tensors), all_attrs, numbers_of, strict=True):
            numbers = tuple(scalars[i] for i in places)
            outs, ins = own[: self.ahead], own[self.ahead :]
            if not outs:
                result = self.base.call(*ins, *attrs, *numbers)
                kernels += result if isinstance(result, tuple) else [result]
                continue
            call_into(self.base, tuple(outs), tuple(ins), attrs, numbers)
            for out in outs:
                out.bump()
        return tuple(kernels)
