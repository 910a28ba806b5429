"""A pass over the data: tasks and answers of workers that are made by hand."""

import pickle
from collections import deque

import pytest

from flowvm.errors import LoaderError
from flowvm.utils.data import passes
from flowvm.utils.data.messages import Answer, Failure
from flowvm.utils.data.passes import Pass


class Borrowed:
    def back(self):
        return []


class Worker:
    """A worker that answers when it is told to."""

    def __init__(self, number):
        self.id, self.pid, self.busy = number, 100 + number, 0
        self.borrowed = Borrowed()
        self.tasks, self.ready = [], []

    def give(self, task):
        self.busy += 1
        self.tasks.append(task)

    def answer(self, task, kind="batch", value=None, epoch=None):
        self.busy -= 1
        number = task.epoch if epoch is None else epoch
        self.ready.append((Answer(number, task.number, kind, value), []))

    def answers(self):
        ready, self.ready = self.ready, []
        return ready


class Pool:
    """As many workers as are asked for; each look lets them answer all of their tasks."""

    def __init__(self, count=2, depth=3):
        self.workers = [Worker(k) for k in range(count)]
        self.depth, self.epoch, self.usable, self.closed = depth, 0, True, 0
        self.patience = [1.0]
        self.reply = lambda worker, task: worker.answer(task, value=task.job * 10)

    def ready(self, seconds):
        for worker in self.workers:
            tasks, worker.tasks = worker.tasks, []
            for task in tasks:
                self.reply(worker, task)
        return self.workers

    def close(self):
        self.closed += 1

    def dead(self, worker):
        return LoaderError(f"worker {worker.id} has died")


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    monkeypatch.setattr(passes, "decoded", lambda placed, parts: placed)


def a_pass(pool, count=7, timeout=0.0, in_order=True, keep=True):
    return Pass(pool, iter(range(count)), timeout, in_order, keep)


def test_tasks_go_round_and_batches_come_in_order():
    pool = Pool()
    one = a_pass(pool)
    assert [t.job for w in pool.workers for t in w.tasks] == [0, 2, 1]  # so many as the depth
    assert list(one) == [0, 10, 20, 30, 40, 50, 60]
    assert pool.closed == 0  # it is kept for the next pass
    assert list(a_pass(pool)) == [0, 10, 20, 30, 40, 50, 60]
    assert pool.epoch == 2


def test_pools_that_are_not_kept_close_with_the_pass():
    pool = Pool()
    assert len(list(a_pass(pool, keep=False))) == 7
    assert pool.closed == 1


def test_batches_come_as_they_are_ready():
    pool = Pool()
    late = []

    def reply(worker, task):
        if task.number == 0 and not late:
            late.append(task)
            return
        worker.answer(task, value=task.job)
        if late and task.number == 3:
            pool.workers[0].answer(late[0], value=0)

    pool.reply = reply
    batches = list(a_pass(pool, 4, in_order=False))
    assert sorted(batches) == [0, 1, 2, 3]
    assert batches.index(0) > batches.index(1)  # it had come last


def test_workers_with_the_least_to_do_are_next():
    pool = Pool(2, depth=4)
    pool.workers[0].busy = 5  # of an earlier pass
    a_pass(pool, 4, in_order=False)
    assert [len(w.tasks) for w in pool.workers] == [0, 4]


def test_answers_of_an_earlier_pass_are_not_taken():
    pool = Pool(1)

    def reply(worker, task):
        worker.answer(task, value="old", epoch=task.epoch - 1)
        worker.busy += 1
        worker.answer(task, value="new")

    pool.reply = reply
    assert list(a_pass(pool, 2)) == ["new", "new"]


def test_streams_end_worker_by_worker():
    pool = Pool(2)

    def reply(worker, task):
        kind = "end" if worker.id == 0 and task.number >= 2 else "batch"
        worker.answer(task, kind, value=(worker.id, task.number))

    pool.reply = reply
    batches = list(a_pass(pool, 6))
    assert [k for k, _ in batches].count(0) == 1
    assert all(worker == 1 for worker, _ in batches[2:])


def failed(error, pickled=True):
    return Failure(type(error).__name__, "the trace", pickle.dumps(error) if pickled else None)


def test_errors_of_workers_keep_their_class():
    pool = Pool(1)
    pool.reply = lambda worker, task: (
        worker.answer(task, "error", failed(KeyError("x"))) if task.number == 1
        else worker.answer(task, value=task.job)
    )  # fmt: skip
    one = a_pass(pool, 3)
    assert next(one) == 0
    with pytest.raises(KeyError, match="x") as error:
        next(one)
    assert "DataLoader worker process 0 (pid 100), which made batch 1" in error.value.__notes__[0]
    assert next(one) == 2  # the pass goes on


@pytest.mark.parametrize("pickled", [True, False])
def test_errors_that_cannot_be_raised_are_in_words(pickled):
    error = StopIteration() if pickled else ValueError("x")
    pool = Pool(1)
    pool.reply = lambda worker, task: worker.answer(task, "error", failed(error, pickled))
    with pytest.raises(LoaderError, match=rf"Caught {type(error).__name__} in DataLoader worker"):
        next(a_pass(pool))


def test_errors_of_the_sampler_come_in_their_place():
    def jobs():
        yield 0
        raise OSError("sampler")

    one = Pass(Pool(), jobs(), 0.0, True, True)
    assert next(one) == 0
    with pytest.raises(OSError, match="sampler"):
        next(one)
    with pytest.raises(StopIteration):
        next(one)


def test_a_batch_that_is_late(monkeypatch):
    pool = Pool()
    pool.reply = lambda worker, task: None
    one = a_pass(pool, timeout=2.0)
    clock = iter([0.0, 1.0, 3.0])
    monkeypatch.setattr(passes, "monotonic", lambda: next(clock))
    with pytest.raises(LoaderError, match="timed out after 2 seconds"):
        next(one)
    assert pool.patience == [0.0]


def test_a_worker_that_died_is_an_error():
    class Dead(Worker):
        def answers(self):
            raise EOFError

    pool = Pool(1)
    pool.workers = [Dead(0)]
    with pytest.raises(LoaderError, match="worker 0 has died"):
        next(a_pass(pool))
    assert pool.closed == 1


def test_passes_end_with_another_or_their_workers():
    pool = Pool()
    first = a_pass(pool)
    assert next(first) == 0
    second = a_pass(pool)
    with pytest.raises(LoaderError, match="another one has begun"):
        next(first)
    assert pool.closed == 0  # it is the other's
    pool.usable = False
    with pytest.raises(LoaderError, match="begin another pass"):
        next(second)


def test_a_pass_over_nothing():
    assert list(a_pass(Pool(), 0)) == []
    assert isinstance(a_pass(Pool())._turns, deque)
