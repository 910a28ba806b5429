"""Calls made example by example: of ops for which no form of `planning` fits.

Each op is named once, with the reason, by `flow.func.explain()`, and a warning says so when it is
first met.
"""

from __future__ import annotations

import warnings

from flowvm.eager.interpreter import Operator
from flowvm.eager.tensor import Tensor
from flowvm.errors import UnbatchableError
from flowvm.meta.batched_meta import Axis, axes_of
from flowvm.meta.meta import Attrs
from flowvm.ops.batched.levels import Level, dropped, entered
from flowvm.ops.shapes.join import stack
from flowvm.vm.callers.interrupt import protected

looped: dict[str, str] = {}  # by name of an op or a function: why its examples are computed apart


def say(name: str, why: str) -> None:
    """Note that `name` is computed example by example, and warn the first time."""
    if name not in looped:
        looped[name] = why
        warnings.warn(
            f"vmap: {name} is computed for one example after the other: {why}; "
            f"flow.func.explain() lists all of them",
            stacklevel=2,
        )


class Same(Level):
    """A level that is there already."""

    __slots__ = ()

    def __init__(self, number: int, size: int) -> None:
        self.number, self.size = number, size

    @protected
    def __del__(self) -> None:
        pass


def each(
    op: Operator, tensors: tuple[Tensor, ...], attrs: Attrs, scalars: tuple[object, ...],
    why: str, axis: Axis | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return the results of a call for each example of a level, the last by default, stacked."""
    if op.signature.unsized:
        raise UnbatchableError(f"{op.name} makes results whose sizes depend on values")
    if why:
        say(op.name, why)
    if axis is None:
        axis = max(a for t in tensors for a in axes_of(t._meta) if a.stride)
    level = Same(axis.level, axis.size)
    results = []
    for k in range(axis.size):
        result = op.call(*(dropped(t, axis.level, k) for t in tensors), *attrs, *scalars)
        results.append(result if isinstance(result, tuple) else (result,))
    if op.signature.writes:
        return ()
    return tuple(entered(stack(list(column)), level, 0) for column in zip(*results, strict=True))
