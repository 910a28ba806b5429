"""Looking for where a NaN came from.

Inside `detect_anomaly` every node keeps the line of the program that made it, and backward looks at
each gradient before it goes on: it waits for each, so this is slow, and for finding faults only.
Outside, nothing of this costs anything.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence

import numpy as np

from flowvm.autograd import node_listeners
from flowvm.autograd.engine import anomaly
from flowvm.autograd.hooks import NodeHooks
from flowvm.eager.nodes import Node
from flowvm.eager.tensor import Tensor
from flowvm.eager.values import values_of
from flowvm.errors import AutogradError
from flowvm.guards.regions import Switched
from flowvm.vm.callers.lines import is_internal

_FRAMES = 4


def _trace(node: Node) -> None:
    hooks = node.extra = NodeHooks()
    hooks.trace = _where()


def _where() -> str:
    """The innermost lines of the program outside flowvm, oldest first."""
    frame = sys._getframe(2)
    lines: list[str] = []
    while frame is not None and len(lines) < _FRAMES:
        if not is_internal(frame.f_code.co_filename):
            summary = traceback.FrameSummary(
                frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
            )
            lines += traceback.format_list([summary])
        frame = frame.f_back  # type: ignore[assignment]
    return "".join(reversed(lines)).rstrip()


def _check(node: Node, gradients: Sequence[object], results: Sequence[object] | None) -> None:
    for i, r in enumerate(results or ()):
        if isinstance(r, Tensor) and r.dtype.inexact and np.isnan(values_of(r)).any():
            trace = getattr(getattr(node, "extra", None), "trace", "")
            came = any(isinstance(g, Tensor) and np.isnan(values_of(g)).any() for g in gradients)
            raise AutogradError(
                f"Function {node.name()!r} returned nan values in its {i}th output"
                + (" (a gradient it was given had them already)" if came else "")
                + (
                    f".  The forward call was\n{trace}"
                    if trace
                    else ".  The forward call was outside detect_anomaly: its line is not known"
                )
            )


# public: flow (late, unlisted), autograd
def is_anomaly_enabled() -> bool:
    """Return True if backward looks for NaN.

    >>> flow.autograd.is_anomaly_enabled()
    False
    """
    return anomaly.check is not None


# public: autograd
class set_detect_anomaly(Switched):  # noqa: N801 - PyTorch's name
    """Switch the search on or off: at once, and back at the end of a with block.

    >>> with flow.autograd.set_detect_anomaly(True):
    ...     print(flow.is_anomaly_enabled())
    True
    """

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self.before = _state()
        _set(mode, check_nan)

    def _switch(self) -> None: ...

    def _undo(self) -> None:
        _set(*self.before)


# public: autograd
class detect_anomaly(set_detect_anomaly):  # noqa: N801 - PyTorch's name
    """Inside, a NaN in a gradient raises, naming the operation and the line that called it.

    check_nan=False only keeps the lines, for errors inside gradient functions.

    >>> x = flow.zeros(1, requires_grad=True)
    >>> try:
    ...     with flow.autograd.detect_anomaly():
    ...         (flow.sqrt(x) * 0).sum().backward()  # 0 * inf
    ... except flow.FlowError as error:
    ...     print(type(error).__name__)
    AutogradError
    """

    def __init__(self, check_nan: bool = True) -> None:
        self.before = _state()
        self.check_nan = check_nan

    def _switch(self) -> None:
        self.before = _state()
        _set(True, self.check_nan)


def _state() -> tuple[bool, bool]:
    return node_listeners.is_told(_trace), anomaly.check is not None


def _set(mode: bool, check_nan: bool) -> None:
    if mode:
        node_listeners.tell(_trace, anomaly)
    else:
        node_listeners.forget(anomaly)
    anomaly.check = _check if mode and check_nan else None
