"""The table of functions that take sparse tensors: name -> rule.

`flowvm.ops.sparse.rules` fills it.  It is imported when a sparse tensor is first given to a
function: who does that is entered in `on_first` (`flowvm.loading.providers`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

Rule = Callable[..., Any]
RULES: Final[dict[str, Rule]] = {}  # called in the function's place
OF_THE_FUNCTION: Final[dict[str, Rule]] = {}  # called with the function, and what it was given
# functions that look at the shape, the dtype or the device alone
OF_THE_META: Final = frozenset({
    "dim", "element_size", "get_device", "is_complex", "is_cpu.__get__", "is_cuda.__get__",
    "is_floating_point", "is_inference", "is_meta.__get__", "is_same_size", "is_signed",
    "is_tensor", "itemsize.__get__", "name", "nbytes.__get__", "ndimension", "numel",
    "result_type", "size", "stride", "_is_global.__get__", "_is_local.__get__",
    "<lambda>.__get__", "grad.__set__",
})  # fmt: skip
on_first: Final[list[Callable[[], None]]] = []


_filled = False


def fill() -> None:
    """Have the rules entered, if they are not; who comes meanwhile waits for the import."""
    global _filled
    if not _filled:
        for function in on_first:
            function()
        _filled = True
