"""Prefetcher: what workers and the consumer share, step by step on one thread, and with threads."""

import gc
import threading
import weakref

import pytest

from flowvm.errors import LoaderError
from flowvm.utils.data import threads
from flowvm.utils.data.threads import Prefetcher
from flowvm.utils.data.threads import _Work as Work
from flowvm.utils.data.worker_info import WorkerInfo, get_worker_info


def infos(count=2):
    return [WorkerInfo(k, count, 7 + k, None) for k in range(count)]


def test_jobs_are_ahead_by_a_depth_at_most():
    work = Work(iter("abcd"), str.upper, depth=2, timeout=0)
    assert work._next_job() == (0, "a")
    assert work._next_job() == (1, "b")
    taken = threading.Thread(target=lambda: jobs.append(work._next_job()))
    jobs = []
    taken.start()  # it waits until a batch is taken
    work._ready[0] = ("A", None)
    assert work.take() == "A"
    taken.join(60)
    assert jobs == [(2, "c")]


def test_batches_come_in_order_and_end():
    work = Work(iter("ab"), str.upper, depth=4, timeout=0)
    work.run()
    assert [work.take(), work.take()] == ["A", "B"]
    for _ in range(2):
        with pytest.raises(StopIteration):
            work.take()


def test_errors_take_the_place_of_a_batch():
    def make(job):
        if job == 1:
            raise ValueError("one")
        return job

    work = Work(iter(range(3)), make, depth=9, timeout=0)
    work.run()
    assert work.take() == 0
    with pytest.raises(ValueError, match="one") as error:
        work.take()
    assert "while it made batch 1" in error.value.__notes__[0]
    assert work.take() == 2


def test_errors_of_the_sampler_are_the_last():
    def jobs():
        yield 0
        raise KeyError("sampler")

    work = Work(jobs(), lambda job: job, depth=9, timeout=0)
    work.run()
    assert work.take() == 0
    with pytest.raises(KeyError, match="sampler"):
        work.take()
    with pytest.raises(StopIteration):
        work.take()


def test_batches_that_are_late_are_an_error(monkeypatch):
    work = Work(iter([1]), lambda job: job, depth=1, timeout=1.0)
    monkeypatch.setattr(threads, "monotonic", iter([0.0, 2.0, 2.0, 2.0]).__next__)
    with pytest.raises(LoaderError, match=r"timed out after 1.0 seconds"):
        work.take()


def test_a_stopped_pass_drops_its_batches():
    work = Work(iter("abc"), str.upper, depth=4, timeout=0)
    work.run()
    work.stop()
    assert not work._ready
    assert work._next_job() is None
    with pytest.raises(StopIteration):
        work.take()


@pytest.mark.parametrize("count", [1, 3])
def test_threads_make_all_batches_in_order(count):
    seen = set()

    def make(job):
        seen.add((get_worker_info().id, threading.current_thread().name))
        return job * job

    batches = Prefetcher(iter(range(20)), make, infos(count), depth=4)
    assert list(batches) == [k * k for k in range(20)]
    assert {name for _, name in seen} <= {f"flowvm-data:{k}" for k in range(count)}
    assert get_worker_info() is None
    batches.close()
    assert not any(t.is_alive() for t in batches._threads)


def test_workers_that_cannot_start_are_an_error():
    def init(number):
        raise RuntimeError(f"worker {number}")

    batches = Prefetcher(iter(range(3)), lambda job: job, infos(1), 2, worker_init_fn=init)
    with pytest.raises(RuntimeError, match="worker 0"):
        next(batches)
    assert not any(t.is_alive() for t in batches._threads)


def test_threads_end_with_their_prefetcher():
    batches = Prefetcher(iter(range(100)), lambda job: job, infos(), depth=2)
    assert next(batches) == 0
    workers, gone = batches._threads, weakref.ref(batches)
    del batches
    gc.collect()
    assert gone() is None
    assert not any(t.is_alive() for t in workers)
