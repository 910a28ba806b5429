"""Calls that classes and modes take over: `__torch_function__`, by PyTorch's rules.

Nothing of it stands in the way of a call until somebody may take calls over: until a subclass of
Tensor is made that may, a mode is entered, or `begin` is called.  Then the code of
each public Python function is exchanged (`give_way`) for one that asks first, so every reference to
the function sees it.  Native calls stay as they are: they take whole Tensors and Parameters alone,
leave all else to the Python functions behind them, and leave them everything while a mode is open,
which is among what calls depart from.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Sequence
from types import CodeType, FunctionType
from typing import Any, Final

from flowvm.eager.calls import behind_call
from flowvm.eager.modes import departing
from flowvm.eager.native.objects import Call
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentTypeError
from flowvm.guards.forks import held_at_fork
from flowvm.guards.regions import Mode
from flowvm.vm.callers.tracebacks import cut, ours

SUBCLASSES, ALL = 1, 2  # what is not asked in a region
modes: Mode[tuple[Any, ...]] = Mode((), departing())  # those that are entered, innermost last
unasked: Mode[int] = Mode(0)
on_first: list[Callable[[], None]] = []  # who has the public functions give way
_USUAL: Final = {Tensor, int, float, bool, complex, str, type(None), slice, type(Ellipsis)}
_begun = _begins = False
_beginning = held_at_fork(threading.RLock())
_given_way: dict[FunctionType, FunctionType] = {}  # by function: what it did before


def disabled(func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
    """The `__torch_function__` of a class that takes no calls over."""
    return func(*args, **(kwargs or {}))


def begin() -> None:
    """From now on public functions ask whom they are called with: for classes that are no
    subclasses of Tensor, of which nobody hears when they are made.

    >>> flow.overrides.begin()
    """
    global _begun, _begins
    if _begun:
        return
    with _beginning:  # who comes meanwhile waits until all have given way
        if not _begins:
            _begins = True
            for function in on_first:
                function()
            _begun = True


# --- whom to ask ----------------------------------------------------------------------------------


def overriding(values: Iterable[Any]) -> list[object]:
    """Return one value of each class that may take a call over, also from lists and tuples: in
    order, but subclasses in front of their bases.
    """
    overriders: list[object] = []
    for value in values:
        kind = type(value)
        if kind in _USUAL:
            continue
        if kind is list or kind is tuple:
            for inner in value:
                if type(inner) not in _USUAL:
                    _enter(overriders, inner)
        else:
            _enter(overriders, value)
    return overriders


def _enter(overriders: list[object], value: object) -> None:
    kind = type(value)
    handler = getattr(kind, "__torch_function__", None)
    if handler is None or handler is disabled or any(type(other) is kind for other in overriders):
        return
    if unasked.now():
        return
    place = next(
        (k for k, o in enumerate(overriders) if issubclass(kind, type(o))), len(overriders)
    )
    overriders.insert(place, value)


def overridden(public: object, overriders: Sequence[Any], args: object, kwargs: object) -> Any:
    """Return the answer of the innermost mode, or of one of `overriders`, in the place of
    `public(*args)`.

    ArgumentTypeError if all answer NotImplemented.
    """
    types = tuple(map(type, overriders))
    stack = open_modes()
    if stack:
        with modes.within(stack[:-1]):
            result = stack[-1].__torch_function__(public, types, args, kwargs)
        if result is not NotImplemented:
            return result
    for value in overriders:
        result = value.__torch_function__(public, types, args, kwargs)
        if result is not NotImplemented:
            return result
    names = [kind.__name__ for kind in types]
    mode = f", nor in mode {type(stack[-1]).__name__}" if stack else ""
    raise ArgumentTypeError(
        f"{getattr(public, '__name__', public)}: no implementation found on types that implement "
        f"__torch_function__: {names}{mode}; each answered NotImplemented"
    )


def open_modes() -> tuple[Any, ...]:
    """The modes that are asked on this thread."""
    stack = modes.now()
    return () if stack and unasked.now() == ALL else stack


def hint(value: object) -> str:
    """The end of a message about what is no tensor: what to do where it has a
    `__torch_function__`.
    """
    if hasattr(type(value), "__torch_function__"):
        return "; call flowvm.overrides.begin() once for its __torch_function__ to be asked"
    return ""


# --- functions that ask ---------------------------------------------------------------------------


def _answer(original: Any, public: object, args: Any, kwargs: Any) -> Any:
    """A call of a function that has given way."""
    if not modes.inside and _USUAL.issuperset(map(type, args)) and not kwargs:
        return original(*args)  # nearly all
    overriders = overriding((*args, *kwargs.values()) if kwargs else args)
    if overriders or open_modes():
        return overridden(public, overriders, args, kwargs)
    return original(*args, **kwargs)


def _answer_of_object(original: Any, public: object, args: Any, kwargs: Any) -> Any:
    """Call a class whose objects are the public functions, or its override."""
    overriders = overriding((*args[1:], *kwargs.values()))
    if overriders or open_modes():
        return overridden(args[0], overriders, args[1:], kwargs)
    return original(*args, **kwargs)


def give_way(function: object, public: object, objects: bool = False) -> None:
    """Let `function`, which is Python's or a native call, ask before it does anything; it is known
    to who is asked as `public`.  `objects`: it is the `__call__` of a class of functions.
    """
    while isinstance(function, Call):
        function = function.twin
    if not isinstance(function, FunctionType) or function in _given_way:
        return
    original = copied(function)
    answer = _answer_of_object if objects else _answer
    _given_way[function] = original
    if not hasattr(function, "__wrapped__"):
        function.__dict__["__signature__"] = inspect.signature(original)
    stands_for = dict(zip(_MARKS, (answer, original, public, _tidy), strict=True))
    exchange_code(function, _asking(len(function.__code__.co_freevars)), stands_for)


def copied(function: FunctionType) -> FunctionType:
    """Return a copy of `function` as it is now, for code put in front of it by `exchange_code`."""
    original = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    original.__kwdefaults__ = function.__kwdefaults__
    original.__dict__.update(function.__dict__)
    behind_call(function, original)
    return original


def exchange_code(function: FunctionType, code: CodeType, stands_for: dict[int, object]) -> None:
    """Let `function` do what `code` says, which has as many free variables; numbers among its
    constants stand for objects.
    """
    before = function.__code__
    consts = tuple(stands_for.get(c, c) if type(c) is int else c for c in code.co_consts)
    function.__code__ = code.replace(
        co_consts=consts,
        co_name=before.co_name,
        co_filename=before.co_filename,
        co_firstlineno=before.co_firstlineno,
    )


# constants of a code that others are put in place of
_MARKS: Final = (100_001, 100_002, 100_003, 100_004)


def _tidy(error: BaseException) -> None:
    if ours(error):
        cut(error)


@functools.cache
def _asking(count: int) -> Any:
    """The code of a function that asks; code is exchanged for one with as many free variables."""
    own = "".join(f"a{k}, " for k in range(count))
    answer, original, public, tidy = _MARKS
    text = f"""
