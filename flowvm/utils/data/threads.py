"""Prefetcher: worker threads that make batches ahead of the consumer, in order and bounded.

Invariants, under `_changed`:
- read_count <= issued <= read_count + depth: job numbers `read_count`..`issued - 1` are being made
  or wait in `_ready`;
- the consumer gets job `read_count`, so batches come in the order of the jobs whatever the workers
  do;
- jobs come off one iterator, one at a time, under `_reading`: an IterableDataset is read by one
  thread at a time and no sample twice. `_reading` is taken before `_changed`, never after.

The threads hold the _Work, never the Prefetcher. So when the consumer drops the Prefetcher, in the
middle of a pass or at exit, its finalizer stops and joins them.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

from flowvm.errors import LoaderError
from flowvm.guards.locks import held
from flowvm.utils.data.worker_info import WorkerInfo, begin_thread
from flowvm.vm.callers.interrupt import protected

_SLICE = 0.05  # seconds that a Ctrl-C may be late
_PATIENCE = 10.0  # seconds that leaving a pass waits for a batch in the making


class _Work:
    """The state that the workers and the consumer share."""

    def __init__(
        self, jobs: Iterator[object], make: Callable[[Any], object], depth: int, timeout: float
    ) -> None:
        self._jobs = jobs
        self._make = make
        self._depth = depth
        self._timeout = timeout or float("inf")
        self._reading = threading.Lock()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._issued = 0
        self._read_count = 0
        self._ended = False  # the jobs ran out, or reading them raised
        self._stopped = False  # the consumer has left
        self._ready: dict[int, tuple[Any, BaseException | None]] = {}

    def run(self) -> None:
        """Make batches until the jobs end: the main function of a worker thread."""
        while (job := self._next_job()) is not None:
            number, what = job
            try:
                outcome: tuple[object, BaseException | None] = (self._make(what), None)
            except BaseException as error:  # raised again by take(), on the consumer's thread
                outcome = (None, _noted(error, number))
            with held(self._lock):  # not the Condition, whose `__enter__` is Python code
                self._ready[number] = outcome
                self._changed.notify_all()
            del job, what, outcome  # hold no batch while waiting for the next job

    def _next_job(self) -> tuple[int, object] | None:
        with self._reading:
            with held(self._lock):
                while self._issued >= self._read_count + self._depth and not self._finished():
                    self._changed.wait()
                if self._finished():
                    return None
            try:
                what = next(
                    self._jobs
                )  # outside _changed: the consumer need not wait for a slow one
            except StopIteration:
                self._end_jobs(None)
                return None
            except BaseException as error:
                self._end_jobs(error)
                return None
            with held(self._lock):
                number = self._issued
                self._issued += 1
            return number, what

    def _end_jobs(self, error: BaseException | None) -> None:
        """Note the end of the jobs; `error`, if any, takes the place of the next batch."""
        with held(self._lock):
            self._ended = True
            if error is not None:
                self._ready[self._issued] = (None, _noted(error, self._issued))
                self._issued += 1
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Note that a worker could not start."""
        with self._reading:
            if not self._ended:
                self._end_jobs(error)

    def _finished(self) -> bool:
        return self._ended or self._stopped

    def take(self) -> Any:
        """Return the next batch.  Raise the exception of its making, and StopIteration after the
        last.
        """
        until = monotonic() + self._timeout
        while (item := self._take_within(min(_SLICE, max(0.0, until - monotonic())))) is None:
            if monotonic() >= until:
                raise LoaderError(f"DataLoader timed out after {self._timeout} seconds")
        batch, error = item
        if error is not None:
            raise error
        return batch

    @protected  # a Condition is Python: a Ctrl-C in the middle of its wait would spoil it
    def _take_within(self, seconds: float) -> tuple[object, BaseException | None] | None:
        with held(self._lock):
            if not self._changed.wait_for(self._can_take, seconds):
                return None
            if self._read_count not in self._ready:
                raise StopIteration
            entry = self._ready.pop(self._read_count)
            self._read_count += 1
            self._changed.notify_all()
        return entry

    def _can_take(self) -> bool:
        over = self._stopped or (self._ended and self._read_count == self._issued)
        return over or self._read_count in self._ready

    @protected
    def stop(self) -> None:
        """Stop the workers after their present batches, and drop the ready batches."""
        with held(self._lock):
            self._stopped = True
            self._ready.clear()
            self._changed.notify_all()


def _noted(error: BaseException, number: int) -> BaseException:
    name = threading.current_thread().name
    error.add_note(f"raised in DataLoader worker thread {name!r} while it made batch {number}")
    return error


class Prefetcher:
    """`make(job)` for each of `jobs`, by a thread for each of `infos`, at most `depth` ahead."""

    def __init__(
        self,
        jobs: Iterator[object],
        make: Callable[[Any], Any],
        infos: list[WorkerInfo],
        depth: int,
        timeout: float = 0.0,
        worker_init_fn: Callable[[int], object] | None = None,
    ) -> None:
        self._work = _Work(jobs, make, depth, timeout)
        self._threads = [
            threading.Thread(
                target=_serve,
                args=(self._work, info, worker_init_fn),
                name=f"flowvm-data:{info.id}",
                daemon=True,  # at exit the finalizer ends them while the interpreter still works
            )
            for info in infos
        ]
        self._finalizer = weakref.finalize(self, _end, self._work, self._threads)
        for thread in self._threads:
            thread.start()

    def __iter__(self) -> Prefetcher:
        return self

    def __next__(self) -> Any:
        try:
            return self._work.take()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop and join the workers. Harmless when they have ended already."""
        self._finalizer()


def _serve(work: _Work, info: WorkerInfo, init: Callable[[int], object] | None) -> None:
    begin_thread(info)
    if init is not None:
        try:
            init(info.id)
        except BaseException as error:  # raised by take(), as an error in making a batch is
            work.fail(error)
            return
    work.run()


def _end(work: _Work, threads: list[threading.Thread]) -> None:
    work.stop()
    deadline = monotonic() + _PATIENCE
    for thread in threads:
        if thread is not threading.current_thread() and thread.ident is not None:
            thread.join(max(0.0, deadline - monotonic()))
    busy = [thread.name for thread in threads if thread.is_alive()]
    if busy and threading.current_thread().name not in busy:
        warnings.warn(
            f"DataLoader worker threads {busy} are still inside the dataset's code after "
            f"{_PATIENCE} s; they end when it returns",
            RuntimeWarning,
            stacklevel=3,
        )
