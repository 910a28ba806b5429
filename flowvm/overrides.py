"""`flow.overrides`: calls that classes and modes override by `__torch_function__`.

A class that defines `__torch_function__(cls, func, types, args, kwargs)` is asked in the place of a
public function, method or property that is called with an instance of it; a `TorchFunctionMode`
that is entered is asked of every call on its thread.  Of a subclass of Tensor flowvm knows when it
is made; of a class that is none, such as one that only looks like a tensor, once `begin`,
`has_torch_function` or the like was called: before that a call with it is an error that says so.
How: `flowvm.eager.overrides`.  Nothing costs anything while nobody takes calls over; from then on
each call that is no native one costs two more calls of Python functions, 0.2 us or so.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

from flowvm import autograd, fft, linalg, ops, special
from flowvm.eager import overrides
from flowvm.eager.overrides import ALL, SUBCLASSES, begin, give_way, modes, unasked, unwrapped
from flowvm.eager.tensor import Tensor
from flowvm.guards.regions import Mode, Region, Switch
from flowvm.loading.listing import listing
from flowvm.meta.dtype import result_type
from flowvm.nn import functional, init
from flowvm.ops.declare.elementwise import Elementwise

__all__ = [
    "BaseTorchFunctionMode",
    "DisableTorchFunction",
    "DisableTorchFunctionSubclass",
    "TorchFunctionMode",
    "begin",
    "enable_reentrant_dispatch",
    "get_default_nowrap_functions",
    "get_ignored_functions",
    "get_overridable_functions",
    "get_testing_overrides",
    "handle_torch_function",
    "has_torch_function",
    "has_torch_function_unary",
    "has_torch_function_variadic",
    "is_tensor_like",
    "is_tensor_method_or_property",
    "resolve_name",
    "wrap_torch_function",
]
__dir__ = listing(globals())

_flow: Final = sys.modules["flowvm"]
# functions without overrides: of the library, not of a tensor
_IGNORED: Final = frozenset({
    "default_generator", "elementwise", "from_dlpack", "get_rng_state", "initial_seed",
    "is_storage", "is_tensor", "manual_seed", "op", "samples", "seed", "set_default_tensor_type",
    "set_rng_state", "typename",
})  # fmt: skip
_OF_TENSOR_IGNORED: Final = frozenset({
    "__array_namespace__", "__class_getitem__", "__copy__", "__del__", "__dir__", "__getattr__",
    "__getstate__", "__hash__", "__init__", "__init_subclass__", "__iter__", "__new__",
    "__reduce__", "__setattr__", "__setstate__", "__str__", "__torch_function__", "as_subclass",
    "bump", "extra", "storage", "version",
})  # fmt: skip
# an operator is the method that PyTorch names
_OPERATORS: Final = {
    "__abs__": "abs", "__add__": "add", "__iadd__": "add_", "__idiv__": "div_",
    "__ifloordiv__": "floor_divide_", "__imod__": "remainder_", "__imul__": "mul_",
    "__isub__": "sub_", "__itruediv__": "div_", "__ge__": "ge", "__gt__": "gt", "__le__": "le",
    "__lt__": "lt", "__matmul__": "matmul", "__mod__": "remainder", "__mul__": "mul",
    "__ne__": "ne", "__neg__": "neg", "__pos__": "positive", "__radd__": "add", "__rmul__": "mul",
    "__sub__": "sub", "__truediv__": "div",
}  # fmt: skip
_PLACES: Final = {
    "flow.nn.functional": functional,
    "flow.nn.init": init,
    "flow.linalg": linalg,
    "flow.fft": fft,
    "flow.special": special,
}


def _surface() -> Iterator[tuple[str, object, object, object]]:
    """Yield the functions that overrides may replace: (name, owner, function called, public
    object).
    """
    member: object
    for name in ops.__all__:
        member = getattr(ops, name)
        if name not in _IGNORED and not isinstance(member, type) and callable(member):
            yield f"flow.{name}", _flow, member, member
    for place, module in _PLACES.items():
        for name in module.__all__:
            member = getattr(module, name)
            if not isinstance(member, type) and callable(member):
                yield f"{place}.{name}", module, member, member
    for member in (autograd.backward, autograd.grad):
        yield f"flow.autograd.{member.__name__}", autograd, member, member
    yield "flow.result_type", _flow, result_type, result_type
    names = vars(Tensor)
    for name in sorted(names, key=lambda n: n.startswith("__")):
        member = names[name]
        hidden = name.startswith("_") and not name.startswith("__")
        if hidden or name in _OF_TENSOR_IGNORED:
            continue
        if isinstance(member, property):
            ways = (("__get__", member.fget), ("__set__", member.fset), ("__delete__", member.fdel))
            for way, function in ways:
                if function is not None:
                    yield f"flow.Tensor.{name}.{way}", Tensor, function, getattr(member, way)
        elif callable(member) and not isinstance(member, type):
            yield f"flow.Tensor.{name}", Tensor, member, names[_OPERATORS.get(name, name)]


def surface_gives_way() -> None:
    """Let all public functions ask for overrides."""
    give_way(Elementwise.__call__, None, objects=True)
    for _, _, function, public in _surface():
        if not isinstance(function, Elementwise):
            give_way(function, public)
    unwrapped.update(get_default_nowrap_functions())


# --- asking ---------------------------------------------------------------------------------------


def has_torch_function(relevant_args: Iterable[object]) -> bool:
    """Return True if a mode, or the class of one of the arguments, may take a call over.

    >>> class Own(flow.Tensor):
    ...     pass
    >>> flow.overrides.has_torch_function((flow.ones(2).as_subclass(Own),))
    True
    >>> flow.overrides.has_torch_function((flow.ones(2), 3))
    False
    """
    begin()
    return bool(overrides.open_modes() or overrides.overriding(relevant_args))


def has_torch_function_unary(arg: object) -> bool:
    """`has_torch_function((arg,))`.

    >>> flow.overrides.has_torch_function_unary(flow.ones(2))
    False
    """
    return has_torch_function((arg,))


def has_torch_function_variadic(*args: object) -> bool:
    """`has_torch_function(args)`.

    >>> flow.overrides.has_torch_function_variadic(flow.ones(2), flow.ones(3))
    False
    """
    return has_torch_function(args)


def handle_torch_function(
    public_api: Callable[..., object],
    relevant_args: Iterable[object],
    *args: object,
    **kwargs: object,
) -> Any:
    """Return the result of the entered mode, or of the classes of `relevant_args`, in the place of
    `public_api(*args, **kwargs)`.  A program's own functions can allow overrides with it, too.

    ArgumentTypeError if all of them answer NotImplemented, or there is none to ask.

    >>> class Own:
    ...     @classmethod
    ...     def __torch_function__(cls, func, types, args=(), kwargs=None):
    ...         return func.__name__
    >>> def twice(x):
    ...     if flow.overrides.has_torch_function_unary(x):
    ...         return flow.overrides.handle_torch_function(twice, (x,), x)
    ...     return x * 2
    >>> twice(Own()), twice(flow.ones(1))
    ('twice', tensor([2.]))
    """
    begin()
    return overrides.overridden(public_api, overrides.overriding(relevant_args), args, dict(kwargs))


def wrap_torch_function(
    dispatcher: Callable[..., Iterable[object]],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function that allows overrides by the classes of `dispatcher(*args, **kwargs)`.

    >>> @flow.overrides.wrap_torch_function(lambda x: (x,))
    ... def twice(x):
    ...     return x * 2
    >>> twice(flow.ones(2))
    tensor([2., 2.])
    """

    def around(function: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(function)
        def call(*args: object, **kwargs: object) -> object:
            relevant = tuple(dispatcher(*args, **kwargs))
            if has_torch_function(relevant):
                return handle_torch_function(call, relevant, *args, **kwargs)
            return function(*args, **kwargs)

        return call

    return around


# --- modes ----------------------------------------------------------------------------------------


class TorchFunctionMode(Region):
    """A mode of calls.  Inside `with Mode():` each call of a public function on this thread is
    `mode.__torch_function__(func, types, args, kwargs)`, which runs outside of the mode.

    >>> class Names(flow.overrides.TorchFunctionMode):
    ...     def __torch_function__(self, func, types, args=(), kwargs=None):
    ...         print(func.__name__)
    ...         return func(*args, **(kwargs or {}))
    >>> with Names():
    ...     _ = flow.ones(2).sum()
    ones
    sum
    """

    def _mode(self) -> Mode[Any]:
        return modes

    def _switch(self) -> Switch:
        begin()
        return modes, (*modes.now(), self), self

    def __torch_function__(
        self, func: object, types: object, args: object = (), kwargs: object = None
    ) -> Any:
        """Raise NotImplementedError: a mode defines this method."""
        raise NotImplementedError(f"{type(self).__name__} defines no __torch_function__")

    @classmethod
    def push(cls, *args: object, **kwargs: object) -> TorchFunctionMode:
        """Return a mode made of the arguments."""
        return cls(*args, **kwargs)


class BaseTorchFunctionMode(TorchFunctionMode):
    """A mode that leaves each call unchanged.

    >>> with flow.overrides.BaseTorchFunctionMode():
    ...     print(flow.ones(2) + 1)
    tensor([2., 2.])
    """

    def __torch_function__(
        self, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Make the call."""
        return func(*args, **(kwargs or {}))


class DisableTorchFunctionSubclass(Region):
    """Ask no class for overrides inside the with statement; modes are asked.

    >>> class Own(flow.Tensor):
    ...     pass
    >>> x = flow.ones(2).as_subclass(Own)
    >>> with flow.overrides.DisableTorchFunctionSubclass():
    ...     type(x + 1) is flow.Tensor
    True
    """

    level = SUBCLASSES

    def _mode(self) -> Mode[int]:
        return unasked

    def _switch(self) -> Switch:
        return unasked, max(unasked.now(), self.level), self


class DisableTorchFunction(DisableTorchFunctionSubclass):
    """Ask neither classes nor modes for overrides inside the with statement.

    >>> with flow.overrides.DisableTorchFunction():
    ...     flow.ones(2) + 1
    tensor([2., 2.])
    """

    level = ALL


def enable_reentrant_dispatch() -> Region:
    """Return a with statement's region in which overrides are asked for again.

    >>> with flow.overrides.enable_reentrant_dispatch():
    ...     flow.ones(2) + 1
    tensor([2., 2.])
    """
    return unasked.to(0)


def _get_current_function_mode() -> object:
    stack = modes.now()
    return stack[-1] if stack else None


def _get_current_function_mode_stack() -> list[object]:
    return list(modes.now())


# --- what there is --------------------------------------------------------------------------------


@functools.cache
def _names() -> dict[Any, str]:
    names: dict[object, str] = {}
    for name, _, _, public in _surface():
        names.setdefault(public, name)
    return names


def resolve_name(f: object) -> str | None:
    """Return the name of an overridable function, as a program writes it; None for others.

    >>> flow.overrides.resolve_name(flow.Tensor.shape.__get__)
    'flow.Tensor.shape.__get__'
    """
    return _names().get(f)


def get_overridable_functions() -> dict[Any, list[Any]]:
    """Return the overridable functions, by the module or class that has them.

    >>> flow.add in flow.overrides.get_overridable_functions()[flow]
    True
    """
    overridable: dict[object, list[object]] = {}
    for _, owner, _, public in _surface():
        overridable.setdefault(owner, []).append(public)
    return {owner: list(dict.fromkeys(functions)) for owner, functions in overridable.items()}


def get_testing_overrides() -> dict[Any, Any]:
    """Return, for each overridable function, one of the same parameters that returns -1.

    >>> flow.overrides.get_testing_overrides()[flow.exp](flow.ones(2))
    -1
    """
    stand_ins = {}
    for public in _names():

        def dummy(*args: object, **kwargs: object) -> int:
            return -1

        with suppress(TypeError, ValueError):  # a property's method has none
            dummy.__signature__ = inspect.signature(public)  # type: ignore[attr-defined]
        stand_ins[public] = dummy
    return stand_ins


def get_ignored_functions() -> set[Any]:
    """Return public functions that cannot be overridden.

    >>> flow.is_tensor in flow.overrides.get_ignored_functions()
    True
    """
    functions = (getattr(ops, name, None) for name in _IGNORED)
    methods = (getattr(Tensor, name, None) for name in _OF_TENSOR_IGNORED)
    return {f for f in itertools.chain(functions, methods) if callable(f)}


def get_default_nowrap_functions() -> set[Any]:
    """Return the functions whose results `Tensor.__torch_function__` leaves unchanged.

    >>> flow.Tensor.grad.__get__ in flow.overrides.get_default_nowrap_functions()
    True
    """
    names = dict(vars(Tensor))
    return {names[name].__get__ for name in ("_base", "grad") if name in names}


def is_tensor_like(inp: object) -> bool:
    """Return True if the object is a tensor, or its class may take calls over.

    >>> flow.overrides.is_tensor_like(flow.ones(2)), flow.overrides.is_tensor_like([1.0])
    (True, False)
    """
    return isinstance(inp, Tensor) or hasattr(inp, "__torch_function__")


def is_tensor_method_or_property(func: object) -> bool:
    """Return True if the function is a method of Tensor, or reads or writes a property of it.

    >>> flow.overrides.is_tensor_method_or_property(flow.Tensor.add)
    True
    >>> flow.overrides.is_tensor_method_or_property(flow.nn.functional.dropout)
    False
    """
    of_tensor = itertools.chain.from_iterable(
        (public, function) for _, owner, function, public in _surface() if owner is Tensor
    )
    return any(member is func or member == func for member in of_tensor)
