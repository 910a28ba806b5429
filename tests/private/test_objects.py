"""Objects of CPython as memory: references are where they are looked for."""

import ctypes
import itertools

import pytest

from flowvm.errors import VMError
from flowvm.private import objects


class Slotted:
    __slots__ = ("a", "b")


def word(holder, at):
    return ctypes.c_ssize_t.from_address(id(holder) + at).value


def test_slots_are_where_their_values_are():
    one, value = Slotted(), object()
    one.b = value
    assert word(one, objects.slot_place(Slotted, "b")) == id(value)
    assert word(one, objects.slot_place(Slotted, "a")) == 0
    assert objects.slot_place(Slotted, "a") != objects.slot_place(Slotted, "b")
    assert word(one, objects.class_place()) == id(Slotted)


def test_slices_counters_and_code():
    parts = [object() for _ in range(3)]
    sample = slice(*parts)
    assert [word(sample, at) for at in objects.slice_places()] == [id(p) for p in parts]
    counter = itertools.count(123456789)
    assert word(counter, objects.counter_place()) == 123456789
    code = test_slices_counters_and_code.__code__
    assert word(code, objects.file_name_place()) == id(code.co_filename)
    assert objects.places_are_found() == ""


def test_references_are_there_once():
    one, value = Slotted(), object()
    with pytest.raises(VMError, match="a Slotted refers 0 times to"):
        objects.place_of(one, value, Slotted.__basicsize__)
    one.a = one.b = value
    with pytest.raises(VMError, match="a Slotted refers 2 times to"):
        objects.place_of(one, value, Slotted.__basicsize__)


def test_functions_of_the_api_by_name_and_by_address():
    size = objects.api_function("PyList_Size", "int64(object)")
    assert size([1, 2, 3]) == 3
    address = objects.api_address("PyList_Size")
    assert objects.api_function("PyList_Size", "int64(object)", address)([1]) == 1
    number = objects.api_function("PyLong_FromLongLong", "object(int64)")
    assert number(1 << 40) == 1 << 40
    with pytest.raises(VMError, match="this CPython has no C function PyNo_Such"):
        objects.api_address("PyNo_Such")
