"""Tensors that persist from one step of a program to the next, and their holders.

A cancel, an error that is raised and `flow.vm.restore()` leave these as they were where something
else would have become of them.  Who holds such tensors is known to the rooms above, which enter
their classes here: tensors that gradients go to, modules, optimizers, scalers, graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from flowvm.guards.collection import live_objects
from flowvm.vm.machine.words import OPERAND


@dataclass(frozen=True)
class Holder:
    """A class whose instances hold tensors that persist.

    operands   those of one instance, each with whether only launches of graphs leave it as it is
               when they are cancelled, for without it no later launch could run
    forget     have an instance let go of tensors that were never given a value: of which operands
               that is so, the function says that it is called with
    names      operands of all instances, each with what a user calls it
    text       of an instance that is a tensor: its operand, and its dtype and shape
    """

    type: type
    operands: Callable[[Any], Iterable[tuple[int, bool]]]
    forget: Callable[[Any, Callable[[int], bool]], None] | None = None
    names: Callable[[list[Any]], Iterable[tuple[int, str]]] | None = None
    text: Callable[[Any], tuple[int, str]] | None = None


HOLDERS: list[Holder] = []


def holders() -> Iterator[tuple[Any, Holder]]:
    """Yield every live object that holds persistent tensors, with its class's Holder.

    Looked for when they are asked for: a list of them would cost something for each tensor made.
    """
    known: dict[type, list[Holder]] = {}

    def holds(kind: type) -> bool:
        known[kind] = [holder for holder in HOLDERS if issubclass(kind, holder.type)]
        return bool(known[kind])

    for thing in live_objects(holds):
        for holder in known[type(thing)]:
            yield thing, holder


def storage_of(operand: int) -> int:
    """The storage of an operand word."""
    return operand & OPERAND.STORAGE_MASK


def persistent() -> Iterator[tuple[int, bool]]:
    """Return the persistent storages, each with a flag: it persists only for launches."""
    for thing, holder in holders():
        for operand, for_launches in holder.operands(thing):
            yield storage_of(operand), for_launches
