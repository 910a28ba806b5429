"""NumPy's names of arguments, which PyTorch takes, too: `x.sum(axis=1, keepdims=True)`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final, TypeVar

from flowvm.errors import ArgumentTypeError

Function = TypeVar("Function", bound=Callable[..., Any])
NUMPYS: Final = {"axis": "dim", "keepdims": "keepdim"}


def by_numpys_names(function: Function) -> Function:
    """The function, which is called with NumPy's names for its `dim` and `keepdim`, too.

    The function itself if it has neither.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    own = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if code else ()
    others = {theirs: ours for theirs, ours in NUMPYS.items() if ours in own and theirs not in own}
    if not others:
        return function

    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs and not others.keys().isdisjoint(kwargs):
            for theirs in others.keys() & kwargs.keys():
                if others[theirs] in kwargs:
                    raise ArgumentTypeError(
                        f"{function.__name__}: {theirs} and {others[theirs]} are one argument; "
                        f"give one of them"
                    )
                kwargs[others[theirs]] = kwargs.pop(theirs)
        return function(*args, **kwargs)

    functools.update_wrapper(call, function)
    return call  # type: ignore[return-value]
