"""The cache of shapes is bounded by bytes: the oldest unused entry goes first, used ones stay."""

from __future__ import annotations

import gc

import pytest

import flowvm as flow
from flowvm.guards import lru_cache
from flowvm.guards.lru_cache import LRUCache
from flowvm.meta import meta
from flowvm.meta.global_meta import GlobalMeta
from flowvm.meta.meta import TensorMeta
from flowvm.meta.placements import broadcast, placed_device
from flowvm.vm.engine import entries
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import ENT


@pytest.fixture
def cache():
    cache = LRUCache("test")
    yield cache
    cache.forget()
    lru_cache._dropped.pop("test", None)


def amounts(group):
    now = flow.vm.stats()
    return [now[f"{group}_kept"], now[f"{group}_kept_bytes"], now[f"{group}_dropped"]]


def test_what_is_unused_for_two_generations_is_dropped_and_what_is_used_is_not(cache):
    used, unused = object(), object()
    cache.put("used", used, 100)
    cache.put("unused", unused, 50)
    assert amounts("test") == [2, 150, 0]
    for turn in range(3):
        lru_cache.drop_old()
        assert cache.find("used") is used, turn
    assert cache.find("unused") is None
    assert amounts("test") == [1, 100, 1]


def test_the_first_to_be_kept_is_what_all_get(cache):
    first, second = object(), object()
    assert cache.put("key", first, 10) is first
    assert cache.put("key", second, 10) is first
    lru_cache.drop_old()
    assert cache.put("key", second, 10) is first, "the old counts, too"
    assert amounts("test") == [1, 10, 0]


def test_of_a_meta_in_use_there_is_never_a_second_one():
    """Else graphs that were captured before 64 MiB of shapes came were said to be wrong."""
    held = TensorMeta.of((3, 1789), flow.float32)
    where = flow.placement("cpu", ranks=[0])
    globally = GlobalMeta.make(held.shape, held.dtype, placed_device(where), (broadcast,))
    for _ in range(5):
        lru_cache.drop_old()
        assert TensorMeta.of((3, 1789), flow.float32) is held
        again = GlobalMeta.make(held.shape, held.dtype, placed_device(where), (broadcast,))
        assert again is globally
        for _ in range(3):
            lru_cache.drop_old()  # long dropped, and in use
    before = amounts("metas")
    del held, globally, again
    TensorMeta.of((3, 1789), flow.int8)
    for _ in range(3):
        lru_cache.drop_old()
    assert amounts("metas")[0] <= before[0], "what nobody uses is gone"
    assert (flow.Size((3, 1789)), flow.float32, flow.device("cpu"), None) not in meta._cache.gone


def test_bytes_are_bounded(cache):
    with flow.config(kept_bytes=1 << 20):
        for n in range(5000):
            cache.put(n, object(), 1000)
            assert cache.young_bytes + cache.old_bytes <= 1 << 20
            if n % 97 == 0:  # the statistics are of all that there is
                assert amounts("test")[1] == cache.young_bytes + cache.old_bytes
    assert cache.find(4999) is not None


def test_entries_of_dropped_calls_are_used_again(monkeypatch):
    """Far more kinds of calls than are kept: the table stays small, and all keep their meaning."""
    monkeypatch.setattr(entries, "NAMES", 50)
    before = engine.entries.reused
    with flow.config(kept_bytes=1 << 19):
        for n in range(1, 900):
            x = flow.ones(n)
            assert ((x * 2 + 1).sum().item()) == 3 * n
    assert engine.entries.reused > before
    held = [info for info, more in engine.entries.info if more]
    assert len(held) < len(engine.entries.info) <= ENT.LENGTH


def test_a_call_in_flight_keeps_its_entry(monkeypatch):
    monkeypatch.setattr(entries, "NAMES", 0)
    big = flow.ones(700, 700)
    slow = big @ big @ big
    rows = [slow[:n].sum(0) for n in range(1, 60)]
    engine.entries.forget()
    gc.collect()
    others = [flow.ones(n, 2) * n for n in range(1, 60)]  # they would take the numbers
    assert [r[0].item() for r in rows] == [490000.0 * n for n in range(1, 60)]
    assert [o[0, 0].item() for o in others] == list(range(1, 60))


def test_functions_of_shapes_remember_what_was_used_last():
    kept_before = amounts("views")
    for n in range(1, lru_cache.PLACES + 200):
        flow.ones(n).reshape(1, n)
    count, nbytes, dropped = amounts("views")
    assert dropped > kept_before[2]
    assert nbytes == count * lru_cache.RESULT_BYTES
