"""Tensor methods that OneFlow has as functions, too: `flow.expand(x, 2, 3)` is `x.expand(2, 3)`.

Made when named; the docstring is the method's.  `cast`, `local_to_global` and `global_to_global`
are methods under other names.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, MissingNameError
from flowvm.meta.dtype import as_dtype
from flowvm.ops.declare.composite import need_tensor

# public: flow (late, unlisted)

# public: each of flow (late, unlisted)
NAMES: Final = (
    "contiguous", "div_", "erfinv_", "expand", "gt_", "index_add_", "lerp_", "masked_fill_",
    "new_empty", "new_full", "new_ones", "new_zeros", "normal_", "repeat", "to_global", "to_local",
    "view",
)  # fmt: skip


def __getattr__(name: str) -> Callable[..., Any]:
    if name in NAMES:
        return function(name)
    raise MissingNameError(f"flowvm.methods has no {name!r}", name, lambda: NAMES)


# not public
@functools.cache
def function(name: str) -> Callable[..., Any]:
    """Return the function `name(input, ...)`, which calls `input.name(...)`; ArgumentTypeError if
    `input` is no tensor.

    >>> flow.expand(flow.ones(1, 2), 2, 2)
    tensor([[1., 1.],
            [1., 1.]])
    """

    sized_alike = name in ("new_empty", "new_ones", "new_zeros")  # as `input` is, if not said

    @functools.wraps(getattr(Tensor, name), assigned=("__name__", "__qualname__", "__doc__"))
    def called(input: Tensor, *args: object, **kwargs: object) -> Any:
        x = need_tensor(name, "input", input)
        if sized_alike and args in ((), (None,)) and kwargs.get("size") is None:
            args, kwargs["size"] = (), x.shape
        return getattr(x, name)(*args, **kwargs)

    called.__qualname__ = name  # by which pickles find it here
    return called


def cast(input: Tensor, dtype: object) -> Tensor:
    """Return `input.to(dtype)`: the tensor itself if it has the dtype.

    >>> flow.cast(flow.tensor([1.7, -1.7]), flow.int8)
    tensor([ 1, -1], dtype=flow.int8)
    """
    out: Tensor = need_tensor("cast", "input", input).to(as_dtype(dtype))
    return out


def local_to_global(input: Tensor, placement: object, sbp: object, **options: object) -> Tensor:
    """`input.to_global(placement, sbp)` of a local tensor; ArgumentError for a global one.

    >>> flow.local_to_global(flow.ones(2), flow.placement("cpu", [0]), flow.sbp.broadcast).is_global
    True
    """
    return _to_global("local_to_global", "local", input, placement, sbp, options)


def global_to_global(input: Tensor, placement: object, sbp: object, **options: object) -> Tensor:
    """`input.to_global(placement, sbp)` of a global tensor; ArgumentError for a local one.

    >>> x = flow.ones(2, placement=flow.placement("cpu", [0]), sbp=flow.sbp.broadcast)
    >>> flow.global_to_global(x, x.placement, flow.sbp.split(0)).sbp
    (flow.sbp.split(0),)
    """
    return _to_global("global_to_global", "global", input, placement, sbp, options)


def _to_global(
    name: str, kind: str, input: Tensor, placement: object, sbp: object, options: dict[str, Any]
) -> Tensor:
    x = need_tensor(name, "input", input)
    if x.is_global != (kind == "global"):
        other = "global_to_global" if kind == "local" else "local_to_global"
        raise ArgumentError(f"{name}: input is not a {kind} tensor; use {other}, or to_global")
    out: Tensor = x.to_global(placement, sbp, **options)
    return out
