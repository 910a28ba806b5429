"""The functions for calls on tensors inside `vmap`: told by `flowvm.ops.batched`, which is imported
when the first map is made.

A call's entry is found by its operands' metas, and those of tensors with levels are theirs alone
(`flowvm.meta.batched_meta`); so a call on tensors of one set of levels finds an entry of its own
once there is one, and is issued as any other.  All others are a miss, and come here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flowvm.errors import UnbatchableError
from flowvm.guards.regions import Mode

if TYPE_CHECKING:
    from flowvm.meta.device import DeviceLike


class Batches:
    """The functions that know tensors with levels."""

    call: Callable[..., object]  # (op, tensors, attrs, scalars): the call's result
    call_into: Callable[..., int]  # (op, outs, tensors, attrs, scalars): the instruction's number
    drawing: Callable[..., object]  # (device): the device on which random numbers are drawn
    spread: Callable[..., object]  # (x): with the levels whose examples have numbers of their own
    whole: Callable[..., object]  # (x): all examples as one tensor, outside of the graph


# how this thread's maps want random numbers, with their levels, outermost first
maps: Mode[tuple[Any, ...]] = Mode(())


def refuse_values(what: str) -> UnbatchableError:
    """Return the error of Python code that asks for the values of a tensor inside `vmap`."""
    return UnbatchableError(
        f"{what}: a tensor inside vmap has no values of its own; compute with tensors instead of "
        f"Python's numbers and conditions (flow.where, masks)"
    )


def place_to_draw(device: DeviceLike) -> Any:
    """Return the device of random numbers: inside a map with randomness="different" one for each
    example.
    """
    return Batches.drawing(device) if maps.now() else device


def spread_to_draw(x: object) -> Any:
    """Return a tensor that says what is drawn: inside such a map as one of each example."""
    return Batches.spread(x) if maps.now() else x


def all_examples(x: object) -> Any:
    """Return all examples of a tensor as one, for checks of values; outside of maps the tensor."""
    return Batches.whole(x) if maps.now() else x


def check_refill(name: str, x: object) -> None:
    """Raise UnbatchableError where random numbers for each example are to go into one tensor."""
    if maps.now() and Batches.spread(x) is not x:
        raise UnbatchableError(
            f"{name}: numbers of each example are to go into a tensor that is one"
        )


def check_draw() -> None:
    """Raise ArgumentError inside a map that does not say which random numbers it wants."""
    for entry in maps.now():
        entry.check_draw()
