"""The campaign of interrupts: a case of it, and its finding of planted faults."""

import contextlib
import itertools
import sys
import threading

import pytest

import flowvm as flow
from flowvm.eager import modes
from flowvm.guards import forks
from flowvm.vm.engine.engine import engine
from tools.campaign import interrupts


def program(name, ways):
    """One part, interrupted in many ways."""
    return {"steps": [[name, how] for how in ways]}


ANYWHERE = [["bytecode", call, k, 0] for call in range(0, 1000, 40) for k in (1, 9, 30)]


def planted(monkeypatch, run):
    """The campaign with a part that does `run`."""
    part = interrupts._Part(run, 1e-4, interrupts.boundaries.count_calls(run))
    monkeypatch.setitem(interrupts._parts().by_name, "planted", part)
    with pytest.raises(AssertionError) as caught:
        interrupts.check(program("planted", ANYWHERE))
    return str(caught.value)


def test_a_case(seed):
    case = interrupts.case(seed)
    assert interrupts.check({"steps": case["steps"][:100]}) == "fine"
    assert interrupts.AMOUNTS["interrupts"] > 20


def test_a_case_gets_smaller(seed):
    case = interrupts.case(seed)
    sizes = {len(interrupts.without(case, k)["steps"]) for k in range(6)}
    assert max(sizes) < len(case["steps"])


def test_a_mode_that_stays_is_found(monkeypatch):
    def run():
        before = modes.set_recording(modes.FORGET)
        flow.ones(3) + 1
        modes.set_recording(before)  # no finally

    run()
    try:
        assert "mode" in planted(monkeypatch, run)
    finally:
        modes.set_recording(modes.RECORD)


def test_a_lock_that_stays_taken_is_found(monkeypatch):
    monkeypatch.setattr(interrupts.known, "LONG_S", 0.5)
    lock = forks.held_at_fork(threading.Lock())

    def run():
        lock.acquire()
        flow.ones(3) + 1
        lock.release()

    run()
    assert "taken" in planted(monkeypatch, run)
    if lock.locked():
        lock.release()


def test_an_exception_that_is_swallowed_is_found(monkeypatch):
    def run():
        with contextlib.suppress(BaseException):
            flow.ones(3) + 1

    run()
    assert "swallowed" in planted(monkeypatch, run)


def test_a_parameter_that_was_changed_is_found(monkeypatch):
    parts = interrupts._parts()
    loss = parts.loss
    monkeypatch.setattr(parts, "loss", loss + 1)
    with pytest.raises(AssertionError, match="the loss is"):
        interrupts.check(program("an_op", [["bytecode", 0, 1, 0]]))


# --- what it found ----------------------------------------------------------------------------


def at_every_depth(run, frames=40):
    """Call `run` with ever more frames left; how often Python had too few."""
    few = 0
    for more in range(2, frames):
        limit = sys.getrecursionlimit()
        try:
            sys.setrecursionlimit(interrupts._depth() + more)
            run()
        except RecursionError:
            few += 1
        finally:
            sys.setrecursionlimit(limit)
        assert engine.waits.wait_idle(20), f"a record is missing: {more} frames were left"
    return few


def test_a_recursion_error_leaves_no_hole_among_the_records():
    """A number was taken when there was no frame left to write its record, nor to fill the hole."""
    stream, x = flow.Stream("deep"), flow.ones(64)

    def run():
        y = x
        with flow.stream(stream):
            y = y + 1
        engine.waits.wait_idle()

    run()
    assert at_every_depth(run) > 3
    assert (x + 1).sum().item() == 128


def test_an_interrupt_in_front_of_a_compiles_thread_waits_for_none():
    """An interrupt once made a compile wait for ever for a thread that was not started."""
    part = interrupts._parts().by_name["compiling"]
    names = set()
    for k, at in itertools.product(range(part.calls), (3, 6)):
        where, problem = interrupts.boundaries.interrupted(part.run, at, KeyboardInterrupt, k)
        assert not problem
        names.add(where.split(" ")[1] if where else "")
    assert "apart" in names


def test_an_optimizers_state_is_whole_or_not_there():
    w = flow.ones(3, requires_grad=True)
    for kind in (flow.optim.Adam, lambda p, lr: flow.optim.SGD(p, lr=lr, momentum=0.5)):
        for k in range(0, 200, 3):
            fresh = kind([w], lr=0.0)
            w.grad = flow.ones(3)
            interrupts.boundaries.interrupted(lambda fresh=fresh: fresh.step(), k, MemoryError)
            assert len(fresh.state.get(w, {"momentum_buffer": 0})) in (1, 3)
            fresh.step()
