"""What the file of a saved graph has to look like: the forms that `flowvm.nn.graph.loading` holds
it against, from the outside in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowvm.errors import ArgumentError, FlowError
from flowvm.files.schema import Check, anything, integer, record, row, several, text
from flowvm.graph.capture.trees import check_tree
from flowvm.graph.logical.plain import META
from flowvm.meta.meta import TensorMeta
from flowvm.nn.graph.compiled import Compiled

MOST_PLANS = 256
_NAME = text()
_PLACE = integer(0, 1 << 24)
PLAN: Check = record(
    structure=anything,
    settings=several(anything, 1 << 14),
    options=several(row(_NAME, anything)),
    result=anything,
    ends=several(_PLACE, 1 << 14),
    graph=anything,  # flowvm.graph.logical.saving.GRAPH
    draws=several(_NAME, 1 << 10),
    guards=several(row(anything, anything)),
    updates=several(row(row(_PLACE, _PLACE), _NAME, anything)),
    seen=several(row(_NAME, anything)),
    code=anything,
    numbers=several(anything, 1 << 18),
    dtype=_NAME,
)
STATE: Check = record(
    magic=_NAME, format=_PLACE, flowvm=_NAME, python=_NAME, graph=_NAME, plans=text(1 << 28),
    constants=anything, sha256=text(64),
)  # fmt: skip
VARIABLE: Check = record(names=several(_NAME, 1 << 14, least=1), meta=record(meta=META), at=_PLACE)
# what operators raise of operands, attributes and numbers that are none of theirs
REFUSALS = (
    FlowError, ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError,
    RuntimeError, StopIteration, SyntaxError, TypeError, ValueError,
)  # fmt: skip
CONSTANT: Check = record(constant=_NAME)
OTHERS: Check = record(others=several(row(_PLACE, _PLACE)))


def is_place(value: Any) -> bool:
    """Whether a part of a Leaf's key is a place."""
    return type(value) is int and 0 <= value < 1 << 24


def has_number(value: Any, place: tuple[Any, ...]) -> bool:
    """Whether an option is a number, or has one at `place`."""
    if place:
        several = isinstance(value, (tuple, list)) and is_place(place[0])
        return several and place[0] < len(value) and has_number(value[place[0]], ())
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_call(name: str, structure: Any, settings: Sequence[Any], compiled: Compiled) -> None:
    """ArgumentError unless a call that the key lets in has the tensors that the Plan takes, and its
    result those that the Plan gives.
    """
    logical, ends = compiled.plan.graph, compiled.ends
    metas = [operand.meta for operand in logical.inputs]
    own = [v for v in settings if isinstance(v, TensorMeta)]
    if list(settings[: len(metas)]) != metas or len(own) != len(metas):
        raise ArgumentError(
            f"{name}: the saved graph is damaged: its key is of other tensors than its inputs are"
        )
    check_tree(structure, len(metas), "the arguments")
    check_tree(compiled.structure, len(logical.outputs), "the result")
    if any(k >= len(logical.outputs) for k in ends) or len(set(ends)) != len(ends):
        raise ArgumentError(f"{name}: the saved graph is damaged: ends {ends}")
