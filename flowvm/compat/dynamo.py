"""What programs name of `torch._dynamo`: of `flow.compiler`, and hints that have no meaning here,
since a capture is of the shapes that it saw, and memory that a graph writes stays where it is.
"""

from __future__ import annotations

import types
from contextlib import nullcontext
from typing import Any

from flowvm.compiler import allow_in_graph as allow_in_graph
from flowvm.compiler import assume_constant_result as assume_constant_result
from flowvm.compiler import disable as disable
from flowvm.compiler import is_compiling as is_compiling
from flowvm.compiler import list_backends as list_backends
from flowvm.compiler import reset as reset

TransformGetItemToIndex = nullcontext  # inside of vmap tensors index as they do elsewhere

config = types.SimpleNamespace()  # what is set is kept, and read by nobody


def mark_static_address(t: Any, guard: bool = True) -> None:
    """Taken."""


def mark_static(t: Any, index: Any = None) -> None:
    """Taken."""


def mark_dynamic(t: Any, index: Any, **limits: Any) -> None:
    """Taken."""


def maybe_mark_dynamic(t: Any, index: Any) -> None:
    """Taken."""


def graph_break(msg: str = "") -> None:
    """Taken: there is no compiler of Python whose graph would end."""


class OptimizedModule:
    """What PyTorch's `torch.compile(module)` gives; no module is one: `flow.compile` gives a
    function that calls it.
    """
