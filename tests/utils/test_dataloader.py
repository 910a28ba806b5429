"""DataLoader: order, bounds and errors, whoever makes the batches; and the life of worker threads.

The tests that need several threads in a certain order use barriers and events, never sleeps.
"""

import gc
import multiprocessing
import signal
import threading
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

import flowvm as flow
from flowvm.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    TensorDataset,
    get_worker_info,
)
from flowvm.vm.callers.interrupt import interrupt

WAIT = 200.0  # seconds after which a test that should have been woken fails


def workers_alive() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("flowvm-data")]


@pytest.fixture(autouse=True)
def no_worker_is_left() -> Iterator[None]:
    yield
    if workers_alive() or multiprocessing.active_children():
        gc.collect()
    assert workers_alive() == multiprocessing.active_children() == []


def threads(count: int = 2) -> dict[str, Any]:
    return {"num_workers": count, "threads": True}


each_way = pytest.mark.parametrize(
    "workers",
    [{}, {"num_workers": 1}, {"num_workers": 3}, threads(1), threads(3)],
    ids=["here", "process", "processes", "thread", "threads"],
)


class Numbers(Dataset[int]):
    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.n))


def lists(loader: Any) -> list[Any]:
    return [batch.tolist() for batch in loader]


@each_way
def test_batches_come_in_order(workers: dict[str, Any]) -> None:
    loader = DataLoader(Numbers(10), batch_size=4, **workers)
    assert len(loader) == 3
    for _ in range(3):
        assert lists(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert lists(DataLoader(Numbers(10), 4, drop_last=True, **workers)) == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
    ]
    assert lists(DataLoader(Numbers(0), 4, **workers)) == []


@pytest.mark.parametrize("workers", [{}, {"num_workers": 1}, threads()])
def test_streams(workers: dict[str, Any]) -> None:
    assert lists(DataLoader(Stream(5), 2, **workers)) == [[0, 1], [2, 3], [4]]
    assert lists(DataLoader(Stream(5), 2, drop_last=True, **workers)) == [[0, 1], [2, 3]]
    assert list(DataLoader(Stream(3), None, **workers)) == [0, 1, 2]


@each_way
def test_other_ways_to_say_what_to_read(workers: dict[str, Any]) -> None:
    data = Numbers(6)
    assert list(DataLoader(data, None, **workers)) == list(range(6))
    assert lists(DataLoader(data, 2, sampler=[5, 0, 3], **workers)) == [[5, 0], [3]]
    batches = BatchSampler([1, 2, 3], 2)
    assert lists(DataLoader(data, batch_sampler=batches, **workers)) == [[1, 2], [3]]
    assert list(DataLoader(data, 3, collate_fn=sum, **workers)) == [3, 12]


@each_way
def test_shuffling_depends_on_the_seed_alone(workers: dict[str, Any]) -> None:
    def epochs() -> list[Any]:
        generator = flow.Generator().manual_seed(5)
        loader = DataLoader(Numbers(20), 6, shuffle=True, **workers, generator=generator)
        return [lists(loader), lists(loader)]

    first, second = epochs()
    assert first != second  # each pass draws anew
    assert sorted(index for batch in first for index in batch) == list(range(20))
    assert epochs() == [first, second]
    flow.manual_seed(11)
    loader = DataLoader(Numbers(20), 6, shuffle=True, **workers)
    batches = iter(loader)  # draws its order here, whatever the workers do
    after = flow.randperm(5).tolist()
    rows = lists(batches)
    flow.manual_seed(11)
    assert lists(DataLoader(Numbers(20), 6, shuffle=True)) == rows
    flow.manual_seed(11)
    iter(DataLoader(Numbers(20), 6, shuffle=True))
    assert flow.randperm(5).tolist() == after


