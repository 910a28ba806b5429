"""A function of one place of attention's matrix, computed at all places.

A `score_mod` or `mask_mod` is written for single numbers: a score, and where it stands (batch,
head, query, key).  Where all that it makes of them are single numbers too, by arithmetic and by
looking them up in tensors, it may as well be called with *lanes*: tensors whose dimensions are the
places.  Whether that is so is read from a capture of one call, so nothing is guessed from what
comes out.  A dimension in which it is not so (`bias[batch][head]`, whose first step is a matrix) is
gone through one place after the other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from flowvm.eager.modes import recorder_mode
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, ShapeError
from flowvm.loading.lazy import lazy
from flowvm.ops.declare.core import CASTS
from flowvm.ops.declare.registry import operator_of
from flowvm.ops.places.gather import take_slices
from flowvm.ops.places.indexing import _join_positions
from flowvm.ops.shapes.create import tensor
from flowvm.ops.shapes.fill import zeros
from flowvm.ops.shapes.join import stack
from flowvm.ops.shapes.ranges import arange

if TYPE_CHECKING:
    from flowvm.meta.device import DeviceLike
    from flowvm.nn.graph import function as graph_function
else:
    graph_function = lazy("flowvm.nn.graph.function")

NUMBER = ()  # the shape of one
LOOKED_UP = (operator_of(take_slices), operator_of(_join_positions))  # `table[i, j]`
SCORE = 4  # behind the four dimensions


def over_places(
    what: str, function: Callable[..., Tensor], sizes: Sequence[int], score: Tensor | None,
    device: Any,
) -> Tensor:  # fmt: skip
    """Return the results of `function` at all places: a tensor of `sizes`, or one that broadcasts.

    function   of (score, batch, head, query, key), without the score where that is None
    score      of shape `sizes`

    ArgumentTypeError, ShapeError if it does not give one number; CaptureError if it reads a value.
    """
    if not all(sizes):
        return zeros(*sizes, device=device, dtype=None if score is None else score.dtype)
    alone = _alone(what, function, score, device)
    dims = range(len(sizes))
    ways = [looped for n in range(len(sizes) + 1) for looped in itertools.combinations(dims, n)]
    ways.sort(key=lambda looped: math.prod(sizes[d] for d in looped))
    # without any lane it is right for sure
    looped = next(way for way in ways if len(way) == len(sizes) or alone({*dims} - {*way}))
    lanes = [d for d in dims if d not in looped]
    along = [arange(n, device=device) for n in sizes]
    places = []
    for place in itertools.product(*(range(sizes[d]) for d in looped)):
        at = dict(zip(looped, place, strict=True))
        arguments = [
            tensor(at[d], device=device) if d in at
            else along[d].reshape([-1 if d == e else 1 for e in lanes])
            for d in dims
        ]  # fmt: skip
        if score is not None:
            arguments.insert(0, score[tuple(at.get(d, slice(None)) for d in dims)])
        places.append(function(*arguments))
    if not looped:
        return places[0]
    inner = [sizes[d] for d in lanes]
    whole = stack([f.expand(inner) for f in places])
    order = [*looped, *lanes]
    whole = whole.reshape([sizes[d] for d in order])
    return whole.permute([order.index(d) for d in dims])


def _alone(
    what: str, function: Callable[..., Tensor], score: Tensor | None, device: DeviceLike
) -> Callable[[set[int]], bool]:
    """Return a predicate: may the function be called with lanes in these dimensions?"""
    examples = [zeros(NUMBER, dtype=tensor(0).dtype, device=device) for _ in range(4)]
    if score is not None:
        examples.insert(0, zeros(NUMBER, dtype=score.dtype, device=device))

    def once(*numbers: Tensor) -> Tensor:
        out = function(*numbers)
        if not isinstance(out, Tensor):
            raise ArgumentTypeError(f"{what} gives a tensor, got {type(out).__name__}")
        if tuple(out.shape) != NUMBER:
            raise ShapeError(
                f"{what} is called for one place, and gives one number; got shape "
                f"{tuple(out.shape)}"
            )
        return out

    with recorder_mode().within(None):  # what is captured around goes on behind
        trace = graph_function.traced(once, examples, {}, what)
    if trace.draws:
        raise ArgumentError(f"{what} draws random numbers; draw them before, and look them up")
    inputs = [SCORE, 0, 1, 2, 3] if score is not None else [0, 1, 2, 3]
    of = {
        operand.buffer: frozenset([d])
        for operand, d in zip(trace.graph.inputs, inputs, strict=True)
    }
    none: frozenset[int] = frozenset()
    steps: list[tuple[bool, list[tuple[frozenset[int], bool]]]] = []
    for node in trace.graph.nodes:
        operator = node.operator
        known = operator.origin.form is not None or operator in CASTS or operator in LOOKED_UP
        plain = known and not node.into and not operator.signature.writes
        by = [of.get(o.buffer, none) for o in node.inputs]
        # of each operand: on which dimensions it depends, and whether it may have lanes there
        fit = [tuple(o.meta.shape) == NUMBER for o in node.inputs]
        if operator is LOOKED_UP[0]:
            fit[0] = False  # the table
        every = none.union(*by)
        independent = all(tuple(o.meta.shape) == NUMBER for o in node.outputs)
        steps.append((plain, [*zip(by, fit, strict=True), (every, independent)]))
        for operand in (*node.outputs, *node.written()):
            of[operand.buffer] = of.get(operand.buffer, none) | every

    def alone(lanes: set[int]) -> bool:
        lanes = lanes | {SCORE} if lanes else lanes
        return all(
            not by & lanes or (plain and fit) for plain, operands in steps for by, fit in operands
        )

    return alone
