"""Stalls that only a machine out of the ordinary has, planted: of the scheduler, and of the GIL.

`test_stalls` plants the causes that any program can have (run, dep, queue, host, sync, credit,
jit).  Here the test plays the scheduler and holds it, and another thread holds the GIL.  A stall is
a loop of five milliseconds; order is by locks and futex words, never by sleeping.  Where the system
may give a thread no core at the moment that counts, the stall is planted again.
"""

from __future__ import annotations

import sys
import threading
import time

import numpy as np
import pytest

import flowvm as flow
from flowvm.profiler import profile
from flowvm.profiler.run.loss_places import placed
from flowvm.vm.engine import waits
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.wait_words import WAIT
from flowvm.vm.watch import cores, offcpu
from flowvm.vm.watch.flight import HostWait
from tests.profiler.analysis.test_stalls import MOST, STALL, again, lane_of, spin_here, xs
from tests.vm.kernels import Gate, update, wait_for_gate
from tests.vm.live import script

__all__ = ["xs"]


# --- sched --------------------------------------------------------------------------------------

PLAYED = """
    import atexit, itertools
    from flowvm.profiler.run.collect import collect
    from flowvm.profiler.front.profiles import Profile
    from flowvm.vm.machine.lang import Uncompiled
    from flowvm.vm.machine.words import CTL, QUE, RING, STR
    from flowvm.vm.workers import shell
    from flowvm.vm.workers.execute import execute
    from flowvm.vm.machine.machine import dispatch, next_ready, receive
    from flowvm.vm.machine.stamps import see
    from tests.profiler.analysis.test_stalls import MOST, lane_of, spin_here

    # nobody starts: the test is scheduler and worker, with one clock for all, which goes on by a
    # microsecond when somebody looks at it: the core may be taken away at any moment
    time.monotonic_ns = itertools.count(time.monotonic_ns(), 1000).__next__
    Uncompiled.ticks = time.monotonic_ns
    engine.threads.running, engine.words[CTL.SCHEDULER_SLEEPS] = True, 0
    atexit.register(setattr, engine, "running", False)
    engine.flight.clocks = lambda: (time.monotonic_ns(),) * 2
    engine.flight.zero = engine.flight.clocks()
    engine.words[CTL.LEVEL] = 2
    m = engine.m

    def receives():
        m[CTL.NOW] = time.monotonic_ns()
        see(m)
        assert receive(m)

    def dispatches():
        m[CTL.NOW] = time.monotonic_ns()
        dispatch(m, next_ready(m))

    def works():
        execute(m, 0, int(m[QUE.AT + (int(m[STR.AT + STR.DONE]) & RING.SLOT_MASK)]))
        shell.finish(m, 0)
        shell.step(m)

    def profiled():
        run = collect(engine.flight.look(first), begun)
        run.ended = int(run.time("ended").max())
        return Profile(run)

    x, y = tensor(), tensor()
    first, begun = int(m[CTL.RECEIVED]), time.monotonic_ns()
"""


@pytest.mark.usefixtures("xs")  # what the script needs is compiled
@pytest.mark.parametrize("held", ["before it dispatches", "before it hands on"])
def test_sched(held):
    """The scheduler is held when it has seen an instruction, or when that may start."""
    holds = {"before it dispatches": 0, "before it hands on": 1}[held]
    process = script(
        PLAYED
        + f"""
    update(x, y, 1)
    receives()
    if {holds} == 0:
        spin_here()
    dispatches()
    if {holds} == 1:
        spin_here()
    works()
    p = profiled()
    total = lane_of(p, 0)
    assert total["sched"] >= MOST, total
    assert p.waits.sched[0] >= MOST, p.run.times - begun
    assert p.waits.dep[0] == p.waits.queue[0] == 0, p.run.times - begun
    assert p.bound["sched"] * p.run.wall >= MOST
    """
    )
    assert process.stderr == ""


@pytest.mark.usefixtures("xs")
def test_a_machine_that_is_played_has_its_other_causes_too():
    """A held scheduler is no cause `sched` while the stream or a producer is in the way."""
    process = script(
        PLAYED
        + """
    update(x, y, 1)
    receives()
    dispatches()
    update(x, y, 2)
    receives()
    spin_here()  # the first has not run: the second waits for it
    works()
    dispatches()
    works()
    p = profiled()
    assert p.waits.queue[1] + p.waits.dep[1] >= MOST, p.run.times - begun
    assert p.waits.sched[1] < MOST, p.run.times - begun
    """
    )
    assert process.stderr == ""


# --- gil ----------------------------------------------------------------------------------------


