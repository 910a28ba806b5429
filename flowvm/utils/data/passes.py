"""A Pass: one reading of the data by worker processes, their tasks and their answers.

No thread is needed: while the consumer computes, workers read ahead from tasks that their sockets
hold, and the consumer itself hands out more and reads answers, in `next()`.

Invariants:
- read_count <= issued <= read_count + depth: batches `read_count`..`issued - 1` are being made or
  are in `_ready`;
- batch k is made by the k-th worker in turn, of those whose streams have not ended, so what workers
  draw at random does not depend on who is fast (`in_order=False` gives that up: next is who has the
  least to do, and batches come as they are ready).
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Iterator
from time import monotonic
from typing import Any

from flowvm.errors import LoaderError
from flowvm.utils.data.messages import Failure, Task
from flowvm.utils.data.pool import LOOK_S, Pool, Worker
from flowvm.utils.data.segments import decoded
from flowvm.vm.engine.engine import engine


class Pass:
    """One reading of the data.  `jobs`: what each batch is made of; for a stream, Nones."""

    def __init__(
        self, pool: Pool, jobs: Iterator[object], timeout: float, in_order: bool, keep: bool
    ) -> None:
        pool.epoch += 1
        self._pool, self._epoch = pool, pool.epoch
        self._jobs = jobs
        self._timeout = timeout or float("inf")
        self._in_order = in_order
        self._keep = keep  # the pool, for the next pass
        self._issued = self._read_count = 0
        self._over = False  # the jobs ran out
        self._turns = deque(pool.workers)  # workers whose streams have not ended, the next first
        self._ready: dict[int, tuple[str, Any, Any]] = {}
        self._issue()

    def __iter__(self) -> Pass:
        return self

    def __next__(self) -> Any:
        try:
            kind, batch = self._next()
        except BaseException:
            self._leave()  # the end; or an interrupt, which may have come anywhere
            raise
        if kind == "late":
            self._pool.patience[0] = 0.0
            raise LoaderError(f"DataLoader timed out after {self._timeout:g} seconds")
        if kind == "error":
            try:
                raise batch
            finally:
                del batch  # it holds this frame
        return batch

    def _leave(self) -> None:
        over = self._over and self._read_count == self._issued
        if not (self._keep and over) and self._epoch == self._pool.epoch:
            self._pool.close()

    def _next(self) -> tuple[str, Any]:
        """Return the kind of the next message, and the batch; StopIteration behind the last."""
        if self._over and self._read_count == self._issued:
            raise StopIteration
        if self._epoch != self._pool.epoch:
            raise LoaderError(
                "this pass over a DataLoader with persistent_workers=True has ended because another"
                " one has begun; with persistent_workers=False each has workers of its own"
            )
        if not self._pool.usable:
            raise LoaderError(
                "the workers of this pass over a DataLoader have ended, after an error or an "
                "interrupt, or are another process's; begin another pass"
            )
        _let_go()
        until = monotonic() + self._timeout
        while True:
            self._issue()
            if self._read_count == self._issued:
                raise StopIteration
            number = self._read_count if self._in_order else next(iter(self._ready), -1)
            if number not in self._ready:
                seconds = until - monotonic()
                if seconds <= 0:
                    return "late", None
                self._gather(min(seconds, LOOK_S))
                continue
            kind, content, parts = self._ready.pop(number)
            self._read_count += 1
            if kind != "end":
                self._issue()  # workers go on while this process uses the batch
                return self._opened(number, kind, content, parts)

    def _opened(self, number: int, kind: str, content: Any, parts: list[Any]) -> tuple[str, Any]:
        if kind == "raised":
            return "error", content
        answer, worker = content
        value = decoded(answer.placed, parts)
        return (kind, value) if kind == "batch" else (kind, _error(value, worker, number))

    def _issue(self) -> None:
        """Hand out tasks, up to the bound of unfinished ones."""
        while self._issued < self._read_count + self._pool.depth and not self._over:
            try:
                job = next(self._jobs)
            except StopIteration:
                self._over = True
                return
            except Exception as error:  # of the sampler: it is raised in the batch's place
                self._over = True
                self._ready[self._issued] = ("raised", error, None)
                self._issued += 1
                return
            if not self._turns:
                self._over = True
                return
            if not self._in_order:
                self._turns = deque(sorted(self._turns, key=lambda worker: worker.busy))
            worker = self._turns[0]
            self._turns.rotate(-1)
            worker.give(Task(self._epoch, self._issued, worker.borrowed.back(), job))
            self._issued += 1

    def _gather(self, seconds: float) -> None:
        """Receive the workers' answers."""
        for worker in self._pool.ready(seconds):
            try:
                for answer, parts in worker.answers():
                    if answer.epoch != self._epoch:
                        continue  # of a pass that was left early
                    self._ready[answer.number] = (answer.kind, (answer, worker), parts)
                    if answer.kind == "end" and worker in self._turns:
                        self._turns.remove(worker)
            except EOFError:
                raise self._pool.dead(worker) from None


def _let_go() -> None:
    """Give the memory of unused batches back to the workers."""
    engine.storages.release_dead()
    with engine.lock:
        engine.storages.reclaim()


def _error(failure: Failure, worker: Worker, number: int) -> Exception:
    """Return the exception to raise for a worker's."""
    place = f"DataLoader worker process {worker.id}"
    text = f"Original {failure.text}"
    error = None if failure.pickled is None else pickle.loads(failure.pickled)
    if error is None or isinstance(error, StopIteration):  # which would end the loop in silence
        return LoaderError(f"Caught {failure.name} in {place}.\n{text}")
    error.add_note(
        f"Caught {failure.name} in {place} (pid {worker.pid}), which made batch {number}.\n{text}"
    )
    checked: Exception = error
    return checked