@each_way
def test_tensor_dataset_batches(workers: dict[str, Any]) -> None:
    data = TensorDataset(flow.arange(6), flow.arange(12).reshape(6, 2))
    batches = list(DataLoader(data, 4, **workers))
    assert [[t.tolist() for t in batch] for batch in batches] == [
        [[0, 1, 2, 3], [[0, 1], [2, 3], [4, 5], [6, 7]]],
        [[4, 5], [[8, 9], [10, 11]]],
    ]


def test_prefetch_is_bounded_and_runs_ahead() -> None:
    results: list[int] = []
    changed = threading.Condition()

    class Watched(Numbers):
        def __getitem__(self, index: int) -> int:
            with changed:
                results.append(index)
                changed.notify_all()
            return index

    def wait_until_made(n: int) -> None:
        with changed:
            assert changed.wait_for(lambda: len(results) >= n, WAIT)

    batches = iter(DataLoader(Watched(100), None, prefetch_factor=3, **threads()))
    wait_until_made(6)  # before anyone asked
    for count in range(1, 20):
        assert next(batches) == count - 1
        wait_until_made(6 + count)
        assert len(results) <= 6 + count
    del batches


def test_several_workers_work_at_once() -> None:
    together = threading.Barrier(3)

    class Meeting(Numbers):
        def __getitem__(self, index: int) -> int:
            together.wait(WAIT)
            return index

    assert list(DataLoader(Meeting(6), None, **threads(3))) == list(range(6))


def test_a_slow_batch_does_not_change_the_order() -> None:
    late = threading.Event()

    class FirstIsSlow(Numbers):
        def __getitem__(self, index: int) -> int:
            if index == 0:
                assert late.wait(WAIT)
            if index == 3:
                late.set()
            return index

    assert list(DataLoader(FirstIsSlow(8), None, **threads())) == list(range(8))


class Failing(Numbers):
    def __getitem__(self, index: int) -> int:
        if index == 5:
            return self.fail(index)
        return index

    def fail(self, index: int) -> int:
        raise LookupError(f"sample {index} is broken")


