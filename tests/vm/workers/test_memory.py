"""Memory in use follows the tensors that are alive: under load, in loops, and with many."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from flowvm.eager.modes import use_stream
from flowvm.eager.values import adopt_array
from flowvm.errors import VMError
from flowvm.vm import empty_cache, stats
from flowvm.vm.callers.hot import hot
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import CTL, ENT, OPERAND, STO
from tests.vm.kernels import Gate, alone, empty, mix, odd, tensor, update, wait_for_gate
from tests.vm.live import script, streams, until, word

MIB = 1 << 20


def settle():
    """Release everything that is dead: live bytes now."""
    engine.storages.release_dead()
    engine.waits.wait_idle()
    return word(CTL.LIVE_BYTES)


def peak_of(function):
    """The most bytes that were live during `function()`, above what was live before."""
    before = settle()
    engine.words[CTL.PEAK_BYTES] = before
    function()
    settle()
    return word(CTL.PEAK_BYTES) - before


def test_a_loop_of_large_outputs_stays_small():
    x = empty(MIB // 8)

    def loop():
        for k in range(2000):
            y = mix(x, x, k)
        assert y.numpy()[0] == 4 + 1999

    assert peak_of(loop) <= 8 * MIB
    assert word(CTL.LIVE_BYTES) <= settle()


def test_a_loop_of_small_outputs_stays_small():
    x = empty()

    def loop():
        for k in range(5000):
            mix(x, x, k)

    assert peak_of(loop) <= MIB


@alone()
def test_a_loop_on_another_stream_stays_small():
    """A tensor's memory goes back to the stream that allocated it."""

    def loop():
        with use_stream(streams(2)[1]):
            x = empty(MIB // 8)
            for k in range(500):
                y = mix(x, x, k)
        for k in range(500):
            y = mix(y, x, k)

    assert peak_of(loop) <= 64 * MIB
    reserved = word(CTL.RESERVED_BYTES)
    loop()
    settle()
    assert word(CTL.RESERVED_BYTES) <= reserved + 8 * MIB


def test_an_output_whose_size_the_kernel_finds_is_no_cycle():
    x = tensor()
    gc.collect()
    gc.disable()
    try:
        before = settle()
        for _ in range(100):
            y = odd(x)
            assert y.shape[0] <= 48
            odd(x)  # and one whose shape nobody asks for
        del y
        assert settle() == before
    finally:
        gc.enable()


@alone()
def test_a_hundred_thousand_live_tensors_and_their_ids():
    count, x = 100_000, tensor([1])
    engine.storages.release_dead()
    many = [mix(x, x, k) for k in range(count)]
    assert len({t._ref for t in many}) == count
    for k in (0, 1, 77_777, count - 1):
        assert many[k].item() == 2 + k
    assert word(CTL.LIVE_BYTES) >= 64 * count
    used = engine.storages.next_id
    many.clear()
    live = settle()
    many = [mix(x, x, -k) for k in range(count)]
    assert engine.storages.next_id <= used + 256, "ids of released storages were not used again"
    assert [many[k].item() for k in (0, 5, count - 1)] == [2, -3, 3 - count]
    many.clear()
    assert settle() == live


def test_no_more_ids_is_an_error_that_says_so(monkeypatch):
    tensors = [tensor([1])]
    monkeypatch.setattr(engine.storages, "next_id", STO.LENGTH)
    with pytest.raises(VMError, match="tensors with memory of their own are alive"):
        tensors.extend(tensor([1]) for _ in range(STO.LENGTH))
    assert len(hot["free"]) == 0
    tensors.clear()
    assert empty().numpy()[0] == 2  # they came back


def test_adopted_memory_is_let_go_after_its_last_use():
    class Owner:
        pass

    array, owner = np.arange(48), Owner()
    gone, one = weakref.ref(owner), tensor([1])
    x = adopt_array(array, owner)
    del owner
    with Gate() as gate:
        wait_for_gate(x, one, gate.address)
        del x
        engine.storages.release_dead()
        assert gone() is not None  # a kernel is in it
    engine.waits.wait_idle()
    engine.waits.sync()
    assert gone() is None
    assert array[0] == 1


@alone()
def test_empty_cache_gives_memory_back():
    x = empty(8 * MIB)
    with use_stream(streams(2)[1]):
        y = empty(8 * MIB)
    x.numpy(), y.numpy()
    del x, y
    settle()
    before = word(CTL.RESERVED_BYTES)
    empty_cache()
    assert before - word(CTL.RESERVED_BYTES) >= 2 * 64 * MIB
    assert empty(MIB).numpy()[0] == 2


def test_empty_cache_when_workers_have_only_just_started():
    script(
        """
        for k in range(20):
            engine.streams.new(f"s{k}")
            flowvm.vm.empty_cache()
        """
    )


@alone()
def test_stats_add_up():
    empty_cache()
    before = stats()
    x, y = tensor(), empty()
    for k in range(300):
        update(x, y, k)
    with use_stream(streams(2)[1]):
        update(y, x, 1)
    y.numpy()
    engine.waits.sync()
    now = stats()
    new = {name: now[name] - before[name] for name in now}
    assert new["issued"] == new["dispatched"] == new["done"] >= 303
    assert now["in_flight"] == 0
    assert new["failed"] == new["poisoned"] == 0
    edges = new["edges_raw"] + new["edges_war"] + new["edges_waw"]
    assert new["prescheduled"] <= edges
    assert new["live_bytes"] == 384
    assert now["live_bytes"] <= min(now["peak_bytes"], now["reserved_bytes"])
    assert "issued" in repr(now)


def test_edges_are_counted_exactly():
    x, y, z, one = tensor(), tensor(), tensor(), tensor()
    names = ("edges_raw", "edges_war", "edges_waw", "prescheduled")
    with Gate() as gate:
        engine.storages.release_dead()
        wait_for_gate(x, one, gate.address)
        before = stats()
        update(y, x, 1)  # reads what is being written: RAW
        update(x, one, 1)  # writes that (WAW), and what the second reads (WAR)
        update(z, one, 1)  # nobody's business
        until(lambda: word(CTL.N_RAW) > before["edges_raw"], "edges are built")
        last = int(repr(hot["counter"])[6:-1])
        until(lambda: word(CTL.RECEIVED) >= last, "all are received")
        now = stats()
    assert [now[n] - before[n] for n in names] == [1, 1, 1, 3]


def test_a_full_table_of_entries_is_begun_anew(monkeypatch):
    """More kinds of calls than the table holds: caches are cleared, calls mean what they did."""
    engine.entries.forget()  # of other tests: what they left would be room afterwards
    engine.waits.wait_idle()
    engine.entries.let_go()
    engine.entries.nameless.clear()
    monkeypatch.setattr(ENT, "LENGTH", len(engine.entries.info) + 12)
    cleared = []
    monkeypatch.setattr(
        engine.entries, "on_full", [*engine.entries.on_full, lambda: cleared.append(1)]
    )
    called = []
    for turn in range(3):
        for n in range(1, 40):
            x = tensor(np.arange(n))
            y = mix(x, x, turn)
            update(y, x, n)
            engine.callbacks.issue(
                lambda *a: called.append(a), [x._ref] * (n % 4 + 1), [OPERAND.CONST] * (n % 4 + 1)
            )
            values = np.arange(n)
            expected = 5 * (3 * values - values[::-1] + turn) + values + n
            assert (y.numpy() == expected).all()
    engine.waits.wait_idle()
    assert len(cleared) >= 3
    assert [len(a) for a in called] == [n % 4 + 1 for n in range(1, 40)] * 3
    assert len(engine.entries.info) <= ENT.LENGTH
