"""Functions that native code takes over as a whole: backward, what is called in a region, and calls
of modules.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, TypeVar

from flowvm.eager.modes import recording
from flowvm.eager.native import install
from flowvm.eager.native.entry_points import around
from flowvm.eager.native.objects import new_call
from flowvm.eager.native.tables import ARRAYS, CODES, Table
from flowvm.eager.native.trace_cache import TraceCache, traces_of
from flowvm.eager.native.words import (
    AS_ARRAY,
    BACKWARD,
    EACH,
    LACK,
    MODULE,
    NOTED,
    READ,
    SITE,
    START,
    UNRECORDED,
)
from flowvm.vm.callers.scopes import NOTES
from flowvm.vm.engine.engine import engine

Function = TypeVar("Function", bound=Callable[..., Any])


def backward_loop(function: Function, gradients: Callable[..., Any]) -> Function:
    """The function that runs nodes natively (`flowvm.eager.native.backward`) as far as all is
    usual; `gradients` is what `steady_gradient` has made.
    """
    return _with_gradients(function, BACKWARD, gradients, {})


def whole_backward(
    function: Function, gradients: Callable[..., Any], ones: dict[Any, Any]
) -> Function:
    """`function(tensor, ...)`, which goes back from a tensor: natively from its beginning
    (`flowvm.eager.native.backward`) where all is usual.  `ones` has what that begins with.
    """
    return _with_gradients(function, START, gradients, ones)


def unrecorded(function: Function) -> Function:
    """The function, called in a region where this thread records nothing."""

    @functools.wraps(function)
    def inside(*args: Any, **kwargs: Any) -> Any:
        with recording(False):
            return function(*args, **kwargs)

    if not install.wanted():
        return inside  # type: ignore[return-value]

    def table() -> Table:
        return install.front_table(inside, function, UNRECORDED, {}, "")

    begin = functools.partial(install.begin_with, table, made_by=around)
    call: Any = new_call(inside, begin)
    return call  # type: ignore[no-any-return]


def module_call(function: Function, hooked: list[Any], leave: Callable[..., None]) -> Function:
    """`Module.__call__`, which calls the module's `forward` natively where `hooked` is empty or the
    module has no hooks, and tells `leave` of a FlowError that comes from there.
    """
    if not install.wanted():
        return function

    def table() -> Table:
        return install.front_table(function, leave, MODULE, hooked, "")

    call: Any = new_call(function, functools.partial(install.begin_with, table, made_by=around))
    return call  # type: ignore[no-any-return]


def noted_module_call(
    function: Function,
    plain: Callable[..., Any],
    leave: Callable[..., None],
    hooked: list[Any],
    known: dict[int, int],
    add: Callable[[Any], int],
) -> Function:
    """`plain`, which `module_call` made, as `function` calls it: natively, and noted in the NOTES
    of the engine.  `known` has the numbers of modules' paths by their addresses, `add` makes one.
    """
    if not install.wanted():
        return function

    def table() -> Table:
        words = engine.flight.scopes.take_notes()
        words[NOTES.KNOWN], words[NOTES.ADD], words[NOTES.PLAIN] = id(known), id(add), id(plain)
        site = install.front_table(function, leave, NOTED, hooked, "")
        site.words[SITE.NUMBERED] = ctypes.addressof(words)
        site.kept = site.kept[0], {**site.kept[1], "notes": (words, known, add, plain)}
        return site

    call: Any = new_call(function, functools.partial(install.begin_with, table, made_by=around))
    return call  # type: ignore[no-any-return]


def value_method(function: Function, how: int) -> Function:
    """The method, which reads a tensor's value: natively (`flowvm.eager.native.values`) as `how`
    says, AS_ITEM to AS_ARRAY, where all is usual.
    """
    if not install.wanted():
        return function

    known: Any = ARRAYS if how == AS_ARRAY else CODES

    def table() -> Table:
        return install.front_table(function, function, READ, known, "", HOW=how)

    call: Any = new_call(function, functools.partial(install.begin_with, table))
    return call  # type: ignore[no-any-return]


def lacking(function: Function, names: dict[str, str]) -> Function:
    """`__getattr__` of Tensor: natively it raises AttributeError where `names`, which the function
    fills, has the name, with the message.
    """
    if not install.wanted():
        return function

    def table() -> Table:
        return install.front_table(function, function, LACK, names, "")

    call: Any = new_call(function, functools.partial(install.begin_with, table))
    return call  # type: ignore[no-any-return]


def calls_for_each(
    op: install.Operator, names: tuple[str, ...], counts: str
) -> Callable[..., list[Any]]:
    """`(tensors, state, *numbers)`, which calls `op` for each of the tensors, and gives those that
    are left: see `flowvm.ops.declare.update.each`.
    """

    def left(tensors: list[Any], state: Any, *numbers: Any) -> list[Any]:
        return tensors

    if not install.wanted():
        return left

    def table() -> Table:
        inner = install.own_site(op)
        return install.front_table(left, left, EACH, names, "", inner, KINDS=counts or 0)

    call: Any = new_call(left, functools.partial(install.begin_with, table))
    return call  # type: ignore[no-any-return]


def _with_gradients(
    function: Function, kind: int, gradients: Callable[..., Any], cache: dict[Any, Any]
) -> Function:
    if not install.wanted():
        return function
    traces: TraceCache = traces_of(gradients)

    def table() -> Table:
        return install.front_table(function, function, kind, cache, "", traces.table())

    call: Any = new_call(function, functools.partial(install.begin_with, table))
    return call  # type: ignore[no-any-return]
