"""Random numbers inside maps: which levels draw for themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowvm.eager.batched import maps
from flowvm.eager.interpreter import Operator
from flowvm.eager.modes import recording
from flowvm.meta.batched_meta import Axis, axes_of, example_of, with_axes
from flowvm.ops.batched.physical import in_front
from flowvm.ops.batched.plans import COMPOSED, LEADING
from flowvm.ops.declare.composite import filled_of
from flowvm.ops.declare.registry import operator_of
from flowvm.ops.random.parts import philox
from flowvm.ops.random.parts.poisson import poisson_counts

if TYPE_CHECKING:
    from flowvm.eager.tensor import Tensor
    from flowvm.meta.meta import TensorMeta


DROPOUT = operator_of(philox.dropout_words)


def own_numbers() -> tuple[Axis, ...]:
    """Return the levels of the maps around whose examples have random numbers of their own."""
    return tuple(
        Axis(m.level.number, m.level.size, 0) for m in maps.now() if m.randomness == "different"
    )


@COMPOSED(philox.dropout_words)
def _dropped(
    op: Operator, tensors: tuple[Tensor, ...], attrs: object, scalars: tuple[object, ...]
) -> object:
    """A product with what dropout makes of ones: of those levels that draw for themselves.

    In backward the numbers are drawn again, and are the same at levels that came later.
    """
    (x,) = tensors
    axes = [a for a in own_numbers() if a.level in {b.level for b in axes_of(x._meta)}]
    meta: TensorMeta = with_axes(example_of(x._meta).dense(), axes).dense()
    with recording(False):
        ones = filled_of(in_front(meta, axes_of(meta)), 1)
        factors = op.call(ones, *scalars)
        factors._meta = meta
    return x * factors


LEADING.say(
    True,
    philox.uniform_into, philox.normal_into, philox.exponential_into, philox.integers_into,
    philox.bernoulli_into, philox.chosen_words, poisson_counts,
)  # fmt: skip
