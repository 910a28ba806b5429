"""Native code from plain Python functions, and a cache of it; and what `torch.compiler` asks.

Here: all that flowvm knows of Numba and LLVM on the CPU.
Not here: what is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowvm.loading.listing import listing, own_names

__dir__ = listing(globals())

captured: list[Callable[[], bool]] = []  # who knows whether this thread's calls are captured


def is_compiling() -> bool:
    """Whether what runs now is being captured (`flow.compile`, `nn.Graph`)."""
    return any(asked() for asked in captured)


def is_dynamo_compiling() -> bool:
    """See is_compiling."""
    return is_compiling()


def is_exporting() -> bool:
    """Whether a program is being exported: never."""
    return False


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """The function itself, or a decorator that gives it: a capture runs what it calls, and there is
    no compiler of Python to keep away from it.
    """
    return fn if fn is not None else lambda function: function


def allow_in_graph(fn: Any) -> Any:
    """The function itself: a capture takes whatever it calls."""
    return fn


def assume_constant_result(fn: Any) -> Any:
    """The function itself: what is no tensor is watched by captures that read it."""
    return fn


def cudagraph_mark_step_begin() -> None:
    """Taken: every replay is a step."""


def list_backends(exclude_tags: Any = ()) -> list[str]:
    """What compiles: the capture alone."""
    return ["flowvm"]


def reset() -> None:
    """Taken: graphs belong to the functions that were compiled, and go with them."""


__all__ = own_names(globals())