def make({own}):
    def call(*args, **kwargs):
        try:
            answer = {answer}
            return answer({original}, {public}, args, kwargs)
        except BaseException as error:
            tidy = {tidy}
            tidy(error)
            raise
        ({own})
    return call
"""
    names: dict[str, Any] = {}
    exec(compile(text, "<flowvm asking>", "exec"), names)
    return names["make"](*range(count)).__code__


# --- tensors --------------------------------------------------------------------------------------


def converted(result: object, cls: type[Tensor]) -> Any:
    """A result, and those in a tuple or list, as instances of `cls`."""
    if cls is Tensor:
        return result
    if isinstance(result, Tensor) and not isinstance(result, cls):
        same: Any = result
        return same.as_subclass(cls)
    if isinstance(result, (tuple, list)) and any(isinstance(r, Tensor) for r in result):
        parts = [converted(r, cls) for r in result]
        kind = type(result)
        if kind in (tuple, list):
            return kind(parts)
        return kind._make(parts) if hasattr(kind, "_make") else kind(parts)
    return result


unwrapped: set[object] = set()  # functions whose results stay what they are


def _torch_function(
    cls: type[Tensor], func: Any, types: Any, args: Any = (), kwargs: Any = None
) -> object:
    """Return the result of `func(*args, **kwargs)`, its tensors as `cls`; NotImplemented if a class
    among `types` is no base of `cls`.

    >>> class Named(flow.Tensor):
    ...     pass
    >>> type(flow.ones(2).as_subclass(Named) + 1).__name__
    'Named'
    """
    if not all(issubclass(cls, kind) for kind in types):
        return NotImplemented
    with unasked.within(max(unasked.now(), SUBCLASSES)):
        result = func(*args, **(kwargs or {}))
    return result if func in unwrapped else converted(result, cls)


def _init_subclass(cls: type[Tensor], /, **kwargs: object) -> None:
    super(Tensor, cls).__init_subclass__(**kwargs)
    if getattr(cls, "__torch_function__", None) is not disabled:
        begin()


_torch_function.__name__ = _torch_function.__qualname__ = "__torch_function__"
setattr(Tensor, "__torch_function__", classmethod(_torch_function))  # noqa: B010 - for mypy
setattr(Tensor, "__init_subclass__", classmethod(_init_subclass))  # noqa: B010


def take_no_calls(kind: type[Tensor]) -> None:
    """Instances of exactly this class never take a call over: they are not looked at."""
    _USUAL.add(kind)
