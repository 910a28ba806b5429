"""Issuing threads are looked at while they run: samples are true, and no look can fault."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter

import pytest

import flowvm as flow
from flowvm.private import frames
from flowvm.vm.callers.lines import position
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.sample_words import SAMPLING, SEEN, WATCHED
from flowvm.vm.watch import sampling
from flowvm.vm.workers import sampler
from tests.vm.live import Background, script, until

native = pytest.mark.skipif(bool(frames.why_not()), reason=frames.why_not())


@pytest.fixture
def watching():
    """A sampler that looks at this thread; it is compiled first."""
    if not frames.why_not():
        sampling.make()
    made = sampling.Sampling()
    yield made
    made.stop()


def spin(nanoseconds):
    until_then = time.monotonic_ns() + nanoseconds
    while time.monotonic_ns() < until_then:
        pass


def where(sample):
    """The innermost frame that is known: function and line."""
    code, last = next((f for f in sample.frames if f[0] is not None), (None, 0))
    return (code.co_name, position(code, last)) if code else ("", "")


def looks(made, count):
    """Until it has looked so often more."""
    reached = made.words[SAMPLING.LOOKS] + count
    until(lambda: made.words[SAMPLING.LOOKS] >= reached, f"{count} looks")


@native
def test_what_a_thread_does_is_seen(watching):
    begun = time.monotonic_ns()
    watching.watch()
    assert watching.native
    while watching.words[SAMPLING.COUNT] < 40:
        spin(5_000_000)
    seen = watching.seen(begun, time.monotonic_ns())
    assert {sample.thread for sample in seen} == {threading.get_ident()}
    assert all(a.time < b.time and a.used <= b.used for a, b in itertools.pairwise(seen))
    names = Counter(where(sample)[0] for sample in seen)
    assert names["spin"] > len(seen) // 2, names
    callers = {code.co_name for s in seen for code, _ in s.frames if code is not None}
    assert "test_what_a_thread_does_is_seen" in callers


@native
def test_the_loop_as_python_sees_the_same(watching):
    watching._loop()
    watching.watch()
    watching.stop()
    slot = watching.local.own.slot
    watching.words[slot + WATCHED.LAST] = 0
    before = watching.words[SAMPLING.COUNT]
    sampler.sample(watching.words, slot, watching.words[slot + WATCHED.STATE])
    row = watching.ring[before % SEEN.LENGTH]
    assert row[SEEN.MARK] == before + 1
    (sample,) = watching.seen(int(row[SEEN.TIME]), int(row[SEEN.TIME]))
    names = [code.co_name for code, _ in sample.frames if code is not None]
    own = names.index("test_the_loop_as_python_sees_the_same")
    assert "sample" in names[:own]  # it looks at itself, from within


@native
def test_a_thread_that_has_ended_is_looked_at_no_more(watching):
    watching.watch()
    begun = time.monotonic_ns()
    Background(watching.watch).result()
    until(lambda: len(watching.free) == WATCHED.LENGTH - 1, "its place is free")
    looks(watching, 2)
    since = time.monotonic_ns()
    looks(watching, 5)
    own = {s.thread for s in watching.seen(since, time.monotonic_ns())}
    assert own == {threading.get_ident()}
    assert watching.seen(begun, since)


def test_more_threads_than_there_is_room_for(watching):
    ready, leave = threading.Barrier(WATCHED.LENGTH + 6), threading.Event()

    def run():
        watching.watch()
        ready.wait(60)
        leave.wait(60)

    threads = [Background(run) for _ in range(WATCHED.LENGTH + 5)]
    ready.wait(60)
    assert watching.free == []
    leave.set()
    for thread in threads:
        thread.result()
    until(lambda: len(watching.free) == WATCHED.LENGTH, "all places are free")


def test_where_places_are_not_found_python_looks(watching, monkeypatch):
    monkeypatch.setattr(frames, "why_not", lambda: "this interpreter is another")
    begun = time.monotonic_ns()
    watching.watch()
    assert not watching.native
    assert sampling.how() == "by a Python thread, 100 Hz: this interpreter is another"
    while len(watching.seldom) < 3:
        spin(20_000_000)
    seen = watching.seen(begun, time.monotonic_ns())
    assert "spin" in {where(sample)[0] for sample in seen}


def test_an_exception_that_comes_while_the_thread_is_waited_for_is_raised(watching, monkeypatch):
    watching.watch()
    for error in (RecursionError, KeyboardInterrupt):

        def join(error=error):
            raise error("injected")

        monkeypatch.setattr(watching.thread, "join", join)
        with pytest.raises(error, match="injected"):
            watching.stop()
        monkeypatch.undo()
    watching.stop()
    assert watching.thread is None


def test_only_from_level_2_on():
    sampling_of = engine.flight.sampling
    with flow.profiler.profile(level=1):
        assert not sampling_of.on
    with flow.profiler.profile(level=2) as p:
        assert sampling_of.on
        before = sampling_of.words[SAMPLING.COUNT] + len(sampling_of.seldom)
        while sampling_of.words[SAMPLING.COUNT] + len(sampling_of.seldom) < before + 3:
            spin(1_000_000)
    assert sampling_of.on == (engine.flight.level >= 2)
    assert len(p.run.sample_times)


@native
def test_nothing_that_goes_away_meanwhile_can_fault():
    """Code objects, frames, stacks and threads come and go while the sampler looks without a
    pause; whatever it says of the code that is there has that code's name.
    """
    done = script(
        """
    import sys, threading, time
    from flowvm.vm.machine.sample_words import SAMPLING
    from flowvm.vm.watch import sampling
    sampling.make()
    sampling.PERIOD_US = 1
    s = sampling.Sampling()
    s.watch()
    assert s.native
    sys.setrecursionlimit(3000)

    def deep(n):
        return n and deep(n - 1)

    def generated(n):
        if n:
            yield from generated(n - 1)
        yield n

    def made(k):
        space = {}
        exec(compile(f"def f{k}(x):\\n" + "    x += 1\\n" * (k % 50 + 1) + "    return x", f"<{k}>",
                     "exec"), space)
        return space[f"f{k}"]

    def other():
        s.watch()
        deep(50)

    begun, k = time.monotonic_ns(), 0
    while s.words[SAMPLING.COUNT] < 20_000:
        k += 1
        f = made(k)
        for _ in range(20):
            f(1)
        deep(k % 900)
        sum(generated(k % 60))
        if k % 10 == 0:
            t = threading.Thread(target=other)
            t.start()
            t.join()
    seen = s.seen(begun, time.monotonic_ns())
    s.stop()
    assert len(seen) > 1000
    for sample in seen:
        for code, last in sample.frames:
            if code is not None and code.co_name.startswith("f") and code.co_name[1:].isdigit():
                assert code.co_filename == f"<{code.co_name[1:]}>"
    known = sum(code is not None for x in seen for code, _ in x.frames)
    assert known > 0.9 * sum(len(x.frames) for x in seen), known
    """
    )
    assert done.stderr == ""
