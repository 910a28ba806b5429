"""`flow.overrides`: ops have no `__torch_function__`; what asks for one hears so."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentTypeError, ModeError
from flowvm.loading.listing import listing

__all__ = [
    "TorchFunctionMode",
    "get_overridable_functions",
    "handle_torch_function",
    "has_torch_function",
    "has_torch_function_unary",
    "has_torch_function_variadic",
    "is_tensor_like",
    "is_tensor_method_or_property",
]
__dir__ = listing(globals())


def has_torch_function(relevant_args: Iterable[Any]) -> bool:
    """Whether one of the arguments changes what ops do: never."""
    return False


def has_torch_function_unary(arg: Any) -> bool:
    """Whether the argument changes what ops do: never."""
    return False


def has_torch_function_variadic(*args: Any) -> bool:
    """Whether one of the arguments changes what ops do: never."""
    return False


def handle_torch_function(*args: Any, **kwargs: Any) -> NoReturn:
    """ArgumentTypeError: no argument changes what ops do."""
    raise ArgumentTypeError(
        "flowvm's ops cannot be overridden by their arguments: has_torch_function() is False"
    )


def is_tensor_like(inp: Any) -> bool:
    """Whether it is a tensor."""
    return isinstance(inp, Tensor)


def is_tensor_method_or_property(func: Any) -> bool:
    """Whether it is found on tensors."""
    return any(found is func for found in vars(Tensor).values())


class TorchFunctionMode:
    """A base of PyTorch's, so that programs may define what they would do at each call; no such
    mode can be entered here.

    ModeError from `with`.
    """

    def __enter__(self) -> NoReturn:
        raise ModeError(
            f"{type(self).__name__}: calls of ops cannot be taken over; flow.fx.symbolic_trace and "
            f"make_fx record them"
        )

    def __exit__(self, *error: object) -> None:
        """Never reached."""


def get_overridable_functions() -> dict[Any, list[Any]]:
    """Functions that arguments can override: none."""
    return {}
