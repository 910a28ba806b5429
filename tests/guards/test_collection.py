"""Objects that the garbage collector knows are listed without keeping those of other threads."""

from __future__ import annotations

import gc
import os
import sys
import threading

import flowvm as flow
from flowvm.guards.collection import Uncollected, live_functions, live_objects
from flowvm.guards.locks import held
from flowvm.vm.engine.persistent import holders


class Kind:
    """A class of two objects."""


def test_the_objects_of_a_class() -> None:
    objects = [Kind(), Kind()]
    listed = live_objects(lambda kind: kind is Kind)
    assert {*map(id, listed)} == {*map(id, objects)}


def test_functions_that_no_module_has() -> None:
    def inner() -> None:
        pass

    assert any(function is inner for function in live_functions())


def test_locks_of_other_threads_are_given_back_by_them() -> None:
    """A hold that a list of all objects kept would be dropped by the thread of that list."""
    lock, over, wrong = threading.RLock(), threading.Event(), list[str]()
    parameter = flow.nn.Linear(2, 2)

    def use() -> None:
        while not over.is_set():
            with held(lock):
                pass
            if lock._is_owned():  # type: ignore[attr-defined]
                wrong.append("kept behind its statement")
                return
            with flow.no_grad():
                pass
            if not flow.is_grad_enabled():
                wrong.append("no gradients behind a statement")
                return

    before = sys.getswitchinterval()
    thread = threading.Thread(target=use, daemon=True)
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        for _ in range(12):
            assert any(thing is parameter for thing, _ in holders())
    finally:
        sys.setswitchinterval(before)
        over.set()
    thread.join(60)
    assert not thread.is_alive()
    assert not wrong


def test_overlapping_blocks_leave_collection_on() -> None:
    """The second to begin finds collection off, and ends last."""
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with Uncollected():
            inside.set()
            assert leave.wait(60)

    assert gc.isenabled()
    other = threading.Thread(target=hold)
    with Uncollected():
        other.start()
        assert inside.wait(60)
    assert not gc.isenabled()  # the other is still in its block
    leave.set()
    other.join()
    assert gc.isenabled()


def test_a_program_without_collection_stays_without() -> None:
    gc.disable()
    try:
        with Uncollected(), Uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_child_does_not_wait_for_blocks_of_other_threads() -> None:
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with Uncollected():
            inside.set()
            assert leave.wait(60)

    other = threading.Thread(target=hold)
    other.start()
    assert inside.wait(60)
    child = os.fork()
    if child == 0:
        os._exit(0 if gc.isenabled() else 1)
    leave.set()
    other.join()
    assert os.waitpid(child, 0)[1] == 0
