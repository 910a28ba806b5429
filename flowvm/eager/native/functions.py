"""Functions that native code takes over as a whole: backward, what is called in a region, and calls
of modules.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from flowvm.eager.modes import recording
from flowvm.eager.native import constants, install
from flowvm.eager.native.entry_points import around
from flowvm.eager.native.objects import new_call
from flowvm.eager.native.tables import ARRAYS, CODES, EQUALS, Several, Table
from flowvm.eager.native.trace_cache import TraceCache, traces_of
from flowvm.eager.native.words import (
    AS_ARRAY,
    AS_EQUAL,
    BACKWARD,
    BOOLEAN,
    CONSTANT,
    EACH,
    FLOATING,
    LACK,
    MODULE,
    NOTED,
    READ,
    SITE,
    START,
    UNRECORDED,
)
from flowvm.meta.device import cpu
from flowvm.meta.dtype import DType, bool_, get_default_dtype, int64, on_default_dtype
from flowvm.meta.meta import TensorMeta
from flowvm.vm.callers.scopes import NOTES
from flowvm.vm.engine.engine import engine
from flowvm.vm.workers import zones

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowvm.eager.tensor import Tensor


Function = TypeVar("Function", bound=Callable[..., object])


def backward_loop(function: Function, gradients: Callable[..., object]) -> Function:
    """The function that runs nodes natively (`flowvm.eager.native.backward`) as far as all is
    usual; `gradients` is what `steady_gradient` has made.
    """
    return _with_gradients(function, BACKWARD, gradients, {})


def whole_backward(
    function: Function, gradients: Callable[..., object], ones: dict[object, Tensor]
) -> Function:
    """`function(tensor, ...)`, which goes back from a tensor: natively from its beginning
    (`flowvm.eager.native.backward`) where all is usual.  `ones` has what that begins with.
    """
    return _with_gradients(function, START, gradients, ones)


def unrecorded(function: Function) -> Function:
    """The function, called in a region where this thread records nothing."""

    @functools.wraps(function)
    def inside(*args: object, **kwargs: object) -> Any:
        with recording(False):
            return function(*args, **kwargs)

    if not install.is_enabled():
        return inside  # type: ignore[return-value]

    def table() -> Table:
        return install.front_table(inside, function, UNRECORDED, {}, "")

    begin = functools.partial(install.begin_with, table, made_by=around)
    call: Any = new_call(inside, begin)
    return call  # type: ignore[no-any-return]


def module_call(function: Function, hooked: list[object], leave: Callable[..., None]) -> Function:
    """`Module.__call__`, which calls the module's `forward` natively where `hooked` is empty or the
    module has no hooks, and tells `leave` of a FlowError that comes from there.
    """
    if not install.is_enabled():
        return function

    def table() -> Table:
        return install.front_table(function, leave, MODULE, hooked, "")

    call: Any = new_call(function, functools.partial(install.begin_with, table, made_by=around))
    return call  # type: ignore[no-any-return]


def noted_module_call(
    function: Function,
    plain: Callable[..., object],
    leave: Callable[..., None],
    hooked: list[bool],
    known: dict[int, int],
    add: Callable[..., int],
) -> Function:
    """`plain`, which `module_call` made, as `function` calls it: natively, and noted in the NOTES
    of the engine.  `known` has the numbers of modules' paths by their addresses, `add` makes one.
    """
    if not install.is_enabled():
        return function

    def table() -> Table:
        words = engine.flight.scopes.take_notes()
        words[NOTES.KNOWN], words[NOTES.ADD], words[NOTES.PLAIN] = id(known), id(add), id(plain)
        site = install.front_table(function, leave, NOTED, hooked, "")
        site.words[SITE.NUMBERED] = ctypes.addressof(words)
        site.references = (
            site.references[0],
            {**site.references[1], "notes": (words, known, add, plain)},
        )
        return site

    call: Any = new_call(function, functools.partial(install.begin_with, table, made_by=around))
    return call  # type: ignore[no-any-return]


def value_method(function: Function, how: int) -> Function:
    """The method, which reads a tensor's value: natively (`flowvm.eager.native.values`) as `how`
    says, AS_ITEM to AS_EQUAL, where all is usual.
    """
    if not install.is_enabled():
        return function

    tables = {AS_ARRAY: ARRAYS, AS_EQUAL: EQUALS}
    known = tables.get(how, CODES)

    def table() -> Table:
        return install.front_table(function, function, READ, known, "", HOW=how)

    call: Any = new_call(function, functools.partial(install.begin_with, table))
    return call  # type: ignore[no-any-return]


def constant_call(function: Function, elsewhere: Sequence[set[object]]) -> Function:
    """`function(data, *, dtype=None, ...)`, which makes a tensor of data: natively
    (`flowvm.eager.native.constants`) of numbers, where both sets `elsewhere` are empty.
    """
    if not install.is_enabled() or zones.CHECKED:
        return function
    layouts: dict[DType | None, dict[int, tuple[TensorMeta, int]]] = {}
    on_default_dtype.append(layouts.clear)

    @functools.wraps(function)
    def learn(*args: object, **kwargs: object) -> Any:
        result = function(*args, **kwargs)
        if len(args) == 1 and kwargs.keys() <= {"dtype"}:
            _learn_layout(layouts, args[0], kwargs.get("dtype"), getattr(result, "_meta", None))
        return result

    def table() -> Table:
        more: dict[str, Any] = {"ELSEWHERE": Several(map(id, elsewhere)), "DTYPE_NAME": _DTYPE_NAME}
        return install.front_table(learn, learn, CONSTANT, layouts, "", **more)

    call: Any = new_call(learn, functools.partial(install.begin_with, table))
    return call  # type: ignore[no-any-return]


_DTYPE_NAME = sys.intern("dtype")  # as keywords are
_KINDS = {bool: constants.OF_BOOLS, int: constants.OF_INTS, float: constants.OF_FLOATS}
_MOST_LAYOUTS = 256  # of a dtype


def _learn_layout(
    layouts: dict[DType | None, dict[int, tuple[TensorMeta, int]]],
    data: Any,
    dtype: object,
    meta: object,
) -> None:
    """Remember the meta of a tensor that was made of numbers, if others of that layout have it."""
    lengths, first = [], data
    while type(first) in (list, tuple) and first:
        lengths.append(len(first))
        first = first[0]
    if type(meta) is not TensorMeta or not (dtype is None or type(dtype) is DType):
        return
    kind, code = _KINDS.get(type(first)), CODES.get(meta.dtype)
    if kind is None or code is None or not meta.numel:
        return
    # of numbers of one kind alone: others may make it another dtype
    expected = dtype or {bool: bool_, int: int64, float: get_default_dtype()}[type(first)]
    fits = kind == constants.OF_INTS and not code & BOOLEAN
    fits = fits or (kind == constants.OF_BOOLS and bool(code & BOOLEAN))
    fits = fits or (kind == constants.OF_FLOATS and bool(code & FLOATING))
    if meta.dtype is not expected or not fits or meta.device is not cpu:
        return
    if len(lengths) > constants.DEPTH or max(lengths, default=0) >> constants.LENGTH_BITS:
        return
    known = layouts.setdefault(dtype, {})
    if len(known) >= _MOST_LAYOUTS:
        known.clear()
    known[constants.layout_of(kind, tuple(lengths))] = meta, code


def lacking(function: Function, names: dict[str, str]) -> Function:
    """`__getattr__` of Tensor: natively it raises AttributeError where `names`, which the function
    fills, has the name, with the message.
    """
    if not install.is_enabled():
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

    def rest(tensors: list[object], state: object, *numbers: object) -> list[object]:
        return tensors

    if not install.is_enabled():
        return rest

    def table() -> Table:
        inner = install.own_site(op)
        return install.front_table(rest, rest, EACH, names, "", inner, KINDS=counts or 0)

    call: Any = new_call(rest, functools.partial(install.begin_with, table))
    return call  # type: ignore[no-any-return]


def _with_gradients(
    function: Function, kind: int, gradients: Callable[..., object], cache: Mapping[object, object]
) -> Function:
    if not install.is_enabled():
        return function
    traces: TraceCache = traces_of(gradients)

    def table() -> Table:
        return install.front_table(function, function, kind, cache, "", traces.table())

    call: Any = new_call(function, functools.partial(install.begin_with, table))
    return call  # type: ignore[no-any-return]
