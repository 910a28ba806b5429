"""Layouts and memory formats: PyTorch's words for how elements lie in memory.

All tensors have the layout `strided`; the sparse ones are names to compare with.  A memory format
is taken wherever PyTorch takes one; what is made anew lies in C order whichever is asked for, which
changes no value.
"""

from __future__ import annotations

from typing import Any

from flowvm.errors import ArgumentTypeError


class Layout:
    """How a tensor holds its elements: `flow.strided`, always.

    >>> flow.ones(2).layout
    flow.strided
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"flow.{self.name}"

    def __reduce__(self) -> str:
        return self.name


class MemoryFormat(Layout):
    """The order of a new tensor's dimensions in memory, such as `flow.contiguous_format`.

    >>> flow.channels_last
    flow.channels_last
    """

    __slots__ = ()


strided = Layout("strided")
sparse_coo, sparse_csr = Layout("sparse_coo"), Layout("sparse_csr")
sparse_csc, sparse_bsr, sparse_bsc = (
    Layout("sparse_csc"),
    Layout("sparse_bsr"),
    Layout("sparse_bsc"),
)
contiguous_format = MemoryFormat("contiguous_format")
preserve_format = MemoryFormat("preserve_format")
channels_last = MemoryFormat("channels_last")
channels_last_3d = MemoryFormat("channels_last_3d")

_MEANINGLESS = ("layout", "memory_format", "names", "non_blocking", "pin_memory")


def accept(name: str, options: dict[str, Any]) -> None:
    """Take the keywords of PyTorch that have no meaning here; ArgumentTypeError for any other, and
    for values that PyTorch has not.
    """
    for key, value in options.items():
        if key not in _MEANINGLESS:
            raise ArgumentTypeError(f"{name}() got an unknown argument {key!r}")
        if key == "layout" and value is not None and value is not strided:
            raise ArgumentTypeError(
                f"{name}: layout is flow.strided, the only one there is, got {value!r}"
            )
        if key == "memory_format" and not isinstance(value, (MemoryFormat, type(None))):
            raise ArgumentTypeError(
                f"{name}: memory_format is one such as flow.contiguous_format, got {value!r}"
            )
        if key == "names" and value is not None:
            raise ArgumentTypeError(f"{name}: dimensions have no names here")
