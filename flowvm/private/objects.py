"""Objects of CPython as memory: the offsets of their references, and its C API by name.

The only assumption about the layout of objects is that `id` is an object's address: references are
searched in the object's memory.  Used by native calls (`flowvm.eager.native`).
"""

from __future__ import annotations

import ctypes
import itertools
import re
from types import CodeType
from typing import Any, Final

from flowvm.errors import VMError

_C_TYPES: Final[dict[str, Any]] = {
    "void": None,
    "int32": ctypes.c_int32,
    "uint32": ctypes.c_uint32,
    "int64": ctypes.c_int64,
    "float64": ctypes.c_double,
    "object": ctypes.py_object,
}


def place_of(holder: object, value: object, size: int) -> int:
    """Return the offset in bytes of the one reference to `value` in `holder`, which has `size`
    bytes.

    It is looked for, so nothing is assumed of how CPython lays objects out, but that `id` is an
    object's address.  VMError if it is there not once.
    """
    words = [_word(holder, at) for at in range(0, size, 8)]
    places = [8 * k for k, word in enumerate(words) if word == id(value)]
    if len(places) != 1:
        raise VMError(f"a {type(holder).__name__} refers {len(places)} times to {value!r:.40}")
    return places[0]


def class_place() -> int:
    """Return the offset of an object's reference to its class."""

    class Empty:
        __slots__ = ()

    return place_of(Empty(), Empty, object.__basicsize__)


def slot_place(kind: type, name: str) -> int:
    """Return the offset of the slot `name` in an instance of `kind`."""
    holder: object = object.__new__(kind)
    value = object()
    getattr(kind, name).__set__(holder, value)
    place = place_of(holder, value, kind.__basicsize__)
    getattr(kind, name).__delete__(holder)
    return place


def file_name_place() -> int:
    """Return the offset of `co_filename` in a code object."""
    name = f"<a file of {object()!r}>"  # no other reference of the code object is this very string
    code = place_of.__code__.replace(co_filename=name)
    return place_of(code, code.co_filename, CodeType.__basicsize__)


def slice_places() -> tuple[int, int, int]:
    """Return the offsets of `start`, `stop` and `step` in a slice."""
    parts = object(), object(), object()
    sample = slice(*parts)
    start, stop, step = (place_of(sample, part, slice.__basicsize__) for part in parts)
    return start, stop, step


def counter_place() -> int:
    """Return the offset of the next number in an `itertools.count`."""
    first = 0x5EED_0F_C0_07
    counter = itertools.count(first)
    places = list[int]()
    for number in (first, first + 1):
        words = range(0, itertools.count.__basicsize__, 8)
        offsets = [at for at in words if _word(counter, at) == number]
        places += offsets if len(offsets) == 1 else [-1]
        next(counter)
    if places[0] != places[1] or places[0] < 0:
        raise VMError(
            f"flowvm does not find a counter's next number in this CPython: candidates are {places}"
        )
    return places[0]


def _word(holder: object, at: int) -> int:
    return ctypes.c_ssize_t.from_address(id(holder) + at).value


def places_are_found() -> str:
    """Return the reason why an object's references are not found in its memory, or ""."""

    class Sample:
        __slots__ = ("a", "b")

    try:
        places = class_place(), slot_place(Sample, "a"), slot_place(Sample, "b"), file_name_place()
        slice_places()
        counter_place()
    except VMError as error:
        return str(error)
    sample: Any = Sample()
    sample.b = places
    return (
        ""
        if _word(sample, places[2]) == id(places)
        else "a slot is somewhere else in each instance"
    )


def api_function(name: str, signature: str, address: int = 0) -> Any:
    """A function of the C API, or the one at an address, by ctypes; `signature` as Numba writes
    it, "int64(int64)".
    """
    result, *arguments = re.findall(r"\w+", signature)
    function = ctypes.PYFUNCTYPE(_C_TYPES[result], *[_C_TYPES[a] for a in arguments])
    return function(address or (name, ctypes.pythonapi))


def api_address(name: str) -> int:
    """Return the address of a function of the C API; VMError if this CPython lacks it."""
    function = getattr(ctypes.pythonapi, name, None)
    if function is None:
        raise VMError(f"this CPython has no C function {name}")
    return ctypes.cast(function, ctypes.c_void_p).value or 0
