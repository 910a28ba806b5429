"""The value stack of traced frames: operands, depths, functions."""

from __future__ import annotations

import dis
import sys

import pytest

from flowvm.errors import VMError
from flowvm.private import stacks
from flowvm.private.cpython import CPYTHON
from flowvm.private.stacks import NULL, Stack, ends, places, traced_by


def traced(function, *args):
    """Return (instruction's name, two operands on top) of each, and the function's result."""
    calls, own, before = [], sys._getframe(), sys.gettrace()
    code = function.__code__
    names = {i.offset: i.opname for i in dis.get_instructions(code)}

    def inside(frame, event, arg):
        if event == "opcode":
            stack = Stack(frame, places(), ends(code, places())[frame.f_lasti])
            assert stack.function is function
            calls.append((names[frame.f_lasti], stack))
            if names[frame.f_lasti].startswith(("LOAD_ATTR", "STORE_ATTR", "COMPARE", "GET_ITER")):
                calls[-1] = names[frame.f_lasti], stack[1]
        return inside

    def entered(frame, event, arg):
        return traced_by(frame, inside) if frame.f_code is code else None

    places()
    own.f_trace_opcodes = True
    sys.settrace(entered)
    try:
        result = function(*args)
    finally:
        sys.settrace(before)
        own.f_trace_opcodes = False
    return dict(calls), result


class Thing:
    """Something with an attribute."""

    k = 3


def test_operands_are_seen_in_expressions_loops_and_handlers():
    thing, row = Thing(), [1, 2]

    def function(a, b):
        total = 0
        for v in b:
            total += [0, (v, a.k)][1][1]
        try:
            raise KeyError
        except KeyError:
            a.k = total
        return total > 5

    for _ in range(20):  # also when CPython has made it quick
        values, result = traced(function, thing, row)
    assert result
    assert values["LOAD_ATTR"] is thing
    assert values["STORE_ATTR"] is thing
    assert values["GET_ITER"] is row
    assert values["COMPARE_OP"] == 5


def test_operands_are_seen_in_generators():
    thing = Thing()

    def function(a):
        first = yield 1
        yield first + a.k

    code = function.__code__
    values, own, before = [], sys._getframe(), sys.gettrace()
    at = next(i.offset for i in dis.get_instructions(code) if i.opname == "LOAD_ATTR")

    def inside(frame, event, arg):
        if event == "opcode" and frame.f_lasti == at:
            stack = Stack(frame, places(), ends(code, places())[at])
            values.append((stack[1], stack[2], stack.variable(0)))
        return inside

    places()
    own.f_trace_opcodes = True
    sys.settrace(lambda f, event, arg: traced_by(f, inside) if f.f_code is code else None)
    try:
        numbers = function(thing)
        next(numbers)
        assert numbers.send(4) == 7
    finally:
        sys.settrace(before)
        own.f_trace_opcodes = False
    assert values == [(thing, 4, thing)]


def test_what_is_not_there_is_null():
    def function(a):
        if a:
            b = a
        return b if a else 1

    code, values = function.__code__, []
    own, before = sys._getframe(), sys.gettrace()

    def inside(frame, event, arg):
        if event == "opcode" and not values:
            values.append(Stack(frame, places()).variable(1))
        return inside

    places()
    own.f_trace_opcodes = True
    sys.settrace(lambda f, event, arg: traced_by(f, inside) if f.f_code is code else None)
    try:
        assert function(0) == 1
    finally:
        sys.settrace(before)
        own.f_trace_opcodes = False
    assert values == [NULL]


def test_another_layout_of_frames_is_noticed(monkeypatch):
    assert stacks.why_no_stack() == ""
    places.cache_clear()
    monkeypatch.setattr(stacks, "_places_in", lambda *args: stacks.Places(24, 0, 80))
    try:
        with pytest.raises(VMError, match="in another place than a test found"):
            places()
        assert "in another place than a test found" in stacks.why_no_stack()
    finally:
        places.cache_clear()
    assert "stack" in CPYTHON.uses