class Hog(threading.Thread):
    """A thread that, when told to, calls `first` and has the GIL for five milliseconds."""

    def __init__(self, first=int):
        super().__init__(daemon=True)
        self.first = first
        self.gate, self.may_end, self.began = threading.Lock(), threading.Lock(), False
        self.gate.acquire()
        self.may_end.acquire()
        self.start()

    def run(self):
        self.gate.acquire()
        self.began = True
        self.first()
        spin_here()
        self.may_end.acquire()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for lock in (self.gate, self.may_end):
            if lock.locked():
                lock.release()
        self.join()


@pytest.fixture
def long_turns():
    """Nobody has to give the GIL away before it wants to."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(10.0)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("level", [2, 3])
@again
def test_gil(xs, long_turns, level):
    """Python could go on, but another thread of it runs."""
    with Hog() as hog, profile(level) as p:
        update(xs[0], xs[1], 1)
        flow.vm.sync()
        hog.gate.release()
        while not hog.began:
            time.sleep(0)  # lets go of the GIL and wants it back
        update(xs[0], xs[1], 1)
    total = lane_of(p, 0)
    assert total["gil"] >= MOST - STALL // 10, total  # it is counted from the last look
    assert p.bound["gil"] * p.run.wall >= MOST - STALL // 10


@again
def test_gil_after_a_wait(xs, long_turns, monkeypatch):
    """A value is there, and the waiting thread does not get the GIL."""
    monkeypatch.setattr(waits, "SLICE_US", 10**8)  # it does not look up meanwhile
    with Gate() as opened:
        opened.open()
        wait_for_gate(xs[0], xs[1], opened.address)  # compiled
    with engine.flight.at_least(2):
        xs[0].numpy()
    cell = engine.waits.local.cell[0]  # of this thread's waits

    def until_it_is_there():
        while not cell[WAIT.SLEEPERS]:  # it may hold the GIL before it waits, and want it back
            time.sleep(0)
        cell[WAIT.OVER] = 0
        gate.open()
        while not cell[WAIT.OVER]:
            pass

    with Gate() as gate, Hog(until_it_is_there) as hog, profile() as p:
        wait_for_gate(xs[0], xs[1], gate.address)
        cell[WAIT.SLEEPERS] = 0
        hog.gate.release()
        xs[0].numpy()
        update(xs[0], xs[1], 1)
    total = lane_of(p, 0)
    assert total["gil"] >= MOST, total
    assert p.bound["gil"] * p.run.wall >= MOST


@again
def test_a_thread_that_blocks_by_itself_is_host(xs):
    """A lock that nobody has to give back is no GIL; meanwhile, the system may cost time."""
    lock = threading.Lock()
    lock.acquire()
    with profile() as p:
        update(xs[0], xs[1], 1)
        flow.vm.sync()
        assert not lock.acquire(timeout=20 * STALL / 1e9)  # a busy machine may wake it late
        update(xs[0], xs[1], 1)
    total = lane_of(p, 0)
    assert total["gil"] < 10 * STALL
    assert total["host"] >= 10 * STALL


# --- what a look says ---------------------------------------------------------------------------


@pytest.fixture
def clocks(monkeypatch):
    """The clocks of this thread and of others, given by the test: name -> ns."""
    options = {"wall": 10**12, "cpu": 0, "ready": 0, "others": {}}
    monkeypatch.setattr(offcpu.time, "monotonic_ns", lambda: options["wall"])
    monkeypatch.setattr(offcpu.time, "thread_time_ns", lambda: options["cpu"])
    monkeypatch.setattr(offcpu, "scheduled", lambda thread: (0, options["ready"]))
    monkeypatch.setattr(offcpu, "_others", lambda own: dict(options["others"]))
    return options


@pytest.mark.parametrize(
    ("wall", "cpu", "ready", "others", "lost", "core"),
    [
        (1_000_000, 1_000_000, 0, {}, 0, 0),  # it ran
        (1_000_000, 200_000, 0, {}, 0, 0),  # it slept
        (1_000_000, 200_000, 800_000, {}, 800_000, 800_000),  # there was no core
        (1_000_000, 200_000, 0, {7: 700_000}, 700_000, 0),  # another ran most of the time
        (1_000_000, 200_000, 500_000, {7: 700_000}, 800_000, 500_000),  # no more than it was off
        (1_000_000, 980_000, 20_000, {7: 900_000}, 0, 0),  # too little to look into
        (1_000_000, 200_000, 0, {7: 1_000, 8: 900_000}, 800_000, 0),  # a new thread
    ],
)
def test_what_is_lost(clocks, wall, cpu, ready, others, lost, core):
    clocks["others"] = {7: 0}
    calls = []
    observer = offcpu.OffCpu(lambda *loss: calls.append(loss))
    observer.begin()
    began = clocks["wall"]
    clocks.update(wall=began + wall, cpu=cpu, ready=ready, others=others or {7: 0})
    assert observer.look() == began + wall
    assert calls == ([(began, began + wall, lost, core)] if lost else [])
    observer.look()
    assert len(calls) <= 1


@pytest.mark.parametrize("known", [True, False])
def test_what_had_no_core_while_it_waited_is_not_lost_after_it(clocks, known):
    """A busy machine takes a core from a thread that yields it, or wakes; then comes the GIL."""
    calls = []
    cpu = offcpu.OffCpu(lambda *loss: calls.append(loss))
    cpu.begin()
    clocks["wall"] += 9_500_000
    clocks["ready"] += 9_000_000
    over = clocks["wall"]
    if known:
        clocks["wall"] += 1_000_000
        clocks["ready"] += 100_000
        clocks["others"] = {7: 900_000}
        cpu.late(over, clocks["wall"], 9_000_000)
        assert calls == [(over, over + 1_000_000, 1_000_000, 100_000)]
    cpu.begin()
    clocks["wall"] += 1_000_000
    clocks["others"] = {7: 1_800_000}
    cpu.look()
    assert calls[-1][2:] == (900_000 if known else 1_000_000, 0)


def test_a_thread_that_is_over_may_have_had_it_all(clocks):
    clocks["others"] = {7: 5}
    calls = []
    cpu = offcpu.OffCpu(lambda *loss: calls.append(loss))
    cpu.begin()
    clocks["wall"] += 1_000_000
    clocks["others"] = {}
    cpu.look()
    assert [lost for _, _, lost, _ in calls] == [1_000_000]


def test_a_thread_that_never_looked_has_lost_nothing(clocks):
    clocks["others"], values = {7: 10**9}, []
    cpu = offcpu.OffCpu(lambda *loss: values.append(loss))
    for _ in range(3):
        cpu.look()
    assert not values


def wait(begun, ended, since=0):
    return HostWait("gil" if since else "sync", begun, ended, 1, since=since)


def test_of_a_loss_what_had_no_core_is_told_apart():
    lost = wait(150, 200, 100)._replace(core=20)
    losses = placed([lost], np.array([160], np.int64))
    assert [(x.cause, x.begun, x.ended) for x in losses] == [("core", 110, 130), ("gil", 130, 160)]


@pytest.mark.parametrize(
    ("since", "lost", "issued", "expected"),
    [
        (100, 100, [], [(100, 200)]),  # all of the stretch
        (100, 30, [], [(170, 200)]),
        (100, 50, [110, 180, 190], [(130, 180)]),  # in the longest pause, up to its end
        (100, 80, [110, 180, 190], [(110, 180), (100, 110)]),  # and in the next longest
        (100, 40, [50, 250], [(160, 200)]),  # what was issued before or after does not matter
    ],
)
def test_a_loss_lies_where_nothing_was_issued(since, lost, issued, expected):
    losses = placed([wait(200 - lost, 200, since)], np.array(issued, np.int64))
    assert [(x.begun, x.ended) for x in losses] == expected
    assert all(x.since == 0 for x in losses)


def test_other_waits_stay_where_they_are():
    some = [wait(5, 9), wait(20, 30)]
    assert placed(some, np.array([6, 7], np.int64)) == some


def test_clocks_of_threads_are_read():
    """The real clocks: another thread of Python is seen to run, a native one is left out."""
    with Hog() as hog:
        before = offcpu._used(hog.native_id)
        hog.gate.release()
        while not hog.began or offcpu._used(hog.native_id) <= before:
            time.sleep(0)
        names = {t.native_id: t.name for t in threading.enumerate()}
        others = offcpu._others(threading.get_native_id())
        assert hog.native_id in others
        assert threading.get_native_id() not in others
        assert not [n for n in others if names.get(n, "").startswith("flowvm-w:")]
    assert cores.scheduled(-1) == (0, 0)  # no such threads
    assert offcpu._used(2**27) == 0


def test_what_happens_elsewhere_is_read_so_seldom_that_it_costs_a_hundredth(clocks, monkeypatch):
    """With a hundred threads it takes a millisecond."""

    def slowly(own):
        clocks["wall"] += 1_000_000
        walls.append(clocks["wall"])
        return {}

    walls = []
    monkeypatch.setattr(offcpu, "_others", slowly)
    cpu = offcpu.OffCpu(lambda *loss: None)
    for _ in range(1000):
        cpu.look()
        clocks["wall"] += 1_000_000
        clocks["cpu"] = clocks["wall"]
    assert 5 <= len(walls) <= 12
