"""The flight recorder: its records, the number of lost ones, and their truth."""

from __future__ import annotations

import time

import numpy as np
import pytest

import flowvm as flow
from flowvm.eager.calls import KEEP_DEAD
from flowvm.eager.modes import use_stream
from flowvm.vm import record
from flowvm.vm.callers.lines import short_position
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.edges import connect, tensors_of
from flowvm.vm.machine.words import CTL, ENT, KIND, OPERAND, REC, RING, SPL
from flowvm.vm.watch.flight import TIMES, Flight
from flowvm.vm.watch.pending import issued
from tests.vm.kernels import Gate, alone, mix, tensor, update, wait_for_gate
from tests.vm.live import Background, script, streams, until, word

ISSUED, RECEIVED, READY, DISPATCHED, STARTED, ENDED, RELEASED = range(len(TIMES))
CLOCKS = 5000  # ns by which the recorder's clock and Python's may differ


@pytest.fixture(autouse=True)
def _alone():
    with alone():
        yield


@pytest.fixture(params=[1, 2])
def level(request):
    with engine.flight.at_least(request.param):
        engine.words[CTL.LEVEL] = request.param
        yield request.param


def now():
    engine.waits.wait_idle()
    return word(CTL.RECEIVED)


def look(since):
    engine.waits.wait_idle()
    return engine.flight.look(since)


def kinds(snapshot):
    return engine.m[ENT.AT + snapshot.entry * ENT.WORDS + ENT.KIND]


def work(rng, numbers, length):
    t = [tensor() for _ in range(4)]
    for _ in range(length):
        x, y, z = rng.integers(0, 4, 3)
        with use_stream(numbers[rng.integers(0, len(numbers))]):
            if rng.random() < 0.5:
                t[z] = mix(t[x], t[y], 1)
            else:
                update(t[x], t[y], 2)
    return t


@pytest.mark.parametrize("count", [1, 3])
def test_every_instruction_has_its_times_in_order(level, count, rng):
    since, begun = now(), time.monotonic_ns()
    results = work(rng, streams(count), 500)
    snapshot = look(since)
    over = time.monotonic_ns()
    assert len(results) == 4
    assert snapshot.seq.tolist() == list(range(since, since + len(snapshot.seq)))
    assert (np.diff(snapshot.times, axis=1) >= 0).all()
    assert (snapshot.times[:, ISSUED] >= begun - CLOCKS).all()
    assert (snapshot.times[:, RELEASED] <= over + CLOCKS).all()
    assert (snapshot.status == 0).all()
    assert set(snapshot.stream) == set(streams(count))


def test_instructions_of_a_stream_do_not_overlap(level, rng):
    since = now()
    work(rng, streams(2), 500)
    snapshot = look(since)
    for stream in streams(2):
        mine = (snapshot.stream == stream) & (kinds(snapshot) == KIND.OP_CALL)
        times = snapshot.times[mine]
        times = times[np.argsort(times[:, STARTED], kind="stable")]
        assert len(times) > 50
        assert (times[1:, STARTED] >= times[:-1, ENDED]).all()


def test_an_edge_is_there_though_its_producer_had_finished_long_before(level):
    x, y = tensor(), tensor()
    since = now()
    update(x, y, 1)
    x.numpy()
    update(y, x, 1)
    snapshot = look(since)
    owner = np.repeat(np.arange(len(snapshot.seq)), np.diff(snapshot.offsets))
    edges = connect(
        owner,
        tensors_of(owner, snapshot.storage, kinds(snapshot) == KIND.RELEASE),
        snapshot.access & 3 != 0,
    )
    calls = np.flatnonzero(kinds(snapshot) == KIND.OP_CALL)
    assert (calls[0], calls[1]) in set(zip(edges.source, edges.target, strict=True))


@pytest.mark.parametrize("count", [1, 3, 14, 15, 16, 24])
def test_operands_are_all_there(level, count):
    """A ReleaseTensor has up to 24, of which 15 fit into a record."""
    since, ids = now(), [engine.storages.new() for _ in range(count)]
    engine.records.publish(engine.storages.releases[count], ids, (), None, 0)
    snapshot = look(since)
    (i,) = np.flatnonzero(kinds(snapshot) == KIND.RELEASE)
    mine = slice(snapshot.offsets[i], snapshot.offsets[i + 1])
    assert snapshot.storage[mine].tolist() == ids
    assert set(snapshot.access[mine]) == {OPERAND.MUT}


