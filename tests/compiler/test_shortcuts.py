"""Numba's front end on shortcuts: it gives the same code, and is itself again afterwards."""

from __future__ import annotations

import contextlib

import pytest

from flowvm.compiler import jit, native, shortcuts
from flowvm.errors import CompileError
from flowvm.private.numba import NUMBA


def helper(x, y):
    return (x + y, x if x > y else y)


def kernel(values, others, lo, hi, factor):
    """Arrays, slices, tuples, numbers of several types, a literal power, branches and calls."""
    real = values.dtype.type
    part, count, total = values[lo:hi], 0, real(0)
    for i in range(len(part)):
        both, larger = helper(part[i], real(others[lo + i]))
        if larger > 2.5 and not (i & 3):
            count += 1
        part[i] = both * real(factor) + larger**2 - min(both, larger)
        total += part[i] // real(3)
    others[lo] = count + int(abs(total)) % 7
    return count


def code():
    """The machine code of `kernel`, as text, by a front end that knows nothing yet."""
    from numba import types

    args = (types.float32[::1], types.int64[::1], types.int64, types.int64, types.float64)
    lowered = native._Frontend().lower(kernel, args, types.int64, False, False)
    module = jit._linked(jit.c_function(lowered), "kernel")
    jit._optimize(module, False)
    return jit._target_machine(3).emit_assembly(module)


def test_the_code_is_the_same(monkeypatch):
    from numba.core.compiler import Compiler

    quick = code()
    # which functions have passes of their own is no shortcut: see `flowvm.compiler.native`
    monkeypatch.setattr(NUMBA.function_passes, "_optimize_functions", lambda *_: None)
    monkeypatch.setattr(native, "shortcuts", contextlib.nullcontext)
    monkeypatch.setattr(native, "pipeline", lambda: Compiler)
    monkeypatch.setattr(native, "settled_flags", lambda flags: flags)
    assert quick.splitlines() == code().splitlines()


def test_only_what_is_inlined_first_is_simplified_alone(monkeypatch):
    from numba import types

    calls = []

    def simplify(library):
        calls.append(library.name)
        plain(library)

    plain = native.simplify
    monkeypatch.setattr(native, "simplify", simplify)
    native._Frontend().lower(
        kernel, (types.float32[::1], types.int64[::1]) + (types.int64,) * 3, None, False, False
    )
    assert [name for name in calls if "helper" in name] == []
    assert len(calls) == 1
    monkeypatch.setitem(helper.__globals__, "INLINE_ALWAYS", True)
    native._Frontend().lower(
        kernel, (types.float32[::1], types.int64[::1]) + (types.int64,) * 3, None, False, False
    )
    assert len(calls) == 3
    monkeypatch.delitem(helper.__globals__, "INLINE_ALWAYS")
    native._Frontend().lower(
        kernel, (types.float32[::1], types.int64[::1]) + (types.int64,) * 3, None, False, True
    )
    assert len(calls) == 5


def test_numba_is_itself_afterwards():
    places = [(owner, name) for owner, name, _ in shortcuts._replacements()]
    before = [vars(owner).get(name) for owner, name in places]
    with shortcuts.shortcuts():
        assert all(vars(o)[n] is quick for o, n, quick in shortcuts._replacements())
        with shortcuts.shortcuts():
            pass
        assert all(vars(o)[n] is quick for o, n, quick in shortcuts._replacements())
    with pytest.raises(CompileError, match="cannot be compiled"):
        jit.native(lambda x: x + "text", "int64(int64)")
    assert [vars(owner).get(name) for owner, name in places] == before


def test_flags_know_when_they_change():
    from numba.core.compiler import Flags

    plain, ours = Flags(), shortcuts.settled_flags(Flags())
    for change in (
        lambda f: setattr(f, "nrt", True),
        lambda f: setattr(f, "error_model", "numpy"),
        lambda f: f.discard("nrt"),
        lambda f: delattr(f, "error_model"),
    ):
        change(plain)
        change(ours)
        assert ours == plain
        assert hash(ours) == hash(plain)
        assert type(ours)(ours) == plain
        assert ours.copy() == plain


def test_functions_inside_functions_are_compiled():
    def outer(n):
        def inner(k):
            return k * 2

        return inner(n) + 1

    assert shortcuts._has_closures(outer.__code__)
    assert not shortcuts._has_closures(kernel.__code__)
    assert jit.native(outer, "int64(int64)") != 0
