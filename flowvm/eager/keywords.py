"""Other names and orders of arguments that a function takes: NumPy's (`x.sum(axis=1)`), those of
PyTorch's other overloads (`x.split(split_size=2)`), and orders that PyTorch had once.

A function says one name for each argument, and its decorators say the others: a row is a name of
theirs and the parameter that it stands for.  Calls without these names pay for one test.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import numpy as np

from flowvm.errors import ArgumentTypeError

Function = TypeVar("Function", bound=Callable[..., object])
REST: Final = "*"  # the parameter for what is left of the positional arguments
# of every function that is steady: PyTorch takes NumPy's names, and its matrices' are "input"
COMMON: Final = {"axis": "dim", "keepdims": "keepdim", "input": "A"}
COMMON_PARAMETERS: Final = frozenset(COMMON.values())
SCALES: Final = frozenset({"alpha", "beta", "value"})  # numbers that once stood among tensors


def by_common_names(function: Function) -> Function:
    """The function, which is called with the names of COMMON for its parameters, too.

    The function itself if it has none of these parameters.
    """
    innermost = inspect.unwrap(function) if hasattr(function, "__wrapped__") else function
    code = getattr(innermost, "__code__", None)
    own = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if code else ()
    if COMMON_PARAMETERS.isdisjoint(own):
        return function
    others = {theirs: ours for theirs, ours in COMMON.items() if ours in own and theirs not in own}
    return _called_by(function, others) if others else function


def spelled(**others: str) -> Callable[[Function], Function]:
    """A decorator: keyword `theirs` stands for the parameter `others[theirs]`, "*" for `*args`.

    ArgumentTypeError where a call gives both names of one parameter.
    """
    return lambda function: _called_by(function, others)


def _called_by(function: Function, others: Mapping[str, str]) -> Function:
    def call(*args: object, **kwargs: object) -> object:
        if kwargs and not others.keys().isdisjoint(kwargs):
            args = _renamed(function.__name__, others, args, kwargs)
        return function(*args, **kwargs)

    functools.update_wrapper(call, function)
    return call  # type: ignore[return-value]


def _renamed(
    name: str, others: Mapping[str, str], args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[object, ...]:
    """The positional arguments; keywords are renamed in place."""
    for theirs in [name for name in kwargs if name in others]:
        ours = others[theirs]
        if ours in kwargs:
            raise ArgumentTypeError(
                f"{name}: {theirs} and {ours} are one argument; give one of them"
            )
        value = kwargs.pop(theirs)
        if ours == REST:
            args = (*(args or (kwargs.pop("input"),)), value)
        else:
            kwargs[ours] = value
    return args


def formerly(*orders: str) -> Callable[[Function], Function]:
    """A decorator: the function is called in PyTorch's earlier orders of arguments, too.

    An order is the parameters' names by position, such as "input alpha other".  It is meant by as
    many positional arguments, if numbers stand where it names one of SCALES.
    """
    rows = [order.split() for order in orders]

    def decorated(function: Function) -> Function:
        def call(*args: object, **kwargs: object) -> object:
            for names in rows:
                if len(args) == len(names) and _fits(names, args):
                    kwargs.update(zip(names, args, strict=True))
                    return function(**kwargs)
            return function(*args, **kwargs)

        functools.update_wrapper(call, function)
        return call  # type: ignore[return-value]

    return decorated


def scaled_formerly(others: str) -> Callable[[Function], Function]:
    """`formerly` of beta * input + alpha * product, where `others` are the product's arguments:
    beta and alpha stood before what they scale, of a method behind the tensor.
    """
    return formerly(
        f"beta input alpha {others}", f"beta input {others}",
        f"input beta alpha {others}", f"input beta {others}",
    )  # fmt: skip


def _fits(names: list[str], args: tuple[object, ...]) -> bool:
    numbers = (bool, int, float, complex, np.number)
    return all(isinstance(a, numbers) for n, a in zip(names, args, strict=True) if n in SCALES)