@pytest.mark.parametrize("count", [1, 3])
def test_an_error_in_a_worker_is_raised_with_its_traceback(count: int) -> None:
    batches = iter(DataLoader(Failing(20), 2, **threads(count)))
    assert [next(batches).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(LookupError, match="sample 5 is broken") as caught:
        next(batches)
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert frames[-2:] == ["__getitem__", "fail"]
    assert any("batch 2" in note for note in caught.value.__notes__)
    assert workers_alive() == []
    with pytest.raises(StopIteration):
        next(batches)


@pytest.mark.parametrize("workers", [{"num_workers": 1}, threads(3)])
def test_an_error_in_the_sampler_or_stream_is_raised_in_its_place(workers: dict[str, Any]) -> None:
    def broken() -> Iterator[int]:
        yield 0
        yield 1
        raise KeyError("no more")

    class BrokenStream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return broken()

    for batches in (
        iter(DataLoader(BrokenStream(), None, **workers)),
        iter(DataLoader(Numbers(9), None, sampler=BrokenStream(), **workers)),
    ):
        assert [next(batches), next(batches)] == [0, 1]
        with pytest.raises(KeyError, match="no more"):
            next(batches)
        assert list(batches) == []


@pytest.mark.parametrize("workers", [{"num_workers": 2}, threads()])
def test_an_error_in_worker_init_is_raised(workers: dict[str, Any]) -> None:
    def init(worker: int) -> None:
        raise OSError(f"worker {worker} has no disk")

    with pytest.raises(OSError, match=r"worker \d has no disk"):
        list(DataLoader(Numbers(4), None, worker_init_fn=init, **workers))


@pytest.mark.parametrize("depth", [1, 4])
def test_stopping_early_ends_the_threads(depth: int) -> None:
    for batch in DataLoader(Numbers(1000), 2, prefetch_factor=depth, **threads(3)):
        assert len(workers_alive()) > 0
        if batch[0].item() == 4:
            break
    del batch
    gc.collect()
    assert workers_alive() == []


def test_an_exception_in_the_loop_ends_the_threads() -> None:
    def consume() -> None:
        for _ in DataLoader(Numbers(1000), 2, **threads()):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        consume()
    gc.collect()
    assert workers_alive() == []


@each_way
def test_two_passes_at_once(workers: dict[str, Any]) -> None:
    loader = DataLoader(Numbers(6), None, **workers)
    assert list(zip(loader, loader, strict=True)) == [(i, i) for i in range(6)]


@pytest.mark.parametrize("workers", [{"num_workers": 2}, threads()])
def test_worker_info(workers: dict[str, Any]) -> None:
    class Info(Numbers):
        def __getitem__(self, index: int) -> Any:
            info = get_worker_info()
            return None if info is None else [info.id in range(2), info.num_workers]

    assert list(DataLoader(Info(2), None)) == [None, None]
    assert list(DataLoader(Info(2), None, **workers)) == [[True, 2]] * 2
    assert get_worker_info() is None


def test_timeout() -> None:
    release = threading.Event()

    class Stuck(Numbers):
        def __getitem__(self, index: int) -> int:
            assert release.wait(WAIT)
            return index

    batches = iter(DataLoader(Stuck(2), None, timeout=0.01, **threads(1)))
    # The loader joins its worker before it raises, so the worker must be let go by then.
    threading.Timer(0.2, release.set).start()
    with pytest.raises(RuntimeError, match=r"timed out after 0.01 seconds"):
        next(batches)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be an int of at least 1, got 0"),
        ({"num_workers": -1}, "num_workers"),
        ({"sampler": [0], "shuffle": True}, "mutually exclusive with shuffle"),
        ({"batch_sampler": [[0]], "batch_size": 2}, "mutually exclusive with batch_size"),
        ({"batch_size": None, "drop_last": True}, "no last batch"),
        ({"prefetch_factor": 2}, "needs num_workers"),
        ({"timeout": -1}, "timeout"),
        (threads() | {"multiprocessing_context": "fork"}, "starts no processes"),
    ],
)
def test_misuse_says_what_was_wrong(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataLoader(Numbers(4), **options)


def test_wrong_datasets() -> None:
    with pytest.raises(TypeError, match="must have __getitem__"):
        DataLoader(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="decides its order itself"):
        DataLoader(Stream(3), shuffle=True)


INTERRUPTED = """
import signal
class Changed(Condition):
    sent = False
    def wait_for(self, predicate, timeout=None):
        if current_thread() is main_thread() and not self.sent:
            self.sent = True
            signal.raise_signal(signal.SIGINT)
        return super().wait_for(predicate, timeout)
"""


def test_ctrl_c_leaves_no_lock_of_the_loaders_taken() -> None:
    """Send it where the loader has taken its lock and begins to wait."""
    before = signal.signal(signal.SIGINT, interrupt)  # as the VM has it, unless a shell ignores it
    names: dict[str, Any] = dict(vars(threading))
    exec(compile(INTERRUPTED, threading.__file__, "exec"), names)
    batches = iter(DataLoader(Numbers(4), **threads(1)))
    work = batches._work  # type: ignore[attr-defined]
    with work._changed:
        changed = work._changed
        work._changed = names["Changed"](changed._lock)
        work._changed._waiters = changed._waiters

    def read(batches: Iterator[Any]) -> None:
        for _ in range(2):
            next(batches)
        threading.Event().wait(WAIT)  # it was put off until here

    try:
        with pytest.raises(KeyboardInterrupt):
            read(batches)
    finally:
        signal.signal(signal.SIGINT, before)
    free: list[bool] = []

    def take() -> None:
        free.append(changed.acquire(timeout=WAIT))
        changed.release()

    other = threading.Thread(target=take)
    other.start()
    other.join()
    assert free == [True]
    del batches
