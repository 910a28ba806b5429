"""Native code from plain Python functions, and a cache of it; and what `torch.compiler` asks.

Here: all that flowvm knows of Numba and LLVM on the CPU.
Not here: what is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from flowvm.loading.listing import listing, own_names

__dir__ = listing(globals())

_T = TypeVar("_T")

captured: list[Callable[[], bool]] = []  # return True during a capture


def is_compiling() -> bool:
    """Return True if the running code is being captured (`flow.compile`, `nn.Graph`)."""
    return any(check() for check in captured)


def is_dynamo_compiling() -> bool:
    """See is_compiling."""
    return is_compiling()


def is_exporting() -> bool:
    """Return False: flowvm exports no programs."""
    return False


def disable(fn: object = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """Return the function itself, or a decorator that returns it.  Captures run the functions that
    they call, so nothing must be kept from a compiler of Python.
    """
    return fn if fn is not None else lambda function: function


def allow_in_graph(fn: _T) -> _T:
    """Return the function itself: a capture accepts any call."""
    return fn


def assume_constant_result(fn: _T) -> _T:
    """Return the function itself: a capture watches all values that it reads and that are no
    tensors.
    """
    return fn


def cudagraph_mark_step_begin() -> None:
    """Accept and ignore: every replay is a step."""


def list_backends(exclude_tags: object = ()) -> list[str]:
    """Return the names of the backends: the capture alone."""
    return ["flowvm"]


def reset() -> None:
    """Accept and ignore: graphs belong to their compiled functions, and end with them."""


__all__ = own_names(globals())
