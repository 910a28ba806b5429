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
    sampler = sampling.Sampling()
    yield sampler
    sampler.stop()


def spin(nanoseconds):
    until_then = time.monotonic_ns() + nanoseconds
    while time.monotonic_ns() < until_then:
        pass


def where(sample):
    """The innermost frame that is known: function and line."""
    code, last = next((f for f in sample.frames if f[0] is not None), (None, 0))
    return (code.co_name, position(code, last)) if code else ("", "")


def looks(sampler, count):
    """Until it has looked so often more."""
    reached = sampler.words[SAMPLING.LOOKS] + count
    until(lambda: sampler.words[SAMPLING.LOOKS] >= reached, f"{count} looks")


@native
def test_what_a_thread_does_is_seen(watching):
    begun = time.monotonic_ns()
    watching.watch()
    assert watching.native
    while watching.words[SAMPLING.COUNT] < 40:
        spin(5_000_000)
    samples = watching.samples(begun, time.monotonic_ns())
    assert {sample.thread for sample in samples} == {threading.get_ident()}
    assert all(a.time < b.time and a.used <= b.used for a, b in itertools.pairwise(samples))
    names = Counter(where(sample)[0] for sample in samples)
    assert names["spin"] > len(samples) // 2, names
    callers = {code.co_name for s in samples for code, _ in s.frames if code is not None}
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
    (sample,) = watching.samples(int(row[SEEN.TIME]), int(row[SEEN.TIME]))
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
    own = {s.thread for s in watching.samples(since, time.monotonic_ns())}
    assert own == {threading.get_ident()}
    assert watching.samples(begun, since)


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
    samples = watching.samples(begun, time.monotonic_ns())
    assert "spin" in {where(sample)[0] for sample in samples}


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
    assert len(p.run.samples.times)


@native
def test_nothing_that_goes_away_meanwhile_can_fault():
    """Code objects, frames, stacks and threads come and go while the sampler looks without a
    pause; whatever it says of the code that is there has that code's name.
    """
    process = script(
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
    samples = s.samples(begun, time.monotonic_ns())
    s.stop()
    assert len(samples) > 1000
    for sample in samples:
        for code, last in sample.frames:
            if code is not None and code.co_name.startswith("f") and code.co_name[1:].isdigit():
                assert code.co_filename == f"<{code.co_name[1:]}>"
    known = sum(code is not None for x in samples for code, _ in x.frames)
    assert known > 0.9 * sum(len(x.frames) for x in samples), known
    """
    )
    assert process.stderr == ""


@native
def test_stacks_by_their_number_are_the_real_ones() -> None:
    """At level 3 a stack that was seen is known by its number, whichever line and caller it has."""
    sampling.make()
    x = flow.ones(2)

    def one():
        return x + 1

    def other():
        return x + 1

    one()
    with flow.profiler.profile(level=3) as p:
        for _ in range(40):
            for issue in (one, other):
                for again in range(2):
                    issue() if again else (lambda: issue())()
    flight = engine.flight
    added = [k for k in range(len(p.run)) if p.run.names[p.run.op[k]] == "add"]
    assert len(added) == 160
    stacks = [flight.stacks[int(p.run.seq[k])] for k in added]
    calls = [[code.co_name for code, _ in stack[:2]] for stack in stacks[-4:]]
    test = "test_stacks_by_their_number_are_the_real_ones"
    assert calls == [["one", "<lambda>"], ["one", test], ["other", "<lambda>"], ["other", test]]
    assert stacks[-4:] * 39 == stacks[4:]
    if flight.sampling.ring is not None:  # else it was compiled only now
        assert flight.keep is not None or len(flight.numbers) >= 4
