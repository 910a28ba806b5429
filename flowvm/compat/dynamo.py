"""The names of `torch._dynamo` that programs use: names of `flow.compiler`, and hints without a
meaning.  A capture is of the shapes that it saw, and memory that a graph writes stays in place.
"""

from __future__ import annotations

import types
from contextlib import nullcontext

from flowvm.compiler import allow_in_graph as allow_in_graph
from flowvm.compiler import assume_constant_result as assume_constant_result
from flowvm.compiler import disable as disable
from flowvm.compiler import is_compiling as is_compiling
from flowvm.compiler import list_backends as list_backends
from flowvm.compiler import reset as reset

TransformGetItemToIndex = nullcontext  # inside of vmap tensors index as they do elsewhere

config = types.SimpleNamespace()  # settings are stored and never read


def mark_static_address(t: object, guard: bool = True) -> None:
    """Accept and ignore."""


def mark_static(t: object, index: object = None) -> None:
    """Accept and ignore."""


def mark_dynamic(t: object, index: object, **limits: object) -> None:
    """Accept and ignore."""


def maybe_mark_dynamic(t: object, index: object) -> None:
    """Accept and ignore."""


def graph_break(msg: str = "") -> None:
    """Accept and ignore: there is no compiler of Python whose graph would end."""


class OptimizedModule:
    """The class of PyTorch's `torch.compile(module)`.  It has no instances: `flow.compile` returns
    a function that calls the module.
    """
