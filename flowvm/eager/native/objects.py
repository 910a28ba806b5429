"""The Python object of a native call: a callable that is a function and a method at once.

Its class is made by `PyType_FromSpec`, for a class statement cannot say what it has to: that its
instances are called by the function whose address they hold (the vectorcall protocol), and that a
method lookup may leave the binding away (a method descriptor).  Everything else is in its base,
`Call`, which is plain Python: until the address is set, a call is `Call.__call__`.

For all that is asked of it besides, a native call is its twin: name, text, signature, module.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

from flowvm.eager.tensor import Tensor
from flowvm.meta.unique import Unique
from flowvm.private.objects import api_address, api_function

# of Py_TPFLAGS: METHOD_DESCRIPTOR, HAVE_VECTORCALL, HAVE_GC, DEFAULT
_FLAGS = 1 << 17 | 1 << 11 | 1 << 14 | 1 << 18
# Py_tp_clear, Py_tp_descr_get, Py_tp_traverse, Py_tp_members
_CLEAR, _GET, _TRAVERSE, _MEMBERS = 51, 54, 71, 72
_SSIZE, _READONLY = 19, 1  # T_PYSSIZET, READONLY


class Call(Unique):
    """The base of native calls.

    twin   the generated Python function
    words  the SITE, once there is one, with `references`: what its words refer to
    begin  called with the object itself by its first calls, until it makes the object native
    """

    __slots__ = ("__weakref__", "begin", "references", "twin", "words")

    twin: Callable[..., object]
    words: object
    references: object
    begin: Callable[[object], None] | None

    def __call__(self, *args: object, **kwargs: object) -> Any:
        begin = self.begin
        if begin is not None:
            begin(self)
        return self.twin(*args, **kwargs)

    def __get__(self, instance: object, owner: object = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        if name in Call.__slots__:  # it is not whole
            raise AttributeError(name)
        return getattr(self.twin, name)

    def __setattr__(self, name: str, value: object) -> None:
        if name in Call.__slots__:
            object.__setattr__(self, name, value)
        else:
            setattr(self.twin, name, value)

    def __repr__(self) -> str:
        parameters = [p.replace(annotation=p.empty) for p in self.__signature__.parameters.values()]
        return f"<function {self.twin.__qualname__}{inspect.Signature(parameters)}>"

    def __reduce__(self) -> Any:  # as functions are pickled, and methods
        name = self.twin.__qualname__
        return (getattr, (Tensor, name)) if getattr(Tensor, name, None) is self else name

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.twin)


class _Slot(ctypes.Structure):
    _fields_ = (("slot", ctypes.c_int), ("value", ctypes.c_void_p))


class _Member(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int),
        ("offset", ctypes.c_ssize_t),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class _Spec(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("basicsize", ctypes.c_int),
        ("itemsize", ctypes.c_int),
        ("flags", ctypes.c_uint),
        ("slots", ctypes.POINTER(_Slot)),
    )


_specifications: list[object] = []  # what a class made of a specification may look at
CALLED_AT = Call.__basicsize__  # bytes into an object: the address of what CPython calls
SITE_AT = CALLED_AT + 8  # the address of its SITE


@functools.cache
def native_class() -> type[Call]:
    """The class of native calls."""
    place = _Member(b"__vectorcalloffset__", _SSIZE, CALLED_AT, _READONLY, None)
    members = (_Member * 2)(place)
    # Collected as its base is, but what it looks at when it is called is never taken from it while
    # somebody might call it: others break the cycle.  So what clears it does nothing.
    # Bound as functions are, by what binds them: it looks at nothing of what it binds.  Python's
    # fastest way to call a method, which does without, is not taken of classes with `__getattr__`.
    slot_of = api_function("PyType_GetSlot", "int64(object, int32)")
    slots = (_Slot * 5)(
        _Slot(_MEMBERS, ctypes.cast(members, ctypes.c_void_p).value),
        _Slot(_TRAVERSE, slot_of(Call, _TRAVERSE)),
        _Slot(_GET, slot_of(types.FunctionType, _GET)),
        _Slot(_CLEAR, api_address("PyObject_GC_IsTracked")),
    )
    name = f"{__name__}.NativeCall".encode()
    spec = _Spec(name, CALLED_AT + 16, 0, _FLAGS, slots)
    make = api_function("PyType_FromSpecWithBases", "object(int64, object)")
    kind: type[Call] = make(ctypes.addressof(spec), (Call,))
    for part in ("__doc__", "__module__"):  # the class has its own, which would be found first
        setattr(kind, part, property(_of_twin(part), _to_twin(part)))
    _specifications.append((spec, slots, members, name))
    return kind


def _of_twin(name: str) -> Callable[[Any], object]:
    # a twin whose text was generated has no module
    lacking = "flowvm.ops" if name == "__module__" else None
    return lambda self: getattr(self.twin, name) or lacking


def _to_twin(name: str) -> Callable[[Any, object], None]:
    return lambda self, value: setattr(self.twin, name, value)


def new_call(twin: Callable[..., object], begin: Callable[[object], None] | None) -> Call:
    """A native call, which is its twin until `activate`."""
    call: Call = native_class()()
    object.__setattr__(call, "twin", twin)  # not by the class's own: an import makes many
    object.__setattr__(call, "begin", begin)
    return call


def activate(call: Call, site: Any, address: int, references: object) -> None:
    """From now on `call` is the function at `address`, with `site`, an array of words."""
    call.words, call.references = site, references
    ctypes.c_ssize_t.from_address(id(call) + SITE_AT).value = ctypes.addressof(site)
    ctypes.c_ssize_t.from_address(id(call) + CALLED_AT).value = address