def test_operands_out_of_line_and_their_accesses_are_there(level):
    m = flow.nn.Linear(4, 4)
    graph = flow.compile(lambda x: m(x))
    x = flow.ones(2, 4)
    graph(x)
    since = now()
    out = graph(x)
    snapshot = look(since)
    (i,) = np.flatnonzero(kinds(snapshot) == KIND.LAUNCH)
    accesses = dict(
        zip(
            snapshot.storage[snapshot.offsets[i] : snapshot.offsets[i + 1]].tolist(),
            snapshot.access[snapshot.offsets[i] : snapshot.offsets[i + 1]].tolist(),
            strict=True,
        )
    )
    expected = {t._ref & OPERAND.STORAGE_MASK: OPERAND.CONST for t in (x, m.weight, m.bias)}
    assert accesses == expected | {out._ref & OPERAND.STORAGE_MASK: OPERAND.MUT | OPERAND.ALLOCATE}


def test_operands_that_were_overwritten_are_missing_and_said_to_be(level):
    since, ids = now(), [engine.storages.new() for _ in range(20)]
    engine.records.publish(engine.storages.releases[20], ids, (), None, 0)
    engine.waits.wait_idle()
    engine.words[CTL.SPILLED] += SPL.LENGTH  # as if others had come since
    snapshot = look(since)
    (i,) = np.flatnonzero(kinds(snapshot) == KIND.RELEASE)
    assert snapshot.bare[i]
    assert snapshot.offsets[i] == snapshot.offsets[i + 1]
    assert snapshot.bare.sum() == 1


def test_tasks_of_a_graph_are_recorded_from_level_2_on(level):
    m = flow.nn.Sequential(flow.nn.Linear(4, 4), flow.nn.Softmax(-1), flow.nn.Linear(4, 4))
    graph = flow.compile(lambda x: m(x))
    x = flow.ones(2, 4)
    graph(x)
    since = now()
    graph(x)
    graph(x)
    snapshot = look(since)
    launches = np.flatnonzero(kinds(snapshot) == KIND.LAUNCH)
    assert len(launches) == 2
    if level == 1:
        assert not len(snapshot.tasks)
        return
    for i in launches:
        rows = snapshot.tasks[snapshot.tasks[:, 0] == snapshot.seq[i]]
        assert rows[:, 1].tolist() == [0, 1, 2]
        assert (rows[:, 2] == 0).all()
        assert (rows[1:, 4] >= rows[:-1, 5]).all()
        assert rows[0, 4] >= snapshot.times[i, STARTED]
        assert rows[-1, 5] <= snapshot.times[i, ENDED]


