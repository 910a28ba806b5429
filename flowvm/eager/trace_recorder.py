"""Trace recorder: the steps that a call of a Python function comes to, recorded while it is made.

This thread's recorder is told of views, aliases, operators' calls and Nodes, and of anything that
no step stands for.  A user of the steps must check that they explain the result.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from flowvm.eager.call_entry import CallEntry
from flowvm.eager.tensor import Tensor
from flowvm.meta.meta import Attrs


class Call(NamedTuple):
    """A call of an operator, as `flowvm.eager.modes.Recorder` takes note of it.

    into    its output is a tensor that was there: a change in place, of which nothing is recorded
    """

    op: Any
    entry: CallEntry
    outs: tuple[Tensor, ...]
    inputs: tuple[Tensor, ...]
    attrs: Attrs
    scalars: tuple[object, ...]
    into: bool = False


class View(NamedTuple):
    """A tensor on another's memory; without an operator it is outside of the graph."""

    x: Tensor
    out: Tensor
    offset: int  # in bytes
    operator: object = None
    attrs: Attrs = ()


class Record(NamedTuple):
    """A finished tensor that was to have a Node."""

    op: object
    inputs: tuple[Tensor, ...]
    out: Tensor
    attrs: Attrs
    saved: tuple[Tensor, ...]


class Pieces(NamedTuple):
    """Views of one tensor, made outside of the graph, that become the outputs of one Node."""

    op: object
    x: Tensor
    outs: tuple[Tensor, ...]
    attrs: Attrs


class TraceRecorder:
    """The steps of one call, in order."""

    def __init__(self) -> None:
        self.steps: list[Any] = []
        self.tensors: list[Tensor] = []
        self.apart = False  # it was asked whether tensors share memory, and they did not
        self.refused = False  # something was done that no step stands for

    def record(self, *facts: Any, into: bool = False) -> None:
        """An operator is called."""
        step = Call(*facts)._replace(into=into)
        if not into:
            self.tensors += step.outs
        self.steps.append(step)

    def view(self, x: Tensor, out: Tensor, offset: int) -> None:
        """A tensor is made on another's memory."""
        self.tensors.append(out)
        self.steps.append(View(x, out, offset))

    def named(self, out: Tensor, operator: object, attrs: tuple[object, ...]) -> None:
        """Note that the last view was made by `operator`."""
        last = self.steps[-1] if self.steps else None
        if last.__class__ is View and last.out is out:
            self.steps[-1] = last._replace(operator=operator, attrs=attrs)
        else:
            self.refused = True

    def recorded(self, *facts: Any) -> None:
        """A tensor gets its Node."""
        self.steps.append(Record(*facts))

    def pieces(self, *facts: Any) -> None:
        """Views become one Node's."""
        self.steps.append(Pieces(*facts))

    def refuse(self) -> None:
        """Something is done that no step stands for."""
        self.refused = True
