"""A tensor that gets another place and meta while a call looks at it: all of it is old, or new.

Another thread runs where a native call makes an object, for CPython 3.11 may collect there, and
between any two bytecodes of the Python function.
"""

from __future__ import annotations

import contextlib
import gc
import threading

import pytest

import flowvm as flow
from flowvm.eager.interpreter import call_into
from flowvm.eager.native import install
from flowvm.errors import FlowError, ShapeError
from flowvm.nn import functional as F
from flowvm.vm.callers.hot import hot
from tests.guards.boundaries import meet

WIDTH, ROWS, MOST = 8, 8, 16  # MOST: of the objects that a call makes, so many are gone through


CALLS = {
    "operator": lambda x, w: x + w,
    "number": lambda x, w: x * 2.0,
    "recorded": lambda x, w: (x * w.requires_grad_()).detach(),
    "written": lambda x, w: x.add_(1.0),
    "written, two": lambda x, w: x.mul_(w[:1]),
    "trace": lambda x, w: x.sum(1),
    "trace of two": lambda x, w: F.softmin(x, 0),
    "view": lambda x, w: x[2:4],
    "views": lambda x, w: flow.cat(x.chunk(2, 0)),
    "list": lambda x, w: flow.cat([x, w]),
    "copied": lambda x, w: x.copy_(w),
    "into": lambda x, w: flow.add(w, w, out=x),
}

# those whose result is the tensor itself: it may get its other place when they are done
IN_PLACE = ("written", "written, two", "copied", "into")


def _whole():
    return flow.full((ROWS, WIDTH), 2.0)


def _parts():
    """A row of a tensor, and the tensor: what lies behind the row is other numbers."""
    whole = flow.tensor([[3.0] * WIDTH] + [[7.0] * WIDTH] * (ROWS - 1))
    return whole[:1], whole


def _outcome(call, x, w, collect_behind=0):
    """The values or the class of the error; a collection comes behind so many new objects."""
    before = gc.get_threshold()
    gc.collect()
    gc.set_threshold(collect_behind or before[0])
    try:
        result = call(x, w)
    except FlowError as error:
        return type(error).__name__
    finally:
        gc.set_threshold(*before)
    return result.tolist()


def _other():
    return flow.full((ROWS, WIDTH), 5.0)


def _other_thread(action):
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


@pytest.mark.skipif(bool(install.unsupported()), reason=install.unsupported())
@pytest.mark.filterwarnings("ignore:.*is resized")
@pytest.mark.parametrize("name", CALLS)
def test_native_call(name):
    call = CALLS[name]
    for _ in range(4):  # until its entries and its trace are known
        old, new = _outcome(call, _whole(), _other()), _outcome(call, _parts()[0], _other())
    assert old != new or name == "into"
    came = 0
    for k in range(1, MOST + 1):
        x, (row, whole) = _whole(), _parts()
        pending = [lambda x=x, row=row: setattr(x, "data", row)]

        def look(phase, info, pending=pending, k=k):
            if phase == "start" and pending and gc.get_threshold()[0] == k:
                _other_thread(pending.pop())

        w = _other()
        gc.collect()
        gc.callbacks.append(look)
        try:
            outcome = _outcome(call, x, w, collect_behind=k)
        finally:
            gc.callbacks.remove(look)
        came += not pending
        allowed = (old, new, [[3.0] * WIDTH]) if name in IN_PLACE else (old, new)
        assert outcome in allowed, f"behind object {k}"
        assert whole[1:].tolist() == [[7.0] * WIDTH] * (ROWS - 1), f"behind object {k}"
    assert came


@pytest.mark.parametrize("name", ["atan2", "neg"])
def test_python_call(name, seed):
    function = getattr(flow, name)
    twin = getattr(function, "__wrapped__", function).operator.twin
    w = [_other()] if name == "atan2" else []
    outcomes = [twin(x, *w).tolist() for x in (_whole(), _parts()[0])]

    def start():
        x, (row, _) = _whole(), _parts()

        def run():
            return twin(x, *w).tolist()

        def check(outcome, other):
            return (outcome not in outcomes or other is not None) and f"{outcome}, {other}"

        return run, lambda: setattr(x, "data", row), check

    assert meet(start, most=200, seed=seed) > 20


def test_call_into():
    """A call in Python that writes into a tensor: its place and its meta are of one moment."""
    function = getattr(flow.neg, "__wrapped__", flow.neg)
    operator = function.operator

    def start():
        x, (row, whole), source = _whole(), _parts(), _other()

        def run():
            with contextlib.suppress(ShapeError):  # the row, where the source has all rows
                call_into(operator, (x,), (source,))

        def check(outcome, other):
            values = whole[1:].tolist()  # behind the row
            return values != [[7.0] * WIDTH] * (ROWS - 1) and f"{values}, {outcome}, {other}"

        return run, lambda: setattr(x, "data", row), check

    assert meet(start) > 20


def test_renewal_is_seen():
    x, y = flow.ones(2), flow.ones(3)
    before = hot["renewed"]
    y.requires_grad_()
    assert hot["renewed"] is before
    x.data = y
    assert hot["renewed"] is not before