def test_lines_outlive_the_short_list_that_issuing_keeps():
    x, y = tensor(), tensor()
    since = now()
    for _ in range(3 * RING.SLOTS // 2):
        update(x, y, 1)
        update(y, x, 2)
    snapshot = look(since)
    names = [short_position(c, n) for c, n in zip(snapshot.codes, snapshot.lasts, strict=True)]
    calls = [names[i] for i in np.flatnonzero(kinds(snapshot) == KIND.OP_CALL)]
    first, second = calls[:2]
    assert first != second
    assert first.startswith("test_recorder.py:")
    assert calls == [first, second] * (3 * RING.SLOTS // 2)


def test_what_was_overwritten_is_counted():
    x, y = tensor(), tensor()
    since = now()
    for _ in range(REC.LENGTH + 500):
        update(x, y, 1)
    snapshot = look(since)
    received = word(CTL.RECEIVED)
    assert snapshot.overwritten == received - since - REC.LENGTH
    assert snapshot.seq.tolist() == list(range(received - REC.LENGTH, received))
    with record() as trace:
        update(x, y, 1)
    assert trace.dropped == 0


def test_nothing_is_recorded_at_level_0():
    x, y = tensor(), tensor()
    engine.flight.set_level(0)
    try:
        since = now()
        update(x, y, 1)
        waits = len(engine.flight.waits)
        x.numpy()
        assert len(look(since).seq) == 0
        assert len(engine.flight.waits) == waits
        engine.flight.set_level(1)
        after = now()
        update(x, y, 1)
        assert look(since).seq.min() >= after - 1  # a wait of this test's own may be in between
    finally:
        engine.flight.set_level(1)


def test_the_stacks_of_level_3():
    x, y = tensor(), tensor()

    def outer():
        inner()

    def inner():
        update(x, y, 1)

    with engine.flight.at_least(3):
        since = now()
        outer()
        snapshot = look(since)
    (i,) = np.flatnonzero(kinds(snapshot) == KIND.OP_CALL)
    names = [code.co_name for code, _ in snapshot.stacks[int(snapshot.seq[i])]]
    assert names[:3] == ["inner", "outer", "test_the_stacks_of_level_3"]


def test_at_level_3_calls_have_stacks_though_releases_are_issued_right_behind_them():
    x = tensor()
    with engine.flight.at_least(3):
        since = now()
        for _ in range(2 * (KEEP_DEAD + 1)):  # what is dropped is released behind one of so many
            mix(x, x, 1)
        snapshot = look(since)
    calls = snapshot.seq[kinds(snapshot) == KIND.OP_CALL].tolist()
    assert len(calls) == 2 * (KEEP_DEAD + 1)
    assert set(calls) <= snapshot.stacks.keys()
    assert KIND.RELEASE in kinds(snapshot)


def test_a_level_changed_while_another_thread_makes_room_holds(monkeypatch):
    """A thread that has seen the old level says by it when to look again."""
    x, y, flight, every = tensor(), tensor(), engine.flight, Flight.every

    def change(self):
        monkeypatch.setattr(Flight, "every", every)
        every_now = self.every
        self.set_level(3)
        return every_now

    with flight.at_least(1):
        monkeypatch.setattr(Flight, "every", property(change))
        engine.records.make_room(word(CTL.RECEIVED))
        since = now()
        update(x, y, 1)
        assert since in look(since).stacks


def test_what_is_in_flight_is_seen_as_far_as_it_has_come():
    x, y = tensor([1]), tensor([2])
    side = streams(2)[1]
    with Gate() as gate:
        since = now()
        wait_for_gate(x, x, gate.address)
        with use_stream(side):
            update(y, x, 1)
        until(lambda: gate.is_reached, "the kernel waits")
        until(lambda: word(CTL.RECEIVED) >= since + 2, "both are received")
        snapshot = engine.flight.look(since)
        running, waiting = snapshot.times[:2]
        assert running[DISPATCHED] > 0
        assert running[ENDED] == running[RELEASED] == 0
        assert waiting[RECEIVED] > 0
        assert waiting[READY] == waiting[DISPATCHED] == waiting[RELEASED] == 0
    assert (look(since).times[:2] > 0).all()


def test_looking_while_others_issue_is_consistent():
    """Records are overwritten while they are copied; a torn one would show in its times."""
    stop = []

    def issue():
        x, y = tensor(), tensor()
        while not stop:
            for _ in range(100):
                update(x, y, 1)
        return x.numpy() is not None

    issuing = Background(issue)
    try:
        for _ in range(30):
            snapshot = engine.flight.look()
            assert (np.diff(snapshot.seq) > 0).all()
            finished = snapshot.times[:, RELEASED] > 0
            assert (np.diff(snapshot.times[finished], axis=1) >= 0).all()
    finally:
        stop.append(True)
    assert issuing.result()


def test_waits_of_issuing_threads():
    x, y = tensor(), tensor()
    with Gate() as gate:
        wait_for_gate(x, y, gate.address)
        until(lambda: gate.is_reached, "the kernel waits")
        begun, before = time.monotonic_ns(), issued()
        reading = Background(x.numpy)
        until(lambda: issued() > before, "the reader's waiter is issued")
        gate.open()
        reading.result()
    wait = next(wait for wait in list(engine.flight.waits) if wait.begun >= begun)
    assert wait.thread == reading.ident
    assert wait.cause == "sync"
    assert begun <= wait.begun <= wait.ended <= time.monotonic_ns()
    assert wait.seq < word(CTL.RECEIVED)


def test_the_sequential_engine_is_recorded_too(rng):
    with engine.sequential.region():
        since = word(CTL.RECEIVED)
        work(rng, [0], 50)
        snapshot = engine.flight.look(since)
    assert (np.diff(snapshot.times, axis=1) >= 0).all()
    assert (snapshot.times[1:, STARTED] >= snapshot.times[:-1, ENDED]).all()


def test_a_fork_goes_on_recording():
    process = script(
        """
        from flowvm.vm import record
        x, y = tensor(), tensor()
        for _ in range(300):
            update(x, y, 1)
        child = os.fork()
        with record() as found:
            for _ in range(300):
                update(x, y, 1)
        names = [i.name for i in found]
        assert names.count("update") == 300, names
        assert len(found.edges) >= 299
        if child:
            assert os.waitpid(child, 0)[1] == 0
        else:
            os._exit(0)
        """
    )
    assert process.stderr == ""


@pytest.mark.parametrize("waiter", ["barrier, ()", "touches[1], [x._ref]"])
def test_a_waiter_wakes_when_its_own_instruction_is_recorded_and_over(waiter):
    process = script(
        f"""
        import atexit
        from flowvm.vm.workers import shell
        engine.threads.running = True  # the test is the scheduler
        engine.words[CTL.SCHEDULER_SLEEPS] = 0
        atexit.register(setattr, engine.threads, "running", False)
        engine.words[CTL.LEVEL] = 1
        x, cell, woken = tensor(), np.zeros(3, np.int64), []

        def wake(word, at):
            assert cell[0] == 1
            woken.append((engine.flight.look(seq).times > 0).all() and engine.m[CTL.HEAD] > seq)

        shell.wake = wake
        seq = engine.records.issue(engine.waits.{waiter}, (cell.ctypes.data,), None)
        shell.step(engine.m)
        assert woken == [True]
        """
    )
    assert process.stderr == ""
