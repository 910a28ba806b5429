"""The table of makers: how to make an operator again that was made at run time.

    @maker("cat", integer(1, MOST))
    def _cat_of(count): ...

A maker is a function whose arguments are plain values; its operators have `recipe`, the name here
and the arguments.  A saved graph names makers by that name and by nothing else, so what a file says
can call no other function, and its arguments are held against the maker's checks first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from flowvm.eager.interpreter import Operator
from flowvm.errors import ArgumentError
from flowvm.files.schema import Check, wrong

F = TypeVar("F", bound=Callable[..., Operator])


class _Maker(NamedTuple):
    make: Callable[..., Operator]
    arguments: tuple[Check, ...]
    together: Callable[..., None] | None


_makers: dict[str, _Maker] = {}


def maker(
    name: str, *arguments: Check, together: Callable[..., None] | None = None
) -> Callable[[F], F]:
    """Let graphs that were saved have operators of the decorated function.

    `arguments` check one each; `together` is called with all of them and raises ArgumentError where
    they do not go with each other.
    """

    def register(function: F) -> F:
        if name in _makers:
            raise ArgumentError(f"two makers are called {name!r}")
        _makers[name] = _Maker(function, arguments, together)
        function.facts = {}  # type: ignore[attr-defined]  # see flowvm.ops.declare.facts
        return function

    return register


def made_by(name: object, arguments: object) -> Operator:
    """Return the operator that the maker of this name makes.

    ArgumentError if there is no such maker, or if it does not take these arguments.
    """
    entry = _makers.get(name) if isinstance(name, str) else None
    if entry is None:
        raise ArgumentError(
            f"the saved graph is damaged: its recipe {name!r} is none of {', '.join(_makers)}"
        )
    if type(arguments) is not tuple or len(arguments) != len(entry.arguments):
        wrong(f"the recipe {name!r}", arguments, f"{len(entry.arguments)} arguments")
    for k, (check, value) in enumerate(zip(entry.arguments, arguments, strict=True)):
        check(value, f"argument {k} of the recipe {name!r}")
    if entry.together is not None:
        entry.together(*arguments)
    return entry.make(*arguments)
